"""`kill -9` with posts on their way: whoever serves the file next delivers every one of them."""

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from harness.processes import running
from harness.serving import Site, client, message
from harness.waiting import WAIT, within
from standardwebhooks.webhooks import Webhook

from dragoman.cli.operating.push import push as command
from dragoman.testing.processes import ServerProcess
from proof.wire.receivers import Post, Receiver, Treatment

OK, SILENCE = Treatment.OK, Treatment.SILENCE
TASKS = 10
ROUNDS = 2
# Whoever looks after the dead does so several times within a lease.
SOON = {"DRAGOMAN_LEASE": "1"}

AGENT = """
import asyncio
from dragoman import Agent

agent = Agent("Crash", "Is killed.")

@agent.skill
async def count(text: str):
    for n in range(5):
        await asyncio.sleep(0.005)
        yield f"{n} "
"""


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str | Path, ...]:
    (tmp_path / "crash_agent.py").write_text(AGENT)
    store = ("--store", tmp_path / "tasks.db")
    return ("serve", "crash_agent.py", "--listen", "127.0.0.1:0", "--allow-private", *store)


def wanting(url: str) -> dict[str, Any]:
    return {"returnImmediately": True, "taskPushNotificationConfig": {"url": url, "token": "t"}}


async def send(http: httpx.AsyncClient, said: dict[str, Any], url: str) -> str:
    body = {"message": said, "configuration": wanting(url)}
    answer = await http.post("/message:send", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]["id"]


def task_of(post: Post) -> str:
    ((_, value),) = json.loads(post.body).items()
    return value.get("taskId") or value["id"]


def is_end(post: Post) -> bool:
    return b"TASK_STATE_COMPLETED" in post.body


def has_ended(receiver: Receiver, tasks: set[str]) -> bool:
    return tasks <= {task_of(post) for post in receiver.taken if is_end(post)}


async def shown(server: ServerProcess, task: str) -> list[int]:
    """Return the places of all events of a task, as a reader from the first one on sees them."""
    async with client(server.url) as http:
        frames = await Site(server.url, http).events(
            "SubscribeToTask", {"id": task}, headers={"Last-Event-ID": "1"}
        )
    return [int(frame.id or 0) for frame in frames]


async def check(server: ServerProcess, receiver: Receiver, tasks: set[str], secret: str) -> None:
    """Hold every task's posts to its log: all of them, in order, each signed."""
    for task in tasks:
        posts = [post for post in receiver.taken if task_of(post) == task]
        first: dict[str, int] = {}
        for post in posts:
            Webhook(secret).verify(post.body, post.headers)
            first.setdefault(post.headers["webhook-id"], int(post.headers["x-dragoman-event"]))
        # One may come twice, when the answer to it was lost; none is left out or overtaken.
        assert list(first.values()) == await shown(server, task)


def secret_of(store: str | Path) -> str:
    return CliRunner().invoke(command, ["secret", "--store", str(store)]).stdout.strip()


@pytest.mark.requirement("T-41")
async def test_a_killed_server_leaves_its_posts_to_the_next(
    arguments: tuple[str | Path, ...], tmp_path: Path
) -> None:
    # All that the first one posts is on its way when it dies.
    async with Receiver([SILENCE] * TASKS + [OK]) as receiver:
        with running(*arguments, cwd=tmp_path) as server:
            async with client(server.ready()) as http:
                tasks = {await send(http, message("go"), receiver.url) for _ in range(TASKS)}
            await receiver.until(lambda: len(receiver.posts) == TASKS)
            server.process.kill()
            server.process.wait(WAIT)
        assert receiver.taken == []
        with running(*arguments, cwd=tmp_path) as server:
            server.ready()
            await receiver.until(lambda: has_ended(receiver, tasks))
            await check(server, receiver, tasks, secret_of(arguments[-1]))
            assert server.stop() == 0
    # A receiver knows the repetition by its id.
    lost = {post.headers["webhook-id"] for post in receiver.posts[:TASKS]}
    assert lost <= {post.headers["webhook-id"] for post in receiver.taken}


async def test_servers_killed_while_they_post_lose_nothing(
    arguments: tuple[str | Path, ...], tmp_path: Path
) -> None:
    chance = random.Random(11)
    tasks: set[str] = set()

    async def keep_sending(http: httpx.AsyncClient, url: str) -> None:
        with contextlib.suppress(httpx.TransportError):
            while True:
                tasks.add(await send(http, message("go"), url))

    async with Receiver([OK]) as receiver:
        for _ in range(ROUNDS):
            with running(*arguments, cwd=tmp_path) as server:
                async with client(server.ready()) as http:
                    sending = [
                        asyncio.ensure_future(keep_sending(http, receiver.url)) for _ in range(2)
                    ]
                    enough = len(receiver.posts) + chance.randrange(40, 160)
                    await receiver.until(lambda enough=enough: len(receiver.posts) >= enough)
                    server.process.kill()
                    await within(asyncio.gather(*sending))
        with running(*arguments, cwd=tmp_path) as server:
            server.ready()
            await receiver.until(lambda: has_ended(receiver, tasks))
            await check(server, receiver, tasks, secret_of(arguments[-1]))
            assert server.stop() == 0
    assert len(tasks) >= ROUNDS


async def test_another_process_takes_over_the_posts_of_one_that_was_killed(
    arguments: tuple[str | Path, ...], tmp_path: Path
) -> None:
    async with Receiver([SILENCE] * TASKS + [OK]) as receiver:
        with (
            running(*arguments, cwd=tmp_path, env=SOON) as one,
            running(*arguments, cwd=tmp_path, env=SOON) as other,
        ):
            other.ready()
            async with client(one.ready()) as http:
                tasks = {await send(http, message("go"), receiver.url) for _ in range(TASKS)}
            await receiver.until(lambda: len(receiver.posts) == TASKS)
            one.process.kill()
            one.process.wait(WAIT)
            await receiver.until(lambda: has_ended(receiver, tasks))
            await check(other, receiver, tasks, secret_of(arguments[-1]))
            assert other.stop() == 0
