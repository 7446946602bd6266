"""What was observed of agents, in memory: reads."""

from collections.abc import Collection

import msgspec

from dragoman.stores.interface.orders import OrderFacts
from dragoman.stores.interface.trust import (
    DisputeRow,
    SumWindow,
    TrustContents,
    TrustDay,
    TrustEventRow,
    TrustFigures,
    TrustHistory,
)
from dragoman.stores.memory.tables import AccountingTables
from dragoman.stores.trust_sums import counted

_decode = msgspec.json.Decoder(TrustEventRow).decode


class MemoryTrust:
    """Events and their sums."""

    def __init__(self, tables: AccountingTables) -> None:
        self._tables = tables

    async def last_number(self) -> int:
        """Return the number of the last event."""
        return len(self._tables.lines)

    async def after(self, number: int, limit: int) -> list[TrustEventRow]:
        """Return the events after one."""
        lines = list(self._tables.lines.values())[number : number + limit]
        return [_decode(line.body) for line in lines]

    async def unobserved(self, limit: int) -> list[OrderFacts]:
        """Return orders that ended and are not among the events."""
        orders = self._tables.orders
        tasks = [task for task, row in orders.items() if row.ended_at and not row.is_observed]
        return [self._tables.facts(orders[task]) for task in sorted(tasks)[:limit]]

    async def agents_of(self, requester: str) -> list[str]:
        """Return the agents of a requester's tasks."""
        return sorted({agent for agent, who, *_ in self._tables.days if who == requester})

    async def figures(self, agents: Collection[str] | None, window: SumWindow) -> TrustFigures:
        """Return what counts of agents."""
        tables = self._tables
        days = {k: day for k, day in tables.days.items() if agents is None or k[0] in agents}
        violations: dict[str, list[int]] = {}
        for line in tables.lines.values():
            if line.type == "violation" and (agents is None or line.agent in agents):
                violations.setdefault(line.agent, []).append(line.at)
        return TrustFigures(counted(days, tables.payers, window), violations)

    async def totals(self, agent: str) -> TrustDay:
        """Return all that was observed of an agent."""
        total = TrustDay()
        for (of, *_), day in self._tables.days.items():
            if of == agent:
                total = total.plus(day._replace(response_ms=0))
        return total

    async def history(self, agent: str, *, limit: int, offset: int) -> TrustHistory:
        """Return a page of an agent's events."""
        lines = [line for line in self._tables.lines.values() if line.agent == agent][::-1]
        events = [_decode(line.body) for line in lines[offset : offset + limit]]
        comments = {
            event.task: rating.comment
            for event in events
            if (rating := self._tables.ratings.get(event.task)) is not None and rating.comment
        }
        return TrustHistory(events, comments, len(lines))

    async def disputes(self, *, limit: int, after: int = 0) -> tuple[list[DisputeRow], int]:
        """Return disputes without a decision."""
        tables = self._tables
        rows: list[DisputeRow] = []
        for task in sorted(tables.disputes.keys() - tables.decisions.keys()):
            one = tables.disputes[task]
            order = one.order
            requester = order.requester.text
            rows.append(DisputeRow(task, order.task_id, order.agent, requester, one.reason, one.at))
        return [one for one in rows if one.task > after][:limit], len(rows)

    async def contents(self) -> TrustContents:
        """Return everything."""
        tables = self._tables
        return TrustContents(
            list(tables.lines.values()),
            [row for _, row in sorted(tables.orders.items()) if row.ended_at],
            [(key, day) for key, day in tables.days.items() if any(day)],
            set(tables.payers),
        )
