"""Streams over a socket: framing, who sees which events, and what the end of a reader means."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from harness.serving import V1, Frame, Site, frames, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, App, Message, Settings, Turn
from dragoman.config import HttpSettings, StoreSettings
from dragoman.errors import TaskNotFound
from dragoman.service import Batch, Call, Service

UNKNOWN = "00000000-0000-7000-8000-000000000000"


class Gates:
    """Lets a test decide when a skill goes on."""

    def __init__(self) -> None:
        self.opened = asyncio.Semaphore(0)
        self.ended = asyncio.Event()


def make(gates: Gates) -> Agent:
    agent = Agent("Streams", "Streams.")

    @agent.skill(default=True)
    async def three(text: str) -> AsyncIterator[str]:
        for number in range(3):
            yield f"{text} {number}\nnext line\r\u2028 "

    @agent.skill
    async def gated(text: str) -> AsyncIterator[str]:
        try:
            for number in range(int(text)):
                await gates.opened.acquire()
                yield str(number)
        finally:
            gates.ended.set()

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask("Where?")).text

    @agent.skill
    async def authorize(text: str, turn: Turn) -> str:
        return (await turn.authorize("Who are you?")).text

    @agent.skill
    async def reply(text: str, turn: Turn) -> Message:
        return turn.reply(text)

    return agent


@pytest.fixture
async def gates() -> Gates:
    return Gates()


@pytest.fixture
async def site(gates: Gates) -> AsyncIterator[Site]:
    async with serving(make(gates)) as site:
        yield site


def with_skill(skill: str, text: str = "x", **more: Any) -> dict[str, Any]:
    return {"message": message(text, metadata={"skillId": skill}, **more)}


def kind(frame: Frame) -> str:
    return next(iter(frame.result))


def state(frame: Frame) -> str:
    value = frame.result
    inner = value.get("task") or value["statusUpdate"]
    return inner["status"]["state"].removeprefix("TASK_STATE_")


async def open_task(site: Site, skill: str, text: str = "x") -> str:
    params = with_skill(skill, text) | {"configuration": {"returnImmediately": True}}
    return (await site.call("SendMessage", params))["task"]["id"]


async def until(stream: AsyncIterator[Frame], wanted: str) -> Frame:
    async with asyncio.timeout(60):
        async for frame in stream:
            if frame.comment is None and kind(frame) == wanted:
                return frame
    raise AssertionError(f"the stream ended without {wanted}")


# Framing


@pytest.mark.requirement("T-8", "T-10", "T-15", "T-17", "T-18")
async def test_a_stream_is_a_task_and_then_its_events_numbered_one_line_each(site: Site) -> None:
    events = await site.events("SendStreamingMessage", {"message": message("a")})
    kinds = [kind(event) for event in events]
    assert kinds[0] == "task" and set(kinds[1:]) == {"statusUpdate", "artifactUpdate"}
    positions = [int(event.id or 0) for event in events]
    assert positions == sorted(set(positions)) and positions[0] >= 1
    chunks = [e.result["artifactUpdate"] for e in events if kind(e) == "artifactUpdate"]
    texts = [part["text"] for chunk in chunks for part in chunk["artifact"]["parts"]]
    assert "".join(texts) == "".join(f"a {n}\nnext line\r\u2028 " for n in range(3))
    assert [chunk.get("append", False) for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [chunk.get("lastChunk", False) for chunk in chunks][-1] is True
    assert len({chunk["artifact"]["artifactId"] for chunk in chunks}) == 1
    assert state(events[-1]) == "COMPLETED"
    assert all(event.data["id"] == 1 and event.event is None for event in events)


async def test_the_head_of_a_stream_keeps_proxies_from_holding_it_back(site: Site) -> None:
    body = {"message": message("a")}
    async with site.http.stream("POST", "/message:stream", json=body) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["a2a-version"] == "1.0"
        assert "content-length" not in response.headers
        await within(response.aread())


@pytest.mark.requirement("T-8", "T-24")
async def test_a_direct_reply_is_one_message_and_has_no_position(site: Site) -> None:
    (event,) = await site.events("SendStreamingMessage", with_skill("reply", "hi"))
    assert event.result["message"]["parts"] == [{"text": "hi"}]
    assert event.id is None


async def test_a_quiet_stream_gets_a_comment(gates: Gates) -> None:
    async with (
        serving(make(gates), keepalive=0.05) as site,
        site.stream("SendStreamingMessage", with_skill("gated", "1")) as stream,
    ):
        comments = 0
        async with asyncio.timeout(60):
            async for frame in stream:
                comments += frame.comment == "keep-alive"
                if comments == 2:
                    gates.opened.release()
        # Comments go on while it is quiet and do not disturb what follows.
        assert comments >= 2 and gates.ended.is_set()


async def test_a_reader_that_stalls_does_not_keep_back_the_comments_of_others(
    gates: Gates,
) -> None:
    app = App(
        make(gates),
        settings=Settings(
            stores=StoreSettings(location="memory:"), http=HttpSettings(keepalive=0.05)
        ),
    )
    stalled = asyncio.Event()

    async def ask_to_stream(take: int) -> list[bytes]:
        """Read some messages of a response, then nothing more until the app lets go."""
        body = b'{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":' + (
            httpx.Request("POST", "/", json=with_skill("gated", "1")).content + b"}"
        )
        bodies: list[bytes] = []
        requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        requests.put_nowait({"type": "http.request", "body": body})

        async def send(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.body":
                if len(bodies) == take:
                    stalled.set()
                    await asyncio.Event().wait()
                bodies.append(event["body"])
                if bodies.count(b": keep-alive\n\n") == 3:
                    requests.put_nowait({"type": "http.disconnect"})

        await app(http_scope(), requests.get, send)
        return bodies

    async with app.running():
        stuck = asyncio.create_task(ask_to_stream(take=2))
        await within(stalled.wait())
        assert (await within(ask_to_stream(take=100))).count(b": keep-alive\n\n") >= 3
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)


def http_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }


# Refusals and failures


@pytest.mark.requirement("X-10", "T-13")
async def test_an_error_before_the_first_event_is_a_plain_answer(site: Site) -> None:
    refused = await site.refusal("SubscribeToTask", {"id": UNKNOWN})
    assert refused["code"] == -32001
    ended = await site.send("a")
    assert (await site.refusal("SubscribeToTask", {"id": ended["id"]}))["code"] == -32004
    assert (await site.refusal("tasks/resubscribe", {"id": ended["id"]}))["code"] == -32004
    over_rest = await site.http.post(f"/tasks/{ended['id']}:subscribe")
    assert over_rest.status_code == 400
    assert over_rest.json()["error"]["status"] == "FAILED_PRECONDITION"
    assert (await site.http.get(f"/tasks/{UNKNOWN}:subscribe")).status_code == 404


@pytest.mark.requirement("X-10")
@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/event-stream", "text/event-stream"),
        ("text/event-stream, application/json", "application/json"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("text/event-stream, */*", "application/json"),
    ],
)
async def test_who_reads_only_events_gets_the_error_as_one(
    site: Site, accept: str, expected: str
) -> None:
    body = {"jsonrpc": "2.0", "id": 3, "method": "tasks/resubscribe", "params": {"id": UNKNOWN}}
    response = await site.post(body, headers={"accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"] == expected
    text = response.text
    if expected == "text/event-stream":
        assert text.startswith("data: ") and text.endswith("\n\n")
        text = text.removeprefix("data: ")
    assert httpx.Response(200, text=text).json()["error"]["code"] == -32001


@pytest.mark.requirement("X-10")
@pytest.mark.parametrize("accept", ["text/event-stream", "text/event-stream, application/json"])
@pytest.mark.parametrize(
    ("method", "version"),
    [
        ("SubscribeToTask", "1.0"),
        ("SubscribeToTask", ""),
        ("SendStreamingMessage", "1.0"),
        ("Nope", "1.0"),
        # What names its version is of the generation that reads JSON.
        ("tasks/resubscribe", "0.3"),
        ("message/stream", "0.3"),
    ],
)
async def test_an_error_before_a_stream_is_json_whatever_the_caller_accepts(
    site: Site, method: str, version: str, accept: str
) -> None:
    said = (old_message if "/" in method else message)("hi", taskId=UNKNOWN)
    params = {"id": UNKNOWN, "message": said}
    body = {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}
    headers = {"accept": accept} | ({"A2A-Version": version} if version else {})
    response = await site.post(body, headers=headers)
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert (answer["id"], answer["error"]["code"]) == (3, -32601 if method == "Nope" else -32001)


class Breaking:
    """A service whose streams break after their opening."""

    def __init__(self, service: Service, error: Exception) -> None:
        self.answer = service.answer
        self._service = service
        self._error = error

    async def follow(self, call: Call) -> AsyncIterator[Batch]:
        async for batch in self._service.follow(call):
            yield batch
            raise self._error


@pytest.mark.requirement("X-11", "X-12")
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(TaskNotFound("gone"), -32001, 404), (RuntimeError("secret"), -32603, 500)],
)
async def test_an_error_after_the_first_event_ends_the_stream_as_an_event(
    site: Site, error: Exception, code: int, status: int
) -> None:
    (mount,) = site.app.site.mounts.values()
    mount.service = Breaking(mount.service, error)
    opening, last = await site.events("SendStreamingMessage", {"message": message("a")})
    assert kind(opening) == "task"
    assert last.event == "error" and last.id is None
    assert last.data["error"]["code"] == code and last.data["id"] == 1
    assert "secret" not in str(last.data)
    body = {"message": message("a")}
    async with site.http.stream("POST", "/message:stream", json=body) as response:
        assert response.status_code == 200
        *_, last = [frame async for frame in frames(response)]
    assert last.event == "error" and last.data["error"]["code"] == status


async def test_too_many_streams_are_refused_until_one_ends(gates: Gates) -> None:
    async with serving(make(gates), max_streams=1) as site:
        async with site.stream("SendStreamingMessage", with_skill("gated", "1")) as stream:
            await anext(stream)
            refused = await site.http.post("/message:stream", json={"message": message("a")})
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            gates.opened.release()
            assert state([frame async for frame in stream][-1]) == "COMPLETED"
        assert await site.events("SendStreamingMessage", {"message": message("a")})


# Readers


@pytest.mark.requirement("T-16")
async def test_a_reader_that_leaves_does_not_end_the_task(site: Site, gates: Gates) -> None:
    async with site.stream("SendStreamingMessage", with_skill("gated", "2")) as stream:
        task = (await anext(stream)).result["task"]["id"]
    async with site.stream("SubscribeToTask", {"id": task}) as stream:
        assert state(await anext(stream)) in ("SUBMITTED", "WORKING")
        gates.opened.release()
        gates.opened.release()
        rest = [frame async for frame in stream]
    assert state(rest[-1]) == "COMPLETED"
    assert not site.app.site.streams


@pytest.mark.requirement("T-22")
async def test_a_caller_that_leaves_while_it_waits_does_not_end_the_task(
    site: Site, gates: Gates
) -> None:
    params = with_skill("gated", "1", contextId="left")
    waiting = asyncio.create_task(site.call("SendMessage", params))
    async with asyncio.timeout(60):
        while not (page := await site.call("ListTasks", {"contextId": "left"}))["tasks"]:
            pass
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    (task,) = page["tasks"]
    async with site.stream("SubscribeToTask", {"id": task["id"]}) as stream:
        await anext(stream)
        gates.opened.release()
        assert state([frame async for frame in stream][-1]) == "COMPLETED"


@pytest.mark.requirement("T-11", "T-12")
async def test_two_readers_see_the_same_and_one_may_leave(site: Site, gates: Gates) -> None:
    task = await open_task(site, "gated", "4")
    params = {"id": task}
    async with site.stream("SubscribeToTask", params) as one:
        assert kind(await anext(one)) == "task"
        gates.opened.release()
        first = await until(one, "artifactUpdate")
        async with site.stream("SubscribeToTask", params) as two:
            opening = await anext(two)
            # The snapshot holds what happened before; what follows begins right after it.
            parts = opening.result["task"]["artifacts"][0]["parts"]
            assert "".join(part["text"] for part in parts) == "0"
            assert int(opening.id or 0) >= int(first.id or 0)
            gates.opened.release()
            seen = [await until(one, "artifactUpdate"), await until(two, "artifactUpdate")]
            assert seen[0] == seen[1]
            async with site.stream("SubscribeToTask", params) as three:
                await anext(three)
            gates.opened.release()
            gates.opened.release()
            left_one = [frame async for frame in one]
            left_two = [frame async for frame in two]
    assert left_one == left_two
    assert state(left_one[-1]) == "COMPLETED"


@pytest.mark.requirement("T-18")
async def test_a_reader_comes_back_with_its_position_and_misses_nothing(
    site: Site, gates: Gates
) -> None:
    for _ in range(3):
        gates.opened.release()
    everything = await site.events("SendStreamingMessage", with_skill("gated", "3"))
    task = everything[0].result["task"]["id"]
    for place in range(len(everything) - 1):
        seen = everything[place].id or ""
        again = await site.events("SubscribeToTask", {"id": task}, headers={"last-event-id": seen})
        assert kind(again[0]) == "task" and again[0].id == seen
        assert [frame.id for frame in again[1:]] == [f.id for f in everything[place + 1 :]]
        assert [frame.result for frame in again[1:]] == [
            frame.result for frame in everything[place + 1 :]
        ]


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "99999", "9" * 40, "", "٣"])
async def test_a_position_the_log_never_had_is_none(site: Site, position: str) -> None:
    ended = await site.send("a")
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": ended["id"]}}
    headers = [(b"last-event-id", position.encode()), (b"content-type", b"application/json")]
    response = await site.http.post("/", json=body, headers=headers)
    assert response.json()["error"]["code"] == -32004


# Where streams end


@pytest.mark.requirement("T-9", "T-14")
async def test_a_send_ends_where_the_agent_asks_and_the_answer_opens_with_the_task(
    site: Site,
) -> None:
    asked = await site.events("SendStreamingMessage", with_skill("ask"))
    assert state(asked[-1]) == "INPUT_REQUIRED"
    task = asked[0].result["task"]
    answer = message("Oslo", taskId=task["id"])
    events = await site.events("SendStreamingMessage", {"message": answer})
    assert events[0].result["task"]["history"][-1]["messageId"] == answer["messageId"]
    assert events[0].result["task"]["contextId"] == task["contextId"]
    assert state(events[-1]) == "COMPLETED"


@pytest.mark.requirement("T-14", "T-13")
async def test_a_subscription_of_1_0_stays_open_where_the_agent_asks(site: Site) -> None:
    task = await open_task(site, "ask")
    async with site.stream("SubscribeToTask", {"id": task}) as stream:
        await anext(stream)
        await site.send("Oslo", taskId=task)
        assert state([frame async for frame in stream][-1]) == "COMPLETED"


@pytest.mark.requirement("T-14", "E-3")
async def test_0_3_streams_say_which_event_is_the_final_one(site: Site) -> None:
    params = {"message": old_message("x", metadata={"skillId": "ask"})}
    asked = [frame.result for frame in await site.events("message/stream", params)]
    assert asked[0]["kind"] == "task"
    assert asked[-1]["status"]["state"] == "input-required" and asked[-1]["final"] is True
    assert all(not event["final"] for event in asked[1:-1] if event["kind"] == "status-update")
    # A resubscription ends there too.
    task = asked[0]["id"]
    async with site.stream("tasks/resubscribe", {"id": task}) as stream:
        assert (await anext(stream)).result["kind"] == "task"
        answered = old_message("Oslo", taskId=task)
        await site.call("message/send", {"message": answered})
        last = [frame.result async for frame in stream][-1]
    assert last["status"]["state"] == "completed" and last["final"] is True


@pytest.mark.requirement("T-14")
@pytest.mark.parametrize("headers", [V1, {"A2A-Version": "0.3"}])
async def test_a_stream_stays_open_while_credentials_are_awaited(
    site: Site, headers: dict[str, str]
) -> None:
    old = headers["A2A-Version"] == "0.3"
    method = "message/stream" if old else "SendStreamingMessage"
    make_message = old_message if old else message
    params = {"message": make_message("x", metadata={"skillId": "authorize"})}
    async with site.stream(method, params, headers=headers) as stream:
        first = (await anext(stream)).result
        task = first["id"] if old else first["task"]["id"]
        async with asyncio.timeout(60):
            async for frame in stream:
                value = frame.result if old else frame.result["statusUpdate"]
                if "auth" in value["status"]["state"].lower():
                    assert value.get("final", False) is False
                    break
        await site.send("it is me", taskId=task)
        last = [frame.result async for frame in stream][-1]
    status = last if old else last["statusUpdate"]
    assert status["status"]["state"].lower().endswith("completed")


async def test_a_server_that_stops_ends_its_streams_cleanly(site: Site) -> None:
    task = await open_task(site, "gated", "1")
    async with site.stream("SubscribeToTask", {"id": task}) as stream:
        await anext(stream)
        site.app.end_streams()
        async with asyncio.timeout(60):
            left = [frame async for frame in stream]
    assert all(kind(frame) == "statusUpdate" and state(frame) == "WORKING" for frame in left)


async def test_characters_that_some_readers_take_for_line_ends_arrive_escaped() -> None:
    agent = Agent("Echo", "Echoes.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    text = "a\u2028b\u2029c\u0085d"
    async with serving(agent) as site:
        body = {"message": message(text)}
        raw = await site.http.post("/message:stream", json=body, headers=V1)
        assert not any(character in raw.text for character in "\u2028\u2029\u0085")
        events = await site.events("SendStreamingMessage", {"message": message(text)})
        parts = [f.result["artifactUpdate"]["artifact"]["parts"] for f in events[2:3]]
        assert parts == [[{"text": text}]]
