"""Whether the ledger is whole: every sum, every balance and the chain, recomputed from the entries,
and each completed task that costs something held against what was taken for it."""

from collections import Counter, defaultdict

import apsw
import msgspec

from dragoman.model.task import TaskState
from dragoman.stores.sqlite import outcomes
from dragoman.stores.sqlite.accounts import Posted, transfers
from dragoman.stores.sqlite.books import Books
from dragoman.stores.sqlite.errands import COLUMNS, ErrandRow, errands
from dragoman.stores.sqlite.escrow import DISPUTED, REFUNDED
from dragoman.stores.sqlite.journal import GENESIS, Leg, Moved, Transfer, link
from dragoman.stores.sqlite.schema import rows_of, run

# Of each kind: a ledger that is not whole may have many.
_MOST = 100
_ENTRIES = "SELECT count(*) FROM entries"
_ACCOUNTS = "SELECT number, kind, owner, balance, held FROM accounts"
_ERRANDS = f"SELECT {COLUMNS} FROM errands ORDER BY task"


class Report(msgspec.Struct):
    """What was found."""

    transfers: int = 0
    entries: int = 0
    errands: int = 0
    charged: int = 0
    # The hash of the last transfer: whoever keeps it elsewhere knows later that nothing is gone.
    head: str = GENESIS.hex()
    # Whether the head that was expected is in the chain.
    is_expected: bool = True
    differences: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to explain."""
        return not self.differences


class _Reconciliation:
    def __init__(self, connection: apsw.Connection, expect: str) -> None:
        self._connection = connection
        self._expect = expect
        self._said = Counter[str]()
        self._balances: defaultdict[int, int] = defaultdict(int)
        self._held: defaultdict[int, int] = defaultdict(int)
        # What was taken for a task.
        self._captured: dict[int, int] = {}
        self.report = Report(is_expected=not expect or expect == GENESIS.hex(), differences=[])

    def differ(self, kind: str, text: str) -> None:
        """Note something that does not fit, if it is among the first of its kind."""
        self._said[kind] += 1
        if self._said[kind] <= _MOST:
            self.report.differences.append(text)

    def chain(self) -> None:
        """Recompute the chain and every balance on the way."""
        prior, number, at = GENESIS, 0, 0
        for posted in transfers(self._connection):
            report, number = self.report, number + 1
            report.transfers += 1
            report.entries += len(posted.entries)
            if posted.number != number:
                self.differ("gap", f"transfer {number}: is missing")
                number = posted.number
            if posted.at < at:
                self.differ("time", f"transfer {number}: is older than the one before it")
            at = posted.at
            if _digest(prior, posted) != posted.hash:
                self.differ("chain", f"transfer {number}: was changed: its hash does not fit it")
            prior = posted.hash
            report.is_expected |= prior.hex() == self._expect
            self._fold(posted)
        self.report.head = prior.hex()
        stray = run(self._connection, _ENTRIES)[0][0] - self.report.entries
        if stray:
            self.differ("stray", f"{stray} entries are of no transfer or of no account")
        if not self.report.is_expected:
            self.differ("head", "no transfer has the expected hash: the end of the ledger is gone")

    def _fold(self, posted: Posted) -> None:
        if sum(entry.amount for entry in posted.entries):
            self.differ("sum", f"transfer {posted.number}: its entries are not zero together")
        for entry in posted.entries:
            self._balances[entry.number] += entry.amount
            self._held[entry.number] += entry.held
            after = (self._balances[entry.number], self._held[entry.number])
            if after != (entry.balance, entry.reserved):
                owner = f"{entry.account} {entry.owner!r}"
                self.differ("after", f"transfer {posted.number}: the balance of {owner} differs")
        if posted.kind == "capture":
            taken = -sum(entry.amount for entry in posted.entries if entry.kind == "task_debit")
            if posted.task in self._captured:
                self.differ("twice", f"task {posted.reference}: was charged more than once")
            self._captured[posted.task] = self._captured.get(posted.task, 0) + taken

    def accounts(self) -> dict[str, int]:
        """Hold the balances that are kept against those of the entries; return what users hold."""
        held: dict[str, int] = {}
        total = 0
        for number, kind, owner, balance, reserved in run(self._connection, _ACCOUNTS):
            total += balance
            if (balance, reserved) != (self._balances[number], self._held[number]):
                self.differ("balance", f"account {kind} {owner!r}: is not what its entries say")
            if kind == "user":
                held[owner] = reserved
        if total:
            self.differ("total", f"all balances together are {total} micro-credits and not zero")
        return held

    def errands(self, held: dict[str, int]) -> None:
        """Hold errands against what was taken and what is held for them."""
        expected: Counter[str] = Counter()
        disputed = outcomes.open_disputes(self._connection)
        for row in rows_of(self._connection, _ERRANDS, ()):
            (errand,) = errands([row])
            self.report.errands += 1
            self.report.charged += errand.charged
            expected[errand.requester.text] += errand.held
            captured = self._captured.pop(errand.task, 0)
            for problem in _problems(errand, captured):
                self.differ("errand", f"task {errand.task_id}: {problem}")
            if errand.escrow == DISPUTED and errand.task not in disputed:
                # Nobody would ever decide on it.
                self.differ("escrow", f"task {errand.task_id}: is disputed, and by nobody")
        for task in self._captured:
            self.differ("errand", f"task number {task}: was charged, and there is no such errand")
        for owner in held.keys() | expected.keys():
            if held.get(owner, 0) != expected[owner]:
                self.differ("hold", f"account user {owner!r}: holds are not those of its tasks")
        for stale in Books().stale(self._connection):
            self.differ("stale", f"task number {stale.task}: has ended, and its errand has not")


def _digest(prior: bytes, posted: Posted) -> bytes:
    transfer = Transfer(
        posted.id, posted.kind, posted.at, posted.task, posted.reference, posted.memo
    )
    legs = [Leg(*entry[:5]) for entry in posted.entries]
    moved = [Moved(*entry[5:]) for entry in posted.entries]
    return link(prior, posted.number, transfer, legs, moved)


def _problems(errand: ErrandRow, captured: int) -> list[str]:
    is_billable = bool(errand.price and errand.agent and errand.requester != errand.payee)
    is_done = is_billable and errand.state is TaskState.COMPLETED
    due = errand.price if is_done and not errand.is_kept and errand.escrow != REFUNDED else 0
    found: list[str] = []
    if errand.charged != due:
        found.append(f"{errand.charged} micro-credits charged, {due} were due")
    if errand.charged != captured:
        found.append(f"{errand.charged} micro-credits charged, {captured} were transferred")
    if errand.is_kept:
        if not is_done or errand.held != errand.price:
            found.append("what is in escrow is not its price")
    elif errand.ended_at and errand.held:
        found.append("has ended and still holds credits")
    if not 0 <= errand.fee <= errand.charged:
        found.append("its fee is no part of what was charged")
    return found


def verify(connection: apsw.Connection, expect: str = "") -> Report:
    """Recompute the ledger as of one moment; `expect` is a head that has to be in the chain."""
    check = _Reconciliation(connection, expect)
    is_ours = not connection.in_transaction
    if is_ours:
        run(connection, "BEGIN")
    try:
        check.chain()
        check.errands(check.accounts())
    finally:
        if is_ours:
            run(connection, "COMMIT")
    return check.report
