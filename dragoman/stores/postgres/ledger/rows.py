"""Rows of orders as the database has them, and the named statements of ledger and trust."""

from collections.abc import Iterable
from typing import Any

from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.stores.interface.orders import OrderFacts, OrderRow
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.deeds import storable

_PACKAGE = "dragoman.stores.postgres"
LEDGER = statements(_PACKAGE, "ledger/ledger.sql")
TRUST = statements(_PACKAGE, "ledger/trust.sql")
# Columns of an order: the fields of `OrderRow` in their order.
_FIELDS = OrderRow.__struct_fields__
ORDER_COLUMNS = len(_FIELDS)

Row = Iterable[Any]


def order_columns(row: OrderRow) -> dict[str, Any]:
    """Return an order by the columns of its table."""
    columns: dict[str, Any] = {name: getattr(row, name) for name in _FIELDS}
    columns["requester"], columns["payee"] = row.requester.text, row.payee.text
    columns["state"] = row.state.value if row.state else ""
    # Written by callers.
    columns["skill"], columns["cause"] = storable(row.skill), storable(row.cause)
    return columns


def order_row(row: Row) -> OrderRow:
    """Return an order from the columns of its table."""
    columns = dict(zip(_FIELDS, row, strict=True))
    columns["requester"] = Principal.read(columns["requester"])
    columns["payee"] = Principal.read(columns["payee"])
    columns["state"] = TaskState(columns["state"]) if columns["state"] else None
    return OrderRow(**columns)


def orders(rows: Iterable[Row]) -> list[OrderRow]:
    """Return orders from rows of their table."""
    return [order_row(row) for row in rows]


def order_facts(rows: Iterable[Row]) -> list[OrderFacts]:
    """Return orders from rows that also have types of events, a rating and a dispute."""
    found: list[OrderFacts] = []
    for row in rows:
        *columns, types, rating, dispute = row
        events = frozenset(types.split(",")) if types else frozenset[str]()
        found.append(OrderFacts(order_row(columns), events, rating, dispute))
    return found
