"""Accounts and transfers between them: double entry, written once and never changed.

A transfer is known by a hash of what it is for, so that its repetition is refused by the file
itself. Each is chained to the one before it, with all that it did to accounts, so that an edit of
the past is found by whoever recomputes the chain. Everything here happens within the transaction
of whoever calls.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import apsw
import msgspec

from dragoman.errors import HoldRefused
from dragoman.stores.sqlite.schema import run

# Kinds of accounts. The last three are the house's own and have no owner.
USER = "user"
FEES = "fees"
ISSUED = "issued"
SOLD = "sold"
# Before the first transfer.
GENESIS = bytes(32)
# Entries of one transfer, at most.
PLACE_BITS = 3
_LAST = "SELECT number, at, hash FROM transfers ORDER BY number DESC LIMIT 1"
_ADD = "INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ENTRY = "(?, ?, ?, ?, ?, ?, ?)"
_MOVE = """
UPDATE accounts SET balance = balance + ?, held = held + ?
WHERE kind = ? AND owner = ? RETURNING number, balance, held
"""
# Who holds more than there is matches nothing.
RESERVE = """
UPDATE accounts SET held = held + ?1
WHERE kind = 'user' AND owner = ?2 AND balance - held >= ?1
RETURNING number, balance, held
"""
_FREE = "SELECT balance - held FROM accounts WHERE kind = 'user' AND owner = ?"
_OPEN = "INSERT INTO accounts (kind, owner, balance, held) VALUES ('user', ?, 0, 0)"


class Leg(NamedTuple):
    """What a transfer does to one account."""

    account: str
    owner: str
    # What its owner calls it.
    kind: str
    amount: int = 0
    held: int = 0


class Transfer(NamedTuple):
    """What a transfer is for."""

    id: bytes
    kind: str
    at: int
    task: int = 0
    reference: str = ""
    memo: str = ""


class Moved(NamedTuple):
    """An account after a leg."""

    account: int
    balance: int
    held: int


def transfer_id(*parts: str | int) -> bytes:
    """Return the id of a transfer: the same for whoever tries it again."""
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


def task_transfer(task: int, task_id: str, kind: str, n: int = 0) -> bytes:
    """Return the id of a transfer for a task. Its number is in it too: a caller may choose the
    task's id, and another one the same."""
    return transfer_id(task, task_id, kind, n)


def link(
    prior: bytes, number: int, transfer: Transfer, legs: Sequence[Leg], moved: Sequence[Moved]
) -> bytes:
    """Return the hash of a transfer: of the one before, of itself and of its entries."""
    entries = [[*leg, *after] for leg, after in zip(legs, moved, strict=True)]
    content = [number, transfer.id.hex(), *transfer[1:], entries]
    return hashlib.sha256(prior + msgspec.json.encode(content)).digest()


def post(
    connection: apsw.Connection, transfer: Transfer, legs: Sequence[Leg], grant: int = 0
) -> None:
    """Make a transfer; whoever it touches first gets an account with the grant. Raises
    `apsw.ConstraintError` if it was made before, or if it would take more than there is."""
    moved: list[Moved] = []
    for place, leg in enumerate(legs):
        if place and not (leg.amount or leg.held) and leg[:2] == legs[place - 1][:2]:
            # Says something of the leg before it, and moves nothing.
            moved.append(moved[-1])
            continue
        values = (leg.amount, leg.held, leg.account, leg.owner)
        rows = run(connection, _MOVE, values)
        if not rows:
            touch(connection, leg.owner, grant, transfer.at)
            rows = run(connection, _MOVE, values)
        moved.append(Moved(*rows[0]))
    _write(connection, transfer, legs, moved)


def hold(
    connection: apsw.Connection, transfer: Transfer, owner: str, amount: int, grant: int = 0
) -> None:
    """Reserve something of what is free, in an account with the grant if there is none yet; raises
    `HoldRefused`, and then nothing of the write may stay."""
    rows = run(connection, RESERVE, (amount, owner))
    if not rows and touch(connection, owner, grant, transfer.at):
        rows = run(connection, RESERVE, (amount, owner))
    if not rows:
        raise HoldRefused(balance=free(connection, owner), needed=amount)
    _write(connection, transfer, [Leg(USER, owner, "hold", held=amount)], [Moved(*rows[0])])


def free(connection: apsw.Connection, owner: str) -> int:
    """Return what somebody can spend."""
    rows = run(connection, _FREE, (owner,))
    return int(rows[0][0]) if rows else 0


def touch(connection: apsw.Connection, owner: str, grant: int, at: int) -> bool:
    """Open somebody's account with what everyone gets; tell whether there was none."""
    if run(connection, _FREE, (owner,)):
        return False
    run(connection, _OPEN, (owner,))
    transfer = Transfer(transfer_id("grant", owner), "grant", at, memo="Initial credits")
    legs = (Leg(USER, owner, "initial_grant", grant), Leg(ISSUED, "", "initial_grant", -grant))
    post(connection, transfer, legs)
    return True


def _write(
    connection: apsw.Connection, transfer: Transfer, legs: Sequence[Leg], moved: Sequence[Moved]
) -> None:
    assert not sum(leg.amount for leg in legs), "what one account loses another one gets"
    assert len(legs) < 1 << PLACE_BITS
    last = run(connection, _LAST)
    number, at, prior = last[0] if last else (0, 0, GENESIS)
    number += 1
    # The ledger's own time: it never goes back, whatever a clock does.
    transfer = transfer._replace(at=max(at, transfer.at))
    digest = link(prior, number, transfer, legs, moved)
    run(connection, _ADD, (number, *_columns(transfer), digest))
    rows: list[str | int] = []
    for place, (leg, after) in enumerate(zip(legs, moved, strict=True)):
        rows += (number << PLACE_BITS | place, after.account, leg.kind, leg.amount, leg.held)
        rows += (after.balance, after.held)
    run(connection, f"INSERT INTO entries VALUES {', '.join([_ENTRY] * len(legs))}", rows)


def _columns(transfer: Transfer) -> tuple[bytes | str | int, ...]:
    return (
        transfer.id,
        transfer.kind,
        transfer.task,
        transfer.reference,
        transfer.memo,
        transfer.at,
    )
