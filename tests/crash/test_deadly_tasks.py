"""A task that ends its process each time is given up, and what runs beside it completes."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from harness.processes import running
from harness.serving import Site, client
from harness.waiting import eventually, within

AGENT = """
import asyncio, os, signal
from pathlib import Path
from dragoman import Agent, Turn

agent = Agent("Deadly", "Has a skill that ends the process.")
HERE = Path(__file__).parent

# Not the next process that gets the task: it may have it before its server ends too.
def has_to_die():
    file = HERE / "go"
    return file.exists() and file.read_text() == str(os.getpid())

def begins(name):
    with (HERE / "begun").open("a") as file:
        file.write(f"{name} {os.getpid()}\\n")

@agent.skill
async def deadly(text: str, turn: Turn) -> str:
    await turn.say("at work")
    begins("deadly")
    while not has_to_die():
        await asyncio.sleep(0.01)
    if text == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)

@agent.skill
async def steady(text: str, turn: Turn) -> str:
    await turn.say("at work")
    begins("steady")
    while not (HERE / "end").exists():
        await asyncio.sleep(0.01)
    return text
"""
WITHIN = 60.0
LOOK = 0.02


class Place:
    """A folder with an agent, and servers in it one after the other."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        (folder / "deadly.py").write_text(AGENT)
        self._arguments: list[Any] = ["serve", "deadly.py", "--listen", "127.0.0.1:0"]
        self._arguments += ["--store", folder / "tasks.db", "--workers", str(workers)]
        self.tasks: dict[str, str] = {}
        # Whether the last server to end left the tasks in good order: a worker of it may take them
        # over from the one that died before it hears that all of them end. Then the next server
        # begins them as if none had died.
        self.is_in_order = False

    def serve(self) -> Any:
        for name in ("go", "begun"):
            (self.folder / name).unlink(missing_ok=True)
        # Longer than any wait here.
        environment = {"DRAGOMAN_SUSPECT_SECONDS": "60"}
        return running(*self._arguments, cwd=self.folder, env=environment)

    def let_die(self) -> None:
        """End the process that has the deadly task."""
        (self.folder / "go").write_text(self.begun()["deadly"])

    async def dies(self, child: Any) -> None:
        """End it, and wait for the end of its server."""
        self.let_die()
        await within(asyncio.to_thread(child.process.wait, WITHIN), WITHIN)
        self.is_in_order = "took over" in child.log.partition("so all of them end")[2]

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def begun(self) -> dict[str, str]:
        """Return what has begun, and in which process."""
        file = self.folder / "begun"
        lines = file.read_text().splitlines() if file.exists() else []
        return dict(line.split(" ", 1) for line in lines)

    async def send(self, site: Site, name: str, text: str) -> None:
        more = {"metadata": {"skillId": name}, "configuration": {"returnImmediately": True}}
        self.tasks[name] = (await site.send(text, **more))["id"]

    async def status(self, site: Site, name: str) -> Any:
        return (await site.task(self.tasks[name]))["status"]

    async def both_begin(self) -> None:
        await eventually(lambda: self.begun().keys() == {"steady", "deadly"})

    async def turn_of_the_deadly(self, site: Site) -> bool:
        """Wait until the deadly one is under way; false: it has failed."""
        for _ in range(int(WITHIN / LOOK)):
            if (await self.status(site, "deadly"))["state"] == "TASK_STATE_FAILED":
                return False
            begun = self.begun()
            is_alone = len(set(begun.values())) == len(begun) or (self.folder / "end").exists()
            assert is_alone or self.is_in_order, "not one at a time in a process"
            if "deadly" in begun:
                return True
            if "steady" in begun:
                # It is alone: once it has ended, the other has its turn.
                self.touch("end")
            await asyncio.sleep(LOOK)
        raise AssertionError("nothing began")


# An exit code and a signal: which of them it was makes no difference to those that are left.
@pytest.mark.parametrize(("workers", "how"), [(1, "exit"), (2, "kill")])
async def test_a_task_that_ends_its_process_fails_alone(
    tmp_path: Path, workers: int, how: str
) -> None:
    place = Place(tmp_path, workers)
    for death in range(2):
        with place.serve() as child:
            async with client(child.ready()) as http:
                if death == 0:
                    for name in ("steady", "deadly"):
                        await place.send(Site(child.url, http), name, how)
                await place.both_begin()
            await place.dies(child)
    deaths, is_over = 2, False
    while not is_over:
        assert deaths < 6, "it is never given up"
        with place.serve() as child:
            async with client(child.ready()) as http:
                site = Site(child.url, http)
                is_over = not await place.turn_of_the_deadly(site)
                if is_over:
                    said = (await place.status(site, "deadly"))["message"]["parts"][0]["text"]
                    assert said == "The agent did not finish in 3 attempts."
                    place.touch("end")
                    await _completes(place, site)
                    continue
            await place.dies(child)
            deaths += not place.is_in_order


async def _completes(place: Place, site: Site) -> None:
    steady = await site.rested(place.tasks["steady"])
    assert steady["status"]["state"] == "TASK_STATE_COMPLETED", steady["status"]


async def test_ends_that_an_operator_makes_are_held_against_no_task_beside_others(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, 1)
    for death in range(2):
        with place.serve() as child:
            async with client(child.ready()) as http:
                if death == 0:
                    for name in ("steady", "deadly"):
                        await place.send(Site(child.url, http), name, "exit")
                await place.both_begin()
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait(WITHIN)
    for _ in range(3):
        # A deploy: in good order, whoever runs alone.
        with place.serve() as child:
            child.ready()
            assert child.stop() == 0
    with place.serve() as child:
        async with client(child.ready()) as http:
            site = Site(child.url, http)
            place.touch("end")
            await _completes(place, site)
            assert (await place.status(site, "deadly"))["state"] == "TASK_STATE_WORKING"
