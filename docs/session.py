"""Write the terminal session of `tasks.md` by running it: `python docs/session.py`.

The commands are typed as they are shown, against a server that is killed in the middle. Ids, times
and the port differ from run to run and are replaced by fixed ones, so that a test can tell whether
what the page shows is still what happens.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from dragoman.testing.processes import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tasks.md"
PART = re.compile(r"^<!-- session begins -->\n.*?^<!-- session ends -->$", re.MULTILINE | re.DOTALL)
PORT = 8000
WITHIN = 60.0
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_ARTIFACT = re.compile(r"\b[0-9a-f]{32}\b")
_QUESTION = re.compile(r"\bq-[0-9a-f]{24}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Terminal:
    """A shell in which `dragoman` is typed, and what it showed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._server: ServerProcess | None = None
        self._lines: list[str] = []
        self._ids: dict[str, str] = {}

    def serve(self, *arguments: str) -> None:
        """Start a server and wait until it is ready."""
        self._typed("serve", *arguments, ending=" &")
        listen = f"127.0.0.1:{self._port}"
        self._server = ServerProcess(
            [*_DRAGOMAN, "serve", *arguments, "--listen", listen],
            log=self._folder / "server.log",
            cwd=ROOT,
            environment=self._environment(),
        )
        url = self._server.ready(WITHIN)
        self._port = self._server.port
        self._lines.append(self._fixed(f"Ready: {url}"))
        self._lines.append(self._fixed(f"Console: {url}/console"))

    def kill(self) -> None:
        """End the server as a power cut would."""
        self._lines.append("$ kill -9 %1")
        self.stop()

    def stop(self) -> None:
        """End the server without a word about it."""
        if self._server is not None:
            self._server.kill()

    def run(self, *arguments: str) -> str:
        """Type a command; return what it printed."""
        self._typed(*arguments)
        told = [argument.replace(f"localhost:{PORT}", self._address) for argument in arguments]
        ended = subprocess.run(
            [*_DRAGOMAN, *told],
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A terminal shows both.
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN,
        )
        assert ended.returncode == 0, ended.stdout
        self._lines += self._fixed(ended.stdout).rstrip("\n").split("\n")
        return ended.stdout

    def gap(self) -> None:
        """Leave a line between two commands."""
        self._lines.append("")

    def shown(self) -> str:
        """Return the session as a block of Markdown."""
        return "\n".join(["```console", *self._lines, "```"])

    @property
    def _address(self) -> str:
        return f"localhost:{self._port}"

    def _typed(self, *arguments: str, ending: str = "") -> None:
        words = [f'"{word}"' if " " in word else word for word in arguments]
        self._lines.append(self._fixed(f"$ dragoman {' '.join(words)}{ending}"))

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | {"HOME": str(self._folder)}

    def _fixed(self, text: str) -> str:
        """Return a text with the ids, times and port of every other run."""
        for found in (*_ID.findall(text), *_ARTIFACT.findall(text)):
            number = len(self._ids) + 1
            self._ids.setdefault(found, f"01997c4e-5a10-7{number:03x}-8000-{number:012x}")
        for found, fixed in self._ids.items():
            text = text.replace(found, fixed)
        text = _QUESTION.sub("q-01997c4e5a10700380000003", text)
        text = _TIME.sub("2026-11-16T12:00:00.000Z", text)
        return text.replace(f":{self._port}", f":{PORT}") if self._port else text


_DRAGOMAN = [sys.executable, "-m", "dragoman"]


def session() -> str:
    """Return what happens: a task asks, its server dies, and the answer finds it all the same."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder))
        agent = f"localhost:{PORT}"
        try:
            terminal.serve("examples/approval.py")
            asked = terminal.run("send", "-a", agent, "250")
            task = re.findall(r"^Task: (\S+)$", asked, re.MULTILINE)[0]
            terminal.gap()
            terminal.kill()
            terminal.serve("examples/approval.py")
            terminal.run("send", "-a", agent, "--task-id", task, "yes")
            terminal.gap()
            terminal.run("task", "list", "-a", agent)
            return terminal.shown()
        finally:
            terminal.stop()


def main() -> None:
    """Write the session into the page."""
    text = PAGE.read_text(encoding="utf-8")
    shown = f"<!-- session begins -->\n{session()}\n<!-- session ends -->"
    PAGE.write_text(PART.sub(lambda _: shown, text), encoding="utf-8")


if __name__ == "__main__":
    main()
