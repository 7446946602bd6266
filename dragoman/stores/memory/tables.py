"""What ledger and trust are in memory: rows by their keys."""

from dragoman.model.identity import Scope
from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import DecideDispute, PutDispute, PutRating
from dragoman.stores.interface.ledger import FEES, ISSUED, SOLD, Checkout, PostedTransfer
from dragoman.stores.interface.orders import OrderFacts, OrderRow
from dragoman.stores.interface.trust import DayKey, TrustDay, TrustLine
from dragoman.stores.reconciliation import AccountRow


class AccountingTables:
    """What is stored: rows by their keys."""

    def __init__(self) -> None:
        self.orders: dict[int, OrderRow] = {}
        # Scope and state of the tasks that orders belong to, while these tasks are there.
        self.tasks: dict[int, tuple[Scope, TaskState]] = {}
        self.accounts: dict[tuple[str, str], AccountRow] = {
            (kind, ""): AccountRow(number, kind, "", 0, 0)
            for number, kind in enumerate((ISSUED, SOLD, FEES), 1)
        }
        # By number, and by id.
        self.transfers: dict[int, PostedTransfer] = {}
        self.transfer_ids: dict[bytes, int] = {}
        self.checkouts: dict[str, Checkout] = {}
        self.payments: dict[str, str] = {}
        self.lines: dict[int, TrustLine] = {}
        # Types of events by task.
        self.types: dict[int, frozenset[str]] = {}
        self.days: dict[DayKey, TrustDay] = {}
        self.payers: dict[str, bool] = {}
        self.ratings: dict[int, PutRating] = {}
        self.disputes: dict[int, PutDispute] = {}
        # By task; a dispute without one is open.
        self.decisions: dict[int, DecideDispute] = {}

    def dispute(self, task: int) -> str | None:
        """Return how a dispute was decided; empty: it is open; None: there is none."""
        if task not in self.disputes:
            return None
        decision = self.decisions.get(task)
        return "" if decision is None else decision.outcome

    def facts(self, order: OrderRow) -> OrderFacts:
        """Return an order with what was recorded about it besides."""
        rating = self.ratings.get(order.task)
        events = self.types.get(order.task, frozenset())
        stars = None if rating is None else rating.rating
        return OrderFacts(order, events, stars, self.dispute(order.task))
