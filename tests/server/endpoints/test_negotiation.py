"""Versions, extensions and content types, from the socket to the answer's headers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import V1, Site, app_of, frames, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, AgentExtension
from dragoman.model.operations import ListTasks
from dragoman.service import Call

URI, OTHER = "urn:example:traces", "urn:example:other"
agent = Agent("Echo", "Echoes.", extensions=[AgentExtension(uri=URI), AgentExtension(uri=OTHER)])


@agent.skill
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent) as site:
        yield site


@pytest.fixture(scope="module")
async def strict() -> AsyncIterator[Site]:
    async with serving(agent, version_mode="strict") as site:
        yield site


def new() -> tuple[str, Any]:
    return "SendMessage", {"message": message("hello")}


def old() -> tuple[str, Any]:
    return "message/send", {"message": old_message("hello")}


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


# Versions


@pytest.mark.parametrize(
    ("call", "version", "served"),
    [
        (new, None, "1.0"),
        (new, "1.0", "1.0"),
        (new, "1.0.1", "1.0"),
        (new, "1.7", "1.0"),
        (new, "", "1.0"),
        (old, None, "0.3"),
        (old, "0.3", "0.3"),
        (old, "0.3.0", "0.3"),
        (old, "0.2.6", "0.2"),
    ],
)
async def test_the_answer_names_the_version_it_is_in(
    site: Site, call: Any, version: str | None, served: str
) -> None:
    headers = {} if version is None else {"A2A-Version": version}
    response = await site.post(rpc(*call()), headers=headers)
    assert "result" in response.json()
    assert response.headers["a2a-version"] == served
    assert response.headers["vary"] == "A2A-Version, Accept"


@pytest.mark.parametrize(
    ("call", "version", "code"),
    [
        (new, "0.3", -32600),
        (old, "1.0", -32009),
        (new, "99.0", -32009),
        (old, "99.0", -32009),
        (new, "INVALID", -32009),
        (new, "2", -32009),
        (old, "0.9", -32600),
    ],
)
async def test_a_version_not_offered_is_refused_and_nothing_is_made(
    site: Site, call: Any, version: str, code: int
) -> None:
    total = await site.total()
    error = (await site.post(rpc(*call()), headers={"A2A-Version": version})).json()["error"]
    assert error["code"] == code
    if code == -32009:
        assert error["data"][0]["metadata"]["supportedVersions"] == "1.0,0.3,0.2"
    assert await site.total() == total


async def test_the_query_names_a_version_too_and_the_header_wins(site: Site) -> None:
    assert (await site.refusal(*new(), path="/?A2A-Version=99.0"))["code"] == -32009
    response = await site.post(rpc(*new()), "/?A2A-Version=99.0", V1)
    assert response.headers["a2a-version"] == "1.0"
    rest = await site.http.get("/tasks", params={"A2A-Version": "0.3"})
    assert rest.status_code == 400
    assert (await site.http.get("/tasks?A2A-Version=0.3", headers=V1)).status_code == 200


@pytest.mark.parametrize("version", ["0.3", "0.2", "99.0", "x"])
async def test_the_paths_of_1_0_serve_only_1_0(site: Site, version: str) -> None:
    response = await site.http.get("/tasks", headers={"A2A-Version": version})
    assert response.status_code == 400
    info = response.json()["error"]["details"][0]
    assert info["reason"] == "VERSION_NOT_SUPPORTED"
    assert info["metadata"] == {"supportedVersions": "1.0"}
    for served in ({}, V1, {"A2A-Version": "1.3"}):
        good = await site.http.get("/tasks", headers=served)
        assert good.status_code == 200 and good.headers["a2a-version"] == "1.0"


async def test_who_is_strict_takes_silence_for_0_3(strict: Site) -> None:
    assert (await strict.refusal(*new()))["code"] == -32009
    assert (await strict.http.get("/tasks")).status_code == 400
    assert (await strict.call(*old()))["kind"] == "task"
    assert "task" in await strict.call(*new(), headers=V1)
    assert (await strict.http.get("/tasks", headers=V1)).status_code == 200


async def test_a_stream_names_its_version(site: Site) -> None:
    for headers, method, make, served in (
        (V1, "SendStreamingMessage", message, "1.0"),
        ({}, "message/stream", old_message, "0.3"),
    ):
        body = rpc(method, {"message": make("hello")})
        async with site.http.stream("POST", "/", json=body, headers=headers) as response:
            assert response.headers["a2a-version"] == served
            assert [frame async for frame in frames(response)]


# Extensions


@pytest.mark.parametrize(
    ("asked", "name", "told"),
    [
        ({"A2A-Extensions": URI}, "a2a-extensions", URI),
        ({"X-A2A-Extensions": URI}, "a2a-extensions", URI),
        ({"A2A-Extensions": f"{URI} ,, urn:nobody:knows,"}, "a2a-extensions", URI),
        (
            {"A2A-Extensions": URI, "X-A2A-Extensions": OTHER},
            "a2a-extensions",
            f"{OTHER}, {URI}",
        ),
        ({"A2A-Extensions": "urn:nobody:knows"}, "a2a-extensions", None),
        ({}, "a2a-extensions", None),
    ],
)
async def test_the_answer_lists_the_extensions_that_are_on(
    site: Site, asked: dict[str, str], name: str, told: str | None
) -> None:
    response = await site.post(rpc(*new()), headers=asked)
    assert response.headers.get(name) == told
    rest = await site.http.get("/tasks", headers=asked)
    assert rest.headers.get(name) == told
    before = await site.post(rpc(*old()), headers=asked)
    assert before.headers.get(f"x-{name}") == told and name not in before.headers


async def test_a_header_that_repeats_counts_in_full(site: Site) -> None:
    headers = [("A2A-Extensions", URI), ("A2A-Extensions", OTHER)]
    response = await site.http.get("/tasks", headers=headers)
    assert response.headers["a2a-extensions"] == f"{OTHER}, {URI}"


async def test_a_required_extension_must_be_asked_for() -> None:
    needy = Agent("Needy", "Needs.", extensions=[AgentExtension(uri=URI, required=True)])
    needy.skill(echo)
    async with serving(needy) as site:
        refused = await site.refusal(*new())
        assert refused["code"] == -32008
        assert refused["data"][0]["metadata"] == {"extensions": URI}
        assert (await site.refusal(*old()))["code"] == -32602
        rest = await site.http.post("/message:send", json=new()[1])
        assert rest.status_code == 400
        assert rest.json()["error"]["details"][0]["reason"] == "EXTENSION_SUPPORT_REQUIRED"
        assert (await site.http.post("/message:stream", json=new()[1])).status_code == 400
        asked = {"A2A-Extensions": URI}
        assert (await site.call("ListTasks", headers=asked))["totalSize"] == 0
        assert "task" in await site.call(*new(), headers=asked)
        assert "kind" in await site.call(*old(), headers={"X-A2A-Extensions": URI})
        # Whoever wants to know what is required can read the card without it.
        card = (await site.http.get("/.well-known/agent-card.json", headers=V1)).json()
        assert {"uri": URI, "required": True} in card["capabilities"]["extensions"]


# Content types


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/a2a+json",
        "application/vnd.x+json",
        "text/plain",
        "APPLICATION/JSON",
    ],
)
async def test_json_is_read_under_any_name_it_is_likely_to_have(
    site: Site, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    body = json.dumps(rpc(*new())).encode()
    response = await site.http.post("/", content=body, headers=headers)
    assert "result" in response.json()
    assert response.headers["content-type"] == "application/json"
    rest = await site.http.post(
        "/message:send", content=json.dumps(new()[1]).encode(), headers=headers
    )
    assert rest.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/xml"},
        {"content-type": "text/xml"},
        {"content-type": "application/octet-stream"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_a_form_a_file_or_xml_is_refused(site: Site, headers: dict[str, str]) -> None:
    total = await site.total()
    refused = await site.http.post("/", content=json.dumps(rpc(*new())), headers=headers)
    assert refused.status_code == 200 and refused.json()["error"]["code"] == -32005
    rest = await site.http.post("/message:send", content=json.dumps(new()[1]), headers=headers)
    assert rest.status_code == 400
    assert rest.json()["error"]["details"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
    assert await site.total() == total


@pytest.mark.parametrize(
    ("accept", "sent", "answered"),
    [
        ("*/*", None, "application/a2a+json"),
        ("application/json", None, "application/json"),
        ("application/a2a+json", "application/json", "application/a2a+json"),
        ("application/json, application/a2a+json", None, "application/a2a+json"),
        ("*/*", "application/json", "application/json"),
        ("*/*", "application/a2a+json", "application/a2a+json"),
    ],
)
async def test_rest_answers_in_the_type_the_caller_reads(
    site: Site, accept: str, sent: str | None, answered: str
) -> None:
    headers = {"accept": accept} | ({"content-type": sent} if sent else {})
    body = json.dumps(new()[1]).encode()
    for path in ("/message:send", "/nothing"):
        response = await site.http.post(path, content=body, headers=headers)
        assert response.headers["content-type"] == answered


# Bodies


async def test_a_body_over_the_limit_is_refused_before_it_is_read(site: Site) -> None:
    host, _, port = site.url.removeprefix("http://").partition(":")
    for path, status, mark in (("/", b"200", b"-32600"), ("/message:send", b"413", b"413")):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {2**40}\r\n\r\n".encode()
            )
            # Not a byte of the body is sent, and still there is an answer.
            head = await within(reader.readuntil(b"\r\n\r\n"))
            assert head.split()[1] == status
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert mark in await within(reader.readexactly(length))
        finally:
            writer.close()


async def test_a_body_that_never_ends_is_cut_off_at_the_limit() -> None:
    async with serving(agent, max_body_bytes=64 * 1024) as site:
        host, _, port = site.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                b"POST /message:send HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                + (b"1000\r\n" + b" " * 4096 + b"\r\n") * 17
            )
            # The body goes on, but the answer does not wait for its end.
            assert (await within(reader.readuntil(b"\r\n"))).split()[1] == b"413"
        finally:
            writer.close()
        just_so = json.dumps(new()[1]).encode()
        padded = just_so + b" " * (64 * 1024 - len(just_so))
        assert (await site.http.post("/message:send", content=padded)).status_code == 200
        over = await site.http.post("/message:send", content=padded + b" ")
        assert over.status_code == 413


async def test_a_request_cut_short_is_not_carried_out() -> None:
    app = app_of(agent)
    whole = json.dumps(rpc(*new())).encode()
    answers: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        answers.append(event)

    parts = [
        {"type": "http.request", "body": whole, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    async with app.running():
        await app(scope, receive, send)
        assert b"-32700" in answers[-1]["body"]
        (mount,) = app.site.mounts.values()
        page: Any = await mount.service.answer(Call(operation=ListTasks()))
        assert page.total_size == 0


async def test_an_overloaded_server_is_a_matter_of_http_on_both_bindings() -> None:
    agent = Agent("Busy", "Is busy.")

    @agent.skill
    async def work(text: str) -> str:
        await asyncio.Event().wait()
        return text

    async with serving(agent, max_live_tasks=1) as site:
        params = {"message": message("x"), "configuration": {"returnImmediately": True}}
        await site.call("SendMessage", params)
        body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {}}
        busy = await site.post(body | {"params": {"message": message("y")}}, headers=V1)
        assert (busy.status_code, busy.json()["id"]) == (503, 7)
        assert busy.json()["error"]["code"] == -32603
        rest = await site.http.post("/message:send", json={"message": message("z")}, headers=V1)
        assert rest.status_code == 503
        assert busy.headers["retry-after"] == rest.headers["retry-after"] == "1"
        assert await site.total() == 1


async def test_errors_say_which_version_they_are_written_in() -> None:
    async with serving(Agent("Empty", "Has no skills.")) as site:
        unknown = {"jsonrpc": "2.0", "id": 1, "params": {"id": "no-such-task"}}
        for method, version in (("GetTask", "1.0"), ("tasks/get", "0.3")):
            refused = await site.post(unknown | {"method": method})
            assert refused.headers["a2a-version"] == version
            assert refused.headers["vary"] == "A2A-Version, Accept"
        rest = await site.http.get("/tasks/no-such-task")
        assert rest.headers["a2a-version"] == "1.0"


async def test_our_own_extensions_are_confirmed_when_asked_for() -> None:
    async with serving(Agent("Empty", "Has no skills.")) as site:
        asked = {"A2A-Extensions": "urn:dragoman:resume:v1, urn:nobody:knows"} | V1
        answer = await site.http.get("/tasks", headers=asked)
        assert answer.headers["a2a-extensions"] == "urn:dragoman:resume:v1"


async def test_a_head_larger_than_anyone_needs_is_refused() -> None:
    async with serving(Agent("Empty", "Has no skills.")) as site:
        for headers, status in (
            ({"x-large": "x" * 31_000}, 200),
            ({"x-large": "x" * 33_000}, 431),
            ({f"x-{n}": "1" for n in range(120)}, 431),
        ):
            answer = await site.http.get("/tasks", headers=headers)
            assert answer.status_code == status


async def test_an_action_with_another_verb_is_not_a_task_of_that_name() -> None:
    async with serving(Agent("Empty", "Has no skills.")) as site:
        answer = await site.http.get("/tasks/x:cancel")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("modes", [["[a" * 5000], ["text/plain"] * 101])
async def test_output_modes_are_bounded_and_never_become_patterns(modes: list[str]) -> None:
    agent = Agent("Plain", "Is plain.", output_modes=["text/plain"])

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async with serving(agent) as site:
        for method, said in (("SendMessage", message("x")), ("message/send", old_message("x"))):
            params = {"message": said, "configuration": {"acceptedOutputModes": modes}}
            assert (await site.refusal(method, params))["code"] == -32602
        odd = {"message": message("x"), "configuration": {"acceptedOutputModes": ["[a" * 100]}}
        assert (await site.refusal("SendMessage", odd))["code"] == -32005
        assert await site.total() == 0
