"""What can go wrong, by meaning. Codes and statuses live in `dialects.errors`.

    A2AError
    ├── ParseFailed                 the body is not JSON that is accepted
    ├── InvalidRequest              not a request: wrong envelope
    │   └── BodyTooLarge
    ├── MethodNotFound              no such operation in this version
    ├── InvalidParams               a field is missing or wrong; says which
    ├── TaskNotFound                unknown, purged or not the caller's: all look the same
    │   └── PushConfigNotFound      the task is there and has no such receiver
    ├── TaskNotCancelable           it already ended
    ├── PushNotSupported
    ├── UnsupportedOperation        the agent does not offer it, or not in this state
    ├── ContentTypeNotSupported
    ├── InvalidAgentResponse        the agent broke the rules of events
    ├── ExtendedCardNotConfigured
    ├── ExtensionRequired
    ├── VersionNotSupported
    ├── Unauthenticated
    ├── PermissionDenied
    ├── Overloaded                  try again later
    │   └── RateLimited             this caller asks for too much
    ├── NoAgentAvailable            a gateway has no agent for it
    ├── InsufficientCredits         the task costs more than its requester has or will pay
    ├── TrustTooLow                 no agent is trusted as much as the requester wants
    ├── AgentOffline                no agent that could do it answers at present
    ├── HopLimit                    the task came back to a gateway, or passed too many
    ├── InternalError               the server's fault; its log has the cause under the incident
    └── CallFailed                  raised by our client alone: no peer says these on a wire
        ├── Unreachable             no answer: name, connection, TLS, or a proxy in between
        │   └── DeliveryUnknown     the message may have arrived; sending it again may repeat work
        ├── TimedOut                the answer took too long; the task may go on at the agent
        ├── CardNotFound            the reference leads to no card
        ├── CardInvalid             it leads to something that is not a usable card; says why
        └── CredentialsMissing      the agent wants credentials, and none that fit were given

    AuthorError                     raised by, or because of, an agent's own code
    ├── TaskFailed                  ends the task as failed with a public sentence
    │   └── BudgetExceeded          the code asks more of other agents than its task may spend
    └── TaskRejected                ends the task as rejected with a public sentence

    StepFailed                      a step failed in an earlier run of the code

    StoreRefused                    a write did not happen
    ├── StoreConflict               another writer was first
    ├── HoldRefused                 the account does not cover what the task may cost
    └── StoreUnavailable            the disk did not take it
        ├── StoreFull               the disk is full; writes succeed again when there is space
        ├── StoreReadOnly           this process only reads it
        ├── StoreDamaged            the content of the file is damaged
        └── StoreBroken             the disk did not keep what it took: nothing more is acknowledged
            └── StoreLost           the file is gone, or was replaced
    ConfigError                     a setting or an argument is wrong; says what to change

A class's docstring is its default public message; facts are fields, so that no caller parses text.
"""

from collections.abc import Sequence
from typing import Any


class A2AError(Exception):
    """The request could not be answered"""

    # Facts for the peer, as strings; subclasses name theirs in the constructor.
    facts: dict[str, str]
    # What the peer called it on its binding: -32001, 404. None: the error is of our own making.
    code: int | str | None = None
    # Whether the public message is the text of a peer, which may be anything.
    is_quoted = False

    def __init__(self, message: str = "", **facts: Any) -> None:
        self.public = message or (self.__doc__ or "").strip()
        self.facts = {name: str(value) for name, value in facts.items()}
        super().__init__(self.public)


class ParseFailed(A2AError):
    """Invalid JSON payload"""


class InvalidRequest(A2AError):
    """Request payload validation error"""


class BodyTooLarge(InvalidRequest):
    """Request body is too large"""


# Characters of an unknown method that its error repeats.
_METHOD_LENGTH = 128


class MethodNotFound(A2AError):
    """Method not found"""

    def __init__(self, message: str = "", *, method: str | None = None, **facts: Any) -> None:
        if method is not None:
            message = message or f"Method not found: {method[:_METHOD_LENGTH]}"
            facts["method"] = method
        super().__init__(message, **facts)


class InvalidParams(A2AError):
    """Invalid parameters"""

    def __init__(self, description: str = "", *, field: str = "") -> None:
        super().__init__(f"{field}: {description}" if field else description)
        self.field = field
        self.description = description


class NoAgentAvailable(A2AError):
    """No agent available"""


class TaskNotFound(A2AError):
    """Task not found"""


class PushConfigNotFound(TaskNotFound):
    """Push notification configuration not found"""


class TaskNotCancelable(A2AError):
    """Task cannot be canceled"""


class PushNotSupported(A2AError):
    """Push Notification is not supported"""


class UnsupportedOperation(A2AError):
    """This operation is not supported"""


class ContentTypeNotSupported(A2AError):
    """Incompatible content types"""


class InvalidAgentResponse(A2AError):
    """Invalid agent response"""


class ExtendedCardNotConfigured(A2AError):
    """Authenticated Extended Card is not configured"""


class ExtensionRequired(A2AError):
    """A required extension was not requested"""


class VersionNotSupported(A2AError):
    """This protocol version is not supported"""


class Unauthenticated(A2AError):
    """Authentication is required"""


class PermissionDenied(A2AError):
    """Permission denied"""


class Overloaded(A2AError):
    """The server is busy, try again later"""


class RateLimited(Overloaded):
    """Too many requests"""

    def __init__(
        self,
        message: str = "",
        *,
        retry_after: int = 1,
        headers: Sequence[tuple[bytes, bytes]] = (),
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        # Seconds after which there is room again.
        self.retry_after = retry_after
        # Headers that tell the caller its limits.
        self.headers = headers


def retry_after(error: BaseException) -> int:
    """Return after how many seconds a refused call may be repeated; 1 if that is not known."""
    # What a peer said comes first: an error that was read from its answer knows it by nothing else.
    text = error.facts.get("retryAfter", "") if isinstance(error, A2AError) else ""
    if text.isascii() and text.isdigit() and len(text) < 6:
        return int(text)
    return error.retry_after if isinstance(error, RateLimited) else 1


class InsufficientCredits(A2AError):
    """The balance does not cover the price of the task"""


class TrustTooLow(A2AError):
    """No agent is trusted as much as was asked for"""


class AgentOffline(A2AError):
    """The agent does not answer at present"""


class HopLimit(A2AError):
    """The task was forwarded too often"""


class InternalError(A2AError):
    """Internal error"""


class CallFailed(A2AError):
    """The agent could not be called"""


class Unreachable(CallFailed):
    """The agent could not be reached"""

    # Whether there was a connection on which something may have arrived.
    is_sent = False


class DeliveryUnknown(Unreachable):
    """The connection broke before the agent answered; it may have taken the message"""

    is_sent = True


class TimedOut(CallFailed):
    """The agent did not answer in time; its task goes on"""


class CardNotFound(CallFailed):
    """There is no agent card at this reference"""


class CardInvalid(CallFailed):
    """This is not a usable agent card"""


class CredentialsMissing(CallFailed):
    """The agent asks for credentials, and none that fits was given"""


class AuthorError(Exception):
    """Raised by an agent's own code to end its task."""

    def __init__(self, public: str) -> None:
        super().__init__(public)

    @property
    def public(self) -> str:
        """The text for the caller."""
        return str(self.args[0]) if self.args else ""


class TaskFailed(AuthorError):
    """Ends the task as failed; the text is shown to the caller."""


class BudgetExceeded(TaskFailed):
    """The task may not spend more on other agents. Code that does not catch it fails its task."""

    # INVOCATION_LIMIT, UNIQUE_AGENT_LIMIT, COOLDOWN, TIME_LIMIT or MONEY_LIMIT.
    reason = ""

    def __init__(self, public: str, *, reason: str = "") -> None:
        super().__init__(public)
        self.reason = reason


class InputTimeout(TaskFailed):
    """A question was not answered in time. Code that does not catch it fails its task."""

    def __init__(self, task_id: str, seconds: float) -> None:
        super().__init__(f"Input timeout: no answer within {seconds:g} s.")
        self.facts: dict[str, Any] = {"taskId": task_id, "timeoutSeconds": seconds}


class RequestFailed(TaskFailed):
    """The caller could not do what it was asked for. Code that does not catch it fails its task."""


class TaskRejected(AuthorError):
    """Ends the task as rejected; the text is shown to the caller."""


def is_interruption(error: BaseException) -> bool:
    """Tell whether an exception is for those around the code that it comes through: the running
    task is being cancelled, or its coroutine closed. Whatever else an author's code raises, of
    whichever class, ends what the code was asked for and nothing more."""
    # Loaded by all that runs a loop, and by no command that does not.
    import asyncio

    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        running = asyncio.current_task()
    except RuntimeError:
        return True
    if running is None or isinstance(error, GeneratorExit):
        # Only what no loop runs any more is closed from outside.
        return running is None
    return running.cancelling() > 0


class StepFailed(Exception):
    """A step failed in an earlier run of the code, with an exception that cannot be made again."""


class StoreRefused(Exception):
    """A write did not happen."""


class StoreConflict(StoreRefused):
    """The log moved on, or the fence is stale."""


class HoldRefused(StoreRefused):
    """The account has not what is to be held. Amounts are micro-credits."""

    def __init__(self, balance: int, needed: int) -> None:
        super().__init__("the balance does not cover the hold")
        self.balance = balance
        self.needed = needed


class StoreUnavailable(StoreRefused):
    """The disk would not take it."""


class StoreFull(StoreUnavailable):
    """There is no space left."""


class StoreReadOnly(StoreUnavailable):
    """This process only reads the store."""


class StoreBroken(StoreUnavailable):
    """The disk failed to keep what it was given."""

    # For callers that may not know where the store is.
    public = "the disk lost a write"


class StoreLost(StoreBroken):
    """The store's file is gone, or another one; the text says what to do."""

    public = "a file of the store is gone or was changed by another program"


class StoreSuperseded(StoreBroken):
    """A newer release changed the store, so that this one cannot use it any more."""

    public = "a newer release changed the store"


class StoreDamaged(StoreUnavailable):
    """What the file says makes no sense."""


class ConfigError(Exception):
    """The settings make no sense; the text says what to change.

    `remedy` is what to type then: a whole command, options to add to the one that was typed
    (`--force`), or a variable to set before it (`NAME=value`). `meant` is a wrong word of it and
    the right one, `setting` the setting that is wrong.
    """

    def __init__(
        self,
        message: str = "",
        *,
        remedy: str = "",
        setting: str = "",
        meant: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.setting = setting
        self.meant = meant
