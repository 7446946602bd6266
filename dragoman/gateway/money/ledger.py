"""The ledger as users and operators see it: balances, statements, purchases, refunds, receipts.

Holds and charges are not made here: they are part of the writes of their tasks, decided by
`order_rules`. Only what is in escrow is paid from here, when its requester accepts it or in time. A
caller is shown nothing that concerns others; to them it does not exist. Every change is decided on
facts that were read, and decided again if they changed before it was recorded.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.gateway.money import order_rules, settlement
from dragoman.gateway.money.decisions import apply_decision
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.gateway.money.payments import PACKAGES, Payment, PaymentProvider, purchase_effects
from dragoman.gateway.money.task_reference import TaskReference, order_meant
from dragoman.model.identity import Principal, new_id
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import (
    AccountingStore,
    Effect,
    OpenAccount,
    PutCheckout,
)
from dragoman.stores.interface.ledger import (
    GENESIS,
    AccountDay,
    Balance,
    Checkout,
    StatementPage,
)
from dragoman.stores.interface.orders import OrderFacts, OrderRow, StaleOrder

if TYPE_CHECKING:
    # Heavy: loaded when the first receipt is asked for.
    from dragoman.gateway.money.receipts import ReceiptKey

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
# Orders that are read at a time to be paid.
_STEP = 100


class Usage(msgspec.Struct, frozen=True):
    """What was spent and earned, day by day."""

    period: str
    days: list[AccountDay]

    @property
    def spent(self) -> int:
        """What all days together cost."""
        return sum(day.spent for day in self.days)

    @property
    def earned(self) -> int:
        """What all days together brought in."""
        return sum(day.earned for day in self.days)


class PendingCheckout(msgspec.Struct, frozen=True):
    """A purchase, and where to pay."""

    checkout: Checkout
    url: str


class SecretStore(Protocol):
    """Where the key of receipts comes from."""

    @property
    def secret(self) -> bytes:
        """What belongs to the store; at hand after `prepare`."""
        ...

    async def prepare(self) -> None:
        """Have it at hand."""
        ...


class Ledger:
    """The ledger of a gateway."""

    def __init__(
        self,
        accounting: AccountingStore,
        rules: TaskOrderRules,
        secrets: SecretStore,
        *,
        provider: PaymentProvider | None = None,
        issuer: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._accounting = accounting
        # What is recorded, for readers that need no decision.
        self.store = accounting.ledger
        self._rules = rules
        self._secrets = secrets
        self._provider = provider
        # Whether credits can be bought.
        self.sells_credits = provider is not None
        self._issuer = issuer
        self._now = now
        self._key: ReceiptKey | None = None

    def _at(self) -> int:
        return int(self._now() * 1000)

    # Upkeep

    async def sweep(self) -> list[StaleOrder]:
        """Settle what should have been settled with its task: at the start, and at least once a
        minute. There is nothing to find unless a process wrote tasks without a ledger. Besides, pay
        for what was delivered and not disputed in time."""
        await self.release()
        found = await apply_decision(self._accounting, self.store.stale, self._end_stale)
        for one in found:
            logger.error("task number %d had ended and was not settled; it is now", one.order.task)
        return found

    def _end_stale(self, found: Sequence[StaleOrder]) -> list[Effect]:
        effects: list[Effect] = []
        for one in found:
            # A task that is gone was not completed.
            lost = Order(cause="lost") if one.state is None and not one.order.cause else None
            state = one.state or TaskState.FAILED
            effects += self._rules.change(one.order, lost, self._at(), state)
        return effects

    async def release(self) -> int:
        """Pay for what was delivered and not disputed in time; return how many tasks that were."""
        paid, at = 0, self._at()

        def pay(found: Sequence[OrderFacts]) -> list[Effect]:
            memo = order_rules.IN_TIME
            return [effect for one in found for effect in settlement.release(one, memo, at)]

        while done := await apply_decision(
            self._accounting, lambda: self.store.due(at, _STEP), pay
        ):
            paid += len(done)
        return paid

    # What users see

    async def balance(self, owner: Principal) -> Balance:
        """Return what a principal has; the first look opens the account."""
        found = await self.store.balance(owner.text)
        if found is None:
            opened = OpenAccount(owner.text, self._rules.terms.grant, self._at())
            await self._accounting.apply([opened])
            found = await self.store.balance(owner.text)
        return found or Balance()

    async def statement(
        self,
        owner: Principal,
        *,
        kind: str = "",
        limit: int = 20,
        offset: int = 0,
        before: int = 0,
    ) -> StatementPage:
        """Return a page of a principal's statement, the latest first, of those `before` a line by
        its number if one is given; raises `InvalidParams`."""
        if kind and kind not in KINDS:
            raise InvalidParams(f"must be one of {', '.join(KINDS)}", field="type")
        await self.balance(owner)
        kinds = (kind,) if kind else KINDS
        return await self.store.statement(
            owner.text, kinds, limit=limit, offset=offset, before=before
        )

    async def usage(self, owner: Principal, period: str = "30d") -> Usage:
        """Return what each day of a period came to, also days without entries."""
        if period not in PERIODS:
            raise InvalidParams(f"must be one of {', '.join(PERIODS)}", field="period")
        today = datetime.fromtimestamp(self._now(), UTC).date()
        first = today - timedelta(days=PERIODS[period] - 1)
        since = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp() * 1000)
        known = {day.date: day for day in await self.store.days(owner.text, since)}
        dates = ((first + timedelta(days=n)).isoformat() for n in range(PERIODS[period]))
        return Usage(period, [known.get(date, AccountDay(date, 0, 0)) for date in dates])

    # Purchases

    async def checkout(self, owner: Principal, package: str) -> PendingCheckout:
        """Begin a purchase; raises `InvalidParams`, or `UnsupportedOperation` without provider."""
        provider = self._payment_provider()
        chosen = PACKAGES.get(package)
        if chosen is None:
            raise InvalidParams(f"must be one of {', '.join(PACKAGES)}", field="package")
        checkout = Checkout(
            new_id(), owner.text, chosen.name, chosen.credits, chosen.cents, self._at()
        )
        await self._accounting.apply([PutCheckout(checkout)])
        return PendingCheckout(checkout, await provider.checkout(checkout))

    async def paid(self, body: bytes, headers: Mapping[str, str]) -> Checkout | None:
        """Take a provider's webhook; return the purchase that it credited, if it did. Raises
        `PermissionDenied` for what the provider did not sign."""
        payment = self._payment_provider().read(body, headers)
        if not payment.is_paid:
            return None
        at, grant = self._at(), self._rules.terms.grant
        checkout, is_recorded = await apply_decision(
            self._accounting,
            lambda: self._purchase(payment),
            lambda facts: purchase_effects(payment, *facts, grant, at),
        )
        if checkout is None or checkout.cents != payment.cents:
            logger.error("payment %s is for no purchase of ours", payment.event)
            return None
        return None if is_recorded or checkout.paid_at else checkout

    async def _purchase(self, payment: Payment) -> tuple[Checkout | None, bool]:
        checkout = await self.store.checkout(payment.checkout)
        return checkout, await self.store.is_payment_recorded(payment.event)

    def _payment_provider(self) -> PaymentProvider:
        if self._provider is None:
            raise UnsupportedOperation("Credits are not sold here: no payment provider is set up")
        return self._provider

    # Escrow, refunds and receipts

    async def costs(self, tasks: Sequence[int]) -> dict[int, int]:
        """Return what tasks cost, by their numbers; those that cost nothing are left out."""
        found = await asyncio.gather(*map(self.store.order, tasks))
        return {order.task: order.cost for order in found if order is not None and order.cost}

    async def accept(self, task: TaskReference, *, owner: Principal) -> OrderRow:
        """Pay for a completed task of the owner's that is in escrow; where it is paid already,
        nothing changes.

        Raises `TaskNotFound`, `AmbiguousTask`, and `UnsupportedOperation` where there is nothing
        to accept.
        """
        at = self._at()
        facts = await apply_decision(
            self._accounting,
            lambda: self._meant(task, lambda one: one.requester == owner),
            lambda facts: settlement.accept(facts, at),
        )
        order = await self.store.order(facts.order.task)
        assert order is not None, "orders stay"
        return order

    async def escrow(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False
    ) -> OrderRow:
        """Return where the price of a task is, to its two sides and to operators.

        Raises `TaskNotFound` and `AmbiguousTask`."""
        return (await self._of_side(task, owner, is_operator)).order

    async def refund(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False, memo: str = ""
    ) -> OrderRow:
        """Give back what a task cost, or would, once: a repetition changes nothing. Only its payee
        may, and operators; to others there is no such task. Return the order as it was before.

        Raises `TaskNotFound`, `AmbiguousTask`, `UnsupportedOperation` where nothing was taken, and
        `InsufficientCredits` where it is spent already.
        """
        at = self._at()

        async def read() -> tuple[OrderRow, bool, int]:
            meant = await self._meant(task, lambda one: is_operator or one.payee == owner)
            order = meant.order
            is_refunded = await self.store.transfer(order_rules.refund_id(order)) is not None
            payee = await self.store.balance(order.payee.text) or Balance()
            return order, is_refunded, payee.available

        def decide(facts: tuple[OrderRow, bool, int]) -> list[Effect]:
            order, is_refunded, available = facts
            return settlement.refund(order, memo, at, is_refunded=is_refunded, available=available)

        return (await apply_decision(self._accounting, read, decide))[0]

    async def receipt(
        self, task: TaskReference, *, owner: Principal, is_operator: bool = False
    ) -> str:
        """Return the signed receipt of a task that has ended, to its two sides and to operators.

        Raises `TaskNotFound`, `AmbiguousTask`, and `UnsupportedOperation` before the task's end and
        while its price is in escrow.
        """
        from dragoman.gateway.money.receipts import receipt_content

        key = await self._receipt_key()
        order = (await self._of_side(task, owner, is_operator)).order
        if order.state is None:
            raise UnsupportedOperation("The task has not ended; ask for its receipt then")
        if order.is_in_escrow:
            raise UnsupportedOperation(
                "The task's price is in escrow; ask for its receipt when it is paid"
            )
        settled = await self.store.transfer(order_rules.settlement_id(order))
        prior = GENESIS
        if settled is not None and settled.number > 1:
            (before,) = await self.store.transfers(settled.number - 2, 1)
            prior = before.hash
        return key.sign(receipt_content(order, settled, prior, self._issuer, self._at()))

    async def receipt_keys(self) -> list[dict[str, str]]:
        """Return the public keys of receipts, for the JWKS document."""
        return [(await self._receipt_key()).public]

    async def _receipt_key(self) -> "ReceiptKey":
        from dragoman.gateway.money.receipts import ReceiptKey

        if self._key is None:
            await self._secrets.prepare()
            self._key = ReceiptKey(self._secrets.secret)
        return self._key

    async def _of_side(
        self, task: TaskReference, owner: Principal, is_operator: bool
    ) -> OrderFacts:
        return await self._meant(
            task, lambda one: is_operator or owner in (one.requester, one.payee)
        )

    async def _meant(self, task: TaskReference, concerns: Callable[[OrderRow], bool]) -> OrderFacts:
        found = await self.store.facts(task.id)
        return order_meant(found, task, lambda facts: concerns(facts.order))
