"""What every test shares: the loop async tests run on, and how a run is spread over processes.

`./dev test` gives whole files to several processes, because a file's tests may share a server.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# The shipped suites live in the package; their assertions explain themselves like our own.
pytest.register_assert_rewrite("dragoman.testing.stores")

# Files that take long, longest first: begun late, one of them would keep the others waiting at the
# end. The peers are further down, because their environments may have to be made first.
LONG = (
    "test_check.py",
    "cli/test_serve.py",
    "proof/test_proofs.py",
    "corpus/test_corpus.py",
    "client/test_cuts.py",
    "client/test_hostile.py",
    "gateway/test_malformed.py",
    "gateway/test_isolation.py",
    "dialects/test_round_trips.py",
    "server/test_skill.py",
    "cli/requirements/test_auth.py",
    "cli/requirements/test_tasks.py",
    "crash/test_kill.py",
    "test_examples.py",
    "client/test_client.py",
    "client/test_remote.py",
    "peers/test_client_against_peers.py",
    "peers/test_interop.py",
    "peers/test_frameworks_as_agents.py",
    "peers/test_frameworks_as_clients.py",
    "gateway/test_translator.py",
    "test_bench.py",
    "security/test_egress.py",
    "cli/requirements/test_output.py",
    "test_docs.py",
    "cli/test_up.py",
    "mock/test_playing_commands.py",
    "cli/test_tasks_command.py",
    "crash/test_posts.py",
    "cli/test_workers.py",
)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what a test serves without naming a store out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice the cores: a test waits for processes and clocks about as long as it computes."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    if missing := [str(path) for path in places if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py: LONG names what is not there: {missing}")
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Leave loggers as they were: a server that a test runs in this process sets their levels."""
    loggers = [logging.getLogger(name) for name in ("", "dragoman", "dragoman.access", "uvicorn")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
