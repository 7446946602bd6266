"""Tasks and events as callers of each version and binding get them, with the command that does.

The dialects are pure, so what is shown here is what the endpoints send, byte for byte but for
spaces.
"""

import shlex
from typing import Any, cast
from urllib.parse import quote

import msgspec

from dragoman.console.api import ApiFailed
from dragoman.console.visit import Visit
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import A2AError
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.record import Recorded
from dragoman.transports import rest

_V1 = (b"a2a-version", b"1.0")


class DialectView(msgspec.Struct, frozen=True):
    """One version and binding."""

    name: str
    dialect: Dialect
    is_rest: bool

    def event(self, stored: dict[str, Any], position: int) -> Any:
        """Return an event of a stream; None: its callers do not see it."""
        recorded = Recorded.of_body(position, msgspec.json.encode(stored))
        if not recorded.is_public:
            return None
        return self._enveloped(self.dialect.encode_event(recorded))

    def task(self, task: dict[str, Any]) -> Any:
        """Return the answer to one who reads the task."""
        operation = ops.GetTask(task_id=TaskId(task["id"]))
        reply = V1_0.decode_reply(operation, task)
        return self._enveloped(self.dialect.encode_reply(operation, reply))

    def _enveloped(self, body: bytes) -> Any:
        value = msgspec.json.decode(body)
        return value if self.is_rest else {"jsonrpc": "2.0", "id": 1, "result": value}

    def curl(self, origin: str, task: dict[str, Any]) -> str:
        """Return the command that follows the task."""
        operation: ops.Operation = ops.SubscribeToTask(task_id=TaskId(task["id"]))
        if task["isEnded"]:
            operation = ops.GetTask(task_id=TaskId(task["id"]))
        base = f"{origin}/agents/{quote(task['agent'])}"
        words = ["curl", "-N"] if operation.streams else ["curl"]
        version = ["-H", f"A2A-Version: {self.dialect.version}"]
        if self.is_rest:
            asked = rest.request(self.dialect, operation)
            words += ["-X", asked.verb] if asked.verb != "GET" else []
            return shlex.join([*words, *version, base + asked.path])
        method, params = self.dialect.encode_request(operation)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        text = msgspec.json.encode(body).decode()
        kind = ["-H", "Content-Type: application/json"]
        return shlex.join([*words, *version, *kind, "-d", text, base])


class GrpcView(DialectView, frozen=True):
    """gRPC of 1.0, where it is served: its messages as JSON, which is that of the REST binding."""

    address: str = ""
    tenant: str = ""

    def curl(self, origin: str, task: dict[str, Any]) -> str:
        """Return the command that follows the task; the server describes its rpcs itself."""
        asks = ops.GetTask if task["isEnded"] else ops.SubscribeToTask
        method, params = V1_0.encode_request(asks(task_id=TaskId(task["id"])))
        if self.tenant:
            params = {**params, "tenant": self.tenant}
        return self.command(origin, method, params)

    def command(self, origin: str, method: str, params: dict[str, Any]) -> str:
        """Return the command that calls an rpc."""
        plain = ["-plaintext"] if origin.startswith("http:") else []
        words = ["grpcurl", *plain, "-H", "a2a-version: 1.0"]
        text = msgspec.json.encode(params).decode()
        return shlex.join([*words, "-d", text, self.address, f"lf.a2a.v1.A2AService/{method}"])


def grpc_view(card: dict[str, Any]) -> GrpcView | None:
    """Return the view of callers by gRPC, if the card names an address for them."""
    for place in card.get("supportedInterfaces", []):
        if (place.get("protocolBinding"), place.get("protocolVersion")) == ("GRPC", "1.0"):
            name, tenant = "1.0 gRPC, as JSON", place.get("tenant", "")
            return GrpcView(name, V1_0, is_rest=True, address=place["url"], tenant=tenant)
    return None


def views_of(card: dict[str, Any]) -> dict[str, DialectView]:
    """Return the versions and bindings that callers of an agent may use."""
    grpc = grpc_view(card)
    return VIEWS if grpc is None else {**VIEWS, "1.0-grpc": grpc}


VIEWS: dict[str, DialectView] = {
    "1.0": DialectView("1.0 JSON-RPC", V1_0, is_rest=False),
    "1.0-rest": DialectView("1.0 REST", V1_0, is_rest=True),
    "0.3": DialectView("0.3 JSON-RPC", V0_3, is_rest=False),
    "0.3-rest": DialectView("0.3 REST", V0_3_PROTO, is_rest=True),
    "0.2": DialectView("0.2 JSON-RPC", V0_2, is_rest=False),
}


def shown_event(item: dict[str, Any], view: DialectView | None) -> dict[str, Any]:
    """Return an event as it is drawn."""
    if view is None:
        return {**item, "shown": item["event"]}
    try:
        return {**item, "shown": view.event(item["event"], item["position"])}
    except (A2AError, ValueError):
        return {**item, "shown": None}


async def send(visit: Visit, agent: str, body: dict[str, Any]) -> str:
    """Send a message to an agent as any caller would; return the id of its task."""
    path = f"/agents/{agent}/message:send"
    answer = await visit.api.send("POST", path, body=body, headers=[_V1])
    if answer.status != 200:
        error: Any = answer.object.get("error")
        told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        raise ApiFailed(answer.status or 500, str(told.get("message") or "It was refused."))
    task: Any = answer.object.get("task")
    if task is None:
        raise ApiFailed(409, "The agent answered with a message, and made no task.")
    return str(task["id"])
