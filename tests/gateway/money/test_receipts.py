"""Receipts: signed, checked by others' code, and tied to the chain of the ledger."""

import msgspec
import pytest
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import OKPKey

from dragoman.errors import TaskNotFound, UnsupportedOperation
from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.money.receipts import ReceiptKey, read_receipt
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.security import base64url
from dragoman.stores.interface import Store
from tests.gateway.money.order_stores import OrderingStore, begin, done, end


@pytest.fixture
def ledger(place: OrderingStore) -> Ledger:
    return place.ledger(issuer="https://gateway.example", now=lambda: 3.0)


async def test_a_receipt_says_what_was_done_and_what_it_cost(
    ledger: Ledger, place: OrderingStore, store: Store
) -> None:
    await done(store, "t")
    receipt = await ledger.receipt(TaskReference("t"), owner=Principal.read("alice"))
    said = read_receipt(receipt, await ledger.receipt_keys())
    chain = await place.accounting.ledger.transfers(0, 100)
    (settled,) = [one for one in chain if one.kind == "capture"]
    before = chain[settled.number - 2]
    assert said == {
        "iss": "https://gateway.example",
        "iat": 3,
        "taskId": "t",
        "agentId": "a1",
        "taskNumber": (await place.order("t")).task,
        "requester": "alice",
        "payee": "bob",
        "skill": "",
        "state": "TASK_STATE_COMPLETED",
        "beganAt": "1970-01-01T00:00:02.000Z",
        "endedAt": "1970-01-01T00:00:02.000Z",
        "price": "10.00",
        "charged": "10.00",
        "fee": "0.50",
        "earning": "9.50",
        "ledger": {
            "transfer": settled.id.hex(),
            "position": settled.number,
            "prior": before.hash.hex(),
            "hash": settled.hash.hex(),
        },
    }


async def test_others_can_check_a_receipt_by_the_published_key(
    ledger: Ledger, store: Store
) -> None:
    await done(store, "t")
    receipt = await ledger.receipt(TaskReference("t"), owner=Principal.read("bob"))
    (key,) = await ledger.receipt_keys()
    assert "d" not in key
    public = OKPKey.import_key({**key})
    assert public.thumbprint() == key["kid"]
    # The name of RFC 8037, which every library knows; RFC 9864 has a later one.
    with pytest.warns(SecurityWarning):
        found = jws.deserialize_compact(receipt, public, algorithms=["EdDSA"])
    assert found.headers()["kid"] == key["kid"]
    assert msgspec.json.decode(found.payload)["taskId"] == "t"


async def test_a_task_that_cost_nothing_has_a_receipt_without_a_place_in_the_ledger(
    ledger: Ledger, store: Store
) -> None:
    await done(store, "t", price=0)
    said = read_receipt(
        await ledger.receipt(TaskReference("t"), owner=Principal.read("alice")),
        await ledger.receipt_keys(),
    )
    assert "ledger" not in said and said["charged"] == "0.00"


async def test_receipts_are_for_both_sides_and_operators_once_the_task_has_ended(
    ledger: Ledger, store: Store
) -> None:
    await begin(store, "t")
    with pytest.raises(UnsupportedOperation, match="has not ended"):
        await ledger.receipt(TaskReference("t"), owner=Principal.read("alice"))
    await end(store, "t", TaskState.CANCELED)
    for owner, is_operator in (("alice", False), ("bob", False), ("root", True)):
        receipt = await ledger.receipt(
            TaskReference("t"), owner=Principal.read(owner), is_operator=is_operator
        )
        said = read_receipt(receipt, await ledger.receipt_keys())
        assert (said["state"], said["charged"]) == ("TASK_STATE_CANCELED", "0.00")
    for owner in ("carol", ""):
        with pytest.raises(TaskNotFound):
            await ledger.receipt(TaskReference("t"), owner=Principal.read(owner))
    with pytest.raises(TaskNotFound):
        await ledger.receipt(TaskReference("nothing"), owner=Principal.read("alice"))


def test_the_key_is_the_stores_own_and_shows_nothing_secret() -> None:
    one, same, other = ReceiptKey(b"secret"), ReceiptKey(b"secret"), ReceiptKey(b"other")
    assert one.public == same.public != other.public
    assert repr(one) == f"ReceiptKey({one.kid!r})"


def test_what_was_changed_or_signed_by_others_is_no_receipt() -> None:
    key, other = ReceiptKey(b"secret"), ReceiptKey(b"other")
    receipt = key.sign({"taskId": "t"})
    assert read_receipt(receipt, [other.public, key.public]) == {"taskId": "t"}
    head, body, signature = receipt.split(".")
    forged = base64url.encode(b'{"taskId":"u"}')
    none = base64url.encode(b'{"alg":"none"}')
    bad = [
        f"{head}.{forged}.{signature}",
        f"{head}.{body}.{base64url.encode(bytes(64))}",
        f"{none}.{body}.",
        f"{head}.{body}",
        "",
        "a.b.c",
        f"{base64url.encode(b'[]')}.{body}.{signature}",
    ]
    for text in bad:
        with pytest.raises(ValueError, match="receipt"):
            read_receipt(text, [key.public])
    with pytest.raises(ValueError, match="no key that is known"):
        read_receipt(receipt, [{**other.public, "kid": key.kid}])
