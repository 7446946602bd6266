"""The server of PyPI fasta2a with a worker as its README shows one: it stores and never publishes.

A stream of such a task says that it completed and nothing else; what it made is read from the task.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from announcing import serve
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

Context = list[Message]


class Storing(Worker[Context]):
    async def run_task(self, params: TaskSendParams) -> None:
        task = await self.storage.load_task(params["id"])
        assert task is not None
        await self.storage.update_task(task["id"], state="working")
        context = await self.storage.load_context(task["context_id"]) or []
        context.extend(task.get("history", []))
        said = "".join(part.get("text", "") for part in params["message"]["parts"])
        word, _, rest = said.partition(" ")
        if word == "fail":
            await self.storage.update_task(task["id"], state="failed")
            return
        if word == "chunks":
            rest = "".join(f"c{i} " for i in range(int(rest)))
        message = Message(
            role="agent",
            parts=[Part(text=rest)],
            kind="message",
            message_id=str(uuid.uuid4()),
        )
        context.append(message)
        await self.storage.update_context(task["context_id"], context)
        await self.storage.update_task(
            task["id"],
            state="completed",
            new_messages=[message],
            new_artifacts=self.build_artifacts(rest),
        )

    async def cancel_task(self, params: TaskIdParams) -> None: ...

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return list(history)

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return [Artifact(artifact_id="result", parts=[Part(text=result)])]


def make_app(address: str) -> FastA2A:
    storage, broker = InMemoryStorage[Context](), InMemoryBroker()
    worker = Storing(storage=storage, broker=broker)

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, worker.run():
            yield

    return FastA2A(storage=storage, broker=broker, lifespan=lifespan, url=f"{address}/")


if __name__ == "__main__":
    serve(make_app)
