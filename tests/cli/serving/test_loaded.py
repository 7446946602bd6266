"""What `dragoman serve` has loaded once it answers: starting is little more than loading."""

import json
import urllib.request

import pytest
from harness.processes import AS_MODULE, running

AGENT = """
import sys
from dragoman import Agent

agent = Agent("Loaded", "Tells what its process has loaded.")

@agent.skill
async def loaded(text: str) -> str:
    return " ".join(sys.modules)
"""
# What only others need: a caller of agents, a gateway, a person at a terminal or at the console,
# a client of gRPC, who reads what pip wrote.
NOT_YET = (
    "jinja2", "markdown_it", "pygments", "rich", "grpc", "google.protobuf", "joserfc",
    "opentelemetry", "prometheus_client", "asyncpg", "websockets", "starlette", "pydantic",
    "importlib.metadata", "importlib.resources", "zipfile", "difflib",
    "dragoman.client", "dragoman.gateway", "dragoman.mcp", "dragoman.openai", "dragoman.testing",
    "dragoman.egress.egress", "dragoman.console.issuer_login", "dragoman.console.pages",
    "dragoman.stores.memory", "dragoman.stores.remote", "dragoman.stores.postgres",
    "dragoman.stores.interface.gateway", "dragoman.stores.interface.ledger",
)  # fmt: skip
# Ours and others'; there were 684 before any of the above was left for later.
MOST = 620


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules of a server that has answered a send."""
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "loaded.py").write_text(AGENT)
    words = ("serve", "loaded.py", "--listen", "127.0.0.1:0", "--store", "tasks.db")
    with running(*words, cwd=folder, command=AS_MODULE) as server:
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        request = urllib.request.Request(
            server.ready(),
            json.dumps(call).encode(),
            {"Content-Type": "application/json", "A2A-Version": "1.0"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            task = json.load(answer)["result"]["task"]
    return task["artifacts"][0]["parts"][0]["text"].split()


def test_a_server_loads_only_what_it_answers_with(loaded: list[str]) -> None:
    assert "dragoman.stores.sqlite.store" in loaded
    assert [name for name in NOT_YET if name in loaded] == []


def test_a_server_loads_few_modules(loaded: list[str]) -> None:
    assert len(loaded) <= MOST
