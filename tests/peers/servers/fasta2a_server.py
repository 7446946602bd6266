"""The server of PyPI fasta2a: 1.0 over JSON-RPC, with its storage and broker in memory.

A worker does one thing at a time, a cancel among them, so there are several. With the argument
`storing` its results are stored and not published, as in the library's own example: streams end
without them.
"""

import asyncio
import base64
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import playing
from announcing import serve
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

WORKERS = 8


def plain(part: Part) -> playing.Part:
    raw = base64.b64decode(part["raw"]) if "raw" in part else None
    return playing.Part(
        part.get("text"),
        raw,
        part.get("data"),
        part.get("filename", ""),
        part.get("media_type", ""),
    )


def theirs(part: playing.Part) -> Part:
    if part.raw is not None:
        raw = base64.b64encode(part.raw).decode()
        return Part(raw=raw, filename=part.filename, media_type=part.media_type)
    return Part(data=part.data) if part.text is None else Part(text=part.text)


class Stage:
    """A task of this library: what is published reaches streams, what is stored reaches readers."""

    def __init__(self, worker: "Player", params: TaskSendParams) -> None:
        self.worker = worker
        self.task_id, self.context_id = params["id"], params["context_id"]
        self.parts: list[Part] = []

    async def store(self, state: Any, artifacts: list[Artifact] | None = None) -> None:
        await self.worker.storage.update_task(self.task_id, state=state, new_artifacts=artifacts)

    async def reply(self, text: str) -> None:
        raise NotImplementedError("the library answers with tasks only")

    async def work(self) -> None:
        await self.store("working")
        await self.worker.publish_status(self.task_id, self.context_id, "working")

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        given = [theirs(part) for part in parts]
        self.parts += given
        if "storing" in sys.argv:
            return
        await self.worker.publish_artifact(
            self.task_id,
            self.context_id,
            Artifact(artifact_id="result", parts=given),
            append=append,
            last_chunk=last,
        )

    async def complete(self) -> None:
        await self.store("completed", [Artifact(artifact_id="result", parts=self.parts)])

    async def ask(self, question: str) -> None:
        message = Message(
            role="agent", parts=[Part(text=question)], message_id=str(uuid.uuid4()), kind="message"
        )
        await self.store("input-required")
        await self.worker.publish_status(self.task_id, self.context_id, "input-required", message)

    async def fail(self, reason: str) -> None:
        raise RuntimeError(reason)

    async def canceled(self) -> None:
        await self.worker.canceled.setdefault(self.task_id, asyncio.Event()).wait()


class Player(Worker[list[Message]]):
    canceled: dict[str, asyncio.Event]

    async def run_task(self, params: TaskSendParams) -> None:
        parts = [plain(part) for part in params["message"]["parts"]]
        await playing.play(parts, Stage(self, params), answering=False)

    async def cancel_task(self, params: TaskIdParams) -> None:
        # The library does not look whether there is such a task, and loses the worker if not.
        if await self.storage.load_task(params["id"]) is None:
            return
        await self.storage.update_task(params["id"], state="canceled")
        self.canceled.setdefault(params["id"], asyncio.Event()).set()

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return list(history)

    def build_artifacts(self, result: Any) -> list[Artifact]:
        raise NotImplementedError("the stage makes them")


def make_app(address: str) -> FastA2A:
    storage, broker = InMemoryStorage[list[Message]](), InMemoryBroker()
    player = Player(storage=storage, broker=broker)
    player.canceled = {}

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, AsyncExitStack() as workers:
            for _ in range(WORKERS):
                await workers.enter_async_context(player.run())
            yield

    return FastA2A(storage=storage, broker=broker, lifespan=lifespan, url=f"{address}/")


if __name__ == "__main__":
    serve(make_app)
