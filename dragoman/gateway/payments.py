"""Who takes money for credits: an interface, the packages on offer, and a provider for trying out.

A provider says where to pay and vouches for what it tells us later. What it says is believed only
with its signature, and counts once.
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
from dragoman.stores.sqlite.purchases import Checkout

# Where the stand-in's signature is, and how old it may be.
SIGNATURE = "payment-signature"
TOLERANCE = 300.0


class Package(msgspec.Struct, frozen=True):
    """So many credits for so much."""

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
    """What a provider told us: a purchase was paid, or something else came of it."""

    # Of the telling: the same for every repetition.
    event: str
    checkout: str
    cents: int
    is_paid: bool = True


class PaymentProvider(Protocol):
    """Whoever takes the money."""

    async def checkout(self, checkout: Checkout) -> str:
        """Return where the user goes to pay."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> Payment:
        """Return what a webhook says; raises `PermissionDenied` if it is not the provider's own.

        Names of headers are in lower case."""
        ...


class FakeProvider:
    """A provider that takes no money: for tests, and for trying things out."""

    def __init__(
        self, secret: bytes, url: str = "https://pay.invalid", now: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._url = url
        self._now = now

    def __repr__(self) -> str:
        return f"FakeProvider(secret='***', url={self._url!r})"

    async def checkout(self, checkout: Checkout) -> str:
        """Return an address that nobody answers."""
        return f"{self._url}/checkout/{checkout.id}"

    def webhook(
        self, checkout: Checkout, *, event: str = "", is_paid: bool = True
    ) -> tuple[bytes, dict[str, str]]:
        """Return body and headers as the provider would send them once somebody has paid."""
        payment = Payment(event or new_id(), checkout.id, checkout.cents, is_paid)
        body = msgspec.json.encode(payment)
        at = str(int(self._now()))
        return body, {SIGNATURE: f"t={at},v1={self._sign(at, body)}"}

    def read(self, body: bytes, headers: Mapping[str, str]) -> Payment:
        """Return what a webhook says; raises `PermissionDenied` if it is not our own."""
        said = headers.get(SIGNATURE, "")
        at, _, signature = said.removeprefix("t=").partition(",v1=")
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
