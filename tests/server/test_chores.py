"""What a server does by itself goes on whatever happens in it: nobody asks for it, so nobody would
notice that it ended."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from serving import within

from dragoman import Agent, App, Settings
from dragoman.server import app as served
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


@pytest.mark.parametrize("name", ["renew", "claim", "claim_pushes", "prune"])
async def test_a_chore_that_failed_is_done_again(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, name: str
) -> None:
    monkeypatch.setattr(served, "PRUNE_EVERY", 0.01)
    store = MemoryStore()
    fault = Fault(monkeypatch, store, name)
    # Shorter than one may be, so that a chore comes round soon.
    async with App(agent, settings=Settings(lease=0.03), store=store).running() as app:
        await within(fault.is_called_again.wait())
        assert not any(chore.done() for chore in app._chores)


async def test_a_store_that_could_not_look_at_its_file_still_lets_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = SQLiteStore(tmp_path / "tasks.db"), SQLiteStore(tmp_path / "tasks.db")
    await first.open()
    try:
        assert first.is_alone
        fault = Fault(monkeypatch, first._workers, "others")
        await within(fault.is_called_again.wait())
        await within(second.open())
        assert not first.is_alone and not second.is_alone
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
        fault = Fault(monkeypatch, first, "_look_around")
        await within(fault.is_called_again.wait())
        first.listen(heard.set)
        await second.renew()
        await within(heard.wait())
    finally:
        await second.close()
        await first.close()
