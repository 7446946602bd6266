"""The clients of frameworks and smaller libraries, and how a driver of one is run.

A driver is a script in `drivers/`; what each operation demands is written there. It does them all
in one process, at each place: some take seconds to import themselves.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proof.environments import EnvironmentFailed, python_with
from tests.agents.adapters.frameworks import python_with_crewai
from tests.peers import hosts
from tests.peers.libraries import Report, driven
from tests.peers.sides import owed

DRIVERS = Path(__file__).parent / "drivers"

PLACES = ("server", "gateway")


@dataclass(frozen=True)
class Framework:
    """A client, what it can be asked for, and what it cannot, with the reason."""

    name: str
    speaks: str
    driver: str
    python: Callable[[], Path]
    operations: tuple[str, ...]
    gaps: Mapping[str, str]
    # What we owe it, by operation.
    owed: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.name


def made(*requirements: str) -> Callable[[], Path]:
    return lambda: python_with(*requirements)


FRAMEWORKS = [
    Framework(
        "google-adk-2.13.0",
        "1.0 jsonrpc",
        "adk_client.py",
        made(*hosts.ADK),
        (
            "send",
            "stream",
            "last-chunk",
            "ask",
            "ask-in-a-stream",
            "ask-in-words",
            "files",
            "failure",
            "auth",
        ),
        {
            "get": "the library cannot read a task again",
            "cancel": "the library cannot cancel tasks",
            "unknown-task": "the library does not expose the task",
        },
        {},
    ),
    Framework(
        "strands-agents-1.62.0",
        "0.3 jsonrpc",
        "strands_client.py",
        made(*hosts.STRANDS),
        ("send", "stream", "ask", "failure", "auth"),
        {
            "get": "the library cannot read a task again",
            "cancel": "the library cannot cancel tasks",
            "ask-in-a-stream": "the library cannot answer questions",
            "files": "the library only sends text",
            "unknown-task": "the library does not expose the task",
        },
        {},
    ),
    Framework(
        "crewai-1.15.30",
        "0.3 jsonrpc",
        "crewai_client.py",
        python_with_crewai,
        ("send", "stream", "ask", "ask-in-a-stream", "failure", "auth"),
        {
            "get": "the library reads a task only while it waits for it",
            "cancel": "the library cannot cancel tasks",
            "files": "the library sends files with another package",
            "unknown-task": "the library does not expose the task",
        },
        {},
    ),
    Framework(
        "a2akit-0.0.32",
        "0.3 jsonrpc",
        "a2akit_client.py",
        made(*hosts.A2AKIT),
        (
            "send",
            "stream",
            "get",
            "cancel",
            "subscribe",
            "ask",
            "ask-in-a-stream",
            "files",
            "failure",
            "unknown-task",
            "auth",
        ),
        {},
        {},
    ),
    Framework(
        "a2a-lite-1.2.1",
        "1.0 jsonrpc",
        "a2a_lite_client.py",
        made(*hosts.A2A_LITE),
        ("send", "stream", "get", "failure", "auth"),
        {
            "ask": "the library cannot answer questions",
            "ask-in-a-stream": "the library cannot answer questions",
            "cancel": "the library returns a task only when it has ended",
            "files": "the library only sends text",
            "unknown-task": "the library returns any answer unchanged",
        },
        {},
    ),
    Framework(
        "fasta2a-2.1.1",
        "0.3 jsonrpc, parts of 1.0",
        "fasta2a_talking.py",
        made(*hosts.FASTA2A),
        ("send", "get", "stream", "ask", "failure", "unknown-task", "auth"),
        {"cancel": "the library cannot cancel tasks"},
        {},
    ),
    Framework(
        "python-a2a-0.5.10",
        "0.1, its own paths",
        "python_a2a_client.py",
        made(*hosts.PYTHON_A2A),
        ("refusal",),
        dict.fromkeys(
            ("send", "stream", "get", "cancel", "ask", "files", "failure", "auth"),
            "the library posts `tasks/send` to the path `/tasks/send`, which no version has",
        ),
        {},
    ),
]


def report(framework: Framework, places: Any, operations: list[str]) -> Report:
    """Make the environment if there is none, run the driver and return what it said."""
    asked = json.dumps({"places": places, "operations": operations})
    try:
        python = framework.python()
    except EnvironmentFailed as error:
        return Report({}, f"its environment could not be made: {error}")
    return driven([str(python), str(DRIVERS / framework.driver), asked])


def marks(framework: Framework, operation: str) -> list[Any]:
    return owed(framework.owed.get(operation))
