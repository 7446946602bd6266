"""An author's code as the engine sees it: who may use it, what it will do with a message."""

from typing import Protocol

from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.operations import SendMessage


class AgentCode(Protocol):
    """The author's code as the engine sees it."""

    name: str
    streaming: bool
    required_extensions: frozenset[str]

    @property
    def is_scoped(self) -> bool:
        """Whether any skill is for some callers only."""
        ...

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Raise `PermissionDenied` if a message is for a skill that this caller may not use. That
        the skill exists is no secret: the card shows it."""
        ...

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Return what will be done; raises an `A2AError` for a message that cannot be served.

        `began` is what the task began with, if this is a further message to it; an answer goes to
        code that waits for it, whatever it says. `caller` begins the task."""
        ...

    def withdraw(self, replay: Replay) -> None:
        """Tell other agents that were given parts of a task that it ends; no code works on it any
        more. Does not wait for them."""
        ...
