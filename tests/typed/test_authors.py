"""What authors write is checked by pyright in strict mode and by mypy: nothing of ours is `Any` to
them, and what is wrong is an error. The agents are in `agents/`; `refused.py` has the mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CHECKED = [ROOT / "tests" / "typed" / "agents", ROOT / "examples" / "weather.py"]


def check(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        # The notice of a later pyright asks the network and says nothing about this code.
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)


def strict(folder: Path, *checked: Path) -> None:
    """Check files by pyright; a suppression that suppresses nothing is an error too."""
    config = folder / "pyrightconfig.json"
    settings = {
        "include": [os.path.relpath(one, folder) for one in checked],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    config.write_text(json.dumps(settings))
    check("pyright", "-p", str(config), "--pythonpath", sys.executable, cwd=folder)


def test_what_authors_write_holds_for_pyright(tmp_path: Path) -> None:
    strict(tmp_path, *CHECKED)


def test_what_authors_write_holds_for_mypy(tmp_path: Path) -> None:
    files = map(str, CHECKED)
    # Without the settings of this repository: authors have their own.
    options = ("--strict", "--config-file=", "--python-version=3.11", "--cache-dir", str(tmp_path))
    check("mypy", *options, *files, cwd=tmp_path)
