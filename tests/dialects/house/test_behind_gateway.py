"""Callers of every house reach agents behind a gateway: at its own paths by what they ask for, and
at the address of one agent."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.serving import Site, old_message, serving

from dragoman import Agent, Turn
from tests.dialects.house.housemates import agent, nexus_message, rx_message, to
from tests.gateway.gateway_site import GatewaySite, gateway

other = Agent("Other", "Says something else.")


@other.skill
async def different(text: str) -> str:
    return f"Other: {text}"


@other.skill
async def hears(text: str, turn: Turn) -> Any:
    """Ask plainly, and say what arrived."""
    await turn.ask("Where?")
    return {"parts": [part.text or part.data for part in turn.message.parts]}


class Behind(NamedTuple):
    """A gateway with two agents, and the second one's address there."""

    gate: GatewaySite
    path: str


@pytest.fixture(scope="module")
async def behind(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Behind]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    async with (
        serving(agent, corvid_rate="off") as one,
        serving(other) as two,
        gateway(folder, corvid_rate="off") as gate,
    ):
        await gate.register(one.url)
        second = await gate.register(two.url)
        yield Behind(gate, f"/a2a/{second.name}")


def text_of(task: Any) -> str:
    return task["artifacts"][0]["parts"][0]["text"]


async def test_a_nexus_caller_is_answered_at_the_door_and_reads_the_result(behind: Behind) -> None:
    """N-20, N-034: with an agent it names, or by skill."""
    gate, path = behind
    for params, wanted in (
        ({"assignedAgentId": path.rpartition("/")[2]}, "Other: x"),
        ({"metadata": to("echo")}, "Echo: x"),
    ):
        said = {"message": nexus_message("x"), **params}
        begun = await gate.call("message/send", said, path="/api/v1/a2a")
        assert begun["status"] == "submitted"
        await gate.rested(begun["id"])
        task = await gate.call("tasks/get", {"id": begun["id"]}, path="/api/v1/a2a")
        assert task["status"] == "completed"
        assert task["messages"][-1]["parts"] == [{"type": "text", "data": wanted}]


async def test_a_corvid_caller_polls_until_the_answer_is_there(behind: Behind) -> None:
    """C-1, C-3, C-13: at the gateway's own address, by skill."""
    gate = behind.gate
    sent = await gate.http.post("/a2a/tasks/send", json={"message": "x", "skill": "echo"})
    assert sent.status_code == 200, sent.text
    await gate.rested(sent.json()["id"])
    task = (await gate.http.get(f"/a2a/tasks/{sent.json()['id']}")).json()
    assert (task["state"], task["messages"][-1]["parts"][0]["text"]) == ("completed", "Echo: x")


@pytest.mark.parametrize(
    ("path", "skill"), [("/api/a2a", "echo"), ("", "different")], ids=["door", "address"]
)
async def test_an_r_caller_follows_to_the_end(behind: Behind, path: str, skill: str) -> None:
    """R-2, R-20: at its own path, and below that of an agent."""
    gate, own = behind
    params = {"message": old_message("x", metadata=to(skill))}
    events = await gate.events("message/stream", params, path=path or f"{own}/api/a2a")
    assert events[-1].result["final"] is True
    task = await gate.call("GetTask", {"id": events[0].result["id"]})
    assert text_of(task) == ("Echo: x" if skill == "echo" else "Other: x")


async def test_a_question_of_an_agent_behind_is_answered_by_reference(behind: Behind) -> None:
    """R-12, R-14: its form is the gateway's, and so is the task."""
    gate = behind.gate
    params = {"message": rx_message("go", metadata=to("ask"))}
    task = await gate.call("message/send", params, path="/api/a2a")
    form = task["status"]["message"]["inputRequest"]
    assert form["prompt"] == "Where?"
    said = rx_message("here", referenceTaskIds=[task["id"]])
    said["parts"].append({"kind": "tool-result", "toolUseId": form["requestId"], "result": "Rome"})
    done = await gate.call("message/send", {"message": said}, path="/api/a2a")
    assert (done["id"], done["status"]["state"]) == (task["id"], "completed")
    assert text_of(done) == "go to Rome"


@pytest.mark.parametrize(
    ("result", "arrives"),
    [("Rome", ["Rome"]), ({"value": "Rome"}, ["Rome"]), ({"a": 1}, ['{"a":1}', {"a": 1}])],
)
async def test_an_agent_that_asks_plainly_is_told_the_result_and_no_id(
    behind: Behind, result: Any, arrives: list[Any]
) -> None:
    """R-041: it need not know what a result of a tool is, nor read the words around it."""
    gate = behind.gate
    params = {"message": rx_message("go", metadata=to("hears"))}
    task = await gate.call("message/send", params, path="/api/a2a")
    request_id = task["status"]["message"]["inputRequest"]["requestId"]
    said = rx_message("Here you are.", referenceTaskIds=[task["id"]])
    said["parts"].append({"kind": "tool-result", "toolUseId": request_id, "result": result})
    done = await gate.call("message/send", {"message": said}, path="/api/a2a")
    assert done["artifacts"][0]["parts"][0]["data"] == {"parts": arrives}


async def test_a_selectools_caller_is_answered(behind: Behind) -> None:
    """S-6, S-7: by the agent at whose address it asks."""
    gate, path = behind
    task = await gate.call("tasks/send", {"message": old_message("x")}, path=path)
    assert (task["artifacts"][0]["name"], text_of(task)) == ("response", "Other: x")


async def test_what_is_wanted_of_nobody_is_refused_as_each_house_does(behind: Behind) -> None:
    """C-9, N-11, M-061: there is no such agent."""
    gate: Site = behind.gate
    response = await gate.http.post("/a2a/tasks/send", json={"message": "x", "skill": "nothing"})
    assert response.status_code in (400, 404) and response.json().keys() == {"error"}
    params = {"message": nexus_message("x"), "assignedAgentId": "nobody"}
    error = await gate.refusal("message/send", params, path="/api/v1/a2a")
    assert error["code"] == -32602


async def test_an_id_that_a_caller_chose_goes_to_the_agent_at_whose_address_it_is(
    behind: Behind,
) -> None:
    """N-12, X-23: the gateway's task has it, and the right agent does it."""
    gate, path = behind
    for _ in range(3):
        id = str(uuid.uuid4())
        task = await gate.call("message/send", {"id": id, "message": nexus_message("x")}, path=path)
        assert (task["id"], task["status"]) == (id, "completed")
        assert task["artifacts"][0]["parts"][0]["data"] == "Other: x"


async def test_a_caller_of_0_1_is_answered_under_the_id_it_chose(behind: Behind) -> None:
    """N-12: by the agent at whose address it asks."""
    gate, path = behind
    said = {"role": "user", "parts": [{"type": "text", "text": "x"}]}
    task = await gate.call("tasks/send", {"id": str(uuid.uuid4()), "message": said}, path=path)
    assert task["artifacts"][0]["parts"] == [{"type": "text", "text": "Other: x"}]
