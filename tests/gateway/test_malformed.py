"""Agents that answer anything: a task that meets one ends in our words, and we go on."""

import asyncio
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, message

from dragoman.client.remote import Remote
from dragoman.gateway.delivery import retries, upstreams
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.malformed import answers, shapes, streams, wires
from tests.gateway.malformed.script import LEGAL, MARK, Script, refused
from tests.gateway.raw_peer import Answer, Asked, Peer, card, raw_peer

SCRIPTS = [*answers.SCRIPTS, *wires.SCRIPTS, *shapes.SCRIPTS, *streams.SCRIPTS]
NAMED = {f"s{number}": script for number, script in enumerate(SCRIPTS)}
AT_ONCE = 48
# A hang is a failure of its script, and not of the run.
WITHIN = 240.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for an agent that is away for as long as a test can wait."""
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.5)
    monkeypatch.setattr(upstreams, "_TIMEOUT", 1.0)
    monkeypatch.setattr(retries, "LONGEST_RETRY_AFTER", 1.0)
    # A large answer is one of 4 MB here, so that there is no need to write one of 64.
    most = {**Remote.__init__.__kwdefaults__, "most": 4 << 20}
    monkeypatch.setattr(Remote.__init__, "__kwdefaults__", most)
    monkeypatch.setattr("dragoman.client.second_tries.LONGEST_WAIT", 0.2)
    monkeypatch.setattr("dragoman.client.streams.stream.LONGEST_WAIT", 0.2)
    monkeypatch.setattr("dragoman.client.streams.stream.AFTER_FAILURE", 0.02)
    monkeypatch.setattr("dragoman.client.streams.stream.POLL_EVERY", 0.05)


def played(name: str, asked: Asked) -> Answer:
    # What is not theirs is asked by probes.
    return NAMED[name].answer(asked) if name in NAMED else refused(asked)


async def registered(gate: GatewaySite, peer: Peer, name: str, script: Script) -> None:
    url = f"{peer.url}/{name}"
    if script.house:
        await gate.register(url, name=name, dialect=script.house)
        return
    shown = card(
        url,
        version=script.version,
        binding=script.binding,
        streaming=script.streaming,
        extensions=script.extensions,
    )
    await gate.register(url, name=name, card=shown)


QUOTED = re.compile(r"The agent refused the task: [^()]+ \((?P<code>-?\d+)\): .{1,201}")
# Failures of its own, and how we speak to it; codes that are none of JSON-RPC's.
NO_REASONS = {-32603, -32700, -32601, 401, 404, 500, 0, 1, -1}


class Caller:
    """Who sends tasks, and keeps every byte of the answers."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def ended(self, name: str, script: Script) -> tuple[str, Any]:
        """Send a task; return everything that was seen of it, and the task in the end."""
        metadata = {"timeoutSeconds": script.timeout} if script.timeout else {}
        sent = {"message": message("x"), "metadata": metadata}
        said = await self._asked(name, "SendStreamingMessage", sent)
        first = json.loads(said.partition("data: ")[2].partition("\n")[0])
        read = await self._asked(name, "GetTask", {"id": first["result"]["task"]["id"]})
        return said, json.loads(read)["result"]

    async def _asked(self, name: str, method: str, params: Any) -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        url = f"{self._url}/a2a/{name}"
        return (await self._http.post(url, json=body, headers=V1)).text


def problem_of(script: Script, said: str, task: Any) -> str:
    """Return what is wrong about the end of a task, or nothing."""
    state = task["status"]["state"].removeprefix("TASK_STATE_").lower()
    parts = task["status"].get("message", {}).get("parts", [])
    text = "".join(part.get("text", "") for part in parts)
    seen = said + json.dumps(task, ensure_ascii=False)
    if quoted := QUOTED.fullmatch(text):
        # Its reason for saying no is for its requester, made fit to be shown; nothing else is.
        if int(quoted["code"]) in NO_REASONS or not text.isprintable():
            return f"quotes {text[:200]!r}"
        seen = seen.replace(json.dumps(text, ensure_ascii=False), "")
    if MARK in seen:
        return f"leaks: {state} {text[:200]!r}"
    if state != script.ends:
        return f"{state} {text[:200]!r}"
    if script.says and not any(word in text for word in script.says):
        return f"says {text[:200]!r}"
    return ""


async def test_whatever_an_agent_answers_its_task_ends_in_our_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    problems: dict[str, str] = {}
    took: list[tuple[float, str]] = []
    settings: dict[str, Any] = {
        # Long enough for a machine that is busy with something else.
        "forward_timeout": 15.0,
        "forward_patience": 25.0,
        "forward_attempts": 2,
        "max_events": streams.MOST,
    }
    async with (
        raw_peer(played) as peer,
        gateway(tmp_path, **settings) as gate,
        httpx.AsyncClient(timeout=WITHIN) as http,
    ):
        caller = Caller(gate.url, http)
        places = asyncio.Semaphore(AT_ONCE)

        async def run(name: str, script: Script) -> None:
            async with places:
                began = time.monotonic()
                try:
                    await registered(gate, peer, name, script)
                    problem = problem_of(script, *await caller.ended(name, script))
                except Exception as error:
                    problem = repr(error)
                took.append((time.monotonic() - began, script.name))
                if problem:
                    problems[script.name] = problem

        await asyncio.gather(*(run(name, script) for name, script in NAMED.items()))
        # The gateway goes on as if nothing had been.
        good = next(name for name, one in NAMED.items() if one.name == "a good answer")
        _, task = await caller.ended(good, NAMED[good])
        assert LEGAL in json.dumps(task)
    told = "\n".join(f"{name}: {problem}" for name, problem in problems.items())
    assert not problems, f"{len(problems)} of {len(SCRIPTS)}:\n{told}\n{sorted(took)[-8:]}"
    crashes = [record.getMessage() for record in caplog.records if record.exc_info]
    assert crashes == []


def test_there_are_as_many_scripts_as_promised() -> None:
    assert len(SCRIPTS) >= 200
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
