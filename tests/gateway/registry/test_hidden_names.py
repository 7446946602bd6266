"""That an agent is there is known to those it is for: registering one of the same name tells nobody
else, whatever they compare."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.registry.registration import LONGEST_SLUG, private_name
from dragoman.stores.sqlite.registry import agents as rows
from tests.gateway.guarded_site import ALICE, BOB, OPERATOR, ask, completes, guarded
from tests.gateway.raw_peer import raw_peer

# What differs between any two agents.
_OWN = ("id", "created_at", "updated_at", "last_heartbeat", "last_seen_at")


async def register(site: Any, token: str, url: str, name: str, **more: Any) -> dict[str, Any]:
    body = {"endpoint": url, "name": name, **more}
    answer = await ask(site, "POST", "/api/v1/agents", token, body)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


def bare(found: dict[str, Any], *names: str) -> str:
    """Return an answer without what differs between any two agents, and without their names."""
    text = str({name: value for name, value in found.items() if name not in _OWN})
    for name in names:
        text = text.replace(name, "NAME")
    return text


async def test_the_name_of_a_hidden_agent_is_free_for_those_who_do_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        hidden = await register(site, BOB, f"{peer.url}/b", "Ledger", callers=["token:op2"])
        asked: list[tuple[str, Any]] = []
        run = rows.run

        def counted(connection: Any, sql: str, *more: Any) -> Any:
            asked.append((sql, len(more)))
            return run(connection, sql, *more)

        monkeypatch.setattr(rows, "run", counted)
        seen: list[tuple[str, list[Any]]] = []
        for name in ("Ledger", "Larder"):
            asked.clear()
            made = await register(site, ALICE, f"{peer.url}/{name}", name)
            assert made["slug"] == name.lower()
            # Another look at the same agent says nothing else either.
            again = await ask(site, "GET", f"/api/v1/agents/{made['slug']}", ALICE)
            page = await ask(site, "GET", f"/api/v1/agents?text={name}", ALICE)
            assert page.json()["data"]["total"] == 1
            text = bare(made, name, name.lower()) + bare(again.json()["data"], name, name.lower())
            deeds = [one for one in asked if "agents" in one[0] and "status" not in one[0]]
            seen.append((text, deeds))
        assert seen[0] == seen[1]
        monkeypatch.undo()
        # Each is where it was, for those who see it.
        for token, name in ((ALICE, "ledger"), (BOB, hidden["slug"]), (OPERATOR, hidden["slug"])):
            assert (await ask(site, "GET", f"/a2a/{name}", token)).status_code == 200


async def test_two_hidden_agents_of_one_name_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        names: list[str] = []
        for token in (ALICE, BOB, BOB):
            url = f"{peer.url}/{len(names)}"
            made = await register(site, token, url, "Ledger", callers=["token:op2"])
            names.append(made["slug"])
        assert len({*names}) == 3
        assert all(name.startswith("ledger-") and len(name) == 19 for name in names)


async def test_an_agent_that_is_no_longer_for_everybody_leaves_its_name(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        made = await register(site, BOB, f"{peer.url}/b", "Ledger")
        assert made["slug"] == "ledger"
        path = f"/api/v1/agents/{made['id']}"
        hidden = (await ask(site, "PATCH", path, BOB, {"callers": ["token:op2"]})).json()["data"]
        assert hidden["slug"].startswith("ledger-")
        # It keeps that name: those whom it is for may know it.
        changes: list[dict[str, Any]] = [{"callers": ["token:op3"]}, {"name": "Other"}]
        changes.append({"callers": []})
        for change in changes:
            later = (await ask(site, "PATCH", path, BOB, change)).json()["data"]
            assert later["slug"] == hidden["slug"]
        await ask(site, "PATCH", path, BOB, {"callers": ["token:op2"]})
        assert (await register(site, ALICE, f"{peer.url}/a", "Ledger"))["slug"] == "ledger"
        assert (await ask(site, "GET", f"/a2a/{hidden['slug']}", BOB)).status_code == 200


async def test_a_name_that_everybody_sees_is_still_told_apart_by_a_number(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        await register(site, BOB, f"{peer.url}/b", "Ledger")
        assert (await register(site, ALICE, f"{peer.url}/a", "Ledger"))["slug"] == "ledger-2"


def test_a_private_name_has_an_ending_of_its_own_and_fits() -> None:
    name = private_name("x" * LONGEST_SLUG, "id-1", b"k" * 32)
    assert len(name) <= LONGEST_SLUG and private_name(name, "id-1", b"k" * 32) == name
    others = {private_name("a", id, key) for id in ("1", "2") for key in (b"k" * 32, b"l" * 32)}
    assert len(others) == 4


async def test_others_see_no_secret_in_what_is_said_of_an_agent_and_its_owner_does(
    tmp_path: Path,
) -> None:
    said = {"region": "eu", "dbPassphrase": "hush", "deep": [{"auth_token": "hush"}]}
    async with raw_peer(completes) as peer, guarded(tmp_path) as site:
        made = await register(site, BOB, f"{peer.url}/b", "Ledger", metadata=said)
        await ask(site, "POST", f"/api/v1/agents/{made['id']}/heartbeat", BOB)
        path = f"/api/v1/agents/{made['id']}"
        own, other = [
            (await ask(site, "GET", path, token)).json()["data"] for token in (BOB, ALICE)
        ]
        assert own["metadata"] == said
        hidden = "<redacted>"
        shown = {"region": "eu", "dbPassphrase": hidden, "deep": [{"auth_token": hidden}]}
        assert other["metadata"] == shown
        listed = await ask(site, "GET", "/api/v1/agents?text=Ledger", ALICE)
        assert "hush" not in listed.text and "dbPassphrase" in listed.text
