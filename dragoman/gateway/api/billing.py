"""Credits: balance, statement, usage, and purchases."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import PermissionDenied
from dragoman.gateway.api.asking import Paged, note, page_of
from dragoman.gateway.api.record import credit, escrow_of
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.money.payments import PACKAGES
from dragoman.http.routes import Access
from dragoman.model.clock import stamp
from dragoman.model.money import credits_text
from dragoman.model.order import Escrow
from dragoman.security.audit.log import DENIED
from dragoman.stores.interface.ledger import StatementLine

ENDPOINTS = EndpointTable()

Kind = Literal["initial_grant", "purchase", "task_debit", "task_credit", "platform_fee", "refund"]
Period = Literal["7d", "30d", "90d"]
PackageName = Literal["starter", "pro", "enterprise"]
_PURCHASE = "ledger.purchase"


class BalanceRecord(msgspec.Struct, frozen=True):
    """What an account has: in all, reserved for tasks that are not paid yet, and free to spend."""

    balance: float
    held: float
    available: float


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a statement; an amount below zero was taken."""

    id: str
    type: Kind
    amount: float
    balance_after: float
    reference_id: str | None
    # Our own number of the task it is for: an id may be that of several.
    task_number: int | None
    description: str
    created_at: str
    # Where the price of the task is at present, if it goes through an escrow.
    escrow: Escrow | UnsetType = UNSET


class Transactions(msgspec.Struct, frozen=True):
    """A page of a statement, the latest first."""

    transactions: list[Transaction]
    total: int
    limit: int
    offset: int
    # What to send as `before` for the next page: the id of the last line; left out: there is none.
    next: str | UnsetType = UNSET


class TransactionQuery(Paged, frozen=True, kw_only=True):
    """Which lines are wanted."""

    type: Kind | UnsetType = UNSET
    # The id of a line: those before it, however many there are after it.
    before: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0


class UsageQuery(msgspec.Struct, frozen=True):
    """Of which days."""

    period: Period = "30d"


class DayRecord(msgspec.Struct, frozen=True):
    """What a day came to."""

    date: str
    spent: float
    earned: float


class UsageRecord(msgspec.Struct, frozen=True):
    """What was spent and earned, day by day and in all."""

    period: Period
    daily: list[DayRecord]
    total_spent: float
    total_earned: float


class PackageRecord(msgspec.Struct, frozen=True):
    """So many credits for so many cents of a US dollar."""

    id: str
    credits: float
    price_cents: int


class Packages(msgspec.Struct, frozen=True):
    """What is on offer."""

    packages: list[PackageRecord]


class Purchase(msgspec.Struct, frozen=True):
    """Which package is wanted."""

    package: PackageName


class CheckoutRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Where to pay for it."""

    checkout_id: str
    url: str


class WebhookRecord(msgspec.Struct, frozen=True):
    """A payment event was received; and whether it credited anything."""

    received: bool
    credited: bool


@ENDPOINTS.add("GET", "/api/v1/billing/balance", scope="billing")
async def get_balance(ask: Ask) -> BalanceRecord:
    """Read your balance."""
    found = await ask.gateway.ledger.balance(ask.principal)
    return BalanceRecord(credit(found.total), credit(found.held), credit(found.available))


@ENDPOINTS.add("GET", "/api/v1/billing/transactions", scope="billing", query=TransactionQuery)
async def list_transactions(ask: Ask) -> Transactions:
    """Read your statement, the latest line first."""
    query: TransactionQuery = ask.query
    kind = "" if query.type is UNSET else query.type
    found = await ask.gateway.ledger.statement(
        ask.principal,
        kind=kind,
        limit=query.limit + 1,
        offset=query.offset,
        before=query.before,
    )
    shown, following = page_of(found.lines, query.limit, lambda line: str(line.number))
    lines = [_transaction(line) for line in shown]
    return Transactions(lines, found.total, query.limit, query.offset, following)


def _transaction(line: StatementLine) -> Transaction:
    return Transaction(
        id=str(line.number),
        type=msgspec.convert(line.kind, Kind),
        amount=credit(line.amount),
        balance_after=credit(line.balance),
        reference_id=line.reference or None,
        task_number=line.task or None,
        description=line.memo,
        created_at=stamp(line.at * 1000),
        escrow=escrow_of(line.escrow),
    )


@ENDPOINTS.add("GET", "/api/v1/billing/usage", scope="billing", query=UsageQuery)
async def get_usage(ask: Ask) -> UsageRecord:
    """Read what was spent and earned, day by day."""
    query: UsageQuery = ask.query
    found = await ask.gateway.ledger.usage(ask.principal, query.period)
    days = [DayRecord(day.date, credit(day.spent), credit(day.earned)) for day in found.days]
    return UsageRecord(query.period, days, credit(found.spent), credit(found.earned))


@ENDPOINTS.add("GET", "/api/v1/billing/packages", scope="billing")
async def list_packages(ask: Ask) -> Packages:
    """Read what is on offer."""
    return Packages(
        [PackageRecord(one.name, credit(one.credits), one.cents) for one in PACKAGES.values()]
    )


@ENDPOINTS.add("POST", "/api/v1/billing/checkout", scope="billing", status=201, body=Purchase)
async def begin_checkout(ask: Ask) -> CheckoutRecord:
    """Begin a purchase; pay at the address in the answer."""
    body: Purchase = ask.body
    begun = await ask.gateway.ledger.checkout(ask.principal, body.package)
    return CheckoutRecord(begun.checkout.id, begun.url)


@ENDPOINTS.add(
    "POST",
    "/api/v1/billing/webhook",
    access=Access.PUBLIC,
    needs_provider=True,
    is_raw=True,
    errors=("FORBIDDEN",),
)
async def payment_webhook(ask: Ask) -> WebhookRecord:
    """Hear of a payment from the payment provider, which signs it."""
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in ask.request.headers.items()
    }
    try:
        paid = await ask.gateway.ledger.paid(ask.body, headers)
    except PermissionDenied:
        note(ask, _PURCHASE, "", "not the provider's own", DENIED)
        raise
    if paid is not None:
        bought = f"{paid.package} {credits_text(paid.credits)}"
        note(ask, _PURCHASE, f"{paid.id} {paid.owner}".rstrip(), bought)
    return WebhookRecord(True, paid is not None)
