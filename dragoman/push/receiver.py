"""The other end of a post: checks that it is ours, fresh, not a repetition, and about a task that
was asked for. Needs nothing but the secret, so that any receiver in any framework can use it.

    delivery = verify(request.headers, await request.body(), "whsec_...", task_ids=my_tasks)

Keep the body, answer 2xx, and work on it later. `Replayed` is also answered with 2xx: it was taken
before, and the sender has not heard so. A receiver that fails to store a body takes its id out of
`seen` again before answering 5xx, so that the next try of it is accepted.
"""

import hmac
import re
import time
from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol, cast

import msgspec

from dragoman.errors import ParseFailed
from dragoman.push.request import EVENT_HEADER, TOKEN_HEADER
from dragoman.push.signature import decode_secret, is_signed
from dragoman.security.json_values import check_document

# Seconds a post may be older or younger than our clock says.
TOLERANCE = 300
_NUMBER = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
# An id with a dot could be read as id and time; ours have none.
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}\Z", re.ASCII)


class Pairs(Protocol):
    """Headers that can be gone through: a mapping, or what `http.server` and `email` have."""

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return names and values."""
        ...


Headers = Pairs | Iterable[tuple[str | bytes, str | bytes]]


class NotVerified(Exception):
    """The post is not to be believed."""


class BadSignature(NotVerified):
    """A header is missing or malformed, or no signature is by our secret."""


class Stale(NotVerified):
    """It was sent too long ago, or in the future."""


class Replayed(NotVerified):
    """A post with this id was taken before: answer it with 2xx and do nothing."""


class ForeignTask(NotVerified):
    """It is about a task that was not asked for."""


class Ids(Protocol):
    """A set of ids that were seen; a table of a database will do."""

    def __contains__(self, id: object, /) -> bool:
        """Tell whether an id was seen."""
        ...

    def add(self, id: str, /) -> None:
        """Remember an id."""
        ...


class Recent:
    """The last ids seen by this process, as many as memory should hold."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._ids: dict[str, None] = {}

    def __contains__(self, id: object) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        """Remember an id, and forget the oldest if there are too many."""
        self._ids[id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def discard(self, id: str) -> None:
        """Forget an id, so that the next try of its post is accepted."""
        self._ids.pop(id, None)


class VerifiedPush(msgspec.Struct, frozen=True):
    """A post that can be believed."""

    # The same for every try of one event.
    id: str
    # When this try was sent, in seconds since the epoch.
    sent_at: int
    # The task it is about; empty if its body does not say so.
    task_id: str
    # The event's place in the task's log: rises, and a gap is an event that was given up.
    # None: the sender did not say. Of a header that the signature does not cover, so a hint: what
    # was taken before is told by `id`.
    position: int | None
    # The parsed body.
    content: Any


_recent = Recent()


def verify(
    headers: Headers,
    body: bytes | str,
    secret: str | Sequence[str],
    *,
    seen: Ids | None = None,
    task_ids: Container[str] | None = None,
    token: str = "",
    now: float | None = None,
) -> VerifiedPush:
    """Return what a post says, or raise `NotVerified`.

    Give several secrets while one is exchanged for another. `seen` holds the ids taken before
    (default: in this process); `task_ids` the tasks a post may be about (default: any); `token`
    the one of the configuration, if it has one. The body is what came over the wire; as text it is
    taken to be UTF-8.
    """
    body = _bytes(body)
    found = _headers(headers)
    try:
        id, at = found["webhook-id"], found["webhook-timestamp"]
        signatures = found["webhook-signature"]
    except KeyError as missing:
        raise BadSignature(f"{missing.args[0]} is missing") from None
    if not _ID.match(id) or not _NUMBER.match(at):
        raise BadSignature("webhook-id or webhook-timestamp is malformed")
    secrets = [decode_secret(text) for text in ([secret] if isinstance(secret, str) else secret)]
    if not is_signed(secrets, signatures, id, at, body):
        raise BadSignature("no signature is by this secret")
    if token:
        given = found.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode()):
            raise BadSignature("the token is another")
    if abs((time.time() if now is None else now) - int(at)) > TOLERANCE:
        raise Stale("webhook-timestamp is too far from our clock")
    try:
        check_document(body)
        content = msgspec.json.decode(body)
    except (ParseFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadSignature("the body is not JSON") from None
    task_id = _task_id(content)
    if task_ids is not None and task_id not in task_ids:
        raise ForeignTask("the task is not one of ours")
    ids = _recent if seen is None else seen
    if id in ids:
        raise Replayed("webhook-id was seen before")
    # Last, so that nothing that was refused keeps the true post out.
    ids.add(id)
    place = found.get(EVENT_HEADER, "")
    return VerifiedPush(id, int(at), task_id, int(place) if _NUMBER.match(place) else None, content)


def _bytes(body: object) -> bytes:
    """Return a body as it came; frameworks pass on what they have read of it as well."""
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    raise TypeError("the body must be the bytes that came, not what was read from them")


def _headers(headers: Headers) -> dict[str, str]:
    items = getattr(headers, "items", None)
    pairs = cast("Iterable[tuple[object, object]]", headers if items is None else items())
    found: dict[str, str] = {}
    for name, value in pairs:
        key, text = _word(name).lower(), _word(value)
        if key in found and key.startswith("webhook-"):
            raise BadSignature(f"{key} is given twice")
        # What is no text is as good as not there.
        if isinstance(value, str | bytes):
            found[key] = text
    return found


def _word(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _task_id(content: Any) -> str:
    """Return the task a body of any version is about."""
    if not isinstance(content, dict):
        return ""
    fields = cast("dict[str, Any]", content)
    for name in ("statusUpdate", "artifactUpdate", "message"):
        if isinstance(inner := fields.get(name), dict):
            return _text(cast("dict[str, Any]", inner).get("taskId"))
    if isinstance(task := fields.get("task"), dict):
        return _text(cast("dict[str, Any]", task).get("id"))
    # 0.x: a bare task, or a bare event of one.
    return _text(fields.get("taskId")) or _text(fields.get("id"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
