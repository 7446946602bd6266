"""The same agent on `fasta2a`, run in that package's own environment: the in-memory storage
and broker of its documentation and one worker, on one uvicorn process.

    python fasta2a_server.py PORT
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage


class Echo(Worker[list[Message]]):
    async def run_task(self, params: TaskSendParams) -> None:
        task_id, message = params["id"], params["message"]
        await self.storage.update_task(task_id, state="working")
        text = message["parts"][0].get("text", "")
        skill = message.get("metadata", {}).get("skillId", "echo")
        if skill == "hold":
            await asyncio.Event().wait()
        elif skill != "echo":
            text = await self.stream(params, text.split())
        await self.storage.update_task(
            task_id, state="completed", new_artifacts=self.build_artifacts(text)
        )

    async def stream(self, params: TaskSendParams, words: list[str]) -> str:
        """Send `COUNT SIZE [PER_SECOND]` chunks of one artifact; return the whole."""
        count, size, *pace = (int(word) for word in words)
        chunk = "x" * size
        for i in range(count):
            await self.publish_artifact(
                params["id"],
                params["context_id"],
                Artifact(artifact_id="chunks", name="chunks", parts=[Part(text=chunk)]),
                append=i > 0,
                last_chunk=i == count - 1,
            )
            if pace:
                await asyncio.sleep(1 / pace[0])
        return chunk * count

    async def cancel_task(self, params: TaskIdParams) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return list(history)

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return [Artifact(artifact_id=str(uuid.uuid4()), name="echo", parts=[Part(text=result)])]


storage = InMemoryStorage[list[Message]]()
broker = InMemoryBroker()
worker = Echo(storage=storage, broker=broker)


@asynccontextmanager
async def lifespan(app: FastA2A) -> AsyncIterator[None]:
    async with app.task_manager, worker.run():
        yield


if __name__ == "__main__":
    port = int(sys.argv[1])
    app = FastA2A(storage=storage, broker=broker, lifespan=lifespan, url=f"http://127.0.0.1:{port}")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
