"""A loop whose server is killed between calls of tools does none of the finished ones again."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness.processes import running
from harness.serving import message
from harness.waiting import WAIT, wait_until

from dragoman.testing.processes import ServerProcess

AGENT = """
import time
from pathlib import Path
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelReply
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall

LEDGER, GATE = Path("ledger.txt"), Path("gate")

def enter(deed: str) -> str:
    with LEDGER.open("a") as ledger:
        ledger.write(deed + "\\n")
    while deed == "ship" and not GATE.exists():
        time.sleep(0.01)
    return deed + " done"

def asked(round):
    def reply(request):
        enter(f"model{round}")
        names = [["reserve", "charge"], ["pack"], ["ship"]][round]
        return ModelReply(f"Round {round}.", [ToolCall(n, "enter", {"deed": n}) for n in names])
    return reply

def answer(request):
    enter("model3")
    if not GATE.exists():
        raise AssertionError("it went on before it was let")
    return ", ".join(said.text for said in request.messages if said.role == "tool")

model = ScriptedModel(asked(0), asked(1), asked(2), answer)
agent = AgentLoop(model, tools=[enter]).agent("Orders", "Does each of it once.")
"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    options = ("--listen", "127.0.0.1:0", "--store", folder / "tasks.db")
    with (
        running("serve", "orders.py", *options, cwd=folder) as child,
        httpx.Client(base_url=child.ready(), timeout=WAIT, trust_env=False) as http,
    ):
        yield child, http


def entered(folder: Path) -> Counter[str]:
    ledger = folder / "ledger.txt"
    return Counter(ledger.read_text().split() if ledger.exists() else [])


def test_a_loop_killed_between_calls_repeats_no_finished_one(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(AGENT)
    body = {"message": message("a lamp"), "configuration": {"returnImmediately": True}}
    with served(tmp_path) as (child, http):
        task: Any = http.post("/message:send", json=body).json()["task"]
        # The call that is under way when the process dies; all before it are on record.
        wait_until(lambda: entered(tmp_path)["ship"] == 1)
        child.process.kill()
        child.process.wait(WAIT)
    with served(tmp_path) as (child, http):
        wait_until(lambda: entered(tmp_path)["ship"] == 2)
        assert child.stop() == 0, "a function that blocks in its thread keeps nobody from ending"
    (tmp_path / "gate").touch()
    with served(tmp_path) as (child, http):
        wait_until(lambda: "COMPLETED" in http.get(f"/tasks/{task['id']}").text)
        done: Any = http.get(f"/tasks/{task['id']}").json()
        assert child.stop() == 0
        assert "Traceback" not in child.log
    counts = entered(tmp_path)
    assert counts.pop("ship") == 3, "it was under way, so it was begun again"
    assert counts == Counter(["reserve", "charge", "pack", "model0", "model1", "model2", "model3"])
    (artifact,) = done["artifacts"]
    text = "".join(part["text"] for part in artifact["parts"])
    assert text == (
        "Round 0.\n\nRound 1.\n\nRound 2.\n\nreserve done, charge done, pack done, ship done"
    )
