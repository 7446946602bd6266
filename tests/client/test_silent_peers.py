"""A client and an agent that is silent with its connection open."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman import Client
from dragoman.client.streams.life_signs import NoSignOfLife
from dragoman.errors import ConfigError, DeliveryUnknown, TimedOut
from tests.gateway.raw_peer import STREAM, Answer, Asked, Move, Peer, card, http, raw_peer

PATIENCE = 1.0
WITHIN = 60.0
WORKING = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
DONE = WORKING | {"status": {"state": "TASK_STATE_COMPLETED"}}

Ask = Callable[[Client], Any]


async def followed(events: Any) -> Any:
    async with events:
        return [event async for event in events]


ASKS: dict[str, Ask] = {
    "send": lambda client: client.send("x"),
    "send at once": lambda client: client.send("x", wait=False),
    "stream": lambda client: followed(client.stream("x")),
    "subscribe": lambda client: followed(client.subscribe("t-1")),
    "wait": lambda client: client.wait("t-1"),
    "wait by polls": lambda client: client.wait("t-1", stream=False),
    "in a thread": lambda client: asyncio.to_thread(client.sync.send, "x"),
}


def frame(asked: Asked, value: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": asked.id, "result": value}
    return b"data: %b\n\n" % json.dumps(body).encode()


def answered(asked: Asked, value: Any, *before: Move) -> Answer:
    body = {"jsonrpc": "2.0", "id": asked.id, "result": value}
    return [*before, http(json.dumps(body).encode())]


def opened(asked: Asked, *more: Move) -> Answer:
    return [STREAM, frame(asked, {"task": WORKING}), *more]


def client(peer: Peer, folder: Any, *, streaming: bool = True, **more: Any) -> Client:
    shown = folder / "card.json"
    shown.write_text(json.dumps(card(f"{peer.url}/raw", streaming=streaming)))
    return Client(shown, **{"quiet": 0.2, "patience": PATIENCE} | more)


@pytest.mark.parametrize("streaming", [True, False])
async def test_calls_to_an_agent_that_never_answers_end(tmp_path: Any, streaming: bool) -> None:
    """All of them at once: each takes as long as patience lasts."""
    async with raw_peer(lambda _, asked: ["hang"]) as peer:

        async def outcome(agent: Client, ask: Ask) -> Any:
            async with agent:
                with pytest.raises(TimedOut) as raised:
                    await ask(agent)
            return type(raised.value)

        agents = [client(peer, tmp_path, streaming=streaming) for _ in ASKS]
        async with asyncio.timeout(WITHIN):
            found = await asyncio.gather(*map(outcome, agents, ASKS.values()))
    assert dict(zip(ASKS, found, strict=True)) == dict.fromkeys(ASKS, NoSignOfLife)


@pytest.mark.parametrize("after", [[], [b"data: {"], [b": alive\n\n"]], ids=repr)
async def test_a_stream_that_falls_silent_ends(tmp_path: Any, after: list[Move]) -> None:
    def played(_: str, asked: Asked) -> Answer:
        return opened(asked, *after, "hang") if asked.operation == "send" else ["hang"]

    async with raw_peer(played) as peer:  # noqa: SIM117 - the client ends first
        async with client(peer, tmp_path) as agent, asyncio.timeout(WITHIN):
            events = agent.stream("x")
            with pytest.raises(NoSignOfLife) as raised:
                await followed(events)
            assert raised.value.facts["taskId"] == events.task_id == "t-1"
            # It was asked meanwhile, on other connections.
            assert peer.count("raw", "get") >= 2


@pytest.mark.parametrize("name", ["send", "stream"])
async def test_an_agent_that_takes_long_and_answers_questions_is_waited_for(
    tmp_path: Any, name: str
) -> None:
    """Whatever it says to them."""

    def played(_: str, asked: Asked) -> Answer:
        if asked.operation == "get":
            return [http(b"", "404 Not Found")]
        if asked.is_stream:
            return [3 * PATIENCE, STREAM, frame(asked, {"task": DONE}), "end"]
        return answered(asked, {"task": DONE}, 3 * PATIENCE)

    async with raw_peer(played) as peer:  # noqa: SIM117 - the client ends first
        async with client(peer, tmp_path) as agent, asyncio.timeout(WITHIN):
            await ASKS[name](agent)
            assert peer.count("raw", "send") == 1 and peer.count("raw", "get") >= 2


async def test_whoever_does_not_read_for_long_has_not_been_left_alone(tmp_path: Any) -> None:
    """Neither is the agent asked, nor is it given up: it is us who do not listen."""

    def played(_: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return ["hang"]
        return opened(asked, 2 * PATIENCE, frame(asked, {"task": DONE}), "end")

    async with raw_peer(played) as peer:  # noqa: SIM117 - the client ends first
        async with client(peer, tmp_path) as agent, asyncio.timeout(WITHIN):
            events = agent.stream("x")
            await anext(events)
            await asyncio.sleep(3 * PATIENCE)
            assert peer.count("raw", "get") == 0
            async for _ in events:
                pass
            assert events.task is not None and events.task.status.state.is_terminal


async def test_a_message_is_not_sent_again_when_the_comments_of_its_stream_stop(
    tmp_path: Any,
) -> None:
    def played(_: str, asked: Asked) -> Answer:
        alive: list[Move] = [b": alive\n\n", 0.05]
        return [STREAM, *alive * 5, "hang"] if asked.operation == "send" else unknown(asked)

    def unknown(asked: Asked) -> Answer:
        error = {"jsonrpc": "2.0", "id": asked.id, "error": {"code": -32001, "message": "no"}}
        return [http(json.dumps(error).encode())]

    async with raw_peer(played) as peer:  # noqa: SIM117 - the client ends first
        async with client(peer, tmp_path, patience=60.0, quiet=20.0) as agent:
            with pytest.raises(DeliveryUnknown):
                async with asyncio.timeout(WITHIN):
                    await followed(agent.stream("x"))
            assert peer.count("raw", "send") == 1


async def test_a_client_without_patience_of_its_own_waits(tmp_path: Any) -> None:
    async with raw_peer(lambda _, asked: ["hang"]) as peer:  # noqa: SIM117 - the client ends first
        async with client(peer, tmp_path, patience=None) as agent:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2 * PATIENCE):
                    await agent.send("x")
    for wrong in (0, -1, float("inf"), "1"):
        with pytest.raises(ConfigError):
            Client("localhost", patience=wrong)  # type: ignore[arg-type]
