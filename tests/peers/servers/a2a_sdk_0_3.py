"""The server of PyPI a2a-sdk 0.3.x: 0.3 over all bindings, one store under them."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import playing
from a2a.grpc import a2a_pb2_grpc
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AFastAPIApplication, A2ARESTFastAPIApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    DataPart,
    FilePart,
    FileWithBytes,
    Part,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task
from announcing import free_port, serve
from fastapi import FastAPI


def plain(part: Part) -> playing.Part:
    match part.root:
        case TextPart(text=text):
            return playing.Part(text=text)
        case DataPart(data=data):
            return playing.Part(data=data)
        case FilePart(file=FileWithBytes() as file):
            raw = base64.b64decode(file.bytes, validate=True)
            return playing.Part(raw=raw, filename=file.name or "", media_type=file.mime_type or "")
        case other:
            raise ValueError(f"a part of no kind that is played: {other!r}")


def theirs(part: playing.Part) -> Part:
    if part.raw is not None:
        encoded = base64.b64encode(part.raw).decode()
        file = FileWithBytes(bytes=encoded, name=part.filename, mime_type=part.media_type)
        return Part(FilePart(file=file))
    return Part(DataPart(data=part.data) if part.text is None else TextPart(text=part.text))


class Stage:
    """A task of this library."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        self.context, self.queue = context, queue
        self.begun: TaskUpdater | None = None

    async def updater(self) -> TaskUpdater:
        if self.begun is None:
            task = self.context.current_task
            if task is None:
                task = new_task(self.context.message)
                await self.queue.enqueue_event(task)
            self.begun = TaskUpdater(self.queue, task.id, task.context_id)
        return self.begun

    async def reply(self, text: str) -> None:
        await self.queue.enqueue_event(new_agent_text_message(text))

    async def work(self) -> None:
        await (await self.updater()).start_work()

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        updater = await self.updater()
        given = [theirs(part) for part in parts]
        await updater.add_artifact(given, "result", append=append, last_chunk=last)

    async def complete(self) -> None:
        await (await self.updater()).complete()

    async def ask(self, question: str) -> None:
        await (await self.updater()).requires_input(new_agent_text_message(question), final=True)

    async def fail(self, reason: str) -> None:
        await (await self.updater()).failed(new_agent_text_message(reason))

    async def canceled(self) -> None:
        # The library cancels the executor's own task.
        await asyncio.Event().wait()


class Player(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        parts = [plain(part) for part in context.message.parts]
        stage = Stage(context, event_queue)
        await playing.play(parts, stage, answering=context.current_task is not None)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app(address: str) -> FastAPI:
    rpc_port = free_port()
    card = AgentCard(
        name="Player",
        description="Does what the text says.",
        version="1.0.0",
        url=f"{address}/rpc",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            AgentInterface(url=address, transport="HTTP+JSON"),
            AgentInterface(url=f"127.0.0.1:{rpc_port}", transport="GRPC"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="play", name="Play", description="Plays.", tags=["test"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Player(),
        task_store=InMemoryTaskStore(),
        push_config_store=InMemoryPushNotificationConfigStore(),
    )

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        rpcs = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(card, handler), rpcs)
        rpcs.add_insecure_port(f"127.0.0.1:{rpc_port}")
        await rpcs.start()
        yield
        await rpcs.stop(0)

    app = A2ARESTFastAPIApplication(card, handler).build(lifespan=life)
    A2AFastAPIApplication(card, handler).add_routes_to_app(app, rpc_url="/rpc")
    return app


if __name__ == "__main__":
    serve(make_app)
