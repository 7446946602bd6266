"""Applies effects of deeds that are not writes of tasks. See `stores.interface.effects`.

They are sealed at once: the transaction has the lock of the chains, so all transfers before it are
in its book, and what it decides on is exact.
"""

from collections.abc import Sequence

import msgspec

from dragoman.stores.chain import linked_events
from dragoman.stores.interface import effects as fx
from dragoman.stores.interface.ledger import USER
from dragoman.stores.interface.trust import NOTHING, TrustEventRow
from dragoman.stores.postgres.connections import Connection
from dragoman.stores.postgres.deeds import changed, storable
from dragoman.stores.postgres.ledger.book import Book
from dragoman.stores.postgres.ledger.rows import LEDGER, TRUST, order_columns
from dragoman.stores.postgres.ledger.sealing import close_book, open_book


async def apply(connection: Connection, effects: Sequence[fx.Effect]) -> None:
    """Apply effects in their order. Raises `StoreConflict` and `HoldRefused`, and what the server
    raises; then nothing of the transaction may stay."""
    await connection.execute(LEDGER["lock_chains"])
    if not moves_money(effects):
        await _apply(connection, effects, None)
        return
    book, _ = await open_book(connection, _users(effects))
    await _apply(connection, effects, book)
    await close_book(connection, book)


def moves_money(effects: Sequence[fx.Effect]) -> bool:
    """Tell whether any account is touched."""
    return any(isinstance(one, fx.Reserve | fx.OpenAccount | fx.Post) for one in effects)


def _users(effects: Sequence[fx.Effect]) -> set[str]:
    """Return whose accounts are touched."""
    owners: set[str] = set()
    for effect in effects:
        if isinstance(effect, fx.Reserve | fx.OpenAccount):
            owners.add(effect.owner)
        elif isinstance(effect, fx.Post):
            owners.update(leg.owner for leg in effect.legs if leg.account == USER)
    return owners


async def _apply(connection: Connection, effects: Sequence[fx.Effect], book: Book | None) -> None:
    for effect in effects:
        match effect:
            case fx.Reserve() | fx.Post() | fx.OpenAccount():
                assert book is not None, "there is a book for these"
                _move(book, effect)
            case fx.PutOrder(row):
                await connection.execute(LEDGER["put_orders"], _json([order_columns(row)]))
            case fx.SetOrder(before, after):
                both = (_json(order_columns(one)) for one in (after, before))
                await changed(connection, LEDGER["set_order"], *both)
            case fx.PutCheckout(checkout):
                columns = msgspec.structs.astuple(checkout)
                await connection.execute(LEDGER["put_checkout"], *columns)
            case fx.RecordPayment(event, checkout, at):
                await connection.execute(LEDGER["record_payment"], event, checkout, at)
            case fx.MarkPaid(checkout, at):
                await changed(connection, LEDGER["mark_paid"], at, checkout)
            case _:
                await _apply_trust(connection, effect)


def _move(book: Book, effect: fx.Reserve | fx.Post | fx.OpenAccount) -> None:
    match effect:
        case fx.Reserve(transfer, owner, amount, grant):
            book.reserve(transfer, owner, amount, grant)
        case fx.Post(transfer, legs, grant):
            # Before it is hashed.
            book.post(transfer._replace(memo=storable(transfer.memo)), legs, grant)
        case fx.OpenAccount(owner, grant, at):
            book.open(owner, grant, at)


async def _apply_trust(connection: Connection, effect: fx.Effect) -> None:
    match effect:
        case fx.AppendEvents(events):
            await _append_events(connection, events)
        case fx.AddDay(key, day):
            await connection.execute(TRUST["add_day"], *key, *day)
        case fx.AddPayer(requester):
            await connection.execute(TRUST["add_payer"], requester)
        case fx.SetObserved(orders):
            columns = ([one.task for one in orders], [one.charged for one in orders])
            await changed(connection, TRUST["set_observed"], *columns, rows=len(orders))
        case fx.PutRating(order, rating, comment, at, dispute):
            sides = (order.task, order.agent, order.requester.text)
            values = (*sides, rating, storable(comment), at, dispute)
            await changed(connection, TRUST["put_rating"], *values)
        case fx.PutDispute(order, reason, at):
            sides = (order.task, order.agent, order.requester.text)
            values = (*sides, storable(reason), at)
            await connection.execute(TRUST["put_dispute"], *values)
        case fx.DecideDispute(task, outcome, note, at):
            values = (outcome, storable(note), at, task)
            await changed(connection, TRUST["decide_dispute"], *values)
        case _:
            raise AssertionError(f"no effect: {effect!r}")


async def _append_events(connection: Connection, events: Sequence[TrustEventRow]) -> None:
    if not events:
        return
    last = await connection.fetchrow(TRUST["last_event"])
    number, prev = (last[0], last[1].hex()) if last else (0, NOTHING)
    rows = [
        (place, line.agent, line.type, line.task, line.at, line.body, bytes.fromhex(line.hash))
        for place, line in enumerate(linked_events(number, prev, events), number + 1)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    await connection.execute(TRUST["add_events"], *columns)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
