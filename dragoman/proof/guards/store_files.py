"""Guards on the file of a store: gone, replaced, read-only, empty beside leftovers."""

from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = ()
REMOVALS: dict[str, Removal] = {}
