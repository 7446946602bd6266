"""Callers who have asked too often: they are refused again without the app, for exactly as long as
their rate says. The app would take ten times as long to give the same answer.

Plain requests are recognized by their head and refused unread: one whole request, whose end no
reader could place elsewhere. Parsing is most of what a refusal costs.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from dragoman.http.limits import SOURCE_AGENT, CallerUsage, Header
from dragoman.model.patterns import late_pattern

# Seconds after which the app authenticates a limited caller again.
MAX_AGE = 5.0
# Seconds for which an answer is reused: what it tells is in whole seconds.
_FRESH = 0.1
# Seconds within which the app counts a request that was let through.
_TAKES = 0.02
# How many callers are remembered, and how many of their heads.
MAX_LIMITED = 1024

# How many heads are remembered.
MAX_HEADS = 1024

_LENGTH = late_pattern(rb"\r\ncontent-length: ([0-9]{1,5})\r\n")
_KEPT = b"\r\nconnection: keep-alive\r\n"

# The address, the certificate and the head of a request.
Known = tuple[str, bytes | None, bytes]


def is_plain(data: bytes) -> bool:
    """Tell whether these bytes are one whole request, and a plain one."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"POST /"):
        return False
    head = data[: end + 2].lower()
    length = _LENGTH.search(head)
    return (
        length is not None
        and len(data) == end + 4 + int(length[1])
        and head.count(b"content-length") == 1
        and head.count(b"\n") == head.count(b"\r\n")
        and 0 < head.find(b" http/1.1\r\n") < head.find(b"\r\n")
        # Other framing, a wait for our word, an end, or going on with a stream.
        and b"transfer-encoding" not in head
        and b"\r\nexpect" not in head
        and b"\r\nlast-event-id" not in head
        and (b"\r\nconnection" not in head or _KEPT in head)
    )


class Heads:
    """Heads of plain requests, which need not be checked twice, in bounded memory.

    What is kept of one is a keyed hash, because a head contains credentials.
    """

    def __init__(self) -> None:
        self._pepper = os.urandom(16)
        # How long the whole request is.
        self._lengths: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def find(self, data: bytes) -> bytes | None:
        """Return what the head is known by; None if this is not one whole plain request."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = blake2b(data[:end], digest_size=16, key=self._pepper).digest()
        length = self._lengths.get(head)
        if length is None:
            if not is_plain(data):
                return None
            if len(self._lengths) >= MAX_HEADS:
                self._lengths.clear()
            self._lengths[head] = length = len(data)
        return head if length == len(data) else None


class LimitedCaller:
    """A caller who has asked too often, and its refusal."""

    __slots__ = (
        "_agent",
        "_answer",
        "_body",
        "_headers",
        "_made_at",
        "_now",
        "_passing",
        "_usage",
        "until",
    )

    def __init__(
        self,
        usage: CallerUsage,
        headers: Sequence[Header],
        body: bytes,
        now: Callable[[], float],
    ) -> None:
        self._usage = usage
        self._headers = headers
        self._body = body
        self._now = now
        self._agent: str | None = None
        self._answer = b""
        self._made_at = -math.inf
        # The last request that there was room for and that is on its way to the app: for which
        # agent, since when, and the marks of the rates at that moment.
        self._passing: tuple[str | None, float, list[float]] | None = None
        self.until = now() + MAX_AGE

    def answer(self, agent: str | None) -> bytes | None:
        """Return the refusal of a request, which may name the agent it asks for; None: the app has
        to see it."""
        now = self._now()
        if now >= self.until:
            return None
        wait = self._usage.wait(agent)
        if wait:
            self._passing = None
        elif self._is_passing(agent, now):
            # The app would refuse this one once it has counted the one before.
            wait = _TAKES
        else:
            return None
        if agent != self._agent or now - self._made_at > _FRESH:
            later = (b"retry-after", b"%d" % math.ceil(wait))
            headers = [*self._headers, *self._usage.headers(agent), later]
            lines = b"".join([b"%b: %b\r\n" % header for header in headers])
            self._answer = b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n%b" % (lines, self._body)
            self._agent, self._made_at = agent, now
        return self._answer

    def let_through(self, agent: str | None) -> None:
        """Note that a request goes to the app, which may be the last that there is room for."""
        if self._usage.left(agent) <= 1:
            self._passing = agent, self._now(), self._usage.mark(agent)

    def _is_passing(self, agent: str | None, now: float) -> bool:
        """Tell whether the last request that there is room for is on its way to the app."""
        if self._passing is None:
            return False
        passing_agent, at, mark = self._passing
        if passing_agent != agent or now - at >= _TAKES or self._usage.left(agent) > 1:
            return False
        return self._usage.mark(agent) == mark


class LimitedCallers:
    """The callers who are refused without the app at present."""

    def __init__(
        self,
        caller_names: Collection[bytes] = (),
        address_names: Collection[bytes] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Callers are told apart by `caller_names`, header fields, besides their address and their
        certificate; addresses by `address_names`."""
        self._caller_names = frozenset(caller_names)
        self._address_names = frozenset(address_names)
        self._now = now
        self._pepper = os.urandom(16)
        # Whether any caller has asked too often lately.
        self.is_alert = False
        self.heads = Heads()
        self._limited: dict[bytes, LimitedCaller] = {}
        self._by_head: dict[Known, tuple[LimitedCaller, str | None]] = {}

    def caller_key(
        self, address: str, certificate: bytes | None, headers: Sequence[Header]
    ) -> bytes:
        """Return the key of a caller: a hash that does not reveal its credentials."""
        return self._digest(address, certificate or b"", headers, self._caller_names)

    def address_key(self, address: str, headers: Sequence[Header]) -> bytes:
        """Return the key of all callers of an address."""
        return self._digest(address, b"*", headers, self._address_names)

    def _digest(
        self, address: str, kind: bytes, headers: Sequence[Header], names: Collection[bytes]
    ) -> bytes:
        digest = blake2b(kind, digest_size=16, key=self._pepper)
        digest.update(address.encode())
        for name, value in headers:
            if name in names:
                digest.update(b"%d %b %d %b" % (len(name), name, len(value), value))
        return digest.digest()

    def add(self, key: bytes, usage: CallerUsage, headers: Sequence[Header], body: bytes) -> None:
        """Remember a caller that the app refused, and what stays the same in its answer."""
        if not self.is_alert:
            self.is_alert = True
            asyncio.get_running_loop().call_later(MAX_AGE, self._forget)
        if len(self._limited) >= MAX_LIMITED:
            del self._limited[next(iter(self._limited))]
        self._limited[key] = LimitedCaller(usage, headers, body, self._now)

    def of_head(self, known: Known) -> bytes | None:
        """Return the refusal of a request whose head was refused before; None: read it."""
        found = self._by_head.get(known)
        return None if found is None else found[0].answer(found[1])

    def of(
        self,
        address: str,
        certificate: bytes | None,
        headers: Sequence[Header],
        known: Known | None,
    ) -> bytes | None:
        """Return the refusal of a request; from then on those with the same head are refused
        unread. None: it goes to the app."""
        field = next((value for name, value in headers if name == SOURCE_AGENT), None)
        agent = None if field is None else field.decode("latin-1")
        keys = (
            self.address_key(address, headers),
            self.caller_key(address, certificate, headers),
        )
        found = [limited for key in keys if (limited := self._limited.get(key)) is not None]
        for limited in found:
            if (answer := limited.answer(agent)) is not None:
                if known is not None:
                    if len(self._by_head) >= MAX_LIMITED:
                        self._by_head.clear()
                    self._by_head[known] = limited, agent
                return answer
        for limited in found:
            limited.let_through(agent)
        return None

    def _forget(self) -> None:
        """Forget the callers that the app is to see again."""
        now = self._now()
        self._limited = {key: one for key, one in self._limited.items() if now < one.until}
        self._by_head = {head: one for head, one in self._by_head.items() if now < one[0].until}
        self.is_alert = bool(self._limited)
        if self.is_alert:
            asyncio.get_running_loop().call_later(MAX_AGE, self._forget)
