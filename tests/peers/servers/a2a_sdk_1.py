"""The server of PyPI a2a-sdk 1.x: 1.0 over all bindings, and its 0.3 layer over them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import playing
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import (
    new_data_part,
    new_raw_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, a2a_pb2_grpc
from announcing import free_port, serve
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette


def plain(part: Part) -> playing.Part:
    kind = part.WhichOneof("content")
    value: Any = MessageToDict(part.data) if kind == "data" else getattr(part, str(kind))
    return playing.Part(**{str(kind): value}, filename=part.filename, media_type=part.media_type)


def theirs(part: playing.Part) -> Part:
    if part.raw is not None:
        return new_raw_part(part.raw, part.media_type, part.filename)
    return new_data_part(part.data) if part.text is None else new_text_part(part.text)


class Stage:
    """A task of this library."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        self.context, self.queue = context, queue
        self.begun: TaskUpdater | None = None

    async def updater(self) -> TaskUpdater:
        if self.begun is None:
            task = self.context.current_task
            if task is None:
                task = new_task_from_user_message(self.context.message)
                await self.queue.enqueue_event(task)
            self.begun = TaskUpdater(self.queue, task.id, task.context_id)
        return self.begun

    async def reply(self, text: str) -> None:
        await self.queue.enqueue_event(new_text_message(text))

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
        await (await self.updater()).requires_input(new_text_message(question))

    async def fail(self, reason: str) -> None:
        await (await self.updater()).failed(new_text_message(reason))

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


def make_app(address: str) -> Starlette:
    rpc_port = free_port()
    card = AgentCard(
        name="Player",
        description="Does what the text says.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=f"{address}{path}", protocol_binding=binding, protocol_version=version
            )
            for version in ("1.0", "0.3")
            for path, binding in (("/rpc", "JSONRPC"), ("/rest", "HTTP+JSON"))
        ]
        + [
            AgentInterface(
                url=f"127.0.0.1:{rpc_port}", protocol_binding="GRPC", protocol_version=version
            )
            for version in ("1.0", "0.3")
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="play", name="Play", description="Plays.", tags=["test"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Player(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=InMemoryPushNotificationConfigStore(),
    )

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        rpcs = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), rpcs)
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), rpcs)
        rpcs.add_insecure_port(f"127.0.0.1:{rpc_port}")
        await rpcs.start()
        yield
        await rpcs.stop(0)

    return Starlette(
        lifespan=life,
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
            *create_rest_routes(handler, enable_v0_3_compat=True, path_prefix="/rest"),
        ],
    )


if __name__ == "__main__":
    serve(make_app)
