"""What was observed of agents, in the database: reads."""

from collections.abc import Collection
from typing import Any

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
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.ledger.rows import TRUST, order_facts, orders

_decode = msgspec.json.Decoder(TrustEventRow).decode


class PostgresTrust:
    """Events and their sums in a database."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections

    async def last_number(self) -> int:
        """Return the number of the last event."""
        rows = await self._rows("last_event")
        return rows[0][0] if rows else 0

    async def after(self, number: int, limit: int) -> list[TrustEventRow]:
        """Return the events after one."""
        return [_decode(body) for (body,) in await self._rows("after", number, limit)]

    async def unobserved(self, limit: int) -> list[OrderFacts]:
        """Return orders that ended and are not among the events."""
        return order_facts(await self._rows("unobserved", limit))

    async def agents_of(self, requester: str) -> list[str]:
        """Return the agents of a requester's tasks."""
        return [agent for (agent,) in await self._rows("agents_of", requester)]

    async def figures(self, agents: Collection[str] | None, window: SumWindow) -> TrustFigures:
        """Return what counts of agents."""

        async def read(connection: Connection) -> TrustFigures:
            found = agents
            if found is None:
                rows = await connection.fetch(TRUST["observed_agents"])
                found = [agent for (agent,) in rows]
            chosen = list(found)
            rows = await connection.fetch(TRUST["sums"], UNIT, *window, chosen)
            sums = {agent: TrustSums(*counts) for agent, *counts in rows}
            violations: dict[str, list[int]] = {}
            for agent, at in await connection.fetch(TRUST["violations"], chosen):
                violations.setdefault(agent, []).append(at)
            return TrustFigures(sums, violations)

        return await self._connections.at_one_moment(read)

    async def totals(self, agent: str) -> TrustDay:
        """Return all that was observed of an agent."""
        return TrustDay(*(await self._rows("totals", agent))[0])

    async def history(self, agent: str, *, limit: int, offset: int) -> TrustHistory:
        """Return a page of an agent's events."""

        async def read(connection: Connection) -> TrustHistory:
            rows = await connection.fetch(TRUST["history"], agent, limit, offset)
            events = [_decode(body) for (body,) in rows]
            tasks = [event.task for event in events]
            comments = {
                task: comment for task, comment in await connection.fetch(TRUST["comments"], tasks)
            }
            total = await connection.fetchval(TRUST["history_total"], agent)
            return TrustHistory(events, comments, total)

        return await self._connections.at_one_moment(read)

    async def disputes(self, *, limit: int, after: int = 0) -> tuple[list[DisputeRow], int]:
        """Return disputes without a decision."""

        async def read(connection: Connection) -> tuple[list[DisputeRow], int]:
            rows = await connection.fetch(TRUST["disputes"], after, limit)
            total = await connection.fetchval(TRUST["disputes_total"])
            return [DisputeRow(*row) for row in rows], total

        return await self._connections.at_one_moment(read)

    async def contents(self) -> TrustContents:
        """Return everything."""

        async def read(connection: Connection) -> TrustContents:
            # A day whose sums are zero is as good as none.
            days = [
                ((agent, requester, is_own, day), TrustDay(*sums))
                for agent, requester, is_own, day, *sums in await connection.fetch(TRUST["days"])
                if any(sums)
            ]
            return TrustContents(
                [TrustLine(*row) for row in await connection.fetch(TRUST["lines"])],
                orders(await connection.fetch(TRUST["ended_orders"])),
                days,
                {requester for (requester,) in await connection.fetch(TRUST["payers"])},
            )

        return await self._connections.at_one_moment(read)

    async def _rows(self, name: str, *values: Any) -> list[Row]:
        return await self._connections.rows(TRUST[name], *values)
