"""Where the calls of a turn stand among its steps: the same places if the code runs again.

A call and the answers to what its agent asks back are steps of their own, at places that depend on
the code alone and not on who is faster.
"""

from dragoman.engine.replay import below
from dragoman.server.delegates import Ref, address_of


class Place:
    """One step of a call: whom it is for, and where it stands."""

    def __init__(self, agent: Ref, index: int, label: str, leg_of: str, asked: int | None) -> None:
        self.agent = agent
        self.who = address_of(agent)
        self.index = index
        self.label = label
        # The task that waits for it, where it is an answer and no call of its own.
        self.leg_of = leg_of
        # The same, where an earlier turn of the task was given it.
        self.earlier = ""
        # What the code itself wants it to cost at most.
        self.asked = asked
        # Seconds that it took before this process followed it.
        self.before = 0.0

    @property
    def account(self) -> object:
        """Where its money is promised."""
        return self.task or self.index

    @property
    def task(self) -> str:
        """The task it goes on with, which has money of its own."""
        return self.leg_of or self.earlier


class Spot:
    """Where a call stands in its turn, and what comes of it: what is asked back and answered has
    places below its own, because calls side by side get there in any order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._below = 0
        # Its own place, once it has one.
        self.index: int | None = None

    def next_place(self) -> int:
        """Return the next place below."""
        assert self.index is not None, "what comes of a call comes after it"
        self._below += 1
        return below(self.index, self._below)

    def label(self, name: str) -> str:
        """Return what the step is called. Numbered: of two calls of one agent side by side, each is
        a step of its own."""
        number = f"{self._number}.{self._below}" if self._below else f"{self._number}"
        return f"call {number} {name}"
