"""Formatting, lint and types, as tests: the one test command covers them too."""

from pathlib import Path

from harness.processes import check

ROOT = Path(__file__).parent.parent


def test_every_file_is_formatted() -> None:
    check("ruff", "format", "--check", ".", cwd=ROOT)


def test_the_linter_finds_nothing() -> None:
    check("ruff", "check", ".", cwd=ROOT)


def test_the_types_hold() -> None:
    check("pyright", cwd=ROOT)
