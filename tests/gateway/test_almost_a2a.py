"""Agents whose answers are almost A2A, as they were seen: called directly and through a gateway."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting
from harness.waiting import within

from dragoman import Client
from dragoman.client.agent_connection import FOUND_LATER
from dragoman.client.pending_request import NotServed
from dragoman.dialects.leniency import OTHER_SHAPE
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import Principal
from dragoman.model.task import Task, TaskState
from tests.gateway.gateway_site import gateway, log

IDS = {"taskId": "t-1", "contextId": "c-1"}
NO_A2A = "There is no A2A at this address: it answers 404."
# What an agent says: a list is a stream, None never comes.
Answering = Callable[["Peer", str, Any], Any]


class Peer:
    """An agent that says exactly what it is told to."""

    def __init__(self, answering: Answering, *, binding: str = "JSONRPC", path: str = "") -> None:
        self._answering = answering
        self._binding = binding
        self._path = path
        self.url = ""
        # What it was asked: the methods of JSON-RPC, or the paths of REST.
        self.asked: list[str] = []

    @property
    def card(self) -> dict[str, Any]:
        url = self.url + self._path
        shown = {
            "name": "Almost",
            "description": "Speaks almost A2A.",
            "version": "1.0.0",
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "a", "name": "A", "description": "A.", "tags": ["a"]}],
        }
        if self._binding == "JSONRPC":
            one = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            return shown | {"supportedInterfaces": [one]}
        old = {"url": url, "preferredTransport": "HTTP+JSON", "protocolVersion": "0.3.0"}
        return shown | old

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"] or b"{}")
        if scope["path"].endswith("/agent-card.json"):
            await _answer(send, 200, self.card)
            return
        name = body["method"] if self._binding == "JSONRPC" else scope["path"]
        self.asked.append(name)
        said = self._answering(self, name, body)
        if said is None:
            await asyncio.Event().wait()
        elif isinstance(said, int):
            await _answer(send, said, {"detail": "Not Found"})
        elif isinstance(said, list):
            await _stream(send, [self._wrapped(body, one) for one in said])
        else:
            await _answer(send, 200, self._wrapped(body, said))

    def _wrapped(self, body: Any, value: Any) -> Any:
        if self._binding != "JSONRPC":
            return value
        return {"jsonrpc": "2.0", "id": body["id"], "result": value}


async def _answer(send: Any, status: int, value: Any) -> None:
    kind = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


async def _stream(send: Any, events: list[Any]) -> None:
    kind = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    body = b"".join(b"event: message\ndata: " + json.dumps(e).encode() + b"\n\n" for e in events)
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def playing(peer: Peer) -> AsyncGenerator[Peer]:
    async with hosting(peer, lifespan="off") as peer.url:
        yield peer


def said(text: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    return {
        "kind": "message",
        "role": "ROLE_AGENT",
        "messageId": f"m-{text}",
        "parts": parts,
        **IDS,
    }


def status(state: str, **more: Any) -> dict[str, Any]:
    inner = {"state": state, "timestamp": "2026-11-17T10:00:00.000001+00:00", **more}
    is_final = state in ("TASK_STATE_COMPLETED", "completed")
    return {**IDS, "kind": "status-update", "status": inner, "final": is_final}


def task(state: str, **more: Any) -> dict[str, Any]:
    inner = {"state": state, "timestamp": "2026-11-17T10:00:00.000001+00:00"}
    return {"kind": "task", "id": "t-1", "contextId": "c-1", "status": inner, **more}


RESULT = {
    "artifactId": "a-1",
    "name": "Assistant Response",
    "parts": [{"kind": "text", "text": "pong"}, {"kind": "file", "file": {"bytes": "AAH/"}}],
}
CHUNK = {**IDS, "kind": "artifact-update", "artifact": RESULT, "append": False, "lastChunk": True}
# LangGraph's server: its card says 1.0, the first event is wrapped, all others are flat.
LANGGRAPH = [
    {"task": task("TASK_STATE_SUBMITTED")},
    status("TASK_STATE_WORKING"),
    status("TASK_STATE_WORKING", message=said("thinking")),
    CHUNK,
    status("TASK_STATE_COMPLETED"),
]
# The same in the words of 0.3 altogether.
FLAT = [
    task("submitted"),
    status("working", message=said("thinking") | {"role": "agent"}),
    CHUNK,
    status("completed"),
]


@pytest.mark.parametrize("events", [LANGGRAPH, FLAT], ids=["langgraph", "all of 0.3"])
async def test_flat_events_within_a_stream_of_1_0_are_read_by_their_kind(
    events: list[Any], tmp_path: Path
) -> None:
    async with playing(Peer(lambda *_: events)) as peer, gateway(tmp_path) as site:
        async with Client(peer.url) as client:
            follow = client.stream("ping")
            shown = await within(_all(follow))
        assert [type(one) for one in shown[-2:]] == [ArtifactUpdate, StatusUpdate]
        assert follow.answer.state is TaskState.COMPLETED and follow.answer.text == "pong"
        assert [file.raw for file in follow.answer.files] == [b"\x00\x01\xff"]
        assert follow.leniencies == {OTHER_SHAPE}

        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            answer = await within(client.send("ping"))
        assert (answer.state, answer.text) == (TaskState.COMPLETED, "pong")
        assert OTHER_SHAPE.encode() in b"".join(await log(site, answer.task_id))
        seen = (await site.http.get(f"/api/v1/agents/{agent.id}")).json()["data"]
        assert seen["conformance"]["deviations"] == [OTHER_SHAPE]
        lost = 20 + 5 * len(seen["conformance"]["findings"])
        assert seen["conformance"]["score"] == 100 - lost
        assert seen["retries_left"] == 3


async def test_answers_in_the_right_shape_leave_no_note(tmp_path: Path) -> None:
    whole = {k: v for k, v in task("TASK_STATE_COMPLETED").items() if k != "kind"}
    whole["artifacts"] = [{"artifactId": "a", "parts": [{"text": "pong"}]}]
    async with playing(Peer(lambda *_: [{"task": whole}])) as peer, gateway(tmp_path) as site:
        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            answer = await within(client.send("ping"))
        assert answer.text == "pong" and peer.asked == ["SendStreamingMessage"]
        assert b"lenient" not in b"".join(await log(site, answer.task_id))


@pytest.mark.parametrize(
    "broken", [{}, {"status": {}}, task("TASK_STATE_COMPLETED") | {"status": {}}]
)
async def test_what_means_nothing_in_any_version_is_still_refused(
    broken: Any, tmp_path: Path
) -> None:
    async with playing(Peer(lambda *_: [broken])) as peer, gateway(tmp_path) as site:
        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            answer = await within(client.send("ping"))
        assert answer.state is TaskState.FAILED
        assert answer.text.startswith("The agent's answer is not valid A2A")


def _empty(read: Any) -> Answering:
    """Complete tasks with nothing in them; `read` is what they are when they are read."""

    def answer(peer: Peer, method: str, body: Any) -> Any:
        match method:
            case "SendStreamingMessage":
                return [{"task": task("TASK_STATE_SUBMITTED")}, status("TASK_STATE_COMPLETED")]
            case "SendMessage":
                return {"task": task("TASK_STATE_COMPLETED")}
            case _:
                return read

    return answer


FULL = task("TASK_STATE_COMPLETED", artifacts=[RESULT])
TOLD = task("TASK_STATE_COMPLETED", history=[said("pong")])


@pytest.mark.parametrize("read", [FULL, TOLD], ids=["an artifact", "a message"])
async def test_a_task_that_is_complete_with_nothing_in_it_is_read_once_more(
    read: Any, tmp_path: Path
) -> None:
    async with playing(Peer(_empty(read))) as peer, gateway(tmp_path) as site:
        async with Client(peer.url) as client:
            assert (await within(client.send("ping"))).text == "pong"
            assert peer.asked == ["SendMessage", "GetTask"]
            follow = client.stream("ping")
            shown = await within(_all(follow))
        assert follow.answer.text == "pong"
        # The end is told last, and once.
        states = [one.status.state for one in shown if isinstance(one, StatusUpdate | Task)]
        assert states[-1] is TaskState.COMPLETED and states.count(TaskState.COMPLETED) == 1
        assert FOUND_LATER in follow.leniencies

        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            answer = await within(client.send("ping"))
        assert (answer.state, answer.text) == (TaskState.COMPLETED, "pong")
        assert FOUND_LATER.encode() in b"".join(await log(site, answer.task_id))


ASKED = [said("where") | {"role": "ROLE_USER"}, said("which"), said("this") | {"role": "ROLE_USER"}]


def _spoken(read: Any) -> Answering:
    """Say something on the way, and complete tasks with no more than that."""

    def answer(peer: Peer, method: str, body: Any) -> Any:
        match method:
            case "SendStreamingMessage":
                working = status("TASK_STATE_WORKING", message=said("thinking"))
                return [
                    {"task": task("TASK_STATE_SUBMITTED")},
                    working,
                    status("TASK_STATE_COMPLETED"),
                ]
            case "SendMessage":
                return {"task": task("TASK_STATE_COMPLETED", history=ASKED)}
            case _:
                return read

    return answer


async def test_what_was_said_on_the_way_is_no_result(tmp_path: Path) -> None:
    async with playing(Peer(_spoken(FULL))) as peer, gateway(tmp_path) as site:
        async with Client(peer.url) as client:
            assert (await within(client.send("this"))).text == "pong"
            follow = client.stream("ping")
            await within(_all(follow))
        assert follow.answer.text == "pong" and FOUND_LATER in follow.leniencies
        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            assert (await within(client.send("ping"))).text == "pong"


async def test_one_who_said_all_on_the_way_is_read_for_nothing_and_not_blamed() -> None:
    read = task("TASK_STATE_COMPLETED", history=[said("thinking")])
    async with playing(Peer(_spoken(read))) as peer, Client(peer.url) as client:
        follow = client.stream("ping")
        await within(_all(follow))
        assert follow.answer.state is TaskState.COMPLETED
        assert FOUND_LATER not in follow.leniencies and peer.asked.count("GetTask") == 1


@pytest.mark.parametrize("read", [500, 404, task("TASK_STATE_COMPLETED"), task("working")])
async def test_one_that_stays_empty_is_told_as_it_is(read: Any) -> None:
    async with playing(Peer(_empty(read))) as peer, Client(peer.url) as client:
        answer = await within(client.send("ping"))
        assert (answer.state, answer.text) == (TaskState.COMPLETED, "")
        follow = client.stream("ping")
        await within(_all(follow))
        assert follow.answer.state is TaskState.COMPLETED
        assert FOUND_LATER not in follow.leniencies
        assert peer.asked.count("GetTask") == 2


async def test_one_that_nobody_tells_more_of_is_not_held_back_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.client.agent_connection.READ_AGAIN_WITHIN", 0.05)
    async with playing(Peer(_empty(None))) as peer, Client(peer.url) as client:
        assert (await within(client.send("ping"))).state is TaskState.COMPLETED


# Addresses


def _rest(prefix: str) -> Answering:
    """Serve 0.3 below a prefix, and nothing elsewhere."""

    def answer(peer: Peer, path: str, body: Any) -> Any:
        if path == f"{prefix}/v1/message:send":
            return {"task": DONE}
        return [{"task": DONE}] if path == f"{prefix}/v1/message:stream" else 404

    return answer


DONE = {
    "id": "t-1",
    "contextId": "c-1",
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": [{"artifactId": "a", "parts": [{"text": "pong"}]}],
}


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/api/v1"])
async def test_a_rest_address_that_ends_with_v1_is_not_doubled(path: str, tmp_path: Path) -> None:
    base = path.rstrip("/").removesuffix("/v1")
    peer = Peer(_rest(base), binding="HTTP+JSON", path=path)
    async with playing(peer), gateway(tmp_path) as site:
        async with Client(peer.url) as client:
            assert (await within(client.send("ping"))).text == "pong"
        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            assert (await within(client.send("ping"))).text == "pong"
    assert not [one for one in peer.asked if "/v1/v1" in one]


async def test_one_that_is_served_below_its_v1_is_found_there() -> None:
    peer = Peer(_rest("/v1"), binding="HTTP+JSON", path="/v1")
    async with playing(peer), Client(peer.url) as client:
        for _ in range(2):
            assert (await within(client.send("ping"))).text == "pong"
    assert peer.asked == ["/v1/message:send", *["/v1/v1/message:send"] * 2]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_no_a2a_at_an_address_is_said_and_opens_no_circuit(
    binding: str, tmp_path: Path
) -> None:
    async with playing(Peer(lambda *_: 404, binding=binding)) as peer, gateway(tmp_path) as site:
        async with Client(peer.url) as client:
            with pytest.raises(NotServed, match=NO_A2A.removesuffix(".")):
                await within(client.send("ping"))
        agent = await site.register(peer.url)
        async with site.client(agent) as client:
            # More than failed connections that open it.
            for _ in range(7):
                answer = await within(client.send("ping"))
                assert (answer.state, answer.text) == (TaskState.FAILED, NO_A2A)
        circuits = site.gateway.upstreams.of(agent).circuits
        assert circuits.address(agent.url).snapshot().failures == 0
        assert circuits.caller(agent.url, Principal("", "")) is None


async def _all(events: Any) -> list[Any]:
    return [event async for event in events]
