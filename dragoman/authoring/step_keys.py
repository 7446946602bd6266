"""Where the calls of a turn stand among its steps: the same places if the code runs again.

A call, and each answer to a question of its agent, is a step of its own. Their places depend on the
code alone and not on which call is faster.
"""

from dragoman.authoring.delegates import Ref, address_of
from dragoman.engine.running.replay import below


class CallSite:
    """One step of a call: the agent, and its place."""

    def __init__(
        self, agent: Ref, index: int, label: str, leg_of: str, max_cost: int | None
    ) -> None:
        self.agent = agent
        self.who = address_of(agent)
        self.index = index
        self.label = label
        # The task that it answers, where it is not a call of its own.
        self.leg_of = leg_of
        # The same, where an earlier turn made that call.
        self.earlier = ""
        # The most that the code lets it cost.
        self.max_cost = max_cost
        # Seconds that it took before this process followed it.
        self.before = 0.0

    @property
    def account(self) -> object:
        """The key of its promised money."""
        return self.task or self.index

    @property
    def task(self) -> str:
        """The task that it continues, which has money of its own."""
        return self.leg_of or self.earlier


class CallPlace:
    """The place of a call in its turn. Questions that come back and their answers have places below
    it, because concurrent calls get there in any order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._below = 0
        # Its own place, once it has one.
        self.index: int | None = None

    def next_place(self) -> int:
        """Return the next place below."""
        assert self.index is not None, "questions come after the call"
        self._below += 1
        return below(self.index, self._below)

    def label(self, name: str) -> str:
        """Return the name of the step. Numbered: concurrent calls of one agent are two steps."""
        number = f"{self._number}.{self._below}" if self._below else f"{self._number}"
        return f"call {number} {name}"
