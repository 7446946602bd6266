"""What was observed of agents, in a file: reads.

A requester's day counts for a number of tasks at most. Of more, each counts less, in exact
integers, so that sums do not depend on the order in which outcomes came.
"""

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from dragoman.stores.interface.orders import OrderFacts
from dragoman.stores.interface.trust import (
    UNIT,
    DisputeRow,
    SumWindow,
    TrustContents,
    TrustDay,
    TrustEventRow,
    TrustFigures,
    TrustHistory,
    TrustLine,
    TrustSums,
)
from dragoman.stores.sqlite.ledger.rows import TRUST, order_facts, orders
from dragoman.stores.sqlite.ledger.transactions import one_moment
from dragoman.stores.sqlite.schema import run
from dragoman.stores.sqlite.transactions import FileTransactions

_decode = msgspec.json.Decoder(TrustEventRow).decode


class SQLiteTrust:
    """Events and their sums in a file."""

    def __init__(self, file: FileTransactions) -> None:
        self._file = file

    async def last_number(self) -> int:
        """Return the number of the last event."""
        rows = await self._rows("last_event", ())
        return rows[0][0] if rows else 0

    async def after(self, number: int, limit: int) -> list[TrustEventRow]:
        """Return the events after one."""
        return [_decode(body) for (body,) in await self._rows("after", (number, limit))]

    async def unobserved(self, limit: int) -> list[OrderFacts]:
        """Return orders that ended and are not among the events."""
        return order_facts(await self._rows("unobserved", (limit,)))

    async def agents_of(self, requester: str) -> list[str]:
        """Return the agents of a requester's tasks."""
        return [agent for (agent,) in await self._rows("agents_of", (requester,))]

    async def figures(self, agents: Collection[str] | None, window: SumWindow) -> TrustFigures:
        """Return what counts of agents."""

        def read(connection: apsw.Connection) -> TrustFigures:
            found = agents
            if found is None:
                found = [agent for (agent,) in run(connection, TRUST["observed_agents"])]
            chosen = {"agents": _listed(sorted(found))}
            values = {"unit": UNIT, **window._asdict(), **chosen}
            rows = run(connection, TRUST["sums"], values)
            sums = {agent: TrustSums(*counts) for agent, *counts in rows}
            violations: dict[str, list[int]] = {}
            for agent, at in run(connection, TRUST["violations"], chosen):
                violations.setdefault(agent, []).append(at)
            return TrustFigures(sums, violations)

        return await self._file.read_tx(read)

    async def totals(self, agent: str) -> TrustDay:
        """Return all that was observed of an agent."""
        return TrustDay(*(await self._rows("totals", (agent,)))[0])

    async def history(self, agent: str, *, limit: int, offset: int) -> TrustHistory:
        """Return a page of an agent's events."""

        def read(connection: apsw.Connection) -> TrustHistory:
            rows = run(connection, TRUST["history"], (agent, limit, offset))
            events = [_decode(body) for (body,) in rows]
            tasks = _listed([event.task for event in events])
            comments = dict(run(connection, TRUST["comments"], (tasks,)))
            ((total,),) = run(connection, TRUST["history_total"], (agent,))
            return TrustHistory(events, comments, total)

        return await self._file.read_tx(read)

    async def disputes(self, *, limit: int, after: int = 0) -> tuple[list[DisputeRow], int]:
        """Return disputes without a decision."""

        def read(connection: apsw.Connection) -> tuple[list[DisputeRow], int]:
            rows = run(connection, TRUST["disputes"], (after, limit))
            ((total,),) = run(connection, TRUST["disputes_total"])
            return [DisputeRow(*row) for row in rows], total

        return await self._file.read_tx(read)

    async def contents(self) -> TrustContents:
        """Return everything."""
        return await self._file.read_tx(_contents)

    async def _rows(self, name: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._file.read_tx(lambda c: run(c, TRUST[name], values))


def _listed(values: Sequence[int | str]) -> str:
    """Return values for `json_each`."""
    return msgspec.json.encode(values).decode()


def _contents(connection: apsw.Connection) -> TrustContents:
    with one_moment(connection):
        # A day whose sums are zero is as good as none.
        days = [
            ((agent, requester, bool(is_own), day), TrustDay(*sums))
            for agent, requester, is_own, day, *sums in run(connection, TRUST["days"])
            if any(sums)
        ]
        return TrustContents(
            [TrustLine(*row) for row in run(connection, TRUST["lines"])],
            orders(run(connection, TRUST["ended_orders"])),
            days,
            {requester for (requester,) in run(connection, TRUST["payers"])},
        )
