"""Guards against code of authors: exceptions of any kind, deadly tasks, a blocked loop."""

from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = ()
REMOVALS: dict[str, Removal] = {}
