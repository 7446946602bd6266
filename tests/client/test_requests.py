"""What agents ask their callers, answered by functions: over the wire of every version."""

import asyncio
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, Answer, Client, Part, TaskState, Turn
from dragoman.client.requests import requests_of
from dragoman.errors import RequestFailed
from dragoman.model.requests import REQUESTS_URI, TOOL_RESULT, Request

VERSIONS = ("1.0", "0.3")
HOME = "/api/a2a"


def agent(**more: Any) -> Agent:
    agent = Agent("Asker", "Asks.", **more)

    @agent.skill
    async def tools(text: str, turn: Turn) -> str:
        async def one(number: int) -> str:
            try:
                return str(await turn.tool("add", {"a": number, "b": 1}))
            except RequestFailed as error:
                return str(error)

        return " ".join(await asyncio.gather(*(one(number) for number in range(3))))

    @agent.skill
    async def person(text: str, turn: Turn) -> str:
        colour = await turn.choose("Which colour?", ["red", "blue"])
        is_sure = await turn.confirm("Sure?")
        form = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
        filled = await turn.fill("How many?", form)
        said = await turn.ask("Anything else?")
        return f"{colour} {is_sure} {filled['n']} {said.text}"

    return agent


def to(skill: str) -> dict[str, Any]:
    return {"metadata": {"skillId": skill}}


async def asked(site: Site, skill: str, path: str = "/") -> dict[str, Any]:
    return await site.call("message/send", {"message": old_message("go", **to(skill))}, path=path)


@pytest.mark.parametrize("version", VERSIONS)
async def test_tools_are_called_side_by_side_until_the_task_rests(version: str) -> None:
    waiting = asyncio.Barrier(3)

    async def add(a: int, b: int) -> int:
        await waiting.wait()
        return a + b

    async with serving(agent()) as site, Client(site.url, version=version, tools={"add": add}) as c:
        answer = await within(c.send("go", metadata={"skillId": "tools"}))
    assert answer.text == "1 2 3"


async def test_a_tool_that_fails_says_so_and_no_more_than_it_wants() -> None:
    def add(a: int, b: int) -> int:
        if a == 1:
            raise RequestFailed("one is too few")
        if a == 2:
            raise ValueError("the password is hunter2")
        return a

    async with serving(agent()) as site, Client(site.url, tools={"add": add}) as client:
        answer = await within(client.send("go", metadata={"skillId": "tools"}))
    assert answer.text == (
        "0 The tool add has no answer: one is too few The tool add has no answer: The tool failed."
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_function_answers_whatever_is_asked(version: str) -> None:
    seen: list[str] = []

    async def person(request: Request) -> Any:
        seen.append(request.kind)
        return {"choice": "blue", "confirmation": False, "form": {"n": 3}, "text": "no"}[
            request.kind
        ]

    async with serving(agent()) as site, Client(site.url, version=version) as client:
        answer = await within(client.send("go", metadata={"skillId": "person"}, on_request=person))
    assert answer.text == "blue False 3 no"
    assert seen == ["choice", "confirmation", "form", "text"]


async def test_what_nobody_answers_is_left_to_the_caller() -> None:
    async with serving(agent()) as site, Client(site.url, tools={"other": int}) as client:
        answer = await within(
            client.send("go", metadata={"skillId": "tools"}, on_request=lambda request: None)
        )
        assert answer.state is TaskState.INPUT_REQUIRED
        for left in (3, 2, 1):
            found = requests_of(answer)
            assert len(found) == left
            answer = await within(client.answer_request(answer.task_id, found[-1], left))
        assert answer.text == "1 2 3"
        assert requests_of(answer) == [] and requests_of(Answer()) == []


async def test_code_that_is_not_async_answers_too() -> None:
    async with serving(agent()) as site:

        def talk() -> str:
            with Client(site.url).sync as client:
                answer = client.send("go", metadata={"skillId": "person"})
                for result in ("red", True, {"n": 1}, "bye"):
                    (request,) = requests_of(answer)
                    answer = client.answer_request(answer.task_id, request, result)
                return answer.text

        assert await within(asyncio.to_thread(talk)) == "red True 1 bye"


async def test_an_agent_that_takes_only_text_takes_results_of_its_requests() -> None:
    async with serving(agent(input_modes=["text/plain"])) as site, Client(site.url) as client:
        answer = await within(client.send("go", metadata={"skillId": "tools"}))
        (first, *_) = requests_of(answer)
        answer = await within(client.answer_request(answer.task_id, first, {"x": 1}))
        assert len(requests_of(answer)) == 2


# On the wire


async def test_the_card_declares_how_requests_are_carried() -> None:
    plain = Agent("Plain", "Asks nothing.")

    @plain.skill
    async def echo(text: str) -> str:
        return text

    async with serving(agent(), plain) as site:
        for name, is_there in (("asker", True), ("plain", False)):
            found = await site.http.get(f"/agents/{name}/.well-known/agent-card.json")
            uris = [one["uri"] for one in found.json()["capabilities"]["extensions"]]
            assert (REQUESTS_URI in uris) is is_there


async def test_a_request_is_a_text_and_a_data_part_in_1_0() -> None:
    async with serving(agent()) as site:
        task = await site.send("go", **to("person"))
        said = task["status"]["message"]
        text, data = said["parts"]
        assert text == {"text": "Which colour?"}
        assert data["mediaType"] == "application/vnd.dragoman.input-request+json"
        assert data["data"]["choices"] == ["red", "blue"]
        result = {"toolUseId": data["data"]["requestId"], "result": "red"}
        parts = [{"data": result, "mediaType": TOOL_RESULT}]
        task = await site.call("SendMessage", {"message": message(taskId=task["id"], parts=parts)})
        assert task["task"]["status"]["message"]["parts"][0] == {"text": "Sure?"}


async def test_a_request_is_a_text_and_a_data_part_in_0_3() -> None:
    async with serving(agent()) as site:
        task = await asked(site, "tools")
        parts = task["status"]["message"]["parts"]
        assert [part["kind"] for part in parts] == ["text"] * 3 + ["data"] * 3
        for part, left in zip(parts[3:], (2, 1, 0), strict=True):
            # Without a media type, as a peer may have none for it.
            data = {"toolUseId": part["data"]["id"], "result": left}
            said = old_message("", taskId=task["id"]) | {"parts": [{"kind": "data", "data": data}]}
            task = await site.call("message/send", {"message": said})
            left_over = task["status"].get("message", {}).get("parts", [])
            assert sum(part["kind"] == "data" for part in left_over) == left
        assert task["artifacts"][0]["parts"][0]["text"] == "2 1 0"


async def test_a_request_has_the_fields_of_r_at_its_path() -> None:
    """R-040, R-041, R-044: its own field for a question, its own kinds of parts for tools."""
    async with serving(agent()) as site:
        task = await asked(site, "person", HOME)
        told = task["status"]["message"]["inputRequest"]
        assert (told["kind"], told["prompt"]) == ("input-request", "Which colour?")
        assert told["sensitive"] is False
        said = old_message("blue", referenceTaskIds=[task["id"]])
        said["parts"].append(
            {"kind": "tool-result", "toolUseId": told["requestId"], "result": "blue"}
        )
        task = await site.call("message/send", {"message": said}, path=HOME)
        assert task["status"]["message"]["inputRequest"]["prompt"] == "Sure?"
        task = await asked(site, "tools", HOME)
        uses = [part for part in task["status"]["message"]["parts"] if part["kind"] == "tool-use"]
        assert [(use["name"], use["args"]["a"]) for use in uses] == [("add", n) for n in range(3)]
        said = old_message("", taskId=task["id"]) | {
            "parts": [{"kind": "tool-result", "toolUseId": use["id"], "result": 7} for use in uses]
        }
        task = await site.call("message/send", {"message": said}, path=HOME)
        assert task["artifacts"][0]["parts"][0]["text"] == "7 7 7"


async def test_a_question_of_an_agent_that_knows_no_requests_is_answered_by_its_text() -> None:
    def person(request: Request) -> str:
        assert not request.is_declared and request.kind == "text"
        return f"to {request.prompt}"

    plain = Agent("Plain", "Asks.")

    @plain.skill
    async def ask(text: str, turn: Turn) -> str:
        said = await turn.ask("Who?")
        assert said.parts == [Part(text="to Who?")]
        return said.text

    async with serving(plain) as site, Client(site.url) as client:
        answer = await within(client.send("go", on_request=person))
    assert answer.text == "to Who?"
