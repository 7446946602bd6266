"""Guards on who may do what: keys of agents and their offspring, principals, money by number."""

from dragoman.proof.guards import agent_keys
from dragoman.proof.patches import Removal
from dragoman.proof.trial import Guard

GUARDS: tuple[Guard, ...] = (*agent_keys.GUARDS,)
REMOVALS: dict[str, Removal] = {**agent_keys.REMOVALS}
