# type: ignore  # It runs in the peer's environment; nothing it imports is in ours.
"""The agent under test on `a2a-sdk`, run in that package's own environment: the request handler,
database task store and JSON-RPC routes of its documentation on one uvicorn process.

    python peer_server.py DATABASE_FILE      prints `Ready: URL` once it listens on a free port
"""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager

import uvicorn
from a2a.helpers import get_message_text, new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette


class Skills(AgentExecutor):
    """`steps` and `flood`, as in the agent they stand beside."""

    async def execute(self, context, event_queue):
        message = context.message
        words = [int(word) for word in get_message_text(message).split()]
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        is_flood = message.metadata["skillId"] == "flood"
        count, number = words[:2]
        for n in range(count):
            text = f"{n} ".ljust(number, "x") if is_flood else f"1.{n} "
            await updater.add_artifact(
                [Part(text=text)], artifact_id="chunks", append=n > 0, last_chunk=n == count - 1
            )
            await asyncio.sleep(0 if is_flood else number / 1000)
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class Server(uvicorn.Server):
    """Says when it listens."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            print(f"Ready: http://127.0.0.1:{sockets[0].getsockname()[1]}", flush=True)


def main(path):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    card = AgentCard(
        name="Proof",
        description="Is killed, cut off and asked twice.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="steps", name="steps", description="Works in steps.", tags=["proof"])
        ],
    )
    store = DatabaseTaskStore(create_async_engine(f"sqlite+aiosqlite:///{path}"))

    @asynccontextmanager
    async def lifespan(app):
        # Otherwise the table is made on first use, and concurrent first requests fail on it.
        await store.initialize()
        yield

    handler = DefaultRequestHandler(agent_executor=Skills(), task_store=store, agent_card=card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
    app = Starlette(routes=routes, lifespan=lifespan)
    config = uvicorn.Config(app, log_level="warning")
    asyncio.run(Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main(sys.argv[1])
