"""Our client through cuts at any byte: before our own server, which is another process, and before
agents whose streams have no positions. Without its guards the same checks find something."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.stub_servers import listening

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.client import Client
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.client.streams.shown_task import Shown, ShownTask
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.model.events import ArtifactUpdate
from dragoman.model.task import Task, TaskState
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.serve import serving
from proof.wire import chaos, cuts
from proof.wire.chaos import at_byte, between_events, in_head, in_size

WITHIN = 180.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
EVENT = b"id: 7\ndata: {}\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
ANSWER = HEAD + CHUNK * 3


# The proxy


def test_an_answer_breaks_where_it_is_told_to() -> None:
    first = len(HEAD) + len(CHUNK)
    assert in_head(0.0)(ANSWER) == 0
    assert in_head(0.5)(ANSWER) == len(HEAD) // 2
    assert in_head(0.5)(HEAD[:-1]) is None
    assert at_byte(3)(ANSWER) == len(HEAD) + 3
    assert at_byte(3)(HEAD) is None
    assert between_events(0)(ANSWER) == first
    assert between_events(2)(ANSWER) == len(ANSWER)
    assert between_events(3)(ANSWER) is None
    # The first size comes with the head, and of the second there is one digit.
    assert ANSWER[: in_size(1)(ANSWER)] == HEAD + CHUNK + b"1"
    assert in_size(3)(ANSWER) is None


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(answer)

    async with listening(connected) as port:
        yield port


async def test_the_proxy_cuts_most_streams_and_passes_everything_once_told() -> None:
    async with answering(ANSWER) as port, chaos.chaos(port, random.Random(1), rate=1.0) as proxy:
        target = int(proxy.address.rpartition(":")[2])
        lengths: set[int] = set()
        for _ in range(40):
            lengths.add(len(await _read(target, len(ANSWER))))
        assert proxy.total > 10 and len(lengths) > 5 and max(lengths) <= len(ANSWER) + 5
        proxy.is_cutting = False
        assert await _read(target, len(ANSWER)) == ANSWER


async def _read(port: int, size: int) -> bytes:
    """Ask once; return what came up to a size or the end."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /\n")
        found = b""
        try:
            while len(found) < size and (data := await reader.read(size)):
                found += data
        except ConnectionResetError:
            pass
        writer.close()
        return found


# Before our own server


async def test_what_is_shown_through_cuts_is_what_an_undisturbed_reader_is_shown(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(WITHIN):
        result = await cuts.prove(300, 4, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.cuts >= 300 and result.tasks > 30 and result.events > 1000
    assert len(result.ways) == len(cuts.WAYS) and all(result.ways.values())
    assert {"head", "byte", "size", "between"} <= set(result.places)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    def move(self: ShownTask, seq: int) -> None:
        # One event more than was shown.
        self.cursor = seq + 1

    monkeypatch.setattr(ShownTask, "move", move)


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: ReplayFilter, task: Task, pending: Any = ()) -> list[Any]:
        return [] if self._task is not None else [task]

    monkeypatch.setattr(ReplayFilter, "missing", missing)


@pytest.mark.parametrize(
    ("sabotage", "figure"), [(forgetful, "differing"), (careless, "folded_wrong")]
)
async def test_a_client_without_its_guard_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sabotage: Any, figure: str
) -> None:
    sabotage(monkeypatch)
    monkeypatch.setattr(cuts, "TASK_WITHIN", 20.0)
    async with asyncio.timeout(WITHIN):
        result = await cuts.prove(60, 4, folder=tmp_path, readers=12)
    assert not result.kept and getattr(result, figure) > 0 and result.findings


async def test_a_client_that_sends_again_where_nobody_promises_to_work_once_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(AgentConnection, "may_repeat", lambda *_: True)
    monkeypatch.setattr(cuts, "TASK_WITHIN", 20.0)
    async with asyncio.timeout(WITHIN):
        result = await cuts.prove(
            60, 4, folder=tmp_path, readers=12, environment={"DRAGOMAN_IDEMPOTENCY": "false"}
        )
    assert not result.kept and result.doubled > 0


# Before agents of others

SCRIPT = {
    "rules": [
        {
            "steps": [
                {"say": "I begin."},
                {"artifact": "log", "text": "0 "},
                {
                    "repeat": 30,
                    "steps": [
                        {"artifact": "log", "text": "{i} ", "append": True},
                        {"say": "{i} done."},
                        {"artifact": "count", "text": "{i} so far"},
                        {"wait": "2ms"},
                    ],
                },
                {"state": "completed", "text": "That was it."},
            ]
        }
    ]
}
BINDINGS = [("1.0", JSONRPC), ("1.0", HTTP_JSON), ("0.3", JSONRPC)]
AT_ONCE = 4


@pytest.mark.parametrize("cursors", [False, True])
@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_a_scripted_agent_is_followed_through_cuts(
    version: str, binding: str, cursors: bool
) -> None:
    agent = ScriptedAgent(SCRIPT | {"cursors": cursors, "dedupe": cursors})
    async with asyncio.timeout(WITHIN), serving(agent) as url:
        port = int(url.rpartition(":")[2])
        async with Client(url) as direct:
            way = cuts.Way(version, binding, True)
            found = await asyncio.gather(
                *(followed(direct, way, port, f"{version}{binding}{n}") for n in range(AT_ONCE))
            )
    # Whoever cannot be taken up again is asked, and short answers are seldom cut.
    assert sum(found) >= (1 if version == "0.3" and not cursors else AT_ONCE)
    assert len(agent.tasks) == AT_ONCE


async def followed(direct: Client, way: cuts.Way, port: int, seed: str) -> int:
    """Have a task done; return how many cuts it took."""
    async with chaos.chaos(port, random.Random(seed)) as proxy:
        # Without a promise to work once, the answer to the send itself may not be lost.
        proxy.is_cutting = direct.card.capabilities.extensions != []
        async with Client(cuts.behind(direct.card, way, proxy.address)) as client:
            shown: list[Shown] = []
            async with client.stream("go") as stream:
                async for event in stream:
                    shown.append(event)
                    if not proxy.is_cutting:
                        proxy.is_cutting = True
                        await proxy.close()
            task = await direct.get(stream.task_id)
    assert cuts.differs(stream.task, task) == ""
    assert stream.task is not None and stream.task.status.state is TaskState.COMPLETED
    log = [e for e in shown if isinstance(e, ArtifactUpdate) and e.artifact.artifact_id == "log"]
    opening = [a for a in shown[0].artifacts if a.artifact_id == "log"]  # type: ignore[union-attr]
    told = [*opening, *(e.artifact for e in log)]
    assert "".join(str(part.text) for a in told for part in a.parts) == "".join(
        f"{n} " for n in range(31)
    )
    return proxy.total
