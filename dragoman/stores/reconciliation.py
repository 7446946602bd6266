"""Whether a ledger is whole: every sum, every balance and the chain, recomputed from the entries,
and each completed order that costs something checked against what was taken for it. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from dragoman.model.order import DISPUTED, REFUNDED
from dragoman.model.task import TaskState
from dragoman.stores.chain import posted_hash
from dragoman.stores.interface.ledger import (
    GENESIS,
    USER,
    LedgerReport,
    Leg,
    PostedTransfer,
    Transfer,
)
from dragoman.stores.interface.orders import OrderRow

# Differences of each kind that are reported.
_MOST = 100


class AccountRow(NamedTuple):
    """An account as it is recorded."""

    number: int
    kind: str
    owner: str
    balance: int
    held: int


class LedgerContents(NamedTuple):
    """All there is, as of one moment."""

    # In order, with their entries.
    transfers: Iterable[PostedTransfer]
    # All there are, also those of no transfer.
    entry_count: int
    accounts: Iterable[AccountRow]
    orders: Iterable[OrderRow]
    # Tasks with an open dispute, and tasks that ended while their orders did not, by number.
    disputed: Collection[int]
    stale: Iterable[int]


def reconcile(contents: LedgerContents, expect: str = "") -> LedgerReport:
    """Recompute a ledger; `expect` is a head that has to be in the chain."""
    check = Reconciliation(expect)
    for posted in contents.transfers:
        check.add_transfer(posted)
    check.end_chain(contents.entry_count)
    for account in contents.accounts:
        check.add_account(account)
    for order in contents.orders:
        check.add_order(order, is_disputed=order.task in contents.disputed)
    return check.finish(contents.stale)


class Reconciliation:
    """A check that is given a ledger piece by piece: all transfers in order, all accounts, what is
    not in the chain yet, all orders."""

    def __init__(self, expect: str = "") -> None:
        self._expect = expect
        self._counts = Counter[str]()
        self._number, self._at, self._prior = 0, 0, GENESIS
        self._balances: defaultdict[int, int] = defaultdict(int)
        self._held: defaultdict[int, int] = defaultdict(int)
        # What was taken, by task, and what users have reserved: by accounts, and by orders.
        self._captured: dict[int, int] = {}
        self._reserved: Counter[str] = Counter()
        self._expected: Counter[str] = Counter()
        self._total = 0
        self._report = LedgerReport(
            is_expected=not expect or expect == GENESIS.hex(), differences=[]
        )

    def _differ(self, kind: str, text: str) -> None:
        """Report a difference, if it is among the first of its kind."""
        self._counts[kind] += 1
        if self._counts[kind] <= _MOST:
            self._report.differences.append(text)

    def add_transfer(self, posted: PostedTransfer) -> None:
        """Recompute a transfer and every balance it touches."""
        report, number = self._report, self._number + 1
        report.transfers += 1
        report.entries += len(posted.entries)
        if posted.number != number:
            self._differ("gap", f"transfer {number}: is missing")
            number = posted.number
        if posted.at < self._at:
            self._differ("time", f"transfer {number}: is older than the one before it")
        if posted_hash(self._prior, posted) != posted.hash:
            self._differ("chain", f"transfer {number}: was changed: its hash does not fit it")
        self._number, self._at, self._prior = number, posted.at, posted.hash
        report.is_expected |= posted.hash.hex() == self._expect
        self._fold(posted)

    def end_chain(self, entry_count: int) -> None:
        """Check the end of the chain; `entry_count` are all entries, also those of no transfer."""
        self._report.head = self._prior.hex()
        stray = entry_count - self._report.entries
        if stray:
            self._differ("stray", f"{stray} entries are of no transfer or of no account")
        if not self._report.is_expected:
            self._differ("head", "no transfer has the expected hash: the end of the ledger is gone")

    def _fold(self, posted: PostedTransfer) -> None:
        if sum(entry.amount for entry in posted.entries):
            self._differ("sum", f"transfer {posted.number}: its entries are not zero together")
        for entry in posted.entries:
            self._balances[entry.number] += entry.amount
            self._held[entry.number] += entry.held
            after = (self._balances[entry.number], self._held[entry.number])
            if after != (entry.balance, entry.reserved):
                owner = f"{entry.account} {entry.owner!r}"
                self._differ("after", f"transfer {posted.number}: the balance of {owner} differs")
        if posted.kind == "capture":
            taken = -sum(entry.amount for entry in posted.entries if entry.kind == "task_debit")
            self._capture(posted.task, posted.reference, taken)

    def _capture(self, task: int, reference: str, taken: int) -> None:
        if task in self._captured:
            self._differ("twice", f"task {reference}: was charged more than once")
        self._captured[task] = self._captured.get(task, 0) + taken

    def add_account(self, account: AccountRow) -> None:
        """Check a recorded balance against that of the entries."""
        self._total += account.balance
        folded = (self._balances[account.number], self._held[account.number])
        if (account.balance, account.held) != folded:
            place = f"{account.kind} {account.owner!r}"
            self._differ("balance", f"account {place}: is not what its entries say")
        if account.kind == USER:
            self._reserved[account.owner] += account.held

    def add_unsealed(self, transfer: Transfer, legs: Iterable[Leg]) -> None:
        """Take into account what orders know of and the chain does not yet."""
        taken = 0
        for leg in legs:
            if leg.account == USER:
                self._reserved[leg.owner] += leg.held
            if leg.kind == "task_debit":
                taken -= leg.amount
        if transfer.kind == "capture":
            self._capture(transfer.task, transfer.reference, taken)

    def add_order(self, order: OrderRow, *, is_disputed: bool) -> None:
        """Check an order against what was taken for it."""
        self._report.orders += 1
        self._report.charged += order.charged
        self._expected[order.requester.text] += order.held
        captured = self._captured.pop(order.task, 0)
        for problem in _problems(order, captured):
            self._differ("order", f"task {order.task_id}: {problem}")
        if order.escrow == DISPUTED and not is_disputed:
            # No operator would ever be asked to decide.
            self._differ("escrow", f"task {order.task_id}: is disputed, and has no dispute")

    def finish(self, stale: Iterable[int]) -> LedgerReport:
        """Check what concerns everything; `stale` are tasks that ended while their orders did
        not."""
        if self._total:
            total = f"{self._total} micro-credits"
            self._differ("total", f"all balances together are {total} and not zero")
        for task in self._captured:
            self._differ("order", f"task number {task}: was charged, and there is no such order")
        for owner in self._reserved.keys() | self._expected.keys():
            if self._reserved[owner] != self._expected[owner]:
                self._differ("hold", f"account user {owner!r}: holds are not those of its tasks")
        for task in stale:
            self._differ("stale", f"task number {task}: has ended, and its order has not")
        return self._report


def _problems(order: OrderRow, captured: int) -> list[str]:
    is_billable = bool(order.price and order.agent and order.requester != order.payee)
    is_done = is_billable and order.state is TaskState.COMPLETED
    due = order.price if is_done and not order.is_in_escrow and order.escrow != REFUNDED else 0
    found: list[str] = []
    if order.charged != due:
        found.append(f"{order.charged} micro-credits charged, {due} were due")
    if order.charged != captured:
        found.append(f"{order.charged} micro-credits charged, {captured} were transferred")
    if order.is_in_escrow:
        if not is_done or order.held != order.price:
            found.append("what is in escrow is not its price")
    elif order.ended_at and order.held:
        found.append("has ended and still holds credits")
    if not 0 <= order.fee <= order.charged:
        found.append("its fee is no part of what was charged")
    return found
