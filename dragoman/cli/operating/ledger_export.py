"""`dragoman ledger export`: every transfer with its entries, for programs and for auditors."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from dragoman.cli.failures import Failure
from dragoman.cli.gateway.store_place import StorePlace, looks_elsewhere
from dragoman.cli.grammar import command
from dragoman.cli.hints import look_at
from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.ledger import reading, transfer_item
from dragoman.cli.own_options import STORE, typed_option

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.stores.interface.ledger import LedgerStore, PostedTransfer
    from dragoman.stores.tools import Wait


# Transfers that are read at a time.
_PAGE = 1_000


class ExportFile(Protocol):
    """Where lines are written: a file, or what the command prints to."""

    def write(self, text: str, /) -> object:
        """Write a text."""
        ...


@command("export")
@looks_elsewhere
@typed_option(
    "--format",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    help="A transfer with its entries a line, or an entry a line.",
)
@typed_option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="<path>",
    help="Where to write; else to stdout.",
)
def export(run: Invocation, store: StorePlace, format: str, save: Path | None) -> None:
    """Write all transfers with their entries, in their order."""
    write = _write_csv if format == "csv" else _write_lines
    with reading(run, store) as (ledger, wait):
        found = _transfers(ledger, wait)
        if save is None:
            write(found, run.out)
            return
        try:
            # For its owner alone: it says who paid whom.
            save.touch(mode=0o600)
            with save.open("w", encoding="utf-8", newline="") as file:
                count = write(found, file)
        except OSError as error:
            raise Failure(STORE, f"{save}: {error.strerror or error}", hint=look_at(save)) from None
    if run.out.is_json:
        run.out.json({"path": str(save), "transfers": count})
    else:
        run.out.field("File", str(save))
        run.out.field("Transfers", str(count))


def _transfers(ledger: "LedgerStore", wait: "Wait") -> "Iterator[PostedTransfer]":
    last = 0
    while page := wait(ledger.transfers(last, _PAGE)):
        yield from page
        last = page[-1].number


def _write_lines(found: "Iterable[PostedTransfer]", file: ExportFile) -> int:
    import msgspec

    count = 0
    for posted in found:
        count += 1
        file.write(msgspec.json.encode(transfer_item(posted)).decode() + "\n")
    return count


def _write_csv(found: "Iterable[PostedTransfer]", file: ExportFile) -> int:
    import csv

    rows = csv.writer(file, lineterminator="\n")
    entry_names = ("account", "owner", "kind", "amount", "held", "balanceAfter", "heldAfter")
    names = ("position", "id", "time", "reference", "memo", "hash")
    rows.writerow((*names, "transfer", *entry_names))
    count = 0
    for posted in found:
        count += 1
        item = transfer_item(posted)
        about = [_harmless(item[name]) for name in (*names, "kind")]
        for entry in item["entries"]:
            rows.writerow((*about, *(_harmless(entry[name]) for name in entry_names)))
    return count


def _harmless(value: Any) -> Any:
    """Return a text that no spreadsheet takes for a formula."""
    is_formula = isinstance(value, str) and value[:1] in "=+@\t\r" and value != ""
    return f"'{value}" if is_formula else value
