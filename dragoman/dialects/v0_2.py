"""A2A 0.2: on the wire the same as 0.3, but for the agent card."""

from dragoman.dialects import cards
from dragoman.dialects.reading import Object
from dragoman.dialects.v0_3 import V0
from dragoman.model.card import AgentCard


class _V0_2(V0):
    version = "0.2"

    def encode_card(self, card: AgentCard) -> Object:
        return cards.v0_2(card)


V0_2 = _V0_2()
