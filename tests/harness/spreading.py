"""A run of all tests on several processes: they are collected once, and the process forks.

Files go to whichever process is free, in the order of the collection. A file's tests stay together,
because they may share a server. A process that dies costs the test it was at, and another one does
what it had left.
"""

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from tempfile import TemporaryFile
from typing import Any

import pytest

# A fork has all that was collected without a word of it being loaded again.
_FORKS = get_context("fork")
# Bytes of memory that a process takes, with the servers that its tests start.
_MEMORY_OF_ONE = 3 << 29
# A test waits for processes and clocks longer than it computes.
_PROCESSES_OF_A_CORE = 5
_NUMBER = 4
# Seconds without a word after which we look whether all live.
_LOOK_AFTER = 5.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", default="1", help="how many run the tests; `auto`: as suits this machine"
    )


def number_of_processes(config: pytest.Config) -> int:
    """Return how many processes were asked for."""
    said: str = config.getoption("processes")
    if said != "auto":
        return int(said)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = os.cpu_count() or 1
    return max(1, min(_PROCESSES_OF_A_CORE * cores, memory // _MEMORY_OF_ONE))


def beside_each_other(shares: Sequence[Callable[[], object]]) -> None:
    """Call each in a process of its own, and wait for all; what they return is lost."""
    children = [_FORKS.Process(target=share) for share in shares]
    for child in children:
        child.start()
    for child in children:
        child.join()


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    many = number_of_processes(config)
    if many == 1 or session.testsfailed or config.option.collectonly:
        return None
    # Results of several files come mixed: a name before each would be most of what is shown.
    _plugin(config, "terminalreporter").showfspath = False
    _Run(session).run(many)
    return True


class _Run:
    """What the first process knows of the others."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
        self._children: dict[Connection, _Child] = {}
        self._begun = 0
        # The numbers of the files that no process has taken yet.
        self._queue, mouth = os.pipe()
        with open(mouth, "wb") as stream:
            stream.writelines(number.to_bytes(_NUMBER) for number in range(len(self._files)))
        # Made before the fork, so that all have theirs in one place.
        _folders(session.config).getbasetemp()

    def run(self, many: int) -> None:
        try:
            for _ in range(min(many, len(self._files))):
                self._start(())
            while self._children:
                self._listen()
        finally:
            for child in self._children.values():
                child.process.terminate()
            os.close(self._queue)

    def _start(self, left: Sequence[pytest.Item]) -> None:
        ours, theirs = _FORKS.Pipe(duplex=False)
        self._begun += 1
        process = _FORKS.Process(
            target=_run_files,
            args=(self._session, self._files, self._queue, left, theirs, self._begun),
        )
        process.start()
        theirs.close()
        self._children[ours] = _Child(process, deque(left))

    def _listen(self) -> None:
        lines = wait(list(self._children), _LOOK_AFTER)
        for line in lines:
            assert isinstance(line, Connection)
            try:
                self._hear(self._children[line], *line.recv())
            except EOFError:
                self._bury(line)
        if not lines:
            # What a test forked may hold the line of a process that is dead.
            for line, child in list(self._children.items()):
                if not child.process.is_alive():
                    self._bury(line)

    def _hear(self, child: "_Child", kind: str, value: Any) -> None:
        if kind == "file":
            child.left.extend(self._files[value])
        elif kind == "item":
            child.at = child.left.popleft()
        else:
            self._report(value)

    def _report(self, data: dict[str, object]) -> None:
        hook = self._session.config.hook
        report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
        hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _bury(self, line: Connection) -> None:
        """Let another do what a process had left that has ended."""
        line.close()
        child = self._children.pop(line)
        child.process.join()
        if child.process.exitcode == 0:
            return
        said = f"the process of this test ended with {child.process.exitcode}"
        if child.at is None:
            raise RuntimeError(said)
        report = pytest.TestReport(
            child.at.nodeid, child.at.location, {}, "failed", longrepr=said, when="call"
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        self._start(tuple(child.left))


class _Child:
    def __init__(self, process: BaseProcess, left: deque[pytest.Item]) -> None:
        self.process = process
        # What it has taken and not begun, and the test that it is at.
        self.left = left
        self.at: pytest.Item | None = None


class _Sender:
    """Takes the place of the terminal in the other processes."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line

    def pytest_runtest_logstart(self) -> None:
        self._line.send(("item", None))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("report", data))


def _run_files(
    session: pytest.Session,
    files: Sequence[Sequence[pytest.Item]],
    queue: int,
    left: Iterable[pytest.Item],
    line: Connection,
    number: int,
) -> None:
    """Run what another has left, then files until there are none; this is a process of its own."""
    config = session.config
    random.seed()
    _print_elsewhere(config)
    folders = _folders(config)
    folders._basetemp = folders.mktemp(f"process-{number}", numbered=False)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, line))
    items = _items(files, queue, left, line)
    item = next(items, None)
    while item is not None:
        # The last test of a file ends what only that file needs, and all the rest at the very end.
        following = next(items, None)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    sys.stdout.flush()


def _items(
    files: Sequence[Sequence[pytest.Item]],
    queue: int,
    left: Iterable[pytest.Item],
    line: Connection,
) -> Iterator[pytest.Item]:
    yield from left
    while number := os.read(queue, _NUMBER):
        file = int.from_bytes(number)
        line.send(("file", file))
        yield from files[file]


def _print_elsewhere(config: pytest.Config) -> None:
    """Give this process files of its own for what its tests print. The old ones stay open under
    their names: what was imported may hold `sys.stderr` as it was then."""
    if config.option.capture == "fd":
        capturing = _plugin(config, "capturemanager")._global_capturing
        for stream in (capturing.out, capturing.err):
            with TemporaryFile(buffering=0) as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno(), inheritable=False)


def _plugin(config: pytest.Config, name: str) -> Any:
    return config.pluginmanager.getplugin(name)


def _folders(config: pytest.Config) -> pytest.TempPathFactory:
    # What the fixture `tmp_path_factory` is; there is no other way to it outside a test.
    folders: Any = config
    return folders._tmp_path_factory
