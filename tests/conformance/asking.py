"""How a conformance suite asks, by raw HTTP or by grpcio with no library of A2A between, and the
agent that it asks."""

import asyncio
import importlib.util
import itertools
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import grpc.aio
import httpx
import pytest
from harness.processes import ROOT
from harness.rpcs import rpcs_to

from dragoman import Agent
from dragoman.dialects.errors import ERROR_INFO
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.statuses import DETAILS

TIMEOUT = 30.0
_numbers = itertools.count(1)

# Operation by its name in 1.0: verb and path of REST; fields of the path go there.
PATHS = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": (
        "DELETE",
        "/tasks/{taskId}/pushNotificationConfigs/{id}",
    ),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}


@dataclass(frozen=True)
class Answer:
    """What came back: a result, or the reason of an error as `google.rpc.ErrorInfo` has it."""

    status: int
    headers: httpx.Headers
    body: Any
    result: Any = None
    reason: str = ""
    code: int | None = None
    events: list[Any] = field(default_factory=list)

    @property
    def task(self) -> Any:
        return self.result["task"]


@dataclass(frozen=True)
class Wire:
    """An address, and what is spoken there: 1.0 over a binding, or an older version by JSON-RPC."""

    http: httpx.AsyncClient
    base: str
    binding: str = "jsonrpc"
    version: str = "1.0"

    async def ask(self, method: str, params: Any, **headers: str) -> Answer:
        """Make a call; a stream is read to its end."""
        async with self.asking(method, params, **headers) as response:
            return await answer(response)

    @asynccontextmanager
    async def asking(
        self, method: str, params: Any, **headers: str
    ) -> AsyncGenerator[httpx.Response]:
        given = {"A2A-Version": self.version} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        if self.binding == "jsonrpc":
            body = {"jsonrpc": "2.0", "id": next(_numbers), "method": method, "params": params}
            sent = self.http.stream("POST", f"{self.base}/a2a", json=body, headers=given)
        else:
            verb, path = PATHS[method]
            rest = dict(params)
            for name in [one for one in params if f"{{{one}}}" in path]:
                path = path.replace(f"{{{name}}}", rest.pop(name))
            more: dict[str, Any] = {"params": rest} if verb == "GET" else {"json": rest}
            if verb == "DELETE":
                more = {}
            sent = self.http.stream(verb, self.base + path, headers=given, **more)
        async with sent as response:
            yield response

    async def events(self, method: str, params: Any) -> AsyncGenerator[Any]:
        """Yield the events of a stream as they come."""
        async with self.asking(method, params) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    found = json.loads(line[6:])
                    yield found.get("result", found)

    async def send(self, what: str, **more: Any) -> Answer:
        """Send a message whose id and text both begin with what the agent is to do."""
        configuration = (
            {"configuration": more.pop("configuration")} if "configuration" in more else {}
        )
        return await self.ask("SendMessage", {"message": message(what, **more)} | configuration)


class GrpcWire(Wire):
    """An address at which 1.0 is spoken over gRPC. What its path leads to is a tenant there."""

    async def ask(self, method: str, params: Any, **headers: str) -> Answer:
        try:
            found = [one async for one in self._rpc(method, params, headers)]
        except grpc.aio.AioRpcError as error:
            about = {"status": _STATUSES.get(error.code().name, 500), "headers": _HEADERS}
            return Answer(**about, body=error.details(), reason=_reason(error), code=-1)
        if tables.V1_0.rpcs[method].operation.streams:
            return Answer(200, _HEADERS, found, events=found)
        (result,) = found
        if method == "ListTasks":
            # Protobuf has no other way to say that a text is empty.
            result.setdefault("nextPageToken", "")
        return Answer(200, _HEADERS, result, result=result)

    async def events(self, method: str, params: Any) -> AsyncGenerator[Any]:
        async for one in self._rpc(method, params, {}):
            yield one

    async def _rpc(
        self, method: str, params: Any, headers: Mapping[str, str]
    ) -> AsyncGenerator[Any]:
        url = urlsplit(self.base)
        tenant = {"tenant": url.path.strip("/")} if url.path.strip("/") else {}
        given = {"a2a-version": self.version} | {
            name.replace("_", "-").lower(): value for name, value in headers.items()
        }
        rpc = tables.V1_0.rpcs[method]
        async with rpcs_to(url.netloc) as rpcs:
            reply = shape_of(tables.V1_0, rpc.reply)
            async for data in rpcs.stream(method, {**params, **tenant}, [*given.items()], TIMEOUT):
                yield reply.decode(data)


_HEADERS = httpx.Headers({"content-type": "application/grpc"})
_STATUSES = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401}
BINDINGS: dict[str, type[Wire]] = {"jsonrpc": Wire, "rest": Wire, "grpc": GrpcWire}


def wire_to(http: httpx.AsyncClient, base: str, binding: str) -> Wire:
    """Return what speaks 1.0 over a binding."""
    return BINDINGS[binding](http, base, binding)


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return the reason that the details of a status have."""
    trailers: Any = error.trailing_metadata() or ()
    details = next((value for key, value in trailers if key == DETAILS), b"")
    status: Any = shape_of(tables.STATUS, "Status").parse(details)
    (info,) = [one.value for one in status.details if one.type_url == ERROR_INFO]
    found = shape_of(tables.STATUS, "ErrorInfo").decode(info)
    assert found["domain"] == "a2a-protocol.org"
    return found["reason"]


def message(what: str, **more: Any) -> dict[str, Any]:
    named = f"{what}-{next(_numbers)}"
    parts = [{"text": named}]
    return {"messageId": named, "role": "ROLE_USER", "parts": parts} | more


def old_message(what: str, **more: Any) -> dict[str, Any]:
    named = f"{what}-{next(_numbers)}"
    parts = [{"kind": "text", "text": named}]
    return {"kind": "message", "messageId": named, "role": "user", "parts": parts} | more


def conformance_agent(monkeypatch: pytest.MonkeyPatch, **switches: str) -> Agent:
    """Return the agent of the example, made anew under its switches."""
    for name, value in switches.items():
        monkeypatch.setenv(f"CONFORMANCE_{name.upper()}", value)
    path = ROOT / "examples" / "conformance_agent.py"
    spec = importlib.util.spec_from_file_location("conformance_agent_of_the_suites", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.agent


async def canceled_when_seen(
    wires: Sequence[Wire], subscribe: str, cancel: str, task: str
) -> list[list[Any]]:
    """Subscribe to a task, cancel it when every subscriber has seen it, and return their events."""
    waiting = asyncio.Barrier(len(wires))

    async def follow(wire: Wire) -> list[Any]:
        events: list[Any] = []
        async for one in wire.events(subscribe, {"id": task}):
            events.append(one)
            if len(events) == 1 and await waiting.wait() == 0:
                assert (await wire.ask(cancel, {"id": task})).code is None
        return events

    async with asyncio.timeout(TIMEOUT):
        return await asyncio.gather(*(follow(wire) for wire in wires))


async def answer(response: httpx.Response) -> Answer:
    """Read a response of either binding."""
    text = (await response.aread()).decode()
    about = {"status": response.status_code, "headers": response.headers}
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        events = [one.get("result", one) for one in found]
        return Answer(**about, body=text, events=events)
    body = json.loads(text) if text else None
    error = body.get("error") if isinstance(body, dict) else None
    if not error:
        is_rpc = isinstance(body, dict) and "jsonrpc" in body
        return Answer(**about, body=body, result=body["result"] if is_rpc else body)
    details = error.get("data") or error.get("details") or []
    reasons = [one["reason"] for one in details if isinstance(one, dict) and "reason" in one]
    return Answer(**about, body=body, reason=(reasons or [""])[0], code=error.get("code"))
