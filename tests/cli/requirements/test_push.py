"""Push notifications: configurations on either binding, and a receiver of our own."""

import json
import queue
import re
import subprocess
import threading
from typing import Any

import httpx
import pytest

from tests.cli.requirements.desk import WITHIN, Desk, together

PUSH = ("task", "push-config")
HOOK = "http://127.0.0.1:9/hook"


@pytest.mark.cli("A2ACLI_PUSH_001")
@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
def test_a_configuration_is_made_read_listed_and_deleted(desk: Desk, binding: str) -> None:
    env = {"A2ACLI_TRANSPORT": binding}
    task, _ = desk.begin("working")
    create = (*PUSH, "create", task, "--url", HOOK)
    proof = ("--token", "t0ken", "--auth-scheme", "Bearer", "--auth-credentials", "cr3dential")
    made = desk.json(*create, "--id", "mine", *proof, env=env)
    assert made == {
        "taskId": task,
        "id": "mine",
        "url": HOOK,
        "token": "t0ken",
        "authentication": {"scheme": "Bearer", "credentials": "cr3dential"},
    }
    assert desk.agent.tasks[task].configs["mine"].token == "t0ken"
    text = desk.run(*create, env=env)
    other = text.fields["Config"]
    assert text.fields["Task"] == task and other != "mine"
    found, shown, listed, lines, words = together(
        lambda: desk.json(*PUSH, "get", task, "mine", env=env),
        lambda: desk.run(*PUSH, "get", task, "mine", env=env),
        lambda: desk.json(*PUSH, "list", task, env=env),
        lambda: desk.run(*PUSH, "list", task, "-o", "json", "--stream", env=env).lines,
        lambda: desk.run(*PUSH, "list", task, env=env).out,
    )
    assert found == made
    assert shown.fields["URL"] == HOOK and "t0ken" not in shown.out
    assert "cr3dential" not in shown.out + shown.err + words
    assert [one["id"] for one in listed["configs"]] == ["mine", other]
    assert lines == listed["configs"] and words.count("Config: ") == 2
    for _ in range(2):
        # To delete what is gone is no failure.
        assert desk.json(*PUSH, "delete", task, "mine", env=env) == {}
    assert [*desk.agent.tasks[task].configs] == [other]
    gone, nobody = together(
        lambda: desk.run(*PUSH, "get", task, "mine", "-o", "json", env=env, exit=1),
        lambda: desk.run(*PUSH, "list", "no-such-task", "-o", "json", env=env, exit=1),
    )
    assert {gone.error["code"], nobody.error["code"]} == {"TaskNotFoundError"}
    seen = [one for one in desk.seen() if "PushNotification" in one.method and task in _all(one)]
    of_binding = "JSONRPC" if binding == "jsonrpc" else "HTTP+JSON"
    assert len(seen) >= 9 and {one.binding for one in seen} == {of_binding}


def _all(seen: Any) -> str:
    return seen.path + seen.body.decode()


@pytest.mark.cli("A2ACLI_PUSH_001")
def test_what_makes_no_configuration_is_not_sent(desk: Desk) -> None:
    def refused() -> None:
        together(
            lambda: desk.run(*PUSH, "create", "t", exit=2),
            lambda: desk.run(
                *(*PUSH, "create", "t", "--url", HOOK, "--auth-credentials", "x"), exit=2
            ),
        )

    assert desk.during(refused) == []


class Listening:
    """A receiver that runs: what it says on either end, as it comes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.out: queue.Queue[str] = queue.Queue()
        self.err: queue.Queue[str] = queue.Queue()
        for pipe, lines in ((process.stdout, self.out), (process.stderr, self.err)):
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True).start()

    @staticmethod
    def _read(pipe: Any, lines: "queue.Queue[str]") -> None:
        for line in pipe:
            lines.put(line.decode())
        lines.put("")
        pipe.close()

    def ready(self) -> tuple[str, str]:
        """Return the address that is posted to and the id of the configuration."""
        while line := self.err.get(timeout=WITHIN):
            if found := re.match(r"Listening: (\S+) config (\S+)$", line):
                return found[1], found[2]
        raise AssertionError(f"it ended: {self.process.wait(WITHIN)}")

    def rest(self) -> list[str]:
        """Wait for its end; return the lines that were not read yet."""
        assert self.process.wait(WITHIN) == 0
        lines: list[str] = []
        while line := self.out.get(timeout=WITHIN):
            lines.append(line)
        return lines


def listen(desk: Desk, task: str, *more: str) -> Listening:
    words = (*PUSH, "listen", task, "--until", "terminal", "-o", "json", *more)
    return Listening(desk.start(*words))


@pytest.mark.cli("A2ACLI_PUSH_002")
@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
def test_what_the_agent_posts_becomes_lines_until_the_task_ends(desk: Desk, binding: str) -> None:
    task, context = desk.begin("ask")
    running = listen(desk, task, "--stream", "--transport", binding)
    url, config = running.ready()
    assert url.startswith("http://127.0.0.1:")
    token = desk.agent.tasks[task].configs[config].token
    assert len(token) >= 32
    desk.run("send", "Rome", "--task-id", task)
    lines = [json.loads(line) for line in running.rest()]
    assert [*lines[-1]] == ["statusUpdate"]
    last = lines[-1]["statusUpdate"]
    assert last["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (last["taskId"], last["contextId"]) == (task, context)
    artifacts = [one["artifactUpdate"]["artifact"] for one in lines if "artifactUpdate" in one]
    texts = [part["text"] for artifact in artifacts for part in artifact["parts"]]
    assert texts == ["Sunny in Rome"]
    assert desk.agent.tasks[task].configs == {}


@pytest.mark.cli("A2ACLI_PUSH_002")
def test_a_post_without_the_token_or_about_another_task_is_refused(desk: Desk) -> None:
    task, context = desk.begin("ask")
    running = listen(desk, task, "--stream")
    url, config = running.ready()
    token = desk.agent.tasks[task].configs[config].token

    def post(given: str | None, about: str = task, state: str = "TASK_STATE_SUBMITTED") -> int:
        update = {"taskId": about, "contextId": context, "status": {"state": state}}
        headers = {} if given is None else {"X-A2A-Notification-Token": given}
        headers["webhook-id"] = f"{about} {state}"
        return httpx.post(url, json={"statusUpdate": update}, headers=headers).status_code

    ends = "TASK_STATE_COMPLETED"
    assert [post(None, state=ends), post("", state=ends)] == [401, 401]
    assert [post(token[:-1], state=ends), post(token + "x", state=ends)] == [401, 401]
    assert post(token, "another", ends) == 404
    shown = {"X-A2A-Notification-Token": token}
    assert httpx.post(url, content=b"{", headers=shown).status_code == 400
    assert httpx.get(url, headers=shown).status_code == 405
    # Twice the same is one.
    assert [post(token), post(token)] == [204, 204]
    assert running.process.poll() is None
    desk.run("send", "Rome", "--task-id", task)
    lines = running.rest()
    assert sum("TASK_STATE_SUBMITTED" in line for line in lines) == 1
    assert not any("another" in line for line in lines)


@pytest.mark.cli("A2ACLI_PUSH_002")
def test_without_a_stream_the_end_is_one_document_and_keep_leaves_the_configuration(
    desk: Desk,
) -> None:
    task, _ = desk.begin("ask")
    running = listen(desk, task, "--keep")
    _, config = running.ready()
    desk.run("send", "Rome", "--task-id", task)
    document = json.loads("".join(running.rest()))
    assert document["id"] == task
    assert document["status"]["state"] == "TASK_STATE_COMPLETED"
    assert document["artifacts"][0]["parts"] == [{"text": "Sunny in Rome"}]
    assert [*desk.agent.tasks[task].configs] == [config]
