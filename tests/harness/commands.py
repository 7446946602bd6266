"""The command in this process, where a test has to change something under it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from dragoman.cli.main import main


class _Whole:
    """What a runner runs: the command with its border, where failures are told."""

    name = "dragoman"

    def __init__(self, program: Callable[[list[str]], None]) -> None:
        self._program = program

    def main(self, args: list[str], prog_name: str, **more: Any) -> None:
        self._program(list(args))


def invoke(*arguments: str | Path, program: Callable[[list[str]], None] = main) -> Result:
    """Run `dragoman` here; the result has its output and exit code."""
    whole: Any = _Whole(program)
    return CliRunner().invoke(whole, list(map(str, arguments)))
