"""Agents that are dead, slow or flapping: what they cost is theirs, and others go on as before."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import V1, message
from harness.waiting import eventually, within

from dragoman.gateway.delivery import breaker
from dragoman.gateway.registry import health_history
from dragoman.gateway.registry.registered import Registered
from dragoman.model.identity import LOCAL
from dragoman.model.task import TaskState
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.malformed.script import result, task
from tests.gateway.raw_peer import Answer, Asked, Peer, card, http, raw_peer
from tests.gateway.registry.registries import Peer as Mute

GOOD = result({"task": task()})
# How an agent is dead: it takes a call and says nothing, or hangs up, or says a byte a second.
DEATHS: dict[str, Callable[[Asked], Answer]] = {
    "silent": lambda asked: ["hang"],
    "hanging-up": lambda asked: ["reset"],
    "dripping": lambda asked: [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
        *([b"{", 1.0] * 1000),
    ],
}


def played(name: str, asked: Asked) -> Answer:
    """An agent by its name: `good`, or dead in a way."""
    if asked.verb == "HEAD":
        return [http(b"")] if name == "good" else ["reset"]
    return GOOD(asked) if name == "good" else DEATHS[name](asked)


async def registered(gate: GatewaySite, peer: Peer, *names: str) -> list[Registered]:
    return [
        await gate.register(f"{peer.url}/{name}", name=name, card=card(f"{peer.url}/{name}"))
        for name in names
    ]


async def offered(gate: GatewaySite, agent: Registered, count: int, **metadata: Any) -> list[str]:
    """Send tasks without waiting for them; return their ids."""

    async def one() -> str:
        body = {
            "message": message("x"),
            "configuration": {"returnImmediately": True},
            "metadata": metadata,
        }
        answer = await gate.http.post(f"{gate.at(agent)}/message:send", json=body, headers=V1)
        assert answer.status_code == 200, answer.text
        return answer.json()["task"]["id"]

    return await asyncio.gather(*(one() for _ in range(count)))


async def states(gate: GatewaySite, agent: Registered, ids: list[str]) -> set[str]:
    """Wait until tasks have ended; return how."""
    found = set()
    async with gate.client(agent) as client:
        for id in ids:
            answer = await within(client.wait(id, poll_interval=0.05))
            found.add(answer.state)
    return found


@pytest.mark.parametrize("death", ["silent", "dripping"])
async def test_a_dead_agent_fills_its_own_places_and_nobody_elses(
    tmp_path: Path, death: str
) -> None:
    settings = {"agent_concurrency": 3, "agent_queue": 4}
    async with raw_peer(played) as peer, gateway(tmp_path, **settings) as gate:
        good, dead = await registered(gate, peer, "good", death)
        waiting = await offered(gate, dead, 7)
        upstreams = gate.gateway.upstreams
        await eventually(lambda: upstreams.of(dead).bulkhead.running == 3)
        await eventually(lambda: upstreams.of(dead).bulkhead.waiting == 4)
        async with gate.client(good) as client:
            for _ in range(8):
                answer = await within(client.send("x"))
                assert answer.state is TaskState.COMPLETED
        assert upstreams.of(good).bulkhead.running == 0
        # No more wait for it than may; whoever comes then is told so.
        more = await offered(gate, dead, 1)
        assert await states(gate, dead, more) == {TaskState.FAILED}
        # And nobody is asked on behalf of those who wait.
        assert peer.count(death, "send") == 3
        async with gate.client(dead) as client:
            for id in waiting:
                await within(client.cancel(id))


@contextlib.contextmanager
def blackhole() -> Iterator[str]:
    """An address that lets nobody in: its queue is full and nobody empties it."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hole"


async def test_an_agent_in_a_black_hole_costs_a_task_its_deadline_and_others_nothing(
    tmp_path: Path,
) -> None:
    async with raw_peer(played) as peer, gateway(tmp_path) as gate:
        (good,) = await registered(gate, peer, "good")
        with blackhole() as url:
            lost = await gate.register(url, name="hole", card=card(url))
            ids = await offered(gate, lost, 3, timeoutSeconds=1)
            async with gate.client(good) as client:
                for _ in range(5):
                    assert (await within(client.send("x"))).state is TaskState.COMPLETED
            assert await states(gate, lost, ids) == {TaskState.FAILED}


async def test_an_open_circuit_answers_at_once_and_dials_nobody(tmp_path: Path) -> None:
    settings = {"forward_attempts": 1}
    async with (
        raw_peer(played) as peer,
        Mute() as mute,
        gateway(tmp_path, **settings) as gate,
    ):
        (good,) = await registered(gate, peer, "good")
        mute.is_up = False
        dead = await gate.register(f"{mute.url}/a", name="dead", card=card(f"{mute.url}/a"))
        for _ in range(breaker.CONNECTIONS):
            ids = await offered(gate, dead, 1)
            assert await states(gate, dead, ids) == {TaskState.FAILED}
        assert gate.gateway.upstreams.of(dead).is_open(LOCAL)
        mute.is_up = True
        body = {"message": message("x")}
        refused = await gate.http.post(f"{gate.at(dead)}/message:send", json=body, headers=V1)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        said = await gate.refusal("SendMessage", body, path=f"/a2a/{dead.name}", headers=V1)
        assert said["code"] == -32057, said
        # Looks are no messages.
        assert "POST" not in {verb for verb, _, _ in mute.asked}
        # Neither is a task made that nobody does, and others are served.
        async with gate.client(good) as client:
            assert (await within(client.send("x"))).state is TaskState.COMPLETED


@pytest.mark.parametrize("death", ["hanging-up", "500", "503", "no JSON"])
async def test_a_dead_agent_is_asked_hardly_more_than_was_offered(
    tmp_path: Path, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST", 60.0)
    replies: dict[str, Answer] = {
        "500": [http(b"oops", "500 Oops")],
        "503": [http(b"busy", "503 Busy")],
        "no JSON": [http(b"{")],
        "hanging-up": ["reset"],
    }
    count = 60

    def dying(name: str, asked: Asked) -> Answer:
        return replies[death]

    settings = {"forward_attempts": 3, "forward_patience": 2.0, "forward_timeout": 30.0}
    async with raw_peer(dying) as peer, gateway(tmp_path, **settings) as gate:
        (dead,) = await registered(gate, peer, "dead")
        ids = await offered(gate, dead, count)
        assert await states(gate, dead, ids) == {TaskState.FAILED}
        assert gate.gateway.upstreams.of(dead).is_open(LOCAL)
        asked = [one for _, one in peer.requests if one.verb == "POST"]
        # Fewer where the circuit opened before the last of them had its turn.
        assert breaker.LEAST <= len(asked) <= 1.1 * count


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes come in a moment, and as many as in real life."""
    monkeypatch.setattr(health_history, "APART", 100)
    monkeypatch.setattr(breaker, "FIRST", 0.2)


@contextlib.asynccontextmanager
async def flapping(folder: Path) -> AsyncIterator[tuple[GatewaySite, Registered, dict[str, bool]]]:
    """A gateway, an agent of it, and whether that is up."""
    life = {"is_up": True}

    def flap(name: str, asked: Asked) -> Answer:
        if not life["is_up"]:
            return ["reset"]
        return [http(b"")] if asked.verb == "HEAD" else GOOD(asked)

    settings = {"forward_attempts": 1, "heartbeat_interval": 0.5}
    async with raw_peer(flap) as peer, gateway(folder, **settings) as gate:
        (agent,) = await registered(gate, peer, "flapping")
        yield gate, agent, life


@pytest.mark.usefixtures("soon")
async def test_a_flapping_agent_is_ejected_by_what_callers_see_and_readmitted_by_probes(
    tmp_path: Path,
) -> None:
    async with flapping(tmp_path) as (gate, agent, life):
        registry = gate.gateway.registry

        def status() -> str:
            found = registry.get(agent.id)
            assert found is not None
            return found.status

        async with gate.client(agent) as client:
            assert (await within(client.send("x"))).state is TaskState.COMPLETED
        assert status() == "online"
        life["is_up"] = False
        ids = await offered(gate, agent, health_history.MISSES)
        assert await states(gate, agent, ids) == {TaskState.FAILED}
        await eventually(lambda: status() == "offline")
        life["is_up"] = True
        await eventually(lambda: status() == "online")

        async def again() -> Any:
            # Its circuit is tried by the first caller after a while.
            body = {"message": message("x")}
            answer = await gate.http.post(f"{gate.at(agent)}/message:send", json=body, headers=V1)
            assert answer.status_code in (200, 503)
            return answer.json()["task"] if answer.status_code == 200 else None

        assert (await eventually(again))["status"]["state"] == "TASK_STATE_COMPLETED"
