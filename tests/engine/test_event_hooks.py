"""Functions that see the events of tasks, and functions that change them before anyone does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import Site, client, hosting, message, serving
from harness.waiting import within

from dragoman import (
    Agent,
    App,
    ArtifactUpdate,
    EventContext,
    EventHooks,
    Message,
    Part,
    Settings,
    StatusUpdate,
    Task,
    TaskState,
    Turn,
)
from dragoman.config import ServerSettings, StoreSettings, load_settings
from dragoman.engine.event_hooks import THREADS
from dragoman.errors import ConfigError

CANARY = "4111-1111-1111-1111"
replace = msgspec.structs.replace


def redacted(parts: list[Part]) -> list[Part]:
    return [
        replace(part, text=part.text.replace(CANARY, "***")) if isinstance(part.text, str) else part
        for part in parts
    ]


def redact(event: Any) -> Any:
    """What most transforms are for."""
    match event:
        case StatusUpdate() if event.status.message is not None:
            said = replace(event.status.message, parts=redacted(event.status.message.parts))
            return replace(event, status=replace(event.status, message=said))
        case ArtifactUpdate():
            return replace(
                event, artifact=replace(event.artifact, parts=redacted(event.artifact.parts))
            )
        case Message():
            return replace(event, parts=redacted(event.parts))
        case _:
            return event


async def redact_awaited(event: Any) -> Any:
    await asyncio.sleep(0)
    return redact(event)


def talker() -> Agent:
    """Return an agent that says a secret in every way there is."""
    agent = Agent("Talker", "Says what it should not.")

    @agent.skill(default=True)
    async def returns(text: str) -> str:
        return f"card {CANARY}"

    @agent.skill
    async def chunks(text: str) -> AsyncIterator[str]:
        for number in range(20):
            yield f"{number} {CANARY} "
            await asyncio.sleep(0)

    @agent.skill
    async def says(text: str, turn: Turn) -> None:
        await turn.say(f"said {CANARY}")
        turn.complete(f"last {CANARY}")

    @agent.skill
    async def asks(text: str, turn: Turn) -> str:
        return f"got {len((await turn.ask(f'asked {CANARY}')).text)}"

    @agent.skill
    async def rejects(text: str, turn: Turn) -> None:
        turn.reject(f"no {CANARY}")

    @agent.skill
    async def replies(text: str, turn: Turn) -> Message:
        return turn.reply(f"reply {CANARY}")

    @agent.skill
    async def waits(text: str) -> str:
        await asyncio.Event().wait()
        return text

    return agent


SKILLS = ["returns", "chunks", "says", "asks", "rejects", "replies"]


def skill(name: str) -> dict[str, Any]:
    return {"metadata": {"skillId": name}}


@asynccontextmanager
async def hosted(agent: Agent, *hooks: EventHooks, **settings: Any) -> AsyncIterator[Site]:
    app = App(agent, settings=load_settings({}, **{"store": "memory:"} | settings), hooks=hooks)
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


# Transforms


@pytest.mark.parametrize("function", [redact, redact_awaited])
@pytest.mark.parametrize("name", SKILLS)
async def test_nothing_else_than_what_a_transform_made_is_shown_or_kept(
    tmp_path: Path, name: str, function: Callable[..., Any]
) -> None:
    agent = talker()
    agent.transform(function)
    path = tmp_path / "tasks.db"
    async with serving(agent, store=str(path)) as site:
        events = await site.events("SendStreamingMessage", {"message": message("x", **skill(name))})
        streamed = [event.result for event in events]
        assert CANARY not in str(streamed) and "***" in str(streamed)
        task = next((one["task"] for one in streamed if "task" in one), None)
        if task is not None:
            shown = await site.task(task["id"])
            assert CANARY not in str(shown)
            assert ("***" in str(shown)) is (name != "says" or "***" in str(shown["status"]))
        answered = await site.send("x", **skill(name))
        assert CANARY not in str(answered)
    for kept in tmp_path.iterdir():
        assert CANARY.encode() not in kept.read_bytes(), kept


async def test_changing_what_an_event_holds_is_enough() -> None:
    agent = talker()

    @agent.transform
    def in_place(event: Any) -> Any:
        if isinstance(event, ArtifactUpdate):
            event.artifact.parts[:] = [Part(text="other")]
        return event

    async with serving(agent) as site:
        task = await site.send("x")
    assert [part["text"] for part in task["artifacts"][0]["parts"]] == ["other"]


@pytest.mark.parametrize("kind", ["transform", "on_event"])
async def test_what_a_hook_writes_into_one_chunk_is_in_no_other(kind: str) -> None:
    agent = talker()

    def write(event: Any) -> Any:
        if isinstance(event, ArtifactUpdate):
            event.metadata["own"] = event.artifact.metadata["own"] = event.extra["own"] = 1
            event.artifact.extra["own"] = 1
            event.artifact.extensions.append("urn:own")
        return event

    getattr(agent, kind)(write)
    plain = Agent("Plain", "Has no hooks.")

    @plain.skill
    async def chunks(text: str) -> AsyncIterator[str]:
        for _ in range(3):
            yield text

    async with serving(agent, plain) as site:
        await site.send("x", **skill("chunks"))
        said = {"message": message("chunk")}
        async with site.stream("SendStreamingMessage", said, path="/agents/plain") as frames:
            events = [str(frame) async for frame in frames]
    assert sum('"artifactUpdate"' in event or "'artifactUpdate'" in event for event in events) == 3
    assert "own" not in "".join(events)


async def test_transforms_are_called_in_their_order_those_of_the_agent_first() -> None:
    agent, server = talker(), EventHooks()

    def appending(text: str) -> Callable[..., Any]:
        def transform(event: Any) -> Any:
            if not isinstance(event, ArtifactUpdate):
                return event
            parts = [*event.artifact.parts, Part(text=text)]
            return replace(event, artifact=replace(event.artifact, parts=parts))

        return transform

    server.transform(appending("server"))
    agent.transform(appending("first"))
    agent.transform(appending("second"))
    async with hosted(agent, server) as site:
        task = await site.send("x")
    texts = [part["text"] for part in task["artifacts"][0]["parts"]]
    assert texts[1:] == ["first", "second", "server"]


async def test_a_transform_is_told_whose_event_it_is() -> None:
    agent = talker()
    seen: list[EventContext] = []

    @agent.transform
    async def note(event: Any, context: EventContext) -> Any:
        seen.append(context)
        return event

    async with serving(agent) as site:
        task = await site.send("x")
    assert {(one.agent, one.task_id, one.context_id) for one in seen} == {
        ("talker", task["id"], task["contextId"])
    }


async def test_what_is_dropped_is_nowhere_and_states_and_ends_stay() -> None:
    agent = talker()

    @agent.transform
    def nothing(event: Any) -> None:
        return None

    async with serving(agent) as site:
        for name in ("returns", "chunks", "says"):
            params = {"message": message("x", **skill(name))}
            events = [one.result for one in await site.events("SendStreamingMessage", params)]
            states = [one["statusUpdate"]["status"] for one in events[1:] if "statusUpdate" in one]
            assert [status["state"] for status in states] == [
                "TASK_STATE_WORKING",
                "TASK_STATE_COMPLETED",
            ]
            assert CANARY not in str(events) and not any("message" in one for one in states)
            assert len(events) == 3
            task = await site.task(events[0]["task"]["id"])
            assert "artifacts" not in task and task["status"]["state"] == "TASK_STATE_COMPLETED"
        # A reply that is dropped leaves nothing to answer with.
        task = await site.send("x", **skill("replies"))
        assert task["status"]["state"] == "TASK_STATE_FAILED" and CANARY not in str(task)


async def test_chunks_may_be_dropped_at_both_ends() -> None:
    agent = Agent("Counter", "Counts.")

    @agent.skill
    async def count(text: str) -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number}"

    @agent.transform
    def middle(event: Any) -> Any:
        if isinstance(event, ArtifactUpdate) and event.artifact.parts[0].text in ("0", "4"):
            return None
        return event

    async with serving(agent) as site:
        params = {"message": message("x")}
        events = [one.result for one in await site.events("SendStreamingMessage", params)]
        chunks = [one["artifactUpdate"] for one in events if "artifactUpdate" in one]
        shown = [
            (c["artifact"]["parts"][0]["text"], c.get("append", False), c.get("lastChunk", False))
            for c in chunks
        ]
        assert shown == [
            ("1", False, False),
            ("2", True, False),
            ("3", True, False),
            ("", True, True),
        ]
        task = await site.task(events[0]["task"]["id"])
    assert "".join(part["text"] for part in task["artifacts"][0]["parts"]) == "123"


def raises(event: Any) -> Any:
    raise ValueError(CANARY)


def ends_the_process(event: Any) -> Any:
    raise SystemExit(3)


async def raises_awaited(event: Any) -> Any:
    raise KeyboardInterrupt


def other_type(event: Any) -> Any:
    return {"text": "x"}


def other_id(event: Any) -> Any:
    return replace(event, task_id="other")


def other_state(event: Any) -> Any:
    if isinstance(event, StatusUpdate):
        return replace(event, status=replace(event.status, state=TaskState.COMPLETED))
    return event


def no_parts(event: Any) -> Any:
    if isinstance(event, ArtifactUpdate):
        return replace(event, artifact=replace(event.artifact, parts=[]))
    return event


def no_json(event: Any) -> Any:
    return replace(event, metadata={"x": object()})


def wrong_type(event: Any) -> Any:
    return replace(event, metadata=5)


BROKEN = [
    raises,
    ends_the_process,
    raises_awaited,
    other_type,
    other_id,
    other_state,
    no_parts,
    no_json,
    wrong_type,
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", ["returns", "chunks", "says", "asks", "rejects"])
async def test_a_task_whose_transform_fails_fails_and_shows_nothing(
    tmp_path: Path, broken: Callable[..., Any], name: str
) -> None:
    agent = talker()
    agent.transform(broken)
    agent.transform(redact)
    async with serving(agent, store=str(tmp_path / "tasks.db")) as site:
        params = {"message": message("x", **skill(name))}
        streamed = [one.result for one in await site.events("SendStreamingMessage", params)]
        task = await site.task(streamed[0]["task"]["id"])
        assert CANARY not in str(streamed) and CANARY not in str(task)
        if broken is no_parts and name in ("says", "asks", "rejects"):
            # It changes nothing here.
            return
        assert task["status"]["state"] in ("TASK_STATE_FAILED", "TASK_STATE_REJECTED")
        said = task["status"]["message"]["parts"][0]["text"]
        assert said.startswith("The agent failed. Incident ")
        assert streamed[-1]["statusUpdate"]["status"] == task["status"]
        # The server goes on.
        assert (await site.http.get("/healthz")).status_code == 200
    for kept in tmp_path.glob("tasks.db*"):
        assert CANARY.encode() not in kept.read_bytes(), kept


async def test_a_reply_whose_transform_fails_is_a_failed_task() -> None:
    agent = talker()
    agent.transform(raises)
    async with serving(agent) as site:
        task = await site.send("x", **skill("replies"))
    assert task["status"]["state"] == "TASK_STATE_FAILED" and CANARY not in str(task)


@pytest.mark.parametrize(("on_error", "expected"), [("keep", [f"card {CANARY}"]), ("drop", None)])
async def test_what_becomes_of_an_event_whose_transform_fails_can_be_chosen(
    on_error: Any, expected: Any
) -> None:
    agent = talker()
    agent.transform(on_error=on_error)(raises)
    async with serving(agent) as site:
        task = await site.send("x")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    if expected is None:
        assert "artifacts" not in task
    else:
        assert [part["text"] for part in task["artifacts"][0]["parts"]] == expected


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_transform_that_does_not_return_ends_its_task_and_nothing_else(
    is_async: bool,
) -> None:
    agent = talker()
    calls: list[str] = []
    let_go, is_over = threading.Event(), asyncio.Event()

    async def forever(event: Any) -> Any:
        calls.append("called")
        try:
            await is_over.wait()
        except asyncio.CancelledError:
            # Deaf to it.
            await is_over.wait()
        return event

    def blocked(event: Any) -> Any:
        calls.append("called")
        let_go.wait(60)
        return event

    agent.transform(timeout=0.2)(forever if is_async else blocked)
    try:
        async with serving(agent) as site:
            task = await site.send("x")
            assert (await site.http.get("/healthz")).status_code == 200
            is_over.set()
    finally:
        let_go.set()
    assert task["status"]["state"] == "TASK_STATE_FAILED" and calls == ["called"]


async def test_plain_functions_that_do_not_return_take_no_threads_from_others() -> None:
    """However many of them there are threads for, tasks with other texts are worked on."""
    agent = Agent("Echo", "Says it again.")
    let_go = threading.Event()

    @agent.skill
    async def echo(text: str) -> str:
        return text

    @agent.transform(timeout=1)
    def blocked(event: Any) -> Any:
        if isinstance(event, ArtifactUpdate) and event.artifact.parts[0].text == "stuck":
            let_go.wait(60)
        return event

    try:
        async with serving(agent) as site:
            stuck = await asyncio.gather(*(site.send("stuck") for _ in range(2 * THREADS)))
            fine = await site.send("fine")
    finally:
        let_go.set()
    assert {task["status"]["state"] for task in stuck} == {"TASK_STATE_FAILED"}
    assert fine["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_task_is_accepted_whatever_its_transforms_do() -> None:
    agent = talker()
    go_on = asyncio.Event()

    @agent.transform(timeout=30)
    async def slow(event: Any) -> Any:
        await go_on.wait()
        return event

    async with serving(agent) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
        assert (await site.task(task["id"]))["status"]["state"] == "TASK_STATE_SUBMITTED"
        params = {"id": task["id"]}
        async with site.stream("SubscribeToTask", params) as stream:
            go_on.set()
            states = [frame.result for frame in [f async for f in stream] if frame.data]
    assert "TASK_STATE_COMPLETED" in str(states[-1])


async def test_what_ends_a_task_from_outside_is_transformed_too() -> None:
    agent = talker()

    @agent.transform
    def translate(event: Any) -> Any:
        if isinstance(event, StatusUpdate) and event.status.message is not None:
            said = replace(event.status.message, parts=[Part(text="annulée")])
            return replace(event, status=replace(event.status, message=said))
        return event

    async with serving(agent) as site:
        configuration = {"returnImmediately": True}
        task = await site.send("x", configuration=configuration, **skill("waits"))
        ended = await site.call("CancelTask", {"id": task["id"]})
        assert ended["status"]["message"]["parts"] == [{"text": "annulée"}]
        # Also where no code works on it any more.
        task = await site.send("x", **skill("asks"))
        ended = await site.call("CancelTask", {"id": task["id"]})
        assert ended["status"]["message"]["parts"] == [{"text": "annulée"}]


async def test_a_task_that_goes_on_after_a_restart_is_transformed_too(tmp_path: Path) -> None:
    path = str(tmp_path / "tasks.db")

    def made() -> Agent:
        agent = talker()
        agent.transform(redact)
        return agent

    async with serving(made(), store=path) as site:
        task = await site.send("x", **skill("asks"))
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    async with serving(made(), store=path) as site:
        done = await site.send("four", taskId=task["id"])
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert "got 4" in str(done["artifacts"]) and CANARY not in str(done)


# Observers


async def test_observers_see_what_is_durable_in_its_order() -> None:
    agent, server = talker(), EventHooks()
    seen: list[Any] = []
    over = asyncio.Event()

    @agent.on_event
    async def first(event: Any) -> None:
        seen.append(event)

    @server.on_event
    def second(event: Any, context: EventContext) -> None:
        seen.append((type(event), context.task_id))
        if isinstance(event, StatusUpdate) and event.status.state.is_terminal:
            loop.call_soon_threadsafe(over.set)

    agent.transform(redact)
    loop = asyncio.get_running_loop()
    async with hosted(agent, server) as site:
        task = await site.send("x", **skill("chunks"))
        await within(over.wait())
    events = seen[::2]
    assert seen[1::2] == [(type(event), task["id"]) for event in events]
    assert isinstance(events[0], Task) and CANARY not in str(events)
    states = [event.status.state for event in events if isinstance(event, StatusUpdate)]
    assert states == [TaskState.WORKING, TaskState.COMPLETED]
    chunks = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [str(one.artifact.parts[0].text).split()[0] for one in chunks] == [
        str(number) for number in range(20)
    ]


async def test_an_observer_that_fails_or_hangs_changes_nothing() -> None:
    agent = talker()
    seen: list[str] = []
    calls: list[str] = []
    over = asyncio.Event()

    @agent.on_event
    def broken(event: Any) -> None:
        raise SystemExit(1)

    @agent.on_event(timeout=0.05)
    async def stuck(event: Any) -> None:
        calls.append("called")
        await asyncio.Event().wait()

    @agent.on_event
    async def fine(event: Any) -> None:
        seen.append(type(event).__name__)
        if isinstance(event, StatusUpdate) and event.status.state.is_terminal:
            over.set()

    async with serving(agent) as site:
        task = await site.send("x")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        await within(over.wait())
    assert seen == ["Task", "StatusUpdate", "ArtifactUpdate", "StatusUpdate"]
    # One that took too long is not waited for again.
    assert calls == ["called"]


async def test_a_slow_observer_misses_nothing_of_a_long_task() -> None:
    agent = Agent("Counter", "Counts.")
    seen: list[Any] = []
    go_on, over = asyncio.Event(), asyncio.Event()

    @agent.skill
    async def count(text: str) -> AsyncIterator[str]:
        for number in range(int(text)):
            yield f"{number}"

    @agent.on_event(timeout=30)
    async def slow(event: Any) -> None:
        await go_on.wait()
        seen.append(event)
        if isinstance(event, StatusUpdate) and event.status.state.is_terminal:
            over.set()

    async with serving(agent) as site:
        # More than a log has at hand: the rest is read where it is kept.
        task = await site.send("600")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED" and not seen
        go_on.set()
        await within(over.wait())
    texts = [one.artifact.parts[0].text for one in seen if isinstance(one, ArtifactUpdate)]
    assert texts == [str(number) for number in range(600)]


async def test_observers_see_replies_and_what_they_return_is_ignored() -> None:
    agent = talker()
    seen: list[Any] = []
    over = asyncio.Event()

    @agent.on_event
    async def look(event: Any) -> Any:
        seen.append(event)
        over.set()
        return "x"

    async with serving(agent) as site:
        await site.send("x", **skill("replies"))
        await within(over.wait())
    assert [type(event) for event in seen] == [Message]


# What can be registered


def test_a_hook_is_checked_when_it_is_registered() -> None:
    hooks = EventHooks()
    for wrong in (lambda: None, lambda a, b, c: None, 5):
        with pytest.raises(ConfigError):
            hooks.transform(wrong)  # type: ignore[type-var]
    for seconds in (0, -1, 61):
        with pytest.raises(ConfigError):
            hooks.on_event(timeout=seconds)(redact)
    with pytest.raises(ConfigError):
        hooks.transform(on_error="ignore")(redact)  # type: ignore[call-overload]
    assert not hooks.observers and not hooks.transforms


async def test_hooks_of_a_file_are_for_all_agents_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "hush_hooks.py").write_text(
        "import msgspec\n"
        "from dragoman import ArtifactUpdate, EventHooks, Part\n"
        "hooks = EventHooks()\n"
        "@hooks.transform\n"
        "def hush(event):\n"
        "    if not isinstance(event, ArtifactUpdate):\n"
        "        return event\n"
        "    quiet = msgspec.structs.replace(event.artifact, parts=[Part(text='hush')])\n"
        "    return msgspec.structs.replace(event, artifact=quiet)\n"
    )
    async with serving(talker(), hooks=str(tmp_path / "hush_hooks.py")) as site:
        task = await site.send("x")
    assert task["artifacts"][0]["parts"] == [{"text": "hush"}]


@pytest.mark.parametrize("target", ["missing.py", "no/such", "json", "json:dumps"])
def test_a_target_without_hooks_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        App(
            talker(),
            settings=Settings(
                stores=StoreSettings(location="memory:"), server=ServerSettings(hooks=[target])
            ),
        )
