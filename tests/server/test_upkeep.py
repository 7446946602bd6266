"""What a server does by itself goes on whatever happens in it: nobody asks for it, so nobody would
notice that it ended."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import within

from dragoman import Agent, App, Settings
from dragoman.config import EngineSettings
from dragoman.server import upkeep
from dragoman.server.operator.tasks import words
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SQLiteStore


class Fault:
    """Makes a method fail the first time, in a way nobody thought of; tells of the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.is_called_again = asyncio.Event()
        self._calls = 0
        self._method = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._call)

    def _call(self, *given: Any, **more: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise RuntimeError("nobody thought of this")
        self.is_called_again.set()
        return self._method(*given, **more)


@pytest.fixture
def agent() -> Agent:
    return Agent("Plain", "Does as it is told.")


def _chores() -> set[Any]:
    """Return what runs of an app's upkeep."""
    tasks: set[Any] = asyncio.all_tasks()
    return {task for task in tasks if task.get_coro().__qualname__.startswith("Upkeep.")}


@pytest.mark.parametrize("name", ["renew", "claim", "claim_pushes", "prune"])
async def test_a_chore_that_failed_is_done_again(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, name: str
) -> None:
    monkeypatch.setattr(upkeep, "PRUNE_EVERY", 0.01)
    store = MemoryStore()
    fault = Fault(monkeypatch, store, name)
    # The shortest there is, so that a chore comes round soon.
    async with App(agent, settings=Settings(engine=EngineSettings(lease=1)), store=store).running():
        begun = _chores()
        await within(fault.is_called_again.wait())
        assert begun and begun <= _chores()


async def test_a_look_for_drains_that_failed_is_done_again(
    monkeypatch: pytest.MonkeyPatch, agent: Agent
) -> None:
    monkeypatch.setattr(upkeep, "DRAIN_LOOK_EVERY", 0.01)
    store = MemoryStore()
    # A process that is alone does not look.
    monkeypatch.setattr(store, "knows_all", False)
    fault = Fault(monkeypatch, store, "known")
    async with App(agent, store=store).running():
        await within(fault.is_called_again.wait())


@pytest.mark.parametrize("is_busy", [False, True])
async def test_words_are_indexed_more_slowly_beside_other_work(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, is_busy: bool
) -> None:
    """A search reads what is not indexed by itself, so callers come first."""
    told: list[bool] = []
    is_asked = asyncio.Event()

    def pause(took: float, *, is_busy: bool) -> float:
        told.append(is_busy)
        is_asked.set()
        return upkeep.INDEX_EVERY

    async def index_some(_: object) -> bool:
        return True

    monkeypatch.setattr(upkeep, "INDEX_EVERY", 0.01)
    monkeypatch.setattr(words, "index_some", index_some)
    assert upkeep.index_pause(1.0, is_busy=True) > 4 * upkeep.index_pause(1.0, is_busy=False)
    monkeypatch.setattr(upkeep, "index_pause", pause)
    # A processor that all of the time was for other work, or none of it.
    worked = time.monotonic if is_busy else float
    monkeypatch.setattr(upkeep.time, "process_time", worked)
    async with App(agent, store=MemoryStore()).running():
        await within(is_asked.wait())
    assert set(told) == {is_busy}


async def test_a_store_that_could_not_look_at_its_file_still_lets_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = SQLiteStore(tmp_path / "tasks.db"), SQLiteStore(tmp_path / "tasks.db")
    await first.open()
    try:
        assert first.knows_all
        fault = Fault(monkeypatch, first._workers, "others")
        await within(fault.is_called_again.wait())
        await within(second.open())
        assert not first.knows_all and not second.knows_all
        await second.close()
    finally:
        await first.close()


async def test_a_store_in_company_that_could_not_look_at_its_file_hears_of_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = SQLiteStore(tmp_path / "tasks.db"), SQLiteStore(tmp_path / "tasks.db")
    await first.open()
    await within(second.open())
    try:
        heard = asyncio.Event()
        fault = Fault(monkeypatch, first, "_follow_peers")
        await within(fault.is_called_again.wait())
        first.listen(lambda _: heard.set())
        await second.renew()
        await within(heard.wait())
    finally:
        await second.close()
        await first.close()
