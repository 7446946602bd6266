"""Why a task failed, as its requester is told: the agent's own reason, made fit to be shown, and
what is known of an address to those who may know."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import V1, message

from dragoman.gateway.registry.registration import Secret
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.guarded_site import ALICE, OPERATOR, ask, guarded, send, settled
from tests.gateway.malformed.script import dumped
from tests.gateway.raw_peer import Answer, Asked, card, http, raw_peer

SECRET = "s3cr3t-of-the-gateway-0123"


def refuses(message: Any, code: int = -32602, data: Any = None) -> Callable[[str, Asked], Answer]:
    """Answer messages with an error of JSON-RPC."""

    def answer(name: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return [http(b"{}", "404 Not Found")]
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "error": error}))]

    return answer


async def told(gate: GatewaySite, path: str, token: str = "") -> str:
    """Send a message; return what is said of its failure."""
    if token:
        made = await send(gate, token, path)
        assert await settled(gate, token, made["id"]) == "TASK_STATE_FAILED"
        task = (await ask(gate, "GET", f"/tasks/{made['id']}", token)).json()
    else:
        answer = await gate.http.post(
            f"{path}/message:send", json={"message": message("x")}, headers=V1
        )
        task = answer.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    return task["status"]["message"]["parts"][0]["text"]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is nobody's: bound, and not listened at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("said", "code", "heard"),
    [
        ("city: must not be empty", -32602, "city: must not be empty"),
        ("Only PDF files, please", -32005, "Only PDF files, please"),
        ("quota of this month is used up", -32000, "quota of this month is used up"),
        # On one line, without what nobody sees.
        ("first\nsecond\x1b[31m red", -32602, "first second\\x1b[31m red"),
        ("a" * 1000, -32602, "a" * 200 + "…"),
        # Without what lets anybody in.
        ("bad Authorization: Bearer abcdef123456", -32602, "Bearer <redacted>"),
        (f"the token {SECRET} is old", -32602, "the token <redacted> is old"),
    ],
)
async def test_the_agents_own_reason_reaches_the_requester_cleaned(
    tmp_path: Path, said: str, code: int, heard: str
) -> None:
    async with raw_peer(refuses(said, code)) as peer, guarded(tmp_path) as gate:
        url = f"{peer.url}/a"
        secret = Secret(kind="bearer", value=SECRET)
        agent = await gate.register(url, name="No", card=card(url), credential=secret)
        sentence = await told(gate, f"/a2a/{agent.name}", ALICE)
    assert sentence.startswith("The agent refused the task: ") and f"({code})" in sentence
    assert heard in sentence and len(sentence) < 300
    assert SECRET not in sentence and "abcdef123456" not in sentence


@pytest.mark.parametrize("said", ["", "Invalid parameters", None, 5, {"a": 1}])
async def test_one_who_gives_no_reason_is_quoted_with_none(tmp_path: Path, said: Any) -> None:
    async with raw_peer(refuses(said)) as peer, gateway(tmp_path) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(url, name="No", card=card(url))
        sentence = await told(gate, f"/a2a/{agent.name}")
    assert sentence == "The agent refused the task: Invalid parameters (-32602)"


@pytest.mark.parametrize(
    ("version", "binding", "dialect"),
    [("1.0", "HTTP+JSON", ""), ("0.3", "JSONRPC", ""), ("", "", "nexus"), ("", "", "corvid")],
)
async def test_a_reason_comes_through_in_every_dialect(
    tmp_path: Path, version: str, binding: str, dialect: str
) -> None:
    reason = "city: must not be empty"

    def says(name: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return [http(b"{}", "404 Not Found")]
        if asked.id is not None:
            return refuses(reason)(name, asked)
        body = {"error": reason}
        if dialect != "corvid":
            body = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": reason}}
        return [http(json.dumps(body).encode(), "400 Bad Request")]

    async with raw_peer(says) as peer, gateway(tmp_path) as gate:
        url = f"{peer.url}/a"
        shown: dict[str, Any] = {"dialect": dialect}
        if not dialect:
            shown = {"card": card(url, version=version, binding=binding)}
        agent = await gate.register(url, name="No", **shown)
        sentence = await told(gate, f"/a2a/{agent.name}")
    assert sentence.startswith("The agent refused the task: ") and reason in sentence


async def test_what_an_agent_says_of_our_credential_is_nobodys_business(tmp_path: Path) -> None:
    def denies(name: str, asked: Asked) -> Answer:
        if asked.operation != "send":
            return [http(b"{}", "404 Not Found")]
        error = {"code": 401, "message": "key of ACME is unknown"}
        return [http(dumped({"error": error}), "401 Unauthorized")]

    async with raw_peer(denies) as peer, gateway(tmp_path) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(url, name="No", card=card(url))
        assert "ACME" not in await told(gate, f"/a2a/{agent.name}")


async def test_an_agent_that_failed_over_messages_answered_and_is_not_sent_them_again(
    tmp_path: Path,
) -> None:
    sent: list[str] = []

    def fails(name: str, asked: Asked) -> Answer:
        if asked.operation == "send":
            sent.append(name)
        return [http(b"boom", "500 Internal Server Error", "text/plain")]

    async with raw_peer(fails) as peer, gateway(tmp_path) as gate:
        url = f"{peer.url}/a"
        agent = await gate.register(url, name="No", card=card(url))
        # More than there are second tries for: nobody waits for one that would send nothing.
        async with asyncio.timeout(60):
            said = await asyncio.gather(*(told(gate, f"/a2a/{agent.name}") for _ in range(15)))
    assert all(one.startswith("Delivery unknown: the agent answered 500, ") for one in said)
    assert len(sent) == 15


async def test_where_nobody_listens_is_told_to_those_who_may_know(
    tmp_path: Path, nobody: str
) -> None:
    settings = {"forward_attempts": 1, "forward_patience": 1.0}
    async with guarded(tmp_path, **settings) as gate:
        agent = await gate.register(nobody, name="Gone", card=card(nobody))
        path = f"/a2a/{agent.name}"
        assert await told(gate, path, ALICE) == "The agent could not be reached."
        known = await told(gate, path, OPERATOR)
        assert known.startswith("The agent could not be reached. 127.0.0.1:")
        assert "refused" in known
    # The local user has the machine.
    folder = tmp_path / "local"
    folder.mkdir()
    async with gateway(folder, **settings) as gate:
        agent = await gate.register(nobody, name="Gone", card=card(nobody))
        assert "refused" in await told(gate, f"/a2a/{agent.name}")


async def test_why_an_agent_is_offline_is_told_to_those_who_may_know(
    tmp_path: Path, nobody: str
) -> None:
    async with guarded(tmp_path) as gate:
        said = {"endpoint": nobody, "name": "Gone"}
        made = (await ask(gate, "POST", "/api/v1/agents", ALICE, said)).json()["data"]
        assert made["status"] == "offline"
        assert made["status_reason"] == "The address could not be reached."
        hidden, told = "The address could not be reached.", "NotConnected: Connection refused"
        for token, reason in ((ALICE, hidden), (OPERATOR, told)):
            path = f"/api/v1/agents/{made['id']}"
            assert (await ask(gate, "GET", path, token)).json()["data"]["status_reason"] == reason
        own = (await ask(gate, "POST", "/api/v1/agents", OPERATOR, said)).json()["data"]
        assert "refused" in own["status_reason"]
        bare = await ask(gate, "POST", "/api/v1/agents", ALICE, {"endpoint": nobody})
        assert bare.status_code == 400 and "refused" not in bare.text
        meant = {"endpoint": nobody, "offline": True}
        late = (await ask(gate, "POST", "/api/v1/agents", ALICE, meant)).json()["data"]
        assert (late["status"], late["name"]) == ("offline", "127.0.0.1")
