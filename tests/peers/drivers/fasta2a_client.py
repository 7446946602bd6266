"""PyPI fasta2a's client: it sends, streams and reads a task, and has no more than that."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import scenarios as plain
from fasta2a.client import A2AClient


def message(message_id: str, task: str = "", context: str = "") -> dict[str, Any]:
    said: dict[str, Any] = {
        "role": "user",
        "parts": [{"text": "hello"}],
        "message_id": message_id,
    }
    if task:
        said["task_id"] = task
    if context:
        said["context_id"] = context
    return said


def plain_part(part: Any) -> plain.Part:
    return plain.Part(
        part.get("text"),
        base64.b64decode(part["raw"]) if "raw" in part else None,
        part.get("url"),
        part.get("data"),
        part.get("filename", ""),
        part.get("media_type", ""),
    )


def text_of(message: Any) -> str:
    return "".join(part.get("text", "") for part in (message or {}).get("parts", []))


def plain_message(message: Any) -> plain.Message:
    return plain.Message(message["message_id"], message["role"], text_of(message))


def plain_artifact(artifact: Any) -> plain.Artifact:
    parts = [plain_part(part) for part in artifact["parts"]]
    return plain.Artifact(artifact["artifact_id"], parts)


def plain_task(task: Any) -> plain.Task:
    return plain.Task(
        task["id"],
        task["context_id"],
        task["status"]["state"],
        text_of(task["status"].get("message")),
        [plain_message(message) for message in task.get("history", [])],
        [plain_artifact(artifact) for artifact in task.get("artifacts", [])],
    )


def plain_event(result: Any) -> plain.Event:
    """Return what is in the wrapper; the library knows no other shape."""
    ((name, value),) = result.items()
    if name == "task":
        return plain_task(value)
    if name == "message":
        return plain_message(value)
    if name == "status_update":
        status = value["status"]
        return plain.Status(value["task_id"], status["state"], text_of(status.get("message")))
    chunk = plain_artifact(value["artifact"])
    return plain.Chunk(
        value["task_id"], chunk, value.get("append", False), value.get("last_chunk", False)
    )


def result_of(response: Any) -> Any:
    assert "error" not in response, response["error"]
    return response["result"]


class Fasta2a:
    """The library's client, at the address that the card names."""

    lists = lists_receivers = shows_ended = False
    extended_card_off = ""

    def __init__(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def client(self) -> AsyncIterator[A2AClient]:
        async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
            yield A2AClient(self.address, http_client=http, fetch_card=True)

    async def card(self) -> plain.Card:
        async with self.client() as client:
            card = client.agent_card
        assert card is not None
        offered = [
            (one["protocol_binding"], one["protocol_version"])
            for one in card["supported_interfaces"]
        ]
        streaming = card["capabilities"].get("streaming", False)
        return plain.Card(card["name"], len(card["skills"]), streaming, offered)

    async def send(
        self, message_id: str, *, task: str = "", context: str = "", wait: bool = True
    ) -> plain.Task | plain.Message:
        configuration: Any = {"accepted_output_modes": [], "blocking": wait}
        async with self.client() as client:
            said: Any = message(message_id, task, context)
            response = await client.send_message(said, configuration=configuration)
        reply = plain_event(result_of(response))
        assert isinstance(reply, plain.Task | plain.Message), reply
        return reply

    @asynccontextmanager
    async def stream(
        self, message_id: str, *, task: str = ""
    ) -> AsyncIterator[AsyncIterator[plain.Event]]:
        async with self.client() as client:
            said: Any = message(message_id, task)
            events = client.stream_message(said)
            yield (plain_event(result_of(event)) async for event in events)

    async def get(self, task: str, history: int | None = None) -> plain.Task:
        async with self.client() as client:
            return plain_task(result_of(await client.get_task(task)))


@asynccontextmanager
async def connect(address: str, version: str) -> AsyncIterator[Any]:
    yield Fasta2a(address)


if __name__ == "__main__":
    plain.main(connect)
