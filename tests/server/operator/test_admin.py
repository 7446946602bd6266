"""What operators read of the process itself."""

import pytest

from dragoman.stores.interface import Survey, TaskRow
from dragoman.stores.memory import MemoryStore
from tests.http.test_access_control import ALICE, BOSS, CHIEF, bearer
from tests.server.operator.operator_site import operator_site


async def test_the_status_tells_an_operator_how_the_server_is() -> None:
    async with operator_site() as site:
        await site.made(skill="wait")
        answer = await site.http.get("/admin/status", headers=bearer(BOSS))
        assert answer.headers["cache-control"] == "private, no-store"
        status = answer.json()
        assert status["state"] == "ok" and status["agents"] == ["clerk"]
        assert status["authentication"] == ["bearer"] and status["runningTasks"] == 1


async def test_others_have_no_business_here() -> None:
    async with operator_site() as site:
        for token in (ALICE, CHIEF):
            answer = await site.http.get("/admin/status", headers=bearer(token))
            assert answer.status_code == 403
        assert (await site.http.get("/admin/status")).status_code == 401
        posted = await site.http.post("/admin/status", headers=bearer(BOSS))
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET")


async def test_what_goes_wrong_inside_is_an_incident_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: MemoryStore, survey: Survey) -> list[TaskRow]:
        raise OSError("/secret/path is away")

    monkeypatch.setattr(MemoryStore, "survey", broken)
    async with operator_site() as site:
        answer = await site.ask("/tasks")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "incident" in caplog.text and "/secret/path" in caplog.text
