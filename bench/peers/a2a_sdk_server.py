"""The same agent on `a2a-sdk`, run in that package's own environment: the request handler,
task stores and JSON-RPC routes of its documentation on one uvicorn process.

    python a2a_sdk_server.py PORT [DATABASE_FILE | POSTGRESQL_URL [cluster]]
    python a2a_sdk_server.py PORT grpc:PORT

No file: the in-memory task store. `cluster`: the store and the event stream for several servers.
`grpc:PORT`: the in-memory store, and its gRPC handler on that port beside JSON-RPC.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from a2a.helpers import get_message_text, new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        text = get_message_text(message)
        skill = message.metadata["skillId"] if "skillId" in message.metadata else "echo"
        if skill == "reply":
            await event_queue.enqueue_event(new_text_message(text))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if skill == "echo":
            await updater.add_artifact([Part(text=text)], name="echo")
        elif skill == "hold":
            await updater.start_work()
            await asyncio.Event().wait()
        else:
            await stream(updater, text.split())
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def stream(updater: TaskUpdater, words: list[str]) -> None:
    """Send `COUNT SIZE [PER_SECOND]` chunks of one artifact."""
    count, size, *pace = (int(word) for word in words)
    chunk = "x" * size
    for i in range(count):
        await updater.add_artifact(
            [Part(text=chunk)],
            artifact_id="chunks",
            name="chunks",
            append=i > 0,
            last_chunk=i == count - 1,
        )
        if pace:
            await asyncio.sleep(1 / pace[0])


async def no_preparation() -> None:
    """The in-memory store needs none."""


def task_store(path: str | None) -> tuple[TaskStore, Callable[[], Awaitable[None]]]:
    """The store and what to await before serving: the database store makes its table on first
    use otherwise, and concurrent first requests fail on it."""
    if path is None:
        return InMemoryTaskStore(), no_preparation
    store = DatabaseTaskStore(create_async_engine(url_of(path)))
    return store, store.initialize


def url_of(path: str) -> str:
    """The address as SQLAlchemy has it."""
    if path.startswith("postgresql://"):
        return path.replace("postgresql://", "postgresql+asyncpg://", 1)
    return f"sqlite+aiosqlite:///{path}"


def cluster_store(path: str) -> tuple[Any, dict[str, Any], Callable[[], Awaitable[None]]]:
    """The store for several servers, what the handler needs beside it, and what to await."""
    from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore

    engine = create_async_engine(url_of(path))
    store = VersionedDatabaseTaskStore(engine)
    stream = DatabaseTaskEventStream(engine, create_table=False)
    return store, {"event_stream": stream}, store.initialize


@asynccontextmanager
async def rpcs(handler: Any, port: str) -> AsyncIterator[None]:
    """Serve gRPC as the library's documentation does."""
    import grpc.aio
    from a2a.server.request_handlers.grpc_handler import GrpcHandler
    from a2a.types import a2a_pb2_grpc

    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    yield
    await server.stop(0)


def main(port: int, path: str | None = None, mode: str = "") -> None:
    card = AgentCard(
        name="Echo",
        description="Echoes; answers directly; streams; waits.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes.", tags=["bench"])],
    )
    more: dict[str, Any] = {}
    rpc_port = path.removeprefix("grpc:") if path is not None and path.startswith("grpc:") else ""
    path = None if rpc_port else path
    if mode == "cluster" and path is not None:
        store, more, prepare = cluster_store(path)
    else:
        store, prepare = task_store(path)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await prepare()
        if not rpc_port:
            yield
            return
        async with rpcs(handler, rpc_port):
            yield

    handler = DefaultRequestHandler(
        agent_executor=Echo(), task_store=store, agent_card=card, **more
    )
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
    app = Starlette(routes=routes, lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
