"""The client that waits: other threads, other processes, and the end of the program."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from harness.serving import app_of, hosting

from dragoman import Agent, Client, Turn
from dragoman.client.sync import Iteration, Sync
from dragoman.errors import ConfigError, Unreachable

LONG = 20


def worker(begun: threading.Event) -> Agent:
    agent = Agent("Worker", "Does what it is told.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    @agent.skill
    async def wait(text: str, turn: Turn) -> AsyncGenerator[str]:
        yield text
        begun.set()
        await asyncio.Event().wait()

    return agent


WAIT = {"message_metadata": {"skillId": "wait"}}


class Site:
    """A server in a thread of its own, whose loop nobody here can block."""

    def __init__(self) -> None:
        self.url = ""
        self.begun = threading.Event()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        app = app_of(worker(self.begun))
        async with hosting(app) as self.url:
            self._ready.set()
            await asyncio.to_thread(self._stop.wait)

    def __enter__(self) -> "Site":
        self._thread.start()
        assert self._ready.wait(LONG)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LONG)


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with Site() as running:
        yield running


@pytest.fixture
def site(server: Site) -> Site:
    server.begun.clear()
    return server


class Other:
    """A thread that makes one call, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.error


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dragoman client"]


def test_closing_ends_the_calls_of_other_threads(site: Site) -> None:
    agent = Client(site.url).sync
    sending = Other(lambda: agent.send("x", **WAIT))
    assert site.begun.wait(LONG)
    agent.close()
    assert isinstance(sending.ended(), Unreachable)
    assert not client_threads()


def test_closing_ends_the_streams_of_other_threads(site: Site) -> None:
    agent = Client(site.url).sync
    reading = Other(lambda: list(agent.stream("x", **WAIT)))
    assert site.begun.wait(LONG)
    agent.close()
    assert isinstance(reading.ended(), Unreachable)


def test_what_cannot_be_told_is_cancelled_and_told_by_the_loop(site: Site) -> None:
    agent = Client(site.url).sync
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    waiting = Other(lambda: agent.loop.run(work()))
    assert begun.wait(LONG)
    agent.close()
    error = waiting.ended()
    assert isinstance(error, Unreachable) and "closed" in str(error)


async def test_closing_the_client_closes_its_sync(site: Site) -> None:
    client = Client(site.url)
    agent = client.sync
    sending = Other(lambda: agent.send("x", **WAIT))
    assert await asyncio.to_thread(site.begun.wait, LONG)
    await client.close()
    assert isinstance(sending.ended(), Unreachable) and agent.is_closed


def test_after_closing_every_call_is_refused_and_nothing_starts(site: Site) -> None:
    client = Client(site.url)
    agent = client.sync
    with agent.stream("hello") as events:
        next(events)
        agent.close()
        with pytest.raises(Unreachable, match="closed"):
            next(events)
    for call in (agent.connect, lambda: agent.send("x"), lambda: next(agent.stream("x"))):
        with pytest.raises(ConfigError, match="closed"):
            call()
    agent.close()
    assert not client_threads()
    # The client itself is open, and gives another.
    with client.sync as again:
        assert again is not agent and again.send("x").text == "x"


def test_all_threads_share_one_loop(site: Site) -> None:
    client = Client(site.url)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found: list[Sync] = []
        others = [Other(lambda: found.append(client.sync)) for _ in range(32)]
        assert [other.ended() for other in others] == [None] * 32
    finally:
        sys.setswitchinterval(before)
    assert len(set(map(id, found))) == 1
    found[0].close()


def test_two_who_ask_for_it_at_once_get_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(site.url)
    both = threading.Barrier(2)
    honest = Client.copy

    def slow(self: Client) -> Client:
        # The second comes here too if nothing keeps it out.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return honest(self)

    monkeypatch.setattr(Client, "copy", slow)
    found: list[Sync] = []
    others = [Other(lambda: found.append(client.sync)) for _ in range(2)]
    assert [other.ended() for other in others] == [None, None]
    assert found[0] is found[1]
    found[0].close()


def test_a_client_that_nobody_refers_to_ends_its_thread(site: Site) -> None:
    assert Client(site.url).sync.send("hi").text == "hi"
    gc.collect()
    assert not client_threads()


def test_a_stream_keeps_its_client(site: Site) -> None:
    events: Iteration[Any] = Client(site.url).sync.stream("hello")
    gc.collect()
    assert len(list(events)) > 1 and events.answer.text == "hello"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_begins_anew(site: Site) -> None:
    agent = Client(site.url).sync
    assert agent.send("before").text == "before"
    events = agent.stream("x", **WAIT)
    next(events)
    child = os.fork()
    if not child:
        # Whatever happens here, the child must not go on with the tests.
        code = 1
        try:
            signal.alarm(LONG)
            is_told = False
            try:
                next(events)
            except ConfigError as error:
                is_told = "forked" in str(error)
            events.close()
            code = 0 if is_told and agent.send("child").text == "child" else 2
            agent.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # What the parent had open is as it was.
    assert next(events)
    assert agent.send("after").text == "after"
    agent.close()


@pytest.mark.parametrize("development", [False, True], ids=["plain", "-X dev"])
@pytest.mark.parametrize("open_stream", [False, True], ids=["send", "stream"])
def test_a_program_that_closes_nothing_ends_quietly(
    site: Site, development: bool, open_stream: bool
) -> None:
    program = "import sys; from dragoman import Client; agent = Client(sys.argv[1]).sync;"
    if open_stream:
        program += f" events = agent.stream('hi', **{WAIT!r}); next(events); print('hi')"
    else:
        program += " print(agent.send('hi').text)"
    options = ["-X", "dev"] if development else []
    done = subprocess.run(
        [sys.executable, *options, "-c", program, site.url],
        capture_output=True,
        text=True,
        timeout=LONG * 2,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("hi\n", "", 0)
