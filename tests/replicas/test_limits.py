"""Limits of one caller over three replicas: as many are let in as one process would let in."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.databases import Databases
from harness.serving import V1, message
from harness.waiting import within

from dragoman.stores.postgres.connections import Addresses, DatabaseConnections
from tests.replicas.replicas import Replicas, replicas

RATE = 10
# Seconds between the requests of a caller that stays below it.
PACE = 1.2 / RATE
SECONDS = 5.0
QUOTA = 60
RUNNING = 8
STREAMS = 5
STORED = 4_000_000
TOKENS = {name: f"{name}-token-0123456789" for name in ("alice", "bob", "carol", "dave", "erin")}


@pytest.fixture(scope="module")
async def three(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    folder = tmp_path_factory.mktemp("limits")
    store = await asyncio.to_thread(databases.make)
    env = {
        "DRAGOMAN_RATE_LIMIT": f"{RATE}/s",
        "DRAGOMAN_QUOTA": f"{QUOTA}/d",
        "DRAGOMAN_MAX_TASKS_PER_CALLER": f"{RUNNING}",
        "DRAGOMAN_MAX_STREAMS_PER_CALLER": f"{STREAMS}",
    }
    async with replicas(folder, store, 3, "--auth-tokens", tokens(folder), **env) as three:
        yield three


def tokens(folder: Path) -> Path:
    path = folder / "tokens.toml"
    path.touch(mode=0o600)
    path.write_text("".join(f'[{name}]\ntoken = "{token}"\n' for name, token in TOKENS.items()))
    return path


def bearer(name: str) -> dict[str, str]:
    return {**V1, "authorization": f"Bearer {TOKENS[name]}"}


@pytest.mark.parametrize(("name", "weights"), [("alice", (1, 1, 1)), ("bob", (8, 1, 1))])
async def test_a_caller_that_asks_three_times_as_often_gets_its_rate(
    three: Replicas, name: str, weights: tuple[int, ...]
) -> None:
    answers: Counter[int] = Counter()
    began = time.monotonic()

    async def ask(place: int, at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        answer = await three.sites[place].http.get("/tasks", headers=bearer(name))
        answers[answer.status_code] += 1

    pace = 3 * RATE / sum(weights)
    asking = [
        ask(place, n / (pace * weight))
        for place, weight in enumerate(weights)
        for n in range(int(SECONDS * pace * weight))
    ]
    await within(asyncio.gather(*asking))
    took = time.monotonic() - began
    assert set(answers) <= {200, 429}
    fair = RATE + RATE * took
    assert answers[200] <= 1.1 * fair
    # A machine that is far behind does not ask three times as often.
    assert answers[200] >= 0.9 * fair or took > 1.5 * SECONDS


async def test_a_caller_below_its_rate_is_never_refused(three: Replicas) -> None:
    began = time.monotonic()
    for n in range(3 * RATE):
        await asyncio.sleep(max(0.0, began + n / (0.7 * RATE) - time.monotonic()))
        answer = await three.sites[n % 3].http.get("/tasks", headers=bearer("carol"))
        assert answer.status_code == 200, answer.text
        left = int(answer.headers["x-ratelimit-remaining"])
        assert 0 <= left <= RATE


async def test_the_quota_of_tasks_is_one_for_all(three: Replicas) -> None:
    begun = 0
    for n in range(QUOTA + 12):
        body = {"message": message("hi", metadata={"skill": "quick"})}
        site = three.sites[n % 3]
        while True:
            answer = await site.http.post("/message:send", json=body, headers=bearer("dave"))
            if answer.status_code != 429 or "quota" in answer.text:
                break
            # Its rate of requests; the quota is what is counted here.
            await asyncio.sleep(0.1)
        begun += answer.status_code == 200
    assert 0.95 * QUOTA <= begun <= 1.05 * QUOTA


async def test_running_tasks_and_open_streams_are_counted_over_all(three: Replicas) -> None:
    answers: list[int] = []
    tasks: list[str] = []
    for n in range(RUNNING + 4):
        await asyncio.sleep(PACE)
        said = message("seats", metadata={"skill": "held"})
        body = {"message": said, "configuration": {"returnImmediately": True}}
        answer = await three.sites[n % 3].http.post(
            "/message:send", json=body, headers=bearer("erin")
        )
        answers.append(answer.status_code)
        if answer.status_code == 200:
            tasks.append(answer.json()["task"]["id"])
    assert answers == [200] * RUNNING + [429] * 4
    async with contextlib.AsyncExitStack() as stack:
        opened: list[int] = []
        for n in range(STREAMS + 3):
            await asyncio.sleep(PACE)
            stream = three.sites[n % 3].http.stream(
                "GET", f"/tasks/{tasks[0]}:subscribe", headers=bearer("erin")
            )
            opened.append((await stack.enter_async_context(stream)).status_code)
        assert opened == [200] * STREAMS + [429] * 3
    three.open("seats")


async def test_what_a_caller_may_store_is_counted_over_all(tmp_path: Path, database: str) -> None:
    arguments = ("--auth-tokens", tokens(tmp_path))
    env = {"DRAGOMAN_MAX_STORED_BYTES": f"{STORED}"}
    async with replicas(tmp_path, database, 3, *arguments, **env) as three:
        text, begun = "x" * (STORED // 400), 0
        while True:
            body = {"message": message(text, metadata={"skill": "quick"})}
            site = three.sites[begun % 3]
            answer = await site.http.post("/message:send", json=body, headers=bearer("alice"))
            if answer.status_code == 429:
                break
            assert answer.status_code == 200, answer.text
            begun += 1
            # No faster than each can look what there is.
            await asyncio.sleep(0.02)
        connections = DatabaseConnections(Addresses(database))
        await connections.open()
        ((kept,),) = await connections.rows("SELECT sum(octet_length(bodies))::bigint FROM events")
        await connections.close()
    assert 0.9 * STORED <= kept <= 1.1 * STORED
