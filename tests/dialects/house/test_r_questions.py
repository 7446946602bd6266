"""R's questions: several at once, those that nobody answers, and tools that fail."""

import asyncio
from typing import Any

import pytest
from harness.serving import Site, old_message
from harness.waiting import within

from dragoman.dialects.house import errors, r, r_service
from dragoman.errors import A2AError, InputTimeout
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded
from dragoman.model.requests import REQUESTS_URI
from dragoman.model.task import TaskState, TaskStatus
from tests.dialects.house.housemates import UNKNOWN, to

HOME = "/api/a2a"


async def asked(site: Site, skill: str, path: str = HOME) -> Any:
    """Return a task that waits for its caller."""
    params = {"message": old_message("go", metadata=to(skill))}
    return await site.call("message/send", params, path=path)


def answer(task_id: str, request_id: str, **outcome: Any) -> dict[str, Any]:
    """Return the message that answers a question by reference, without another word."""
    part = {"kind": "tool-result", "toolUseId": request_id, **outcome}
    return old_message("", referenceTaskIds=[task_id]) | {"parts": [part]}


def requests(task: Any) -> dict[str, str]:
    """Return the ids of what a task waits for, by what is read of it."""
    parts = task["status"]["message"]["parts"]
    found = [part["data"] for part in parts if part["kind"] == "data"]
    return {data["prompt"]: data["requestId"] for data in found}


# Several at once


@pytest.mark.parametrize("first", ["From?", "To?"])
async def test_any_of_the_open_questions_is_answered_by_reference(site: Site, first: str) -> None:
    """R-12, R-14, X-14: the form shows the first of them, and every one has its id."""
    task = await asked(site, "both")
    ids = requests(task)
    assert ids.keys() == {"From?", "To?"}
    assert task["status"]["message"]["inputRequest"]["requestId"] in ids.values()
    said = {"From?": "Bonn", "To?": "Rome"}
    message = answer(task["id"], ids[first], result=said.pop(first))
    half = await site.call("message/send", {"message": message}, path=HOME)
    assert (half["id"], half["status"]["state"]) == (task["id"], "input-required")
    ((second, result),) = said.items()
    assert requests(half).keys() <= {second}
    message = answer(task["id"], ids[second], result=result)
    done = await site.call("message/send", {"message": message}, path=HOME)
    assert (done["id"], done["status"]["state"]) == (task["id"], "completed")
    assert done["artifacts"][0]["parts"][0]["text"] == "Bonn to Rome"


async def test_an_id_that_none_of_the_open_questions_has_begins_a_task(site: Site) -> None:
    """R-14: a reference is a link then."""
    task = await asked(site, "both")
    other = await site.call(
        "message/send", {"message": answer(task["id"], "q", result=1)}, path=HOME
    )
    assert other["id"] != task["id"]
    assert (await site.task(task["id"]))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


def test_what_does_not_wait_has_no_open_questions() -> None:
    """R-14: nor has what waits for credentials alone."""
    said = Message(MessageId("m"), Role.AGENT, [Part(text="?")])
    states = [state for state in TaskState if r_service.open_question_ids(TaskStatus(state, said))]
    assert states == [TaskState.INPUT_REQUIRED]


# The words around an answer


CITY = {"city": "Rome"}
# A skill, the result that answers what it asks, and what comes of the task.
RESULTS = [
    ("ask", "Rome", "go to Rome"),
    ("ask", {"value": "Rome"}, "go to Rome"),
    ("ask", 7, "go to 7"),
    ("ask", CITY, "go to {'city': 'Rome'}"),
    ("confirm", True, "yes"),
    ("confirm", {"value": True}, "yes"),
    ("confirm", {"value": "no"}, "no"),
    ("choose", "Oslo", "Oslo"),
    ("choose", {"value": "Oslo"}, "Oslo"),
    ("fill", CITY, CITY),
    ("fill", {"value": CITY}, CITY),
    ("value", {"value": 3}, {"value": 3}),
    ("use", {"value": 3}, "{'value': 3}"),
]


def covered(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with words around it, as R's clients send it."""
    text = {"kind": "text", "text": "Here is the requested input."}
    return message | {"parts": [text, *message["parts"]]}


def result_of(task: Any) -> Any:
    (part,) = task["artifacts"][0]["parts"]
    return part.get("text", part.get("data"))


@pytest.mark.parametrize(("skill", "result", "comes_of_it"), RESULTS)
async def test_a_result_is_the_answer_whatever_is_said_beside_it(
    site: Site, skill: str, result: Any, comes_of_it: Any
) -> None:
    """R-041: by reference, the way the R system's own clients answer; `{value}` is the value."""
    task = await asked(site, skill)
    request_id = task["status"]["message"]["inputRequest"]["requestId"]
    message = covered(answer(task["id"], request_id, result=result))
    done = await site.call("message/send", {"message": message}, path=HOME)
    assert (done["id"], done["status"]["state"]) == (task["id"], "completed")
    assert result_of(done) == comes_of_it


@pytest.mark.parametrize(("skill", "result", "comes_of_it"), RESULTS)
async def test_so_it_is_in_other_dialects(
    site: Site, skill: str, result: Any, comes_of_it: Any
) -> None:
    """R-041, X-15: where results are data."""
    params = {"message": old_message("go", metadata=to(skill))}
    task = await site.call("message/send", params)
    r_s = await site.call("tasks/get", {"id": task["id"]}, path=HOME)
    request_id = r_s["status"]["message"]["inputRequest"]["requestId"]
    data = {"toolUseId": request_id, "result": result}
    said = {"messageId": f"m-{task['id']}", "role": "ROLE_USER", "taskId": task["id"]}
    said["parts"] = [{"text": "Here it is."}, {"data": data}]
    done = await site.call("SendMessage", {"message": said})
    (part,) = done["task"]["artifacts"][0]["parts"]
    assert part.get("text", part.get("data")) == comes_of_it


async def test_what_does_not_fit_is_asked_for_again(site: Site) -> None:
    """R-041: whether or not there is a value in it."""
    task = await asked(site, "confirm")
    request_id = task["status"]["message"]["inputRequest"]["requestId"]
    message = covered(answer(task["id"], request_id, result={"value": "perhaps"}))
    again = await site.call("message/send", {"message": message}, path=HOME)
    assert (again["id"], again["status"]["state"]) == (task["id"], "input-required")
    assert "yes or no" in again["status"]["message"]["parts"][0]["text"]


# What nobody answers


async def test_a_question_that_nobody_answers_in_time_ends_a_stream_with_its_code(
    site: Site,
) -> None:
    """R-17, R-18, R-31: the error of R instead of the last event; the task has failed."""
    params = {"message": old_message("go", metadata=to("strict"))}
    *events, last = await within(site.events("message/stream", params, path=HOME))
    states = [e.result["status"]["state"] for e in events if "status" in e.result]
    assert states[-1] == "input-required"
    task_id = events[0].result["id"]
    assert last.data["error"] == {
        "code": -32001,
        "message": "Input timeout",
        "data": {"taskId": task_id, "timeoutSeconds": 0.05},
    }
    task = await site.call("tasks/get", {"id": task_id}, path=HOME)
    assert task["status"]["state"] == "failed", "whoever reads the task is shown it"


async def test_a_message_whose_task_failed_for_want_of_an_answer_is_refused(site: Site) -> None:
    """R-17, R-18: where it is sent again, at home alone; others are told of a failed task."""
    params = {"message": old_message("go", metadata=to("strict"))}
    task = await site.call("message/send", params, path=HOME)
    await site.task_when(task["id"], lambda found: found["status"]["state"] == "TASK_STATE_FAILED")
    error = await site.refusal("message/send", params, path=HOME)
    assert (error["code"], error["message"]) == (-32001, "Input timeout")
    assert error["data"] == {"taskId": task["id"], "timeoutSeconds": 0.05}
    elsewhere = await site.call("message/send", params)
    assert (elsewhere["id"], elsewhere["status"]["state"]) == (task["id"], "failed")


async def test_over_rest_a_task_that_nobody_answered_is_a_failed_task(site: Site) -> None:
    """R-17, R-22: codes of JSON-RPC are none of REST."""
    message = old_message("go", metadata=to("strict"))
    async with asyncio.timeout(60):
        response = await site.http.post("/v1/message:stream", json={"message": message})
    assert "Input timeout: no answer within" in response.text and "-32001" not in response.text
    assert '"state":"failed"' in response.text


# Tools


async def test_a_tool_of_the_caller_that_failed_has_its_code(site: Site) -> None:
    """R-13, R-18: and the task, to whoever reads it, has failed."""
    task = await asked(site, "use")
    (part,) = [p for p in task["status"]["message"]["parts"] if p["kind"] == "tool-use"]
    said = answer(task["id"], part["id"], error="no eyes")
    error = await site.refusal("message/send", {"message": said}, path=HOME)
    assert (error["code"], error["message"]) == (-32002, "Tool execution failed")
    assert error["data"] == {
        "taskId": task["id"],
        "error": "The tool look has no answer: no eyes",
    }
    assert (await site.rested(task["id"]))["status"]["state"] == "TASK_STATE_FAILED"


async def test_a_context_nobody_has_used_is_begun(site: Site) -> None:
    """R-18: so that none is not found, and -32003 is a code that nobody gets."""
    said = old_message("x", contextId=UNKNOWN)
    task = await site.call("message/send", {"message": said}, path=HOME)
    assert (task["contextId"], task["status"]["state"]) == (UNKNOWN, "completed")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Input timeout: no answer within 300 s.", -32001),
        ("Input timeout: nobody answered within 300 s.", -32001),
        ("Input timeout: no answer within 1e+06 s.", -32001),
        ("The tool look has no answer: a\nb", -32002),
        ("Input timeout: never mind", None),
        ("It cannot be done.", None),
    ],
)
def test_only_these_ends_of_a_task_have_codes_of_their_own(text: str, code: int | None) -> None:
    """R-17, R-18: by the words that the engine ends it with."""
    said = Message(MessageId("m"), Role.AGENT, [Part(text=text)])
    error = errors.rx_failure("t", TaskStatus(TaskState.FAILED, said))
    assert (error and error.code) == code
    assert errors.rx_failure("t", TaskStatus(TaskState.WORKING, said)) is None
    if error and "timeoutSeconds" in error.facts:
        seconds = errors.rx(error)["data"]["timeoutSeconds"]
        assert seconds in (300, 1_000_000) and type(seconds) is int


def test_what_is_an_error_to_one_reader_is_an_event_to_another() -> None:
    """R-17, R-20: of the same event, whoever reads it first."""
    said = Message(MessageId("m"), Role.AGENT, [Part(text=str(InputTimeout("t", 5)))])
    status = TaskStatus(TaskState.FAILED, said)
    recorded = Recorded.of_event(3, StatusUpdate(TaskId("t"), ContextId("c"), status))
    assert b'"failed"' in r.RX_REST.encode_event(recorded)
    for dialect in (r.RX, r.RX_ABROAD):
        with pytest.raises(A2AError) as refused:
            dialect.encode_event(recorded)
        assert refused.value.code == -32001


# What others see


@pytest.mark.parametrize("given", [[], ["urn:other"], [REQUESTS_URI]])
async def test_what_is_r_s_own_is_shown_to_others_under_an_extension(
    site: Site, given: list[str]
) -> None:
    """R-13, X-15: the message names it, and so does the card."""
    task = await asked(site, "ask")
    request_id = task["status"]["message"]["inputRequest"]["requestId"]
    said = answer(task["id"], request_id, result="Rome") | {"extensions": given}
    await site.call("message/send", {"message": said}, path=HOME)
    shown = (await site.task(task["id"]))["history"][-1]
    assert shown["extensions"] == [*dict.fromkeys([*given, REQUESTS_URI])]
    plain = await site.call("message/send", {"message": old_message("x")}, path=HOME)
    assert "extensions" not in plain["history"][0]
    card = (await site.http.get("/.well-known/agent.json")).json()
    assert REQUESTS_URI in {one["uri"] for one in card["capabilities"]["extensions"]}


async def test_extensions_that_are_none_are_still_refused(site: Site) -> None:
    """R-9, X-15: a mistake is not mended by what we add."""
    said = answer(UNKNOWN, "q", result=1) | {"extensions": 7}
    assert (await site.refusal("message/send", {"message": said}, path=HOME))["code"] == -32602
