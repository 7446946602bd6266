"""What the NEXUS document says of its gateway, sentence by sentence, as its readers try it."""

import asyncio
import functools
import json
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import serving
from harness.waiting import eventually, within
from msgspec import UNSET

from dragoman import Agent, Message, Part, Turn
from dragoman.gateway.delivery import retries
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.raw_peer import Answer, Asked, Peer, http, raw_peer

DOOR = "/api/v1/a2a"
# As the document has it: a message, and nobody it is for.
CURL = {
    "jsonrpc": "2.0",
    "id": "req-1",
    "method": "message/send",
    "params": {"message": {"role": "user", "parts": [{"type": "text", "data": "Hello"}]}},
}


def speaker(name: str) -> Agent:
    agent = Agent(name, "Says something.")

    @agent.skill
    async def speak(text: str) -> str:
        return f"{name}: {text}"

    return agent


async def ended(site: GatewaySite, task_id: str) -> Any:
    """Return a task as the door shows it, once it has ended."""

    async def found() -> Any:
        task = await site.call("tasks/get", {"id": task_id}, path=DOOR)
        return task if task["status"] in ("completed", "failed", "canceled") else None

    return await eventually(found)


async def recorded(site: GatewaySite, task_id: str) -> Any:
    return (await site.http.get(f"/api/v1/tasks/{task_id}")).json()["data"]


# The document's own command


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_command_of_the_document_works_as_it_stands(tmp_path: Path) -> None:
    """N-034: typed into a shell, with one agent registered."""
    async with serving(speaker("Ann")) as one, gateway(tmp_path) as site:
        await site.register(one.url)
        kind = "Content-Type: application/json"
        command = ["curl", "-s", "-X", "POST", f"{site.url}{DOOR}", "-H", kind]
        typed = [*command, "-d", json.dumps(CURL)]
        process = await asyncio.create_subprocess_exec(*typed, stdout=subprocess.PIPE)
        said, _ = await within(process.communicate())
        answer = json.loads(said)
        assert answer["id"] == "req-1", answer
        task = await ended(site, answer["result"]["id"])
        assert task["messages"][-1]["parts"] == [{"type": "text", "data": "Ann: Hello"}]


async def test_a_message_for_nobody_in_particular_goes_to_the_only_agent(tmp_path: Path) -> None:
    """N-034: and to nobody while there are several, until one is the default."""
    async with (
        serving(speaker("Ann")) as one,
        serving(speaker("Bea")) as two,
        gateway(tmp_path) as site,
    ):
        nobody = (await site.post(CURL, DOOR)).json()["error"]
        assert nobody["code"] == -32602 and "--default" in nobody["message"]
        await site.register(one.url)
        begun = (await site.post(CURL, DOOR)).json()["result"]
        assert (await ended(site, begun["id"]))["status"] == "completed"
        await site.register(two.url, is_default=False)
        several = (await site.post(CURL, DOOR)).json()["error"]
        assert several["code"] == -32602 and "--default" in several["message"]
        assert await site.total() == 1, "what is refused makes nothing"


async def test_an_agent_that_serves_others_only_does_not_count(tmp_path: Path) -> None:
    """N-034, M-061: neither is it chosen, nor does it stand in the way."""
    async with (
        serving(speaker("Ann")) as one,
        serving(speaker("Bea")) as two,
        gateway(tmp_path) as site,
    ):
        await site.register(two.url, "somebody", callers=["else"])
        refused = (await site.post(CURL, DOOR)).json()["error"]
        assert refused["code"] == -32602 and "Bea" not in refused["message"]
        await site.register(one.url)
        begun = (await site.post(CURL, DOOR)).json()["result"]
        task = await ended(site, begun["id"])
        assert task["messages"][-1]["parts"][0]["data"] == "Ann: Hello"


async def test_a_gateway_has_a_card_of_its_own_with_both_skills(tmp_path: Path) -> None:
    """N-005, N-001: where NEXUS has it, without any credential."""
    async with gateway(tmp_path) as site:
        card = (await site.http.get("/.well-known/agent.json")).json()
        assert {"agent-discovery", "task-delegation"} <= {one["id"] for one in card["skills"]}
        assert card["url"].startswith("http")


# What an agent is asked


def nexus_reply(asked: Asked, text: str = "Done") -> Answer:
    """Answer as the document's agents do: with the id that the task was given."""
    if asked.operation != "send":
        return [http(b"{}", "404 Not Found")]
    said = asked.json
    parts = [{"type": "text", "data": text}]
    task = {"id": said["params"]["id"], "status": "completed", "artifacts": [{"parts": parts}]}
    result = {**task, "messages": [{"role": "agent", "parts": parts}]}
    return [http(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}).encode())]


async def registered(site: GatewaySite, peer: Peer) -> None:
    """Register an agent that has no card and says that it is there."""
    found = await site.register(f"{peer.url}/a", dialect="nexus", name="a")
    await site.gateway.registry.heartbeat(found.id, "online", owner=found.owner)


async def test_a_request_to_an_agent_is_called_as_the_task_is(tmp_path: Path) -> None:
    """N-011: the id of the request, and the task's id in its params."""

    def answer(name: str, asked: Asked) -> Answer:
        return nexus_reply(asked)

    async with raw_peer(answer) as peer, gateway(tmp_path, allow_private=True) as site:
        await registered(site, peer)
        begun = (await site.post(CURL, DOOR)).json()["result"]
        assert (await ended(site, begun["id"]))["status"] == "completed"
        body = {"assignedAgentId": "a", "title": "t", "input": {"text": "x"}}
        made = (await site.http.post("/api/v1/tasks", json=body)).json()["data"]
        await ended(site, made["id"])
        sent = [asked.json for _, asked in peer.requests if asked.operation == "send"]
        ids = [begun["id"], made["id"]]
        assert [(one["id"], one["params"]["id"]) for one in sent] == [(id, id) for id in ids]


async def test_an_id_that_a_caller_chose_is_not_an_agent_s(tmp_path: Path) -> None:
    """N-011, X-23: two callers may choose the same, and an agent would take them for one."""

    def answer(name: str, asked: Asked) -> Answer:
        return nexus_reply(asked)

    chosen = str(uuid.uuid4())
    asked_for = {**CURL, "params": {**CURL["params"], "id": chosen}}  # type: ignore[dict-item]  # an object
    async with raw_peer(answer) as peer, gateway(tmp_path, allow_private=True) as site:
        await registered(site, peer)
        begun = (await site.post(asked_for, DOOR)).json()["result"]
        assert begun["id"] == chosen
        assert (await ended(site, chosen))["status"] == "completed"
        (sent,) = [asked.json for _, asked in peer.requests if asked.operation == "send"]
        assert sent["id"] == sent["params"]["id"] != chosen
        uuid.UUID(sent["id"])


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_the_record_says_how_often_an_agent_was_tried_again(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N-049, N-032: of three attempts two are retries."""
    monkeypatch.setattr(retries, "Schedule", functools.partial(retries.Schedule, first=0.01))

    def answer(name: str, asked: Asked) -> Answer:
        if asked.operation == "send" and asked.before < times:
            return [http(b"", "503 Service Unavailable")]
        return nexus_reply(asked)

    async with raw_peer(answer) as peer, gateway(tmp_path, allow_private=True) as site:
        await registered(site, peer)
        begun = (await site.post(CURL, DOOR)).json()["result"]
        assert (await ended(site, begun["id"]))["status"] == "completed"
        assert (await recorded(site, begun["id"]))["retry_count"] == times
        sent = [asked.json for _, asked in peer.requests if asked.operation == "send"]
        assert {one["id"] for one in sent} == {begun["id"]}, "the same however often it is sent"


# What a task is given, and what comes of it


def typed() -> Agent:
    agent = Agent("Typed", "Takes objects.")

    @agent.skill(default=True)
    async def count(to: int = 3) -> AsyncIterator[str]:
        for number in range(1, to + 1):
            yield f"{number} "

    @agent.skill
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    @agent.skill
    async def seen(message: Message) -> dict[str, Any]:
        return {"parts": [part.data if part.text is UNSET else part.text for part in message.parts]}

    return agent


def plain() -> Agent:
    agent = Agent("Plain", "Takes text.", input_modes=["text/plain"])

    @agent.skill
    async def hear(text: str) -> str:
        return text

    return agent


async def made(site: GatewaySite, agent: str, input: Any, skill: str = "") -> Any:
    """Return the record of a task once it has ended."""
    body = {"assignedAgentId": agent, "title": "t", "input": input}
    answer = await site.http.post(
        "/api/v1/tasks", json=body | ({"skillId": skill} if skill else {})
    )
    task = answer.json()["data"]
    await ended(site, task["id"])
    return await recorded(site, task["id"])


async def test_a_task_s_output_is_the_whole_of_a_streamed_text(tmp_path: Path) -> None:
    """N-049: in however many chunks it came."""
    async with serving(typed()) as one, gateway(tmp_path) as site:
        await site.register(one.url, name="typed")
        done = await made(site, "typed", {"to": 4})
        assert done["output"] == {"result": "1 2 3 4 "}
        assert len(done["artifacts"][0]["parts"]) > 1, "it was streamed"


async def test_an_agent_that_answers_with_a_message_has_said_its_output(tmp_path: Path) -> None:
    """N-049, N-091: to REST and to the steps of a workflow alike, and all of it."""
    agent = Agent("Brief", "Answers without a task.")

    @agent.skill
    async def answer(turn: Turn) -> Message:
        return turn.reply([Part(text="one"), Part(text="two")])

    async with serving(agent) as one, gateway(tmp_path) as site:
        await site.register(one.url, name="brief")
        done = await made(site, "brief", {})
        assert (done["output"], done["artifacts"]) == ({"result": "one\ntwo"}, [])
        body = {"name": "w", "steps": [{"name": "ask", "agentId": "brief"}]}
        flow = (await site.http.post("/api/v1/workflows", json=body)).json()["data"]
        path = f"/api/v1/workflows/{flow['id']}"
        await site.http.post(f"{path}/execute")
        run: Any = {}

        async def is_over() -> bool:
            nonlocal run
            (run,) = (await site.http.get(path)).json()["data"]["runs"]
            return run["status"] == "completed"

        await eventually(is_over)
        assert run["steps"][0]["output"] == done["output"]


async def test_a_typed_skill_is_called_by_rest_with_its_arguments(tmp_path: Path) -> None:
    """N-045: the input goes out as data, by the skill that is named."""
    async with serving(typed()) as one, serving(plain()) as two, gateway(tmp_path) as site:
        await site.register(one.url, name="typed")
        await site.register(two.url, name="plain")
        done = await made(site, "typed", {"a": 1, "b": 2}, "add")
        assert (done["output"], done["input"]) == ({"result": {"sum": 3}}, {"a": 1, "b": 2})
        done = await made(site, "typed", {"a": 1}, "seen")
        assert done["output"] == {"result": {"parts": [{"a": 1}]}}
        done = await made(site, "plain", {"a": 1})
        assert done["output"] == {"result": '{"a":1}'}, "who takes no data is told in text"
        wrong = await made(site, "typed", {"a": 1, "b": "x"}, "add")
        assert wrong["status"] == "failed" and wrong["output"] is None


async def test_a_nexus_agent_is_given_the_input_as_one_text(tmp_path: Path) -> None:
    """N-045: as its document has it."""

    def answer(name: str, asked: Asked) -> Answer:
        return nexus_reply(asked)

    async with raw_peer(answer) as peer, gateway(tmp_path, allow_private=True) as site:
        await registered(site, peer)
        assert (await made(site, "a", {"b": [1], "a": None}))["output"] == {"result": "Done"}
        (sent,) = [asked.json for _, asked in peer.requests if asked.operation == "send"]
        parts = [{"type": "text", "data": '{"b":[1],"a":null}'}]
        assert sent["params"]["message"]["parts"] == parts


async def test_a_step_is_given_the_whole_of_what_the_one_before_it_streamed(
    tmp_path: Path,
) -> None:
    """N-091: as data, which a typed skill can take."""
    async with serving(typed()) as one, gateway(tmp_path) as site:
        await site.register(one.url, name="typed")
        steps = [
            {"name": "count", "agentId": "typed", "skillId": "count", "input": {"to": 3}},
            {"name": "see", "agentId": "typed", "skillId": "seen", "dependsOn": [0]},
            {"name": "add", "agentId": "typed", "skillId": "add", "input": {"a": 1, "b": 2}},
        ]
        body = {"name": "w", "steps": steps}
        flow = (await site.http.post("/api/v1/workflows", json=body)).json()["data"]
        path = f"/api/v1/workflows/{flow['id']}"
        assert (await site.http.post(f"{path}/execute")).status_code == 202
        run: Any = {}

        async def is_over() -> bool:
            nonlocal run
            (run,) = (await site.http.get(path)).json()["data"]["runs"]
            return run["status"] not in ("pending", "running")

        await eventually(is_over)
        outputs = [step["output"] for step in run["steps"]]
        whole = {"result": "1 2 3 "}
        parts = {"result": {"parts": [{"step_0_output": whole}]}}
        assert outputs == [whole, parts, {"result": {"sum": 3}}], run


# What nobody knows


@pytest.mark.parametrize("path", ["/", "/rpc", "/a2a", DOOR, "/api/a2a", "/a2a/ann"])
@pytest.mark.parametrize("headers", [{}, {"a2a-version": "1.0"}], ids=["0.x", "1.0"])
async def test_a_method_that_nobody_knows_is_named_at_every_address(
    tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    """N-018: in the message; and a long one is not said in full."""
    async with serving(speaker("Ann")) as one, gateway(tmp_path) as site:
        await site.register(one.url, name="ann")
        error = await site.refusal("tasks/nothing", {}, path=path, headers=headers)
        assert (error["code"], error["message"]) == (-32601, "Method not found: tasks/nothing")
        long = await site.refusal("x" * 1000, {}, path=path, headers=headers)
        assert len(long["message"]) < 200
