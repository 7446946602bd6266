"""Formatting, lint and types, as tests: the one test command covers them too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        # The notice of a later pyright asks the network and says nothing about this code.
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)


def test_every_file_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


def test_the_linter_finds_nothing() -> None:
    run("ruff", "check", ".")


def test_the_types_hold() -> None:
    run("pyright")
