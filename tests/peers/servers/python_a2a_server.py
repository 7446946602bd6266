"""The server of PyPI python-a2a: `tasks/send` with parts that have a `type`, at its own path."""

import asyncio
import sys
import threading
from collections.abc import Sequence
from typing import Any

import playing
from flask import Flask
from python_a2a import A2AServer, Task, TaskState, TaskStatus
from python_a2a.server.http import create_flask_app
from werkzeug.serving import make_server


class Stage:
    """A task of this library: it has ended when its answer goes out."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.parts: list[dict[str, Any]] = []

    def rest(self, state: TaskState, said: str = "") -> None:
        message = {"role": "agent", "content": {"type": "text", "text": said}} if said else None
        self.task.status = TaskStatus(state=state, message=message)

    async def reply(self, text: str) -> None:
        raise NotImplementedError("the library answers with tasks only")

    async def work(self) -> None:
        pass

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        for part in parts:
            assert part.text is not None, "this server answers with text"
            self.parts.append({"type": "text", "text": part.text})

    async def complete(self) -> None:
        self.task.artifacts = [{"parts": self.parts}]
        self.rest(TaskState.COMPLETED)

    async def ask(self, question: str) -> None:
        self.rest(TaskState.INPUT_REQUIRED, question)

    async def fail(self, reason: str) -> None:
        self.rest(TaskState.FAILED, reason)

    async def canceled(self) -> None:
        raise NotImplementedError("a task has ended when it can be named")


class Player(A2AServer):
    # A task is made anew for every message.
    asked: set[str]

    def handle_task(self, task: Task) -> Task:
        message = task.message or {}
        # Its own client sends a content, others parts.
        contents = message.get("parts") or [message.get("content", {})]
        parts = [playing.Part(text=content.get("text", "")) for content in contents]
        stage = Stage(task)
        asyncio.run(playing.play(parts, stage, answering=task.id in self.asked))
        if task.status.state is TaskState.INPUT_REQUIRED:
            self.asked.add(task.id)
        return task


def make_app(address: str) -> Flask:
    player = Player(name="Player", description="Does what the text says.", url=address)
    player.asked = set()
    return create_flask_app(player)


if __name__ == "__main__":
    # Any app will do until the address is known.
    server = make_server("127.0.0.1", 0, Flask("waiting"), threaded=True)
    address = f"http://127.0.0.1:{server.port}"
    server.app = make_app(address)
    print(f"Ready: {address}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
