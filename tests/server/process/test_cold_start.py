"""A start loads what it needs, and nothing else: what it loads is most of what it takes.

The processor time of a start is told by `./dev bench --only cold`. What is loaded is the same on a
busy machine.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import WAIT

from dragoman.testing.processes import clean_environment

AGENT = """
from dragoman import Agent, Message, Turn

agent = Agent("Echo", "Says what you said.")


@agent.skill
async def say(text: str) -> str:
    return text
"""
# Ends the process where it would say that it is ready, and tells what is loaded by then.
STARTED = """
import os, sys
from dragoman.server.process import run

def ready(*served):
    print("\\n".join(sys.modules))
    for kind in tuple.__subclasses__():
        if hasattr(kind, "_fields"):
            print(f"tuple:{kind.__module__}.{kind.__name__}")
    sys.stdout.flush()
    os._exit(0)

run.Ready = ready
from dragoman.cli.main import main
main(["serve", "agent.py", "--listen", "127.0.0.1:0", "--store", "tasks.db"])
"""
# More `dragoman` modules than a plain `serve` loads. Files are divided now and then: raise it for
# that, and not for what most starts do not need.
MOST = 255
# Named tuples of ours: one takes four times as long to define as a struct.
MOST_TUPLES = 26
# What a start does not need: other servers and clients, what dials out, what answers operators,
# protobuf, the cipher of the store, and parts of the standard library with much below them.
NOT_BEFORE = (
    *(
        "uvicorn",
        "cryptography",
        "google.protobuf",
        "grpc",
        "jinja2",
        "opentelemetry",
        "websockets",
    ),
    *("dragoman.client", "dragoman.gateway", "dragoman.mcp", "dragoman.cli.hints"),
    *("dragoman.cli.help", "dragoman.egress.http1", "dragoman.push.sender"),
    *("dragoman.server.operator.api", "dragoman.server.operator.admin"),
    *("dragoman.console.console", "dragoman.console.live", "dragoman.console.sessions"),
    *("dragoman.server.endpoints.rest_endpoint", "dragoman.transports.rest"),
    *("dragoman.transports.grpc.tables", "dragoman.http.grpc.frames"),
    "dragoman.dialects.v0_3_proto",
    *("dragoman.server.operator.shapes", "dragoman.stores.postgres", "dragoman.stores.memory"),
    *("email", "encodings.idna", "gzip", "logging.config", "multiprocessing", "tempfile"),
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("cold")
    (folder / "agent.py").write_text(AGENT)
    return after(STARTED, folder)


def after(code: str, folder: Path) -> list[str]:
    """Return the modules that a process with some code tells of."""
    # Coverage and the like would load modules of their own.
    own = {name: value for name, value in clean_environment().items() if name[:4] != "COV_"}
    # As an installed package is found, without what the test runner added.
    own["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3])])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def ours(loaded: list[str]) -> list[str]:
    return [name for name in loaded if name.partition(".")[0] == "dragoman"]


def test_a_start_loads_few_of_our_modules(loaded: list[str]) -> None:
    assert len(ours(loaded)) <= MOST, "\n".join(ours(loaded))


def test_a_start_defines_few_named_tuples(loaded: list[str]) -> None:
    found = [name for name in loaded if name.startswith("tuple:dragoman.")]
    assert 0 < len(found) <= MOST_TUPLES, "\n".join(found)


@pytest.mark.parametrize("name", NOT_BEFORE)
def test_a_start_does_not_load(loaded: list[str], name: str) -> None:
    assert [one for one in loaded if one == name or one.startswith(f"{name}.")] == []


def test_help_loads_neither_a_server_nor_what_reads_messages(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from dragoman.cli.main import main\n"
        "sys.stdout = open(__import__('os').devnull, 'w')\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    sys.__stdout__.write('\\n'.join(sys.modules))\n"
    )
    found = after(code, tmp_path)
    for name in ("asyncio", "msgspec", "dragoman.server", "dragoman.client", "dragoman.config"):
        assert name not in found
