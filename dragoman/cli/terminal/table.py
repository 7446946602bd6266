"""Lists as people read them: a table as wide as the terminal.

Cells are data of others: they are escaped before they are measured, so that nothing in them moves a
cursor. Colours and glyphs are for terminals alone; `NO_COLOR` and `TERM=dumb` turn colours off.
"""

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast

from dragoman.model.patterns import CONTROLS

# Columns of a table that no terminal limits.
WIDTH = 120
# Columns that a text keeps however narrow the terminal is.
_LEAST = 8
_GAP = "  "
_RESET = "\x1b[0m"
_HEADER = "\x1b[1m"
# Which glyph and which colour a word has; words of tasks, agents, keys, receivers and findings.
_GOOD, _BAD, _BUSY, _ASKS, _OVER = "32", "31", "36", "33", "2"
_LOOKS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("completed", "online", "active", "ok", "done"), ("✓", _GOOD)),
    **dict.fromkeys(("failed", "rejected", "problem", "dead", "disabled"), ("✗", _BAD)),
    **dict.fromkeys(("working", "submitted", "open", "running"), ("●", _BUSY)),
    **dict.fromkeys(("input-required", "auth-required"), ("?", _ASKS)),
    **dict.fromkeys(("warning", "degraded", "failing", "expiring"), ("!", _ASKS)),
    **dict.fromkeys(("canceled", "offline", "revoked", "expired", "unknown"), ("-", _OVER)),
}
_AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))

Kind = Literal["text", "id", "state", "age", "number"]


class Column(NamedTuple):
    """One column: its title, and what it shows of an item."""

    title: str
    # A member, a member of a member as `status/state`, or the first of several as `name|id`.
    member: str
    # Only a text is cut where the room is short: half an id is of no use.
    kind: Kind = "text"


class Screen(NamedTuple):
    """What a table is drawn for."""

    width: int = WIDTH
    has_colours: bool = False
    has_glyphs: bool = False

    @classmethod
    def here(cls) -> "Screen":
        """Return what stdout can show."""
        if not is_terminal_out():
            return cls()
        is_dumb = os.environ.get("TERM") == "dumb"
        # Slow to load, and not needed by what is no terminal.
        import shutil

        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        return cls(
            max(20, shutil.get_terminal_size((WIDTH, 24)).columns),
            not is_dumb and not os.environ.get("NO_COLOR"),
            not is_dumb and encoding == "utf8",
        )


def is_terminal_out() -> bool:
    """Tell whether a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # None where it was closed before we began


def drawn(
    items: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    screen: Screen,
    now: datetime | None = None,
) -> str:
    """Return the lines of a table; a column that no item has anything for is left out."""
    now = now or datetime.now(UTC)
    rows = [[_text(column, item, screen, now) for column in columns] for item in items]
    shown = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    columns = [columns[at] for at in shown]
    rows = [[row[at] for at in shown] for row in rows]
    widths = _widths(columns, rows, screen.width)
    header = _line([column.title.upper() for column in columns], columns, widths)
    lines = [f"{_HEADER}{header}{_RESET}" if screen.has_colours else header]
    for row in rows:
        lines.append(_line(row, columns, widths, has_colours=screen.has_colours))
    return "\n".join(lines) + "\n"


def _text(column: Column, item: Mapping[str, Any], screen: Screen, now: datetime) -> str:
    value = next(filter(_is_shown, (_member(item, one) for one in column.member.split("|"))), "")
    if isinstance(value, list | tuple):
        value = " ".join(map(str, cast("Sequence[object]", value)))
    if column.kind == "age":
        return age(str(value), now) if value else ""
    text = "yes" if value is True else f"{value:g}" if type(value) is float else str(value)
    text = " ".join(CONTROLS.sub(_escape, text).split())
    if column.kind == "state":
        text = text.removeprefix("TASK_STATE_").lower().replace("_", "-")
        if screen.has_glyphs:
            text = f"{_LOOKS.get(text, (' ', ''))[0]} {text}"
    return text


def _member(item: Any, path: str) -> Any:
    for name in path.split("/"):
        item = cast("dict[str, Any]", item).get(name) if isinstance(item, Mapping) else None
    return item


def _is_shown(value: Any) -> bool:
    return value is not None and value is not False and value != "" and value != []


def _escape(found: Any) -> str:
    number = ord(found.group())
    if number in (9, 10, 13):
        # Layout of the text itself; a cell is one line.
        return " "
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the width of each column: the widest texts give way until the row fits."""
    widths = [
        max(columns_of(column.title), *(columns_of(row[at]) for row in rows))
        for at, column in enumerate(columns)
    ]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    while excess > 0:
        texts = [at for at, column in enumerate(columns) if column.kind == "text"]
        widest = max(texts, key=lambda at: widths[at], default=-1)
        if widest < 0 or widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    *,
    has_colours: bool = False,
) -> str:
    found: list[str] = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = fitted(cell, width)
        blank = " " * (width - columns_of(text))
        text = blank + text if column.kind == "number" else text + blank
        if has_colours and column.kind == "state" and (look := _LOOKS.get(cell.split(" ")[-1])):
            text = f"\x1b[{look[1]}m{text}{_RESET}"
        found.append(text)
    return _GAP.join(found).rstrip(" ")


def fitted(text: str, width: int) -> str:
    """Return as much of a text as fits, with a mark where it was cut."""
    if columns_of(text) <= width:
        return text
    kept = ""
    for character in text:
        if columns_of(kept + character) > width - 1:
            break
        kept += character
    return kept.rstrip(" ") + "…"


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def age(instant: str, now: datetime) -> str:
    """Return how long ago a time was, in one unit: `5s`, `3m`, `2h`, `4d`; what is to come has a
    plus. What is no time is shown as it is."""
    try:
        moment = datetime.fromisoformat(instant)
    except ValueError:
        return CONTROLS.sub(_escape, instant)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = (now - moment).total_seconds()
    sign = "+" if seconds <= -1 else ""
    whole = int(abs(seconds))
    for size, unit in _AGES:
        if whole >= size:
            return f"{sign}{whole // size}{unit}"
    return "0s"
