"""What our client is held against: servers, what is spoken with each, and what each cannot do.

A side is a server, a version and a binding. What a library cannot do stands in `GAPS` with the
reason; where our client has a right answer to it all the same, that is what is asserted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    InternalError,
    InvalidParams,
    InvalidRequest,
    PushNotSupported,
    TaskNotCancelable,
    UnsupportedOperation,
)
from tests.peers.scripts import SCRIPTS


@dataclass(frozen=True)
class Side:
    """A server, and what is spoken with it."""

    host: str
    version: str
    binding: str
    # What follows the address: a card at another place than the usual.
    card: str = ""
    # Whether a stream can be cut and joined again: there are chunks, and subscriptions.
    is_joined: bool = True

    @property
    def id(self) -> str:
        return f"{self.host}-{self.version}-{self.binding}"


@dataclass(frozen=True)
class Gap:
    """Why a script cannot pass; `raises` is what our client says of it, if it is asked at all."""

    reason: str
    raises: type[A2AError] | None = None


# Libraries of the protocol.
LIBRARIES = [
    Side("dragoman", "1.0", "JSONRPC"),
    Side("dragoman", "1.0", "HTTP+JSON"),
    Side("dragoman", "0.3", "JSONRPC"),
    Side("dragoman", "0.3", "HTTP+JSON"),
    Side("dragoman", "1.0", "GRPC"),
    Side("dragoman", "0.3", "GRPC"),
    # The usual card speaks of 0.3 and later; this is the one for older clients.
    Side("dragoman", "0.2", "JSONRPC", "/.well-known/agent.json"),
    Side("a2a-sdk-1.3.0", "1.0", "JSONRPC"),
    Side("a2a-sdk-1.3.0", "1.0", "HTTP+JSON"),
    Side("a2a-sdk-1.3.0", "0.3", "JSONRPC"),
    Side("a2a-sdk-1.3.0", "0.3", "HTTP+JSON"),
    Side("a2a-sdk-1.3.0", "1.0", "GRPC"),
    Side("a2a-sdk-1.3.0", "0.3", "GRPC"),
    Side("a2a-sdk-0.3.26", "0.3", "GRPC"),
    Side("a2a-sdk-0.3.26", "0.3", "JSONRPC"),
    Side("a2a-sdk-0.3.26", "0.3", "HTTP+JSON"),
    Side("fasta2a-2.1.1", "1.0", "JSONRPC"),
    Side("a2a-js-1.3.0", "1.0", "JSONRPC"),
    Side("a2a-js-1.3.0", "1.0", "HTTP+JSON"),
    Side("a2a-js-1.3.0", "0.3", "JSONRPC"),
    Side("a2a-js-1.3.0", "0.3", "HTTP+JSON"),
    Side("a2a-js-1.3.0", "1.0", "GRPC"),
    Side("a2a-js-1.3.0", "0.3", "GRPC"),
    Side("selectools-1.3.0", "0.2", "JSONRPC", is_joined=False),
    Side("selectools-1.3.0-nowhere", "0.2", "JSONRPC", is_joined=False),
]
# Frameworks that speak it, and smaller libraries.
FRAMEWORKS = [
    Side("a2akit-0.0.32", "0.3", "JSONRPC"),
    Side("a2akit-0.0.32", "0.3", "HTTP+JSON"),
    Side("a2a-lite-1.2.1", "1.0", "JSONRPC", is_joined=False),
    Side("a2a-lite-1.2.1", "1.0", "HTTP+JSON", is_joined=False),
    Side("google-adk-2.13.0", "1.0", "JSONRPC", is_joined=False),
    Side("strands-agents-1.62.0-compliant", "0.3", "JSONRPC", is_joined=False),
    Side("fasta2a-2.1.1-readme", "1.0", "JSONRPC", is_joined=False),
    Side("langgraph-api-0.16.7", "1.0", "JSONRPC", is_joined=False),
    Side("python-a2a-0.5.10", "0.3", "JSONRPC", is_joined=False),
]
SIDES = [*LIBRARIES, *FRAMEWORKS]

NO_LIST = Gap("versions before 1.0 cannot list tasks over this binding", UnsupportedOperation)
ONLY_TASKS = Gap("the library answers with tasks only")
AT_ONCE = Gap("the library finishes every task before it answers")
NO_PUSH = Gap("the library's card offers no push", PushNotSupported)
NO_ARRAYS = Gap("the library's data parts can only be objects")
NAMELESS = Gap("the library's 0.3 layer drops the names of files")
WRAPPED = Gap("the library's 0.3 layer wraps an array and does not say so")
TEXT_ONLY = Gap("the library answers with text only")
TEXT_GIVEN = Gap("a skill with one parameter only gets the text")
DOCUMENTS = Gap("files become documents without a type, and data becomes text")
BY_KIND = Gap(
    "the library reads files of 1.0 only if their parts have the `kind` of 0.3",
    ContentTypeNotSupported,
)
DROPPED = Gap("files are dropped, and data becomes text of the prompt")
FLAT_REST = Gap("over REST the library expects the JSON of JSON-RPC, not that of the proto")
WHOLE = Gap("the library sends the artifact in one piece")
MEANWHILE = Gap("the chunks are status messages, and the artifact comes in one piece")
CONFIG = Gap(
    "the library expects the `config` of the request as the body, a2a-sdk the whole request",
    InvalidParams,
)

NO_ACCOUNT = Gap("the library offers push only to authenticated callers", UnsupportedOperation)
BY_ID = Gap("the library accepts an answer only as data that names the question")
BY_ARTIFACT = Gap("the question of the library is an artifact, not a message")
UNREAD = Gap("a task that is read has no artifacts: its results are in its history")
NOT_SERVED = Gap("the library does not speak the version that its card names")
NOT_SERVED_TOLD = Gap(NOT_SERVED.reason, InternalError)
# What a card is enough for.
SPOKEN_TO_ALL = {"connect-from-the-host", "version-that-is-not-offered"}

# By side, or by host for all its sides, then by script.
GAPS: dict[str, dict[str, Gap]] = {
    "dragoman-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "dragoman-0.3-HTTP+JSON": {"list-by-context": NO_LIST},
    "dragoman-0.3-GRPC": {"list-by-context": NO_LIST},
    "dragoman-0.2-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-sdk-1.3.0-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-sdk-1.3.0-0.3-GRPC": {"list-by-context": NO_LIST},
    "a2a-js-1.3.0-0.3-GRPC": {
        "list-by-context": NO_LIST,
        "file-and-data-out": NAMELESS,
        "file-and-data-in": NAMELESS,
        "array-out": WRAPPED,
    },
    "a2a-sdk-1.3.0-0.3-HTTP+JSON": {
        "list-by-context": NO_LIST,
        "push-configurations-are-listed-and-deleted": Gap(
            "the library's 0.3 layer has no route to delete a receiver", A2AError
        ),
    },
    "a2a-sdk-0.3.26": {
        "list-by-context": NO_LIST,
        "array-out": NO_ARRAYS,
        "subscribing-leaves-a-task-as-it-is": Gap(
            "each stream of a task appends every chunk to the stored artifact again"
        ),
    },
    "a2a-sdk-0.3.26-0.3-GRPC": {
        "push-configurations-are-listed-and-deleted": Gap(
            "the library cannot list receivers over gRPC", UnsupportedOperation
        ),
    },
    "a2a-sdk-0.3.26-0.3-HTTP+JSON": {
        "push-configurations-are-listed-and-deleted": Gap(
            "the library answers 500 when receivers are listed and 405 when one is deleted",
            A2AError,
        ),
    },
    "a2a-js-1.3.0-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-js-1.3.0-0.3-HTTP+JSON": {
        "list-by-context": NO_LIST,
        "push-configurations": CONFIG,
        "push-configurations-are-listed-and-deleted": CONFIG,
        "file-and-data-out": NAMELESS,
        "file-and-data-in": NAMELESS,
        "array-out": WRAPPED,
    },
    "fasta2a-2.1.1": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "ask-and-answer": Gap("an answer begins another task, and stored states carry no message"),
        "ask-and-answer-in-streams": Gap("an answer begins another task"),
        "failure-says-why": Gap("the status of a task carries no message"),
        "list-by-context": Gap("the library answers -32004", UnsupportedOperation),
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
    },
    "fasta2a-2.1.1-readme": {
        "stream-events-in-order": Gap("such a worker publishes nothing while it runs"),
        "wait-for-what-was-not-waited-for": AT_ONCE,
        "cancel": AT_ONCE,
        "subscribe-to-a-running-task": AT_ONCE,
        "file-and-data-out": TEXT_ONLY,
        "file-and-data-in": TEXT_ONLY,
        "text-file-out": TEXT_ONLY,
        "files-in": TEXT_ONLY,
        "array-out": TEXT_ONLY,
        "array-in": TEXT_ONLY,
    },
    # What names nothing but a task is the same in both shapes.
    "a2akit-0.0.32-0.3-HTTP+JSON": dict.fromkeys(
        SCRIPTS.keys() - SPOKEN_TO_ALL - {"unknown-task", "unknown-task-in-other-operations"},
        FLAT_REST,
    )
    | {"send": Gap(FLAT_REST.reason, InvalidRequest)},
    "a2akit": {
        "array-out": NO_ARRAYS,
        "stream-a-direct-message": Gap("the library always streams a task, never a bare message"),
        "list-by-context": NO_LIST,
    },
    "a2a-lite": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream-events-in-order": WHOLE,
        "ask-and-answer": Gap("the question is JSON in the text of the message"),
        "failure-says-why": Gap("the reason is JSON in the text of the message"),
        "cancel": Gap("the library marks a canceled task as failed afterwards"),
        "subscribe-to-a-running-task": WHOLE,
        "push-configurations": NO_ACCOUNT,
        "push-configurations-are-listed-and-deleted": NO_ACCOUNT,
        "file-and-data-out": TEXT_ONLY,
        "file-and-data-in": TEXT_GIVEN,
        "text-file-out": TEXT_ONLY,
        "files-in": TEXT_GIVEN,
        "array-out": TEXT_ONLY,
        "array-in": TEXT_GIVEN,
    },
    "google-adk": {
        "array-out": NO_ARRAYS,
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream-events-in-order": MEANWHILE,
        "subscribe-to-a-running-task": MEANWHILE,
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
    },
    "strands-agents": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream-events-in-order": Gap("the last chunk of the library is an empty text"),
        "ask-and-answer": BY_ID,
        "ask-and-answer-in-streams": BY_ID,
        "failure-says-why": Gap("the library says only that execution failed"),
        "subscribing-leaves-a-task-as-it-is": Gap(
            "each stream of a task appends every chunk to the stored artifact again"
        ),
        "list-by-context": NO_LIST,
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
        "file-and-data-out": TEXT_ONLY,
        "file-and-data-in": DOCUMENTS,
        "text-file-out": TEXT_ONLY,
        "files-in": DOCUMENTS,
        "array-out": TEXT_ONLY,
        "array-in": DOCUMENTS,
    },
    "langgraph-api": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream": UNREAD,
        "stream-events-in-order": WHOLE,
        "get": UNREAD,
        "sync": UNREAD,
        "list-by-context": UNREAD,
        "wait-for-what-was-not-waited-for": UNREAD,
        "ask-and-answer": BY_ARTIFACT,
        "ask-and-answer-in-streams": BY_ARTIFACT,
        "failure-says-why": Gap("the library reports the class of the exception, not its text"),
        "cancel": AT_ONCE,
        "subscribe-to-a-running-task": WHOLE,
        "subscribing-leaves-a-task-as-it-is": UNREAD,
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
        "file-and-data-out": TEXT_ONLY,
        "file-and-data-in": BY_KIND,
        "text-file-out": TEXT_ONLY,
        "files-in": BY_KIND,
        "array-out": TEXT_ONLY,
        "array-in": BY_KIND,
    },
    # Its card names 0.3 and an address; what it serves is the ancestor's, at `/tasks/send`.
    "python-a2a": dict.fromkeys(SCRIPTS.keys() - SPOKEN_TO_ALL - {"send"}, NOT_SERVED)
    | {"send": NOT_SERVED_TOLD},
    "selectools": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream-events-in-order": Gap("the library does not stream: the task comes in one piece"),
        "wait-for-what-was-not-waited-for": AT_ONCE,
        "ask-and-answer": Gap("the library never asks, and ignores the task id of a message"),
        "ask-and-answer-in-streams": Gap("the library never asks"),
        "failure-says-why": Gap("the library reports the class of the exception, not its text"),
        "cancel": Gap("every task has ended by the time its id is known", TaskNotCancelable),
        "subscribe-to-a-running-task": AT_ONCE,
        "subscribing-leaves-a-task-as-it-is": AT_ONCE,
        "list-by-context": NO_LIST,
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
        "file-and-data-out": TEXT_ONLY,
        "file-and-data-in": DROPPED,
        "text-file-out": TEXT_ONLY,
        "files-in": DROPPED,
        "array-out": TEXT_ONLY,
        "array-in": DROPPED,
        "unknown-task-in-other-operations": Gap("the library has no streams"),
    },
}


def gap_of(side: Side, script: str) -> Gap | None:
    """Return why a side cannot do what a script asks, if it cannot."""
    for name, gaps in GAPS.items():
        if side.id.startswith(name) and script in gaps:
            return gaps[script]
    return None


# What our client, or our gateway, owes a library, by server and script, with the reason. The marks
# are strict: who mends it takes the line away.
CLIENT_OWES: dict[tuple[str, str], str] = {}
GATEWAY_OWES: dict[tuple[str, str], str] = {}


def owed(reason: str | None) -> list[pytest.MarkDecorator]:
    """Return the mark of a test that fails though it should not."""
    return [pytest.mark.xfail(strict=True, reason=reason)] if reason else []


def cases(sides: Iterable[Side]) -> Iterator[Any]:
    """Yield a case for each script of each side that can be asked for it."""
    for side, script in product(sides, SCRIPTS):
        gap = gap_of(side, script)
        if gap is None or gap.raises:
            marks = owed(CLIENT_OWES.get((side.host, script)))
            yield pytest.param(side, script, id=f"{side.id}-{script}", marks=marks)


def carried(sides: Iterable[Side], scripts: Iterable[str]) -> Iterator[Any]:
    """Yield a case for each script that a side can be asked for by a gateway."""
    for side, script in product(sides, scripts):
        if gap_of(side, script) is None:
            marks = owed(GATEWAY_OWES.get((side.host, script)))
            yield pytest.param(side, script, id=f"{side.id}-{script}", marks=marks)
