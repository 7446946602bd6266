"""Are replies what they should be? Samples are taken apart after a round, so that looking costs no
throughput; what is wrong counts as an error of the round."""

import json
from typing import Any

from . import wire
from .calls import Calls, Outcome, call
from .servers import Server

PAGE = 50


async def echoed(server: Server, outcome: Outcome) -> None:
    """Each sample holds a completed task with the text as its artifact.

    A server that does not block is asked for the task afterwards instead.
    """
    if not server.kind.dialect.blocking:
        requests = wire.gets(server.kind.dialect, outcome.tasks[-50:] or [b""])
        calls = Calls(requests, server.kind.dialect.completed, count=50)
        later = await call(server.port, calls, connections=1)
        if later.errors:
            outcome.fail(f"accepted but not completed: {later.error}")
        return
    for token, body in outcome.samples:
        artifacts = json.loads(body)["result"]["task"].get("artifacts", [])
        expect(outcome, text(artifacts[-1:]), token)


async def replied(server: Server, outcome: Outcome) -> None:
    for token, body in outcome.samples:
        expect(outcome, text([json.loads(body)["result"]["message"]]), token)


async def got(server: Server, outcome: Outcome) -> None:
    for token, body in outcome.samples:
        task = json.loads(body)["result"]
        if task["id"].encode() != token or not text(task["artifacts"]).startswith("echo "):
            outcome.fail(f"not the task asked for: {body[:200]!r}")


async def listed(server: Server, outcome: Outcome) -> None:
    for _, body in outcome.samples:
        if (length := len(json.loads(body)["result"]["tasks"])) != PAGE:
            outcome.fail(f"a page of {length} tasks instead of {PAGE}")


def text(holders: list[Any]) -> str:
    return "".join(part.get("text", "") for holder in holders for part in holder["parts"])


def expect(outcome: Outcome, found: str, token: bytes) -> None:
    if found != f"echo {token.decode()}":
        outcome.fail(f"the echo of {token!r} is {found[:100]!r}")
