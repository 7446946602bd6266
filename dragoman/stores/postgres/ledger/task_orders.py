"""Orders in the transactions of their tasks' writes: the rules decide here, the server applies.

An order that has not ended is changed by the holder of its task alone, so the fence of the task
covers it: it is kept here under that fence, and read once by the next holder.
"""

from collections.abc import Sequence
from typing import Any

from dragoman.stores.chain import grant_transfer
from dragoman.stores.interface import Append, Create, Write
from dragoman.stores.interface import effects as fx
from dragoman.stores.interface.ledger import USER, Leg, Transfer
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.postgres.connections import DatabaseConnections
from dragoman.stores.postgres.ledger.rows import LEDGER, order_columns, order_row
from dragoman.stores.postgres.ledger.sealing import Sealer

# Orders in memory; one that was dropped is read again.
_MOST_KNOWN = 100_000

# The fence that the next write of a task has, and its order; None: it has none that is open.
_Known = tuple[int, OrderRow | None]


class TaskOrders:
    """Applies the rules to every write of a task."""

    def __init__(
        self, rules: fx.OrderRules, connections: DatabaseConnections, sealer: Sealer
    ) -> None:
        self._rules = rules
        self._connections = connections
        self._sealer = sealer
        self._known: dict[int, _Known] = {}
        # What is known once the group under way is committed, and whether it has transfers.
        self._planned: dict[int, _Known] = {}
        self._moves = False

    async def effects(self, writes: Sequence[Write], numbers: Sequence[int]) -> list[Any]:
        """Return the effects of a group as `apply_effects` takes them."""
        self._planned = {}
        found = await self._open_orders(writes, numbers)
        given: list[Any] = []
        for place, (write, number) in enumerate(zip(writes, numbers, strict=True)):
            if isinstance(write, Create):
                given += self._begun(place, write, number)
            elif isinstance(write, Append):
                given += self._changed(place, write, number, found)
        self._moves = any(effect[0] in ("open", "post") for effect in given)
        return given

    def settled(
        self, writes: Sequence[Write], numbers: Sequence[int], error: Exception | None
    ) -> None:
        """Keep what was committed, and forget what was refused."""
        if error is not None:
            for number in numbers:
                self._known.pop(number, None)
            return
        for number, known in self._planned.items():
            self._known.pop(number, None)
            if known[0]:
                self._known[number] = known
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if self._moves:
            self._sealer.wake()

    async def reconsider(self) -> bool:
        """Have all that was paid and given back count for what can be spent; tell whether there was
        such a thing. Then a hold that was refused is to be tried again."""
        return await self._sealer.catch_up()

    async def _open_orders(
        self, writes: Sequence[Write], numbers: Sequence[int]
    ) -> dict[int, OrderRow]:
        """Return the orders that writes change and that are not known."""
        wanted = [
            number
            for write, number in zip(writes, numbers, strict=True)
            if isinstance(write, Append) and _concerns(write) and not self._knows(write, number)
        ]
        if not wanted:
            return {}
        rows = await self._connections.rows(LEDGER["open_orders"], wanted)
        return {row[0]: order_row(row) for row in rows}

    def _knows(self, write: Append, number: int) -> bool:
        known = self._known.get(number)
        return known is not None and known[0] == write.fence

    def _begun(self, place: int, write: Create, number: int) -> list[Any]:
        at, state = write.standing.status_at, write.standing.state
        if write.order is None:
            self._plan(number, None, 0 if state.is_terminal else 1)
            return []
        effects = self._rules.begin(number, write.task_id, write.order, at, state)
        given, row = _listed(place, effects)
        # A task begins with the fence 1.
        self._plan(number, row, 1)
        return given

    def _changed(
        self, place: int, write: Append, number: int, found: dict[int, OrderRow]
    ) -> list[Any]:
        standing = write.standing
        fence = 0 if standing.state.is_terminal else write.next_fence
        if self._knows(write, number):
            row = self._known[number][1]
        elif _concerns(write):
            row = found.get(number)
        else:
            # It says nothing of the order, which is not known.
            return []
        if row is None or not _concerns(write):
            self._plan(number, row, fence)
            return []
        effects = self._rules.change(row, write.order, standing.status_at, standing.state)
        given, after = _listed(place, effects)
        self._plan(number, after or row, fence)
        return given

    def _plan(self, number: int, row: OrderRow | None, fence: int) -> None:
        """Note what is known after the commit; a fence of 0: nothing more happens to it."""
        has_ended = row is not None and bool(row.ended_at)
        self._planned[number] = (0 if has_ended else fence, row)


def _concerns(write: Append) -> bool:
    """Tell whether a write may change the order of its task."""
    return write.order is not None or write.standing.state.is_terminal


def _listed(place: int, effects: Sequence[fx.Effect]) -> tuple[list[Any], OrderRow | None]:
    """Return effects of one write as the server takes them, and the order after them."""
    given: list[Any] = []
    put: OrderRow | None = None
    before: OrderRow | None = None
    after: OrderRow | None = None
    for effect in effects:
        match effect:
            case fx.PutOrder(row):
                put = row
            case fx.SetOrder(first, last):
                # Of several changes in one write the last counts, against what was first.
                before, after = before or first, last
            case fx.Reserve(transfer, owner, amount, grant):
                given.append(_opening(place, owner, grant, transfer.at))
                given.append(["reserve", place, owner, amount])
                hold = Leg(USER, owner, "hold", held=amount)
                given.append(["post", place, _columns(transfer, [hold], 0, is_counted=True)])
            case fx.Post(transfer, legs, grant):
                assert all(_brings(leg) for leg in legs), "only a hold may be refused"
                columns = _columns(transfer, legs, grant, is_counted=False)
                given.append(["post", place, columns])
            case fx.OpenAccount(owner, grant, at):
                given.append(_opening(place, owner, grant, at))
            case _:
                raise AssertionError(f"not of a task's own write: {effect!r}")
    if put is not None:
        put = after or put
        given.append(["put", place, order_columns(put)])
        return given, put
    if before is not None and after is not None:
        given.append(["set", place, order_columns(after), order_columns(before)])
    return given, after


def _brings(leg: Leg) -> bool:
    """Tell whether a leg leaves its account with no less to spend: then it need not be counted
    before it is sealed."""
    return leg.account != USER or leg.amount >= leg.held


def _opening(place: int, owner: str, grant: int, at: int) -> list[Any]:
    transfer, legs = grant_transfer(owner, grant, at)
    return ["open", place, owner, grant, _columns(transfer, legs, 0, is_counted=True)]


def _columns(
    transfer: Transfer, legs: Sequence[Leg], grant: int, *, is_counted: bool
) -> dict[str, Any]:
    given = transfer._asdict()
    given["id"] = transfer.id.hex()
    return {**given, "legs": legs, "opens_with": grant, "is_counted": is_counted}
