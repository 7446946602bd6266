"""Servers for all peers, and what the drivers of the selected ones reported about them."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from harness import preparing

from dragoman.testing.processes import ServerProcess
from proof.environments import ROOT
from tests.peers.libraries import Peer, Report, report

# Short streams keep the run short; what is off must be refused as each version says.
SWITCHES = {
    # A busy machine takes seconds between two calls of a peer; the task is to be found running.
    "CONFORMANCE_STREAM_SECONDS": "5",
    "CONFORMANCE_EXTENDED": "0",
}


_PREPARING = Path(__file__).parent / "preparing.py"


def pytest_collection_finish(session: pytest.Session) -> None:
    is_wanted = any(item.get_closest_marker("peer") for item in session.items)
    preparing.begin(session, _PREPARING, is_wanted=is_wanted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    preparing.end(session, _PREPARING)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the conformance agent in a process of its own; the value is its address."""
    with serving(tmp_path_factory.mktemp("interop"), push="off") as address:
        yield address


@pytest.fixture(scope="session")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve it once more, with push to receivers on this machine."""
    with serving(tmp_path_factory.mktemp("interop"), "--allow-private", push="on") as address:
        yield address


@pytest.fixture(scope="session")
def gateways(
    server: str, pushing: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Serve a gateway before each of them; the values are the agent's addresses there."""
    folder = tmp_path_factory.mktemp
    with (
        carrying(folder("gateway"), server, push="off") as address,
        carrying(folder("gateway"), pushing, "--allow-private", push="on") as other,
    ):
        yield address, other


@contextmanager
def carrying(folder: Path, agent: str, *more: str, push: str) -> Iterator[str]:
    options = ["--listen", "127.0.0.1:0", "--store", str(folder / "tasks.db"), *more]
    with ServerProcess(
        [sys.executable, "-m", "dragoman", "gateway", *options],
        log=folder / "log",
        cwd=ROOT,
        # Hosts below this domain are this machine, for libraries that find them by themselves.
        environment=os.environ | {"DRAGOMAN_PUSH": push, "DRAGOMAN_GRPC_DOMAIN": "localhost"},
    ) as process:
        gateway = process.ready()
        # What is asked of the agent is told by the ids of messages.
        new = {"endpoint": agent, "name": "Conformance", "keepMessageIds": True}
        httpx.post(f"{gateway}/api/v1/agents", json=new).raise_for_status()
        yield f"{gateway}/a2a/conformance"


@contextmanager
def serving(folder: Path, *more: str, push: str) -> Iterator[str]:
    target = str(ROOT / "examples" / "conformance_agent.py")
    options = ["--listen", "127.0.0.1:0", "--store", str(folder / "tasks.db"), *more]
    with ServerProcess(
        [sys.executable, "-m", "dragoman", "serve", target, *options],
        log=folder / "log",
        cwd=ROOT,
        environment=os.environ | SWITCHES | {"CONFORMANCE_PUSH": push},
    ) as process:
        yield process.ready()


@pytest.fixture(scope="session")
def reports(server: str, pushing: str, request: pytest.FixtureRequest) -> dict[Peer, Report]:
    """Run the driver of every selected peer once, all side by side."""
    wanted: dict[Peer, list[str]] = {}
    for item in request.session.items:
        arguments = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(peer := arguments.get("peer"), Peer):
            wanted.setdefault(peer, []).append(arguments["scenario"])
    places = {False: (server, pushing)}
    if any(peer.is_carried for peer in wanted):
        places[True] = request.getfixturevalue("gateways")
    with ThreadPoolExecutor(len(wanted)) as pool:
        runs = {
            peer: pool.submit(report, peer, *places[peer.is_carried], wanted[peer])
            for peer in wanted
        }
        return {peer: run.result() for peer, run in runs.items()}
