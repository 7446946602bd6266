"""Shares of what all tasks of a process live on: turns of its event loop, and room in its store.

A caller who is alone has all there is. As soon as anybody else is there, a caller whose tasks
produce without end, or whose readers read without end, does so in small slices: one of them in each
turn of the loop, by callers first, then by agents, then in the order in which they came. So others
wait for one slice at most, however many tasks there are, and what nobody else needs is still used.
While others ask for things there are pauses between the slices.

Whoever has to wait holds nothing meanwhile: an agent that produces is not asked for more, and what
another agent streams is not read from its connection.
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from dragoman.model.identity import Principal, Who
from dragoman.stores.interface import Store

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
# Seconds for which somebody who asked for anything counts as there.
PRESENT = 30.0
# Seconds for which it counts as asking: after that, heavy callers go on without pauses.
ASKING = 1.0
# Seconds between two looks at what a caller has in the store; and where that is too much.
_MEASURE_EVERY, _MEASURE_SOON = 600.0, 60.0
# Callers whose use is remembered.
MOST_ACCOUNTS = 10_000
# The most that a caller owes the others: older debts are forgotten.
_MOST_DEBT = 64 * QUANTUM


class Quota(Protocol):
    """How many tasks callers may begin."""

    def begin(self, who: Who, count: int) -> None:
        """Count tasks that begin; raises `RateLimited` if there were enough, and counts none."""
        ...

    def give_back(self, who: Who, count: int) -> None:
        """Count no more what came to nothing."""
        ...


class Account:
    """What one caller uses at present, with all of its tasks and streams."""

    __slots__ = (
        "before",
        "is_full",
        "is_heavy",
        "is_narrow",
        "measured_at",
        "paid",
        "since",
        "stored",
        "used",
        "watch_at",
        "who",
    )

    def __init__(self, who: Who, since: float) -> None:
        self.who = who
        # What it used in all: counted with each event, so there is one number to add to. Beyond
        # `watch_at` somebody has to look.
        self.used = 0
        self.watch_at = HEAVY
        # When the window began, what it had used before, and whether that of the window is much.
        self.since = since
        self.before = 0
        self.is_heavy = False
        # Whether it goes on in small slices: it uses much, and others are there.
        self.is_narrow = False
        # What of its use its turns were for; the rest it owes those who wait.
        self.paid = 0
        # Bytes of its logs in the store, as far as that is known, and whether they are too many.
        self.stored = 0
        self.is_full = False
        self.measured_at: float | None = None


class Root(NamedTuple):
    """Whom a task counts for, and whether it was counted before it came here."""

    who: Who
    is_counted: bool


class _Waiting:
    """Who waits for a turn: by agents, each in order."""

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
    """When the last two were there."""

    __slots__ = ("_at", "_earlier_at", "_now", "_who")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._who: object = None
        self._at = self._earlier_at = -math.inf

    def note(self, who: object) -> float:
        """Note that somebody is there now, and return when that is."""
        if self._who != who:
            self._who, self._earlier_at = who, self._at
        self._at = now = self._now()
        return now

    def other_than(self, who: object) -> float:
        """Return when the latest but somebody was there."""
        return self._earlier_at if self._who == who else self._at


class Shares:
    """The shares of all callers of a process."""

    def __init__(
        self,
        quota: Quota | None = None,
        now: Callable[[], float] = time.monotonic,
        *,
        most_stored: int = 0,
    ) -> None:
        """`most_stored` are the bytes that logs of one principal may have; 0: any number."""
        self.quota = quota
        self.most_stored = most_stored or math.inf
        self._now = now
        self._accounts: OrderedDict[Who, Account] = OrderedDict()
        # Messages to other agents that are on their way, by their ids, which no peer can guess. If
        # they arrive in this process, what they begin counts for the caller who began it all.
        self._roots: dict[str, Root] = {}
        # Who asked for anything, and whose tasks used much.
        self._asked = _Latest(now)
        self._worked = _Latest(now)
        # Notes that somebody asked for something, be it only whether we are well.
        self.saw = self._asked.note
        # Who waits for a turn, and how many had theirs in this turn of the loop.
        self._waiting: OrderedDict[Account, _Waiting] = OrderedDict()
        self._begun = 0
        self._is_scheduled = False
        # When the latest of them began.
        self._began_at = now()

    @property
    def has_bounds(self) -> bool:
        """Whether there is an end to what logs of one caller may have of the store."""
        return self.most_stored != math.inf

    @property
    def remembered(self) -> int:
        """How many callers are remembered."""
        return len(self._accounts)

    # Who is there

    def account(self, who: Who) -> Account:
        """Return what is known of a caller's use."""
        found = self._accounts.get(who)
        if found is None:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
            found = self._accounts[who] = Account(who, self._now())
        return found

    def is_shared(self, account: Account) -> bool:
        """Tell whether anybody else is there."""
        who = account.who
        latest = max(self._asked.other_than(who), self._worked.other_than(who))
        return self._now() - latest < PRESENT

    def is_asked(self, account: Account) -> bool:
        """Tell whether anybody else asks for things at present."""
        return self._now() - self._asked.other_than(account.who) < ASKING

    @contextlib.contextmanager
    def calling(self, message_id: str, who: Who, *, is_counted: bool = False) -> Generator[None]:
        """Have what a message to another agent begins count for somebody else than its sender, if
        that agent is of this process. What only passes it on `is_counted` already."""
        self._roots[message_id] = Root(who, is_counted)
        try:
            yield
        finally:
            self._roots.pop(message_id, None)

    def root(self, message_id: str, who: Who) -> Root:
        """Return whom the task of a message counts for, sent by somebody. Of a call there is one
        task: who guesses its id comes too late."""
        found = self._roots.get(message_id)
        if found is None:
            return Root(who, is_counted=False)
        if not found.is_counted:
            del self._roots[message_id]
        return found

    # What is used

    def use(self, account: Account, cost: int) -> None:
        """Count what was produced, or read."""
        account.used += cost
        if account.used > account.watch_at:
            self.look(account)

    def wrote(self, account: Account, events: int, size: int) -> None:
        """Count what one of a caller's logs hands to the store. A log hands over a slice at the
        most, so counting each event would tell nothing sooner."""
        account.used += EVENT_COST * events + size
        if account.used > account.watch_at:
            self.look(account)
        account.stored += size
        if account.stored >= self.most_stored:
            self.store(account, 0)

    def look(self, account: Account) -> None:
        """See how much a caller uses, and whether anybody else is there. Called now and then."""
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
        """Count what is written to a caller's logs. Callers who are not known are all one, and
        have what there is."""
        account.stored += size
        account.is_full = account.stored >= self.most_stored and isinstance(account.who, Principal)

    def is_unmeasured(self, account: Account) -> bool:
        """Tell whether it is time to find out what a caller has in the store: after a start, and
        again now and then, since other processes write and old tasks are forgotten."""
        if not isinstance(account.who, Principal):
            return False
        now, last = self._now(), account.measured_at
        pause = _MEASURE_SOON if account.is_full else _MEASURE_EVERY
        if last is not None and now - last < pause:
            return False
        account.measured_at = now
        return True

    async def measure(self, account: Account, store: Store) -> None:
        """Find out what a caller has in the store."""
        if isinstance(account.who, Principal):
            before = account.stored
            found = await store.stored(account.who)
            # What was written meanwhile counts on, perhaps twice.
            account.stored -= before
            self.store(account, found)

    # Turns

    async def turn(self, account: Account, agent: str) -> None:
        """Wait for one's turn to go on; who uses little never waits."""
        self.look(account)
        if not account.is_heavy:
            return
        most = _ONE if self.is_shared(account) else _MANY
        if not self._waiting and self._begun < most:
            self._begun += 1
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
        self._begun = 0
        while self._waiting:
            account = self._next()
            if self._begun >= (_ONE if self.is_shared(account) else _MANY):
                break
            self._give(self._waiting[account])
        if self._waiting or self._begun:
            self._schedule(account)

    def _next(self) -> Account:
        """Return who is next: those who used more than their turns were for are passed over."""
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
            self._begun += 1
            given.set_result(None)
