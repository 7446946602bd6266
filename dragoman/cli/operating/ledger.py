"""`dragoman ledger`: what accounts have, what happened to them, and whether the ledger is whole.

Reads the store, also while servers work on it, or with `--gateway` that of a gateway elsewhere.
Amounts are decimal text, in credits.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway.store_place import StorePlace, accounting_in, looks_elsewhere
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    budget,
    ending_in_order,
    instant,
    offset_of,
    show_page,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.stores.interface.ledger import (
        Balance,
        LedgerReport,
        LedgerStore,
        PostedTransfer,
        StatementLine,
    )
    from dragoman.stores.tools import Wait

BROKEN = "DRAGOMAN_ERR_LEDGER_BROKEN"
NOT_FOUND = "DRAGOMAN_ERR_NOT_FOUND"
_HASH = 64

ledger = Group(
    "ledger",
    help="Show the ledger, and verify that nothing in it was changed.",
    places={
        "balance": CommandPlace("operating.ledger:balance", "Show the balances of accounts."),
        "statement": CommandPlace(
            "operating.ledger:statement", "Show what happened to an account."
        ),
        "show": CommandPlace("operating.ledger:show", "Show a transfer, or those of a task."),
        "verify": CommandPlace(
            "operating.ledger:verify", "Recompute sums, balances and the chain."
        ),
        "export": CommandPlace("operating.ledger_export:export", "Write all entries to a file."),
    },
)
_OWNER = typed_option(
    "--owner",
    default=None,
    metavar="<owner>",
    help="Whose account, as key:ada or @tenant/key:ada; empty: the local user's.",
)


@contextmanager
def reading(run: Invocation, store: StorePlace) -> "Generator[tuple[LedgerStore, Wait]]":
    """Open the ledger of a store: all that a command shows of a file is of one moment."""
    with ending_in_order(), budget(run), accounting_in(run, store) as (accounting, wait):
        yield accounting.ledger, wait


@command("balance")
@looks_elsewhere
@_OWNER
@LIMIT
@PAGE_TOKEN
def balance(
    run: Invocation, store: StorePlace, owner: str | None, limit: int, page_token: str
) -> None:
    """Show what accounts have: all of them, or --owner's.

    All together are zero: what users have was issued or sold, and those accounts are negative.
    """
    offset = offset_of(page_token)
    with reading(run, store) as (ledger, wait):
        if owner is None:
            found = wait(ledger.balances(limit + 1, offset))
        else:
            one = wait(ledger.balance(owner))
            if one is None:
                raise Failure(NOT_FOUND, f"{owner}: has no account", hint="dragoman ledger balance")
            found = [("user", owner, one)]
    token = str(offset + limit) if len(found) > limit else ""
    items = [_account(*row) for row in found[:limit]]
    if run.out.is_table:
        for item in items:
            if item["account"] == "user" and not item["owner"]:
                item["owner"] = "(the local user)"
    show_page(run, items, token, lambda item: _fields(run, item), columns=_ACCOUNTS)


_ACCOUNTS = (
    Column("account", "account"),
    Column("owner", "owner"),
    Column("available", "available", "number"),
    Column("held", "held", "number"),
    Column("total", "total", "number"),
)


def _account(kind: str, owner: str, found: "Balance") -> dict[str, Any]:
    from dragoman.model.money import credits_text

    return {
        "account": kind,
        "owner": owner,
        "available": credits_text(found.available),
        "held": credits_text(found.held),
        "total": credits_text(found.total),
    }


@command("statement")
@looks_elsewhere
@_OWNER
@typed_option("--kind", default="", metavar="<kind>", help="Only lines of this kind.")
@typed_option("--holds", switch=True, help="Also what was reserved and let go.")
@LIMIT
@PAGE_TOKEN
def statement(
    run: Invocation,
    store: StorePlace,
    owner: str | None,
    kind: str,
    holds: bool,
    limit: int,
    page_token: str,
) -> None:
    """Show what happened to an account, the latest first; without --owner the local user's."""
    from dragoman.gateway.money.ledger import HOLDS, KINDS

    known = (*KINDS, *HOLDS)
    if kind and kind not in known:
        raise usage(f"--kind must be one of {', '.join(known)}")
    kinds = (kind,) if kind else known if holds else KINDS
    before = offset_of(page_token)
    with reading(run, store) as (ledger, wait):
        found = wait(ledger.statement(owner or "", kinds, limit=limit + 1, before=before)).lines
    page = found[:limit]
    token = str(page[-1].number) if len(found) > limit else ""
    show_page(
        run,
        [_line(line) for line in page],
        token,
        lambda item: _fields(run, item),
        columns=STATEMENT,
        empty="nothing was paid, earned or bought by this account",
    )


STATEMENT = (
    Column("age", "time", "age"),
    Column("kind", "kind"),
    Column("amount", "amount", "number"),
    Column("held", "held", "number"),
    Column("balance", "balanceAfter", "number"),
    Column("memo", "memo"),
    Column("reference", "reference", "id"),
)


def _line(line: "StatementLine") -> dict[str, Any]:
    from dragoman.model.money import credits_text

    return {
        "time": instant(line.at),
        "kind": line.kind,
        "amount": credits_text(line.amount),
        "held": credits_text(line.held),
        "balanceAfter": credits_text(line.balance),
        "reference": line.reference,
        "memo": line.memo,
        "transfer": line.transfer.hex(),
    } | ({"escrow": line.escrow} if line.escrow else {})


def _fields(run: Invocation, item: dict[str, Any]) -> None:
    for name, value in item.items():
        # An owner without a name is the local user.
        if value or name == "owner":
            label = "Balance-After" if name == "balanceAfter" else name.capitalize()
            run.out.field(label, str(value))


@command("show")
@click.argument("id", metavar="ID", help="A transfer's id or position, or the id of a task.")
@looks_elsewhere
def show(run: Invocation, id: str, store: StorePlace) -> None:
    """Show a transfer by its id or its position, or all transfers of a task by the task's id."""
    with reading(run, store) as (ledger, wait):
        found = wait(_transfers_of(ledger, id))
    if not found:
        raise Failure(
            NOT_FOUND,
            f"{id}: there is no such transfer, and no task that cost anything",
            hint="dragoman ledger statement",
        )
    items = [transfer_item(posted) for posted in found]
    show_page(run, items, "", lambda item: _show(run, item))


async def _transfers_of(ledger: "LedgerStore", id: str) -> "list[PostedTransfer]":
    from dragoman.stores.chain import task_transfer_id

    one = None
    if len(id) == _HASH and not set(id) - set("0123456789abcdef"):
        one = await ledger.transfer(bytes.fromhex(id))
    elif id.isdecimal() and len(id) < 19:
        page = await ledger.transfers(int(id) - 1, 1)
        one = next((posted for posted in page if posted.number == int(id)), None)
    if one is not None:
        return [one]
    found: list[PostedTransfer] = []
    for facts in await ledger.facts(id):
        holds = [("hold", n) for n in range(facts.order.holds)]
        for kind, n in (*holds, ("settle", 0), ("refund", 0)):
            made = await ledger.transfer(task_transfer_id(facts.order.task, id, kind, n))
            found += [made] if made else []
    return found


def transfer_item(posted: "PostedTransfer") -> dict[str, Any]:
    """Return a transfer as programs see it."""
    from dragoman.model.money import credits_text

    return {
        "id": posted.id.hex(),
        "position": posted.number,
        "kind": posted.kind,
        "time": instant(posted.at),
        "reference": posted.reference,
        "memo": posted.memo,
        "hash": posted.hash.hex(),
        "entries": [
            {
                "account": entry.account,
                "owner": entry.owner,
                "kind": entry.kind,
                "amount": credits_text(entry.amount),
                "held": credits_text(entry.held),
                "balanceAfter": credits_text(entry.balance),
                "heldAfter": credits_text(entry.reserved),
            }
            for entry in posted.entries
        ],
    }


def _show(run: Invocation, item: dict[str, Any]) -> None:
    _fields(run, {name: value for name, value in item.items() if name != "entries"})
    for entry in item["entries"]:
        words = f"{entry['account']} {entry['owner']}".strip()
        held = f", held {entry['held']}" if entry["held"] != "0.00" else ""
        run.out.field("Entry", f"{words}: {entry['kind']} {entry['amount']}{held}")


@command("verify")
@looks_elsewhere
@typed_option(
    "--expect",
    default="",
    metavar="<hash>",
    help="A head noted down before: it has to be in the ledger.",
)
def verify(run: Invocation, store: StorePlace, expect: str) -> None:
    """Recompute every sum, every balance and the chain, and compare tasks with transfers.

    Also while servers work on the file: what is checked is one moment of it. A ledger that lost its
    end, or was written anew from the start, is whole by itself: note down the head that is printed
    here, where a writer of the file cannot change it, and name it by --expect the next time.
    """
    if expect and (len(expect) != _HASH or set(expect) - set("0123456789abcdef")):
        raise usage("--expect must be a head: 64 digits and letters from a to f")
    with reading(run, store) as (ledger, wait):
        report = wait(ledger.verify(expect))
    if report.is_whole:
        if run.out.is_json:
            run.out.json(_document(report))
        else:
            _summary(run, report)
            run.out.field("Result", "ok")
        return
    if not run.out.is_json:
        _summary(run, report)
        for text in report.differences:
            run.out.field("Difference", text)
    raise Failure(
        BROKEN,
        f"{len(report.differences)} differences, the first: {report.differences[0]}",
        hint="dragoman backup",
    )


def _document(report: "LedgerReport") -> dict[str, Any]:
    from dragoman.model.money import credits_text

    return {
        "result": "ok",
        "transfers": report.transfers,
        "entries": report.entries,
        "orders": report.orders,
        "charged": credits_text(report.charged),
        "head": report.head,
        "differences": report.differences,
    }


def _summary(run: Invocation, report: "LedgerReport") -> None:
    for name in ("transfers", "entries", "orders", "charged", "head"):
        run.out.field(name.capitalize(), str(_document(report)[name]))
