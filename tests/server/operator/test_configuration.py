"""What operators see of how the server is set up: settings, store and keys."""

from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.security.keys import key_file
from tests.server.operator.operator_site import operator_site


async def test_a_setting_is_told_with_its_source_and_a_secret_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_MAX_EVENTS", "5000")
    given = {"rate_limit": "100/60s", "push_secret": "whsec_" + "c2VjcmV0" * 4, "max_events": 5000}
    async with operator_site(**given) as site:
        items = (await site.read("/settings"))["items"]
        found = {one["name"]: (one["value"], one["source"]) for one in items}
        assert found["max_events"] == ("5000", "environment")
        assert found["rate_limit"] == ("100/60s", "given")
        assert found["idempotency"] == ("true", "default")
        assert found["push_secret"] == ("<redacted>", "given")
        assert "c2VjcmV0" not in (await site.ask("/settings")).text
        assert all(one["about"] for one in items)


async def test_a_store_tells_how_large_it_is(location: str) -> None:
    async with operator_site(location=location) as site:
        await site.made()
        found = await site.read("/store")
        assert found["tasks"] == 1 and not found["isAlmostFull"]
        assert (found["bytes"] > 0) == (found["kind"] != "memory")
        assert (found["freeBytes"] is None) == (found["kind"] != "sqlite")
        assert (found["schema"] > 0) == (found["kind"] != "memory")
        assert "@" not in found["name"]


async def test_a_key_is_listed_without_its_text_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = key_file.create(
        path, "bot", scopes=["tasks:read"], tenant=None, lifetime=timedelta(days=1)
    )
    async with operator_site(keys=str(path)) as site:
        (key,) = (await site.read("/keys"))["items"]
        assert (key["owner"], key["state"], key["scopes"]) == ("bot", "active", ["tasks:read"])
        assert made.text not in (await site.ask("/keys")).text
        assert (await site.post("/keys/zzzz/revoke")).status_code == 404
        assert (await site.post(f"/keys/{key['id']}/revoke")).json() == {"result": "revoked"}
        (key,) = (await site.read("/keys"))["items"]
        assert key["state"] == "revoked"
