"""PyPI fasta2a as a client: methods of 0.3 with parts of 1.0, which have no `kind`."""

import uuid
from typing import Any

import httpx
import talking
from fasta2a.client import A2AClient, UnexpectedResponseError
from fasta2a.schema import Message, Part
from talking import same


def message(text: str, **more: Any) -> Message:
    parts = [Part(text=text)]
    return Message(role="user", kind="message", message_id=str(uuid.uuid4()), parts=parts, **more)


def text_of(task: Any) -> str:
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


class Fast:
    def __init__(self, place: talking.Place) -> None:
        self.place = place
        self.client = A2AClient(place.address)

    async def sent(self, text: str, **more: Any) -> Any:
        answer = await self.client.send_message(message(text, **more))
        if "error" in answer:
            raise AssertionError(answer["error"])
        result = answer["result"]
        # A task alone in the older shape, named in the newer one.
        return result.get("task", result)

    async def send(self) -> None:
        task = await self.sent("echo hello")
        same((task["status"]["state"], text_of(task)), ("completed", "hello"))

    async def get(self) -> None:
        task = await self.sent("echo hello")
        found = (await self.client.get_task(task["id"]))["result"]
        same((found["status"]["state"], text_of(found)), ("completed", "hello"))

    async def stream(self) -> None:
        said = message(f"chunks {talking.CHUNKS}")
        results = [one["result"] async for one in self.client.stream_message(said)]
        updates = [one.get("artifact_update", one) for one in results]
        texts = [text_of({"artifacts": [one["artifact"]]}) for one in updates if "artifact" in one]
        same("".join(texts), talking.WHOLE)

    async def ask(self) -> None:
        asked = await self.sent("ask")
        same(asked["status"]["state"], "input-required")
        to = {"task_id": asked["id"], "context_id": asked["context_id"]}
        done = await self.sent("Graz", **to)
        same((done["status"]["state"], text_of(done)), ("completed", "got Graz"))

    async def failure(self) -> None:
        same((await self.sent("fail"))["status"]["state"], "failed")

    async def unknown_task(self) -> None:
        same((await self.client.get_task(talking.UNKNOWN_TASK))["error"]["code"], -32001)

    async def auth(self) -> None:
        for token in (self.place.token, "wrong"):
            headers = {"Authorization": f"Bearer {token}"}
            http = httpx.AsyncClient(headers=headers, timeout=60)
            self.client = A2AClient(self.place.guarded, http_client=http)
            try:
                same(text_of(await self.sent("echo hello")), "hello")
            except UnexpectedResponseError as error:
                same((token, error.status_code), ("wrong", 401))
            else:
                same(token, self.place.token)


if __name__ == "__main__":
    talking.run(Fast)
