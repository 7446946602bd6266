"""The scripted agent: what a script says comes out, in each version and on each binding."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, Frame, client, frames, message
from harness.waiting import within

from dragoman.errors import (
    A2AError,
    ConfigError,
    DeliveryUnknown,
    ExtensionRequired,
    InvalidParams,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.task import TaskState
from dragoman.testing.agents import fake_peer, in_process, scripted
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.connection import ConnectionCut
from dragoman.testing.scripted.script import build, read, seconds
from dragoman.testing.scripted.serve import ListenOptions, serving

PEERS = [
    ("1.0", "jsonrpc"),
    ("1.0", "rest"),
    ("0.3", "jsonrpc"),
    ("0.3", "rest"),
    ("0.2", "jsonrpc"),
]


def rule(text: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"equals": text}, "steps": list(steps)}


async def post(http: httpx.AsyncClient, method: str, text: str, **more: Any) -> httpx.Response:
    params = {"message": message(text, **more)}
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return await http.post("/a2a", json=body, headers=V1)


async def streamed(http: httpx.AsyncClient, text: str) -> list[Frame]:
    """Return the events that arrive, however the stream ends."""
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "SendStreamingMessage",
        "params": {"message": message(text)},
    }
    found: list[Frame] = []
    async with http.stream("POST", "/a2a", json=body, headers=V1) as response:
        try:
            async for frame in frames(response):
                found.append(frame)
        except httpx.RemoteProtocolError:
            found.append(Frame(comment="broken"))
        except AssertionError:
            found.append(Frame(comment="torn"))
    return found


def states(found: list[Frame]) -> list[str]:
    named: list[str] = []
    for frame in found:
        if frame.comment:
            named.append(frame.comment)
            continue
        ((kind, event),) = frame.result.items()
        named.append(event["status"]["state"] if "status" in event else kind)
    return [name.removeprefix("TASK_STATE_") for name in named]


@pytest.mark.parametrize(("version", "binding"), PEERS)
async def test_a_peer_of_each_version_answers_our_client(version: Any, binding: Any) -> None:
    peer = fake_peer(version, binding)
    async with scripted(peer) as played:
        answer = await within(played.client.send("hello"))
        assert (answer.text, answer.state) == ("hello", TaskState.COMPLETED)
        assert played.client.version == version
        got = await within(played.client.get(answer.task_id))
        assert got.artifacts == answer.artifacts
        (seen,) = peer.calls("GetTask")
        assert seen.version == version
        assert [e async for e in played.client.stream("again")][-1].status.state.is_terminal


@pytest.mark.parametrize(("version", "binding"), PEERS)
async def test_a_state_that_says_nothing_is_written_as_its_version_has_it(
    version: Any, binding: Any
) -> None:
    peer = fake_peer(version, binding, [rule("x", {"state": "UNSPECIFIED"}, {"hang": True})])
    async with serving(peer) as url, client(url) as http:
        if binding == "rest":
            path = "/message:stream" if version == "1.0" else "/v1/message:stream"
            said: Any = {"message": message("x")}
            if version != "1.0":
                said["message"] = {
                    "messageId": "m",
                    "role": "ROLE_USER",
                    "content": [{"text": "x"}],
                }
        else:
            path = "/a2a"
            method = "SendStreamingMessage" if version == "1.0" else "message/stream"
            said = {"jsonrpc": "2.0", "id": 1, "method": method}
            said["params"] = {"message": message("x")}
            if version != "1.0":
                parts = [{"kind": "text", "text": "x"}]
                said["params"]["message"] |= {"role": "user", "parts": parts, "kind": "message"}
        headers = {"A2A-Version": version}
        wanted = "unknown" if version != "1.0" and binding != "rest" else "TASK_STATE_UNSPECIFIED"
        async with http.stream("POST", path, json=said, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async with asyncio.timeout(60):
                async for line in response.aiter_lines():
                    if f'"{wanted}"' in line:
                        return
        pytest.fail("the state did not come")


async def test_a_question_waits_for_its_answer_and_picks_the_rule_for_it() -> None:
    ask = {
        "ask": "Which?",
        "answers": [
            {"when": {"equals": "no"}, "steps": [{"state": "rejected", "text": "Then not."}]},
            {"steps": [{"artifact": "a", "text": "{first} {text}"}]},
        ],
    }
    async with in_process({"rules": [rule("go", ask)]}) as played:
        for reply, wanted in (("no", TaskState.REJECTED), ("yes", TaskState.COMPLETED)):
            asked = await within(played.client.send("go"))
            assert asked.state is TaskState.INPUT_REQUIRED
            answer = await within(played.client.send(reply, task_id=asked.task_id))
            assert answer.state is wanted
            assert answer.text in ("Then not.", "go yes")


async def test_authorization_is_settled_by_a_reply_or_elsewhere_after_a_while() -> None:
    rules = [rule("reply", {"auth": "Please"}), rule("wait", {"auth": "Please", "after": "10ms"})]
    async with in_process({"rules": rules}) as played:
        first = await within(played.client.send("reply"))
        assert first.state is TaskState.AUTH_REQUIRED
        done = await within(played.client.send("done", task_id=first.task_id))
        assert done.state is TaskState.COMPLETED
        second = await within(played.client.send("wait", wait=False))
        over = await within(played.client.wait(second.task_id, until="terminal", poll_interval=0.1))
        assert over.state is TaskState.COMPLETED


async def test_the_nth_call_can_be_another_and_groups_fill_texts() -> None:
    rules = [
        {"when": {"regex": r"n (\d+)", "nth": [1, 3]}, "steps": [{"message": "odd {1}"}]},
        {"when": {"regex": r"n (?P<number>\d+)"}, "steps": [{"message": "even {number}"}]},
    ]
    async with in_process({"rules": rules}) as played:
        said = [(await within(played.client.send(f"n {i}"))).text for i in range(1, 5)]
    assert said == ["odd 1", "even 2", "odd 3", "even 4"]


async def test_skill_version_and_method_pick_rules() -> None:
    rules = [
        {"when": {"skill": "sing"}, "steps": [{"message": "la"}]},
        {"when": {"method": "tasks/get", "nth": 1}, "steps": [{"error": "TaskNotFound"}]},
        {"when": {"method": "SendStreamingMessage"}, "steps": [{"message": "streamed"}]},
        {"when": {"version": "0.3"}, "steps": [{"message": "old"}]},
    ]
    async with in_process({"rules": rules}) as played:
        sung = await within(played.client.send("x", message_metadata={"skill": "sing"}))
        assert sung.text == "la"
        task = await within(played.client.send("x", wait=False))
        with pytest.raises(TaskNotFound):
            await within(played.client.get(task.task_id))
        assert (await within(played.client.get(task.task_id))).id == task.task_id
    async with in_process({"rules": rules}, version="0.3") as played:
        assert (await within(played.client.send("x", wait=False))).text == "old"


@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
async def test_errors_come_by_name_by_reason_and_by_code(binding: Any) -> None:
    rules = [
        rule("name", {"error": "TaskNotCancelable"}),
        rule("reason", {"error": "PUSH_NOTIFICATION_NOT_SUPPORTED"}),
        rule("code", {"error": -32098, "text": "Odd"}),
        rule("late", {"state": "working"}, {"error": "ContentTypeNotSupportedError"}),
    ]
    async with in_process(fake_peer("1.0", binding, rules)) as played:
        with pytest.raises(TaskNotCancelable):
            await within(played.client.send("name"))
        with pytest.raises(PushNotSupported):
            await within(played.client.send("reason"))
        with pytest.raises(A2AError, match="Odd"):
            await within(played.client.send("code"))


async def test_an_error_carries_status_retry_after_and_challenge() -> None:
    busy = {"error": "Overloaded", "http": 429, "retryAfter": "7"}
    closed = {"error": "Unauthenticated", "challenge": 'Bearer realm="x"'}
    rules = [rule("busy", busy), rule("closed", closed)]
    async with serving(ScriptedAgent({"rules": rules})) as url, client(url) as http:
        response = await post(http, "SendMessage", "busy")
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        response = await post(http, "SendMessage", "closed")
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="x"'


async def test_a_cut_breaks_the_body_as_often_as_it_says_and_the_task_goes_on() -> None:
    steps = [
        {"state": "working"},
        {"cut": 2, "times": 2},
        {"wait": "300ms"},
        {"say": "one"},
        {"wait": "300ms"},
        {"artifact": "a", "text": "whole"},
    ]
    agent = ScriptedAgent({"rules": [rule("x", *steps)]})
    async with serving(agent) as url, client(url) as http:
        assert states(await within(streamed(http, "x"))) == ["SUBMITTED", "WORKING", "broken"]
    async with scripted(agent) as played:
        answer = await within(played.client.send("x"))
        assert answer.text == "whole"


async def test_a_cut_at_a_byte_leaves_exactly_so_many() -> None:
    agent = ScriptedAgent({"rules": [rule("x", {"state": "working"}, {"cutAtByte": 33})]})
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    body["params"] = {"message": message("x")}  # type: ignore[assignment]
    async with serving(agent) as url, client(url) as http:
        got = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with http.stream("POST", "/a2a", json=body, headers=V1) as response:
                async for chunk in response.aiter_raw():
                    got += chunk
        assert len(got) == 33


async def test_a_dropped_connection_has_no_answer_at_all() -> None:
    agent = ScriptedAgent({"rules": [rule("x", {"drop": True})]})
    async with serving(agent) as url, client(url) as http:
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await post(http, "SendMessage", "x")
        assert (await post(http, "SendMessage", "y")).status_code == 200
    async with in_process({"rules": [rule("x", {"drop": True})]}) as played:
        with pytest.raises(DeliveryUnknown):
            await within(played.client.send("x", wait=False))


async def test_other_servers_break_off_because_the_app_raises() -> None:
    agent = ScriptedAgent({"rules": [rule("x", {"state": "working"}, {"cut": True})]})
    sent: list[Any] = []
    inbox = [{"type": "http.request", "body": json.dumps({"message": message("x")}).encode()}]

    async def receive() -> Any:
        return inbox.pop() if inbox else await asyncio.Event().wait()

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/message:stream",
        "query_string": b"",
        "headers": [(b"host", b"x"), (b"a2a-version", b"1.0")],
        "scheme": "http",
    }
    with pytest.raises(ConnectionCut):
        await within(agent(scope, receive, send))
    assert sent[0]["status"] == 200
    assert sent[-1]["more_body"] is True
    await agent.close()


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([{"close": True}], ["SUBMITTED"]),
        ([{"say": "a"}, {"twice": True}], ["SUBMITTED", "WORKING", "WORKING", "COMPLETED"]),
        (
            [{"swap": True}, {"say": "a"}, {"artifact": "b", "text": "b"}],
            ["SUBMITTED", "artifactUpdate", "WORKING", "COMPLETED"],
        ),
        ([{"state": "completed"}, {"say": "late"}], ["SUBMITTED", "COMPLETED", "WORKING"]),
        ([{"event": {"task": {}}}, {"say": "a"}], ["SUBMITTED", "task", "WORKING", "COMPLETED"]),
        ([{"repeat": 2, "steps": [{"say": "{i}"}]}], ["SUBMITTED", *["WORKING"] * 2, "COMPLETED"]),
        ([{"state": "TASK_STATE_PONDERING"}], ["SUBMITTED", "PONDERING", "COMPLETED"]),
        ([{"state": "canceled"}], ["SUBMITTED", "CANCELED"]),
        ([{"state": "failed", "text": "no"}], ["SUBMITTED", "FAILED"]),
        ([{"cut": True}, {"say": "a"}], ["SUBMITTED", "broken"]),
    ],
)
async def test_a_stream_shows_what_the_steps_say(steps: Any, wanted: list[str]) -> None:
    async with serving(ScriptedAgent({"rules": [{"steps": steps}]})) as url, client(url) as http:
        assert states(await within(streamed(http, "x"))) == wanted


async def test_garbage_goes_out_as_it_is_with_its_type_and_status() -> None:
    raw = {"raw": "<p>{text}</p>", "type": "text/html", "http": 418}
    torn = [{"state": "working"}, {"raw": "data: {{{\n\n"}]
    agent = ScriptedAgent({"rules": [rule("x", raw), rule("y", *torn)]})
    async with serving(agent) as url, client(url) as http:
        response = await post(http, "SendMessage", "x")
        assert (response.status_code, response.text) == (418, "<p>x</p>")
        assert response.headers["content-type"] == "text/html"
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
        response = await http.post(
            "/a2a", json={**body, "params": {"message": message("y")}}, headers=V1
        )
        assert "data: {{{\n\n" in response.text
        assert response.text.count("data:") == 4


async def test_cursors_continue_where_a_reader_was_and_without_them_there_are_no_ids() -> None:
    steps = [{"say": "a"}, {"wait": "50ms"}, {"say": "b"}]
    agent = ScriptedAgent({"rules": [{"steps": steps}], "cursors": True})
    async with serving(agent) as url, client(url) as http:
        found = await within(streamed(http, "x"))
        assert [frame.id for frame in found] == ["1", "2", "3", "4"]
        task = found[0].result["task"]["id"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
        headers = V1 | {"Last-Event-ID": "2"}
        async with http.stream("POST", "/a2a", json=body, headers=headers) as response:
            rest = [frame async for frame in frames(response)]
        assert [frame.id for frame in rest] == ["2", "3", "4"]
        # The Task as it was then, and what came since.
        assert states(rest) == ["WORKING", "WORKING", "COMPLETED"]
    async with serving(ScriptedAgent({"rules": [{"steps": steps}]})) as url, client(url) as http:
        assert {frame.id for frame in await within(streamed(http, "x"))} == {None}


async def test_the_four_kinds_of_parts_arrive_whole() -> None:
    parts = [
        {"text": "t"},
        {"data": {"n": [1, None]}},
        {"raw": "AAH/", "filename": "x.bin", "mediaType": "application/x"},
        {"url": "https://example.com/f", "filename": "f"},
    ]
    async with in_process({"rules": [{"steps": [{"artifact": "a", "parts": parts}]}]}) as played:
        answer = await within(played.client.send("x"))
    (artifact,) = answer.artifacts
    text, data, raw, url = artifact.parts
    assert (text.text, data.data, raw.raw, url.url) == (
        "t",
        {"n": [1, None]},
        b"\x00\x01\xff",
        "https://example.com/f",
    )
    assert raw.filename == "x.bin"


async def test_what_the_card_rules_out_is_refused() -> None:
    card = {
        "streaming": False,
        "push": False,
        "tenant": "acme",
        "versions": ["1.0"],
        "extensions": [{"uri": "urn:x", "required": True}],
    }
    agent = ScriptedAgent({"card": card})
    async with in_process(agent, extensions=["urn:x"]) as played:
        assert (await within(played.client.send("hi"))).text == "hi"
        assert {seen.operation.tenant for seen in agent.calls() if seen.operation} == {"acme"}
    async with serving(agent) as url, client(url) as http:
        headers = V1 | {"A2A-Extensions": "urn:x"}

        async def code(method: str, params: Any, headers: Any = headers) -> int:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            response = await http.post("/a2a", json=body, headers=headers)
            return response.json()["error"]["code"]

        said = {"message": message("x"), "tenant": "acme"}
        assert await code("SendMessage", said, V1) == -32008
        assert await code("SendMessage", {"message": message("x")}) == -32602
        assert await code("SendStreamingMessage", said) == -32004
        push = {"taskId": "t", "tenant": "acme", "url": "https://example.com"}
        assert await code("CreateTaskPushNotificationConfig", push) == -32003
        assert await code("message/send", said, {"A2A-Extensions": "urn:x"}) == -32600
    with pytest.raises(ExtensionRequired):
        async with in_process(agent):
            pass
    with pytest.raises(VersionNotSupported):
        async with in_process(agent, version="0.3", extensions=["urn:x"]):
            pass


async def test_tasks_there_from_the_start_are_paged_filtered_and_never_shown_twice() -> None:
    script = {
        "tasks": [{"count": 7, "context": "c"}, {"count": 3, "state": "failed"}],
    }
    async with in_process(script) as played:
        seen = [task.id async for task in played.client.list(page_size=4)]
        assert len(seen) == len(set(seen)) == 10
        failed = [task async for task in played.client.list(state=TaskState.FAILED)]
        assert len(failed) == 3
        assert not failed[0].artifacts
        assert len([task async for task in played.client.list(context_id="c")]) == 7
        (full,) = (await within(played.client.page(page_size=1, artifacts=True))).tasks
        assert full.reading.task.artifacts


async def test_cancel_ends_a_task_once() -> None:
    async with in_process({"rules": [{"steps": [{"state": "working"}, {"hang": True}]}]}) as played:
        task = await within(played.client.send("x", wait=False))
        stopped = await within(played.client.cancel(task.task_id))
        assert stopped.status.state is TaskState.CANCELED
        with pytest.raises(UnsupportedOperation):
            await within(played.client.send("more", task_id=task.task_id))
        with pytest.raises(TaskNotFound):
            await within(played.client.cancel("nobody"))


async def test_a_message_for_another_context_is_refused() -> None:
    async with in_process({"rules": [{"steps": [{"ask": "?"}]}]}) as played:
        task = await within(played.client.send("x"))
        with pytest.raises(InvalidParams):
            await within(played.client.send("y", task_id=task.task_id, context_id="other"))


async def test_calls_fail_by_chance_and_the_seed_decides_which() -> None:
    async def outcomes(seed: int) -> list[int]:
        agent = ScriptedAgent({"failRate": 0.5, "seed": seed})
        async with serving(agent) as url, client(url) as http:
            return [(await post(http, "SendMessage", "x")).status_code for _ in range(12)]

    first = await outcomes(1)
    assert first == await outcomes(1)
    assert first != await outcomes(2)
    assert set(first) == {200, 503}


async def test_the_card_fetch_can_be_delayed_refused_or_replaced() -> None:
    moved = {"raw": "", "http": 302, "headers": {"Location": "https://example.com/"}}
    rules = [
        {"when": {"method": "card", "nth": 1}, "steps": [{"raw": "nope", "http": 503}]},
        {"when": {"method": "card"}, "steps": [{"wait": "1ms"}, moved]},
    ]
    async with serving(ScriptedAgent({"rules": rules})) as url, client(url) as http:
        assert (await http.get("/.well-known/agent-card.json")).status_code == 503
        answer = await http.get("/.well-known/agent-card.json")
        assert (answer.status_code, answer.headers["location"]) == (302, "https://example.com/")
    raw = {"card": {"raw": {"name": "Only a name"}}}
    async with serving(ScriptedAgent(raw)) as url, client(url) as http:
        assert (await http.get("/.well-known/agent-card.json")).json() == {"name": "Only a name"}
    extra = {"card": {"extra": {"x-more": 1}, "versions": ["1.0"]}}
    async with serving(ScriptedAgent(extra)) as url, client(url) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        assert card["x-more"] == 1
        assert (await http.get("/.well-known/agent.json")).status_code == 404
        again = await http.get(
            "/.well-known/agent-card.json",
            headers={
                "If-None-Match": (await http.get("/.well-known/agent-card.json")).headers["etag"]
            },
        )
        assert again.status_code == 304


@pytest.mark.parametrize(
    ("access", "options"),
    [
        ({"kind": "bearer", "secret": "s3cret"}, {"bearer": "s3cret"}),
        ({"kind": "api-key", "secret": "s3cret", "name": "X-K"}, {"api_key": "s3cret"}),
        ({"kind": "api-key-query", "secret": "s3cret"}, {"api_key": "s3cret"}),
        ({"kind": "api-key-cookie", "secret": "s3cret"}, {"api_key": "s3cret"}),
    ],
)
async def test_only_those_come_in_who_show_what_the_card_asks_for(
    access: Any, options: dict[str, str]
) -> None:
    agent = ScriptedAgent({"access": access})
    async with scripted(agent, **options) as played:
        assert (await within(played.client.send("hi"))).text == "hi"
    (wrong,) = options
    async with scripted(agent, **{wrong: "other"}) as played:
        with pytest.raises(Unauthenticated):
            await within(played.client.send("hi"))


async def test_a_repeated_message_gets_its_task_only_where_the_script_says_so() -> None:
    for dedupe, count in ((True, 1), (False, 2)):
        async with in_process({"dedupe": dedupe}) as played:
            await within(played.client.send("x", message_id="same"))
            await within(played.client.send("x", message_id="same"))
            assert len(played.agent.tasks) == count


async def test_requests_are_on_record_with_what_they_asked() -> None:
    async with in_process(headers={"x-test": "1"}) as played:
        await within(played.client.send("hi", history=3))
        (seen,) = played.agent.calls("message/send")
        assert seen.headers["x-test"] == "1"
        assert seen.json["params"]["configuration"]["historyLength"] == 3
        assert played.agent.requests[0].method == "card"
    with pytest.raises(ConfigError):
        played.agent.calls("NoSuchMethod")


def test_a_script_reads_the_same_from_json_toml_and_yaml(tmp_path: Path) -> None:
    texts = {
        "s.json": '{"latency":"5ms","rules":[{"when":{"contains":"a"},"steps":[{"wait":1}]}]}',
        "s.toml": 'latency = "5ms"\n[[rules]]\nwhen = {contains = "a"}\nsteps = [{wait = 1}]\n',
        "s.yaml": "latency: 5ms\nrules:\n- when: {contains: a}\n  steps:\n  - wait: 1\n",
    }
    found = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        found.append(read(tmp_path / name))
    assert found[0] == found[1] == found[2]
    assert seconds(found[0].latency) == 0.005


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"rules": [{"steps": [{}]}]}, "exactly one of"),
        ({"rules": [{"steps": [{"say": "a", "wait": 1}]}]}, "say and wait"),
        ({"rules": [{"steps": [{"wait": "soon"}]}]}, "no duration"),
        ({"rules": [{"steps": [{"sing": "la"}]}]}, "unknown field `sing`"),
        ({"rules": [{"when": {"regex": "("}}]}, "regex"),
        ({"latency": []}, r"\$.latency"),
    ],
)
def test_a_script_that_makes_no_sense_says_where(script: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(script)


def test_a_method_nobody_knows_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="Fetch is no method"):
        ScriptedAgent({"rules": [{"when": {"method": "Fetch"}}]})


def test_without_the_extra_yaml_it_says_which_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text("rules: []")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"dragoman\[yaml\]"):
        read(tmp_path / "s.yaml")


async def test_pushes_go_to_who_asked_in_order_and_with_their_secrets() -> None:
    posts: list[tuple[dict[str, str], Any]] = []
    came = asyncio.Event()

    async def receiver(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = (await receive())["body"]
        posts.append(({n.decode(): v.decode() for n, v in scope["headers"]}, json.loads(body)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        if "COMPLETED" in body.decode() or "completed" in body.decode():
            came.set()

    from harness.serving import hosting

    from dragoman.model.push import PushAuthentication, PushConfig

    steps = [{"say": "a"}, {"artifact": "b", "text": "b"}]
    async with hosting(receiver, lifespan="off") as hook:
        for version, count in (("1.0", 4), ("0.3", 3)):
            posts.clear()
            came.clear()
            async with scripted({"rules": [{"steps": steps}]}, version=version) as played:
                auth = PushAuthentication("Bearer", "cred")
                config = PushConfig(url=f"{hook}/hook", token="tok", authentication=auth)
                await within(played.client.send("x", push=config, wait=False))
                await within(came.wait())
            assert len(posts) == count
            assert {headers["x-a2a-notification-token"] for headers, _ in posts} == {"tok"}
            assert {headers["authorization"] for headers, _ in posts} == {"Bearer cred"}


async def test_push_configurations_are_kept_listed_and_deleted() -> None:
    from dragoman.model.push import PushConfig

    async with in_process({"rules": [{"steps": [{"ask": "?"}]}]}) as played:
        agent = played.client
        task = await within(agent.send("x"))
        made = await within(agent.create_push(task.task_id, PushConfig(url="https://example.com/")))
        assert await within(agent.get_push(task.task_id, made.id)) == made
        assert await within(agent.list_push(task.task_id)) == [made]
        await within(agent.delete_push(task.task_id, made.id))
        assert await within(agent.list_push(task.task_id)) == []


async def test_the_port_of_a_script_speaks_tls_and_asks_for_certificates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ListenOptions(client_ca="ca.pem")
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        async with serving(ScriptedAgent(), ListenOptions(tls_cert=str(tmp_path / "none.pem"))):
            pass
