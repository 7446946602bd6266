"""What a task has spent on other agents, and what is left.

Code that runs again reads all of it from the log: a restart makes a budget neither larger nor
smaller.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator

from dragoman.authoring.budget import Budget
from dragoman.errors import BudgetExceeded
from dragoman.model.clock import Clock
from dragoman.model.events import Delegated
from dragoman.model.money import credits_text


class Spending:
    """What is spent, what calls under way may come to, and the limits."""

    def __init__(self, budget: Budget, clock: Clock) -> None:
        self._budget = budget
        self._clock = clock
        self._calls_made = 0
        # By address; and the names that earlier turns used.
        self._agents: set[str] = set()
        self._names: set[str] = set()
        # When the last call was made, in milliseconds.
        self._last_at = 0
        self._seconds = 0.0
        self._most = budget.micro_credits
        self._cost = 0
        # Tasks that earlier turns gave to other agents, by address and id: the agent's name, and
        # the cost.
        self._earlier: dict[tuple[str, str], tuple[str, int]] = {}
        # What calls that have not ended may cost, by their places or the tasks they wait in.
        self._promised: dict[object, int] = {}
        # Since when each call is under way, and the time limits of the waiting ones.
        self._running: list[float] = []
        self._waits: set[asyncio.Timeout] = set()

    @property
    def has_money_limit(self) -> bool:
        """Whether calls may cost only so much."""
        return self._most is not None

    @property
    def has_limits(self) -> bool:
        """Whether any limit counts calls."""
        budget = self._budget
        counted = (budget.calls, budget.agents, budget.seconds, self._most)
        return bool(budget.cooldown) or any(limit is not None for limit in counted)

    @property
    def has_time_limit(self) -> bool:
        """Whether calls may take only so long."""
        return self._budget.seconds is not None

    def recall(self, given: Delegated) -> None:
        """Count a call of an earlier turn. One that continues a task is not a call of its own; its
        cost is that of the whole task."""
        task = given.url, given.task_id
        before = self._earlier.get(task)
        if before is None:
            self._calls_made += 1
        else:
            self._cost -= before[1]
        if given.task_id:
            self._earlier[task] = given.agent, given.cost
        self._agents.add(given.url)
        self._names.add(given.agent)
        self._last_at = max(self._last_at, given.at)
        self._seconds += given.seconds
        self._cost += given.cost

    def allow(self, who: str) -> None:
        """Raise `BudgetExceeded` for a call too many."""
        budget = self._budget
        if budget.calls is not None and self._calls_made >= budget.calls:
            raise BudgetExceeded(
                f"The task may make {budget.calls} calls", reason="INVOCATION_LIMIT"
            )
        is_new = who not in self._agents and who not in self._names
        if budget.agents is not None and is_new and len(self._agents) >= budget.agents:
            raise BudgetExceeded(
                f"The task may call {budget.agents} agents", reason="UNIQUE_AGENT_LIMIT"
            )
        if self._last_at and self._clock.now() - self._last_at < budget.cooldown * 1000:
            raise BudgetExceeded(
                f"There have to be {budget.cooldown:g} s between two calls", reason="COOLDOWN"
            )
        if self._most is not None and self._cost > self._most:
            # An agent charged more than its limit.
            raise self.no_money()

    def allow_time(self) -> None:
        """Raise `BudgetExceeded` if no time is left."""
        if self._budget.seconds is not None and self._seconds >= self._budget.seconds:
            raise self._no_time()

    def count(self, who: str, at: int) -> None:
        """Count a call that was made at a time; 0: the time is unknown."""
        self._calls_made += 1
        if who not in self._names:
            self._agents.add(who)
        self._last_at = max(self._last_at, at)

    # Money

    def promise(self, place: object, max_cost: int | None) -> int | None:
        """Return what a call may cost: what is left, and no more than the code allows. It stays
        promised until the call is settled. None: there is no limit."""
        if self._most is None:
            return None
        if place not in self._promised:
            left = max(0, self._most - self._cost - sum(self._promised.values()))
            self._promised[place] = left if max_cost is None else min(left, max_cost)
        return self._promised[place]

    def set_aside(self, place: object, amount: int) -> None:
        """Promise again what a call was promised when it was made."""
        if self._most is not None:
            self._promised[place] = amount

    def take_up(self, task_id: str, who: str, name: str) -> bool:
        """Promise a task again what an earlier turn recorded for it, under its id; tell whether an
        earlier turn did."""
        for task, (agent, cost) in self._earlier.items():
            if self._most is not None and task[1] == task_id and (task[0] == who or agent == name):
                del self._earlier[task]
                self._cost -= cost
                self._promised[task_id] = cost
                return True
        return False

    def keep(self, place: object, waits_in: object) -> int:
        """Keep what was promised for a task that waits, and return it."""
        if place in self._promised:
            self._promised[waits_in] = self._promised.pop(place)
        return self._promised.get(waits_in, 0)

    def settle(self, place: object, cost: int | None = None) -> int:
        """Count what a call cost, and return it; None: it is unknown, and counts as all that was
        promised."""
        promised = self._promised.pop(place, 0)
        spent = promised if cost is None else cost
        self._cost += spent
        return spent

    def no_money(self) -> BudgetExceeded:
        """Return the error of a call that costs more than is left."""
        return BudgetExceeded(
            f"The task may spend {credits_text(self._most or 0)} credits on calls",
            reason="MONEY_LIMIT",
        )

    # Time

    def add_seconds(self, seconds: float) -> None:
        """Count the time of a call that ended."""
        self._seconds += seconds
        self._shift()

    @contextlib.contextmanager
    def running(self, before: float) -> Generator[None]:
        """Count a call as running, which took so many seconds before; its time is added when it has
        ended."""
        since = asyncio.get_running_loop().time() - before
        self._running.append(since)
        self._shift()
        try:
            yield
        finally:
            self._running.remove(since)
            self._shift()

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Wait for something of a call that runs; raises `BudgetExceeded` when time is over."""
        if self._budget.seconds is None:
            yield
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waits.add(limit)
                self._shift()
                try:
                    yield
                finally:
                    self._waits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._no_time() from None

    def _shift(self) -> None:
        """Set when waiting calls have to end: concurrent calls share the time that is left."""
        if self._budget.seconds is None or not self._running:
            return
        now = asyncio.get_running_loop().time()
        left = self._budget.seconds - self._seconds - sum(now - since for since in self._running)
        for limit in self._waits:
            if not limit.expired():
                limit.reschedule(now + max(0.0, left) / len(self._running))

    def _no_time(self) -> BudgetExceeded:
        return BudgetExceeded(
            f"The task may spend {self._budget.seconds:g} s on calls", reason="TIME_LIMIT"
        )
