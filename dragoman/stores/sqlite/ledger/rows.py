"""Rows of orders as the file has them, and the named statements of ledger and trust."""

from collections.abc import Iterable

from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.stores.interface.orders import OrderFacts, OrderRow
from dragoman.stores.sqlite.schema import Row, queries

LEDGER = queries("ledger/ledger.sql")
TRUST = queries("ledger/trust.sql")
# Columns of an order: the fields of `OrderRow` in their order.
ORDER_COLUMNS = len(OrderRow.__struct_fields__)


def order_values(row: OrderRow) -> Row:
    """Return an order as the columns of the file."""
    return (
        row.task,
        row.task_id,
        row.agent,
        row.requester.text,
        row.payee.text,
        row.skill,
        row.held,
        row.price,
        row.charged,
        row.fee,
        row.holds,
        row.began_at,
        row.due_at,
        row.ended_at,
        row.state.value if row.state else "",
        row.cause,
        row.is_observed,
        row.moves,
        row.escrow,
        row.release_at,
        row.fee_due,
    )


def order_row(columns: Row) -> OrderRow:
    """Return an order from the columns of the file."""
    task, task_id, agent, requester, payee, *amounts, state, cause, is_observed = columns[:17]
    sides = (Principal.read(requester), Principal.read(payee))
    ended = TaskState(state) if state else None
    values: Row = (task, task_id, agent, *sides, *amounts, ended, cause, bool(is_observed))
    return OrderRow(*values, *columns[17:])


def orders(rows: Iterable[Row]) -> list[OrderRow]:
    """Return orders from rows of the file."""
    return [order_row(row) for row in rows]


def order_facts(rows: Iterable[Row]) -> list[OrderFacts]:
    """Return orders from rows that also have types of events, a rating and a dispute."""
    found: list[OrderFacts] = []
    for row in rows:
        types, rating, dispute = row[ORDER_COLUMNS:]
        events = frozenset(types.split(",")) if types else frozenset[str]()
        found.append(OrderFacts(order_row(row[:ORDER_COLUMNS]), events, rating, dispute))
    return found
