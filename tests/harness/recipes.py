"""Recipes of the documents, typed as they stand there, into a real shell.

A block after `<!-- run: NAME -->` belongs to the recipe NAME, whose blocks share one shell in a
fresh folder. A comment below a command is something the command has to print, and so is each line
of a `text` block below it; `…` stands for anything, an id for any id. Ports and the address of the
gateway are changed. A word in capitals, such as TRIGGER, is what the last line `Trigger: ` said.
What serves is typed into a terminal of its own. What `pip` would install is installed.
"""

import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.processes import ROOT, START_WITHIN

BLOCK = re.compile(
    r"^<!-- run: ([\w-]+) -->\n```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
# What is printed after the next look at a file, which servers take once a second.
SOON = "within a second: "
# The gateway of the pages.
GATEWAY = "https://gateway.example.com"
_SERVES = re.compile(r"dragoman (serve|gateway|up|join) ")
_READY = ("Ready: ", "Joined: ")
_EXTRA = re.compile(r"pip install 'dragoman\[(\w+)\]'")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_LABEL = re.compile(r"^([A-Z][a-z]+): (\S+)$", re.MULTILINE)


class Typed(NamedTuple):
    """A command, and what the page says it prints."""

    command: str
    printed: list[str]


def recipes(page: Path) -> dict[str, list[Typed]]:
    """Return the commands of a page, by the recipe that they belong to."""
    found: dict[str, list[Typed]] = {}
    for name, text, printed in BLOCK.findall(page.read_text(encoding="utf-8")):
        typed = found.setdefault(name, [])
        typed.extend(commands(text))
        typed[-1].printed.extend(printed.splitlines())
    return found


def commands(text: str) -> list[Typed]:
    """Return the commands of a block, each with what the comments below it say."""
    found: list[Typed] = []
    for line in text.splitlines():
        if line.startswith("#"):
            found[-1].printed.append(line.removeprefix("# "))
        elif line:
            found.append(Typed(line, []))
    return found


class Shell:
    """A bash, and what it showed of each command."""

    def __init__(self, folder: Path, **variables: str) -> None:
        reading, self._writing = os.pipe()
        # The commands come by a way of their own, so that none of them reads the next one.
        loop = 'while IFS= read -r -d "" line <&%d; do eval "$line" %d<&-; echo "$END $?"; done'
        self._end = f"end-{random.getrandbits(64):x}"
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ours = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-c", loop % (reading, reading)],
            cwd=folder,
            env=kept | {"HOME": str(folder), "PATH": ours, "END": self._end} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[reading],
            text=True,
            start_new_session=True,
        )
        os.close(reading)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def type(self, command: str) -> str:
        """Return what a command shows, and its exit code on the last line."""
        os.write(self._writing, command.encode() + b"\0")
        shown: list[str] = []
        is_serving = command.rstrip().endswith("&")
        has_ended = is_ready = False
        while not has_ended or (is_serving and not is_ready):
            try:
                line = self._lines.get(timeout=START_WITHIN)
            except queue.Empty:
                raise AssertionError(f"{command}: nothing more after\n{shown}") from None
            assert line is not None, f"the shell ended:\n{shown}"
            # A command may end without a newline.
            if self._end in line:
                text, _, code = line.partition(f"{self._end} ")
                shown += [text, f"exit {code}"]
                has_ended = True
            else:
                shown.append(line)
                is_ready = is_ready or line.startswith(_READY)
        return "\n".join(shown)

    def close(self) -> None:
        """End it and all that it started."""
        os.close(self._writing)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            self._reader.join(START_WITHIN / 3)
            if not self._reader.is_alive():
                break
        self._process.wait(START_WITHIN)


@contextmanager
def shell(folder: Path, ports: dict[str, str], **variables: str) -> Generator[Shell]:
    """Open a shell in a folder with the examples; servers that name no port get ours, and commands
    ask the gateway there."""
    listen = f"127.0.0.1:{ports['8000']}"
    variables["DRAGOMAN_GATEWAY"] = f"http://{listen}"
    shutil.copytree(ROOT / "examples", folder / "examples")
    opened = Shell(folder, DRAGOMAN_LISTEN=listen, **variables)
    try:
        yield opened
    finally:
        opened.close()


def follow(typed: list[Typed], opened: Shell, ports: dict[str, str]) -> None:
    """Type a recipe; each command has to print what the page says."""
    labels: dict[str, str] = {}
    for one in typed:
        if extra := _EXTRA.fullmatch(one.command):
            assert extra[1] in _extras(), one.command
            continue
        command = _filled(moved(one.command, ports), labels)
        if _SERVES.match(command) and not command.endswith("&"):
            command += " &"
        printed = [_filled(moved(text, ports), labels) for text in one.printed]
        wanted = [text.removeprefix(SOON) for text in printed]
        until = time.monotonic() + START_WITHIN
        shown = opened.type(command)
        while printed != wanted and _lacking(wanted, shown):
            assert time.monotonic() < until, f"{command}\n{shown}\nlacks {wanted}"
            shown = opened.type(command)
        lacking = _lacking(wanted, shown)
        assert not lacking, f"{command}\n{shown}\nlacks {lacking}"
        fails = any(text.startswith("Error: ") for text in wanted)
        assert ("\nexit 0" in shown) is not fails, f"{command}\n{shown}"
        labels |= {name.upper(): value for name, value in _LABEL.findall(shown)}


def _lacking(wanted: list[str], shown: str) -> list[str]:
    """Return what was to be printed and is not."""
    return [text for text in wanted if not re.search(_pattern(text), shown)]


def _pattern(text: str) -> str:
    return _ID.pattern.join(map(re.escape, _ID.split(text))).replace("…", ".*")


def _filled(text: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        text = re.sub(rf"\b{name}\b", value, text)
    return text


def _extras() -> dict[str, list[str]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["optional-dependencies"]


def moved(text: str, ports: dict[str, str]) -> str:
    """Return a text with the ports and the gateway of this run."""
    text = text.replace(GATEWAY, "http://127.0.0.1:8000")
    for said, real in ports.items():
        text = re.sub(rf"(?<=:){said}\b", real, text)
    return text


def free_port() -> str:
    """Return a port that nobody has and nobody is given by chance."""
    for _ in range(100):
        number = random.randrange(20_000, 30_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", number))
            except OSError:
                continue
            return str(number)
    raise AssertionError("no port is free")
