"""Guards on what is told: secrets, control characters, hidden agents, where credentials go."""

from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = ()
REMOVALS: dict[str, Removal] = {}
