"""`dragoman ledger`: who has what, what happened to it, and whether the books are whole.

Reads the store's file, also while servers work on it. Amounts are decimal text, in credits.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import (
    LIMIT,
    PAGE_TOKEN,
    STORE_OPTION,
    budget,
    ending_in_order,
    file_of,
    instant,
    own,
    show_page,
)

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    import apsw

    from dragoman.stores.sqlite.accounts import Balance, Line, Posted
    from dragoman.stores.sqlite.reconciling import Report

BROKEN = "DRAGOMAN_ERR_LEDGER_BROKEN"
NOT_FOUND = "DRAGOMAN_ERR_NOT_FOUND"
# The first schema whose ledger can be read as it is here.
_SCHEMA = 9
_HASH = 64

ledger = Group(
    "ledger",
    help="Look into the ledger, and verify that nothing in it was changed.",
    places={
        "balance": Place("dragoman.cli.ledger:balance", "Show what accounts have."),
        "statement": Place("dragoman.cli.ledger:statement", "Show what happened to an account."),
        "show": Place("dragoman.cli.ledger:show", "Show a transfer, or those of a task."),
        "verify": Place("dragoman.cli.ledger:verify", "Recompute sums, balances and the chain."),
        "export": Place("dragoman.cli.ledger_export:export", "Write all entries to a file."),
    },
)
_OWNER = own(
    "--owner",
    default=None,
    in_environment=False,
    metavar="<owner>",
    help="Whose account, as key:ada or @tenant/key:ada; empty: the local user's.",
)


@contextmanager
def reading(run: Invocation, store: str | None) -> "Generator[apsw.Connection]":
    from dragoman.errors import ConfigError
    from dragoman.stores.sqlite.inspection import open_to_read
    from dragoman.stores.sqlite.schema import run as query

    path = file_of(run, store).store_path()
    connection = open_to_read(path)
    try:
        ((schema,),) = query(connection, "PRAGMA user_version")
        if schema < _SCHEMA:
            raise ConfigError(f"{path}: has no ledger yet; a server of this release adds one")
        with ending_in_order(), budget(run):
            yield connection
    finally:
        connection.close()


@command("balance")
@STORE_OPTION
@_OWNER
@LIMIT
@PAGE_TOKEN
def balance(
    run: Invocation, store: str | None, owner: str | None, limit: int, page_token: str
) -> None:
    """Show what accounts have: all of them, or --owner's.

    All together are zero: what users have was issued or sold, and those accounts are negative.
    """
    from dragoman.stores.sqlite import accounts

    if page_token and not page_token.isdecimal():
        raise usage("--page-token is not one of `dragoman ledger balance`")
    offset = int(page_token or 0)
    with reading(run, store) as connection:
        if owner is None:
            found = accounts.balances(connection, limit + 1, offset)
        else:
            one = accounts.balance(connection, owner)
            if one is None:
                raise Failure(NOT_FOUND, f"{owner}: has no account", hint="dragoman ledger balance")
            found = [(accounts.USER, owner, one)]
    token = str(offset + limit) if len(found) > limit else ""
    items = [_account(*row) for row in found[:limit]]
    show_page(run, items, token, lambda item: _fields(run, item))


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
@STORE_OPTION
@_OWNER
@own("--kind", default="", in_environment=False, metavar="<kind>", help="Only lines of this kind.")
@own("--holds", switch=True, in_environment=False, help="Also what was reserved and let go.")
@LIMIT
@PAGE_TOKEN
def statement(
    run: Invocation,
    store: str | None,
    owner: str | None,
    kind: str,
    holds: bool,
    limit: int,
    page_token: str,
) -> None:
    """Show what happened to an account, the latest first; without --owner the local user's."""
    from dragoman.gateway.ledger import HOLDS, KINDS
    from dragoman.stores.sqlite import accounts

    known = (*KINDS, *HOLDS)
    if kind and kind not in known:
        raise usage(f"--kind must be one of {', '.join(known)}")
    if page_token and not page_token.isdecimal():
        raise usage("--page-token is not one of `dragoman ledger statement`")
    kinds = (kind,) if kind else known if holds else KINDS
    with reading(run, store) as connection:
        found = accounts.statement(
            connection, owner or "", kinds, limit=limit + 1, before=int(page_token or 0)
        )
    page = found[:limit]
    token = str(page[-1].number) if len(found) > limit else ""
    show_page(run, [_line(line) for line in page], token, lambda item: _fields(run, item))


def _line(line: "Line") -> dict[str, Any]:
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
@STORE_OPTION
def show(run: Invocation, id: str, store: str | None) -> None:
    """Show a transfer by its id or its position, or all transfers of a task by the task's id."""
    with reading(run, store) as connection:
        found = _found(connection, id)
    if not found:
        raise Failure(
            NOT_FOUND,
            f"{id}: there is no such transfer, and no task that cost anything",
            hint="dragoman ledger statement",
        )
    from dragoman.cli.ledger_export import transfer_item

    items = [transfer_item(posted) for posted in found]
    show_page(run, items, "", lambda item: _show(run, item))


def _found(connection: "apsw.Connection", id: str) -> "list[Posted]":
    from dragoman.stores.sqlite import accounts
    from dragoman.stores.sqlite.errands import errands_of
    from dragoman.stores.sqlite.journal import task_transfer

    if len(id) == _HASH and not set(id) - set("0123456789abcdef"):
        one = accounts.find(connection, bytes.fromhex(id))
    elif id.isdecimal() and len(id) < 19:
        one = accounts.transfer(connection, int(id))
    else:
        one = None
    if one is not None:
        return [one]
    found: list[Posted] = []
    for errand in errands_of(connection, id):
        kinds = [("hold", n) for n in range(errand.holds)]
        for kind, n in (*kinds, ("settle", 0), ("refund", 0)):
            made = accounts.find(connection, task_transfer(errand.task, id, kind, n))
            found += [made] if made else []
    return found


def _show(run: Invocation, item: dict[str, Any]) -> None:
    _fields(run, {name: value for name, value in item.items() if name != "entries"})
    for entry in item["entries"]:
        words = f"{entry['account']} {entry['owner']}".strip()
        held = f", held {entry['held']}" if entry["held"] != "0.00" else ""
        run.out.field("Entry", f"{words}: {entry['kind']} {entry['amount']}{held}")


@command("verify")
@STORE_OPTION
@own(
    "--expect",
    default="",
    in_environment=False,
    metavar="<hash>",
    help="A head noted down before: it has to be in the ledger.",
)
def verify(run: Invocation, store: str | None, expect: str) -> None:
    """Recompute every sum, every balance and the chain, and hold tasks against transfers.

    Also while servers work on the file: what is checked is one moment of it. A ledger that lost its
    end, or was written anew from the start, is whole by itself: note down the head that is printed
    here, where whoever may write the file may not, and name it by --expect the next time.
    """
    from dragoman.stores.sqlite import reconciling

    if expect and (len(expect) != _HASH or set(expect) - set("0123456789abcdef")):
        raise usage("--expect must be a head: 64 digits and letters from a to f")
    with reading(run, store) as connection:
        report = reconciling.verify(connection, expect)
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


def _document(report: "Report") -> dict[str, Any]:
    from dragoman.model.money import credits_text

    return {
        "result": "ok",
        "transfers": report.transfers,
        "entries": report.entries,
        "errands": report.errands,
        "charged": credits_text(report.charged),
        "head": report.head,
        "differences": report.differences,
    }


def _summary(run: Invocation, report: "Report") -> None:
    for name in ("transfers", "entries", "errands", "charged", "head"):
        run.out.field(name.capitalize(), str(_document(report)[name]))
