"""Guards on what is read: public bodies, values in a body, memory, connections."""

from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = ()
REMOVALS: dict[str, Removal] = {}
