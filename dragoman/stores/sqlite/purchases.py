"""Purchases of credits: begun by a user, paid when the payment provider says so, credited once."""

import apsw
import msgspec

from dragoman.stores.sqlite.journal import SOLD, USER, Leg, Transfer, post, touch, transfer_id
from dragoman.stores.sqlite.schema import run

_COLUMNS = "id, owner, package, credits, cents, made_at, paid_at"
_BEGIN = f"INSERT INTO checkouts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0)"
_FIND = f"SELECT {_COLUMNS} FROM checkouts WHERE id = ?"
_PAY = "UPDATE checkouts SET paid_at = ? WHERE id = ? AND paid_at = 0"
_SEEN = "INSERT INTO payment_events VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class Checkout(msgspec.Struct, frozen=True, gc=False):
    """A purchase. Credits are micro-credits, the price is in cents of the provider's currency."""

    id: str
    owner: str
    package: str
    credits: int
    cents: int
    made_at: int
    # 0: not yet.
    paid_at: int = 0


def begin(connection: apsw.Connection, checkout: Checkout) -> None:
    """Keep a purchase that is to be paid."""
    values = (checkout.id, checkout.owner, checkout.package, checkout.credits, checkout.cents)
    run(connection, _BEGIN, (*values, checkout.made_at))


def find(connection: apsw.Connection, id: str) -> Checkout | None:
    """Return a purchase."""
    rows = run(connection, _FIND, (id,))
    return Checkout(*rows[0]) if rows else None


def pay(connection: apsw.Connection, event: str, id: str, grant: int, at: int) -> bool:
    """Credit a purchase that was paid; tell whether this event did it. One that was seen before
    does nothing, and neither does another one for the same purchase."""
    run(connection, _SEEN, (event, id, at))
    if not connection.changes():
        return False
    run(connection, _PAY, (at, id))
    if not connection.changes():
        return False
    checkout = find(connection, id)
    assert checkout is not None, "it was paid a moment ago"
    touch(connection, checkout.owner, grant, at)
    memo = f"Package {checkout.package}"
    transfer = Transfer(transfer_id("purchase", id), "purchase", at, reference=id, memo=memo)
    legs = (
        Leg(USER, checkout.owner, "purchase", checkout.credits),
        Leg(SOLD, "", "purchase", -checkout.credits),
    )
    post(connection, transfer, legs)
    return True
