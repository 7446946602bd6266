"""The client against our own server, over sockets and in process, in every version and binding."""

import asyncio
import contextlib
import gc
import inspect
import re
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import app_of, hosting, serving
from harness.waiting import within

from dragoman import Agent, Client, Message, Part, PushConfig, TaskState, Turn
from dragoman.client.sync import Sync
from dragoman.errors import (
    CardNotFound,
    ConfigError,
    ExtendedCardNotConfigured,
    InvalidParams,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    Unreachable,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentExtension
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.task import Task

WAYS = [
    {"version": "1.0"},
    {"version": "1.0", "bindings": ["rest"]},
    {"version": "0.3"},
    {"version": "0.3", "bindings": ["rest"]},
    {"version": "0.2"},
]


def worker() -> Agent:
    agent = Agent("Worker", "Does what it is told.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    @agent.skill
    async def count(to: str) -> AsyncGenerator[str]:
        for number in range(int(to)):
            yield f"{number} "

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        answer = await turn.ask("Which city?")
        return f"{text} in {answer.text}"

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        await turn.say("Working on it")
        await asyncio.Event().wait()
        return text

    @agent.skill
    async def fail(text: str) -> str:
        raise RuntimeError("no details")

    @agent.skill
    async def hello(text: str, turn: Turn) -> Message:
        return Message("m-1", "ROLE_AGENT", [Part(text="hi")])  # type: ignore[arg-type]

    @agent.skill
    async def files(message: Message) -> Artifact:
        return Artifact("out", [*message.parts, Part(data={"parts": len(message.parts)})])

    return agent


def to(skill: str) -> dict[str, Any]:
    return {"message_metadata": {"skillId": skill}}


@pytest.fixture(params=WAYS, ids=lambda way: "-".join([way["version"], *way.get("bindings", [])]))
async def agent(request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    async with serving(worker()) as site, Client(site.url, **request.param) as client:
        binding = "HTTP+JSON" if "bindings" in request.param else "JSONRPC"
        assert client.version == request.param["version"]
        assert client.interface.protocol_binding == binding
        yield client


async def test_a_send_waits_for_the_task_and_returns_its_text(agent: Client) -> None:
    answer = await within(agent.send("hello"))
    assert answer.text == "hello" and answer.state is TaskState.COMPLETED
    assert answer.task is not None and answer.task_id == answer.task.id and answer.context_id
    assert [artifact.parts[0].text for artifact in answer.artifacts] == ["hello"]


async def test_a_stream_shows_the_task_then_its_events_and_then_ends(agent: Client) -> None:
    stream = agent.stream("3", **to("count"))
    events = [event async for event in stream]
    assert isinstance(events[0], Task)
    assert isinstance(events[-1], StatusUpdate)
    assert events[-1].status.state is TaskState.COMPLETED
    chunks = [event for event in events if isinstance(event, ArtifactUpdate)]
    text = "".join(str(part.text) for chunk in chunks for part in chunk.artifact.parts)
    assert text == "0 1 2 "
    assert stream.answer.text == "0 1 2 " and stream.task_id == events[0].id
    assert stream.cursor is not None and stream.cursor > len(chunks)


async def test_streamed_text_comes_piece_by_piece(agent: Client) -> None:
    pieces = [piece async for piece in agent.stream_text("3", **to("count"))]
    assert "".join(pieces) == "0 1 2 " and len(pieces) == 3


async def test_a_question_is_answered_on_the_same_task(agent: Client) -> None:
    asked = await within(agent.send("Weather", **to("ask")))
    assert asked.state is TaskState.INPUT_REQUIRED and asked.text == "Which city?"
    answer = await within(agent.send("Oslo", task_id=asked.task_id))
    assert answer.text == "Weather in Oslo" and answer.task_id == asked.task_id


async def test_a_streamed_answer_to_a_question_goes_on_to_the_end(agent: Client) -> None:
    asked = agent.stream("Weather", **to("ask"))
    assert [event async for event in asked][-1].status.state is TaskState.INPUT_REQUIRED  # type: ignore[union-attr]
    answered = agent.stream("Oslo", task_id=asked.task_id)
    events = [event async for event in answered]
    assert events[-1].status.state is TaskState.COMPLETED  # type: ignore[union-attr]
    assert answered.answer.text == "Weather in Oslo"


async def test_an_agent_that_fails_is_an_answer_and_not_an_exception(agent: Client) -> None:
    answer = await within(agent.send("x", **to("fail")))
    assert answer.state is TaskState.FAILED and "no details" not in answer.text


async def test_a_task_can_be_left_waited_for_and_canceled(agent: Client) -> None:
    begun = await within(agent.send("x", wait=False, **to("wait")))
    assert begun.state in (TaskState.SUBMITTED, TaskState.WORKING)
    async with agent.subscribe(begun.task_id) as events:
        assert isinstance(await within(anext(events)), Task)
        canceled = await within(agent.cancel(begun.task_id))
        assert canceled.status.state is TaskState.CANCELED
        rest = [event async for event in events]
        assert isinstance(rest[-1], StatusUpdate)
        assert rest[-1].status.state is TaskState.CANCELED
    assert (await within(agent.wait(begun.task_id))).state is TaskState.CANCELED
    assert (await agent.get(begun.task_id)).status.state is TaskState.CANCELED
    with pytest.raises(TaskNotCancelable) as refused:
        await agent.cancel(begun.task_id)
    assert refused.value.code in (-32002, 400, 409)


async def test_files_and_data_go_out_and_come_back(agent: Client, tmp_path: Path) -> None:
    picture = tmp_path / "a picture.png"
    picture.write_bytes(b"\x89PNG\x00\xff")
    content = ["look", picture, {"size": [1, 2]}, Part(url="https://example.com/x.pdf")]
    answer = await within(agent.send(content, **to("files")))
    assert answer.text == "look" and answer.data == {"size": [1, 2]}
    (file, link) = answer.files
    assert file.raw == b"\x89PNG\x00\xff" and file.filename == "a picture.png"
    assert file.media_type == "image/png"
    assert link.url == "https://example.com/x.pdf"


async def test_an_unknown_task_is_told_as_that(agent: Client) -> None:
    for call in (agent.get("nope"), agent.cancel("nope"), agent.wait("nope")):
        with pytest.raises(TaskNotFound) as missing:
            await within(call)
        assert missing.value.code in (-32001, 404)
    with pytest.raises(TaskNotFound):
        await within(anext(agent.subscribe("nope")))


async def test_push_configurations_are_made_read_and_deleted(agent: Client) -> None:
    begun = await within(agent.send("x", wait=False, **to("wait")))
    made = await agent.create_push(
        begun.task_id, PushConfig("https://hooks.example.com/x", id="one", token="t")
    )
    assert made.id == "one" and made.url == "https://hooks.example.com/x"
    assert (await agent.get_push(begun.task_id, "one")).url == made.url
    assert [config.id for config in await agent.list_push(begun.task_id)] == ["one"]
    await agent.delete_push(begun.task_id, "one")
    assert await agent.list_push(begun.task_id) == []
    await agent.cancel(begun.task_id)


async def test_a_subscription_goes_on_from_a_cursor(agent: Client) -> None:
    stream = agent.stream("5", **to("count"))
    shown = [event async for event in stream]
    after = agent.subscribe(stream.task_id, after=2)
    again = [event async for event in after]
    # The Task as of the position, then what came after it.
    assert isinstance(again[0], Task)
    assert again[1:] == shown[len(shown) - len(again) + 1 :]
    assert after.answer.text == stream.answer.text


async def test_only_1_0_lists_tasks() -> None:
    async with serving(worker()) as site:
        async with Client(site.url) as agent:
            contexts = [(await agent.send(str(number))).context_id for number in range(7)]
            listed = [task async for task in agent.list(page_size=3)]
            assert [task.context_id for task in listed] == contexts[::-1]
            of_one = [task async for task in agent.list(context_id=contexts[2])]
            assert [task.context_id for task in of_one] == [contexts[2]]
            assert [task async for task in agent.list(state=TaskState.FAILED)] == []
            page = await agent.page(page_size=2, artifacts=True)
            assert page.total_size == 7 and page.tasks[0].reading.task.artifacts
        async with Client(site.url, version="0.3") as agent:
            with pytest.raises(UnsupportedOperation):
                await agent.page()


async def test_a_message_without_a_task_is_an_answer() -> None:
    agent = Agent("Greeter", "Greets.")

    @agent.skill
    async def greet(name: str) -> Message:
        return Message("m-1", "ROLE_AGENT", [Part(text=f"hi {name}")])  # type: ignore[arg-type]

    async with serving(agent) as site, Client(site.url) as client:
        answer = await within(client.send("Ada"))
        assert answer.text == "hi Ada" and answer.task is None and answer.state is None
        assert [event.text async for event in client.stream("Bob")] == ["hi Bob"]  # type: ignore[union-attr]
        assert [text async for text in client.stream_text("Eve")] == ["hi Eve"]


async def test_an_agent_that_does_not_stream_is_asked_again_until_it_is_done() -> None:
    agent = Agent("Plain", "Does not stream.", streaming=False)
    go_on = asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        await go_on.wait()
        return text

    async with serving(agent) as site, Client(site.url) as client:
        stream = client.stream("done", poll_interval=0.01)
        first = await within(anext(stream))
        assert isinstance(first, Task) and not first.status.state.is_resting
        go_on.set()
        rest = [event async for event in stream]
        assert rest[-1].status.state is TaskState.COMPLETED  # type: ignore[union-attr]
        assert stream.answer.text == "done"


async def test_what_the_card_does_not_offer_is_not_asked_for() -> None:
    async with serving(worker(), push=False) as site, Client(site.url) as agent:
        begun = await agent.send("x")
        with pytest.raises(PushNotSupported) as refused:
            await agent.create_push(begun.task_id, PushConfig("https://hooks.example.com"))
        # Our own word, and not the agent's.
        assert refused.value.code is None
        with pytest.raises(PushNotSupported):
            await agent.send("x", push=PushConfig("https://hooks.example.com"))
        with pytest.raises(UnsupportedOperation) as plain:
            await agent.extended_card()
        assert plain.value.code is None


async def test_the_extended_card_is_read_where_there_is_one() -> None:
    agent = worker()
    agent.extended_skills = []
    async with serving(agent, extended_card_public=True) as site:
        for way in WAYS:
            async with Client(site.url, **way) as client:
                try:
                    assert (await client.extended_card()).name == "Worker"
                except (UnsupportedOperation, ExtendedCardNotConfigured):
                    pytest.fail(f"{way} has no extended card")


async def test_a_version_the_card_does_not_offer_is_refused_before_anything_is_sent() -> None:
    async with serving(worker(), card_shape="0.3") as site:
        with pytest.raises(VersionNotSupported, match="speaks"):
            async with Client(site.url, oldest="1.0"):
                pass
        with pytest.raises(VersionNotSupported):
            async with Client(site.url, version="1.0"):
                pass
        async with Client(site.url) as agent:
            assert agent.version == "0.3"
        with pytest.raises(ConfigError, match="no version"):
            async with Client(site.url, version="new"):
                pass
        with pytest.raises(ConfigError, match="no binding"):
            async with Client(site.url, bindings=["carrier pigeon"]):
                pass


async def test_a_required_extension_is_sent_once_it_is_asked_for() -> None:
    uri = "https://example.com/ext/strict"
    agent = Agent("Strict", "Wants more.", extensions=[AgentExtension(uri, required=True)])

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async with serving(agent) as site:
        from dragoman.errors import ExtensionRequired

        with pytest.raises(ExtensionRequired, match="ext/strict"):
            async with Client(site.url):
                pass
        async with Client(site.url, extensions=[uri]) as client:
            assert (await client.send("x")).text == "x"


async def test_an_app_of_this_process_is_called_without_a_socket() -> None:
    app = app_of(worker())
    async with Client(app=app) as agent, Client(app=app, bindings=["rest"]) as other:
        answer = await within(agent.send("hello"))
        assert answer.text == "hello"
        # Both see one app, and it lives as long as one of them.
        assert (await other.get(answer.task_id)).id == answer.task_id
        await other.close()
        assert [piece async for piece in agent.stream_text("2", **to("count"))] == ["0 ", "1 "]
    assert not app.is_running


async def test_a_stream_of_an_app_that_is_left_early_leaves_nothing_behind() -> None:
    app = app_of(worker())
    async with Client(app=app) as agent:
        async with agent.stream("x", **to("wait")) as events:
            await within(anext(events))
        await within(agent.cancel(events.task_id))
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [task for task in left if "InProcess" in repr(task) or "_Exchange" in repr(task)]


async def test_an_app_that_breaks_is_an_error_of_ours() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("inside")

    with pytest.raises(Unreachable):
        await within(Client(app=broken).connect())


async def test_a_reference_or_an_app_but_not_both() -> None:
    with pytest.raises(ConfigError):
        Client()
    with pytest.raises(ConfigError):
        Client(
            "localhost",
            app=app_of(worker()),
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"x": 5}},
        {"headers": {5: "x"}},
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "\ud800"}},
        {"headers": {"Host": "elsewhere"}},
        {"headers": {"a b": "x"}},
        {"extensions": "urn:x"},
        {"extensions": ["urn:x\ny"]},
        {"extensions": ["urn:x,urn:y"]},
        {"extensions": [""]},
        {"extensions": [5]},
        {"bindings": "rest"},
        {"origins": "https://a.example"},
        {"oldest": "zzz"},
        {"oldest": ""},
        {"oldest": "2.0"},
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"timeout": "30"},
        {"connect_timeout": 0.0},
    ],
    ids=str,
)
def test_a_mistake_of_the_caller_is_told_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Client("http://127.0.0.1:1", **wrong)


def test_what_is_no_mistake_is_taken() -> None:
    for right in (
        {"oldest": "0.3"},
        {"oldest": "1.0.0"},
        {"timeout": None},
        {"timeout": 5},
        {"headers": {"X-Name": "Zoë"}},
        {"extensions": ["https://example.com/ext/v1?a=b"]},
    ):
        Client("http://127.0.0.1:1", **right)  # type: ignore[arg-type]


def test_something_else_is_no_reference() -> None:
    for ref in (5, b"http://127.0.0.1:1", ["a"]):
        with pytest.raises(ConfigError, match="reference"):
            Client(ref)  # type: ignore[arg-type]


def test_what_the_card_says_is_not_known_before_it_is_read() -> None:
    client = Client("http://127.0.0.1:1")
    for name in ("card", "raw_card", "interface", "version", "signature"):
        with pytest.raises(ConfigError, match="connect"):
            getattr(client, name)


# A loop that ends before its connections are closed leaves them to the collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", ["socket", "process"])
def test_a_client_works_on_one_loop_after_another(place: str) -> None:
    app = app_of(worker())
    made: list[Client] = []
    is_up, stop = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with hosting(app_of(worker())) as url:
            urls.append(url)
            is_up.set()
            await asyncio.to_thread(stop.wait, 60)

    async def use(text: str, *, is_last: bool = False) -> str:
        if not made:
            made.append(Client(app=app) if place == "process" else Client(urls[0]))
        # Both kinds of connections: the card's, and that of a message.
        await made[0].look(fresh=True)
        answer = await within(made[0].send(text))
        if is_last:
            await made[0].close()
        return answer.text

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        assert asyncio.run(use("one")) == "one"
        assert asyncio.run(use("two")) == "two"
        assert asyncio.run(use("three", is_last=True)) == "three"
    finally:
        stop.set()
        thread.join(60)
    gc.collect()


async def test_a_message_never_goes_out_on_a_connection_that_its_peer_gave_up() -> None:
    """A peer that hangs up what is idle, while the caller's loop was busy and saw nothing of it."""
    card = b""
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(size[1]) if size else 0)
            said = card
            if body:
                call = msgspec.json.decode(body)
                asked.append(call["method"].encode())
                parts = [{"text": "hi"}]
                result = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}}
                reply = {"jsonrpc": "2.0", "id": call["id"], "result": result}
                said = msgspec.json.encode(reply)
            kind = b"content-type: application/json\r\n"
            size_line = b"content-length: %d\r\n\r\n" % len(said)
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + size_line + said)
            await writer.drain()
        # Without a word that it would: the answer was one of HTTP/1.1, which keeps connections.
        writer.close()

    is_up, stop = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        is_up.set()
        await asyncio.to_thread(stop.wait, 60)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        url = f"http://127.0.0.1:{ports[0]}"
        card = msgspec.json.encode(
            {
                "name": "Brief",
                "description": "",
                "version": "1",
                "supportedInterfaces": [
                    {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                ],
                "capabilities": {},
                "defaultInputModes": [],
                "defaultOutputModes": [],
                "skills": [],
            }
        )
        async with Client(url) as agent:
            for count in range(3):
                # The loop sees nothing of the good-bye, which has come by then.
                time.sleep(0.1)  # noqa: ASYNC251 - a busy loop is the point
                await within(agent.send("x"))
                assert asked == [b"SendMessage"] * (count + 1)
    finally:
        stop.set()
        thread.join(60)


def test_the_package_says_that_it_is_typed() -> None:
    import dragoman

    assert (Path(dragoman.__file__).parent / "py.typed").is_file()


def test_streamed_text_takes_what_a_stream_takes() -> None:
    stream, text = (inspect.signature(f) for f in (Client.stream, Client.stream_text))
    assert stream.parameters == text.parameters


async def test_nobody_there_is_told_as_that() -> None:
    for reference, error in [
        ("http://127.0.0.1:9", Unreachable),
        ("./no-such-card.json", CardNotFound),
    ]:
        with pytest.raises(error):
            async with Client(reference):
                pass


async def test_an_interface_that_is_not_served_gives_way_to_the_next() -> None:
    seen: list[str] = []

    async with serving(worker()) as site:
        async with Client(site.url) as agent:
            card = agent.card
        elsewhere, here = card.supported_interfaces[0], card.supported_interfaces[1]
        wrong = type(elsewhere)(f"{site.url}/nothing/here", "JSONRPC", "1.0")
        dead = type(elsewhere)("http://127.0.0.1:9/a2a", "JSONRPC", "1.0")
        import msgspec

        both = msgspec.structs.replace(card, supported_interfaces=[dead, wrong, here])
        async with Client(both, observer=lambda it: seen.append(it.url)) as agent:
            assert (await within(agent.send("x"))).text == "x"
            assert agent.interface is here
            assert (await agent.send("y")).text == "y"
        async with Client(both) as agent:
            assert [event async for event in agent.stream("z")]
    assert [url for url in seen if "nothing" in url], "the second was tried"


async def test_a_bad_request_is_told_with_its_field() -> None:
    async with serving(worker()) as site, Client(site.url) as agent:
        with pytest.raises(InvalidParams) as wrong:
            await agent.send("x", message_id="two words")
        assert wrong.value.field == "message.messageId" and wrong.value.code == -32602


async def test_requests_carry_a_trace() -> None:
    heads: list[dict[str, str]] = []

    def look(seen: Any) -> None:
        if seen.kind == "request":
            heads.append(dict(seen.headers))

    async with serving(worker()) as site, Client(site.url, observer=look) as agent:
        await agent.send("x")
        await agent.send("y")
    assert all(len(head["traceparent"].split("-")) == 4 for head in heads)
    assert len({head["traceparent"] for head in heads}) == 2


class TestSync:
    def test_every_public_method_is_there_and_has_its_words(self) -> None:
        names = {
            name
            for name, value in inspect.getmembers(Client)
            if not name.startswith("_") and inspect.isfunction(value)
        }
        for name in names - {"copy", "close"}:
            assert getattr(Sync, name).__doc__ == getattr(Client, name).__doc__, name

    def test_plain_code_sends_streams_and_lists(self) -> None:
        app = app_of(worker())
        with Client(app=app).sync as agent:
            assert agent.send("hello").text == "hello"
            with agent.stream("3", **to("count")) as events:
                kinds = [type(event).__name__ for event in events]
                assert kinds[0] == "Task" and events.answer.text == "0 1 2 "
            assert list(agent.stream_text("2", **to("count"))) == ["0 ", "1 "]
            assert len(list(agent.list())) == 3
            with pytest.raises(TaskNotFound):
                agent.get("nope")
            assert agent.card.name == "Worker" and agent.version == "1.0"

    async def test_it_works_inside_a_running_loop(self) -> None:
        # Its server must not run on the loop that it blocks.
        ready: Any = threading.Event()
        urls: list[str] = []
        stop = threading.Event()

        def serve() -> None:
            async def main() -> None:
                async with hosting(app_of(worker())) as url:
                    urls.append(url)
                    ready.set()
                    await asyncio.to_thread(stop.wait)

            asyncio.run(main())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert ready.wait(60)
            async with Client(urls[0]) as agent:
                assert agent.sync.send("inside").text == "inside"
                assert (await agent.send("outside")).text == "outside"
        finally:
            stop.set()
            thread.join(60)

    async def test_an_app_belongs_to_one_loop(self) -> None:
        app = app_of(worker())
        async with Client(app=app) as agent:
            with pytest.raises(ConfigError, match="another loop"):
                await asyncio.to_thread(lambda: agent.sync.send("x"))
