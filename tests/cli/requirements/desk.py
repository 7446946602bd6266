"""Where a person sits: a home of its own, a shell, and an agent that remembers what it was asked.

The command runs as a process; the agent is scripted and plays in a thread of the test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from harness import nursery
from harness.processes import environment
from harness.waiting import eventually

from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from dragoman.testing.scripted.demo import demo
from dragoman.testing.scripted.script import ScriptStep
from dragoman.testing.scripted.serve import hosted
from dragoman.testing.scripted.stage import Stage
from tests.cli.command import fields, home

WITHIN = 60.0


class Ended(NamedTuple):
    """A command that has run."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of stdout, which is one document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Stdout, a document for each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def fields(self) -> dict[str, str]:
        """The one-line fields of stdout."""
        return fields(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a failed command, which is the document or the last line."""
        try:
            return self.json["error"]
        except ValueError:
            return self.lines[-1]["error"]


class Desk:
    """Runs commands in a folder that holds all their files, about one agent."""

    def __init__(self, folder: Path, url: str = "", agent: ScriptedAgent | None = None) -> None:
        self.folder = folder
        self.url = url
        self._agent = agent

    @property
    def agent(self) -> ScriptedAgent:
        """The agent, if it plays here."""
        assert self._agent is not None
        return self._agent

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what a command finds: nothing of this machine's user but the interpreter."""
        kept = {k: v for k, v in environment(self.folder).items() if not k.startswith("A2ACLI_")}
        return kept | home(self.folder) | dict(env or {})

    def run(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        exit: int | None = 0,
        a: str | None = None,
        cwd: Path | None = None,
    ) -> Ended:
        """Run a command about the agent to its end; `a=""` is about none. Checks its exit."""
        ref = self.url if a is None else a
        addressed = [*map(str, words), *(["-a", ref] if ref else [])]
        body = input.encode() if isinstance(input, str) else input
        code, out, err = nursery.run(
            addressed, cwd or self.folder, self.environment(env), body, WITHIN
        )
        ended = Ended(code, out.decode(), err.decode())
        assert exit is None or ended.exit == exit, f"{ended.exit}: {ended.out}\n{ended.err}"
        return ended

    def json(self, *words: str | Path, **more: Any) -> Any:
        """Run a command with `-o json`; return its document."""
        return self.run(*words, "-o", "json", **more).json

    def start(self, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen:
        """Start a command and leave it running; its ends are pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "dragoman", *map(str, words), "-a", self.url],
            # Unbuffered: `communicate` after `readline` would lose what the buffer had read ahead.
            bufsize=0,
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def shell(self, line: str, **replaced: str) -> Ended:
        """Run a line in a shell, as it was printed; `<reply>` and the like are filled in."""
        for name, text in replaced.items():
            line = line.replace(f"<{name}>", text)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        ran = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment({"PATH": path}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        return Ended(ran.returncode, ran.stdout, ran.stderr)

    def begin(self, text: str, *more: str) -> tuple[str, str]:
        """Start a task and do not wait; return its ids."""
        task = self.json("send", text, "--async", *more)["task"]
        return task["id"], task["contextId"]

    def seen(self, method: str = "") -> list[SeenRequest]:
        """Return what the agent was asked so far."""
        return self.agent.calls(method)

    def during(self, work: Callable[[], Any]) -> list[SeenRequest]:
        """Do something; return what the agent was asked meanwhile."""
        before = len(self.agent.requests)
        work()
        return self.agent.requests[before:]

    @contextmanager
    def slowed(self, until: Callable[[], object]) -> Generator[None]:
        """Have a slow agent not go on before something is true: a command may take seconds to
        start."""
        play = Stage._step

        async def step(stage: Stage, step: ScriptStep, *more: Any) -> None:
            if step.verb == "wait":
                await eventually(until)
            await play(stage, step, *more)

        with mock.patch.object(Stage, "_step", step):
            yield

    @contextmanager
    def slowed_by(self, **more: int) -> Generator[None]:
        """The same, until it was asked so often more, by the method."""
        enough = {method: len(self.seen(method)) + count for method, count in more.items()}
        with self.slowed(
            lambda: all(len(self.seen(method)) >= count for method, count in enough.items())
        ):
            yield

    def files(self) -> list[Path]:
        """Return every file under the home."""
        return [path for path in self.folder.rglob("*") if path.is_file()]


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do several things at the same time: starting a process takes longest."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


@contextmanager
def sitting(folder: Path, agent: ScriptedAgent | None = None, **changes: Any) -> Generator[Desk]:
    """Give a desk with an agent of its own: the demo one, changed as asked for, unless told."""
    played = agent or demo(**changes)
    with hosted(played) as url:
        yield Desk(folder, url, played)
