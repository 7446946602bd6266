"""The figures of a run as a table for people and as the JSON document for programs."""

import os
import platform
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .measures import RATIOS, Figures
from .servers import OURS, PEER_KINDS

NAMES = (OURS.name, *(kind.name for kind in PEER_KINDS))
UNITS = {
    "get": "get, tasks/s",
    "list": "list of 50, pages/s",
    "message": "message reply, calls/s",
    "send": "blocking echo send, tasks/s",
    "one": "one send at a time, tasks/s",
    "streams": "200 streams of 50, chunks/s",
    "stream": "one long stream, chunks/s",
}


def ratios(figures: Figures) -> dict[str, dict[str, float]]:
    """Our rate over theirs, per operation and peer, for the operations both did."""
    return _compared(figures, "per_second", lambda ours, theirs: ours / theirs)


def cost_ratios(figures: Figures) -> dict[str, dict[str, float]]:
    """Their processor time for one operation over ours."""
    return _compared(figures, "cpu_us", lambda ours, theirs: theirs / ours)


def _compared(
    figures: Figures, key: str, compare: Callable[[float, float], float]
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for operation in RATIOS:
        row = figures.get(operation, {})
        ours = row.get(OURS.name, {}).get(key)
        if ours:
            found[operation] = {
                name: round(compare(ours, cell[key]), 2)
                for name, cell in row.items()
                if name != OURS.name and cell.get(key)
            }
    return found


def versions() -> dict[str, str]:
    try:
        ours = version(OURS.name)
    except PackageNotFoundError:
        ours = "source"
    peers = {
        kind.package.rpartition("-")[0]: kind.package.rpartition("-")[2]
        for kind in PEER_KINDS
        if kind.package
    }
    machine = {"python": python_build(), "cpus": str(os.cpu_count())}
    return {OURS.name: ours, **peers, "uvicorn": version("uvicorn"), **machine}


def python_build() -> str:
    """The release, and whether it was built with what makes an interpreter fast: figures of one
    that was not are those of another machine."""
    given = sysconfig.get_config_var("CONFIG_ARGS") or ""
    means = {"--enable-optimizations": "PGO", "--with-lto": "LTO"}
    optimised = "+".join(name for option, name in means.items() if option in given)
    return f"{platform.python_version()} ({optimised or 'not optimised'})"


def document(figures: Figures, notes: list[str]) -> dict[str, Any]:
    return {
        "ratios": ratios(figures),
        "cost_ratios": cost_ratios(figures),
        "figures": {**rounded(figures), "notes": notes},
        "versions": versions(),
    }


def rounded(value: Any) -> Any:
    """The same figures with four significant digits: more would pretend a precision."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}  # pyright: ignore
    if isinstance(value, float):
        return None if value != value else float(f"{value:.4g}")
    return value


def table(figures: Figures, notes: list[str]) -> str:
    lines = [f"Python {python_build()}, {os.cpu_count()} cores"]
    heads = "".join(f"{name:>27}" for name in NAMES)
    lines += [f"{'':28}{heads}"]
    for operation, unit in UNITS.items():
        if operation in figures:
            lines.append(f"{unit:28}" + rates(figures[operation]))
            lines.append(f"{'':28}" + details(figures[operation]))
            lines.append(f"{'  processor, spread':28}" + costs(figures[operation]))
    for operation, label, key, shape in (
        ("idle", "idle subscriber, KB", "kb_each", ".1f"),
        ("cold", "import, s", "import_s", ".2f"),
        ("cold", "start to first answer, s", "ready_s", ".3f"),
        ("cold", "and its processor time, s", "ready_cpu_s", ".2f"),
        ("cold", "memory after start, MB", "rss_mb", ".0f"),
        ("stall", "stalled reader, MB grown", "grown_mb", ".1f"),
        ("stall", "and its first 4 KB stream", "grown_with_first_stream_mb", ".1f"),
    ):
        row = figures.get(operation, {})
        if row:
            cells = (format(row[n][key], shape) if n in row else "-" for n in NAMES)
            lines.append(f"{label:28}" + "".join(f"{cell:>27}" for cell in cells))
    lines += ours_alone(figures)
    lines += [f"note: {note}" for note in notes]
    lines += [f"ERRORS {where}: {count} ({first})" for where, count, first in errors(figures)]
    return "\n".join(lines)


def rates(row: Figures) -> str:
    ours = row.get(OURS.name, {}).get("per_second") or 0.0
    cells: list[str] = []
    for name in NAMES:
        rate = row.get(name, {}).get("per_second")
        if not rate:
            cells.append("-")
        elif name == OURS.name:
            cells.append(f"{rate:,.0f}")
        else:
            cells.append(f"{rate:,.0f} (x {ours / rate:.1f})")
    return "".join(f"{cell:>27}" for cell in cells)


def details(row: Figures) -> str:
    """The line under the rates: latencies of calls, and how far the rounds lie apart."""
    cells: list[str] = []
    for name in NAMES:
        cell = row.get(name)
        if cell is None:
            cells.append("")
        elif "p50_ms" in cell:
            cells.append(f"{cell['p50_ms']:.1f}/{cell['p99_ms']:.0f} ms +-{cell['spread'] / 2:.0%}")
        else:
            cells.append(f"+-{cell['spread'] / 2:.0%}" + ("" if cell["ended"] else " cut off"))
    return "".join(f"{cell:>27}" for cell in cells)


def costs(row: Figures) -> str:
    """Processor time of the server for one operation, and how far the rounds lie apart."""
    ours = row.get(OURS.name, {}).get("cpu_us") or 0.0
    cells: list[str] = []
    for name in NAMES:
        cell = row.get(name, {})
        cost = cell.get("cpu_us")
        if not cost:
            cells.append("")
            continue
        times = "" if name == OURS.name or not ours else f" (x {cost / ours:.1f})"
        cells.append(f"{cost:,.0f} us{times} +-{cell['cpu_spread'] / 2:.0%}")
    return "".join(f"{cell:>27}" for cell in cells)


def ours_alone(figures: Figures) -> list[str]:
    lines: list[str] = []
    if cost := figures.get("stream_cost"):
        lines.append(
            f"chunk 10,000 costs {cost['late_over_early']:.2f} x chunk 100 "
            f"({cost['late_chunk_us']:.0f} us, {cost['early_chunk_us']:.0f} us)"
        )
    for level, cell in figures.get("growth", {}).items():
        if level == "ratio":
            lines.append(
                f"at {cell['to']:,} stored tasks send costs {cell['send']:.2f} x and get "
                f"{cell['get']:.2f} x what they cost at {cell['from']:,}"
            )
        else:
            lines.append(
                f"{int(level):>9,} stored: send {cell['send_us']:.0f} us, get "
                f"{cell['get_us']:.0f} us ({cell['stored_at_end']:,} at the end)"
            )
    return lines


def errors(figures: Figures) -> list[tuple[str, int, str]]:
    """Where a server answered wrongly, how often, and the first such answer."""
    return [
        (f"{operation}, {name}", cell["errors"], cell["error"])
        for operation, row in figures.items()
        for name, cell in row.items()
        if isinstance(cell, dict) and cell.get("errors")  # pyright: ignore
    ]
