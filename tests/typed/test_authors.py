"""What authors write is checked by pyright in strict mode and by mypy: nothing of ours is `Any` to
them, and what is wrong is an error. The agents are in `agents/`; `refused.py` has the mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.processes import check, environment

from tests.cli.command import inside

ROOT = Path(__file__).parent.parent.parent
TEMPLATES = ("agent", "client", "gateway", "pair", "approval", "mcp")
CHECKED = [ROOT / "tests" / "typed" / "agents", ROOT / "examples" / "weather.py"]


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Projects as `dragoman init` makes them, one beside the other."""
    folder = tmp_path_factory.mktemp("projects")
    for name in TEMPLATES:
        made = inside("init", name, "--template", name, "--name", f"My {name}", cwd=folder)
        assert made.returncode == 0, made.stderr
    return folder


def test_what_authors_write_holds_for_pyright(projects: Path) -> None:
    settings = {
        "include": [".", *(os.path.relpath(one, projects) for one in CHECKED)],
        "executionEnvironments": [{"root": name} for name in TEMPLATES],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        # A suppression that suppresses nothing is an error too.
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    config = projects / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    check("pyright", "-p", str(config), "--pythonpath", sys.executable, cwd=projects)


def test_what_authors_write_holds_for_mypy(projects: Path, tmp_path: Path) -> None:
    # What the other two import besides takes longer to read than all of ours.
    files = [*map(str, CHECKED), *(name for name in TEMPLATES if name not in ("gateway", "mcp"))]
    # Without the settings of this repository: authors have their own.
    options = ("--strict", "--config-file=", "--python-version=3.11", "--cache-dir", str(tmp_path))
    check("mypy", *options, *files, cwd=projects)


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "agent"])
def test_a_project_tests_itself_with_nothing_but_python(projects: Path, template: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "discover", "tests"],
        cwd=projects / template,
        env=environment(projects),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "OK" in done.stderr, done.stderr
