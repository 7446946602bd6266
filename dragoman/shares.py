"""Shares of what all tasks of a process use: turns of its event loop, and space in its store.

A caller that is alone has all there is. As soon as another caller is present, one whose tasks
produce, or whose readers read, without end proceeds in small slices: one in each turn of the loop,
by callers first, then by agents, then in order of arrival. So other callers wait for at most one
slice, however many tasks there are, and unused capacity is not wasted. While other callers send
requests, there are pauses between the slices.

A task that waits holds nothing meanwhile: an agent that produces is not asked for more, and the
stream of another agent is not read from its connection.
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable
from typing import Protocol

import msgspec

from dragoman.model.identity import Principal, Who

# What a log, or a stream, does in one go: alone, and beside others.
WIDE_EVENTS, WIDE_BYTES = 64, 256 * 1024
NARROW_EVENTS, NARROW_BYTES = 5, 5 * 1024
# Events of a task that is over in one slice.
SHORT_EVENTS = 4
# Seconds after which a slice beside others ends, however little was done in it.
NARROW_SECONDS = 0.0002
# Slices that begin in one turn of the loop: alone, and beside others.
_MANY, _ONE = 4, 1
# Seconds between two slices while others ask for things: a slice and the commit it leads to leave
# them most of the loop and of the disk. The clock of the loop has no shorter ones.
PAUSE = 0.001
# What an event costs besides its bytes, in bytes.
EVENT_COST = 4096
# A slice of a caller beside others, as it costs.
SLICE = NARROW_EVENTS * EVENT_COST
# What a caller's turns are counted by, as it costs: some three slices beside others.
QUANTUM = 16 * EVENT_COST
# What a caller may use in a second before it waits for turns at all.
HEAVY = 8 * QUANTUM
_WINDOW = 1.0
# Seconds for which a caller counts as present after a request.
PRESENT = 30.0
# Seconds for which it counts as active: after that, heavy callers proceed without pauses.
ASKING = 1.0
# Seconds for which a health check counts as another caller: one now and then waits for a wide slice
# at the most, and must not make the streams of a lone caller cost three times as much.
PROBED = 0.25
# Seconds between two looks at what a caller has in the store; and where that is too much.
_MEASURE_EVERY, _MEASURE_SOON = 600.0, 60.0
# The same where other replicas write too and the last look tells too little, since this one wrote a
# tenth of its share of what was left: at least, and as a multiple of the time that a look takes.
_MEASURE_AGAIN, _MEASURE_COST = 0.05, 20
_DOUBT = 10
# Callers whose use is remembered.
MOST_ACCOUNTS = 10_000
# The most that a caller owes the others: older debts are forgotten.
_MOST_DEBT = 64 * QUANTUM


class StoredBytes(Protocol):
    """What is needed of a store here."""

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have."""
        ...


class Replicas(Protocol):
    """What is needed to know how many write."""

    @property
    def workers(self) -> int:
        """How many processes write to the store, as far as that is known."""
        ...


class Seats(Protocol):
    """How many of something callers have at once, over all replicas."""

    async def prepare(self, key: Hashable) -> None:
        """Have a seat ready, if there is one."""
        ...

    def is_full(self, key: Hashable) -> bool:
        """Tell whether there is no seat, by what we last heard."""
        ...

    def enter(self, key: Hashable) -> None:
        """Take a seat, whether or not there is one."""
        ...

    def leave(self, key: Hashable) -> None:
        """Give a seat back."""
        ...


class Quota(Protocol):
    """How many tasks callers may begin."""

    @property
    def is_shared(self) -> bool:
        """Whether `prepare` comes before `begin`, since other replicas count too."""
        ...

    async def prepare(self, who: Who) -> None:
        """Have one ready to begin, if there is one left."""
        ...

    def begin(self, who: Who, count: int) -> None:
        """Count tasks that begin; raises `RateLimited` if there were enough, and counts none."""
        ...

    def give_back(self, who: Who, count: int) -> None:
        """Count no more what came to nothing."""
        ...


class Account:
    """What one caller uses, with all of its tasks and streams."""

    __slots__ = (
        "before",
        "is_full",
        "is_heavy",
        "is_narrow",
        "measured",
        "measured_at",
        "paid",
        "pause",
        "since",
        "stored",
        "used",
        "watch_at",
        "who",
    )

    def __init__(self, who: Who, since: float) -> None:
        self.who = who
        # Its total use: each event adds to this one number. Beyond `watch_at`, `Shares.judge`
        # decides anew.
        self.used = 0
        self.watch_at = HEAVY
        # When the window began, what it had used before, and whether that of the window is much.
        self.since = since
        self.before = 0
        self.is_heavy = False
        # Whether it goes on in small slices: it uses much, and others are there.
        self.is_narrow = False
        # The use that its turns paid for; the rest it owes to the callers that wait.
        self.paid = 0
        # Bytes of its logs in the store, as far as that is known, and whether they are too many.
        self.stored = 0
        self.is_full = False
        # What was found there when it was last looked at.
        self.measured = 0
        self.measured_at: float | None = None
        # Seconds until it may be looked at again, where there is doubt.
        self.pause = _MEASURE_AGAIN


class Root(msgspec.Struct, frozen=True, gc=False):
    """The caller that a task is charged to, and whether it was charged already."""

    who: Who
    is_counted: bool


class _Waiting:
    """The tasks of one caller that wait for a turn: by agents, each in order."""

    __slots__ = ("account", "agents")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.agents: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def take(self) -> asyncio.Future[None]:
        """Take the next; the agents take turns."""
        agent, queue = next(iter(self.agents.items()))
        found = queue.popleft()
        if queue:
            self.agents.move_to_end(agent)
        else:
            del self.agents[agent]
        return found


class _Latest:
    """When the latest two callers were present."""

    __slots__ = ("_at", "_earlier_at", "_now", "_who")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._who: object = None
        self._at = self._earlier_at = -math.inf

    def note(self, who: object) -> float:
        """Note that a caller is present; return the time."""
        if self._who != who:
            self._who, self._earlier_at = who, self._at
        self._at = now = self._now()
        return now

    def other_than(self, who: object) -> float:
        """Return when the latest caller but one was present."""
        return self._earlier_at if self._who == who else self._at


class Shares:
    """The shares of all callers of a process."""

    def __init__(
        self,
        quota: Quota | None = None,
        now: Callable[[], float] = time.monotonic,
        *,
        most_stored: int = 0,
        limits: Replicas | None = None,
        running: Seats | None = None,
    ) -> None:
        """`most_stored` are the bytes that logs of one principal may have; 0: any number. With
        `limits` other processes write to the store as well, and `running` counts the tasks that
        run in all of them."""
        self.quota = quota
        self.most_stored = most_stored or math.inf
        # Whether there is an end to what logs of one caller may have of the store.
        self.has_bounds = most_stored != 0
        self._replicas = limits
        self.running = running
        self._now = now
        self._accounts: OrderedDict[Who, Account] = OrderedDict()
        # Messages to other agents that are on their way, by their ids, which no peer can guess. If
        # they arrive in this process, their tasks count for the caller of the first task.
        self._roots: dict[str, Root] = {}
        # The callers that sent requests, and those whose tasks used much.
        self._requesters = _Latest(now)
        self._worked = _Latest(now)
        # Notes that a caller sent a request.
        self.saw = self._requesters.note
        # When a health check came.
        self._probed_at = -math.inf
        # The callers that wait for a turn, and how many slices began in this turn of the loop.
        self._waiting: OrderedDict[Account, _Waiting] = OrderedDict()
        self._slices_begun = 0
        self._is_scheduled = False
        # When the latest of them began.
        self._began_at = now()

    @property
    def remembered(self) -> int:
        """How many callers are remembered."""
        return len(self._accounts)

    # Callers

    def account(self, who: Who) -> Account:
        """Return the account of a caller."""
        found = self._accounts.get(who)
        if found is None:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
            found = self._accounts[who] = Account(who, self._now())
        return found

    def is_shared(self, account: Account) -> bool:
        """Tell whether another caller is present."""
        who, now = account.who, self._now()
        latest = max(self._requesters.other_than(who), self._worked.other_than(who))
        return now - latest < PRESENT or now - self._probed_at < PROBED

    def is_asked(self, account: Account) -> bool:
        """Tell whether another caller sends requests."""
        now = self._now()
        latest = self._requesters.other_than(account.who)
        return now - latest < ASKING or now - self._probed_at < PROBED

    def saw_probe(self) -> None:
        """Note that a health check came."""
        self._probed_at = self._now()

    @contextlib.contextmanager
    def calling(self, message_id: str, who: Who, *, is_counted: bool = False) -> Generator[None]:
        """Charge what a message to another agent of this process begins to another caller than its
        sender. A task that only forwards the message `is_counted` already."""
        self._roots[message_id] = Root(who, is_counted)
        try:
            yield
        finally:
            self._roots.pop(message_id, None)

    def root(self, message_id: str, who: Who) -> Root:
        """Return the caller that the task of a message is charged to. A call has one task, so a
        guessed message id comes too late."""
        found = self._roots.get(message_id)
        if found is None:
            return Root(who, is_counted=False)
        if not found.is_counted:
            del self._roots[message_id]
        return found

    def charged(self, message_id: str, who: Who) -> Who:
        """Return the same before there is a task."""
        found = self._roots.get(message_id)
        return who if found is None else found.who

    # What is used

    def use(self, account: Account, cost: int) -> None:
        """Count what was produced, or read."""
        account.used += cost
        if account.used > account.watch_at:
            self.judge(account)

    def wrote(self, account: Account, events: int, size: int) -> None:
        """Count what one of a caller's logs hands to the store. A log hands over a slice at the
        most, so counting each event would tell nothing sooner."""
        account.used += EVENT_COST * events + size
        if account.used > account.watch_at:
            self.judge(account)
        account.stored += size
        if account.stored >= self.most_stored:
            self.store(account, 0)

    def judge(self, account: Account) -> None:
        """Decide whether a caller uses much, and whether another is present."""
        now = self._worked.note(account.who)
        is_much = account.used - account.before > HEAVY
        if now - account.since > _WINDOW:
            account.is_heavy = is_much and now - account.since < 2 * _WINDOW
            account.since, account.before = now, account.used
        elif is_much:
            account.is_heavy = True
        more = QUANTUM if account.is_heavy else HEAVY + account.before - account.used
        account.watch_at = account.used + more
        account.is_narrow = account.is_heavy and self.is_shared(account)

    # What is stored

    def store(self, account: Account, size: int) -> None:
        """Count what is written to a caller's logs. Unauthenticated callers share one account
        without a limit."""
        account.stored += size
        account.is_full = account.stored >= self.most_stored and isinstance(account.who, Principal)

    def is_unmeasured(self, account: Account) -> bool:
        """Tell whether it is time to find out what a caller has in the store: after a start, and
        again now and then, since other processes write and old tasks are forgotten."""
        if not isinstance(account.who, Principal):
            return False
        now, last = self._now(), account.measured_at
        pause = _MEASURE_SOON if account.is_full else _MEASURE_EVERY
        if self._replicas is not None and self._is_doubtful(account, self._replicas):
            pause = account.pause
        if last is not None and now - last < pause:
            return False
        account.measured_at = now
        return True

    def _is_doubtful(self, account: Account, replicas: Replicas) -> bool:
        """Tell whether all replicas together may have written a tenth of what was left, if each
        wrote what this one did."""
        written = account.stored - account.measured
        left = max(0.0, self.most_stored - account.measured)
        return _DOUBT * max(1, replicas.workers) * written > left

    async def measure(self, account: Account, store: StoredBytes) -> None:
        """Find out what a caller has in the store."""
        if isinstance(account.who, Principal):
            before, began = account.stored, self._now()
            # Not again before this one is done.
            account.pause = math.inf
            try:
                found = await store.stored(account.who)
            finally:
                account.pause = max(_MEASURE_AGAIN, _MEASURE_COST * (self._now() - began))
            # What was written meanwhile counts on, perhaps twice.
            account.stored -= before
            self.store(account, found)
            account.measured = found

    # Turns

    async def turn(self, account: Account, agent: str) -> None:
        """Wait for a turn to proceed; a caller that uses little never waits."""
        self.judge(account)
        if not account.is_heavy:
            return
        most = _ONE if self.is_shared(account) else _MANY
        if not self._waiting and self._slices_begun < most:
            self._slices_begun += 1
            self._schedule(account)
            self._began_at = self._now()
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(account)
        if waiting is None:
            waiting = self._waiting[account] = _Waiting(account)
        waiting.agents.setdefault(agent, deque()).append(given)
        self._schedule(account)
        await given
        self._began_at = self._now()

    @property
    def is_late(self) -> bool:
        """Whether the present slice has taken its time."""
        return self._now() - self._began_at > NARROW_SECONDS

    def _schedule(self, account: Account) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if self.is_asked(account):
            loop.call_later(PAUSE, self._deal, account)
        else:
            loop.call_soon(self._deal, account)

    def _deal(self, account: Account) -> None:
        """Begin a turn of the loop, or the end of a pause: give as many turns as there may be.
        The account is that of the latest slice."""
        self._is_scheduled = False
        self._slices_begun = 0
        while self._waiting:
            account = self._next()
            if self._slices_begun >= (_ONE if self.is_shared(account) else _MANY):
                break
            self._give(self._waiting[account])
        if self._waiting or self._slices_begun:
            self._schedule(account)

    def _next(self) -> Account:
        """Return the next caller; one that used more than its turns paid for is passed over."""
        account = next(iter(self._waiting))
        if len(self._waiting) == 1:
            account.paid = account.used
        while account.used - account.paid > QUANTUM:
            account.paid = max(account.paid + QUANTUM, account.used - _MOST_DEBT)
            self._waiting.move_to_end(account)
            account = next(iter(self._waiting))
        return account

    def _give(self, waiting: _Waiting) -> None:
        account = waiting.account
        account.paid = min(account.used, account.paid + QUANTUM)
        given = waiting.take()
        if waiting.agents:
            self._waiting.move_to_end(account)
        else:
            del self._waiting[account]
        # One that was cancelled stays in the queue until it is its turn.
        if not given.done():
            self._slices_begun += 1
            given.set_result(None)
