"""Refusals that need no second look: who has asked too often is told so again, for exactly as long
as its rate says, without the app, which would take ten times as long to say the same.

Who asks again at once, whatever it was told, has its refusal held for a moment, and nothing is read
meanwhile: so each such connection costs a bounded number of them a second, spread over all of it.
It costs nobody else anything, since each of these answers says to wait longer than that.
"""

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Protocol

from dragoman.server.limits import SOURCE_AGENT, Header, Standing
from dragoman.server.plain import Heads

# Seconds for which a refusal is held, how close two may be to be given together, and how many are
# given before others have their turn.
HOLD = 0.040
_TICK = 0.002
_AT_ONCE = 64
# Seconds after which the app is asked again who someone is.
MAX_AGE = 5.0
# Seconds for which an answer is as good as one made at the moment: what it tells of is in seconds.
_FRESH = 0.1
# Seconds within which the app takes what there is room for.
_TAKES = 0.02
# Callers that are remembered, and heads of theirs.
MAX_LIMITED = 1024

# Who asks on which connection, and with what head.
Known = tuple[str, bytes | None, bytes]


class Held(Protocol):
    """A connection that has a refusal coming."""

    def give(self) -> None:
        """Give it."""
        ...


class Limited:
    """Someone who has asked too often, and how that is said."""

    __slots__ = (
        "_agent",
        "_answer",
        "_body",
        "_headers",
        "_let_in",
        "_made_at",
        "_now",
        "_standing",
        "until",
    )

    def __init__(
        self, standing: Standing, headers: Sequence[Header], body: bytes, now: Callable[[], float]
    ) -> None:
        self._standing = standing
        self._headers = headers
        self._body = body
        self._now = now
        self._agent: str | None = None
        self._answer = b""
        self._made_at = -math.inf
        # For which agent the last one was let in that there was room for, when, and how the rates
        # stood; nobody if it has taken it since.
        self._let_in: tuple[str | None, float, list[float]] | None = None
        self.until = now() + MAX_AGE

    def answer(self, agent: str | None) -> bytes | None:
        """Return how a request is refused that names the agent it asks for, or does not; None if
        it has to be looked at."""
        now = self._now()
        if now >= self.until:
            return None
        wait = self._standing.wait(agent)
        if wait:
            self._let_in = None
        elif self._is_being_taken(agent, now):
            # By one that is on its way to the app; the others would only be told so there.
            wait = _TAKES
        else:
            return None
        if agent != self._agent or now - self._made_at > _FRESH:
            later = (b"retry-after", b"%d" % math.ceil(wait))
            headers = [*self._headers, *self._standing.headers(agent), later]
            lines = b"".join([b"%b: %b\r\n" % header for header in headers])
            self._answer = b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n%b" % (lines, self._body)
            self._agent, self._made_at = agent, now
        return self._answer

    def let_in(self, agent: str | None) -> None:
        """Note that one goes to the app, which may be the last that there is room for."""
        if self._standing.left(agent) <= 1:
            self._let_in = agent, self._now(), self._standing.mark(agent)

    def _is_being_taken(self, agent: str | None, now: float) -> bool:
        """Whether the last that there is room for goes to one that was let in."""
        if self._let_in is None:
            return False
        whose, at, mark = self._let_in
        if whose != agent or now - at >= _TAKES or self._standing.left(agent) > 1:
            return False
        return self._standing.mark(agent) == mark


class Refusals:
    """What is refused without the app, and the refusals that are about to be given."""

    def __init__(
        self,
        caller_names: Collection[bytes] = (),
        place_names: Collection[bytes] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Refuse callers, who are told apart by these header fields besides their address and
        their certificate, and places, told apart by those besides their address."""
        self._caller_names = frozenset(caller_names)
        self._place_names = frozenset(place_names)
        self._now = now
        self._pepper = os.urandom(16)
        # Whether anyone has asked too often lately.
        self.is_alert = False
        self.heads = Heads()
        self._limited: dict[bytes, Limited] = {}
        self._by_head: dict[Known, tuple[Limited, str | None]] = {}
        # When each is due, the next one first.
        self._held: dict[Held, float] = {}

    # Who has asked too often

    def caller(self, address: str, certificate: bytes | None, headers: Sequence[Header]) -> bytes:
        """Return what a caller is known by, which tells nobody else who it is."""
        return self._digest(address, certificate or b"", headers, self._caller_names)

    def place(self, address: str, headers: Sequence[Header]) -> bytes:
        """Return what all callers of an address are known by."""
        return self._digest(address, b"*", headers, self._place_names)

    def _digest(
        self, address: str, what: bytes, headers: Sequence[Header], names: Collection[bytes]
    ) -> bytes:
        digest = blake2b(what, digest_size=16, key=self._pepper)
        digest.update(address.encode())
        for name, value in headers:
            if name in names:
                digest.update(b"%d %b %d %b" % (len(name), name, len(value), value))
        return digest.digest()

    def note(self, who: bytes, standing: Standing, headers: Sequence[Header], body: bytes) -> None:
        """Remember that the app refused someone, and what it says besides their rates."""
        if not self.is_alert:
            self.is_alert = True
            asyncio.get_running_loop().call_later(MAX_AGE, self._forget)
        if len(self._limited) >= MAX_LIMITED:
            del self._limited[next(iter(self._limited))]
        self._limited[who] = Limited(standing, headers, body, self._now)

    def of_head(self, known: Known) -> bytes | None:
        """Return how a request is refused if one like it was refused before."""
        found = self._by_head.get(known)
        return None if found is None else found[0].answer(found[1])

    def of(
        self,
        address: str,
        certificate: bytes | None,
        headers: Sequence[Header],
        known: Known | None,
    ) -> bytes | None:
        """Return how a request is refused; from then on those with the same head are unread.
        Where it is not, it is let in."""
        agent = next((value for name, value in headers if name == SOURCE_AGENT), None)
        named = None if agent is None else agent.decode("latin-1")
        everyone = self.place(address, headers), self.caller(address, certificate, headers)
        found = [limited for who in everyone if (limited := self._limited.get(who)) is not None]
        for limited in found:
            if (answer := limited.answer(named)) is not None:
                if known is not None:
                    if len(self._by_head) >= MAX_LIMITED:
                        self._by_head.clear()
                    self._by_head[known] = limited, named
                return answer
        for limited in found:
            limited.let_in(named)
        return None

    def _forget(self) -> None:
        """Let go of those who are to be looked at again."""
        now = self._now()
        self._limited = {who: one for who, one in self._limited.items() if now < one.until}
        self._by_head = {head: one for head, one in self._by_head.items() if now < one[0].until}
        self.is_alert = bool(self._limited)
        if self.is_alert:
            asyncio.get_running_loop().call_later(MAX_AGE, self._forget)

    # Refusals that wait

    def hold(self, connection: Held) -> None:
        """Have a connection give its refusal after a while. Each has its own: all at once, they
        would all be asked for again at once, and keep others waiting."""
        loop = asyncio.get_running_loop()
        if not self._held:
            loop.call_later(HOLD, self._give)
        # Behind the others also if it is here still, having given the one before itself.
        self._held.pop(connection, None)
        self._held[connection] = loop.time() + HOLD

    def _give(self) -> None:
        """Give the refusals that are due, in the order in which they were held."""
        loop = asyncio.get_running_loop()
        by = loop.time() + _TICK
        first = itertools.islice(self._held.items(), _AT_ONCE)
        given = [connection for connection, due in first if due <= by]
        for connection in given:
            del self._held[connection]
        # Before they are given, since each may be held again at once: whenever any is held, this
        # is called once more, and never twice.
        if self._held:
            due = next(iter(self._held.values()))
            loop.call_later(max(0.0, due - loop.time()), self._give)
        for connection in given:
            connection.give()
