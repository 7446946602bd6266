"""selectools, served: its own client, unmodified, and requests as it and older ones make them."""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import Site, old_message, serving
from harness.waiting import within

from dragoman.dialects.v0_3_shapes import decode_status
from proof.environments import python_with
from tests.dialects.house.housemates import UNKNOWN, agent, to

PATH = "/a2a"
TOKEN = "selectools-selectools"
BEARER = {"authorization": f"Bearer {TOKEN}"}


async def client(site: Site, *calls: list[Any], token: str = "") -> list[Any]:
    """Return what the library's client made of each call."""
    python = await asyncio.to_thread(python_with, "selectools[serve]==1.3.0")
    script = Path(__file__).parent / "selectools_client.py"
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(script), site.url, token, json.dumps(calls)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    )
    said, wrong = await within(process.communicate(), 60)
    assert process.returncode == 0, wrong.decode()
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.peer
async def test_the_library_s_own_client_works_unmodified() -> None:
    """S-1, S-4, S-9, S-14, S-22, S-23: discovers, sends, reads again, and raises what it should."""
    async with serving(agent, auth_token=TOKEN) as site:
        card, task, again, unknown, more, public, refused = await client(
            site,
            ["discover"],
            ["send_task", "hello", "ctx-1"],
            ["get_task", "<last>"],
            ["get_task", UNKNOWN],
            ["send_task", "x", None, [{"kind": "data", "data": {"a": 1}}]],
            ["forget_token"],
            ["discover"],
            ["send_task", "x"],
            token=TOKEN,
        )
        assert card["name"] == "Housemate" and card["raw"]["skills"]
        assert (task["state"], task["text"], task["error"]) == ("completed", "Echo: hello", "")
        assert task["context_id"] == "ctx-1"
        assert again["raw"] == task["raw"]
        assert unknown["code"] == -32001
        assert more["state"] == "completed", "more parts than texts are no mistake"
        assert public["name"] == "Housemate" and "HTTP 401" in refused["raised"]


# Methods and shapes


@pytest.mark.parametrize("path", ["/", "/rpc", PATH])
async def test_the_older_name_for_sending_is_understood(site: Site, path: str) -> None:
    """S-6, S-7, S-19, P-011: the final task, its one result called `response`."""
    said = old_message("x")
    task = await site.call("tasks/send", {"message": said}, path=path)
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    (result,) = task["artifacts"]
    assert (result["name"], result["parts"]) == (
        "response",
        [{"kind": "text", "text": "Echo: x"}],
    )
    (history,) = task["history"]
    assert (history["messageId"], history["parts"]) == (said["messageId"], said["parts"])
    assert task["contextId"] and task["status"]["timestamp"]


@pytest.mark.parametrize("method", ["tasks/list", "tasks/nothing", "agent/nothing"])
async def test_what_else_is_asked_is_no_method(site: Site, method: str) -> None:
    """S-6: with the code for it."""
    assert (await site.refusal(method, {}, path=PATH))["code"] == -32601


@pytest.mark.parametrize(
    ("inner", "outer", "shown"),
    [("a", "b", "a"), (None, "b", "b"), (None, None, None)],
    ids=["message", "params", "none"],
)
async def test_a_context_is_that_of_the_message_or_of_the_request_or_made_up(
    site: Site, inner: str | None, outer: str | None, shown: str | None
) -> None:
    """S-25: in this order."""
    said = old_message("x", **({"contextId": inner} if inner else {}))
    params = {"message": said} | ({"contextId": outer} if outer else {})
    task = await site.call("tasks/send", params, path=PATH)
    assert task["contextId"] == shown if shown else task["contextId"]


async def test_times_with_an_offset_are_read_and_ours_end_with_a_z(site: Site) -> None:
    """S-8: either is the same moment."""
    read = decode_status({"state": "working", "timestamp": "2026-01-02T03:04:05+00:00"}, "status")
    assert read.timestamp == "2026-01-02T03:04:05.000Z"
    task = await site.call("tasks/send", {"message": old_message("x")}, path=PATH)
    assert task["status"]["timestamp"].endswith("Z")


async def test_data_and_files_are_taken_with_a_text(site: Site) -> None:
    """S-18: neither is refused; the agent has the data as it came, and a file is not fetched."""
    said = old_message("x", metadata=to("unpack"))
    said["parts"] += [
        {"kind": "data", "data": {"a": 1}},
        {"kind": "file", "file": {"uri": "https://example.com/x"}},
    ]
    task = await site.call("tasks/send", {"message": said}, path=PATH)
    assert task["status"]["state"] == "completed" and len(task["history"][0]["parts"]) == 3
    (result,) = task["artifacts"][0]["parts"]
    assert result["data"] == {"text": "x", "data": {"a": 1}, "url": "https://example.com/x"}


async def test_a_message_needs_a_text_only_where_the_server_says_so(site: Site) -> None:
    """S-13, X-31: `require_text_part`, and only at the path of selectools."""
    said = old_message("x") | {"parts": [{"kind": "data", "data": {"text": "x"}}]}
    for method in ("message/send", "tasks/send"):
        task = await site.call(method, {"message": said | {"messageId": method}}, path=PATH)
        assert task["status"]["state"] == "completed"
    async with serving(agent, require_text_part=True) as strict:
        for method in ("message/send", "tasks/send"):
            error = await strict.refusal(method, {"message": said}, path=PATH)
            assert error["code"] == -32602 and "text part" in error["message"]
        task = await strict.call("message/send", {"message": said}, path="/rpc")
        assert task["status"]["state"] == "completed"
        fine = await strict.call("message/send", {"message": old_message("y")}, path=PATH)
        assert fine["status"]["state"] == "completed"
        *_, last = await strict.events("message/stream", {"message": old_message("z")}, path=PATH)
        assert last.result["final"] is True, "everything else is there as before"


@pytest.mark.parametrize(
    "params",
    [{}, {"message": 7}, {"message": old_message("x") | {"parts": []}}],
    ids=["missing", "no-object", "no-parts"],
)
async def test_a_message_that_is_none_is_a_wrong_parameter(site: Site, params: Any) -> None:
    """S-13: under either name."""
    for method in ("tasks/send", "message/send"):
        assert (await site.refusal(method, params, path=PATH))["code"] == -32602


# Errors


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tasks/get"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":[]}', -32602),
    ],
    ids=["json", "object", "version", "method", "params"],
)
async def test_what_is_no_request_has_its_code_and_http_200(
    site: Site, body: bytes, code: int
) -> None:
    """S-10, S-12, P-035: parameters that are no object are wrong parameters."""
    response = await site.http.post(PATH, content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (200, code)
    if code == -32700:
        assert response.json()["id"] is None


async def test_a_body_that_is_too_large_is_refused_unread() -> None:
    """S-11, P-007, X-04: with -32600, and 413 over REST."""
    async with serving(agent, max_body_bytes=1_048_576) as site:
        body = b'{"jsonrpc":"2.0","id":1,"x":"' + b"x" * 1_048_576
        response = await site.http.post(PATH, content=body)
        assert (response.status_code, response.json()["error"]["code"]) == (200, -32600)
        assert (await site.http.post("/message:send", content=body)).status_code == 413


async def test_a_wrong_or_missing_token_is_refused_before_anything_is_read() -> None:
    """S-1, S-9, P-030: the same way, whatever the token is made of; the card is for everybody."""
    async with serving(agent, auth_token=TOKEN) as site:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": b"Bearer \xe4"}):
            response = await site.http.post(PATH, content=b"{", headers=headers)
            assert response.status_code == 401
            assert response.json().keys() == {"error"} and "message" in response.json()["error"]
        assert (await site.http.get("/.well-known/agent.json")).status_code == 200


async def test_one_token_reads_every_task_of_its_holder(tmp_path: Path) -> None:
    """S-4, P-003, X-27: one token is one principal; another's tasks are not found."""
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text(f'[a]\ntoken = "{TOKEN}"\n[b]\ntoken = "bobby-bobby-bobby"\n')
    async with serving(agent, auth_tokens=str(file)) as site:
        params = {"message": old_message("x")}
        task = await site.call("tasks/send", params, path=PATH, headers=BEARER)
        get = {"id": task["id"]}
        async with httpx.AsyncClient(base_url=site.url, trust_env=False) as other:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": get}
            found = (await other.post(PATH, json=body, headers=BEARER)).json()
            assert found["result"]["id"] == task["id"]
        bob = {"authorization": "Bearer bobby-bobby-bobby"}
        assert (await site.refusal("tasks/get", get, path=PATH, headers=bob))["code"] == -32001


async def test_an_unknown_task_and_one_that_ended_are_refused_with_their_codes(site: Site) -> None:
    """S-14, S-15, X-10: a task is over by the time its answer comes."""
    for method in ("tasks/get", "tasks/cancel"):
        assert (await site.refusal(method, {"id": UNKNOWN}, path=PATH))["code"] == -32001
    task = await site.call("tasks/send", {"message": old_message("x")}, path=PATH)
    assert (await site.refusal("tasks/cancel", {"id": task["id"]}, path=PATH))["code"] == -32002


async def test_a_task_that_was_forgotten_is_unknown() -> None:
    """S-14, S-17, C-5: which finished tasks alone are, the oldest first."""
    async with serving(agent) as site:
        tasks = [
            await site.call("tasks/send", {"message": old_message(str(n))}, path=PATH)
            for n in range(3)
        ]
        waiting = await site.call(
            "tasks/send", {"message": old_message("x", metadata=to("ask"))}, path=PATH
        )
        await site.app.store.prune(ended_before=int(time.time() * 1000) + 1, keep=1)
        codes = []
        for task in (*tasks, waiting):
            body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task["id"]}}
            codes.append((await site.post(body, PATH)).json().get("error", {}).get("code"))
        assert codes[0] == -32001 and codes[-1] is None


async def test_an_agent_that_raises_is_a_failed_task_and_tells_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """S-16, S-21, S-23, X-32: all of it is in our log."""
    with caplog.at_level(logging.WARNING, "dragoman"):
        task = await site.call(
            "tasks/send", {"message": old_message("x", metadata=to("crash"))}, path=PATH
        )
    assert task["status"]["state"] == "failed" and task["status"]["message"]["parts"][0]["text"]
    assert "secret of the house" not in json.dumps(task)
    assert "secret of the house" in caplog.text


async def test_requests_at_once_do_not_mix(site: Site) -> None:
    """S-5, P-005: each runs for itself."""
    said = [old_message(f"caller {n}") for n in range(10)]
    tasks = await asyncio.gather(
        *(site.call("tasks/send", {"message": one}, path=PATH) for one in said)
    )
    answers = [task["artifacts"][0]["parts"][0]["text"] for task in tasks]
    assert answers == [f"Echo: caller {n}" for n in range(10)]
    assert all(len(task["history"]) == 1 for task in tasks)


# Around it


async def test_a_card_of_old_names_one_skill_for_each_thing_an_agent_can_do(site: Site) -> None:
    """S-2, S-3: with a description that its author wrote for others."""
    card = (await site.http.get("/.well-known/agent.json")).json()
    assert card["protocolVersion"].startswith(("0.2", "0.3"))
    assert [skill["id"] for skill in card["skills"]] == list(agent.skills)
    assert card["description"] == "Plays every state."
    assert all({"id", "name", "description", "tags"} <= skill.keys() for skill in card["skills"])


async def test_an_agent_is_itself_an_asgi_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-24, S-26, P-015: as selectools' server is, and can be called without a socket."""
    monkeypatch.setenv("DRAGOMAN_STORE", "memory:")
    from dragoman import Agent

    own = Agent("Own", "Serves itself.")

    @own.skill
    async def echo(text: str) -> str:
        return text

    transport = httpx.ASGITransport(app=own)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as http:
        params = {"message": old_message("x")}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": params}
        answer = (await http.post(PATH, json=body)).json()
    assert answer["result"]["status"]["state"] == "completed"
    await own._app.stop()  # pyright: ignore[reportPrivateUsage] - no lifespan ends it here


async def test_a_server_may_leave_selectools_out() -> None:
    """S-6: then the older name is no method."""
    async with serving(agent, dialects="none") as site:
        params = {"message": old_message("x")}
        assert (await site.refusal("tasks/send", params, path=PATH))["code"] == -32601
