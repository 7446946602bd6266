"""Every example is run for real: served as its docstring says, and asked for what it shows."""

import asyncio
import base64
import hashlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from harness.processes import ROOT, environment, run, running
from harness.serving import client, hosting, message
from harness.waiting import within

EXAMPLES = ROOT / "examples"
LIST = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SHOWN: dict[str, Callable[[httpx.Client], None]] = {}


def shows(name: str) -> Callable[[Callable[[httpx.Client], None]], Callable[[httpx.Client], None]]:
    """Register what an example is asked for."""

    def register(check: Callable[[httpx.Client], None]) -> Callable[[httpx.Client], None]:
        SHOWN[name] = check
        return check

    return register


def send(http: httpx.Client, text: str | None, prefix: str = "", **more: Any) -> Any:
    response = http.post(f"{prefix}/message:send", json={"message": message(text, **more)})
    assert response.status_code == 200, response.text
    ((_, value),) = response.json().items()
    return value


def result(task: Any) -> Any:
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    (artifact,) = task["artifacts"]
    return artifact["parts"]


def stream(http: httpx.Client, text: str, **more: Any) -> list[Any]:
    body = {"message": message(text, **more)}
    said = http.post("/message:stream", json=body).text
    return [json.loads(data) for data in re.findall(r"^data: (.*)$", said, re.M)]


@shows("weather.py")
def weather(http: httpx.Client) -> None:
    assert result(send(http, "Oslo")) == [{"text": "Sunny in Oslo"}]
    said = [e["statusUpdate"]["status"] for e in stream(http, "Rome") if "statusUpdate" in e]
    assert "Looking up Rome" in str(said)


@shows("chunks.py")
def chunks(http: httpx.Client) -> None:
    for text, skill, expected in (
        ("a b c", "words", "a b c "),
        ("3", "countdown", "3 2 1 0 "),
    ):
        events = stream(http, text, metadata={"skillId": skill})
        found = [e["artifactUpdate"]["artifact"] for e in events if "artifactUpdate" in e]
        assert len(found) >= len(expected) // 2
        assert "".join(p["text"] for chunk in found for p in chunk["parts"]) == expected


@shows("events.py")
def events(http: httpx.Client) -> None:
    shown = stream(http, "my card is 4111 1111 1111 1111 indeed")
    assert "4111 1111" in str(shown[0]), "what the caller said is the caller's"
    later = str(shown[1:])
    assert "4111 1111" not in later and later.count("my card is ****1111 indeed") == 2
    assert result(send(http, "4111-1111-1111-1234")) == [{"text": "****1234"}]


@shows("steps.py")
def steps(http: httpx.Client) -> None:
    # What it is for is shown where its server is killed: tests/examples.
    assert "Packing" in str(stream(http, "a lamp"))
    # The third order, with three entries each: the second is the charge.
    assert result(send(http, "a pen")) == [{"text": "a pen is on its way, receipt 8."}]


@shows("approval.py")
def approval(http: httpx.Client) -> None:
    assert result(send(http, "20")) == [{"text": "Paid 20."}]
    for answer, state in (("yes", "COMPLETED"), ("no", "REJECTED")):
        asked = send(http, "100")
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        # The answer is no amount: it belongs to the task that asked.
        done = send(http, answer, taskId=asked["id"])
        assert done["status"]["state"] == f"TASK_STATE_{state}"
    assert send(http, "0")["status"]["state"] == "TASK_STATE_REJECTED"


@shows("files.py")
def files(http: httpx.Client) -> None:
    content = b"some bytes"
    part = {"raw": base64.b64encode(content).decode()}
    digest = hashlib.sha256(content).hexdigest()
    found = result(send(http, None, parts=[part]))
    assert found == [{"data": {"size": len(content), "sha256": digest}}]
    rows = {"data": {"rows": [{"a": 1, "b": 2}]}}
    (file,) = result(send(http, None, parts=[rows], metadata={"skillId": "table"}))
    assert file["filename"] == "table.csv" and file["mediaType"] == "text/csv"
    assert base64.b64decode(file["raw"]).split() == [b"a,b", b"1,2"]


@shows("guarded.py")
def guarded(http: httpx.Client) -> None:
    # With keys it is shown by the security guide: tests/test_security_guide.py.
    assert result(send(http, "hello")) == [{"text": "Hello "}]
    asked = {"message": message("invoice 7", metadata={"skillId": "approve"})}
    assert http.post("/message:send", json=asked).status_code == 403


@shows("several.py")
def several(http: httpx.Client) -> None:
    for prefix, expected in (("", "ÅB"), ("/agents/upper", "ÅB"), ("/agents/lower", "åb")):
        assert result(send(http, "Åb", prefix)) == [{"text": expected}]
        card = http.get(f"{prefix}/.well-known/agent-card.json").json()
        assert card["name"] == ("Lower" if "lower" in prefix else "Upper")


@shows("loop.py")
def loop(http: httpx.Client) -> None:
    said = result(send(http, "What is 6 times 7?"))
    assert "".join(part["text"] for part in said) == "It is 42."


@shows("mcp_agent.py")
def mcp_agent(http: httpx.Client) -> None:
    asked = {"parts": [{"data": {"celsius": 20}}], "metadata": {"skillId": "to_fahrenheit"}}
    text, value = result(send(http, None, **asked))
    assert text == {"text": "68.0"} and value == {"data": {"result": 68.0}}


@shows("conformance_agent.py")
def conformance(http: httpx.Client) -> None:
    done = send(http, "x", messageId="tck-complete-task-1")
    assert done["status"]["message"]["parts"] == [{"text": "Hello from TCK"}]
    (text,) = result(send(http, "x", messageId="tck-artifact-text-1"))
    assert text == {"text": "Generated text content"}
    (file,) = result(send(http, "x", messageId="tck-artifact-file-1"))
    assert file["filename"] == "output.txt" and "raw" in file
    (url,) = result(send(http, "x", messageId="tck-artifact-file-url-1"))
    assert url["url"] == "https://example.com/output.txt"
    (data,) = result(send(http, "x", messageId="tck-artifact-data-1"))
    assert data == {"data": {"key": "value", "count": 42}}
    assert send(http, "x", messageId="tck-message-response-1")["role"] == "ROLE_AGENT"
    refused = send(http, "x", messageId="tck-reject-task-1")
    assert refused["status"]["state"] == "TASK_STATE_REJECTED"
    waiting = send(http, "x", messageId="tck-input-required-1")
    again = send(http, "y", messageId="tck-input-required-2", taskId=waiting["id"])
    assert again["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


def test_every_example_is_run() -> None:
    found = {file.name for file in EXAMPLES.glob("*.py")}
    others = {"mounted.py", "webhook_receiver.py", "gateway.py"}
    assert found == SHOWN.keys() | CALLING.keys() | ALONE.keys() | others


@contextmanager
def served(name: str, folder: Path, **env: str) -> Iterator[httpx.Client]:
    options = ("--listen", "127.0.0.1:0", "--store", folder / "tasks.db")
    with running("serve", EXAMPLES / name, *options, cwd=folder, env=env) as child:
        with httpx.Client(base_url=child.ready(), timeout=60, trust_env=False) as http:
            yield http
        assert child.stop() == 0
        assert "Traceback" not in child.log


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_does_what_it_shows(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path, PACKING_SECONDS="0") as http:
        # First as the list of examples says it, while it has done nothing else.
        if row := re.search(rf"^\| `{name}` \| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", LIST, re.M):
            told = ("send", "-a", str(http.base_url), *shlex.split(row[1]))
            assert row[2] in run(*told, cwd=tmp_path).stdout
        else:
            assert name == "conformance_agent.py"
        SHOWN[name](http)


def test_every_example_is_in_the_list() -> None:
    files = {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*.py")}
    apart = {"tutorial", "gateway_peers"}
    wanted = {path.as_posix() for path in files if path.parent.as_posix() not in apart}
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", LIST, re.M)
    assert sorted(listed) == sorted(wanted)
    assert all(f"`{folder}/`" in LIST for folder in apart)


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.py")))
def test_an_example_says_how_to_run_it_and_is_short(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    docstring = text.split('"""')[1]
    ways = (f"dragoman serve examples/{name}", f"python examples/{name}", "uvicorn")
    assert any(way in docstring for way in ways)
    if name != "conformance_agent.py":
        assert len(text.splitlines()) <= 50


# What the examples that call an agent print of one that tells the weather.
CALLING = {
    "calling.py": ["Weather speaks 1.0", "Sunny in Oslo", "Sunny in Oslo"],
    "calling_plainly.py": ["Sunny in Oslo", "Task", "StatusUpdate"],
}


@pytest.mark.parametrize("name", sorted(CALLING))
def test_an_example_that_calls_prints_what_the_agent_answers(name: str, tmp_path: Path) -> None:
    with served("weather.py", tmp_path) as http:
        asked = [sys.executable, str(EXAMPLES / name), str(http.base_url), "Oslo"]
        ended = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[: len(CALLING[name])] == CALLING[name]


# What examples print that need nobody else.
ALONE = {
    "from_selectools.py": ["shouter has ['shout']", "HELLO"],
    "from_corvid.py": ["completed by session s-1", "Worked on: the report"],
}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_an_example_that_needs_nobody_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    asked = [sys.executable, str(EXAMPLES / name)]
    env = environment(tmp_path)
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ALONE[name]


def test_an_example_that_calls_nobody_says_so_in_a_sentence(tmp_path: Path) -> None:
    asked = [sys.executable, str(EXAMPLES / "calling.py"), "127.0.0.1:9", "Oslo"]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.startswith("Unreachable: ")


def module_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_webhook_receiver_believes_what_the_agent_posts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("--store", tmp_path / "tasks.db")
    weather = (
        "serve",
        EXAMPLES / "weather.py",
        "--listen",
        "127.0.0.1:0",
        "--allow-private",
        *store,
    )
    worked: asyncio.Queue[Any] = asyncio.Queue()
    bodies: list[tuple[Any, bytes]] = []
    with running(*weather, cwd=tmp_path) as child:
        child.ready()
        monkeypatch.setenv("WEBHOOK_SECRET", run("push", "secret", *store, cwd=tmp_path).stdout)
        module = module_of("webhook_receiver")
        monkeypatch.setattr(module, "work", worked.put_nowait)
        believe = module.verify

        def kept(headers: Any, body: bytes, secrets: list[str]) -> Any:
            bodies.append((dict(headers), body))
            return believe(headers, body, secrets)

        monkeypatch.setattr(module, "verify", kept)
        async with hosting(module.app) as url, client(child.url) as http, client(url) as other:
            receiver = {"taskPushNotificationConfig": {"url": f"{url}/hook"}}
            body = {"message": message("Oslo"), "configuration": receiver}
            task = (await http.post("/message:send", json=body)).json()["task"]
            assert await within(worked.get()) == {"task": ANY}
            last: Any = {}
            while "TASK_STATE_COMPLETED" not in str(last):
                last = await within(worked.get())
            assert last["statusUpdate"]["taskId"] == task["id"]
            headers, posted = bodies[-1]
            again = await other.post("/hook", content=posted, headers=headers)
            assert again.status_code == 204, "a repetition is taken, and nothing done"
            forged = headers | {"webhook-id": "msg_other"}
            assert (await other.post("/hook", content=posted, headers=forged)).status_code == 401
            assert (await other.post("/hook", content=posted)).status_code == 401
            assert worked.empty()
        assert child.stop() == 0


async def test_the_mounted_example_answers_beside_its_app() -> None:
    module = module_of("mounted")
    async with hosting(module.app) as url, client(url) as http:
        assert (await http.get("/")).text == "The agent is at /agent"
        answer = await http.post("/agent/message:send", json={"message": message("Ada")})
        assert result(answer.json()["task"]) == [{"text": "Hello Ada"}]
        card = (await http.get("/agent/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"] == f"{url}/agent/a2a"


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"CONFORMANCE_VERSION": "0.3"}, "TASK_STATE_INPUT_REQUIRED"),
        ({"CONFORMANCE_VERSION": "1.0"}, "TASK_STATE_COMPLETED"),
    ],
)
def test_the_conformance_agent_behaves_as_each_suite_expects(
    switches: dict[str, str], expected: str, tmp_path: Path
) -> None:
    with served("conformance_agent.py", tmp_path, **switches) as http:
        assert send(http, "x")["status"]["state"] == expected


def test_what_the_conformance_agent_has_switched_off_is_refused(tmp_path: Path) -> None:
    uri = "urn:a2a:tck:required-extension"
    switches = {"CONFORMANCE_STREAMING": "off", "CONFORMANCE_REQUIRED_EXTENSION": uri}
    with served("conformance_agent.py", tmp_path, **switches) as http:
        body = {"message": message("x")}
        refused = http.post("/message:send", json=body).json()["error"]["details"][0]["reason"]
        assert refused == "EXTENSION_SUPPORT_REQUIRED"
        asked = {"A2A-Extensions": uri}
        assert http.post("/message:send", json=body, headers=asked).status_code == 200
        streamed = http.post("/message:stream", json=body, headers=asked)
        assert streamed.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


def test_push_of_the_conformance_agent_is_switched_by_its_environment(tmp_path: Path) -> None:
    receiver = {"url": "https://hooks.example.com/hook"}
    for said, status in (("on", 200), ("off", 400)):
        with served("conformance_agent.py", tmp_path, CONFORMANCE_PUSH=said) as http:
            card = http.get("/.well-known/agent-card.json").json()
            assert card["capabilities"]["pushNotifications"] is (said == "on")
            # Of a task that ended: nothing more is posted, so nobody is asked who that is.
            task = send(http, "x", messageId=f"tck-complete-task-{said}")
            made = http.post(f"/tasks/{task['id']}/pushNotificationConfigs", json=receiver)
            assert made.status_code == status
