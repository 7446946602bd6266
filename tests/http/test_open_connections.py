"""What a connection keeps while a stream is open on it: thousands may be."""

import asyncio
import http.client
import json
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest
from harness.processes import AS_MODULE, running
from harness.waiting import WAIT

from dragoman.http.exchange import Exchange, Flow

AGENT = """
import asyncio
import gc
import json
from types import AsyncGeneratorType as AsyncGenerator, CoroutineType as Coroutine

from dragoman import Agent
from dragoman.http.protocol import HttpProtocol

agent = Agent("Counter", "Counts what its process has.")


@agent.skill(default=True)
async def count(text: str) -> str:
    gc.collect()
    objects = gc.get_objects()
    dictionaries = sum(hasattr(one, "__dict__") for one in objects if type(one) is HttpProtocol)
    suspended = sum(isinstance(one, Coroutine | AsyncGenerator) for one in objects)
    return json.dumps([len(asyncio.all_tasks()), dictionaries, suspended])


@agent.skill
async def hold(text: str) -> str:
    await asyncio.Event().wait()
    return text
"""
HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0"}
READERS = 20
# Coroutines and generators that wait in each other for one subscriber: some 300 bytes each.
MOST_SUSPENDED = 12


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int]:
    folder = tmp_path_factory.mktemp("open")
    (folder / "counter.py").write_text(AGENT)
    words = ("serve", "counter.py", "--listen", "127.0.0.1:0", "--store", "tasks.db")
    with running(*words, cwd=folder, command=AS_MODULE) as server:
        server.ready()
        yield server.port


def ask(port: int, method: str, **params: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    connection.request("POST", "/", json.dumps(call), HEADERS)
    return connection


def message(skill: str) -> dict[str, Any]:
    parts = [{"text": "x"}]
    metadata = {"skillId": skill}
    return {"messageId": skill, "role": "ROLE_USER", "parts": parts, "metadata": metadata}


def count(port: int, number: int) -> list[int]:
    said = message("count") | {"messageId": f"count-{number}"}
    with closing(ask(port, "SendMessage", message=said)) as connection:
        task = json.load(connection.getresponse())["result"]["task"]
    return json.loads(task["artifacts"][0]["parts"][0]["text"])


def first_event(connection: http.client.HTTPConnection) -> Any:
    response = connection.getresponse()
    while not (line := response.readline()).startswith(b"data:"):
        assert line, "the stream ended"
    return json.loads(line.removeprefix(b"data:"))


def test_an_open_stream_is_one_task_and_a_connection_has_no_dictionary(port: int) -> None:
    with closing(ask(port, "SendStreamingMessage", message=message("hold"))) as holder:
        task = first_event(holder)["result"]["task"]["id"]
        # What is made for the first of them is for all.
        readers = [ask(port, "SubscribeToTask", id=task)]
        first_event(readers[0])
        count(port, 0)
        before, dictionaries, suspended = count(port, 1)
        assert dictionaries == 0
        for _ in range(READERS):
            readers.append(ask(port, "SubscribeToTask", id=task))
            first_event(readers[-1])
        after, _, suspended_then = count(port, 2)
        # A task of the start may end meanwhile.
        assert after - before <= READERS
        assert (suspended_then - suspended) // READERS <= MOST_SUSPENDED
        for reader in readers:
            reader.close()


class Silent(asyncio.Transport):
    """A transport of which nothing is read and to which nothing is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def write(self, data: Any) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def exchange() -> Exchange:
    transport = Silent()
    return Exchange({"method": "POST"}, {}, transport, Flow(transport), lambda: None)


def test_who_watches_is_told_once_that_the_caller_is_gone() -> None:
    told: list[str] = []
    one = exchange()
    one.flow.pause_reading()
    one.watch(lambda: told.append("gone"))
    # A caller that is not read from is not seen to leave.
    assert not one.flow.read_paused
    assert told == []
    one.disconnect()
    one.disconnect()
    assert told == ["gone"]


def test_who_watches_too_late_is_told_at_once() -> None:
    told: list[str] = []
    one = exchange()
    one.disconnect()
    one.watch(lambda: told.append("gone"))
    assert told == ["gone"]


async def test_who_has_its_answer_does_not_leave() -> None:
    told: list[str] = []
    one = exchange()
    one.watch(lambda: told.append("gone"))
    await one.send({"type": "http.response.start", "status": 200, "headers": []})
    await one.send({"type": "http.response.body", "body": b"", "more_body": False})
    one.disconnect()
    assert told == []
