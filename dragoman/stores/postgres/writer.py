"""All writing of tasks: whatever waits at the same moment goes to the server in one call.

One group is under way at a time. A group is committed whole; if writes of it are refused, the
server names them, and the rest is submitted again. After a broken connection the same group is
submitted until the server says what became of it: by its number the server knows one that it has.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from dragoman.errors import StoreConflict, StoreFull, StoreRefused, StoreUnavailable
from dragoman.model.identity import Scope
from dragoman.stores.interface import Append, Create, Done, Write
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import (
    LOST,
    CannotStore,
    DatabaseConnections,
    ServerError,
    plain,
    state_of,
)
from dragoman.stores.postgres.groups import (
    CannotSeal,
    GroupRefused,
    GroupSeals,
    NotSent,
    PoorPayers,
    arguments,
    size_of,
    touched,
)
from dragoman.stores.postgres.scopes import Scopes
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

_SQL = statements("dragoman.stores.postgres", "queries.sql")
MAX_GROUP = 256
_GROUP_BYTES = 1024 * 1024
BLOCK = 4096
# Seconds between two tries to reach a server that is away, and until new work is refused.
_BETWEEN_TRIES = 0.2
PATIENCE = 5.0

_Item = tuple[Write, Done]


class _Raised:
    """What our own functions raise: their transaction is rolled back, and nothing is in doubt."""

    REFUSED = "DR001"
    GONE = "DR002"
    ROTATED = "DR003"
    POOR = "DR004"


class WorkerIdentity(Protocol):
    """Who writes."""

    number: int

    async def rejoin(self, former: int) -> None:
        """Become another worker: the former was taken for dead."""
        ...


class TaskOrderEffects(Protocol):
    """Says what writes of tasks mean to their orders."""

    async def effects(self, writes: Sequence[Write], numbers: Sequence[int]) -> list[Any]:
        """Return the effects as the server takes them."""
        ...

    def settled(
        self, writes: Sequence[Write], numbers: Sequence[int], error: Exception | None
    ) -> None:
        """Hear that the writes were committed, or refused."""
        ...

    async def reconsider(self) -> bool:
        """Have everything count that is committed; tell whether that may admit a hold that was
        refused."""
        ...


class Writer:
    """Queues writes and submits them in groups."""

    def __init__(
        self,
        connections: DatabaseConnections,
        scopes: Scopes,
        worker: WorkerIdentity,
        seals: GroupSeals,
        *,
        committed: Callable[[Sequence[Write], Sequence[int]], None],
        rotated: Callable[[], Awaitable[None]],
    ) -> None:
        """`committed` hears of every group after its commit; `rotated` reads the key anew that
        values are sealed with."""
        self._connections = connections
        self._scopes = scopes
        self._worker = worker
        self._seals = seals
        self._committed = committed
        self._rotated = rotated
        self.orders: TaskOrderEffects | None = None
        self._pending: deque[_Item] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._group = 0
        # Writes of the group under way whose holds were refused and tried again.
        self._reconsidered: set[int] = set()
        # Numbers of tasks that are ours to give: what is left of a block, and who took it.
        self._block = self._next = self._end = 0
        self._block_of = 0
        # Since when the server does not answer; 0: it does.
        self._away_since = 0.0
        # Since when a group is under way; 0: none is.
        self._under_way_since = 0.0
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._unwatch = figures.writes_waiting.watch(self._waiting_now)

    def _waiting_now(self) -> float:
        return len(self._pending)

    @property
    def waits(self) -> float:
        """For how many seconds the group that is under way has been."""
        return time.monotonic() - self._under_way_since if self._under_way_since else 0.0

    @property
    def is_away(self) -> bool:
        """Whether something waits for the server, which does not answer."""
        return bool(self._away_since)

    def submit(self, write: Write, done: Done) -> None:
        """Queue a write; called on the event loop."""
        if not self._pending:
            self._idle.clear()
            self._wake.set()
        self._pending.append((write, done))

    async def close(self, within: float = 30.0) -> None:
        """Wait for what is queued, as long as the server answers."""
        try:
            async with asyncio.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            logger.error("%d writes were not taken by PostgreSQL", len(self._pending))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._unwatch()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            # At the end of this turn of the loop, so that its other writes come along.
            await asyncio.sleep(0)
            while self._pending:
                group = self._taken()
                self._under_way_since = time.monotonic()
                try:
                    await self._write(group)
                except Exception as error:
                    # A bug of ours, or a server that is not as it should be: callers are told, and
                    # the next group is tried all the same.
                    logger.exception("the store refused a group of writes")
                    self._tell(group, StoreUnavailable(plain(error)))
            # Nothing waits for the server any more: whether it is back only the next write tells,
            # and a replica that is not ready is sent none.
            self._under_way_since = self._away_since = 0.0
            self._wake.clear()
            self._idle.set()

    def _taken(self) -> list[_Item]:
        """Take what waits, up to a write that concerns the same as one before it."""
        group: list[_Item] = []
        met: set[Any] = set()
        size = 0
        while self._pending and len(group) < MAX_GROUP and size < _GROUP_BYTES:
            write = self._pending[0][0]
            concerns = touched(write)
            if not met.isdisjoint(concerns):
                break
            met.update(concerns)
            size += size_of(write)
            group.append(self._pending.popleft())
        return group

    async def _write(self, group: list[_Item]) -> None:
        """Submit a group until each of its writes is committed or refused."""
        self._reconsidered.clear()
        while group:
            refused = await self._submit(group)
            group = [item for place, item in enumerate(group) if place in refused]

    async def _submit(self, group: list[_Item]) -> set[int]:
        """Submit a group; return the places of those that are to be submitted again."""
        writes = [write for write, _ in group]
        worker = self._worker.number
        try:
            scopes = await self._scopes.numbers([write.scope for write in writes])
            numbers = await self._numbers(writes, worker)
            orders = self.orders
            effects = [] if orders is None else await orders.effects(writes, numbers)
        except CannotStore as error:
            return await self._one_by_one(group, [0] * len(group), error)
        except (*LOST, StoreUnavailable) as error:
            return await self._away(group, error)
        except ServerError as error:
            return await self._unnumbered(worker, group, error)
        self._group += 1
        began = time.perf_counter()
        try:
            await self._call(worker, writes, numbers, scopes, effects)
        except NotSent as error:
            return await self._away(group, error.reason)
        except CannotStore as error:
            figures.commits.add("failed")
            return await self._one_by_one(group, numbers, error)
        except CannotSeal as error:
            return self._refuse(group, numbers, GroupRefused({error.place}, error.reason))
        except StoreRefused as error:
            figures.commits.add("failed")
            if await self._is_reconsidered(group, error):
                return set(range(len(group)))
            return self._refuse(group, numbers, error)
        figures.commits.add("ok")
        figures.commit_seconds.add(time.perf_counter() - began)
        figures.commit_writes.add(len(group))
        if orders is not None:
            orders.settled(writes, numbers, None)
        self._committed(writes, numbers)
        for (_, done), number in zip(group, numbers, strict=True):
            _report(done, None, number)
        return set()

    async def _is_reconsidered(self, group: Sequence[_Item], error: StoreRefused) -> bool:
        """Tell whether a hold may have been refused before all that its payer has was counted."""
        if self.orders is None or not isinstance(error, PoorPayers):
            return False
        refused = {id(group[place][0]) for place in error.places}
        if refused <= self._reconsidered:
            return False
        self._reconsidered |= refused
        try:
            return await self.orders.reconsider()
        except StoreUnavailable:
            return False

    async def _call(
        self,
        worker: int,
        writes: Sequence[Write],
        numbers: Sequence[int],
        scopes: dict[Scope, int],
        effects: Sequence[Any],
    ) -> None:
        """Have the server commit a group. Connections may break meanwhile, and the server may be
        away for as long as it likes: what was submitted once has to be known."""
        try:
            given = arguments(writes, numbers, scopes, self._seals, effects)
        except ValueError as error:
            # Half a surrogate pair has no bytes.
            raise CannotStore(plain(error)) from error
        is_sent = False
        while True:
            try:
                connection = await self._connections.writer()
                is_sent = True
                await connection.fetchval(_SQL["write_group"], worker, self._group, *given)
            except ServerError as error:
                refusal = await self._refusal(worker, error)
                if refusal is not None:
                    # Which is an answer.
                    self._away_since = 0.0
                    raise refusal from None
                if state_of(error) == _Raised.ROTATED:
                    given = arguments(writes, numbers, scopes, self._seals, effects)
                    continue
                if not is_sent:
                    raise NotSent(error) from error
                await self._lost(error)
            except LOST as error:
                if not is_sent:
                    raise NotSent(error) from error
                await self._lost(error)
            else:
                self._away_since = 0.0
                return

    async def _refusal(self, worker: int, error: ServerError) -> StoreRefused | None:
        """Return what an error means that the server answered a worker with; None: the group is in
        doubt, or is to be submitted again."""
        match state_of(error):
            case _Raised.REFUSED:
                return GroupRefused(set(msgspec.json.decode(_detail(error) or "[]")))
            case _Raised.POOR:
                return PoorPayers(msgspec.json.decode(_detail(error) or "[]"))
            case _Raised.GONE:
                await self._worker.rejoin(worker)
                return StoreConflict("this worker was taken for dead")
            case _Raised.ROTATED:
                await self._rotated()
                return None
            case "40P01" | "40001" | "55P03":
                # Rolled back, for another's sake.
                return None
            case "53100":
                return StoreFull(plain(error))
            case code if code[:2] in ("22", "23", "42", "54", "XX", "P0"):
                # The statement itself is at fault: it is rolled back, and would be again.
                logger.error("PostgreSQL refused a group of writes", exc_info=error)
                self._connections.drop_writer()
                return CannotStore(plain(error))
            case _:
                return None

    async def _lost(self, error: BaseException) -> None:
        """Drop a connection that may have lost an answer, and refuse new work meanwhile."""
        self._connections.drop_writer()
        self._connections.lost(error)
        now = time.monotonic()
        if not self._away_since:
            self._away_since = now
            logger.warning("PostgreSQL does not answer (%s); trying again", plain(error))
        if now - self._away_since > PATIENCE:
            self._refuse_new(error)
        await asyncio.sleep(_BETWEEN_TRIES)

    async def _away(self, group: list[_Item], error: BaseException) -> set[int]:
        """Keep what is under way for when the server is back, and refuse what is new."""
        await self._lost(error)
        if time.monotonic() - self._away_since <= PATIENCE:
            return set(range(len(group)))
        again: set[int] = set()
        for place, (write, done) in enumerate(group):
            if isinstance(write, Append):
                again.add(place)
            else:
                _report(done, StoreUnavailable(plain(error)), 0)
        return again

    async def _one_by_one(
        self, group: list[_Item], numbers: Sequence[int], error: StoreUnavailable
    ) -> set[int]:
        """Submit the writes of a group each by itself: one is at fault, and the others are not to
        pay for it."""
        if len(group) == 1:
            return self._refuse(group, numbers, error)
        for item in group:
            try:
                await self._write([item])
            except Exception as problem:
                logger.exception("the store refused a write")
                self._tell([item], StoreUnavailable(plain(problem)))
        return set()

    async def _unnumbered(self, worker: int, group: list[_Item], error: ServerError) -> set[int]:
        """Deal with an error before anything was written."""
        refusal = await self._refusal(worker, error)
        if refusal is None:
            await self._lost(error)
        elif isinstance(refusal, CannotStore):
            return await self._one_by_one(group, [0] * len(group), refusal)
        elif not isinstance(refusal, StoreConflict):
            self._tell(group, refusal)
            return set()
        # As another worker, then: fences say what of it may still be written.
        return set(range(len(group)))

    def _refuse_new(self, error: BaseException) -> None:
        """Tell callers whose writes were not sent that they cannot be. Appends wait: the code of a
        task that runs has no other place to go."""
        kept: deque[_Item] = deque()
        for write, done in self._pending:
            if isinstance(write, Append):
                kept.append((write, done))
            else:
                _report(done, StoreUnavailable(plain(error)), 0)
        self._pending = kept

    def _refuse(
        self, group: Sequence[_Item], numbers: Sequence[int], error: StoreRefused
    ) -> set[int]:
        """Tell who was refused; return the places of the others."""
        places = error.places if isinstance(error, GroupRefused) else set(range(len(group)))
        for place in places:
            reason = error.reason_of(place) if isinstance(error, GroupRefused) else error
            write, done = group[place]
            if self.orders is not None:
                self.orders.settled([write], [numbers[place]], reason)
            _report(done, reason, 0)
        return set(range(len(group))) - places

    def _tell(self, group: Sequence[_Item], error: Exception) -> None:
        for _, done in group:
            _report(done, error, 0)

    async def _numbers(self, writes: Sequence[Write], worker: int) -> list[int]:
        """Return the task number of each write; new tasks get one of ours, always a higher one."""
        numbers: list[int] = []
        for write in writes:
            if isinstance(write, Create):
                if self._next == self._end or self._block_of != worker:
                    await self._take_block(worker)
                numbers.append(self._next)
                self._next += 1
            else:
                numbers.append(getattr(write, "number", 0))
        return numbers

    async def _take_block(self, worker: int) -> None:
        # What was another worker's, though that was us, is not ours to fill: readers look for new
        # tasks where those who live say that they are.
        mine = self._block if self._block_of == worker else 0
        ((self._block,),) = await self._connections.rows(_SQL["take_block"], worker, mine)
        self._block_of = worker
        self._next, self._end = self._block, self._block + BLOCK


def _detail(error: ServerError) -> str:
    return str(getattr(error, "detail", "") or "")


def _report(done: Done, error: Exception | None, number: int) -> None:
    try:
        done(error, number)
    except Exception:
        # The others of the group are to be told all the same.
        logger.exception("a writer could not be told")
