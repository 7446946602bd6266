"""The command in this process, where a test has to change something under it."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from dragoman.cli.main import main


class _Whole:
    """What a runner runs: the command with its border, where failures are told."""

    name = "dragoman"

    def main(self, args: list[str], prog_name: str, **more: Any) -> None:
        main(list(args))


def invoke(*arguments: str | Path) -> Result:
    """Run `dragoman` here; the result has its output and exit code."""
    return CliRunner().invoke(_Whole(), list(map(str, arguments)))  # type: ignore[arg-type]
