"""The access log: who asked what and how it went, for people and for programs."""

import io
import json
import logging
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from harness.serving import V1, client, hosting, message

from dragoman import Agent, App
from dragoman.config import load_settings
from dragoman.model.identity import OPERATOR, Caller
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.telemetry import logs

ALICE, OPERATING = "alice-token-0123456789", "operator-token-0123456789"
TOKENS = {
    ALICE: Caller("token:alice", True),
    OPERATING: Caller("token:ann lee", True, frozenset({OPERATOR})),
}
CANARY = "canary-7f3a9c"


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """The lines that were written."""
    found: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    log, keeping = logging.getLogger("dragoman.access"), Keeping()
    level = log.level
    log.addHandler(keeping)
    log.setLevel(logging.INFO)
    yield found
    log.removeHandler(keeping)
    log.setLevel(level)


@asynccontextmanager
async def asked(**settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    agent = Agent("echo", "Says it again.")

    @agent.skill
    async def say(text: str) -> str:
        return text

    chosen = load_settings({}, **{"store": "memory:", "metrics": True} | settings)
    app = App(agent, settings=chosen, authenticators=[BearerTokens(tokens=TOKENS)])
    async with hosting(app) as url, client(url) as http:
        yield http


def bearer(token: str) -> dict[str, str]:
    return V1 | {"authorization": f"Bearer {token}"}


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_a_line_names_verb_route_operation_status_caller_and_address(
    lines: list[logging.LogRecord],
) -> None:
    async with asked() as http:
        sent = rpc("SendMessage", {"message": message("hi")})
        assert (await http.post("/a2a", json=sent, headers=bearer(ALICE))).status_code == 200
        missing = rpc("GetTask", {"id": "none"})
        await http.post("/rpc", json=missing, headers=bearer(ALICE))
        streamed = rpc("SendStreamingMessage", {"message": message("hi")})
        await http.post("/", json=streamed, headers=bearer(ALICE))
        await http.get(f"/tasks/{CANARY}?note={CANARY}", headers=bearer(ALICE))
        await http.get(f"/{CANARY}/tasks/{CANARY}", headers=bearer(ALICE))
        await http.post(f"/v1/tasks/{CANARY}:cancel", headers={**bearer(ALICE), "A2A-Version": ""})
        await http.get(f"/{CANARY}", headers=bearer(ALICE))
        await http.post("/a2a", json=sent, headers=V1)
        for path in ("/.well-known/agent-card.json", "/healthz", "/readyz"):
            assert (await http.get(path)).status_code == 200
        for path in ("/metrics", "/admin/status", f"/api/v1/console/tasks/{CANARY}"):
            await http.get(path, headers=bearer(OPERATING))
    said = [re.sub(r"\d+\.\d ms", "N ms", line.getMessage()) for line in lines]
    alice, ann = "caller=token:alice 127.0.0.1", "caller=token:ann%20lee 127.0.0.1"
    assert said == [
        f"POST /a2a SendMessage JSONRPC 1.0 200 N ms {alice}",
        f"POST /rpc GetTask JSONRPC 1.0 200 TaskNotFound N ms {alice}",
        f"POST / StreamMessage JSONRPC 1.0 200 N ms {alice}",
        f"GET /tasks/{{id}} GetTask HTTP+JSON 1.0 404 TaskNotFound N ms {alice}",
        f"GET /{{tenant}}/tasks/{{id}} GetTask HTTP+JSON 1.0 404 TaskNotFound N ms {alice}",
        f"POST /v1/tasks/{{id}}:cancel CancelTask HTTP+JSON 0.3 404 TaskNotFound N ms {alice}",
        f"GET - 404 MethodNotFound N ms {alice}",
        "POST /a2a 401 N ms 127.0.0.1",
        "GET /.well-known/agent-card.json 200 N ms 127.0.0.1",
        "GET /healthz 200 N ms 127.0.0.1",
        "GET /readyz 200 N ms 127.0.0.1",
        f"GET /metrics 200 N ms {ann}",
        f"GET /admin/status 200 N ms {ann}",
        f"GET /api/v1/console/tasks/{{id}} view_task API none 404 TaskNotFound N ms {ann}",
    ]


async def test_who_is_turned_away_is_named_and_so_is_where_they_wanted_to_go(
    lines: list[logging.LogRecord],
) -> None:
    async with asked(rate_limit="1/h") as http:
        for _ in range(2):
            sent = rpc("SendMessage", {"message": message("hi")})
            answer = await http.post("/a2a", json=sent, headers=bearer(ALICE))
    assert answer.status_code == 429
    line = lines[-1].getMessage()
    assert re.fullmatch(r"POST /a2a 429 \d+\.\d ms caller=token:alice 127\.0\.0\.1", line)


async def test_programs_find_each_fact_in_a_member_of_its_own(
    lines: list[logging.LogRecord],
) -> None:
    async with asked() as http:
        sent = rpc("SendMessage", {"message": message("hi")})
        await http.post("/a2a", json=sent, headers=bearer(ALICE))
    line = json.loads(logs.JsonFormat().format(lines[0]))
    assert isinstance(line.pop("milliseconds"), float)
    assert line.pop("time") and line.pop("message").startswith("POST /a2a SendMessage")
    assert line == {
        "level": "info",
        "logger": "dragoman.access",
        "verb": "POST",
        "route": "/a2a",
        "operation": "SendMessage",
        "binding": "JSONRPC",
        "version": "1.0",
        "agent": "echo",
        "status": 200,
        "outcome": "ok",
        "caller": "token:alice",
        "address": "127.0.0.1",
    }


def test_members_of_a_line_do_not_pass_for_ours() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormat())
    record = logging.LogRecord("dragoman", logging.INFO, "", 0, "said", (), None)
    record.facts = {"level": "forged", "message": "forged", "more": 1}
    handler.emit(record)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["message"], line["more"]) == ("info", "said", 1)
