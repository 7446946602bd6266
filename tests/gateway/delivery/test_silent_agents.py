"""Agents that are silent with their connection open: cut off without a word, or stuck."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.serving import message
from harness.waiting import within

from dragoman.gateway.registry.registered import Registered
from dragoman.model.card import ONCE_URI
from dragoman.model.identity import Scope
from tests.gateway.delivery.silence import passed, state, text_of, words
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.malformed.script import chunk, dumped, status, task
from tests.gateway.raw_peer import STREAM, Answer, Asked, Move, Peer, card, http, raw_peer

PATIENCE = 1.5
LONG = 30.0
SHORT = {"forward_patience": PATIENCE, "forward_quiet": 0.3, "forward_timeout": PATIENCE}
# Where the agent answers: on a busy machine it may take its time.
PATIENT = {"forward_patience": LONG, "forward_quiet": 0.3, "forward_timeout": LONG}
SILENT = f"The agent could not be reached. No sign of life of the agent for {PATIENCE:g} s."

OPENED = task("WORKING")


def frame(asked: Asked, value: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": asked.id, "result": value}
    return b"data: %b\n\n" % json.dumps(body).encode()


def answered(asked: Asked, value: Any) -> Answer:
    return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "result": value}))]


def unknown(asked: Asked) -> Answer:
    error = {"code": -32001, "message": "no"}
    return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "error": error}))]


def begins(asked: Asked, *more: Move) -> Answer:
    return [STREAM, frame(asked, {"task": OPENED}), frame(asked, chunk("begun ")), *more]


Played = Callable[[Asked], Answer]
# What an agent does with a message; to anything else it says nothing at all.
SILENCES: dict[str, Played] = {
    "nothing is answered": lambda asked: ["hang"],
    "half a head": lambda asked: [b"HTTP/1.1 200 OK\r\ncontent-ty", "hang"],
    "only a head": lambda asked: [STREAM, "hang"],
    "half a frame": lambda asked: [STREAM, frame(asked, {"task": OPENED})[:30], "hang"],
    "a task and nothing more": lambda asked: begins(asked, "hang"),
    "a task and half a frame": lambda asked: begins(asked, b"data: {", "hang"),
    "a frame that never ends": lambda asked: begins(asked, b"data: ", *([b"x", 0.2] * 400)),
    "comments that stop": lambda asked: begins(asked, *([b": alive\n\n", 0.05] * 10), "hang"),
}
POLLED: dict[str, Played] = {
    "a send that is never answered": lambda asked: ["hang"],
    "an answer that drips": lambda asked: [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
        *([b"{", 0.2] * 400),
    ],
    "a task that cannot be asked for": lambda asked: answered(asked, {"task": OPENED}),
}


async def known(
    site: GatewaySite, peer: Peer, name: str = "raw", *, streaming: bool, **more: Any
) -> Registered:
    url = f"{peer.url}/{name}"
    shown = card(url, streaming=streaming, extensions=more.pop("extensions", ()))
    return await site.register(url, name=name, card=shown, **more)


def mute(played: Played, later: Played = lambda asked: ["hang"]) -> Callable[[str, Asked], Answer]:
    """An agent that answers messages as told, and else as told or not at all."""

    def answer(name: str, asked: Asked) -> Answer:
        return played(asked) if asked.operation == "send" else later(asked)

    return answer


async def sent(site: GatewaySite, name: str = "raw", **metadata: Any) -> str:
    body = {
        "message": message("x"),
        "configuration": {"returnImmediately": True},
        "metadata": {"agentId": name, **metadata},
    }
    return (await site.call("SendMessage", body))["task"]["id"]


@pytest.mark.parametrize("repeatable", [False, True])
async def test_tasks_of_agents_that_fall_silent_end(tmp_path: Path, repeatable: bool) -> None:
    """All of them at once: each takes as long as patience lasts."""
    cases = {f"agent{n}": case for n, case in enumerate((SILENCES | POLLED).items())}

    def answer(name: str, asked: Asked) -> Answer:
        return mute(cases[name][1])(name, asked)

    async with raw_peer(answer) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            for name, (case, _) in cases.items():
                is_streaming = case in SILENCES
                await known(site, peer, name, streaming=is_streaming, repeatable=repeatable)
            begun = {case: await sent(site, name) for name, (case, _) in cases.items()}
            found = {case: await site.rested(id) for case, id in begun.items()}
    assert {task["status"]["state"] for task in found.values()} == {"TASK_STATE_FAILED"}
    allowed = (SILENT, "Delivery unknown", "could not be reached")
    told = {case: words(task) for case, task in found.items()}
    assert not {case: one for case, one in told.items() if not any(map(one.__contains__, allowed))}


async def test_an_agent_that_answers_that_it_works_keeps_its_task_until_its_deadline(
    tmp_path: Path,
) -> None:
    later: Played = lambda asked: answered(asked, OPENED)  # noqa: E731 - a script
    played: Played = lambda asked: begins(asked, "hang")  # noqa: E731 - a script
    async with raw_peer(mute(played, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            made = await sent(site, timeoutSeconds=8)
            await passed(2 * PATIENCE)
            assert await state(site, made) == "TASK_STATE_WORKING"
            assert peer.count("raw", "get") >= 3
            found = await site.rested(made)
            assert found["status"]["state"] == "TASK_STATE_FAILED"
            assert "sign of life" not in words(found)


@pytest.mark.parametrize("ending", ["COMPLETED", "FAILED", "INPUT_REQUIRED"])
async def test_the_end_of_a_task_is_found_where_its_stream_never_shows_it(
    tmp_path: Path, ending: str
) -> None:
    """A connection that was cut without a word, and an agent that is well."""

    def later(asked: Asked) -> Answer:
        if asked.operation == "subscribe":
            return ["hang"]
        return answered(asked, task(ending) if asked.before else OPENED)

    played: Played = lambda asked: begins(asked, "hang")  # noqa: E731 - a script
    async with raw_peer(mute(played, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **PATIENT) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert found["status"]["state"] == f"TASK_STATE_{ending}"


async def test_a_stream_that_shows_nothing_of_what_the_task_has_is_taken_up_anew(
    tmp_path: Path,
) -> None:
    parts = [{"text": "begun "}, {"text": "more"}]
    ahead = task("WORKING", artifacts=[{"artifactId": "a-1", "parts": parts}])

    def later(asked: Asked) -> Answer:
        if asked.operation == "subscribe":
            end = frame(asked, status("COMPLETED"))
            return [STREAM, frame(asked, {"task": ahead}), end, "end"]
        return answered(asked, ahead)

    played: Played = lambda asked: begins(asked, "hang")  # noqa: E731 - a script
    async with raw_peer(mute(played, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **PATIENT) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"
            assert text_of(found) == "begun more"


async def test_a_stream_whose_comments_stop_is_taken_up_anew(tmp_path: Path) -> None:
    """Long before the agent would be asked."""
    shown = task("WORKING", artifacts=[{"artifactId": "a-1", "parts": [{"text": "begun "}]}])

    def later(asked: Asked) -> Answer:
        end = frame(asked, status("COMPLETED"))
        return [STREAM, frame(asked, {"task": shown}), end, "end"]

    played: Played = lambda asked: begins(asked, *([b": alive\n\n", 0.05] * 5), "hang")  # noqa: E731 - a script
    settings = {"forward_patience": 600.0, "forward_quiet": 200.0}
    async with raw_peer(mute(played, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **settings) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_comments_are_signs_of_life(tmp_path: Path) -> None:
    """Also where questions are not answered."""
    alive: list[Move] = [b": alive\n\n", 0.1]

    def played(asked: Asked) -> Answer:
        end = frame(asked, status("COMPLETED"))
        opened = [frame(asked, {"task": OPENED}), frame(asked, chunk("done"))]
        return [STREAM, *opened, *alive * 50, end, "end"]

    async with raw_peer(mute(played)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **PATIENT | {"forward_patience": 3.0}) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_posts_are_signs_of_life(tmp_path: Path) -> None:
    """Of an agent that answers nothing but the message."""
    async with gateway(tmp_path) as site:
        hooks, place = site.gateway.push_inbox, (Scope("gateway"), "t")
        hooks.base = site.url
        with hooks.expecting(*place) as pause:
            waiting = asyncio.create_task(pause(LONG))
            await site.http.post(hooks.url(*place))
            assert await within(waiting) is True
            assert await pause(0.01) is False


# What is said of agents

CHUNKED = STREAM.replace(b"connection: close", b"transfer-encoding: chunked")


def cut(asked: Asked) -> Answer:
    """A task that begins in a stream which then breaks off."""
    body = frame(asked, {"task": OPENED}) + frame(asked, chunk("begun "))
    return [CHUNKED, b"%x\r\n%b\r\n" % (len(body), body), "end"]


async def test_only_an_agent_that_cannot_tell_a_repetition_is_said_not_to(tmp_path: Path) -> None:
    # By name: whether it can, and whether it streams.
    agents = {"a": (True, True), "b": (True, False), "c": (False, True), "d": (False, False)}
    async with raw_peer(lambda _, asked: ["hang"]) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT | {"forward_timeout": 0.4}) as site:
            for name, (once, streaming) in agents.items():
                await known(site, peer, name, streaming=streaming, extensions=[ONCE_URI] * once)
            begun = {name: await sent(site, name) for name in agents}
            told = {name: words(await site.rested(id)) for name, id in begun.items()}
            for name, (once, _) in agents.items():
                assert told[name].startswith("Delivery unknown")
                assert ("repetition" in told[name]) == (not once), told[name]
                # The one that can is sent the message again while patience lasts.
                assert (peer.count(name, "send") > 1) == once


async def test_a_task_that_ended_while_its_stream_was_cut_has_its_result(tmp_path: Path) -> None:
    """Of an agent that knows tasks which have ended only by `GetTask`."""

    def later(asked: Asked) -> Answer:
        return answered(asked, task()) if asked.operation == "get" else unknown(asked)

    async with raw_peer(mute(cut, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **PATIENT) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"
            assert peer.count("raw", "send") == peer.count("raw", "subscribe") == 1


async def test_a_task_that_its_agent_knows_by_neither_way_is_lost(tmp_path: Path) -> None:
    async with raw_peer(mute(cut, unknown)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **PATIENT) as site:
            await known(site, peer, streaming=True)
            found = await site.rested(await sent(site))
            assert words(found) == "The agent does not know the task any more."
            assert peer.count("raw", "subscribe") == peer.count("raw", "get") == 1
