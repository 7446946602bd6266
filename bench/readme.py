"""The table of README.md, made from the figures of a run: `./dev bench --readme`."""

from pathlib import Path

from .measures import Figures
from .report import cost_ratios, python_build, versions
from .servers import OURS, PEER_KINDS

BEGIN, END = "<!-- made by ./dev bench --readme -->", "<!-- end of the table -->"
ROWS = {
    "send": "blocking send of an echo, 64 connections",
    "one": "one send at a time",
    "message": "message reply without a task",
    "get": "get",
    "streams": "chunk of 200 streams",
    "stream": "chunk of one long stream",
}
_PLACES = {"memory": "in memory", "sqlite": "on SQLite", "postgres": "on PostgreSQL"}


class NoTable(Exception):
    """The file has no place for the table."""


def table(figures: Figures) -> str:
    """Processor time for one operation, and how many times that each other server takes."""
    peers = [
        kind
        for kind in PEER_KINDS
        if any(kind.name in row for name, row in figures.items() if name in ROWS)
    ]
    heads = [_title(kind.name, kind.package) for kind in peers]
    lines = [
        "Processor time of the server for one operation, and how many times as much each of the",
        "others takes (without that of PostgreSQL; the bare ones are limits, not runtimes):",
        "",
        "| " + " | ".join(["", "Dragoman on SQLite", *heads]) + " |",
        "|---" * (len(peers) + 2) + "|",
    ]
    ratios = cost_ratios(figures)
    for operation, label in ROWS.items():
        ours = figures.get(operation, {}).get(OURS.name)
        if not ours or not ours["cpu_us"]:
            continue
        cells = [label, f"{ours['cpu_us']:,.0f} µs ± {ours['cpu_spread'] / 2:.0%}"]
        for kind in peers:
            times = ratios.get(operation, {}).get(kind.name)
            cells.append("" if times is None else f"{times:.2g}" if times < 10 else f"{times:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    machine = versions()
    lines += [
        "",
        f"Dragoman {machine[OURS.name]}, Python {python_build()}, {machine['cpus']} cores.",
    ]
    return "\n".join(lines)


def update(path: Path, figures: Figures) -> None:
    """Put the table in its place; raises `NoTable`."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoTable(f"{path} has no place for the table")
    path.write_text(f"{before}{BEGIN}\n{table(figures)}\n{END}{after}")


def _title(name: str, package: str) -> str:
    program, version = package.rpartition("-")[::2]
    place = name.rpartition("-")[2]
    if not package:
        return name.replace("-", " ")
    return f"{program} {version} {_PLACES[place]}"
