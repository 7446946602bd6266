"""Payment providers: an interface, the packages on offer, and a provider for tests.

A provider says where to pay, and sends a signed event when a purchase was paid. An event counts
only with its signature, and once.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from dragoman.errors import PermissionDenied
from dragoman.model.identity import new_id
from dragoman.model.money import MICRO
from dragoman.stores.chain import transfer_id
from dragoman.stores.interface.effects import (
    Effect,
    MarkPaid,
    OpenAccount,
    Post,
    RecordPayment,
)
from dragoman.stores.interface.ledger import SOLD, USER, Checkout, Leg, Transfer

# The header with the fake provider's signature, and how old that may be in seconds.
SIGNATURE = "payment-signature"
TOLERANCE = 300.0


class Package(msgspec.Struct, frozen=True):
    """A number of credits and its price."""

    name: str
    credits: int
    cents: int


PACKAGES: Mapping[str, Package] = {
    package.name: package
    for package in (
        Package("starter", 1_000 * MICRO, 1_000),
        Package("pro", 5_000 * MICRO, 4_000),
        Package("enterprise", 25_000 * MICRO, 15_000),
    )
}


class Payment(msgspec.Struct, frozen=True):
    """A provider's event: a purchase was paid, or was not."""

    # The id of the event: the same for every repetition.
    event: str
    checkout: str
    cents: int
    is_paid: bool = True


def purchase_effects(
    payment: Payment, checkout: Checkout | None, is_recorded: bool, grant: int, at: int
) -> list[Effect]:
    """Credit a purchase that was paid, once. A repeated event does nothing, and neither does
    another one for the same purchase; nor does one that does not fit the purchase."""
    if is_recorded or checkout is None or checkout.cents != payment.cents:
        return []
    recorded = RecordPayment(payment.event, checkout.id, at)
    if checkout.paid_at:
        return [recorded]
    id = transfer_id("purchase", checkout.id)
    memo = f"Package {checkout.package}"
    transfer = Transfer(id, "purchase", at, reference=checkout.id, memo=memo)
    legs = (
        Leg(USER, checkout.owner, "purchase", checkout.credits),
        Leg(SOLD, "", "purchase", -checkout.credits),
    )
    opened = OpenAccount(checkout.owner, grant, at)
    return [recorded, MarkPaid(checkout.id, at), opened, Post(transfer, legs)]


class PaymentProvider(Protocol):
    """A service that takes money."""

    async def checkout(self, checkout: Checkout) -> str:
        """Return where the user goes to pay."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> Payment:
        """Return what a webhook says; raises `PermissionDenied` if it is not the provider's own.

        Names of headers are in lower case."""
        ...


class FakeProvider:
    """A provider that takes no money: for tests, and for trying a gateway out."""

    def __init__(
        self, secret: bytes, url: str = "https://pay.invalid", now: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._url = url
        self._now = now

    def __repr__(self) -> str:
        return f"FakeProvider(secret='***', url={self._url!r})"

    async def checkout(self, checkout: Checkout) -> str:
        """Return an address without a server."""
        return f"{self._url}/checkout/{checkout.id}"

    def webhook(
        self, checkout: Checkout, *, event: str = "", is_paid: bool = True
    ) -> tuple[bytes, dict[str, str]]:
        """Return body and headers as the provider would send them once a purchase was paid."""
        payment = Payment(event or new_id(), checkout.id, checkout.cents, is_paid)
        body = msgspec.json.encode(payment)
        at = str(int(self._now()))
        return body, {SIGNATURE: f"t={at},v1={self._sign(at, body)}"}

    def read(self, body: bytes, headers: Mapping[str, str]) -> Payment:
        """Return what a webhook says; raises `PermissionDenied` if it is not our own."""
        header = headers.get(SIGNATURE, "")
        at, _, signature = header.removeprefix("t=").partition(",v1=")
        # Compared first, whatever the time says, and as bytes: a text may be of any alphabet.
        is_ours = hmac.compare_digest(
            self._sign(at, body).encode(), signature.encode(errors="replace")
        )
        is_recent = at.isdecimal() and abs(self._now() - int(at)) <= TOLERANCE
        if not (is_ours and is_recent):
            raise PermissionDenied
        try:
            return msgspec.json.decode(body, type=Payment)
        except msgspec.DecodeError:
            raise PermissionDenied from None

    def _sign(self, at: str, body: bytes) -> str:
        signed = at.encode(errors="replace") + b"." + body
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()
