"""What a task may spend on other agents, and the clients of its agent's code.

Light on purpose: an agent that calls no other loads no client.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.events import Delegated
from dragoman.model.message import Metadata
from dragoman.model.money import micro_credits

if TYPE_CHECKING:
    # Heavy: loaded with the first call.
    from dragoman.authoring.delegates import Delegates
    from dragoman.client.client import Client

# Calls within calls within calls, unless the agent says otherwise.
DEEPEST = 8


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What one task may spend on other agents. None: no limit."""

    # Calls, and how many different agents.
    calls: int | None = None
    agents: int | None = None
    # Seconds between two calls.
    cooldown: float = 0.0
    # Seconds that all calls together may take; one that is under way then is stopped.
    seconds: float | None = None
    # Credits that all calls together may cost, as `"2.5"`, where they go through a gateway.
    money: str | int | None = None
    # How deep calls may be within calls.
    depth: int = DEEPEST
    # How many tasks of the same agent may wait for one that makes a call: agents that call each
    # other in a circle end there.
    rounds: int = 0

    def __post_init__(self) -> None:
        for name in ("calls", "agents", "depth", "rounds"):
            value: object = getattr(self, name)
            if not _is_count(value) and (value is not None or name in ("depth", "rounds")):
                raise ConfigError(f"Budget({name}={value!r}): must be a whole number, 0 or more")
        for name in ("cooldown", "seconds"):
            value = getattr(self, name)
            if not _is_time(value) and (value is not None or name == "cooldown"):
                raise ConfigError(f"Budget({name}={value!r}): must be a number of seconds")
        try:
            _ = self.micro_credits
        except ValueError as error:
            raise ConfigError(f"Budget(money={self.money!r}): {error}") from None

    @property
    def micro_credits(self) -> int | None:
        """What all calls together may cost, in micro-credits."""
        return None if self.money is None else micro_credits(str(self.money))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_time(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # NaN fails both comparisons.
    return 0 <= value < math.inf


class CallOptions(TypedDict, total=False):
    """How another agent is called, besides the content."""

    # A task of it to continue, or a conversation.
    task_id: str
    context_id: str
    metadata: Metadata
    accept: Sequence[str]
    # Whether its questions go to the caller of this task (yes).
    relay: bool
    # Whether the caller is told when it has begun and when it has answered (no).
    announce: bool


class Delegation:
    """How an agent's code calls others."""

    def __init__(self, budget: Budget, clients: "Sequence[Client]" = ()) -> None:
        self.budget = budget
        self._clients = clients
        self._delegates: Delegates | None = None

    @property
    def delegates(self) -> "Delegates":
        """The clients of the code."""
        if self._delegates is None:
            from dragoman.authoring.delegates import Delegates

            self._delegates = Delegates(self._clients)
        return self._delegates

    def withdraw(self, given: Sequence[Delegated]) -> None:
        """Have tasks of other agents canceled, in the background."""
        if named := [one for one in given if one.task_id]:
            self.delegates.withdraw(named)

    async def close(self) -> None:
        """Close what is open; the next call opens it again."""
        delegates, self._delegates = self._delegates, None
        if delegates is not None:
            await delegates.close()
