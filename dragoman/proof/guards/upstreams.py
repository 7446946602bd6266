"""Guards against agents behind the gateway: silence, lost tasks, empty accounts."""

from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = ()
REMOVALS: dict[str, Removal] = {}
