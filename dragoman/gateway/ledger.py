"""The ledger as users and operators see it: balances, statements, purchases, refunds, receipts.

Holds and charges are not made here: they happen with the writes of their tasks, in
`stores.sqlite.books`; only what is in escrow is paid from here, by its requester's word or in time.
Nobody is shown what concerns others; to them it does not exist.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.gateway import ratings, settling
from dragoman.gateway.payments import PACKAGES, PaymentProvider
from dragoman.gateway.task_reference import TaskReference, errand_meant
from dragoman.model.identity import Principal, Scope, new_id
from dragoman.stores.sqlite import (
    SQLiteStore,
    accounts,
    errand_lists,
    escrow,
    journal,
    purchases,
    reconciling,
)
from dragoman.stores.sqlite.accounts import Balance, Day, Line
from dragoman.stores.sqlite.books import Books, Stale
from dragoman.stores.sqlite.errands import ErrandRow, errand_of, errands_kept
from dragoman.stores.sqlite.purchases import Checkout
from dragoman.stores.sqlite.reconciling import Report

if TYPE_CHECKING:
    # Heavy: loaded when the first receipt is asked for.
    from dragoman.gateway.receipts import ReceiptKey

logger = logging.getLogger("dragoman")

# What a statement shows; and what it shows besides, where that is asked for.
KINDS = (
    "initial_grant",
    "purchase",
    "task_debit",
    "task_credit",
    "platform_fee",
    "refund",
)
HOLDS = ("hold", "release")
PERIODS = {"7d": 7, "30d": 30, "90d": 90}
MOST_LINES = 100
# Tasks that are paid in one transaction: others wait for it.
_STEP = 100


class Statement(msgspec.Struct, frozen=True):
    """A page of a statement, and how many lines there are in all."""

    lines: list[Line]
    total: int


class Usage(msgspec.Struct, frozen=True):
    """What was spent and earned, day by day."""

    period: str
    days: list[Day]

    @property
    def spent(self) -> int:
        """What all days together cost."""
        return sum(day.spent for day in self.days)

    @property
    def earned(self) -> int:
        """What all days together brought in."""
        return sum(day.earned for day in self.days)


class Begun(msgspec.Struct, frozen=True):
    """A purchase, and where to pay."""

    checkout: Checkout
    url: str


class Ledger:
    """The ledger in a store's file."""

    def __init__(
        self,
        store: SQLiteStore,
        books: Books,
        *,
        provider: PaymentProvider | None = None,
        issuer: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._books = books
        self._provider = provider
        # Whether credits can be bought.
        self.sells_credits = provider is not None
        self._issuer = issuer
        self._now = now
        self._key: ReceiptKey | None = None

    def _at(self) -> int:
        return int(self._now() * 1000)

    # Upkeep

    async def sweep(self) -> list[Stale]:
        """Settle what should have been settled with its task: at the start, and at least once a
        minute. There is nothing to find unless somebody wrote tasks without keeping books. Besides,
        pay for what was delivered and not disputed in time."""
        await self.release()
        if not await self._store.look(self._books.stale):
            return []
        found = await self._store.change(lambda c: self._books.resolve(c, self._at()))
        for one in found:
            logger.error("task number %d had ended and was not settled; it is now", one.task)
        return found

    async def release(self) -> int:
        """Pay for what was delivered and not disputed in time; return how many tasks that were."""
        done, at = 0, self._at()
        while due := await self._store.look(lambda c: escrow.due(c, at, _STEP)):

            def pay(connection: apsw.Connection, tasks: list[int] = due) -> int:
                # Some may be paid by another process since the look.
                return sum(ratings.release(connection, one, escrow.IN_TIME, at) for one in tasks)

            done += await self._store.change(pay)
        return done

    async def verify(self, expect: str = "") -> Report:
        """Recompute everything and report what does not fit."""
        return await self._store.look(lambda c: reconciling.verify(c, expect))

    # What users see

    async def balance(self, owner: Principal) -> Balance:
        """Return what a principal has; the first look opens the account."""
        found = await self._store.look(lambda c: accounts.balance(c, owner.text))
        if found is None:
            await self._touch(owner)
            found = await self._store.look(lambda c: accounts.balance(c, owner.text))
        return found or Balance()

    async def _touch(self, owner: Principal) -> None:
        grant = self._books.terms.grant
        await self._store.change(lambda c: journal.touch(c, owner.text, grant, self._at()))

    async def statement(
        self,
        owner: Principal,
        *,
        kind: str = "",
        limit: int = 20,
        offset: int = 0,
        with_holds: bool = False,
    ) -> Statement:
        """Return a page of a principal's statement, the latest first; raises `InvalidParams`."""
        known: Collection[str] = (*KINDS, *HOLDS) if with_holds else KINDS
        if kind and kind not in known:
            raise InvalidParams(f"must be one of {', '.join(known)}", field="type")
        if not 1 <= limit <= MOST_LINES or not 0 <= offset < 1 << 40:
            raise InvalidParams(f"must be from 1 to {MOST_LINES}", field="limit")
        kinds = (kind,) if kind else known
        await self.balance(owner)

        def read(connection: apsw.Connection) -> Statement:
            lines = accounts.statement(connection, owner.text, kinds, limit=limit, offset=offset)
            return Statement(lines, accounts.total(connection, owner.text, kinds))

        return await self._store.look(read)

    async def usage(self, owner: Principal, period: str = "30d") -> Usage:
        """Return what each day of a period came to, those of nothing too."""
        if period not in PERIODS:
            raise InvalidParams(f"must be one of {', '.join(PERIODS)}", field="period")
        today = datetime.fromtimestamp(self._now(), UTC).date()
        first = today - timedelta(days=PERIODS[period] - 1)
        since = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp() * 1000)
        found = await self._store.look(lambda c: accounts.days(c, owner.text, since))
        known = {day.date: day for day in found}
        dates = ((first + timedelta(days=n)).isoformat() for n in range(PERIODS[period]))
        return Usage(period, [known.get(date, Day(date, 0, 0)) for date in dates])

    async def errand(self, number: int) -> ErrandRow | None:
        """Return the errand of a task, by our number."""
        return await self._store.look(lambda c: errand_of(c, number))

    async def errand_in(self, scope: Scope, task_id: str) -> ErrandRow | None:
        """Return the errand of a task that is in a scope, where ids are unique."""
        return await self._store.look(lambda c: errand_lists.one(c, scope, task_id))

    # Purchases

    async def checkout(self, owner: Principal, package: str) -> Begun:
        """Begin a purchase; raises `InvalidParams`, or `UnsupportedOperation` without provider."""
        if self._provider is None:
            raise UnsupportedOperation("Credits are not sold here: no payment provider is set up")
        chosen = PACKAGES.get(package)
        if chosen is None:
            raise InvalidParams(f"must be one of {', '.join(PACKAGES)}", field="package")
        checkout = Checkout(
            new_id(), owner.text, chosen.name, chosen.credits, chosen.cents, self._at()
        )
        await self._store.change(lambda c: purchases.begin(c, checkout))
        return Begun(checkout, await self._provider.checkout(checkout))

    async def paid(self, body: bytes, headers: Mapping[str, str]) -> Checkout | None:
        """Take a provider's webhook; return the purchase that it credited, if it did. Raises
        `PermissionDenied` for what is not the provider's own."""
        if self._provider is None:
            raise UnsupportedOperation("Credits are not sold here: no payment provider is set up")
        payment = self._provider.read(body, headers)
        if not payment.is_paid:
            return None
        grant, at = self._books.terms.grant, self._at()

        def credit(connection: apsw.Connection) -> Checkout | None:
            checkout = purchases.find(connection, payment.checkout)
            if checkout is None or checkout.cents != payment.cents:
                logger.error("payment %s is for no purchase of ours", payment.event)
                return None
            is_credited = purchases.pay(connection, payment.event, checkout.id, grant, at)
            return checkout if is_credited else None

        return await self._store.change(credit)

    # Escrow, refunds and receipts

    async def accept(self, task: TaskReference, *, owner: Principal) -> ErrandRow:
        """Pay for a completed task of one's own that is in escrow; where it is paid already,
        nothing changes.

        Raises `TaskNotFound`, `AmbiguousTask`, and `UnsupportedOperation` where there is nothing
        to accept.
        """

        at = self._at()
        return await self._store.change(lambda c: settling.accept(c, task, owner, at))

    async def escrow(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False
    ) -> ErrandRow:
        """Return where the price of a task is, to its two sides and to operators.

        Raises `TaskNotFound` and `AmbiguousTask`."""
        return await self._store.look(
            lambda c: errand_meant(
                c, task, lambda one: is_operator or owner in (one.requester, one.payee)
            )
        )

    async def escrows(
        self, owner: Principal, *, limit: int, offset: int
    ) -> tuple[list[ErrandRow], int]:
        """Return some of the completed tasks of an owner, on either side, whose price is in escrow,
        the latest first, and how many there are."""
        return await self._store.look(lambda c: errands_kept(c, owner, limit, offset))

    async def refund(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False, memo: str = ""
    ) -> ErrandRow:
        """Give back what a task cost, or would, once: its repetition changes nothing. Only whoever
        earned it may, and operators; to others there is no such task.

        Raises `TaskNotFound`, `AmbiguousTask`, `UnsupportedOperation` where nothing was taken, and
        `InsufficientCredits` where it is spent already.
        """

        who, at = None if is_operator else owner, self._at()
        return await self._store.change(
            lambda c: settling.refund(c, self._books, task, who, memo, at)
        )

    async def receipt(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False
    ) -> str:
        """Return the signed receipt of a task that has ended, to its two sides and to operators.

        Raises `TaskNotFound`, `AmbiguousTask`, and `UnsupportedOperation` before the task's end and
        while its price is in escrow.
        """
        from dragoman.gateway.receipts import receipt_content

        key = await self._receipt_key()

        def read(connection: apsw.Connection) -> dict[str, Any]:
            errand = errand_meant(
                connection, task, lambda one: is_operator or owner in (one.requester, one.payee)
            )
            if errand.state is None:
                raise UnsupportedOperation("The task has not ended; ask for its receipt then")
            if errand.is_kept:
                raise UnsupportedOperation(
                    "The task's price is in escrow; ask for its receipt when it is paid"
                )
            settled = accounts.find(
                connection, journal.task_transfer(errand.task, errand.task_id, "settle")
            )
            before = accounts.transfer(connection, settled.number - 1) if settled else None
            prior = before.hash if before else journal.GENESIS
            return receipt_content(errand, settled, prior, self._issuer, self._at())

        return key.sign(await self._store.look(read))

    async def receipt_keys(self) -> list[dict[str, str]]:
        """Return the public keys of receipts, for the JWKS document."""
        return [(await self._receipt_key()).public]

    async def _receipt_key(self) -> "ReceiptKey":
        from dragoman.gateway.receipts import ReceiptKey

        if self._key is None:
            await self._store.prepare()
            self._key = ReceiptKey(self._store.secret)
        return self._key
