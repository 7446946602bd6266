"""The how-to as it is typed, with a gateway that is killed while a copy is under way."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.databases import new_database
from harness.processes import run
from harness.recipes import recipes
from harness.serving import V1
from harness.serving import client as http_client
from harness.waiting import eventually, within

from dragoman import Client, TaskState, Turn
from dragoman.testing.processes import ServerProcess, clean_environment
from tests.gateway.rollouts.greeters import versions

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[3] / "docs" / "rollouts.md"


def shown() -> list[str]:
    """Return the commands of the first part of the page."""
    return [typed.command for typed in recipes(PAGE)["rollout"]]


def dragoman(folder: Path, name: str, *words: str | Path) -> ServerProcess:
    environment = clean_environment() | {"DRAGOMAN_LEASE": "2"}
    command = [sys.executable, "-m", "dragoman", *words]
    return ServerProcess(command, log=folder / f"{name}.log", environment=environment)


@pytest.mark.parametrize("kind", ("sqlite", "postgres"))
async def test_the_commands_of_the_page_do_what_it_says_through_a_kill(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = await new_database(request) if kind == "postgres" else str(tmp_path / "gateway.db")
    words = ["gateway", "--store", store, "--listen"]
    may_answer = asyncio.Event()

    async def slow(text: str, turn: Turn) -> str:
        await may_answer.wait()
        return usual(text, turn)

    def typed(line: str, **more: Any) -> str:
        for name, value in more.items():
            line = line.replace(name, value)
        args = shlex.split(line)[1:]
        answer = run(*args, "--gateway", gateway.url, cwd=tmp_path)
        assert answer.returncode == 0, f"{line}\n{answer.stdout}{answer.stderr}"
        return answer.stdout

    register, update, start, listed, show, promote = shown()
    async with versions("Weather", "Weather Two") as (old, new):
        usual, new.answer = new.answer, slow
        with dragoman(tmp_path, "gateway", *words, "127.0.0.1:0") as gateway:
            gateway.ready()
            port = gateway.port
            await asyncio.to_thread(typed, f"dragoman agents register {old.url}")
            new_url = {"http://127.0.0.1:9002": new.url}
            await asyncio.to_thread(typed, register, **new_url)
            await asyncio.to_thread(typed, update)
            begun = await asyncio.to_thread(typed, start)
            id = begun.splitlines()[0].removeprefix("Rollout: ")
            async with Client(f"{gateway.url}/a2a/weather") as client:
                assert (await within(client.send("Oslo"))).text == usual("Oslo", None)
            # The original has ended, and its copy is under way.
            await eventually(lambda: new.told)
            gateway.kill()
        may_answer.set()
        with dragoman(tmp_path, "gateway", *words, f"127.0.0.1:{port}") as gateway:
            gateway.ready()
            address = f"{gateway.url}/a2a/weather"
            async with Client(address) as client, http_client(gateway.url) as http:
                for city in ("Rome", "Paris"):
                    await within(client.send(city))

                async def figures() -> dict[str, Any] | None:
                    found = (await http.get(f"/api/v1/rollouts/{id}")).json()["data"]["figures"]
                    return found if found["judged"] == 3 else None

                counted = await eventually(figures)
                assert (counted["agreed"], counted["failed"], counted["dropped"]) == (3, 0, 0)
                assert counted["old"]["tasks"] == counted["new"]["tasks"] == 3
                assert sorted(new.told) == sorted(old.told) == ["Oslo", "Paris", "Rome"]
                assert id in await asyncio.to_thread(typed, listed)
                text = await asyncio.to_thread(typed, show, ROLLOUT=id)
                assert "State: running\n" in text and "Agreed: 3\n" in text
                tasks = (await http.get("/tasks", headers=V1)).json()["tasks"]
                assert len(tasks) == 3, "the caller has its own tasks alone"
                assert "State: promoted" in await asyncio.to_thread(typed, promote, ROLLOUT=id)
                await within(client.send("Bern"))
            assert new.told[-1] == "Bern" and "Bern" not in old.told


async def test_two_gateways_of_one_store_copy_and_count_each_task_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = await new_database(request)
    words = ["gateway", "--store", store, "--listen", "127.0.0.1:0"]

    async def typed(gateway: ServerProcess, *args: str) -> str:
        answer = await asyncio.to_thread(run, *args, "--gateway", gateway.url, cwd=tmp_path)
        assert answer.returncode == 0, f"{args}\n{answer.stdout}{answer.stderr}"
        return answer.stdout

    async def sent(gateway: ServerProcess, *names: str) -> None:
        async with Client(f"{gateway.url}/a2a/weather") as client:
            for name in names:
                assert (await within(client.send(name))).state is TaskState.COMPLETED

    async with versions("Weather", "Weather Two") as (old, new):
        with (
            dragoman(tmp_path, "one", *words) as first,
            dragoman(tmp_path, "two", *words) as second,
        ):
            first.ready()
            second.ready()
            await typed(first, "agents", "register", old.url, "--repeatable")
            await typed(first, "agents", "register", new.url, "--name", "weather-2", "--paused")
            begun = await typed(first, "rollouts", "start", "weather", "weather-2", "--share", "1")
            id = begun.splitlines()[0].removeprefix("Rollout: ")

            async def is_known() -> bool:
                answer = await asyncio.to_thread(
                    run, "agents", "show", "weather", "--gateway", second.url, cwd=tmp_path
                )
                return answer.returncode == 0

            await eventually(is_known)
            names = [f"n{number}" for number in range(12)]
            await asyncio.gather(sent(first, *names[:4]), sent(second, *names[4:8]))
            # Whichever of the two looks after rollouts: the other goes on with them.
            first.kill()
            await sent(second, *names[8:])

            async def judged() -> dict[str, Any] | None:
                found = json.loads(await typed(second, "rollouts", "show", id, "-o", "json"))
                figures = found["figures"]
                return figures if figures["judged"] + figures["dropped"] >= len(names) else None

            figures = await eventually(judged)
            assert (figures["judged"], figures["agreed"]) == (len(names), len(names))
            assert sorted(new.told) == sorted(old.told) == sorted(names)
            # What is changed at one holds for the tasks that begin there next.
            changed = await typed(second, "rollouts", "update", id, "--mode", "canary")
            assert "Mode: canary" in changed
            await sent(second, "last")
            assert (old.told.count("last"), new.told.count("last")) == (0, 1)
