"""The agents of the translator's matrix: one behaviour, spoken in every dialect there is.

What all of them do with a text is written in `tests/peers/servers/playing.py`; those of houses do
what their dialect has words for.
"""

import importlib.util
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from harness.processes import ROOT
from harness.serving import hosting, serving

from dragoman import Agent
from tests.peers.hosts import hosting as hosting_peer

PEERS = ROOT / "tests" / "peers"

# What our server speaks as an agent: version and binding.
OURS = {
    "1.0-jsonrpc": ("1.0", "jsonrpc"),
    "1.0-rest": ("1.0", "rest"),
    "0.3-jsonrpc": ("0.3", "jsonrpc"),
    "0.3-rest": ("0.3", "rest"),
    "1.0-grpc": ("1.0", "grpc"),
    "0.3-grpc": ("0.3", "grpc"),
    "0.2-jsonrpc": ("0.2", "jsonrpc"),
}
QUESTION = "Which city?"


def player() -> Agent:
    """Return our agent that plays, made anew: each server has its own."""
    path = PEERS / "servers" / "dragoman_agent.py"
    spec = importlib.util.spec_from_file_location("player_of_the_matrix", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.agent


Answering = Callable[[str, str, Any], tuple[int, Any]]


def plain_app(answering: Answering) -> Any:
    """Return an ASGI app that answers JSON with JSON."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        sent, is_more = b"", True
        while is_more:
            piece = await receive()
            sent += piece.get("body", b"")
            is_more = piece.get("more_body", False)
        status, value = answering(scope["method"], scope["path"], json.loads(sent or b"{}"))
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": json.dumps(value).encode()})

    return serve


class NexusAgent:
    """An agent as NEXUS's document has it: two methods, flat tasks, parts of type and data."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.asked: list[Any] = []
        self.url = ""

    def answer(self, verb: str, path: str, body: Any) -> tuple[int, Any]:
        if verb != "POST":
            shown = {
                "name": "Nexus player",
                "description": "Does what the text says.",
                "url": self.url,
                "capabilities": {"streaming": False},
                "skills": [{"id": "play", "name": "Play", "description": "Plays."}],
                "authentication": {"schemes": []},
            }
            return (200, shown) if path == "/.well-known/agent.json" else (404, {})
        self.asked.append(body)
        answer = {"jsonrpc": "2.0", "id": body.get("id")}
        params = body["params"]
        if body["method"] == "tasks/get":
            found = self.tasks.get(params["id"])
            if found is None:
                return 200, answer | {"error": {"code": -32602, "message": "Task not found"}}
            return 200, answer | {"result": found}
        if body["method"] != "message/send":
            return 200, answer | {"error": {"code": -32601, "message": "Method not found"}}
        return 200, answer | {"result": self._played(params)}

    def _played(self, params: Any) -> dict[str, Any]:
        id = params.get("id") or f"n-{len(self.tasks)}"
        task = self.tasks.get(id)
        is_answer = task is not None and task["status"] == "input-required"
        if task is None:
            task = self.tasks[id] = {"id": id, "status": "working", "messages": [], "artifacts": []}
        elif not is_answer:
            return task
        task["messages"].append(params["message"])
        parts = params["message"]["parts"]
        said = "".join(part["data"] for part in parts if part["type"] == "text")
        word, _, rest = said.partition(" ")
        status, given, result = "completed", "Done.", [{"type": "text", "data": rest}]
        if is_answer:
            result = [{"type": "text", "data": f"got {said}"}]
        elif word == "ask":
            status, given, result = "input-required", QUESTION, []
        elif word == "cancelme":
            status, given, result = "working", "Working", []
        elif word == "file":
            result = [
                {"type": "file", "data": "AAEgYnl0ZXMg/w=="},
                {"type": "data", "data": {"city": "Graz", "tags": ["a", "b"]}},
            ]
        elif word == "describe":
            told = [f"{part['type']} {json.dumps(part['data'])}" for part in parts[1:]]
            result = [{"type": "text", "data": "\n".join(told)}]
        elif word == "chunks":
            text = "".join(f"c{i} " for i in range(int(rest)))
            result = [{"type": "text", "data": text}]
        task["status"] = status
        task["messages"].append({"role": "agent", "parts": [{"type": "text", "data": given}]})
        if result:
            task["artifacts"].append({"name": "result", "parts": result})
        return task


class CorvidAgent:
    """A corvid agent: a text in, and a task that is read until it has ended."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.asked: list[Any] = []
        self.url = ""

    def answer(self, verb: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/.well-known/agent-card.json":
            return 200, {
                "name": "Corvid player",
                "description": "Does what the text says.",
                "url": self.url,
                "version": "1.0.0",
                "supportedProtocols": ["a2a"],
                "capabilities": {"streaming": True},
                "skills": [{"id": "play", "name": "Play", "description": "Plays.", "tags": []}],
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
            }
        if verb == "POST" and path == "/a2a/tasks/send":
            self.asked.append(body)
            return 200, self._played(body["params"]["message"])
        task = self.tasks.get(path.rpartition("/")[2])
        if verb != "GET" or task is None:
            return 404, {"error": "Task not found"}
        if task["state"] == "working" and not task["isHeld"]:
            task["state"] = "completed"
            task["messages"].append(_said("agent", task["answer"]))
        return 200, task

    def _played(self, text: str) -> dict[str, Any]:
        word, _, rest = text.partition(" ")
        answer = rest
        if word == "chunks":
            answer = "".join(f"c{i} " for i in range(int(rest)))
        elif word == "describe":
            answer = text
        task: dict[str, Any] = {
            "id": f"c-{len(self.tasks)}",
            "state": "working",
            "messages": [_said("user", text)],
            "sessionId": None,
            "answer": answer,
            "isHeld": word == "cancelme",
        }
        self.tasks[task["id"]] = task
        return task


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "text": text}]}


@asynccontextmanager
async def nexus_agent() -> AsyncGenerator[NexusAgent]:
    agent = NexusAgent()
    async with hosting(plain_app(agent.answer), lifespan="off") as url:
        agent.url = url
        yield agent


@asynccontextmanager
async def corvid_agent() -> AsyncGenerator[CorvidAgent]:
    agent = CorvidAgent()
    async with hosting(plain_app(agent.answer), lifespan="off") as url:
        agent.url = url
        yield agent


@asynccontextmanager
async def our_agents() -> AsyncGenerator[dict[str, str]]:
    """Serve our agent once in each version and binding; the values are the addresses."""
    async with AsyncExitStack() as stack:
        served = {
            name: stack.enter_async_context(
                serving(player(), a2a_version=version, transport=binding, dialects="none")
            )
            for name, (version, binding) in OURS.items()
        }
        sites = [await one for one in served.values()]
        yield {name: site.url for name, site in zip(served, sites, strict=True)}


@contextmanager
def hosting_all(names: Collection[str], folder: Path) -> Iterator[dict[str, str]]:
    """Run servers of public libraries, started side by side; the values are their addresses."""

    def started(name: str) -> str:
        (own := folder / name).mkdir()
        return stack.enter_context(hosting_peer(name, own))

    with ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:
        yield dict(zip(names, pool.map(started, names), strict=True))
