"""selectools' server on our engine: what it promises, and what its own gets wrong."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import ROOT, environment
from harness.serving import client, hosting, old_message
from harness.waiting import within

import dragoman
from dragoman import Settings
from dragoman.compat.selectools import A2AServer, TaskState
from dragoman.config import StoreSettings
from tests.compat.agents import SECRET, Gate, Researcher, Tool

Make = Callable[..., A2AServer]
TOKEN = "sk-demo"
BEARER = {"authorization": f"Bearer {TOKEN}"}
CARD = "/.well-known/agent.json"
UNKNOWN = "0190a000-0000-7000-8000-000000000000"


def calling(server: A2AServer) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=server)
    return httpx.AsyncClient(transport=transport, base_url="http://testserver", timeout=60)


async def rpc(http: httpx.AsyncClient, method: str, params: Any, **more: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = await http.post("/a2a", json=body, **more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == 7
    return answer.json()


async def sent(http: httpx.AsyncClient, text: str, **more: Any) -> Any:
    """Return the task of a text."""
    return (await rpc(http, "message/send", {"message": old_message(text, **more)}))["result"]


def parts(*parts: Any) -> dict[str, Any]:
    return {"message": old_message("") | {"parts": list(parts)}}


TEXT = {"kind": "text", "text": "sum"}
DATA = {"kind": "data", "data": {"ä": [1, 2]}}
FILE = {"kind": "file", "file": {"uri": "https://example.com/x", "name": "x"}}


# Serving


async def test_the_server_is_an_asgi_app_for_any_asgi_server(make: Make) -> None:
    """P-001, P-041: with a card at either path."""
    async with hosting(make()) as url, client(url) as http:
        assert (await sent(http, "hi"))["artifacts"][0]["parts"][0]["text"] == "Echo: hi"
        assert (await http.get(CARD)).json()["url"] == f"{url}/a2a"
        today = (await http.get("/.well-known/agent-card.json")).json()
        assert [skill["id"] for skill in today["skills"]] == ["summarize"]
        assert today["capabilities"]["streaming"] is True


SERVING = """
import logging, sys
from agents import Researcher
from dragoman.compat.selectools import A2AServer
logging.basicConfig(level="INFO")
A2AServer(Researcher()).serve(port=int(sys.argv[1]))
print("over", flush=True)
"""


def test_serve_blocks_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """P-001, P-042: and without a token it listens where only this machine reaches it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = environment(tmp_path)
    env["PYTHONPATH"] += f":{Path(__file__).parent}"
    env.pop("BIND_HOST", None)
    command = [sys.executable, "-c", SERVING, str(port)]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listens on" in line)
        assert f"http://127.0.0.1:{port}" in line
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert http.get(CARD).json()["name"] == "researcher"
            body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": parts(TEXT)}
            answer = http.post("/a2a", json=body)
            assert answer.json()["result"]["status"]["state"] == "completed"
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "over\n")


@pytest.mark.parametrize(
    ("host", "token", "is_warned"),
    [
        ("0.0.0.0", None, True),
        ("0.0.0.0", TOKEN, False),
        ("::1", None, False),
        (None, None, False),
        (None, TOKEN, False),
    ],
)
def test_a_public_address_without_a_token_is_warned_of(
    make: Make,
    host: str | None,
    token: str | None,
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P-004, P-042: and served all the same; where no address is written, the token decides."""
    served: list[str] = []

    def run(agents: Any, settings: Settings, **more: Any) -> None:
        served.extend(settings.http.listen)

    monkeypatch.setattr("dragoman.compat.selectools.server.run", run)
    monkeypatch.delenv("BIND_HOST", raising=False)
    server = make(auth_token=token)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        server.serve(port=8123, host=host)
    chosen = host or ("0.0.0.0" if token else "127.0.0.1")
    assert served == [f"[{chosen}]:8123" if ":" in chosen else f"{chosen}:8123"]
    assert ("unauthenticated" in caplog.text) is is_warned


# Who may call


async def test_the_card_is_for_everybody_and_calls_need_the_token(make: Make) -> None:
    """P-002, P-012, P-030, P-031: what the token is made of does not matter, nor how long it is."""
    async with calling(make(auth_token=TOKEN)) as http:
        assert (await http.get(CARD)).status_code == 200
        for wrong in ({}, {"authorization": "Bearer x"}, {"authorization": b"Bearer \xe4\xff"}):
            refused = await http.post("/a2a", content=b"{", headers=wrong)  # type: ignore[arg-type]
            assert refused.status_code == 401
            assert refused.json().keys() == {"error"}
            assert refused.headers["www-authenticate"].startswith("Bearer")
        assert "result" in await rpc(http, "message/send", parts(TEXT), headers=BEARER)


async def test_whoever_has_the_token_reads_every_task(make: Make) -> None:
    """P-003: all callers are one."""
    server = make(auth_token=TOKEN)
    async with calling(server) as one, calling(server) as other:
        one.headers, other.headers = httpx.Headers(BEARER), httpx.Headers(BEARER)
        task = await sent(one, "hi")
        found = await rpc(other, "tasks/get", {"id": task["id"]})
        assert found["result"] == task


# Isolation


async def test_each_message_runs_on_a_clone_of_its_own(make: Make) -> None:
    """P-005: no caller sees another's words, and the agent itself stays as it was."""
    agent = Researcher()
    async with calling(make(agent)) as http:
        tasks = await asyncio.gather(*(sent(http, f"caller {n}") for n in range(20)))
    said = [task["artifacts"][0]["parts"][0]["text"] for task in tasks]
    assert said == [f"Echo: caller {n}" for n in range(20)]
    assert agent.history == [] and len(agent.clones) == 20


# What is kept


async def test_the_oldest_tasks_are_forgotten(make: Make) -> None:
    """P-006: as if they had never been."""
    async with calling(make(max_tasks=2)) as http:
        tasks = [await sent(http, str(n)) for n in range(4)]
        found = [await rpc(http, "tasks/get", {"id": task["id"]}) for task in tasks]
        assert [one.get("error", {}).get("code") for one in found] == [-32001, -32001, None, None]


async def test_tasks_are_kept_in_a_file_where_one_is_named(make: Make, tmp_path: Path) -> None:
    """P-006: a later server has what an earlier one acknowledged."""
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db")))
    first = make(settings=settings)
    async with calling(first) as http:
        task = await sent(http, "keep me")
    first.close()
    async with calling(make(settings=settings)) as http:
        assert (await rpc(http, "tasks/get", {"id": task["id"]}))["result"] == task


async def test_a_body_that_is_too_large_is_not_read_to_its_end(make: Make) -> None:
    """P-007, P-039: a sender of more is answered while it still sends."""
    server, read, answer = make(max_body_bytes=8192), 0, bytearray()

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        assert read < 100, "it reads on and on"
        return {"type": "http.request", "body": b"x" * 4096, "more_body": True}

    async def send(message: Any) -> None:
        answer.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/a2a",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"testserver")],
        "client": ("127.0.0.1", 1),
    }
    await within(server(scope, receive, send))
    assert read <= 4 and json.loads(answer)["error"]["code"] == -32600
    async with calling(server) as http:
        whole = await http.post("/a2a", content=b"x" * 8193)
        assert (whole.status_code, whole.json()["error"]["code"]) == (200, -32600)
        assert "result" in await rpc(http, "message/send", parts(TEXT))


# What an agent does


async def test_an_agent_that_raises_is_a_failed_task_with_the_kind_of_it_alone(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """P-008: the rest is in our log."""

    def answer(text: str) -> str:
        raise ConnectionResetError("http://10.0.0.7/secret")

    with caplog.at_level(logging.WARNING):
        async with calling(make(Researcher(answer=answer))) as http:
            task = await sent(http, "hi")
    assert task["status"]["state"] == "failed"
    (part,) = task["status"]["message"]["parts"]
    assert part["text"] == "Agent execution failed (ConnectionResetError)"
    assert "secret" not in json.dumps(task)
    raised = [record for record in caplog.records if record.exc_info]
    (record,) = [record for record in raised if "10.0.0.7" in str(record.exc_info)]
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ([TEXT, {"kind": "text", "text": "up"}], "sum\nup"),
        ([TEXT, DATA], 'sum\n{"ä": [1, 2]}'),
        ([TEXT, FILE], "sum"),
        ([DATA], '{"ä": [1, 2]}'),
        ([{"type": "text", "text": "old"}], "old"),
    ],
    ids=["texts", "data", "file", "data-alone", "older-shape"],
)
async def test_an_agent_reads_texts_and_data(make: Make, content: list[Any], prompt: str) -> None:
    """P-013, P-032: parts on lines of their own; files are taken and not read."""
    async with calling(make()) as http:
        answer = await rpc(http, "message/send", parts(*content))
        assert answer["result"]["status"]["state"] == "completed", answer
        assert f"Echo: {prompt}" in json.dumps(answer, ensure_ascii=False).replace(
            '\\"', '"'
        ).replace("\\n", "\n")


# Shapes


def test_the_card_names_the_agent_and_its_tools(make: Make) -> None:
    """P-009: and never what the agent was told to be."""
    card = make().build_agent_card()
    assert SECRET not in json.dumps(card)
    assert card.pop("description")
    assert card == {
        "protocolVersion": "0.2.6",
        "name": "researcher",
        "url": "",
        "version": dragoman.__version__,
        "capabilities": {
            "streaming": False,
            "pushNotifications": False,
            "stateTransitionHistory": False,
        },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": "summarize",
                "name": "summarize",
                "description": "Summarize a text",
                "tags": ["tool"],
            }
        ],
    }
    named = make(name="n", description="d", url="https://a.example/a2a", version="9")
    card = named.build_agent_card()
    assert [card[member] for member in ("name", "description", "url", "version")] == [
        *("n", "d", "https://a.example/a2a", "9")
    ]


async def test_the_card_that_is_served_says_where_it_is_served(make: Make) -> None:
    """P-009, P-040: with the tools that the agent has at that moment."""
    agent = Researcher(tools=[])
    async with calling(make(agent)) as http:
        assert (await http.get(CARD)).json()["skills"] == []
        agent.tools.append(Tool("late", "Comes later"))
        card = (await http.get(CARD)).json()
        assert [skill["id"] for skill in card["skills"]] == ["late"]
        assert card["url"] == "http://testserver/a2a"
        assert (await sent(http, "hi"))["status"]["state"] == "completed"
    async with calling(make(url="https://agent.example.com/a2a")) as http:
        assert (await http.get(CARD)).json()["url"] == "https://agent.example.com/a2a"


@pytest.mark.parametrize("method", ["message/send", "tasks/send"])
async def test_a_message_is_answered_with_its_task(make: Make, method: str) -> None:
    """P-010, P-011, P-021: under either name; ids are unguessable and times have a zone."""
    async with calling(make()) as http:
        said = old_message("hi", contextId="ctx-1")
        task = (await rpc(http, method, {"message": said}))["result"]
        assert (task["kind"], task["contextId"], task["status"]["state"]) == (
            *("task", "ctx-1"),
            TaskState.COMPLETED,
        )
        (artifact,) = task["artifacts"]
        assert artifact["name"] == "response" and artifact["artifactId"]
        assert artifact["parts"] == [{"kind": "text", "text": "Echo: hi"}]
        assert task["history"][0]["messageId"] == said["messageId"]
        assert len(task["id"].replace("-", "")) == 32
        assert task["status"]["timestamp"].endswith(("Z", "+00:00"))
        again = (await rpc(http, "tasks/get", {"id": task["id"]}))["result"]
        assert again == task


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tasks/get"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/nothing"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"x"}}', -32001),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"id":"x"}}', -32001),
    ],
)
async def test_what_cannot_be_done_has_its_code(make: Make, body: bytes, code: int) -> None:
    """P-012, P-035: parameters that are none, and an id that is missing, are wrong parameters."""
    async with calling(make()) as http:
        answer = await http.post("/a2a", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)


async def test_a_message_that_says_nothing_and_a_task_that_is_over_are_refused(make: Make) -> None:
    """P-010, P-012: with their codes."""
    async with calling(make()) as http:
        for content in ([], [FILE], ["text"]):
            refused = await rpc(http, "message/send", parts(*content))
            assert refused["error"]["code"] == -32602
        task = await sent(http, "hi")
        refused = await rpc(http, "tasks/cancel", {"id": task["id"]})
        assert refused["error"]["code"] == -32002


# What selectools' own does not


async def test_a_notification_is_a_mistake_that_nothing_comes_of(make: Make) -> None:
    """P-034: an answer that nobody can match to a request is not worked for."""
    agent = Researcher()
    async with calling(make(agent)) as http:
        body = {"jsonrpc": "2.0", "method": "message/send", "params": parts(TEXT)}
        refused = (await http.post("/a2a", json=body)).json()
    assert refused["error"]["code"] == -32600 and "id must be" in refused["error"]["message"]
    assert agent.clones == []


async def test_a_history_is_stamped_and_as_long_as_was_asked_for(make: Make) -> None:
    """P-036: by historyLength."""
    async with calling(make()) as http:
        task = await sent(http, "hi")
        assert task["history"][0]["taskId"] == task["id"]
        short = await rpc(http, "tasks/get", {"id": task["id"], "historyLength": 0})
        assert short["result"].get("history", []) == []


async def test_a_message_to_a_task_does_not_begin_another(make: Make) -> None:
    """P-037: one that is over, or that nobody knows, is refused."""
    async with calling(make()) as http:
        task = await sent(http, "hi")
        for task_id, code in ((task["id"], -32004), (UNKNOWN, -32001)):
            params = {"message": old_message("more", taskId=task_id)}
            assert (await rpc(http, "message/send", params))["error"]["code"] == code


async def test_a_task_can_be_watched_and_canceled_while_the_agent_works(make: Make) -> None:
    """P-043: which goes on for nobody then."""
    gate = Gate()
    async with hosting(make(Researcher(answer=gate))) as url, client(url) as http:
        try:
            params = {"message": old_message("hi"), "configuration": {"blocking": False}}
            task = (await rpc(http, "message/send", params))["result"]
            assert task["status"]["state"] in ("submitted", "working")
            assert await within(asyncio.to_thread(gate.entered.wait, 60))
            seen = (await rpc(http, "tasks/get", {"id": task["id"]}))["result"]
            assert seen["status"]["state"] == "working"
            ended = (await rpc(http, "tasks/cancel", {"id": task["id"]}))["result"]
            assert ended["status"]["state"] == "canceled"
        finally:
            gate.open()
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream"}
        async with http.stream(
            "POST", "/a2a", json=body | {"params": {"message": old_message("x")}}
        ) as streamed:
            frames = [line async for line in streamed.aiter_lines() if line.startswith("data:")]
        assert '"completed"' in frames[-1] and len(frames) > 2


def test_one_server_answers_calls_from_one_loop_after_another(make: Make) -> None:
    """P-015, P-020: its tasks outlive the loop that sent them."""
    server = make()

    async def send() -> str:
        async with calling(server) as http:
            return (await sent(http, "hi"))["id"]

    async def read(task_id: str) -> Any:
        async with calling(server) as http:
            return await rpc(http, "tasks/get", {"id": task_id})

    first = asyncio.run(send())
    assert asyncio.run(read(first))["result"]["status"]["state"] == "completed"


def test_what_a_caller_does_not_use_is_not_loaded() -> None:
    """P-016: names are found when they are used, and the package needs nothing of selectools."""
    code = (
        "import sys, dragoman.compat.selectools as s; "
        "s.TaskState, s.A2ATask; assert 'uvicorn' not in sys.modules; "
        "s.A2AServer, s.A2AClient; assert not any('selectools' == n for n in sys.modules); "
        "assert sorted(s.__all__) == 'A2AClient A2AError A2AServer A2ATask AgentCard AgentSkill "
        "TaskState'.split(); "
        "from dragoman.compat.selectools.types import AgentCard, TASK_NOT_FOUND; "
        "assert AgentCard is s.AgentCard and TASK_NOT_FOUND == -32001"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
