"""Agents that are silent with their connection open: frozen, cut off without a word, or stuck."""

import asyncio
import json
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from carrying import GatewaySite, gateway
from malformed.script import chunk, dumped, status, task
from peers_raw import STREAM, Answer, Asked, Move, Peer, card, http, raw_peer
from serving import Child, message, running, within

from dragoman.client.line import Line
from dragoman.gateway.agents import Registered
from dragoman.model.card import ONCE_URI
from dragoman.model.identity import Scope

# Seconds; the machine may be busy, and the tests must not depend on that.
PATIENCE = 1.5
LONG = 30.0
SHORT = {"forward_patience": PATIENCE, "forward_quiet": 0.3, "forward_timeout": PATIENCE}
SILENT = "The agent could not be reached. No sign of life of the agent for 1.5 s."

AGENT = '''
import asyncio, os, pathlib
from dragoman import Agent, Turn

agent = Agent("Frozen", "Works until a file is there.")

@agent.skill
async def work(text: str, turn: Turn) -> None:
    """Works."""
    async with turn.artifact(name="work") as artifact:
        await artifact.write(f"{os.environ['NAME']} ")
        while not pathlib.Path(text).exists():
            await asyncio.sleep(0.02)
        await artifact.write("done")
'''


@contextmanager
def agent(folder: Path, name: str, **env: str) -> Generator[Child]:
    """Serve an agent in a process of its own."""
    (folder / "frozen.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "memory:")
    with running("serve", "frozen.py", *options, cwd=folder, env={"NAME": name, **env}) as child:
        child.ready()
        try:
            yield child
        finally:
            child.process.send_signal(signal.SIGCONT)


def freeze(child: Child) -> None:
    child.process.send_signal(signal.SIGSTOP)


async def begun(site: GatewaySite, text: str, **metadata: Any) -> str:
    """Give a task to an agent; return its id once the agent has shown something of it."""
    body = {
        "message": message(text),
        "configuration": {"returnImmediately": True},
        "metadata": metadata,
    }
    made = (await site.call("SendMessage", body))["task"]["id"]

    async def has_shown() -> None:
        while True:
            if (await site.call("GetTask", {"id": made})).get("artifacts"):
                return
            await asyncio.sleep(0.02)

    await within(has_shown(), LONG)
    return made


async def ended(site: GatewaySite, task_id: str, seconds: float = LONG) -> Any:
    """Return a task once it has ended."""

    async def is_over() -> Any:
        while True:
            found = await site.call("GetTask", {"id": task_id})
            if found["status"]["state"] not in ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"):
                return found
            await asyncio.sleep(0.02)

    return await within(is_over(), seconds)


def words(found: Any) -> str:
    return found["status"]["message"]["parts"][0]["text"]


def text_of(found: Any) -> str:
    return "".join(part["text"] for one in found["artifacts"] for part in one["parts"])


# Real processes


async def test_a_task_of_a_frozen_agent_fails_and_says_why(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
            freeze(one)
            found = await ended(site, made)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert words(found) == SILENT


async def test_a_frozen_replica_s_task_is_done_by_another(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one, agent(tmp_path, "two") as two:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="both", replicas=[two.url], repeatable=True)
            made = await begun(site, str(tmp_path / "gate"), agentId="both")
            shown = text_of(await site.call("GetTask", {"id": made}))
            child, other = (one, "two") if shown == "one " else (two, "one")
            freeze(child)
            (tmp_path / "gate").touch()
            found = await ended(site, made)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(found) == f"{other} done"


async def test_another_agent_does_what_a_frozen_one_had(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one, agent(tmp_path, "two") as two:
        async with gateway(tmp_path, **SHORT) as site:
            first = await site.register(one.url, name="one", repeatable=True)
            await site.register(two.url, name="two", repeatable=True)
            site.gateway.trust._scores[first.id] = 90
            made = await begun(site, str(tmp_path / "gate"), skillId="work")
            freeze(one)
            (tmp_path / "gate").touch()
            found = await ended(site, made)
    assert found["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(found) == "two done"


async def test_an_agent_that_thaws_in_time_goes_on_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    answer_once = Line.answer_once

    async def noted(self: Line, operation: Any) -> Any:
        asked.set()
        return await answer_once(self, operation)

    monkeypatch.setattr(Line, "answer_once", noted)
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, forward_patience=60.0, forward_quiet=0.2) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
            freeze(one)
            asked.clear()
            await within(asked.wait())
            one.process.send_signal(signal.SIGCONT)
            (tmp_path / "gate").touch()
            found = await ended(site, made)
    assert text_of(found) == "one done"


async def test_the_clock_runs_again_when_the_gateway_starts_again(tmp_path: Path) -> None:
    with agent(tmp_path, "one") as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
        freeze(one)
        async with gateway(tmp_path, **SHORT) as site:
            found = await ended(site, made)
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert words(found) == SILENT


async def test_an_agent_that_has_nothing_to_say_after_a_restart_of_the_gateway_keeps_its_task(
    tmp_path: Path,
) -> None:
    """It is silent for longer than our patience, and lives."""
    env = {"DRAGOMAN_KEEPALIVE": "0.1"}
    with agent(tmp_path, "one", **env) as one:
        async with gateway(tmp_path, **SHORT) as site:
            await site.register(one.url, name="one")
            made = await begun(site, str(tmp_path / "gate"), agentId="one")
        async with gateway(tmp_path, **SHORT) as site:
            await passed(3 * PATIENCE)
            assert (await state(site, made)) == "TASK_STATE_WORKING"
            (tmp_path / "gate").touch()
            assert text_of(await ended(site, made)) == "one done"


@pytest.mark.parametrize("quorum", [1, 2])
async def test_a_race_goes_on_without_a_frozen_agent(tmp_path: Path, quorum: int) -> None:
    with agent(tmp_path, "same") as one, agent(tmp_path, "same") as two:
        async with gateway(tmp_path, **SHORT) as site:
            for name, child in (("one", one), ("two", two)):
                await site.register(child.url, name=name, repeatable=True)
            body = {
                "message": message(str(tmp_path / "gate")),
                "configuration": {"returnImmediately": True},
                "metadata": {"skillId": "work", "race": 2, "quorum": quorum},
            }
            made = (await site.call("SendMessage", body))["task"]["id"]
            for child in (one, two):
                await working(child)
            freeze(one)
            if quorum == 1:
                (tmp_path / "gate").touch()
            else:
                freeze(two)
            found = await ended(site, made)
    if quorum == 1:
        assert text_of(found) == "same done"
    else:
        assert found["status"]["state"] == "TASK_STATE_FAILED"


async def working(child: Child) -> None:
    """Wait until a process has a task."""
    import httpx

    async with httpx.AsyncClient(base_url=child.url, trust_env=False, timeout=LONG) as client:
        body: Any = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}

        async def has_one() -> None:
            while True:
                answer = await client.post("/", json=body, headers={"A2A-Version": "1.0"})
                if answer.json()["result"]["tasks"]:
                    return
                await asyncio.sleep(0.02)

        await within(has_one(), LONG)


async def passed(seconds: float) -> None:
    """Wait until time has passed: what must not happen within it has no event."""
    await asyncio.sleep(seconds)


async def state(site: GatewaySite, task_id: str) -> str:
    return (await site.call("GetTask", {"id": task_id}))["status"]["state"]


# Agents made of bytes

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


async def known(site: GatewaySite, peer: Peer, *, streaming: bool, **more: Any) -> Registered:
    url = f"{peer.url}/raw"
    shown = card(url, streaming=streaming, extensions=more.pop("extensions", ()))
    return await site.register(url, name="raw", card=shown, **more)


def mute(played: Played, later: Played = lambda asked: ["hang"]) -> Callable[[str, Asked], Answer]:
    """An agent that answers messages as told, and else as told or not at all."""

    def answer(name: str, asked: Asked) -> Answer:
        return played(asked) if asked.operation == "send" else later(asked)

    return answer


async def sent(site: GatewaySite, **metadata: Any) -> str:
    body = {
        "message": message("x"),
        "configuration": {"returnImmediately": True},
        "metadata": {"agentId": "raw", **metadata},
    }
    return (await site.call("SendMessage", body))["task"]["id"]


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", [*SILENCES, *POLLED])
async def test_a_task_of_an_agent_that_falls_silent_ends(
    tmp_path: Path, name: str, repeatable: bool
) -> None:
    played = (SILENCES | POLLED)[name]
    async with raw_peer(mute(played)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=name in SILENCES, repeatable=repeatable)
            found = await ended(site, await sent(site))
            assert found["status"]["state"] == "TASK_STATE_FAILED"
            allowed = (SILENT, "Delivery unknown", "could not be reached")
            assert any(said in words(found) for said in allowed), words(found)


async def test_an_agent_that_answers_that_it_works_keeps_its_task_until_its_deadline(
    tmp_path: Path,
) -> None:
    later: Played = lambda asked: answered(asked, OPENED)  # noqa: E731 - a script
    played: Played = lambda asked: begins(asked, "hang")  # noqa: E731 - a script
    async with raw_peer(mute(played, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            made = await sent(site, timeoutSeconds=6)
            await passed(2 * PATIENCE)
            assert await state(site, made) == "TASK_STATE_WORKING"
            assert peer.count("raw", "get") >= 3
            found = await ended(site, made)
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
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            found = await ended(site, await sent(site))
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
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            found = await ended(site, await sent(site))
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
            found = await ended(site, await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_comments_are_signs_of_life(tmp_path: Path) -> None:
    """Also where questions are not answered."""
    alive: list[Move] = [b": alive\n\n", 0.1]

    def played(asked: Asked) -> Answer:
        end = frame(asked, status("COMPLETED"))
        opened = [frame(asked, {"task": OPENED}), frame(asked, chunk("done"))]
        return [STREAM, *opened, *alive * 40, end, "end"]

    async with raw_peer(mute(played)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            found = await ended(site, await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_posts_are_signs_of_life(tmp_path: Path) -> None:
    """Of an agent that answers nothing but the message."""
    async with gateway(tmp_path) as site:
        hooks, place = site.gateway.hooks, (Scope("gateway"), "t")
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


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
async def test_only_an_agent_that_cannot_tell_a_repetition_is_said_not_to(
    tmp_path: Path, once: bool, streaming: bool
) -> None:
    async with raw_peer(lambda _, asked: ["hang"]) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT | {"forward_timeout": 0.4}) as site:
            await known(site, peer, streaming=streaming, extensions=[ONCE_URI] * once)
            found = await ended(site, await sent(site))
            assert words(found).startswith("Delivery unknown")
            assert ("repetition" in words(found)) == (not once), words(found)
            # The one that can is sent the message again while patience lasts.
            assert (peer.count("raw", "send") > 1) == once


async def test_a_task_that_ended_while_its_stream_was_cut_has_its_result(tmp_path: Path) -> None:
    """Of an agent that knows tasks which have ended only by `GetTask`."""

    def later(asked: Asked) -> Answer:
        return answered(asked, task()) if asked.operation == "get" else unknown(asked)

    async with raw_peer(mute(cut, later)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            found = await ended(site, await sent(site))
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"
            assert peer.count("raw", "send") == peer.count("raw", "subscribe") == 1


async def test_a_task_that_its_agent_knows_by_neither_way_is_lost(tmp_path: Path) -> None:
    async with raw_peer(mute(cut, unknown)) as peer:  # noqa: SIM117 - the gateway ends first
        async with gateway(tmp_path, **SHORT) as site:
            await known(site, peer, streaming=True)
            found = await ended(site, await sent(site))
            assert words(found) == "The agent does not know the task any more."
            assert peer.count("raw", "subscribe") == peer.count("raw", "get") == 1
