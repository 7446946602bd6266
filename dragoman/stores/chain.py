"""The two hash chains, pure: every store links transfers and events of trust in the same way."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dragoman.stores.interface.ledger import ISSUED, USER, Leg, PostedTransfer, Transfer
from dragoman.stores.interface.trust import TrustEventRow, TrustLine


class AccountState(NamedTuple):
    """An account after a leg: its number, its balance, and what of that is reserved."""

    account: int
    balance: int
    held: int


def transfer_id(*parts: str | int) -> bytes:
    """Return the id of a transfer: the same for every repetition."""
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


def task_transfer_id(task: int, task_id: str, kind: str, n: int = 0) -> bytes:
    """Return the id of a transfer for a task. The task's number is part of it: callers choose ids,
    and two may choose the same."""
    return transfer_id(task, task_id, kind, n)


def grant_transfer(owner: str, grant: int, at: int) -> tuple[Transfer, Sequence[Leg]]:
    """Return the transfer that a new account begins with."""
    transfer = Transfer(transfer_id("grant", owner), "grant", at, memo="Initial credits")
    kind = "initial_grant"
    return transfer, (Leg(USER, owner, kind, grant), Leg(ISSUED, "", kind, -grant))


def transfer_hash(
    prior: bytes,
    number: int,
    transfer: Transfer,
    legs: Sequence[Leg],
    states: Sequence[AccountState],
) -> bytes:
    """Return the hash of a transfer: of the one before, of itself and of its entries."""
    entries = [[*leg, *state] for leg, state in zip(legs, states, strict=True)]
    content = [number, transfer.id.hex(), *transfer[1:], entries]
    return hashlib.sha256(prior + msgspec.json.encode(content)).digest()


def posted_hash(prior: bytes, posted: PostedTransfer) -> bytes:
    """Return the hash that a recorded transfer should have."""
    transfer = Transfer(*posted[1:7])
    legs = [Leg(*entry[:5]) for entry in posted.entries]
    states = [AccountState(*entry[5:]) for entry in posted.entries]
    return transfer_hash(prior, posted.number, transfer, legs, states)


def linked_events(last: int, prev: str, events: Iterable[TrustEventRow]) -> list[TrustLine]:
    """Return events with their numbers and hashes, after the last one that is recorded."""
    lines: list[TrustLine] = []
    for number, event in enumerate(events, last + 1):
        body = msgspec.json.encode(msgspec.structs.replace(event, number=number, prev=prev))
        prev = hashlib.sha256(body).hexdigest()
        lines.append(TrustLine(body, prev, event.agent, event.type, event.task, event.at))
    return lines
