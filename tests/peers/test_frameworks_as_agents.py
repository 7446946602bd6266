"""Our client and our gateway against the servers of frameworks and smaller libraries.

What there is and what it cannot do stands in `sides.py`. A test of its own has what is peculiar.
"""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anyio
import pytest

from dragoman import Client
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.task import TaskState
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.peers.hosts import HOSTS
from tests.peers.running import SCRIPT_WITHIN, Hosts, client, played, running, wanted
from tests.peers.sides import FRAMEWORKS, SIDES, Side, carried, cases

# What a gateway can have from any agent; it keeps files, lists and pushes itself.
CARRIED = [
    "send",
    "stream-text",
    "ask-and-answer",
    "ask-and-answer-in-streams",
    "failure-is-data",
    "failure-says-why",
    "cancel",
    "file-and-data-out",
    "file-and-data-in",
    "unknown-task",
]
# One side for each server: a gateway speaks what it finds best.
BEHIND = list({side.host: side for side in reversed(FRAMEWORKS)}.values())[::-1]


@pytest.fixture(scope="module")
def hosts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Hosts]:
    with running(tmp_path_factory.mktemp("hosts"), wanted(request, FRAMEWORKS)) as hosts:
        yield hosts


class Behind:
    """A gateway, and the agents behind it as far as they were asked for."""

    def __init__(self, gate: GatewaySite, hosts: Hosts) -> None:
        self.gate, self.hosts = gate, hosts
        self.addresses: dict[str, str] = {}

    async def address(self, host: str) -> str:
        if host not in self.addresses:
            agent = await self.gate.register(self.hosts.address(host), name=host.replace(".", "-"))
            self.addresses[host] = self.gate.at(agent)
        return self.addresses[host]


@pytest.fixture(scope="module")
async def behind(tmp_path_factory: pytest.TempPathFactory, hosts: Hosts) -> AsyncGenerator[Behind]:
    async with gateway(tmp_path_factory.mktemp("gateway")) as gate:
        yield Behind(gate, hosts)


@pytest.mark.peer
@pytest.mark.parametrize(("side", "script"), list(cases(FRAMEWORKS)))
async def test_our_client_with_a_framework(side: Side, script: str, hosts: Hosts) -> None:
    address = hosts.address(side.host) + side.card
    await played(side, script, lambda **more: client(side, address, **more))


@pytest.mark.peer
@pytest.mark.parametrize(("side", "script"), list(carried(BEHIND, CARRIED)))
async def test_our_gateway_with_a_framework(side: Side, script: str, behind: Behind) -> None:
    address = await behind.address(side.host)
    await played(side, script, lambda **more: Client(address, **more))


# As they come, with what is peculiar


@pytest.mark.peer
async def test_strands_as_it_comes_says_its_chunks_and_gives_the_whole(hosts: Hosts) -> None:
    async with Client(hosts.address("strands-agents-1.62.0")) as agent:
        with anyio.fail_after(SCRIPT_WITHIN):
            stream = agent.stream("chunks 4")
            events = [event async for event in stream]
            answer = await agent.send("echo hello")
    said = [one.status.message for one in events if isinstance(one, StatusUpdate)]
    assert [one.text for one in said if one is not None] == ["c0 ", "c1 ", "c2 ", "c3 "]
    assert stream.answer.text.split() == ["c0", "c1", "c2", "c3"]
    # The library ends the text of its artifact with a line break.
    assert (answer.state, answer.text) == (TaskState.COMPLETED, "hello\n")


@pytest.mark.peer
@pytest.mark.parametrize("is_behind", [False, True], ids=["client", "gateway"])
async def test_a_question_of_strands_is_answered_by_its_id(
    is_behind: bool, hosts: Hosts, behind: Behind
) -> None:
    host = "strands-agents-1.62.0"
    address = await behind.address(host) if is_behind else hosts.address(host)
    async with Client(address) as agent:
        with anyio.fail_after(SCRIPT_WITHIN):
            asked = await agent.send("ask")
            assert asked.state is TaskState.INPUT_REQUIRED
            assert asked.task is not None and asked.task.status.message is not None
            (question,) = (
                one["interrupts"][0]
                for part in asked.task.status.message.parts
                if isinstance(one := part.data, dict)
            )
            said: Any = {"interruptId": question["interruptId"], "response": "Graz"}
            to = {"task_id": asked.task_id, "context_id": asked.context_id}
            done = await agent.send({"interruptResponse": said}, **to)
    assert question["reason"] == "Which city?"
    assert (done.task_id, done.state) == (asked.task_id, TaskState.COMPLETED)
    assert done.text.strip() == "got Graz"


@pytest.mark.peer
async def test_words_of_a_generator_of_a2a_lite_come_as_they_are_said(hosts: Hosts) -> None:
    async with Client(hosts.address("a2a-lite-1.2.1-streaming")) as agent:
        with anyio.fail_after(SCRIPT_WITHIN):
            stream = agent.stream("one two three")
            events = [event async for event in stream]
    said = [one.status.message for one in events if isinstance(one, StatusUpdate)]
    assert [one.text for one in said if one is not None] == ["one ", "two ", "three "]
    assert stream.answer.state is TaskState.COMPLETED
    assert not any(isinstance(event, ArtifactUpdate) for event in events)


@pytest.mark.peer
async def test_a_question_of_langgraph_is_an_artifact_and_an_answer_goes_on(hosts: Hosts) -> None:
    async with Client(hosts.address("langgraph-api-0.16.7")) as agent:
        with anyio.fail_after(SCRIPT_WITHIN):
            asked = await agent.send("ask")
            to = {"task_id": asked.task_id, "context_id": asked.context_id}
            done = await agent.send("Graz", **to)
    assert asked.state is TaskState.INPUT_REQUIRED and asked.data["value"] == "Which city?"
    assert (done.task_id, done.state) == (asked.task_id, TaskState.COMPLETED)
    assert done.text == "got Graz"


def test_every_server_of_a_framework_is_asked_for_something() -> None:
    peculiar = {"a2a-lite-1.2.1-streaming", "strands-agents-1.62.0"}
    named = {side.host for side in SIDES} | peculiar
    assert named == HOSTS.keys()
