"""What a check finds: how bad it is, what it is, and what to do about it."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "problem")


class Finding(NamedTuple):
    """What a check found."""

    check: str
    level: Level
    message: str
    hint: str | None = None


class Verdict(NamedTuple):
    """A finding without the name of its check."""

    level: Level
    message: str
    hint: str | None = None


def ok(message: str) -> Verdict:
    """Nothing is to be done."""
    return Verdict("ok", message)


def warning(message: str, hint: str) -> Verdict:
    """Somebody should know."""
    return Verdict("warning", message, hint)


def problem(message: str, hint: str) -> Verdict:
    """Something does not work, or is about to fail."""
    return Verdict("problem", message, hint)


def count(number: int, one: str, many: str = "") -> str:
    """Return a number of things in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
