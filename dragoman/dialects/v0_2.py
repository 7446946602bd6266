"""A2A 0.2: on the wire the same as 0.3, but for the agent card."""

from dragoman.dialects import cards
from dragoman.dialects.reading import Object
from dragoman.dialects.v0_3 import V0, V0Objects
from dragoman.model.card import AgentCard


class _V0_2(V0):
    version = "0.2"

    def encode_card(self, card: AgentCard) -> Object:
        return cards.v0_2(card)


class _V0_2Objects(_V0_2, V0Objects):
    """For peers of 0.2 that take no arrays."""


V0_2 = _V0_2()
V0_2_OBJECTS = _V0_2Objects()
