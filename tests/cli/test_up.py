"""`dragoman up`: the demo agent, and hints that work as they are printed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx
from serving import Child, message, running


def hints(child: Child) -> tuple[list[list[str]], str]:
    """Return the printed commands, split as a shell would, and the sentence about the store."""
    lines = [child.line("  curl ")]
    while not lines[-1].startswith("Tasks are kept"):
        lines.append(child.line())
    commands: list[list[str]] = []
    for word in shlex.split("\n".join(lines[:-1])):
        if word == "curl":
            commands.append([])
        commands[-1].append(word)
    return commands, lines[-1]


def request(command: list[str]) -> httpx.Response:
    """Do what curl would do with its arguments."""
    content, headers, url = None, {}, ""
    words = iter(command[1:])
    for word in words:
        if word == "-d":
            content = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif not word.startswith("-"):
            url = word
    with httpx.Client(timeout=15, trust_env=False) as http:
        return http.request("POST" if content else "GET", url, content=content, headers=headers)


def test_every_hint_works_as_it_is_printed(tmp_path: Path) -> None:
    with running("up", "--port", "0", cwd=tmp_path) as child:
        url = child.ready()
        commands, about_store = hints(child)
        assert len(commands) == 4 and all(url in " ".join(command) for command in commands)
        card, sent, streamed, listed = [request(command) for command in commands]
        assert card.json()["name"] == "Dragoman demo"
        assert sent.json()["task"]["artifacts"][0]["parts"] == [{"text": "hello"}]
        events = [json.loads(data) for data in re.findall(r"^data: (.*)$", streamed.text, re.M)]
        chunks = [e["artifactUpdate"]["artifact"] for e in events if "artifactUpdate" in e]
        said = "".join(part["text"] for chunk in chunks for part in chunk["parts"])
        assert said.split() == ["1", "2", "3", "4", "5"]
        assert listed.json()["totalSize"] == 2
        store = about_store.removeprefix("Tasks are kept in ").partition(";")[0]
        assert Path(store).is_file()
        assert child.end() == 0
    # As it says: start again, and they are still there.
    with running("up", "--port", "0", cwd=tmp_path) as child:
        url = child.ready()
        assert httpx.get(f"{url}/tasks", trust_env=False).json()["totalSize"] == 2
        assert child.end() == 0


def test_the_demo_agent_asks_and_answers(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--store", "memory:", cwd=tmp_path) as child:
        with httpx.Client(base_url=child.ready(), timeout=15, trust_env=False) as http:

            def send(text: str, **more: Any) -> Any:
                body = {"message": message(text, **more)}
                return http.post("/message:send", json=body).json()["task"]

            asked = send("tea", metadata={"skillId": "order"})
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            done = send("Oslo", taskId=asked["id"], metadata={"skillId": "order"})
            assert done["artifacts"][0]["parts"][0]["text"] == "One tea is on its way to Oslo."
        assert child.end() == 0
