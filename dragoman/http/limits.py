"""How much one caller may ask for: how often and how much at once.

Everything here is decided from the head of a request, before its body is read, and costs the same
however many callers there are. Each serving process counts for itself, except for rates where the
store lets all replicas count together. What the server as a whole can take is not here but in
`http/admission.py`, and the tasks of a day are in `http/rates.py`.
"""

import functools
import ipaddress
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NoReturn

import msgspec

from dragoman.config import Settings
from dragoman.config.formats import read_rate
from dragoman.errors import RateLimited
from dragoman.http.rates import Bucketing, OwnRates, Rates
from dragoman.model.identity import Caller, Who

Header = tuple[bytes, bytes]

# The header in which a caller names the agent it asks for. It is trusted only to narrow what its
# principal may do.
SOURCE_AGENT = b"x-source-agent"
_MAX_NAME = 256
# Seconds to come back in, where it is not known when there will be room.
_SOME_SECONDS = 1.0


class Room(msgspec.Struct, eq=False):
    """What one request takes of its caller's share; `leave` gives it back."""

    # A struct would print its fields, and with them credentials and messages.
    __repr__ = object.__repr__

    _limits: "CallerLimits"
    # What it counts for: a principal, or the address of callers without authentication.
    key: Who
    _place: str
    _agent: str | None
    # Whether it counts among the requests of its caller.
    _is_counted: bool
    _has_stream: bool = False
    # Bytes that it keeps in memory.
    _held: int = 0

    @property
    def headers(self) -> Sequence[Header]:
        """What the answer tells about the caller's rates."""
        return self._limits.headers(self.key, self._place, self._agent)

    async def open_stream(self) -> None:
        """Count an open stream until `leave`; raises `RateLimited` if there are enough."""
        if self._is_counted and not self._has_stream:
            if self._limits.streams is not None:
                await self._limits.streams.prepare(self.key)
            self._limits.count_stream(self.key)
            self._has_stream = True

    def hold(self, size: int) -> None:
        """Count bytes in memory until `leave`; raises `RateLimited` if there are enough."""
        self._limits.hold(self.key, size, self._held)
        self._held += size

    def hold_answer(self, size: int) -> None:
        """Count an answer until `leave`; raises `RateLimited`. It may use what the body took:
        refusing work that is done would have it done twice."""
        if size > self._held:
            self.hold(size - self._held)

    def leave(self) -> None:
        """Give back what was taken."""
        if self._held:
            self._limits.let_go(self.key, self._held)
            self._held = 0
        if self._is_counted:
            self._is_counted = False
            self._limits.forget(self.key, has_stream=self._has_stream)


class CallerUsage:
    """What a caller has used of its rates, or all callers of an address."""

    __slots__ = ("_key", "_limits", "_place")

    def __init__(self, limits: "CallerLimits", key: Who | None, place: str) -> None:
        self._limits = limits
        self._key = key
        self._place = place

    def wait(self, agent: str | None) -> float:
        """Return the seconds for which its requests would be refused."""
        return self._limits.wait(self._key, self._place, agent and agent[:_MAX_NAME])

    def left(self, agent: str | None) -> int:
        """Return how many requests would be accepted."""
        return self._limits.left(self._key, self._place, agent and agent[:_MAX_NAME])

    def mark(self, agent: str | None) -> list[float]:
        """Return numbers that change as soon as a request is counted."""
        return self._limits.mark(self._key, self._place, agent and agent[:_MAX_NAME])

    def headers(self, agent: str | None) -> Sequence[Header]:
        """Return what it is told about its rates."""
        return self._limits.headers(self._key, self._place, agent and agent[:_MAX_NAME])


class CallerLimits:
    """The shares of all callers."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
        rates: Rates | None = None,
    ) -> None:
        """`rates` make the buckets; without them they are those of this process."""
        self._now = now
        self._date = date
        rates = rates or OwnRates()
        http = settings.http
        self._callers = _buckets(rates, "rate_limit", http.rate_limit)
        self._agents = _buckets(rates, "rate_limit_agent", http.rate_limit_agent)
        self._addresses = _buckets(rates, "rate_limit_address", http.rate_limit_address)
        self._failures = _buckets(rates, "rate_limit_failures", http.rate_limit_failures)
        # Whether `prepare_address` comes before `arrive`, and `prepare` before `admit`.
        self.is_shared = rates.is_shared
        self._most_requests = settings.http.max_requests_per_caller
        self._most_streams = settings.http.max_streams_per_caller
        # Those of all replicas, where they are counted.
        self.streams = rates.seats("streams", self._most_streams)
        # Only of callers with requests under way.
        self._requests: dict[Who, int] = {}
        self._streams: dict[Who, int] = {}
        # Bytes of their bodies and answers.
        self._most_bytes = settings.http.max_bytes_per_caller
        self._bytes: dict[Who, int] = {}
        named = (("caller", self._callers), ("agent", self._agents), ("address", self._addresses))
        self._named = [(name, buckets) for name, buckets in named if buckets is not None]
        self.has_rates = bool(self._named)
        policies = [_policy(name, buckets) for name, buckets in self._named]
        self._policy = (b"ratelimit-policy", ", ".join(policies).encode())

    # Where replicas share the buckets

    async def prepare_address(self, address: str) -> None:
        """Have room for a request of an address, if there is any."""
        if self._addresses is not None:
            await self._addresses.prepare(network(address))

    async def prepare(self, caller: Caller, agent: str | None, address: str) -> None:
        """Have room for a request of a caller, if there is any."""
        key = _who(caller, network(address))
        if self._agents is not None and agent is not None:
            await self._agents.prepare((key, agent[:_MAX_NAME]))
        if self._callers is not None:
            await self._callers.prepare(key)

    # Before authentication

    def arrive(self, address: str, *, is_known: bool = False) -> None:
        """Count a request of an address; raises `RateLimited`. A caller whose credential is known
        to be good is not limited by failures of others at the same address."""
        failures = None if is_known else self._failures
        if self._addresses is None and failures is None:
            return
        place, now = network(address), self._now()
        if failures is not None and (wait := failures.wait(place, now)):
            self._refuse(wait)
        if self._addresses is not None and (wait := self._addresses.take(place, now)):
            self._refuse(wait, self.headers(None, place, None))

    def failed(self, address: str) -> None:
        """Count a bad credential: after many of them the next is not checked."""
        if self._failures is not None:
            place = network(address)
            if not is_shared(place):
                self._failures.count(place, self._now())

    # After authentication

    def admit(self, caller: Caller, agent: str | None, address: str, is_part: bool = False) -> Room:
        """Count a request of a caller, which may name the agent it asks for; raises `RateLimited`.
        Callers without authentication count by their address. `is_part`: of one that was counted,
        so no rate counts it again."""
        place = network(address)
        is_authenticated = caller.authenticated
        key = caller.principal if is_authenticated else place
        if agent is not None:
            agent = agent[:_MAX_NAME]
        if self.has_rates and not is_part:
            self._take(key, place, agent)
        is_counted = is_authenticated or not is_shared(place)
        if is_counted:
            count = self._requests.get(key, 0)
            if count >= self._most_requests:
                self._refuse(_SOME_SECONDS, self.headers(key, place, agent))
            self._requests[key] = count + 1
        return Room(self, key, place, agent, is_counted)

    def _take(self, key: Who, place: str, agent: str | None) -> None:
        now = self._now()
        # The agent first: one that asks too often must not use up what is left for other agents.
        wait = 0.0
        if self._agents is not None and agent is not None:
            wait = self._agents.take((key, agent), now)
        if not wait and self._callers is not None:
            wait = self._callers.take(key, now)
        if wait:
            self._refuse(wait, self.headers(key, place, agent))

    def count_stream(self, key: Who) -> None:
        """Count an open stream; raises `RateLimited`."""
        count = self._streams.get(key, 0)
        if count >= self._most_streams:
            self._refuse(_SOME_SECONDS)
        if self.streams is not None:
            if self.streams.is_full(key):
                self._refuse(_SOME_SECONDS)
            self.streams.enter(key)
        self._streams[key] = count + 1

    def hold(self, key: Who, size: int, own: int) -> None:
        """Count bytes in memory of a request that holds `own` already; raises `RateLimited`. The
        only request of a caller is accepted whatever its size."""
        held = self._bytes.get(key, 0)
        if held > own and held + size > self._most_bytes:
            raise RateLimited(
                f"Too much at once: your requests may hold {self._most_bytes} bytes",
                retry_after=math.ceil(_SOME_SECONDS),
            )
        self._bytes[key] = held + size

    def let_go(self, key: Who, size: int) -> None:
        """Count bytes no more."""
        left = self._bytes[key] - size
        if left:
            self._bytes[key] = left
        else:
            del self._bytes[key]

    def forget(self, key: Who, *, has_stream: bool) -> None:
        """Count a request no more, nor its stream."""
        _less(self._requests, key)
        if has_stream:
            _less(self._streams, key)
            if self.streams is not None:
                self.streams.leave(key)

    # Answers

    def usage(self, caller: Caller | None, address: str) -> CallerUsage:
        """Return what a caller has used; None: all callers of the address."""
        place = network(address)
        return CallerUsage(self, None if caller is None else _who(caller, place), place)

    def wait(self, key: Who | None, place: str, agent: str | None) -> float:
        """Return the seconds for which a request would be refused, and count none."""
        now = self._now()
        wait = 0.0
        if self._addresses is not None:
            wait = self._addresses.wait(place, now)
        if key is None:
            return wait
        if self._callers is not None:
            wait = max(wait, self._callers.wait(key, now))
        if self._agents is not None and agent is not None:
            wait = max(wait, self._agents.wait((key, agent), now))
        is_full = self._requests.get(key, 0) >= self._most_requests
        return max(wait, _SOME_SECONDS) if is_full else wait

    def left(self, key: Who | None, place: str, agent: str | None) -> int:
        """Return how many requests there is room for, by the rate with the least left."""
        now = self._now()
        counting = self._counting(key, place, agent)
        return min((buckets.left(user, now)[0] for buckets, user in counting), default=_MAX_NAME)

    def mark(self, key: Who | None, place: str, agent: str | None) -> list[float]:
        """Return numbers that change as soon as a request of these is counted."""
        return [buckets.mark(user) for buckets, user in self._counting(key, place, agent)]

    def _counting(
        self, key: Who | None, place: str, agent: str | None
    ) -> Iterator[tuple[Bucketing, Hashable]]:
        """Yield the rates that count a request, and under which key."""
        users = _users(key, place, agent)
        for name, buckets in self._named:
            if name in users:
                yield buckets, users[name]

    def headers(self, key: Who | None, place: str, agent: str | None) -> Sequence[Header]:
        """Return what a caller is told of its rates: those that count for it, the first of them
        also in the older form."""
        if not self._named:
            return ()
        now = self._now()
        first: tuple[Header, ...] = ()
        items: list[str] = []
        users = _users(key, place, agent)
        for name, buckets in self._named:
            if name not in users:
                continue
            left, seconds = buckets.left(users[name], now)
            items.append(f'"{name}";r={left};t={math.ceil(seconds)}')
            if not first:
                first = (
                    (b"x-ratelimit-limit", b"%d" % buckets.rate.count),
                    (b"x-ratelimit-remaining", b"%d" % left),
                    (b"x-ratelimit-reset", b"%d" % math.ceil(self._date() + seconds)),
                )
        if not items:
            return (self._policy,)
        return (*first, self._policy, (b"ratelimit", ", ".join(items).encode()))

    def _refuse(self, wait: float, headers: Sequence[Header] = ()) -> NoReturn:
        raise RateLimited(retry_after=math.ceil(wait), headers=headers)


def _buckets(rates: Rates, setting: str, text: str) -> Bucketing | None:
    rate = read_rate(text)
    return None if rate is None else rates.buckets(setting, rate)


def _policy(name: str, buckets: Bucketing) -> str:
    return f'"{name}";q={buckets.rate.count};w={buckets.rate.seconds}'


def _who(caller: Caller, place: str) -> Who:
    """Return what a request counts for."""
    return caller.principal if caller.authenticated else place


def _users(key: Who | None, place: str, agent: str | None) -> dict[str, Hashable]:
    """Return the key of a request in each of the rates."""
    found: dict[str, Hashable] = {}
    if place:
        found["address"] = place
    if key is not None:
        found["caller"] = key
        if agent:
            found["agent"] = key, agent
    return found


def _less(counts: dict[Who, int], key: Who) -> None:
    count = counts.get(key, 0)
    if count > 1:
        counts[key] = count - 1
    else:
        counts.pop(key, None)


# Addresses


@functools.lru_cache(4096)
def network(address: str) -> str:
    """Return what an address counts as: one of IPv6 as its /64, the least that a caller has."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.is_loopback:
        return str(found)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


@functools.lru_cache(4096)
def is_shared(place: str) -> bool:
    """Tell whether an address may be that of many callers: this machine, which may run a proxy that
    the settings do not name, or no address at all."""
    return not place or place.startswith("127.") or place == "::1"
