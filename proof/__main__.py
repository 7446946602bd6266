"""`python -m proof`: hurt real servers on purpose and print what was found.

A proof is a row in the table below: a module with a `run`, and the options that become its
arguments. Modules are loaded when their proof is run.
"""

import importlib
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dragoman.cli.grammar import Command, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.main import main
from dragoman.cli.output import Output
from dragoman.cli.own_options import OwnOption, budget, ending_in_order, own
from dragoman.errors import ConfigError

_SEEDS = 1 << 31
# Seconds between two lines of progress.
_SELDOM = 10.0


class Proof(NamedTuple):
    """One proof: `proof.<room>.<name>.run` takes the options, a seed and `progress`."""

    room: str
    about: str
    options: Sequence[OwnOption] = ()
    # Whether the probes of `proof.peer` say something beside it.
    compares: bool = False


def _count(name: str, default: int, about: str) -> OwnOption:
    return OwnOption(
        [f"--{name}"], type=click.IntRange(1), default=default, metavar="<n>", help=about
    )


def _times(name: str, about: str) -> OwnOption:
    """A count of one section among several: 0 leaves it out."""
    return OwnOption([f"--{name}"], type=click.IntRange(0), metavar="<n>", help=about)


_PROCESSES = "Servers that share the store."

PROOFS: dict[str, Proof] = {
    "crash": Proof(
        "crash",
        "Kill servers under load; nothing acknowledged is lost, hangs, changes or doubles.",
        [_count("kills", 100, "How often to kill."), _count("processes", 1, _PROCESSES)],
        compares=True,
    ),
    "powercut": Proof(
        "crash",
        "Cut the power at many moments of a recorded run; the file keeps what it promised.",
        [
            _count("images", 20_000, "Disks after a cut to look at."),
            OwnOption(
                ["--synchronous"],
                type=click.Choice(["full", "normal", "off"]),
                default="full",
                in_environment=False,
                metavar="<full|normal|off>",
                help="The setting of SQLite; anything but full is there to fail.",
            ),
        ],
    ),
    "resume": Proof(
        "wire",
        "Cut streams at random and go on by cursor; no event is missing or doubled.",
        [
            _count("disconnects", 5000, "How often to cut."),
            _count("processes", 2, _PROCESSES),
            OwnOption(
                ["--transport"],
                type=click.Choice(["jsonrpc", "grpc"]),
                default="jsonrpc",
                in_environment=False,
                metavar="<jsonrpc|grpc>",
                help="How streams are read.",
            ),
        ],
        compares=True,
    ),
    "cuts": Proof(
        "wire",
        "Break answers to our own client off at any byte; it shows what there is, once.",
        [_count("cuts", 2000, "How often to cut.")],
    ),
    "idempotency": Proof(
        "crash",
        "Send one message many times at once; there is one task and one answer.",
        [_count("sends", 100, "How often to send."), _count("processes", 2, _PROCESSES)],
        compares=True,
    ),
    "fencing": Proof(
        "crash",
        "Freeze workers past their lease; what they try to write afterwards is refused.",
        [_count("pauses", 20, "How often to freeze.")],
    ),
    "push": Proof(
        "wire",
        "Receivers that fail in every way; each event arrives, or is visibly dead.",
        [
            _count("receivers", 40, "Receivers that fail."),
            _count("restarts", 5, "How often the sender is ended without a word."),
        ],
    ),
    "slow-reader": Proof(
        "wire",
        "Readers that never read; the task and the memory do not notice.",
        [_count("readers", 1000, "Sockets that never read.")],
        compares=True,
    ),
    "trickle": Proof(
        "wire",
        "Connections that trickle or do not read; they are cut off, other callers unharmed.",
        [
            _count("connections", 2000, "Connections that attack at once."),
            _count("seconds", 20, "How long callers are measured, with and without."),
        ],
    ),
    "drain": Proof(
        "crash",
        "Stop servers under load; streams end with a cursor, nothing is lost.",
        [_count("restarts", 5, "How often to stop."), _count("processes", 2, _PROCESSES)],
    ),
    "tenancy": Proof(
        "access",
        "Reach for the tasks of others; the answer is that of a task that never existed.",
        [_count("samples", 200, "Requests timed of each kind.")],
    ),
    "tree": Proof(
        "crash",
        "Kill agents that call agents that call agents; each does its work once.",
        [_count("kills", 200, "How often to kill.")],
    ),
    "ledger": Proof(
        "money",
        "Kill spenders anywhere, and let many spend one account; the ledger is whole each time.",
        [_count("kills", 200, "How often to kill.")],
    ),
    "overload": Proof(
        "overload",
        "Ask five times what a server can do, and ten times what one caller may.",
        [_count("seconds", 30, "How long the overload lasts.")],
    ),
    "greedy": Proof(
        "overload",
        "Let one caller stream without end; others do not notice, and its share has an end.",
        [_count("seconds", 30, "How long others are measured, with and without.")],
    ),
    "gateway": Proof(
        "gateway",
        "Kill a gateway and agents behind it; tasks end as undisturbed, and are paid for once.",
        [_count("kills", 60, "How often to kill.")],
    ),
    "join": Proof(
        "gateway",
        "The same with agents that dial out, and connections cut at random bytes.",
        [_count("kills", 100, "How often to kill.")],
    ),
    "triggers": Proof(
        "gateway",
        "Kill gateways at every step of a trigger; each due time and post begins one task.",
        [_count("kills", 20, "How often to kill at each step, on each store.")],
    ),
    "cluster": Proof(
        "cluster",
        "Hurt replicas on PostgreSQL and every part between; nothing acknowledged is lost.",
        [
            OwnOption(
                ["--quick"],
                switch=True,
                default=False,
                in_environment=False,
                help="A little of everything, within 50 seconds.",
            ),
            OwnOption(
                ["--only"],
                default="",
                in_environment=False,
                metavar="<names>",
                help="These sections alone, by the names of their counts, with commas.",
            ),
            _times("promises", "How often to run the promises of a store, groups doubled (1)."),
            _times("replies", "Replies of PostgreSQL to lose after the commit (300)."),
            _times("kills", "How often to kill a replica (200)."),
            _times("freezes", "How often to freeze a replica past its lease (50)."),
            _times("listeners", "How often to take wake-ups away (12)."),
            _times("nats", "How often to kill NATS, where it rings (6)."),
            _times("restarts", "How often to restart PostgreSQL (10)."),
            _times("server-kills", "How often to kill PostgreSQL (30)."),
            _times("failovers", "Synchronous failovers of PostgreSQL (5)."),
            _times("standbys", "How often to freeze the only standby (4)."),
            _times("clocks", "Kills of replicas whose clocks differ by an hour (6)."),
            _times("spenders", "Poor spenders on three gateways, sealers killed (20)."),
            _times("operator", "How often to move a file to three replicas, and kill one (1)."),
            _times("cables", "How often to cut a replica off from PostgreSQL (20)."),
        ],
    ),
    "sabotage": Proof("sabotage", "Remove each guard in turn; a check has to notice."),
}


class Progress:
    """What is being done: a live line on a terminal, else a line on stderr every few seconds."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._shown_at = 0.0

    def __call__(self, text: str | int, total: int | None = None) -> None:
        """Say how far it is: in words, or as a count out of a total."""
        shown = str(text) if total is None else f"{text:,} of {total:,}"
        if self._out.is_live:
            self._out.progress(shown)
        elif time.monotonic() - self._shown_at > _SELDOM:
            self._shown_at = time.monotonic()
            self._out.note("Progress", shown)


proof = Group(
    "proof",
    help="Show that nothing is lost: kill, cut and freeze real servers, then check everything.",
)


def _command(name: str, entry: Proof) -> Command:
    options: list[click.Parameter] = [
        *entry.options,
        OwnOption(
            ["--seed"], type=int, metavar="<n>", help="Repeat the choices of a run (random)."
        ),
        OwnOption(
            ["--record"],
            type=click.Path(dir_okay=False, path_type=Path),
            in_environment=False,
            metavar="<path>",
            help="Merge the result into this file, from which `proof page` makes the page.",
        ),
        OwnOption(
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
        options.append(OwnOption(["--compare"], type=peers, metavar="<a2a-sdk>", help=about))

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

    from proof import record as records

    if record is not None:
        records.check(record)
    if seed is None:
        seed = random.SystemRandom().randrange(_SEEDS)
    # A shell may have told its background jobs to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    progress = Progress(out)
    # It stays on a terminal, so that a run that was stopped can be repeated.
    out.note("Progress", f"{name}, seed {seed}")
    module = importlib.import_module(f"proof.{entry.room}.{name.replace('-', '_')}")
    # Agents fail on purpose here, and what a killed server says is in its own log.
    logger = logging.getLogger("dragoman")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with out.waiting_for(name):
            result = module.run(**given, seed=seed, progress=progress)
            if compare is not None:
                from proof import peer

                result.compare = peer.compare(name, progress)
    except ExceptionGroup as failures:
        # A server that could not be started is a sentence, wherever it was noticed.
        known = failures.subgroup(ConfigError)
        raise failures if known is None else known.exceptions[0] from None
    finally:
        logger.setLevel(level)
    rows = result.rows()
    words = ["python", "-m", "proof", name]
    for option, value in given.items():
        if value is True:
            words.append(f"--{option}")
        elif value not in (None, False, ""):
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += ["--seed", str(seed), *(["--compare", compare] if compare else [])]
    # Shown before it is kept: what a long run found is not lost with a disk.
    if out.is_json:
        out.json(result)
    else:
        _show(out, name, result, rows)
    if record is not None:
        try:
            records.merge(record, result.proof, words, result, rows)
        except (OSError, ConfigError) as error:
            # What was found is on stdout already, and stays the one document there.
            out.warn(f"the result was not recorded: {error}")
            sys.exit(1)
    if not all(row.kept for row in rows):
        sys.exit(1)


def _show(out: Output, name: str, result: Any, rows: Sequence[Any]) -> None:
    from proof.record import share

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
    from proof import record as records

    found = records.load(record)
    if run.out.is_json:
        run.out.json(found)
    else:
        run.out.write(records.page(found))


proof.add_command(page)


def run(words: Sequence[str]) -> None:
    """Run `python -m proof` with arguments."""
    # A group of one command, so that usage lines read as what was typed.
    commands = Group("python -m", calls_agents=False, help="Proofs that nothing is lost.")
    commands.add_command(proof)
    main(["proof", *words], group=commands, name="python -m")


if __name__ == "__main__":
    run(sys.argv[1:])
