"""`dragoman up`: a gateway with a demo agent, and hints that work as they are printed."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import ACTIVE, INACTIVE, run, running
from harness.serving import message


def test_every_hint_works_as_it_is_printed(tmp_path: Path) -> None:
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path, env=ACTIVE) as child:
        url = child.ready()
        lines = [child.line("Try: ")]
        while lines[-1].startswith("Try: "):
            lines.append(child.line())
        commands = [shlex.split(line.removeprefix("Try: ")) for line in lines[:-1]]
        assert commands[0] == ["dragoman", "send", "-a", url, "hello"]
        ended = [run(*command[1:], cwd=tmp_path) for command in commands]
        assert [one.returncode for one in ended] == [0] * 5, [one.stderr for one in ended]
        sent, streamed, agents, listed, tailed = [one.stdout for one in ended]
        assert "\nText:\nhello\n" in sent and "\n1 2 3 4 5 \n" in streamed
        assert "dragoman-demo" in agents
        # Each is a task of the gateway's and one of the agent's.
        assert listed.count("Task: ") == 2 and tailed.count("TASK_STATE_COMPLETED") == 4
        store = lines[-1].removeprefix("Store: ")
        assert Path(store).is_file()
        assert child.stop() == 0
    # Start again, in a shell that does not find us, and they are still there.
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path, env=INACTIVE) as child:
        url = child.ready()
        entered = shlex.split(child.line("Try: ").removeprefix("Try: "))
        found = subprocess.run(
            [shutil.which("sh") or "sh", "-c", f"{shlex.join(entered)} && command -v dragoman"],
            env=INACTIVE,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert found.stdout.strip() == str(Path(sys.executable).with_name("dragoman"))
        assert httpx.get(f"{url}/tasks", trust_env=False).json()["totalSize"] == 2
        assert child.stop() == 0


def test_the_demo_agent_asks_and_answers(tmp_path: Path) -> None:
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        with httpx.Client(base_url=child.ready(), timeout=60, trust_env=False) as http:

            def send(text: str, **more: Any) -> Any:
                body = {"message": message(text, **more)}
                return http.post("/message:send", json=body).json()["task"]

            asked = send("tea", metadata={"skillId": "order"})
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            done = send("Oslo", taskId=asked["id"], metadata={"skillId": "order"})
            assert done["artifacts"][0]["parts"][0]["text"] == "One tea is on its way to Oslo."
        assert child.stop() == 0


def test_the_demo_agent_delegates_so_that_there_is_a_tree_to_see(tmp_path: Path) -> None:
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        with httpx.Client(base_url=child.ready(), timeout=60, trust_env=False) as http:

            def send(text: str, **more: Any) -> Any:
                return http.post("/message:send", json={"message": message(text, **more)}).json()

            asked = send("tea", metadata={"skillId": "delegate"})["task"]
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert "Where shall it go?" in str(asked["status"]["message"])
            inbox = http.get("/api/v1/console/inbox").json()["items"]
            assert [one["taskId"] for one in inbox] == [asked["id"]], "it is asked once"
            done = send("Oslo", taskId=asked["id"])["task"]
            said = "I was told: One tea is on its way to Oslo."
            assert done["artifacts"][0]["parts"][0]["text"] == said
            tree = http.get(f"/api/v1/console/tasks/{asked['id']}/tree").json()["top"]
            agents: list[str] = []
            while tree:
                agents.append(tree["agent"])
                tree = next(iter(tree.get("children", [])), None)
            assert agents == ["gateway", "dragoman-demo"] * 2
        assert child.stop() == 0


@pytest.mark.parametrize(
    ("words", "env", "path"),
    [
        (("--data-dir", "mine"), {"DRAGOMAN_STORE": "other.db"}, "mine/tasks.db"),
        ((), {"DRAGOMAN_DATA_DIR": "mine"}, "mine/tasks.db"),
        (("--store", "other.db"), {"DRAGOMAN_DATA_DIR": "mine"}, "other.db"),
    ],
)
def test_the_store_goes_where_it_is_told(
    tmp_path: Path, words: tuple[str, ...], env: dict[str, str], path: str
) -> None:
    with running("up", "--listen", "127.0.0.1:0", *words, cwd=tmp_path, env=env) as child:
        child.ready()
        assert child.line("Store: ") == f"Store: {path}"
        assert child.stop() == 0
    assert (tmp_path / path).is_file()
    assert {"mine", "other.db"} & {one.name for one in tmp_path.iterdir()} == {path.split("/")[0]}


def test_a_store_and_its_folder_are_not_both_given(tmp_path: Path) -> None:
    ended = run("up", "--store", "x.db", "--data-dir", "mine", cwd=tmp_path)
    assert ended.returncode == 2 and "give one of them" in ended.stderr


@pytest.mark.parametrize("more", [(), ("--public",)])
def test_a_name_that_leads_nowhere_is_no_address_to_listen_on(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    listen = ("--listen", "nope.invalid:0", "--store", "x.db")
    ended = run("up", *listen, *more, cwd=tmp_path)
    assert (
        ended.returncode == 2
        and "nope.invalid is neither an address nor a known name" in ended.stderr
    ), ended.stderr
    assert "reachable by others" not in ended.stderr and "takes a free port" not in ended.stderr


def test_a_gateway_wants_a_file(tmp_path: Path) -> None:
    ended = run("up", "--listen", "127.0.0.1:0", "--store", "memory:", cwd=tmp_path)
    assert ended.returncode == 2 and "name a file" in ended.stderr, ended.stderr


def test_who_is_asked_who_they_are_may_use_the_demo_agent(tmp_path: Path) -> None:
    env = {"DRAGOMAN_AUTH_TOKEN": "a-token-of-some-length"}
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path, env=env) as child:
        url = child.ready()
        headers = {"authorization": f"Bearer {env['DRAGOMAN_AUTH_TOKEN']}"}
        body = {"message": message("hello")}
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            assert http.post("/message:send", json=body).status_code == 401
            # The demo agent takes tasks from the gateway, not from whoever claims to be it.
            claimed = {"x-dragoman-gateway": "me"}
            assert http.post("/message:send", json=body, headers=claimed).status_code == 401
            task = http.post("/message:send", json=body, headers=headers).json()["task"]
            assert task["artifacts"][0]["parts"][0]["text"] == "hello"
            # It has no credential to call itself with.
            card = "/a2a/dragoman-demo/.well-known/agent-card.json"
            skills = [one["id"] for one in http.get(card, headers=headers).json()["skills"]]
            assert skills == ["echo", "count", "order"]
        assert child.stop() == 0


def test_a_gateway_is_served_without_the_demo(tmp_path: Path) -> None:
    with running("gateway", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        url = child.ready()
        card = httpx.get(f"{url}/.well-known/agent-card.json", trust_env=False).json()
        assert card["name"] == "Dragoman gateway"
        body = {"message": message("hello")}
        answer = httpx.post(f"{url}/message:send", json=body, trust_env=False)
        assert answer.status_code == 400 and "No agent available" in answer.text
        assert child.stop() == 0
