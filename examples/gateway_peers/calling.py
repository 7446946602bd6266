"""How the example starts others and calls a gateway: plain HTTP, and libraries in environments.

$A2A_SDK_PYTHON names a Python that has a2a-sdk, $A2A_JS a folder whose node_modules have
@a2a-js/sdk. Where one is missing it is left out, and the example says so.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.testing.processes import ServerProcess

HERE = Path(__file__).parent
SDK_PYTHON = os.environ.get("A2A_SDK_PYTHON", "")
JS, NODE = os.environ.get("A2A_JS", ""), os.environ.get("NODE") or shutil.which("node") or ""
# A caller: from the address of an agent at the gateway, a token and a text to the answer.
Caller = Callable[[str, str, str], str]


@contextmanager
def started(*command: str) -> Iterator[str]:
    """Run a server until we are done; yield the address it says it is ready at."""
    with ServerProcess(command, environment=os.environ) as server:
        yield server.ready()


def asked(verb: str, url: str, token: str, body: Any = None) -> Any:
    """Return the JSON of an answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, sent, headers, method=verb)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def trust_of(api: str, agent: str, token: str, tasks: int) -> Any:
    """Return how an agent is trusted once so many tasks count, which takes a moment."""
    for _ in range(600):
        trust = asked("GET", f"{api}/trust/{agent}", token)["data"]
        if trust["taskStats"]["total"] == tasks:
            break
        time.sleep(0.1)
    return trust


def nexus(address: str, token: str, text: str) -> str:
    """Do what the curl of the NEXUS document does, and look until the task has ended."""
    gateway, _, agent = address.rpartition("/a2a/")
    said = {"role": "user", "parts": [{"type": "text", "data": text}]}
    params = {"message": said, "assignedAgentId": agent}
    method = "message/send"
    while True:
        body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        task = asked("POST", f"{gateway}/api/v1/a2a", token, body)["result"]
        if task["status"] in ("completed", "failed"):
            return "".join(part["data"] for one in task["artifacts"] for part in one["parts"])
        method, params = "tasks/get", {"id": task["id"]}
        time.sleep(0.05)


def corvid(address: str, token: str, text: str) -> str:
    """Do what a corvid agent does to another: its card, the text, and looks until it has ended."""
    card = asked("GET", f"{address}/.well-known/agent-card.json", token)
    assert card["name"] and card["version"]
    task = asked("POST", f"{address}/a2a/tasks/send", token, {"params": {"message": text}})
    while task["state"] not in ("completed", "failed"):
        time.sleep(0.05)
        task = asked("GET", f"{address}/a2a/tasks/{task['id']}", token)
    said = [one for one in task["messages"] if one["role"] == "agent"]
    return said[-1]["parts"][0]["text"]


def _run(command: list[str], *words: str, folder: str | None = None, source: str = "") -> str:
    done = subprocess.run(
        [*command, *words], cwd=folder, input=source, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr


def sdk(address: str, token: str, text: str) -> str:
    """Send with PyPI a2a-sdk."""
    return _run([SDK_PYTHON, str(HERE / "sdk_client.py")], address, token, text)


def js(address: str, token: str, text: str) -> str:
    """Send with npm @a2a-js/sdk, which is found in the folder where the program runs."""
    source = (HERE / "js_client.mjs").read_text()
    return _run([NODE, "--input-type=module", "-"], address, token, text, folder=JS, source=source)


def callers() -> dict[str, Caller]:
    """Return the callers that are installed."""
    found: dict[str, Caller] = {"nexus curl": nexus, "corvid": corvid}
    for name, is_here, caller in (("a2a-sdk", SDK_PYTHON, sdk), ("a2a-js", JS and NODE, js)):
        if is_here:
            found[name] = caller
        else:
            print(f"{name} is not installed: it is left out")
    return found


def agents() -> dict[str, list[str]]:
    """Return the commands that serve two agents of different kinds."""
    first = [SDK_PYTHON, str(HERE / "sdk_agent.py")]
    if not SDK_PYTHON:
        print("a2a-sdk is not installed: an agent of Dragoman's speaks 0.3 in its place")
        words = ["--listen", "127.0.0.1:0", "--store", "memory:", "--a2a-version", "0.3"]
        first = [sys.executable, "-m", "dragoman", "serve", str(HERE / "shout.py"), *words]
    return {"Shout": first, "Reverse": [sys.executable, str(HERE / "nexus_agent.py")]}
