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

from dragoman.cli.grammar import Command, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.output import Output
from dragoman.cli.own import Own, budget, ending_in_order, own
from dragoman.errors import ConfigError

_SEEDS = 1 << 31
# Seconds between two lines of progress.
_SELDOM = 10.0


class Proof(NamedTuple):
    """One proof: `dragoman.proof.<module>.run` takes the options, a seed and `progress`."""

    about: str
    options: Sequence[Own] = ()
    # Whether the probes of `dragoman.proof.peer` say something beside it.
    compares: bool = False
    module: str = ""
    # How its result reads as rows, if it does not say so itself.
    rows: Callable[[Any], Any] | None = None


def _count(name: str, default: int, about: str) -> Own:
    return Own([f"--{name}"], type=click.IntRange(1), default=default, metavar="<n>", help=about)


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
            Own(
                ["--synchronous"],
                type=click.Choice(["full", "normal", "off"]),
                default="full",
                in_environment=False,
                metavar="<full|normal|off>",
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
    "cuts": Proof(
        "Break answers to our own client off at any byte; it shows what there is, once.",
        [_count("cuts", 2000, "How often to cut.")],
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
    "trickle": Proof(
        "Connections that trickle or do not read; they are cut off, and nobody else notices.",
        [
            _count("connections", 2000, "Connections that attack at once."),
            _count("seconds", 20, "How long callers are measured, with and without."),
        ],
    ),
    "drain": Proof(
        "Stop servers under load; streams end with a cursor, nothing is lost.",
        [_count("restarts", 5, "How often to stop."), _count("processes", 2, _PROCESSES)],
    ),
    "tenancy": Proof(
        "Reach for the tasks of others; the answer is that of a task that never existed.",
        [_count("samples", 200, "Requests timed of each kind.")],
    ),
    "tree": Proof(
        "Kill agents that call agents that call agents; each does its work once.",
        [_count("kills", 200, "How often to kill.")],
    ),
    "ledger": Proof(
        "Kill spenders anywhere, and let many spend one account; the books are whole each time.",
        [_count("kills", 200, "How often to kill.")],
    ),
    "overload": Proof(
        "Ask five times what a server can do, and ten times what one caller may.",
        [_count("seconds", 30, "How long the overload lasts.")],
    ),
    "greedy": Proof(
        "Let one caller stream without end; others do not notice, and its share has an end.",
        [_count("seconds", 30, "How long others are measured, with and without.")],
    ),
    "gateway": Proof(
        "Kill a gateway and agents behind it; tasks end as undisturbed, and are paid for once.",
        [_count("kills", 60, "How often to kill.")],
    ),
    "sabotage": Proof("Remove each guard in turn; a check has to notice."),
}


class Progress:
    """A line on stderr now and then."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._shown_at = 0.0

    def __call__(self, text: str | int, total: int | None = None) -> None:
        """Say how far it is: in words, or as a count out of a total."""
        if time.monotonic() - self._shown_at > _SELDOM:
            self._shown_at = time.monotonic()
            shown = str(text) if total is None else f"{text:,} of {total:,}"
            self._out.note("Progress", shown)


proof = Group(
    "proof",
    help="Show that nothing is lost: kill, cut and freeze real servers, then check everything.",
)


def _command(name: str, entry: Proof) -> Command:
    options: list[click.Parameter] = [
        *entry.options,
        Own(["--seed"], type=int, metavar="<n>", help="Repeat the choices of a run (random)."),
        Own(
            ["--record"],
            type=click.Path(dir_okay=False, path_type=Path),
            in_environment=False,
            metavar="<path>",
            help="Merge the result into this file, from which `proof page` makes the page.",
        ),
        Own(
            ["--json", "as_json"],
            switch=True,
            default=False,
            in_environment=False,
            help="The same as -o json.",
        ),
    ]
    if entry.compares:
        peers = click.Choice(["a2a-sdk"])
        about = "Also probe this runtime, in an environment of its own."
        options.append(Own(["--compare"], type=peers, metavar="<a2a-sdk>", help=about))

    def callback(
        run: Invocation,
        seed: int | None,
        record: Path | None,
        as_json: bool,
        compare: str | None = None,
        **given: Any,
    ) -> None:
        run.out.is_json = run.out.is_json or as_json
        with ending_in_order(), budget(run):
            _run(run.out, name, entry, seed, given, record=record, compare=compare)

    return Command(name, params=options, callback=callback, help=entry.about)


def _run(
    out: Output,
    name: str,
    entry: Proof,
    seed: int | None,
    given: dict[str, Any],
    *,
    record: Path | None,
    compare: str | None,
) -> None:
    import random

    from dragoman.proof import record as records

    if record is not None:
        records.check(record)
    if seed is None:
        seed = random.SystemRandom().randrange(_SEEDS)
    # A shell may have told its background jobs to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    progress = Progress(out)
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
    except ExceptionGroup as failures:
        # A server that could not be started is a sentence, wherever it was noticed.
        known = failures.subgroup(ConfigError)
        raise failures if known is None else known.exceptions[0] from None
    finally:
        logger.setLevel(level)
    rows = entry.rows(result) if entry.rows else result.rows()
    words = ["dragoman", "proof", name]
    for option, value in given.items():
        words += [f"--{option}", str(value)]
    words += ["--seed", str(seed), *(["--compare", compare] if compare else [])]
    # Shown before it is kept: what a long run found is not lost with a disk.
    if out.is_json:
        out.json(result)
    else:
        _show(out, name, result, rows)
    if record is not None:
        try:
            records.merge(record, name, words, result, rows)
        except (OSError, ConfigError) as error:
            # What was found is on stdout already, and stays the one document there.
            out.warn(f"the result was not recorded: {error}")
            sys.exit(1)
    if not all(row.kept for row in rows):
        sys.exit(1)


def _show(out: Output, name: str, result: Any, rows: Sequence[Any]) -> None:
    from dragoman.proof.record import share

    out.field("Proof", name)
    out.field("Seed", str(result.seed))
    out.field("Seconds", f"{result.seconds:.0f}")
    for row in rows:
        limit = f" {share(row.bound)}" if row.kept else ""
        out.field("Kept" if row.kept else "Broken", f"{row.promise}: {row.figure}{limit}")
    for finding in result.findings:
        out.field("Finding", str(finding))
    if compared := getattr(result, "compare", None):
        out.field("Beside", f"{compared['peer']}: {compared['note']}")
        for row in compared["rows"]:
            out.field("Probe", row["probe"])
            out.field("Ours", row["ours"])
            out.field("Theirs", row["theirs"])


for _name, _entry in PROOFS.items():
    proof.add_command(_command(_name, _entry))


@command("page")
@own(
    "--record",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default="proof.json",
    in_environment=False,
    metavar="<path>",
    help="The record of earlier runs.",
)
def page(run: Invocation, record: Path) -> None:
    """Print the page of all recorded runs."""
    from dragoman.proof import record as records

    found = records.load(record)
    if run.out.is_json:
        run.out.json(found)
    else:
        run.out.write(records.page(found))


proof.add_command(page)
