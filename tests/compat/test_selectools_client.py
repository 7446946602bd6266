"""selectools' client over ours: its methods and results, and what its own gets wrong."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness.serving import app_of, client, hosting
from harness.waiting import within

from dragoman import Agent, AgentSkill, App, BearerTokens, Caller, Message, Settings, Turn
from dragoman.compat.selectools import A2AClient, A2AError, A2AServer, A2ATask, TaskState
from dragoman.compat.selectools.transport import HttpxTransport
from dragoman.config import StoreSettings
from dragoman.model.message import Part, agent_message
from tests.compat.agents import Gate, Researcher

Make = Callable[..., A2AServer]
TOKEN = "sk-demo-token"
LONG = "sk-demo-token-0123456789"
Answer = Callable[[httpx.Request], httpx.Response]


def reaching(server: A2AServer, token: str | None = None) -> A2AClient:
    transport = httpx.ASGITransport(app=server)
    return A2AClient("http://testserver", auth_token=token, transport=transport)


def saying(answer: Answer) -> tuple[A2AClient, list[httpx.Request]]:
    """Return a client of an agent that answers calls so, and what it is asked."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.method == "GET":
            return httpx.Response(404)
        return answer(request)

    transport = httpx.MockTransport(handle)
    return A2AClient("http://agent.test/", auth_token=TOKEN, transport=transport), asked


def result(value: Any) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        id = json.loads(request.content)["id"]
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": id, "result": value})

    return answer


# What it does


async def test_an_agent_is_discovered_and_works_on_texts(make: Make) -> None:
    """P-014, P-015: without a socket, with selectools' names for everything."""
    agent = reaching(make(auth_token=TOKEN), TOKEN)
    card = await agent.discover()
    assert (card.name, card.protocol_version) == ("researcher", "0.2.6")
    assert [skill.id for skill in card.skills] == ["summarize"]
    assert card.capabilities["streaming"] is False and card.raw["name"] == card.name
    task = await agent.send_task("hi", context_id="ctx-1")
    assert (task.context_id, task.state, task.text, task.error) == (
        *("ctx-1", TaskState.COMPLETED, "Echo: hi"),
        "",
    )
    assert task.raw["artifacts"][0]["name"] == "response"
    assert await agent.get_task(task.id) == task
    more = await agent.send_task("sum", extra_parts=[{"kind": "data", "data": {"a": 1}}])
    assert more.text == 'Echo: sum\n{"a": 1}'


async def test_what_an_agent_could_not_do_is_a_task_and_no_error(make: Make) -> None:
    """P-014: its state and its error say so."""

    def answer(text: str) -> str:
        raise ValueError("secret")

    task = await reaching(make(Researcher(answer=answer))).send_task("hi")
    assert (task.state, task.text) == (TaskState.FAILED, "")
    assert task.error == "Agent execution failed (ValueError)"


async def test_what_is_refused_is_an_error_with_its_code(make: Make) -> None:
    """P-014: and without one where it is HTTP that refuses."""
    server = make(auth_token=TOKEN)
    with pytest.raises(A2AError) as unknown:
        await reaching(server, TOKEN).get_task("nobody-knows-it")
    assert unknown.value.code == -32001 and unknown.value.message == str(unknown.value)
    with pytest.raises(A2AError, match="HTTP 401") as refused:
        await reaching(server, "wrong").send_task("hi")
    assert refused.value.code is None
    with pytest.raises(A2AError) as wrong:
        await reaching(server, TOKEN).send_task("hi", extra_parts=[{"kind": "nonsense"}])
    assert wrong.value.code == -32602


def test_code_that_is_not_async_waits(make: Make) -> None:
    """P-014, P-020, M-030: each call on a loop of its own."""
    agent = reaching(make())
    assert agent.discover_sync().name == "researcher"
    task = agent.send_task_sync("hi", context_id="c")
    assert agent.get_task_sync(task.id) == task
    with pytest.raises(A2AError) as over:
        agent.cancel_task_sync(task.id)
    assert over.value.code == -32002


async def test_code_that_is_not_async_waits_within_a_loop_too(make: Make) -> None:
    """P-020: after calls from that loop, and to the same server."""
    agent = reaching(make())
    first = await agent.send_task("one")
    assert agent.get_task_sync(first.id) == first
    assert agent.send_task_sync("two").text == "Echo: two"
    assert (await agent.send_task("three")).text == "Echo: three"


async def test_a_task_is_watched_and_canceled(make: Make) -> None:
    """M-030, P-043: beyond what selectools' own client does."""
    gate = Gate()
    async with hosting(make(Researcher(answer=gate))) as url:
        agent = A2AClient(url)
        seen: list[A2ATask] = []

        async def watch() -> None:
            async for task in agent.stream_task("hi"):
                seen.append(task)
                if len(seen) == 1:
                    await asyncio.to_thread(gate.entered.wait, 60)
                    assert (await agent.cancel_task(task.id)).state == TaskState.CANCELED

        try:
            await within(watch())
        finally:
            gate.open()
        assert seen[-1].state == TaskState.CANCELED


# How it calls


async def test_the_token_and_the_message_go_where_selectools_sends_them() -> None:
    """P-021, P-022: to `/a2a` below the address where there is no card, with an id of its own."""
    done = {"state": "completed", "message": {"role": "agent", "parts": [{"text": "Hello."}]}}
    agent, asked = saying(result({"kind": "task", "id": "t", "status": done}))
    task = await agent.send_task("hi")
    assert (task.id, task.state) == ("t", "completed")
    assert [str(request.url) for request in asked] == [
        "http://agent.test/.well-known/agent.json",
        "http://agent.test/.well-known/agent-card.json",
        "http://agent.test/.well-known/agent.json",
        "http://agent.test/a2a",
    ]
    call = asked[-1]
    assert call.headers["authorization"] == f"Bearer {TOKEN}"
    message = json.loads(call.content)["params"]["message"]
    assert len(message["messageId"]) == 32 and message["parts"] == [{"kind": "text", "text": "hi"}]


@pytest.mark.parametrize(("token", "is_followed"), [(None, True), (TOKEN, False)])
async def test_a_card_s_address_is_followed_but_not_with_the_token(
    make: Make, token: str | None, is_followed: bool
) -> None:
    """P-022, M-030: what is secret goes to the address that was given alone."""
    async with hosting(make(auth_token=token)) as other:
        server = make(auth_token=token, url=f"{other}/a2a")
        async with hosting(server) as url, client(other) as http:
            agent = A2AClient(url, auth_token=token)
            assert (await agent.discover()).url == f"{other}/a2a"
            task = await agent.send_task("hi")
            body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task.id}}
            bearer = {"authorization": f"Bearer {token}"} if token else {}
            there = (await http.post("/a2a", json=body, headers=bearer)).json()
            assert ("result" in there) is is_followed


async def test_an_agent_of_today_is_called_as_well() -> None:
    """M-030, P-038: whose answer may be a message without a task."""
    own = Agent("Own", "Answers at once.")

    @own.skill
    async def greet(name: str, turn: Turn) -> Message:
        return agent_message([Part(text=f"Hello {name}")], context_id=turn.context)

    app = app_of(own)
    async with hosting(app) as url:
        task = await A2AClient(url).send_task("Ada")
        assert (task.state, task.text, task.error) == ("completed", "Hello Ada", "")


# What selectools' own does not


async def test_an_agent_that_is_not_there_is_an_error() -> None:
    """P-033: of this package, whatever carried the request."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for call in (A2AClient(address).discover, lambda: A2AClient(address).send_task("hi")):
        with pytest.raises(A2AError) as refused:
            await within(call())
        assert refused.value.code is None


async def test_an_agent_that_takes_too_long_is_an_error(make: Make) -> None:
    """P-033: as selectools' documents promise."""
    gate = Gate()
    async with hosting(make(Researcher(answer=gate))) as url:
        try:
            with pytest.raises(A2AError, match="in time"):
                await within(A2AClient(url, timeout=0.2).send_task("hi"))
        finally:
            gate.open()


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: httpx.Response(200, text="<html>"),
        lambda _: httpx.Response(500, text="oops"),
        lambda _: httpx.Response(200, json=[]),
        result([1]),
        result(None),
    ],
    ids=["html", "500", "array", "no-task", "null"],
)
async def test_an_answer_that_is_none_is_an_error(answer: Answer) -> None:
    """P-033: and no exception of a parser's."""
    agent, _ = saying(answer)
    with pytest.raises(A2AError):
        await within(agent.send_task("hi"))


@pytest.mark.parametrize("broken", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError])
async def test_a_transport_that_breaks_is_an_error(broken: type[httpx.TransportError]) -> None:
    """P-033: whatever the transport calls it."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise broken("gone", request=request)

    agent, _ = saying(answer)
    with pytest.raises(A2AError, match="gone"):
        await within(agent.send_task("hi"))


def test_a_transport_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P-016: only who brings a transport needs it."""
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(ImportError, match="pip install httpx"):
        HttpxTransport(object(), 1.0)


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "agent", "parts": [{"kind": "text", "text": text}], **more}


@pytest.mark.parametrize(
    ("data", "state", "text", "error"),
    [
        (message("hi", kind="message", contextId="c"), "completed", "hi", ""),
        ({"status": {"state": "completed", "message": message("done")}}, "completed", "done", ""),
        (
            {"status": {"state": "input-required", "message": message("?")}},
            "input-required",
            "?",
            "",
        ),
        ({"status": {"state": "failed", "message": message("no")}}, "failed", "", "no"),
        ({"status": {"state": "rejected", "message": message("no")}}, "rejected", "", "no"),
        ({}, "submitted", "", ""),
        (
            {
                "status": {"state": "completed", "message": message("bye")},
                "artifacts": [message("a"), message("b")],
            },
            *("completed", "ab", ""),
        ),
    ],
    ids=["message", "said", "asked", "failed", "rejected", "nothing", "artifacts"],
)
def test_a_task_s_text_is_what_the_agent_answered(
    data: dict[str, Any], state: str, text: str, error: str
) -> None:
    """P-038: and its error why it did not."""
    task = A2ATask.from_dict(data)
    assert (task.state, task.text, task.error, task.raw) == (state, text, error, data)


# What selectools' own has not


def served_agent() -> tuple[App, asyncio.Event]:
    hidden = [AgentSkill(id="secret", name="Secret", description="Hidden.", tags=["x"])]
    agent = Agent("Slow", "Waits.", extended_skills=hidden)
    gate = asyncio.Event()

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        if text == "wait":
            await turn.say("Waiting")
            await within(gate.wait())
        return f"Done: {text}"

    tokens = BearerTokens(tokens={LONG: Caller("me", True)})
    app = App(
        agent, settings=Settings(stores=StoreSettings(location="memory:")), authenticators=[tokens]
    )
    return app, gate


async def test_tasks_are_listed_and_followed_again() -> None:
    """M-030."""
    app, gate = served_agent()
    async with hosting(app) as url:
        agent = A2AClient(url, auth_token=LONG)
        first = await within(agent.send_task("one", context_id="c"))
        streaming = agent.stream_task("wait")
        begun = await within(anext(streaming))
        found = await within(agent.list_tasks())
        assert [task.id for task in found] == [begun.id, first.id]
        assert found[1].text == "Done: one"
        assert [task.id for task in await agent.list_tasks(context_id="c")] == [first.id]
        done = await agent.list_tasks(state=TaskState.COMPLETED, limit=1)
        assert [task.id for task in done] == [first.id]
        listed = await asyncio.to_thread(agent.list_tasks_sync, limit=1)
        assert [task.id for task in listed] == [begun.id]
        assert (await asyncio.to_thread(agent.get_task_sync, begun.id)).state == TaskState.WORKING
        again = agent.resubscribe(begun.id)
        assert (await within(anext(again))).id == begun.id
        gate.set()
        assert [task.text async for task in again][-1] == "Done: wait"
        assert [task.text async for task in streaming][-1] == "Done: wait"
        for wrong in ({"limit": 0}, {"state": "sleeping"}):
            with pytest.raises(A2AError):
                await agent.list_tasks(**wrong)
        with pytest.raises(A2AError):
            await anext(agent.resubscribe("none"))


async def test_posts_and_the_extended_card_are_asked_for() -> None:
    """M-030: in async code and in code that is not."""
    app, _ = served_agent()
    async with hosting(app) as url:
        agent = A2AClient(url, auth_token=LONG)
        card = await within(agent.extended_card())
        assert "secret" in [skill.id for skill in card.skills]
        assert await asyncio.to_thread(agent.extended_card_sync) == card
        task = await within(agent.send_task("one"))
        config = {"url": "https://example.com/hook", "taskId": task.id}
        made = await agent.set_push_config(task.id, config["url"], token="t", config_id="mine")
        assert made == config | {"id": "mine"}
        assert await agent.get_push_config(task.id, "mine") == made
        await asyncio.to_thread(agent.set_push_config_sync, task.id, config["url"])
        assert len(await agent.list_push_configs(task.id)) == 2
        await agent.delete_push_config(task.id, "mine")
        (left,) = await asyncio.to_thread(agent.list_push_configs_sync, task.id)
        assert await asyncio.to_thread(agent.get_push_config_sync, task.id, left["id"]) == left
        await asyncio.to_thread(agent.delete_push_config_sync, task.id, left["id"])
        with pytest.raises(A2AError):
            await agent.get_push_config(task.id, left["id"])
    with pytest.raises(A2AError, match="extended card"):
        async with hosting(app_of(Agent("A", "B."))) as url:
            await A2AClient(url).extended_card()
