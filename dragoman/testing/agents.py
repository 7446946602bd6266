"""Agents for your tests: scripted ones, fake peers of each version, and your own on a port.

    async with scripted({"rules": [{"steps": [{"message": "hello"}]}]}) as played:
        assert (await played.client.send("hi")).text == "hello"
        assert played.agent.calls("SendMessage")

Nothing here needs the network beyond this machine. For pytest there is `dragoman.testing.plugin`.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.client.client import Client
from dragoman.config import Settings, StoreSettings
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.server.app import App
from dragoman.testing.cassettes.cassette import read as read_cassette
from dragoman.testing.cassettes.replayer import Replayer
from dragoman.testing.scripted.agent import App as ASGIApp
from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from dragoman.testing.scripted.script import Card, Rule, Script, ScriptStep, When, build
from dragoman.testing.scripted.serve import ListenOptions, hosted, serving

__all__ = [
    "Card",
    "ListenOptions",
    "Played",
    "Replayer",
    "Rule",
    "Script",
    "ScriptStep",
    "ScriptedAgent",
    "SeenRequest",
    "When",
    "app_of",
    "fake_peer",
    "hosted",
    "in_process",
    "replayed",
    "scripted",
    "serving",
]

# A script as a value, as plain data, or in a file.
Playable = Script | Mapping[str, Any] | Path | str
Subject = ScriptedAgent | Agent | Playable | Callable[..., Any]
_BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON}


class Played(NamedTuple):
    """A scripted agent, its address, and a connected client."""

    agent: ScriptedAgent
    url: str
    client: Client


@asynccontextmanager
async def scripted(
    script: ScriptedAgent | Playable | None = None, **client: Any
) -> AsyncGenerator[Played]:
    """Serve a script on a free port and connect to it; keywords are the client's."""
    agent = script if isinstance(script, ScriptedAgent) else ScriptedAgent(script)
    async with serving(agent) as url, Client(url, **client) as connected:
        yield Played(agent, url, connected)


@asynccontextmanager
async def in_process(
    script: ScriptedAgent | Playable | None = None, **client: Any
) -> AsyncGenerator[Played]:
    """Run a script without a socket and connect to it."""
    agent = script if isinstance(script, ScriptedAgent) else ScriptedAgent(script)
    async with Client(app=agent, **client) as connected:
        yield Played(agent, "http://localhost", connected)


def fake_peer(
    version: Literal["1.0", "0.3", "0.2"] = "1.0",
    binding: Literal["jsonrpc", "rest"] = "jsonrpc",
    rules: Sequence[Rule | Mapping[str, Any]] = (),
    **script: Any,
) -> ScriptedAgent:
    """Return an agent that speaks one version on one binding only."""
    card = Card(name=f"Fake peer {version}", versions=[version], bindings=[_BINDINGS[binding]])
    given: dict[str, Any] = {"card": card, "rules": list(rules), **script}
    return ScriptedAgent(build(msgspec.to_builtins(given)))


def replayed(cassette: Path | str, *, strict: bool = False, speed: float = 0.0) -> Replayer:
    """Return the agent of a cassette; without delays unless a speed is given."""
    match: Literal["strict", "loose"] = "strict" if strict else "loose"
    return Replayer(read_cassette(Path(cassette)), match=match, speed=speed)


def app_of(subject: Subject) -> ASGIApp:
    """Return the ASGI app of an `Agent`, with its tasks in memory, or of a script."""
    if isinstance(subject, Agent):
        # The same interface; only the types of a scope differ.
        return cast(
            ASGIApp, App(subject, settings=Settings(stores=StoreSettings(location="memory:")))
        )
    if isinstance(subject, Script | Path | str):
        return ScriptedAgent(subject)
    if isinstance(subject, Mapping):
        return ScriptedAgent(cast(Mapping[str, Any], subject))
    return subject
