"""The durable examples keep what they show when their server is killed under them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness.processes import ROOT, running
from harness.serving import message
from harness.waiting import WAIT, wait_until

from dragoman.testing.processes import ServerProcess

DEEDS = ("reserve", "charge", "ship")


@contextmanager
def served(name: str, folder: Path, **env: str) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    options = ("--listen", "127.0.0.1:0", "--store", folder / "tasks.db")
    with (
        running("serve", ROOT / "examples" / name, *options, cwd=folder, env=env) as child,
        httpx.Client(base_url=child.ready(), timeout=WAIT, trust_env=False) as http,
    ):
        yield child, http


def kill(child: ServerProcess) -> None:
    child.process.kill()
    child.process.wait(WAIT)


def send(http: httpx.Client, said: dict[str, Any], **configuration: Any) -> Any:
    body = {"message": said, "configuration": configuration}
    response = http.post("/message:send", json=body)
    assert response.status_code == 200, response.text
    return response.json()["task"]


def entered(folder: Path) -> Counter[str]:
    ledger = folder / "ledger.txt"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter(line.split()[0] for line in lines)


def test_an_order_whose_server_is_killed_between_steps_does_each_of_them_once(
    tmp_path: Path,
) -> None:
    said = message("a lamp")
    with served("steps.py", tmp_path, PACKING_SECONDS="2") as (child, http):
        task = send(http, said, returnImmediately=True)
        wait_until(lambda: "Packing" in http.get(f"/tasks/{task['id']}").text)
        kill(child)
    assert entered(tmp_path) == {"reserve": 1, "charge": 1}
    # When the packing ends is recorded: that the second server would take an hour changes nothing.
    with served("steps.py", tmp_path, PACKING_SECONDS="3600") as (child, http):
        # The same message again finds the task it made, and waits for its end.
        done = send(http, said)
        assert done["id"] == task["id"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        (artifact,) = done["artifacts"]
        assert artifact["parts"] == [{"text": "a lamp is on its way, receipt 2."}]
        assert child.stop() == 0
    assert entered(tmp_path) == dict.fromkeys(DEEDS, 1)


def test_an_order_whose_server_is_killed_in_a_step_repeats_no_other(tmp_path: Path) -> None:
    said = message("a lamp")
    with served("steps.py", tmp_path, PACKING_SECONDS="0") as (child, http):
        task = send(http, said, returnImmediately=True)
        wait_until(lambda: "charge" in entered(tmp_path))
        kill(child)
    with served("steps.py", tmp_path, PACKING_SECONDS="0") as (_, http):
        done = send(http, said)
    assert done["id"] == task["id"] and done["status"]["state"] == "TASK_STATE_COMPLETED"
    counts = entered(tmp_path)
    assert set(counts) == set(DEEDS)
    # The next one may have begun before the kill came.
    doubled = [name for name in DEEDS if counts[name] != 1]
    assert doubled in ([], ["charge"], ["ship"])
    assert all(counts[name] == 2 for name in doubled)


def test_a_question_outlives_the_server_that_asked_it(tmp_path: Path) -> None:
    with served("approval.py", tmp_path) as (child, http):
        asked = send(http, message("100"))
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        kill(child)
    with served("approval.py", tmp_path) as (child, http):
        waiting = http.get(f"/tasks/{asked['id']}").json()
        assert waiting["status"] == asked["status"]
        # No amount: it is understood as the answer it is.
        done = send(http, message("yes", taskId=asked["id"]))
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert done["artifacts"][0]["parts"] == [{"text": "Paid 100."}]
        assert child.stop() == 0
