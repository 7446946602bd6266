"""The tutorial is typed as it stands there: every step is served, every command does what it says.

A line with `#` below a command is something that it has to print. Ports, ids and keys are what
differs from run to run, and all that is changed.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.processes import ROOT, environment, run, running

from dragoman.testing.processes import ServerProcess

TUTORIAL = ROOT / "docs" / "tutorial.md"
STEP = re.compile(r"^## (\d+)\. .*?(?=^## )", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = {found[1]: found[0] for found in STEP.finditer(TUTORIAL.read_text(encoding="utf-8"))}


def typed(step: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a step, each with what it has to print."""
    lines = [line for block in BLOCK.findall(STEPS[step]) for line in block.splitlines()]
    for number, line in enumerate(lines):
        if not line.startswith("#"):
            after = lines[number + 1 :]
            end = next((at for at, one in enumerate(after) if not one.startswith("#")), len(after))
            yield line, [one.removeprefix("# ") for one in after[:end]]


class Reader:
    """A person with terminals who does what the tutorial says."""

    def __init__(self, folder: Path, terminals: ExitStack) -> None:
        self._folder = folder
        self._terminals = terminals
        self._server: ServerProcess | None = None
        self._addresses: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._task = ""

    def type(self, command: str) -> str:
        """Return what a command printed."""
        words = shlex.split(command)
        variables = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            variables[name] = self._keys[value]
        if words[0] == "kill":
            assert self._server is not None
            self._server.kill()
            return ""
        if words[0] == "cd":
            # A copy, as a reader has one: neither the settings nor the plugins of this repository.
            self._folder = Path(shutil.copytree(ROOT / words[1], self._folder / "copy"))
            return ""
        if words[0] == "python":
            done = subprocess.run(
                [sys.executable, *words[1:]],
                cwd=self._folder,
                env=environment(self._folder) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                capture_output=True,
                text=True,
                timeout=60,
            )
            return done.stdout + done.stderr
        assert words[0] == "dragoman", command
        if words[1] == "serve":
            return self._serve(words[2:])
        return self._run(words[1:], variables)

    def _serve(self, words: list[str]) -> str:
        listen = "127.0.0.1:8000"
        if "--listen" in words:
            at = words.index("--listen")
            listen = words[at + 1]
            del words[at : at + 2]
        more = {"BAKING_SECONDS": "0.1"}
        if courier := self._addresses.get("127.0.0.1:8001"):
            more["COURIER"] = courier
        options = ("--listen", "127.0.0.1:0", *words[1:])
        child = running("serve", ROOT / words[0], *options, cwd=self._folder, env=more)
        self._server = self._terminals.enter_context(child)
        self._addresses[listen] = self._server.ready()
        return ""

    def _run(self, words: list[str], variables: dict[str, str]) -> str:
        address = self._addresses.get("127.0.0.1:8000", "").removeprefix("http://")
        told = [
            word.replace("localhost:8000", address).replace("TASK", self._task) for word in words
        ]
        done = run(*told, cwd=self._folder, env=variables)
        shown = done.stdout + done.stderr
        self._task = (re.findall(r"^Task: (\S+)$", shown, re.MULTILINE) or [self._task])[0]
        if words[:2] == ["keys", "create"]:
            self._keys[words[3].upper()] = re.findall(r"dgm_\S+|^Key: (\S+)$", shown, re.M)[0]
        return shown


def test_the_tutorial_has_ten_steps_and_a_file_for_each() -> None:
    assert list(STEPS) == [str(number) for number in range(1, 11)]
    files = sorted(path.name for path in (ROOT / "examples" / "tutorial").glob("*.py"))
    assert files == ["courier.py", *(f"step_{number:02}.py" for number in range(1, 11))]
    for number, text in STEPS.items():
        assert f"<!-- begin examples/tutorial/step_{int(number):02}.py -->" in text


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_tutorial_does_what_it_says(step: str, tmp_path: Path) -> None:
    with ExitStack() as terminals:
        reader = Reader(tmp_path, terminals)
        for command, expected in typed(step):
            shown = reader.type(command)
            missing = [line for line in expected if line not in shown]
            assert not missing, f"{command}\n{shown}"
    if step == "5":
        assert len((tmp_path / "till.txt").read_text().splitlines()) == 1
    if step == "7":
        assert (tmp_path / "receipt.csv").read_text() == "item,count,total\nrye,1,4\n"
