"""The command itself: help, version, and how little it loads before there is something to do."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from serving import run


def test_help_names_the_commands_and_their_options(tmp_path: Path) -> None:
    for flag in ("--help", "-h"):
        shown = run(flag, cwd=tmp_path)
        assert shown.returncode == 0
        assert "serve" in shown.stdout and "up" in shown.stdout
    serve = run("serve", "--help", cwd=tmp_path).stdout
    for option in ("--host", "--port", "--store", "--reload", "--public", "--card-shape"):
        assert option in serve


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert version("dragoman") in run("--version", cwd=tmp_path).stdout


def test_a_command_nobody_knows_is_exit_2(tmp_path: Path) -> None:
    ended = run("sevre", cwd=tmp_path)
    assert ended.returncode == 2 and "sevre" in ended.stderr


@pytest.mark.parametrize("heavy", ["uvicorn", "uvloop", "httptools", "apsw"])
def test_help_loads_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys\n"
        "from dragoman.cli.main import cli\n"
        "try:\n"
        "    cli(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        f"sys.exit({heavy!r} in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, f"{heavy} was loaded for a help text"
