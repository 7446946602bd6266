"""What every test shares: the loop async tests run on, and the order of a run of all of them."""

import contextlib
import gc
import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import hypothesis
import pytest
from _pytest.assertion.rewrite import PYC_TAIL, get_cache_dir
from harness import nursery, spreading, store_files
from harness.databases import Databases, copy_clusters, new_database

from dragoman.testing.processes import ServerProcess

# Hooks of pytest that are written elsewhere.
pytest_addoption = spreading.pytest_addoption
pytest_runtestloop = spreading.pytest_runtestloop

_HERE = Path(__file__).parent
_ROOT = _HERE.parent

# The shipped suites and the scripts of the peers assert as tests do, and explain themselves alike.
pytest.register_assert_rewrite("dragoman.testing.promises", "tests.peers.scripts")

# Servers of ours, also those of the proofs, need not load themselves first.
ServerProcess.starts = staticmethod(nursery.popen)

store_files.install()

# An example takes as long as the machine lets it, and so does making one.
hypothesis.settings.register_profile(
    "any pace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any pace")

# Tests write thousands of small files and databases, each of them synced. In memory a sync takes no
# time, and does not wait for the disk of a busy machine; no test can tell the two apart.
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30


def _keep_files_in_memory() -> None:
    """Let this process and its children make their temporary files in memory, where there is room;
    a folder that the user names stays."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


_keep_files_in_memory()
copy_clusters()

# Files that take long, longest first: begun late, one of them would keep the others waiting at the
# end. The peers are further down, because their environments may have to be made first.
LONG = (
    "proof/test_sabotage.py",
    "engine/running/test_suspects.py",
    "gateway/delivery/test_frozen_agents.py",
    "gateway/test_malformed.py",
    "test_check.py",
    "replicas/test_limits.py",
    "stores/postgres/test_submitted_again.py",
    "gateway/delivery/test_silent_agents.py",
    "proof/test_proofs.py",
    "stores/postgres/test_promises.py",
    "cli/serving/test_serve.py",
    "replicas/test_rolling.py",
    "crash/test_deadly_tasks.py",
    "typed/test_authors.py",
    "console/test_hostile.py",
    "console/test_pages.py",
    "gateway/api/test_api_schemathesis.py",
    "peers/test_client_against_peers.py",
    "peers/test_frameworks_as_agents.py",
    "gateway/translator/test_translator.py",
    "peers/test_frameworks_as_clients.py",
    "peers/test_interop.py",
    "agents/adapters/test_real_frameworks.py",
    "stores/test_watch.py",
    "stores/postgres/test_ledger.py",
    "replicas/test_killed.py",
    "gateway/money/test_no_credit.py",
    "client/streams/test_cuts.py",
    "cli/serving/test_workers.py",
    "crash/test_kill.py",
    "deploy/test_chart.py",
    "console/test_operating.py",
    "console/test_faults.py",
    "replicas/test_upgrade.py",
    "stores/postgres/test_errors.py",
    "conformance/test_suites_1_0.py",
    "cli/requirements/test_transport.py",
    "conformance/test_suites_0_x.py",
    "matrix/test_matrix.py",
    "agents/adapters/test_programs.py",
    "proof/test_join.py",
    "server/grpc/test_edge.py",
    "server/grpc/test_http2.py",
    "gateway/translator/test_example.py",
    "gateway/rollouts/test_page.py",
    "replicas/test_readiness.py",
    "matrix/test_routes.py",
    "matrix/test_commands.py",
    "http/test_unread.py",
    "cli/requirements/test_auth.py",
    "dialects/test_round_trips.py",
    "replicas/test_gateways.py",
    "gateway/api/test_api_commands.py",
    "crash/test_database.py",
    "client/test_silent_peers.py",
    "http/test_shared_rates.py",
    "test_bench.py",
    "mcp/test_mcp_served.py",
    "authoring/test_asking.py",
    "gateway/money/test_escrow.py",
    "cli/requirements/test_tasks.py",
    "test_site.py",
    "test_tutorial.py",
    "test_examples.py",
    "authoring/durable/test_time.py",
    "authoring/durable/test_steps.py",
    "engine/test_recovery.py",
    "authoring/durable/test_questions.py",
    "stores/postgres/test_seals.py",
    "gateway/delivery/test_isolation.py",
    "engine/test_sharing.py",
    "server/process/test_loop_watch.py",
    "stores/postgres/test_buses.py",
    "testing/test_scripted_agent.py",
    "engine/running/test_taking_over.py",
    "stores/postgres/test_schema.py",
    "crash/test_lost_store.py",
    "stores/postgres/test_gateway_promises.py",
    "corpus/test_corpus.py",
    "gateway/money/test_orders.py",
    "gateway/rollouts/test_rollouts.py",
    "engine/test_sending.py",
    "engine/running/test_worker.py",
    "deploy/test_monitoring.py",
    "cli/serving/test_init.py",
    "cli/test_next_command.py",
    "push/test_sender.py",
    "stores/postgres/test_leases.py",
    "client/test_hostile.py",
    "cli/operating/test_store_command.py",
    "proof/test_cluster.py",
    "telemetry/test_traces.py",
    "http/overload/test_memory.py",
)


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    with Databases.of_own() as databases:
        yield databases


@pytest.fixture(params=("memory", "sqlite", "postgres"))
async def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a store is: one of each kind in turn."""
    if request.param == "postgres":
        return await new_database(request)
    return "memory:" if request.param == "memory" else str(tmp_path / "tasks.db")


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    url = databases.make()
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Run the tests of a file on one loop. grpcio hears of what it ended a moment later, and gives
    that to the loop on which it began: one that is closed by then is an error of the next test.

    A test without a loop may be the only one that is run again: it names the backend for it."""
    yield


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what a test serves without naming a store out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import new files on all cores before they are collected: pytest rewrites the assertions of a
    file when it is first imported, and what one process wrote the others load."""
    is_whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or spreading.number_of_processes(session.config) == 1:
        return
    files = sorted(path.relative_to(_ROOT) for path in _HERE.rglob("test_*.py") if _is_new(path))
    cores = os.cpu_count() or 1
    spreading.beside_each_other([partial(_import, files[core::cores]) for core in range(cores)])


def _is_new(path: Path) -> bool:
    """Tell whether pytest has not written a file since it was changed."""
    written = get_cache_dir(path) / (path.stem + PYC_TAIL)
    return not written.exists() or written.stat().st_mtime < path.stat().st_mtime


def _import(files: Sequence[Path]) -> None:
    for path in files:
        # The collection tells of what cannot be imported.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first."""
    places = {_HERE / name: place for place, name in enumerate(LONG)}
    if missing := [str(path) for path in places if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py: LONG names what is not there: {missing}")
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what was collected out of garbage collection: half a million objects that stay to the
    end. Looking through them again and again took a third of the processor's time."""
    if spreading.number_of_processes(session.config) > 1 and not session.config.option.collectonly:
        nursery.start()
        # The first strategy of a process makes tables of all characters, which takes seconds where
        # none are in `.hypothesis/` yet.
        hypothesis.strategies.text().validate()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Leave loggers as they were: a server that a test runs in this process sets their levels."""
    loggers = [logging.getLogger(name) for name in ("", "dragoman", "dragoman.access", "uvicorn")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
