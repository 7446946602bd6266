"""Processes that an operator drains: only live ones, and only where the server may end itself."""

from pathlib import Path

import pytest
from harness.waiting import eventually

from dragoman.config import load_settings
from dragoman.model.identity import Scope
from dragoman.security.vault import vault_of
from dragoman.server import upkeep
from dragoman.server.store_marks import drained_processes
from dragoman.stores.interface import Known
from dragoman.stores.sqlite.store import SQLiteStore
from tests.http.test_access_control import ALICE, CHIEF
from tests.server.operator.operator_site import operator_site


async def test_only_a_live_process_is_drained_and_only_by_operators() -> None:
    async with operator_site() as site:
        ended: list[bool] = []
        site.app.site.end_process = lambda: ended.append(True)
        own = site.app.store.worker
        for number in ("0", str(own + 1), "nowhere"):
            assert (await site.post(f"/processes/{number}/drain")).status_code == 404
        for token in (ALICE, CHIEF):
            answer = await site.post(f"/processes/{own}/drain", token=token)
            assert answer.status_code in (403, 404)
        assert not ended
        answer = await site.post(f"/processes/{own}/drain")
        assert (answer.status_code, answer.json()["result"], ended) == (200, "ends", [True])


async def test_a_process_that_is_not_the_servers_to_end_is_not_drained() -> None:
    async with operator_site() as site:
        site.app.site.end_process = None
        answer = await site.post(f"/processes/{site.app.store.worker}/drain")
        assert answer.status_code == 400 and "not the server's to end" in answer.text


async def test_a_process_ends_once_it_was_asked_to_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not because another one was."""
    monkeypatch.setattr(upkeep, "DRAIN_LOOK_EVERY", 0.01)
    path = str(tmp_path / "tasks.db")
    async with operator_site(location=path) as site:
        ended: list[bool] = []
        site.app.site.end_process = lambda: ended.append(True)
        sealing = vault_of(load_settings({}, store=path))
        other = SQLiteStore(path, sealing=sealing)
        await other.open()
        try:
            answer = await site.post(f"/processes/{other.worker}/drain")
            assert (answer.status_code, answer.json()["result"]) == (200, "asked")
            assert await drained_processes(other).has(str(other.worker))
            known, looks = site.app.store.known, list[bytes]()

            async def counted(scope: Scope, key: bytes) -> Known | None:
                looks.append(key)
                return await known(scope, key)

            monkeypatch.setattr(site.app.store, "known", counted)
            await eventually(lambda: len(looks) > 2)
            assert not ended
            await drained_processes(other).add(str(site.app.store.worker))
            await eventually(lambda: ended)
            assert ended == [True]
        finally:
            await other.close()
