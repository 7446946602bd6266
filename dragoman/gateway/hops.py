"""What the gateway and an agent said to each other for one task, for those who try the agent out.

A request asks for it by `recordHops` in its metadata. Only a caller that operates the gateway or
owns the agent is heard. The process that calls the agent keeps the exchanges in memory, for minutes
and in bounded size. Nothing secret is kept: a header has to be known as harmless, members and texts
are cleaned by `secret_text`, and the gateway's own credential is taken out wherever it stands.
"""

import base64
import binascii
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote

import msgspec

from dragoman.client.pending_request import Exchanged, Observer
from dragoman.model.clock import stamp
from dragoman.model.identity import Scope
from dragoman.security.secret_text import HIDDEN, hidden_text, hidden_value, is_open_header

# The member of a request's metadata that asks for it.
RECORD = "recordHops"
# Seconds for which an exchange is kept after the last of its task.
KEPT = 600.0
MOST_TASKS = 32
# Bytes of one body, and of all of a task.
LARGEST = 32 * 1024
MOST = 128 * 1024
# What a piece takes beside its own bytes.
_PIECE = 128
_MOST_HEADERS = 50
_LONGEST_TEXT = 1024
# A shorter text may be part of any word.
_SHORTEST_SECRET = 6
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Hop(msgspec.Struct, rename="camel"):
    """One request to an agent, and what came back."""

    at: str
    # The id of the agent in the registry.
    agent: str
    method: str
    url: str
    request_headers: dict[str, str]
    # JSON, or a text where it is something else; null: there was none. Kept as it is written: its
    # values would take twenty times as much.
    request: msgspec.Raw | None = None
    # 0: no answer came.
    status: int = 0
    headers: dict[str, str] = {}
    # The body, or each event of a stream.
    answers: list[msgspec.Raw] = []
    # Why it failed on the way.
    failure: str = ""
    # Milliseconds until the last of the answer.
    elapsed: int = 0


class TaskHops(msgspec.Struct, rename="camel"):
    """What a process kept of the calls for one task."""

    hops: list[Hop]
    # Whether this process made the calls and still remembers them; another one may.
    is_here: bool
    # Whether more was said than is kept.
    is_cut: bool = False


class _Kept:
    def __init__(self) -> None:
        self.at = 0.0
        self.hops: list[Hop] = []
        self.size = 0
        self.is_cut = False
        # Its task may go on for long: what was forgotten does not grow.
        self.is_forgotten = False


class HopLog:
    """The latest exchanges of this process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # The oldest first.
        self._kept: dict[tuple[Scope, str], _Kept] = {}

    def observer(
        self, scope: Scope, task_id: str, agent_id: str, secrets: Iterable[str]
    ) -> Observer:
        """Return what hears the calls of an agent for a task; `secrets` are never kept."""
        self._forget()
        kept = self._kept.pop((scope, task_id), None) or _Kept()
        self._kept[scope, task_id] = kept
        kept.at = self._now()
        while len(self._kept) > MOST_TASKS:
            self._kept.pop(next(iter(self._kept))).is_forgotten = True
        return _Recorder(kept, self._now, agent_id, secrets)

    def of(
        self, scope: Scope, task_id: str, may_see: Callable[[str], bool] = lambda _: True
    ) -> TaskHops:
        """Return what is kept of a task, of the agents that `may_see` says."""
        self._forget()
        kept = self._kept.get((scope, task_id))
        if kept is None:
            return TaskHops([], is_here=False)
        seen = [hop for hop in kept.hops if may_see(hop.agent)]
        return TaskHops(seen, is_here=True, is_cut=kept.is_cut)

    def _forget(self) -> None:
        before = self._now() - KEPT
        for key in [key for key, kept in self._kept.items() if kept.at < before]:
            self._kept.pop(key).is_forgotten = True


class _Recorder:
    """Keeps the calls of one connection."""

    def __init__(
        self, kept: _Kept, now: Callable[[], float], agent_id: str, secrets: Iterable[str]
    ) -> None:
        self._kept = kept
        self._now = now
        self._agent = agent_id
        self._secrets: set[str] = set()
        self._learn(secrets)
        # Under way, by the number of the request.
        self._open: dict[int, Hop] = {}

    def __call__(self, seen: Exchanged) -> None:
        """Keep one piece of an exchange."""
        if self._kept.is_forgotten:
            return
        self._kept.at = self._now()
        if seen.kind == "request":
            # A number is used again, once its request is over.
            self._open.pop(seen.request, None)
            self._learn(_hidden_values(seen.headers))
            hop = Hop(
                at=stamp(time.time_ns() // 1000),
                agent=self._agent,
                method=seen.method,
                # What a query has may be a secret.
                url=self._text(seen.url.partition("?")[0])[:_LONGEST_TEXT],
                request_headers=self._headers(seen.headers),
            )
            if self._fits(len(hop.url) + _size(hop.request_headers)):
                self._open[seen.request] = hop
                self._kept.hops.append(hop)
                hop.request = self._body(seen.body)
            return
        hop = self._open.get(seen.request)
        if hop is None:
            return
        hop.elapsed = round(seen.elapsed * 1000)
        if seen.kind == "answer":
            hop.status = seen.status
            shown = self._headers(seen.headers)
            hop.headers = shown if self._fits(_size(shown)) else {}
        elif seen.kind == "failure":
            hop.failure = self._text(seen.text)[:_LONGEST_TEXT]
        elif (shown := self._body(seen.body)) is not None:
            hop.answers.append(shown)

    def _fits(self, size: int) -> bool:
        size += _PIECE
        if self._kept.size + size > MOST:
            self._kept.is_cut = True
            return False
        self._kept.size += size
        return True

    def _learn(self, secrets: Iterable[str]) -> None:
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET:
                self._secrets |= {secret, quote(secret), quote(secret, safe="")}

    def _text(self, text: str) -> str:
        return hidden_text(self._without(text))

    def _without(self, text: str) -> str:
        # The longest first: one secret may be the beginning of another.
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {
            self._text(name)[:_LONGEST_TEXT]: self._text(value)[:_LONGEST_TEXT]
            if is_open_header(name)
            else HIDDEN
            for name, value in list(headers.items())[:_MOST_HEADERS]
        }

    def _body(self, body: bytes) -> msgspec.Raw | None:
        """Return a body as it may be kept, as JSON; None: there is nothing to keep."""
        if not body or self._kept.is_cut:
            return None
        kept = msgspec.Raw(msgspec.json.encode(self._shown(body)))
        return kept if self._fits(len(kept)) else None

    def _shown(self, body: bytes) -> Any:
        if len(body) > LARGEST:
            # Cut, it could end within a secret.
            return f"{len(body):,} bytes: too long to be kept"
        try:
            return self._renamed(hidden_value(msgspec.json.decode(body), self._text))
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = "\0"
        # The messages of gRPC are not text, although pieces of them look like it.
        return f"{len(body):,} bytes: not text" if _NOT_TEXT.search(text) else self._text(text)

    def _renamed(self, value: Any) -> Any:
        """Return JSON without secrets in the names of its members."""
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self._without(name): self._renamed(one) for name, one in members.items()}
        if isinstance(value, list):
            return [self._renamed(one) for one in cast("list[Any]", value)]
        return value


def _hidden_values(headers: Mapping[str, str]) -> Iterable[str]:
    """Yield what is hidden of the headers of a request, so that an answer cannot repeat it."""
    for name, value in headers.items():
        if is_open_header(name):
            continue
        yield value
        scheme, _, rest = value.partition(" ")
        yield rest
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(rest, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue
            yield pair
            yield pair.partition(":")[2]
        elif name.lower() == "cookie":
            for cookie in value.split(";"):
                yield cookie.partition("=")[2].strip()


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())
