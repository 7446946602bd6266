"""Files and arrays through a gateway, to agents of public libraries that speak 0.3: what their
authors see, and what comes back."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Client, Part
from dragoman.client.file_encoding import AS_TEXT
from dragoman.errors import TaskNotCancelable, TaskNotFound
from tests.gateway.gateway_site import GatewaySite, gateway, log
from tests.gateway.translator.matrix_agents import hosting_all

WITHIN = 60.0
# Where each serves 0.3, by the binding.
HOSTS = {
    "a2a-sdk-0.3.26": {"HTTP+JSON": "", "JSONRPC": "/rpc"},
    "a2a-sdk-1.3.0": {"HTTP+JSON": "/rest", "JSONRPC": "/rpc"},
    "a2a-js-1.3.0": {"HTTP+JSON": "/rest", "JSONRPC": "/rpc"},
}
CELLS = [(host, binding) for host, paths in HOSTS.items() for binding in paths]
CALLERS = [("1.0", "JSONRPC"), ("0.3", "JSONRPC"), ("0.3", "HTTP+JSON")]
ARRAY = ["Graz", {"tags": ["a"]}]


def card(url: str, binding: str) -> dict[str, Any]:
    return {
        "protocolVersion": "0.3.0",
        "name": "Player",
        "description": "Does what the text says.",
        "version": "1.0.0",
        "url": url,
        "preferredTransport": binding,
        "capabilities": {"streaming": True},
        "defaultInputModes": ["*/*"],
        "defaultOutputModes": ["*/*"],
        "skills": [{"id": "play", "name": "Play", "description": "Plays.", "tags": ["test"]}],
    }


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with hosting_all(HOSTS, tmp_path_factory.mktemp("hosts")) as addresses:
        yield addresses


@pytest.fixture(scope="module")
async def site(
    hosts: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[GatewaySite]:
    async with gateway(tmp_path_factory.mktemp("gateway")) as site:
        for host, binding in CELLS:
            url = hosts[host] + HOSTS[host][binding]
            name = agent_name(host, binding)
            await site.register(url or hosts[host], name=name, card=card(url, binding))
        yield site


def agent_name(host: str, binding: str) -> str:
    return f"{host}-{'rest' if binding == 'HTTP+JSON' else 'rpc'}".replace(".", "-")


def client(site: GatewaySite, name: str, caller: tuple[str, str]) -> Client:
    return Client(f"{site.url}/a2a/{name}", version=caller[0], bindings=[caller[1]])


@pytest.mark.peer
@pytest.mark.parametrize("caller", CALLERS, ids="-".join)
@pytest.mark.parametrize(("host", "binding"), CELLS)
async def test_files_arrive_and_come_back_as_they_are(
    host: str, binding: str, caller: tuple[str, str], site: GatewaySite
) -> None:
    given = {b"\x00\x01\xfe\xff": "0001feff", b"aGVsbG8=": "aGVsbG8=", b"some notes": "notes"}
    async with asyncio.timeout(WITHIN), client(site, agent_name(host, binding), caller) as agent:
        for raw, seen in given.items():
            answer = await agent.send(["describe", Part(raw=raw, media_type="text/plain")])
            assert answer.text.split()[-1] == seen
        assert [file.raw for file in (await agent.send("file")).files] == [b"\x00\x01 bytes \xff"]
        assert [file.raw for file in (await agent.send("text-file")).files] == [b"aGVsbG8="]


@pytest.mark.peer
@pytest.mark.parametrize("caller", CALLERS, ids="-".join)
@pytest.mark.parametrize(("host", "binding"), CELLS)
async def test_arrays_arrive_and_come_back_as_they_are(
    host: str, binding: str, caller: tuple[str, str], site: GatewaySite
) -> None:
    # An object around it where the library knows no other.
    seen = ('data ["Graz",{"tags":["a"]}]', 'data {"value":["Graz",{"tags":["a"]}]}')
    async with asyncio.timeout(WITHIN), client(site, agent_name(host, binding), caller) as agent:
        assert (await agent.send(["describe", Part(data=ARRAY)])).text in seen
        if host != "a2a-sdk-0.3.26" and (host, binding) != ("a2a-js-1.3.0", "HTTP+JSON"):
            # The first has no arrays; the other wraps them there, and does not say so.
            assert (await agent.send("array")).data == ARRAY


@pytest.mark.peer
@pytest.mark.parametrize(("host", "binding"), CELLS)
async def test_the_log_of_a_task_says_how_files_were_sent(
    host: str, binding: str, site: GatewaySite
) -> None:
    async with asyncio.timeout(WITHIN), client(site, agent_name(host, binding), CALLERS[0]) as one:
        described = await one.send(["describe", Part(raw=b"x", media_type="text/plain")])
        echoed = await one.send("echo hello")
    is_text = host.startswith("a2a-sdk") and binding == "HTTP+JSON"
    assert (AS_TEXT.encode() in b"".join(await log(site, described.task_id))) is is_text
    assert AS_TEXT.encode() not in b"".join(await log(site, echoed.task_id))


@pytest.mark.peer
@pytest.mark.parametrize("host", HOSTS)
async def test_errors_of_a_peer_that_has_only_rest_are_told_apart(
    host: str, hosts: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card(hosts[host] + HOSTS[host]["HTTP+JSON"], "HTTP+JSON")))
    async with asyncio.timeout(WITHIN), Client(path, version="0.3") as agent:
        with pytest.raises(TaskNotFound):
            await agent.get("00000000-0000-4000-8000-000000000000")
        done = await agent.send("echo hello")
        with pytest.raises(TaskNotCancelable):
            await agent.cancel(done.task_id)
