"""Orders in the transactions of their tasks' writes: the rules decide, the file is changed."""

from collections.abc import Sequence

import apsw

from dragoman.stores.interface import Append, Create, Write
from dragoman.stores.interface.effects import OrderRules
from dragoman.stores.sqlite.ledger.effects import apply
from dragoman.stores.sqlite.ledger.rows import LEDGER, order_row
from dragoman.stores.sqlite.schema import run


class TaskOrders:
    """Applies the rules to every write of a task. It remembers nothing: what another process
    wrote to the file is known here."""

    def __init__(self, rules: OrderRules) -> None:
        self._rules = rules

    def record(
        self, connection: apsw.Connection, writes: Sequence[Write], numbers: Sequence[int]
    ) -> None:
        """Record what writes mean to orders; raises `HoldRefused`."""
        for write, number in zip(writes, numbers, strict=True):
            if isinstance(write, Create):
                if write.order is not None:
                    at, state = write.standing.status_at, write.standing.state
                    effects = self._rules.begin(number, write.task_id, write.order, at, state)
                    apply(connection, effects)
            elif isinstance(write, Append):
                standing = write.standing
                if write.order is None and not standing.state.is_terminal:
                    continue
                for row in run(connection, LEDGER["open_order"], (number,)):
                    before = order_row(row)
                    apply(
                        connection,
                        self._rules.change(before, write.order, standing.status_at, standing.state),
                    )
