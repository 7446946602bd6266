"""A gateway whose callers have tokens and keys, and what they ask of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from harness.serving import V1, message
from harness.waiting import eventually

from dragoman import Agent
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import Principal
from dragoman.security.keys import key_file
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.malformed.script import dumped, task
from tests.gateway.raw_peer import Answer, Asked, Peer, card, http

ALICE, BOB, OPERATOR = "alice-0123456789abcdef", "bob-0123456789abcdef", "op-0123456789abcdef"
BOBS = "token:bob"
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")


@asynccontextmanager
async def guarded(folder: Path, *agents: Agent, **settings: Any) -> AsyncIterator[GatewaySite]:
    """A gateway whose callers have tokens and keys."""
    tokens, keys = folder / "tokens.toml", folder / "keys.toml"
    operator = f'[op]\ntoken = "{OPERATOR}"\nscopes = ["dragoman:operator"]\n'
    tokens.write_text(f'[alice]\ntoken = "{ALICE}"\n[bob]\ntoken = "{BOB}"\n{operator}')
    tokens.chmod(0o600)
    if not keys.exists():
        # A server that takes keys does not start without any.
        key_file.create(keys, "somebody", scopes=[], tenant=None, lifetime=None)
    given = {"auth": "bearer,api-key", "auth_tokens": str(tokens), "keys": str(keys)}
    async with gateway(folder, *agents, **given, allow_private=True, **settings) as site:
        yield site


async def ask(
    site: GatewaySite, verb: str, path: str, token: str, body: Any = None
) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}", **V1}
    if token.startswith("nxk_"):
        headers = {"x-api-key": token, **V1}
    return await site.http.request(verb, path, json=body, headers=headers)


async def send(site: GatewaySite, token: str, path: str = "", **more: Any) -> dict[str, Any]:
    """Send a message; return the task as it is at once."""
    body = {"message": message("hello"), "configuration": {"returnImmediately": True}, **more}
    answer = await ask(site, "POST", f"{path}/message:send", token, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


async def settled(site: GatewaySite, token: str, task_id: str) -> str:
    """Return the state of a task once it has ended."""

    async def state() -> str:
        found = (await ask(site, "GET", f"/tasks/{task_id}", token)).json()["status"]["state"]
        return found if found in ENDED else ""

    return await eventually(state)


async def was_sent(peer: Peer, name: str, times: int = 1) -> None:
    """Wait until an agent was sent so many messages."""

    async def is_so() -> bool:
        return peer.count(name, "send") >= times

    await eventually(is_so)


async def balance(site: GatewaySite, owner: str) -> int:
    return (await site.gateway.ledger.balance(Principal.read(owner))).total // 1_000_000


def reply(asked: Asked, name: str, state: str = "COMPLETED") -> Answer:
    """Answer with a task in a state; nothing else is there."""
    if asked.operation in ("card", "list"):
        return [http(b"{}", "404 Not Found")]
    made = task(state, id=f"t-{name}")
    value = made if asked.operation in ("get", "cancel") else {"task": made}
    return [http(dumped({"jsonrpc": "2.0", "id": asked.id, "result": value}))]


def completes(name: str, asked: Asked) -> Answer:
    return reply(asked, name)


def asks_back(name: str, asked: Asked) -> Answer:
    is_answer = asked.operation == "send" and b"taskId" in asked.body
    return reply(asked, name, "COMPLETED" if is_answer else "INPUT_REQUIRED")


def busy(name: str, asked: Asked) -> Answer:
    is_sent = asked.operation == "send"
    return [http(b"", "503 Service Unavailable" if is_sent else "404 Not Found")]


def refuses(name: str, asked: Asked) -> Answer:
    is_sent = asked.operation == "send"
    return [http(b"", "429 Too Many Requests" if is_sent else "404 Not Found")]


def seen(peer: Peer) -> bytes:
    return b"".join(asked.head + asked.body for _, asked in peer.requests)


async def known(site: GatewaySite, peer: Peer, name: str, **more: Any) -> Any:
    """Register an agent of bob's that is online, with a card at hand."""
    url = f"{peer.url}/{name}"
    more = {"card": card(url)} | more
    registry = site.gateway.registry
    found = await registry.register(Registration(url=url, name=name, **more), Principal.read(BOBS))
    return await registry.heartbeat(found.id, "online", owner=Principal.read(BOBS))
