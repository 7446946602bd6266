"""Hooks of a whole gateway: what agents behind it answer is changed before it is recorded here."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from harness.processes import run, running
from harness.serving import V1, Site, client, hosting, serving
from harness.waiting import within

from dragoman import Agent, ArtifactUpdate, EventContext, EventHooks, Settings, StatusUpdate, Turn
from dragoman.config import StoreSettings
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import Principal

CANARY = "canary-4711"
replace = msgspec.structs.replace


def upstream() -> Agent:
    agent = Agent("Upstream", "Says what it should not.")

    @agent.skill(default=True)
    async def chunks(text: str, turn: Turn) -> AsyncIterator[str]:
        await turn.say(f"said {CANARY}")
        for number in range(5):
            yield f"{number} {CANARY} "
            await asyncio.sleep(0)

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        await turn.ask(f"asked {CANARY}")
        return f"done {CANARY}"

    return agent


def hide(event: Any) -> Any:
    if isinstance(event, ArtifactUpdate):
        parts = [replace(one, text=one.text.replace(CANARY, "*")) for one in event.artifact.parts]
        return replace(event, artifact=replace(event.artifact, parts=parts))
    if isinstance(event, StatusUpdate) and event.status.message is not None:
        said = event.status.message
        parts = [replace(one, text=one.text.replace(CANARY, "*")) for one in said.parts]
        status = replace(event.status, message=replace(said, parts=parts))
        return replace(event, status=status)
    return event


async def streamed(site: Site, path: str, **message: Any) -> list[Any]:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]} | message
    to = {"path": path, "headers": V1}
    return [
        one.result for one in await site.events("SendStreamingMessage", {"message": said}, **to)
    ]


async def test_what_an_agent_answers_is_changed_before_the_gateway_records_it(
    tmp_path: Path,
) -> None:
    hooks = EventHooks()
    hooks.transform(hide)
    seen: list[tuple[Any, EventContext]] = []
    over = asyncio.Event()

    @hooks.on_event
    async def look(event: Any, context: EventContext) -> None:
        seen.append((event, context))
        if isinstance(event, StatusUpdate) and event.status.state.is_terminal:
            over.set()

    settings = Settings(stores=StoreSettings(location=str(tmp_path / "gateway.db")))
    app = gateway_app(settings=settings, is_local=True, hooks=[hooks])
    async with serving(upstream()) as up, hosting(app) as url, client(url) as http:
        site = Site(url, http, app)
        registration = Registration(url=up.url)
        agent = await gateway_of(app).registry.register(registration, Principal.read(""))
        path = f"/a2a/{agent.name}"
        events = await streamed(site, path)
        assert CANARY not in str(events) and "4 * " in str(events)
        task = await site.call("GetTask", {"id": events[0]["task"]["id"]}, path=path, headers=V1)
        texts = [part["text"] for part in task["artifacts"][0]["parts"]]
        assert "".join(texts) == "0 * 1 * 2 * 3 * 4 * "
        await within(over.wait())
        # A question of the agent's too, and what comes after the answer.
        metadata = {"skillId": "asks"}
        asked = await streamed(site, path, messageId="n", metadata=metadata)
        assert "asked *" in str(asked[-1]) and CANARY not in str(asked)
        more = {"messageId": "o", "taskId": asked[0]["task"]["id"]}
        done = await streamed(site, path, **more)
        assert "TASK_STATE_COMPLETED" in str(done[-1]) and CANARY not in str(done)
    assert CANARY not in str([event for event, _ in seen])
    assert {context.agent for _, context in seen} == {"gateway"}
    assert seen[-1][1].forwarded_to == agent.id
    for kept in tmp_path.glob("gateway.db*"):
        assert CANARY.encode() not in kept.read_bytes(), kept


async def test_a_transform_that_fails_fails_the_tasks_of_the_gateway(tmp_path: Path) -> None:
    hooks = EventHooks()

    @hooks.transform
    def broken(event: Any) -> Any:
        raise ValueError(CANARY)

    settings = Settings(stores=StoreSettings(location=str(tmp_path / "gateway.db")))
    app = gateway_app(settings=settings, is_local=True, hooks=[hooks])
    async with serving(upstream()) as up, hosting(app) as url, client(url) as http:
        site = Site(url, http, app)
        registration = Registration(url=up.url)
        agent = await gateway_of(app).registry.register(registration, Principal.read(""))
        events = await streamed(site, f"/a2a/{agent.name}")
    assert "TASK_STATE_FAILED" in str(events[-1]) and CANARY not in str(events)


async def test_the_command_takes_hooks(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(
        "from dragoman import EventHooks\n"
        "hooks = EventHooks()\n"
        "@hooks.transform\n"
        "async def drop(event):\n"
        "    return None\n"
    )
    given = ("up", "--listen", "127.0.0.1:0", "--store", tmp_path / "g.db")
    with running(*given, "--hooks", tmp_path / "refusing.py", cwd=tmp_path) as child:
        async with client(child.ready()) as http:
            task = await Site(child.url, http).send("hello")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED" and "artifacts" not in task


def test_a_file_without_hooks_is_told_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = run("gateway", "--listen", "127.0.0.1:0", "--hooks", "empty.py", cwd=tmp_path)
    assert done.returncode != 0 and "EventHooks" in done.stderr
