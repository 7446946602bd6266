"""Applies effects to a file, inside the caller's transaction. See `stores.interface.effects`."""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from dragoman.errors import HoldRefused, StoreConflict
from dragoman.stores.chain import AccountState, grant_transfer, linked_events, transfer_hash
from dragoman.stores.interface import effects as fx
from dragoman.stores.interface.effects import CHANGED
from dragoman.stores.interface.ledger import GENESIS, PLACE_BITS, USER, Leg, Transfer
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.interface.trust import NOTHING, TrustEventRow
from dragoman.stores.sqlite.ledger.rows import LEDGER, TRUST, order_values
from dragoman.stores.sqlite.schema import inserter, run


def apply(connection: apsw.Connection, effects: Sequence[fx.Effect]) -> None:
    """Apply effects in their order. Raises `StoreConflict`, `HoldRefused` and, where the file
    itself refuses, `apsw.ConstraintError`; then nothing of the transaction may stay."""
    for effect in effects:
        # The four of tasks' own writes come first.
        match effect:
            case fx.SetOrder(before, after):
                _change(connection, LEDGER["set_order"], _order_change(before, after))
            case fx.PutOrder(row):
                run(connection, LEDGER["put_order"], order_values(row))
            case fx.Reserve():
                _reserve(connection, effect)
            case fx.Post():
                _post(connection, effect)
            case fx.OpenAccount(owner, grant, at):
                _open(connection, owner, grant, at)
            case fx.PutCheckout(checkout):
                run(connection, LEDGER["put_checkout"], msgspec.structs.astuple(checkout))
            case fx.RecordPayment(event, checkout, at):
                run(connection, LEDGER["record_payment"], (event, checkout, at))
            case fx.MarkPaid(checkout, at):
                _change(connection, LEDGER["mark_paid"], (at, checkout))
            case fx.AppendEvents(events):
                _append_events(connection, events)
            case fx.AddDay((agent, requester, is_own, number), day):
                values = (agent, requester, int(is_own), number, *day)
                run(connection, TRUST["add_day"], values)
            case fx.AddPayer(requester):
                run(connection, TRUST["add_payer"], (requester,))
            case fx.SetObserved(orders):
                expected = msgspec.json.encode([(one.task, one.charged) for one in orders])
                _change(connection, TRUST["set_observed"], (expected.decode(),), len(orders))
            case fx.PutRating(order, rating, comment, at, dispute):
                sides = (order.task, order.agent, order.requester.text)
                values = (*sides, rating, comment, at, order.task, dispute)
                _change(connection, TRUST["put_rating"], values)
            case fx.PutDispute(order, reason, at):
                values = (order.task, order.agent, order.requester.text, reason, at)
                run(connection, TRUST["put_dispute"], values)
            case fx.DecideDispute(task, outcome, note, at):
                _change(connection, TRUST["decide_dispute"], (outcome, note, at, task))


def _change(connection: apsw.Connection, sql: str, values: Sequence[Any], rows: int = 1) -> None:
    """Run a statement that has to change so many rows."""
    run(connection, sql, values)
    if connection.changes() != rows:
        raise StoreConflict(CHANGED)


def _order_change(before: OrderRow, after: OrderRow) -> Sequence[Any]:
    return (
        *order_values(after),
        before.agent,
        before.held,
        before.charged,
        before.holds,
        before.ended_at,
        before.is_observed,
        before.escrow,
        before.release_at,
    )


def _reserve(connection: apsw.Connection, effect: fx.Reserve) -> None:
    values = (effect.amount, effect.owner)
    rows = run(connection, LEDGER["reserve"], values)
    if not rows and _open(connection, effect.owner, effect.grant, effect.transfer.at):
        rows = run(connection, LEDGER["reserve"], values)
    if not rows:
        ((available,),) = run(connection, LEDGER["available"], (effect.owner,))
        raise HoldRefused(balance=available, needed=effect.amount)
    leg = Leg(USER, effect.owner, "hold", held=effect.amount)
    _record(connection, effect.transfer, [leg], [AccountState(*rows[0])])


def _post(connection: apsw.Connection, effect: fx.Post) -> None:
    transfer, legs = effect.transfer, effect.legs
    states: list[AccountState] = []
    for place, leg in enumerate(legs):
        if place and not (leg.amount or leg.held) and leg[:2] == legs[place - 1][:2]:
            # Moves nothing: a line about the leg before it.
            states.append(states[-1])
            continue
        values = (leg.amount, leg.held, leg.account, leg.owner)
        rows = run(connection, LEDGER["move"], values)
        if not rows:
            _open(connection, leg.owner, effect.grant, transfer.at)
            rows = run(connection, LEDGER["move"], values)
        states.append(AccountState(*rows[0]))
    _record(connection, transfer, legs, states)


def _open(connection: apsw.Connection, owner: str, grant: int, at: int) -> bool:
    """Open an account with the grant; tell whether there was none."""
    if run(connection, LEDGER["available"], (owner,)):
        return False
    run(connection, LEDGER["open_account"], (owner,))
    _post(connection, fx.Post(*grant_transfer(owner, grant, at)))
    return True


def _record(
    connection: apsw.Connection,
    transfer: Transfer,
    legs: Sequence[Leg],
    states: Sequence[AccountState],
) -> None:
    assert not sum(leg.amount for leg in legs), "what one account loses another one gets"
    assert len(legs) < 1 << PLACE_BITS
    last = run(connection, LEDGER["last_transfer"])
    number, at, prior = last[0] if last else (0, 0, GENESIS)
    number += 1
    # The ledger's own time: it never goes back, whatever a clock does.
    transfer = transfer._replace(at=max(at, transfer.at))
    digest = transfer_hash(prior, number, transfer, legs, states)
    id, kind, at, task, reference, memo = transfer
    run(connection, LEDGER["add_transfer"], (number, id, kind, task, reference, memo, at, digest))
    entries = [
        (number << PLACE_BITS | place, state.account, leg.kind, *leg[3:], *state[1:])
        for place, (leg, state) in enumerate(zip(legs, states, strict=True))
    ]
    inserter(connection)(LEDGER["add_entries"], entries)


def _append_events(connection: apsw.Connection, events: Sequence[TrustEventRow]) -> None:
    last = run(connection, TRUST["last_event"])
    number, prev = (last[0][0], last[0][1].hex()) if last else (0, NOTHING)
    rows = [
        (place, line.agent, line.type, line.task, line.at, line.body, bytes.fromhex(line.hash))
        for place, line in enumerate(linked_events(number, prev, events), number + 1)
    ]
    inserter(connection)(TRUST["add_events"], rows)
