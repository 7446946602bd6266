"""`dragoman proof`: hurt real servers on purpose and print what was found.

A proof is a row in the table below: a module with a `run`, and the options that become its
arguments. Modules are loaded when their proof is run.
"""

import importlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dragoman.errors import ConfigError

_SEEDS = 1 << 31
# Between two lines of progress where there is no terminal.
_SELDOM = 10.0


class Proof(NamedTuple):
    """One proof: `dragoman.proof.<module>.run` takes the options, a seed and `progress`."""

    about: str
    options: Sequence[click.Option] = ()
    # Whether the probes of `dragoman.proof.peer` say something beside it.
    compares: bool = False
    module: str = ""
    # How its result reads as rows, if it does not say so itself.
    rows: Callable[[Any], Any] | None = None


def _count(name: str, default: int, about: str) -> click.Option:
    return click.Option(
        [f"--{name}"], type=click.IntRange(1), default=default, show_default=True, help=about
    )


def _power_cuts(result: Any) -> Any:
    from dragoman.proof.harness import Row

    cuts = f"of {result.images:,} images"
    return [
        Row(
            "Power cuts that lost an acknowledged write",
            f"{result.lost} {cuts}",
            not result.lost,
            result.bound,
        ),
        Row(
            "Power cuts that damaged the file",
            f"{result.corrupt} {cuts}",
            not result.corrupt,
            result.bound,
        ),
    ]


_PROCESSES = "Servers that share the store."

PROOFS: dict[str, Proof] = {
    "crash": Proof(
        "Kill servers under load; nothing acknowledged is lost, hangs, changes or doubles.",
        [_count("kills", 100, "How often to kill."), _count("processes", 1, _PROCESSES)],
        compares=True,
    ),
    "powercut": Proof(
        "Cut the power at many moments of a recorded run; the file keeps what it promised.",
        [
            _count("images", 20_000, "Disks after a cut to look at."),
            click.Option(
                ["--synchronous"],
                type=click.Choice(["full", "normal", "off"]),
                default="full",
                show_default=True,
                help="The setting of SQLite; anything but full is there to fail.",
            ),
        ],
        rows=_power_cuts,
    ),
    "resume": Proof(
        "Cut streams at random and go on by cursor; no event is missing or doubled.",
        [_count("disconnects", 5000, "How often to cut."), _count("processes", 2, _PROCESSES)],
        compares=True,
    ),
    "idempotency": Proof(
        "Send one message many times at once; there is one task and one answer.",
        [_count("sends", 100, "How often to send."), _count("processes", 2, _PROCESSES)],
        compares=True,
    ),
    "fencing": Proof(
        "Freeze workers past their lease; what they try to write afterwards is refused.",
        [_count("pauses", 20, "How often to freeze.")],
    ),
    "push": Proof(
        "Receivers that fail in every way; each event arrives, or is visibly dead.",
        [
            _count("receivers", 40, "Receivers that fail."),
            _count("restarts", 5, "How often the sender is ended without a word."),
        ],
    ),
    "slow-reader": Proof(
        "Readers that never read; the task and the memory do not notice.",
        [_count("readers", 1000, "Sockets that never read.")],
        compares=True,
    ),
    "drain": Proof(
        "Stop servers under load; streams end with a cursor, nothing is lost.",
        [_count("restarts", 5, "How often to stop."), _count("processes", 2, _PROCESSES)],
    ),
    "sabotage": Proof("Remove each guard in turn; a check has to notice."),
}


class ProgressLine:
    """One line that is written over on a terminal; a line now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown_at = 0.0

    def __call__(self, text: str | int, total: int | None = None) -> None:
        """Say how far it is: in words, or as a count out of a total."""
        if total is not None:
            text = f"{text:,} of {total:,}"
        text = str(text)
        if self._is_terminal:
            click.echo(f"\r\033[K{text[:110]}", nl=False, err=True)
        elif time.monotonic() - self._shown_at > _SELDOM:
            self._shown_at = time.monotonic()
            click.echo(text, err=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if self._is_terminal:
            click.echo("\r\033[K", nl=False, err=True)


@click.group()
def proof() -> None:
    """Show that nothing is lost: kill, cut and freeze real servers, then check everything."""


def _command(name: str, entry: Proof) -> click.Command:
    options: list[click.Parameter] = [
        *entry.options,
        click.Option(["--seed"], type=int, help="Repeat the choices of a run (random)."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
        click.Option(
            ["--record"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="Merge the result into this file, from which `proof page` makes the page.",
        ),
    ]
    if entry.compares:
        peers = click.Choice(["a2a-sdk"])
        about = "Also probe this runtime, in an environment of its own."
        options.append(click.Option(["--compare"], type=peers, help=about))

    def callback(
        seed: int | None,
        as_json: bool,
        record: Path | None,
        compare: str | None = None,
        **given: Any,
    ) -> None:
        _run(name, entry, seed, given, as_json=as_json, record=record, compare=compare)

    return click.Command(name, params=options, callback=callback, help=entry.about)


def _run(
    name: str,
    entry: Proof,
    seed: int | None,
    given: dict[str, Any],
    *,
    as_json: bool,
    record: Path | None,
    compare: str | None,
) -> None:
    import random

    from dragoman.proof import record as records

    if record is not None:
        records.check(record)
    if seed is None:
        seed = random.SystemRandom().randrange(_SEEDS)
    # Whatever ends us, children are ended on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    # A shell may have told its background jobs to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    progress = ProgressLine()
    progress(f"{name}, seed {seed}")
    module = importlib.import_module(f"dragoman.proof.{entry.module or name.replace('-', '_')}")
    # Agents fail on purpose here, and what a killed server says is in its own log.
    logger = logging.getLogger("dragoman")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        result = module.run(**given, seed=seed, progress=progress)
        if compare is not None:
            from dragoman.proof import peer

            result.compare = peer.compare(name, progress)
    except KeyboardInterrupt:
        progress.end()
        sys.exit(130)
    except ExceptionGroup as failures:
        # A server that could not be started is a sentence, wherever it was noticed.
        known = failures.subgroup(ConfigError)
        raise failures if known is None else known.exceptions[0] from None
    finally:
        logger.setLevel(level)
    progress.end()
    rows = entry.rows(result) if entry.rows else result.rows()
    words = ["dragoman", "proof", name]
    for option, value in given.items():
        words += [f"--{option}", str(value)]
    words += ["--seed", str(seed), *(["--compare", compare] if compare else [])]
    # Shown before it is kept: what a long run found is not lost with a disk.
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(result))
    else:
        _show(name, result, rows)
    if record is not None:
        records.merge(record, name, words, result, rows)
    if not all(row.kept for row in rows):
        sys.exit(1)


def _interrupt(number: int, frame: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _show(name: str, result: Any, rows: Sequence[Any]) -> None:
    from dragoman.proof.record import share

    click.echo(f"{name}: seed {result.seed}, {result.seconds:.0f} s")
    width = max(len(row.promise) for row in rows)
    figures = max(len(row.figure) for row in rows)
    for row in rows:
        verdict = "kept  " if row.kept else "BROKEN"
        limit = share(row.bound) if row.kept else ""
        line = f"  {verdict}  {row.promise:<{width}}  {row.figure:<{figures}}  {limit}"
        click.echo(line.rstrip())
    for finding in result.findings:
        click.echo(f"  - {finding}")
    compared = getattr(result, "compare", None)
    if compared:
        click.echo(f"beside {compared['peer']}: {compared['note']}")
        for row in compared["rows"]:
            click.echo(f"  {row['probe']}")
            click.echo(f"    ours:   {row['ours']}\n    theirs: {row['theirs']}")


for _name, _entry in PROOFS.items():
    proof.add_command(_command(_name, _entry))


@proof.command()
@click.option(
    "--record",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("proof.json"),
    show_default=True,
    help="The record of earlier runs.",
)
def page(record: Path) -> None:
    """Print the page of all recorded runs."""
    from dragoman.proof import record as records

    click.echo(records.page(records.load(record)), nl=False)
