"""`kill -9` while a workflow runs: the run ends as if nothing had happened, and each step made one
task."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import apsw

KILLS = 4
STEPS = 12

# Begins a run, or goes on with it, and says when it is over.
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from types import SimpleNamespace
from dragoman import Agent
from dragoman.config import EngineSettings, Settings
from dragoman.engine.engine import Engine
from dragoman.gateway.workflows.workflows import Workflows
from dragoman.model.identity import Principal
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore

ANN = Principal("", "ann")
agent = Agent("gateway", "Adds up.")

@agent.skill
async def add(text: str) -> int:
    print("adding", flush=True)
    await asyncio.sleep(0.05)
    given = json.loads(text)
    # Until it may, the last one does not end: however late a kill comes, it is before the end.
    while given["n"] == COUNT - 1 and not Path(sys.argv[1] + ".gate").exists():
        await asyncio.sleep(0.01)
    return given["n"] + sum(v["result"] for k, v in given.items() if k != "n")

def step(i):
    # Two strands that meet at the end.
    before = list(range(i)) if i == COUNT - 1 else [i - 2] if i > 1 else []
    return {"name": f"s{i}", "agentId": "a", "input": {"n": i}, "dependsOn": before}

async def main(path):
    store = SQLiteGatewayStore(path)
    await store.open()
    settings = Settings(engine=EngineSettings(max_attempts=100))
    engine = Engine(agent, store, settings)
    workflows = Workflows(store, lambda ref: SimpleNamespace(callers=[]), engine, settings)
    await engine.sweep()
    await workflows.sweep()
    known, _ = await workflows.page(ANN)
    if not known:
        steps = [step(i) for i in range(COUNT)]
        known = [await workflows.create(ANN, {"name": "Sum", "steps": steps})]
    run = await workflows.execute(ANN, known[0].id, key="once")
    print("begun", flush=True)
    while run.status in ("pending", "running"):
        await asyncio.sleep(0.01)
        run = await workflows.run(ANN, run.id)
    print(run.status, run.steps[-1].output["result"], flush=True)
    await workflows.stop()
    await engine.stop()
    await store.close()

asyncio.run(main(sys.argv[1]))
""".replace("COUNT", str(STEPS))


def play(path: Path, seconds: float | None = None) -> list[str]:
    """Run the program, for so long after a step has begun or to its end; return what it said."""
    program = [sys.executable, "-u", "-c", PROGRAM, str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as playing:
        assert playing.stdout is not None
        said: list[str] = []
        while "adding" not in said and (line := playing.stdout.readline()):
            said += line.split()
        try:
            playing.wait(60 if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            assert seconds is not None, "it did not end"
        finally:
            playing.kill()
        return said + playing.stdout.read().split()


def tasks_in(path: Path) -> int:
    """Return how many tasks steps have made."""
    connection = apsw.Connection(str(path))
    sql = "SELECT count(*) FROM tasks JOIN scopes ON scopes.number = scope WHERE agent = 'gateway'"
    try:
        ((count,),) = connection.execute(sql).fetchall()
        return count
    finally:
        connection.close()


async def test_a_run_survives_kills_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    chance = random.Random(11)
    for _ in range(KILLS):
        said = await asyncio.to_thread(play, path, chance.uniform(0.0, 0.07))
        assert "completed" not in said, "it was over before it was killed"
    path.with_name("tasks.db.gate").touch()
    said = await asyncio.to_thread(play, path)
    strands = [0, 1]
    for i in range(2, STEPS - 1):
        strands.append(i + strands[i - 2])
    assert said[-2:] == ["completed", str(STEPS - 1 + sum(strands))]
    assert tasks_in(path) == STEPS
