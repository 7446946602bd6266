"""Any client's dialect to any agent's: each cell of the matrix is tasks that are really done."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from dragoman import Client, Part
from dragoman.gateway.registry.registered import Registered
from dragoman.model.events import ArtifactUpdate
from dragoman.model.task import Task, TaskState
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.translator.libraries import FASTA2A, LIBRARIES, Report, driven
from tests.gateway.translator.matrix_agents import (
    OURS,
    QUESTION,
    corvid_agent,
    hosting_all,
    nexus_agent,
    our_agents,
)

# What our client speaks: version and binding.
CLIENTS = {
    "1.0-jsonrpc": ("1.0", "JSONRPC"),
    "1.0-rest": ("1.0", "HTTP+JSON"),
    "0.3-jsonrpc": ("0.3", "JSONRPC"),
    "0.3-rest": ("0.3", "HTTP+JSON"),
    "1.0-grpc": ("1.0", "GRPC"),
    "0.3-grpc": ("0.3", "GRPC"),
    "0.2-jsonrpc": ("0.2", "JSONRPC"),
}
WITHIN = 60.0
WHOLE = "c0 c1 c2 c3 "
FILE = b"\x00\x01 bytes \xff"


# An rpc of 0.3 has neither a path nor a tenant that could lead to one of several agents: callers
# ask the gateway itself, and name the agent in the message.
NAMED = "0.3-grpc"


class NamingClient(Client):
    """Names one agent in every message."""

    agent = ""

    async def send(self, content: Any, **how: Any) -> Any:
        return await super().send(content, message_metadata={"agentId": self.agent}, **how)

    def stream(self, content: Any, **how: Any) -> Any:
        return super().stream(content, message_metadata={"agentId": self.agent}, **how)


class World:
    """A gateway with agents of all dialects behind it."""

    def __init__(self, gate: GatewaySite) -> None:
        self.gate = gate
        self.agents: dict[str, Registered] = {}
        # Ids that agents gave: none of them may be seen outside.
        self.nexus: Any = None
        self.corvid: Any = None

    async def add(self, name: str, url: str, **more: Any) -> None:
        self.agents[name] = await self.gate.register(url, name=name, **more)

    def client(self, agent: str, spoken: str) -> Client:
        version, binding = CLIENTS[spoken]
        if spoken == NAMED:
            naming = NamingClient(self.gate.url, version=version, bindings=[binding])
            naming.agent = self.agents[agent].id
            return naming
        at = self.gate.at(self.agents[agent])
        if version == "0.2":
            # The usual card speaks of 0.3 and later; this is the one for older clients.
            at += "/.well-known/agent.json"
        return Client(at, version=version, bindings=[binding])


@pytest.fixture(scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    """One gateway for all cells: what they say to one agent they say side by side."""
    async with (
        our_agents() as ours,
        nexus_agent() as nexus,
        corvid_agent() as corvid,
        gateway(
            tmp_path_factory.mktemp("matrix"), corvid_rate="off", transport="jsonrpc,rest,grpc"
        ) as gate,
    ):
        world = World(gate)
        world.nexus, world.corvid = nexus, corvid
        for name, url in ours.items():
            card = f"{url}/.well-known/agent.json" if name.startswith("0.2") else url
            await world.add(name, card)
        await world.add("nexus", nexus.url)
        await world.add("corvid", corvid.url)
        yield world


def text_of(task: Task) -> str:
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return "".join(part.text for part in parts if isinstance(part.text, str))


# What is done in a cell

Deed = Callable[[Client, str], Awaitable[None]]


async def send(client: Client, agent: str) -> None:
    answer = await client.send("echo größe 漢字 \U0001f409")
    assert (answer.state, answer.text) == (TaskState.COMPLETED, "größe 漢字 \U0001f409")


async def stream(client: Client, agent: str) -> None:
    followed = client.stream("chunks 4")
    events = [event async for event in followed]
    assert (followed.answer.state, followed.answer.text) == (TaskState.COMPLETED, WHOLE)
    assert isinstance(events[0], Task)
    if agent not in ("nexus", "corvid"):
        chunks = [event for event in events if isinstance(event, ArtifactUpdate)]
        assert [chunk.append for chunk in chunks] == [False, True, True, True]
    assert followed.task is not None
    assert (await client.get(followed.task.id)).status.state is TaskState.COMPLETED


async def ask(client: Client, agent: str) -> None:
    asked = await client.send("ask")
    assert asked.state is TaskState.INPUT_REQUIRED, asked
    assert asked.task is not None and asked.task.status.message is not None
    assert asked.task.status.message.text == QUESTION
    done = await client.send("Graz", task_id=asked.task_id, context_id=asked.context_id)
    assert (done.task_id, done.state) == (asked.task_id, TaskState.COMPLETED)
    assert done.text == "got Graz"


async def answer_in_a_stream(client: Client, agent: str) -> None:
    asked = await client.send("ask")
    followed = client.stream("Graz", task_id=asked.task_id, context_id=asked.context_id)
    events = [event async for event in followed]
    # As the answer leaves the task: one that still asks would be asked of the person again.
    assert isinstance(events[0], Task) and events[0].status.state is TaskState.WORKING
    waiting = [event for event in events if is_waiting(event)]
    assert not waiting, waiting
    assert (followed.answer.state, followed.answer.text) == (TaskState.COMPLETED, "got Graz")


def is_waiting(event: Any) -> bool:
    status = getattr(event, "status", None)
    return status is not None and status.state is TaskState.INPUT_REQUIRED


async def cancel(client: Client, agent: str) -> None:
    sent = await client.send("cancelme", wait=False)
    task = await client.cancel(sent.task_id)
    assert (task.id, task.status.state) == (sent.task_id, TaskState.CANCELED)


async def receive_parts(client: Client, agent: str) -> None:
    answer = await client.send("file")
    (file,) = answer.files
    assert file.raw == FILE
    assert answer.data == {"city": "Graz", "tags": ["a", "b"]}
    if agent != "nexus":
        assert (file.filename, file.media_type) == ("report.bin", "application/x-report")


async def give_parts(client: Client, agent: str) -> None:
    file = Part(raw=b"some notes", filename="notes.txt", media_type="text/plain")
    answer = await client.send(["describe", file, {"city": "Graz"}])
    if agent == "nexus":
        # Names and types are lost there, and data is as it is.
        packed = base64.b64encode(b"some notes").decode()
        assert answer.text == f'file "{packed}"\ndata {{"city": "Graz"}}'
    elif agent == "corvid":
        assert answer.text.startswith("describe")
    else:
        assert answer.text == 'file notes.txt text/plain some notes\ndata {"city":"Graz"}'


DEEDS: dict[str, Deed] = {
    "send": send,
    "stream": stream,
    "ask": ask,
    "answer in a stream": answer_in_a_stream,
    "cancel": cancel,
    "receive parts": receive_parts,
    "give parts": give_parts,
}
# What an agent's dialect has no words for.
GAPS = {("corvid", "ask"), ("corvid", "answer in a stream"), ("corvid", "receive parts")}


@pytest.mark.parametrize("spoken", CLIENTS)
async def test_our_client_in_any_dialect_reaches_agents_of_all(spoken: str, made: World) -> None:
    problems: list[str] = []

    async def cell(agent: str) -> None:
        async with made.client(agent, spoken) as client:
            assert (client.version, client.interface.protocol_binding) == CLIENTS[spoken]
            for name, deed in DEEDS.items():
                if (agent, name) in GAPS:
                    continue
                try:
                    async with asyncio.timeout(WITHIN):
                        await deed(client, agent)
                except Exception as error:
                    problems.append(f"{spoken} to {agent}: {name}: {error!r}")

    await asyncio.gather(*(cell(agent) for agent in made.agents))
    assert made.agents.keys() == {*OURS, "nexus", "corvid"}
    assert not problems, "\n".join(problems)


# Public libraries, on either side

HOSTS = ["a2a-sdk-1.3.0", "a2a-sdk-0.3.26", "a2a-js-1.3.0"]
LIBRARY_DEEDS = ("send", "stream", "ask", "answer_in_a_stream", "cancel")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run the servers of the public libraries; the values are their addresses."""
    with hosting_all(HOSTS, tmp_path_factory.mktemp("hosts")) as addresses:
        yield addresses


@pytest.fixture(scope="module")
async def mixed(made: World, hosts: dict[str, str]) -> World:
    """The matrix with the public libraries' agents in it."""
    for name, url in hosts.items():
        await made.add(name, url)
    return made


@pytest.mark.peer
@pytest.mark.parametrize("spoken", CLIENTS)
async def test_our_client_in_any_dialect_reaches_agents_of_public_libraries(
    spoken: str, mixed: World
) -> None:
    problems: list[str] = []

    async def cell(agent: str) -> None:
        async with mixed.client(agent, spoken) as client:
            for name, deed in DEEDS.items():
                try:
                    async with asyncio.timeout(WITHIN):
                        await deed(client, agent)
                except Exception as error:
                    problems.append(f"{spoken} to {agent}: {name}: {error!r}")

    await asyncio.gather(*(cell(agent) for agent in HOSTS))
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
async def reports(mixed: World) -> dict[str, Report]:
    """Run every library once, two side by side."""
    places = asyncio.Semaphore(2)

    def addresses(spoken: str) -> dict[str, str]:
        return {
            name: f"{mixed.gate.url}#{agent.id}" if spoken == NAMED else mixed.gate.at(agent)
            for name, agent in mixed.agents.items()
        }

    async def report(library: str) -> Report:
        agents = {spoken: addresses(spoken) for spoken in LIBRARIES[library]}
        async with places:
            return await asyncio.to_thread(driven, library, agents)

    found = await asyncio.gather(*map(report, LIBRARIES))
    return dict(zip(LIBRARIES, found, strict=True))


@pytest.mark.peer
@pytest.mark.parametrize(
    ("library", "spoken"), [(library, one) for library, all in LIBRARIES.items() for one in all]
)
async def test_a_public_client_library_reaches_agents_of_all_dialects(
    library: str, spoken: str, mixed: World, reports: dict[str, Report]
) -> None:
    everything, ending = reports[library]
    said = [one for one in everything if one["spoken"] == spoken]
    problems = [f"{one['agent']}: {one['deed']}: {one['detail']}" for one in said if one["detail"]]
    done = {(one["agent"], one["deed"]) for one in said}
    wanted = {(one, deed) for one in mixed.agents for deed in LIBRARY_DEEDS}
    missing = wanted - done - {("corvid", "ask"), ("corvid", "answer_in_a_stream")}
    if library == FASTA2A:
        # Its client cannot end a task.
        missing = {(agent, deed) for agent, deed in missing if deed != "cancel"}
    assert not problems and not missing, "\n".join([*problems, f"{missing} {ending}"])


# Callers of houses


class Nexus:
    """NEXUS's document, word for word: a message by JSON-RPC, and the task read again."""

    def __init__(self, http: httpx.AsyncClient, agent: Registered) -> None:
        self._http = http
        self._agent = agent

    async def call(self, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        answer = (await self._http.post("/api/v1/a2a", json=body)).json()
        assert "result" in answer, answer
        return answer["result"]

    async def send(self, *parts: Any, **more: Any) -> Any:
        said = {"role": "user", "parts": list(parts)}
        params = {"message": said, "assignedAgentId": self._agent.id, **more}
        return await self.rested(await self.call("message/send", params), len(more) > 0)

    async def rested(self, task: Any, is_answer: bool = False) -> Any:
        resting = {"completed", "failed", "canceled"} | (set() if is_answer else {"input-required"})
        async with asyncio.timeout(WITHIN):
            while task["status"] not in resting:
                await asyncio.sleep(0.02)
                task = await self.call("tasks/get", {"id": task["id"]})
        return task


async def test_a_nexus_client_reaches_agents_of_all_dialects(made: World) -> None:
    problems: list[str] = []

    async def cell(agent: str) -> None:
        peer = Nexus(made.gate.http, made.agents[agent])
        text = {"type": "text", "data": "echo hello"}
        done = await peer.send(text)
        assert done["status"] == "completed", done
        assert done["messages"][0]["role"] == "user"
        assert '"data": "hello"' in json.dumps(done), done
        named = await peer.send(text, id=f"mine-{agent}")
        assert named["id"] == f"mine-{agent}", "its own name for the task counts outside"
        if agent == "corvid":
            return
        asked = await peer.send({"type": "text", "data": "ask"})
        assert asked["status"] == "input-required" and QUESTION in json.dumps(asked), asked
        answered = await peer.send({"type": "text", "data": "Graz"}, id=asked["id"])
        assert answered["status"] == "completed" and "got Graz" in json.dumps(answered)
        file = await peer.send({"type": "text", "data": "file"})
        (artifact,) = file["artifacts"]
        assert artifact["parts"][0]["data"] == base64.b64encode(FILE).decode()
        assert artifact["parts"][1]["data"] == {"city": "Graz", "tags": ["a", "b"]}

    await each(made, cell, problems)
    assert not problems, "\n".join(problems)


async def each(made: World, cell: Callable[[str], Awaitable[None]], problems: list[str]) -> None:
    async def tried(agent: str) -> None:
        try:
            async with asyncio.timeout(WITHIN):
                await cell(agent)
        except Exception as error:
            problems.append(f"{agent}: {error!r}")

    await asyncio.gather(*(tried(agent) for agent in made.agents))


async def corvid_sequence(http: httpx.AsyncClient, at: str, text: str) -> Any:
    """Invoke an agent as corvid's client does: the card, the text, then looks until it ended."""
    card = (await http.get(f"{at}/.well-known/agent-card.json")).json()
    assert card["name"] and card["version"]
    sent = await http.post(f"{at}/a2a/tasks/send", json={"params": {"message": text}})
    assert sent.status_code == 200, sent.text
    task = sent.json()
    async with asyncio.timeout(WITHIN):
        while task["state"] not in ("completed", "failed"):
            await asyncio.sleep(0.02)
            read = await http.get(f"{at}/a2a/tasks/{task['id']}")
            assert read.status_code == 200, read.text
            task = read.json()
    return task


async def test_a_corvid_client_reaches_agents_of_all_dialects(made: World) -> None:
    problems: list[str] = []

    async def cell(agent: str) -> None:
        at = made.gate.at(made.agents[agent])
        task = await corvid_sequence(made.gate.http, at, "echo hello")
        last = task["messages"][-1]
        assert (task["state"], last["role"]) == ("completed", "agent"), task
        assert last["parts"] == [{"type": "text", "text": "hello"}] or agent == "nexus", task

    await each(made, cell, problems)
    assert not problems, "\n".join(problems)


async def test_ids_of_agents_are_not_seen_outside_and_ours_not_inside(made: World) -> None:
    for agent, peer in (("nexus", made.nexus), ("corvid", made.corvid)):
        async with made.client(agent, "1.0-rest") as client:
            answer = await client.send("echo hello")
            at = made.gate.at(made.agents[agent])
            seen = (await made.gate.http.get(f"{at}/tasks/{answer.task_id}")).text
        assert answer.task_id in seen and answer.context_id in seen
        # A NEXUS agent is given the task's own id, as its document says.
        is_shared = agent == "nexus"
        assert peer.tasks and is_shared is any(f'"{theirs}"' in seen for theirs in peer.tasks)
        asked = json.dumps(peer.asked)
        assert (answer.task_id in asked) is is_shared and answer.context_id not in asked
