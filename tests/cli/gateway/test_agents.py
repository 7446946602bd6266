"""`dragoman agents` as somebody types it, against a gateway and agents in this process."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Ended, call, document, fields, lines
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.registry.registries import CARD_PATH, Peer

pytestmark = pytest.mark.anyio
CANARY = "c4nary-0123456789abcdef"


class Here:
    """A gateway, an agent that shows a card, and the command beside them."""

    def __init__(self, folder: Path, site: GatewaySite, peer: Peer) -> None:
        self.folder = folder
        self.site = site
        self.peer = peer

    async def agents(self, *words: str | Path, **env: str) -> Ended:
        return await call(
            "agents", *words, cwd=self.folder, env={"DRAGOMAN_GATEWAY": self.site.url} | env
        )

    async def json(self, *words: str | Path, **env: str) -> Any:
        return document(await self.agents(*words, "-o", "json", **env))


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Here]:
    folder = tmp_path_factory.mktemp("agents")
    async with gateway(folder) as site, Peer() as peer:
        yield Here(folder, site, peer)


@pytest.fixture
async def here(whole: Here) -> AsyncIterator[Here]:
    """The same gateway for all, without agents."""
    whole.peer.shows(whole.peer.card())
    yield whole
    registry = whole.site.gateway.registry
    for agent in registry.all():
        await registry.remove(agent.id, operator=True)


async def test_an_agent_is_registered_shown_listed_and_removed(here: Here) -> None:
    made = await here.agents(
        *("register", here.peer.url, "--tag", "geo", "--tag", "maps", "--price", "1.25"),
        *("--repeatable", "--default", "--refresh", "10m"),
    )
    assert made.returncode == 0, made.stderr
    shown = fields(made.stdout)
    assert shown["Name"] == "maps" and shown["Health"] == "online" and shown["Price"] == "1.25"
    assert shown["Address"] == f"{here.site.url}/a2a/maps" and shown["Tags"] == "geo maps"

    one = await here.json("show", "maps")
    assert one["card"] == here.peer.cards[CARD_PATH] and one["health"] == "online"
    assert one["tags"] == ["geo", "maps"] and one["skills"] == ["route"]
    assert await here.json("show", "@maps") == one
    agent = here.site.gateway.registry.get("maps")
    assert agent is not None and agent.repeatable and agent.is_default
    assert agent.price == 1_250_000
    assert agent.refresh == 600 or "--refresh was not taken" in made.stderr

    listed = await here.json("list", "--tag", "geo", "--health", "online")
    assert [item["name"] for item in listed["items"]] == ["maps"]
    assert "card" not in listed["items"][0] and listed["nextPageToken"] == ""
    assert (await here.json("list", "--text", "no such words"))["items"] == []

    kept = await here.agents("remove", "maps")
    assert kept.returncode == 2 and "--yes" in kept.stderr
    dry = await here.json("remove", "maps", "--dry-run")
    assert dry["result"] == "would be removed" and here.site.gateway.registry.get("maps")
    gone = await here.json("remove", "maps", "--yes")
    assert gone["result"] == "removed" and here.site.gateway.registry.get("maps") is None
    missing = await here.agents("show", "maps")
    assert missing.returncode == 1 and "dragoman agents list" in missing.stderr


async def test_lists_come_in_pages(here: Here) -> None:
    for name in "abc":
        await here.site.register(here.peer.url, name=name)
    first = await here.json("list", "--limit", "2")
    assert [item["name"] for item in first["items"]] == ["a", "b"]
    # It comes before them, and repeats none.
    await here.site.register(here.peer.url, name="aa")
    rest = await here.agents(
        "list", "--page-token", first["nextPageToken"], "-o", "json", "--stream"
    )
    assert [item["name"] for item in lines(rest)] == ["c"]
    text = (await here.agents("list", "--limit", "1")).stdout
    assert text.startswith("Name: a\n") and "Next-Page: 50:a" in text
    assert (await here.agents("list", "--page-token", "x")).returncode == 2


async def test_skills_are_declared_safe_to_repeat_and_no_longer(here: Here) -> None:
    words = ("register", here.peer.url, "--repeatable-skill")
    wrong = await here.agents(*words, "rout")
    assert wrong.returncode != 0 and "'rout' is none of its skills: route" in wrong.stderr
    assert fields((await here.agents(*words, "route")).stdout)["Repeatable-Skills"] == "route"
    assert (await here.json("show", "maps"))["repeatableSkills"] == ["route"]
    assert (await here.agents("update", "maps", "--repeatable-skill", "rout")).returncode != 0
    assert (await here.json("update", "maps", "--price", "1"))["repeatableSkills"] == ["route"]
    assert (await here.json("update", "maps", "--repeatable-skill", ""))["repeatableSkills"] == []


async def test_a_change_names_what_changes_and_leaves_the_rest(here: Here) -> None:
    await here.site.register(here.peer.url, tags=["geo"])
    changed = await here.json("update", "maps", "--price", "2", "--description", "Other.")
    assert (changed["price"], changed["description"], changed["tags"]) == (2, "Other.", ["geo"])
    assert (await here.agents("update", "maps")).returncode == 2
    dry = await here.json("update", "maps", "--price", "9", "--dry-run")
    assert dry["result"] == "would be changed" and dry["price"] == 9
    assert (await here.json("show", "maps"))["price"] == 2
    off = await here.agents("update", "maps", "--price", "-1")
    assert off.returncode == 2 and "--price" in off.stderr


async def test_a_card_that_is_held_is_told_and_accepted(here: Here) -> None:
    await here.site.register(here.peer.url)
    here.peer.shows(here.peer.card(path="/elsewhere"))
    probed = await here.agents("probe", "maps")
    shown = await here.json("show", "maps")
    digest = shown["pendingDigest"]
    assert shown["pendingCard"] == here.peer.cards[CARD_PATH]
    assert "addresses change" in probed.stderr
    assert f"dragoman agents accept maps {digest}" in probed.stderr
    assert fields(probed.stdout)["Health"] == "online"
    # Another one than was looked at: what is in force stays.
    third = here.peer.shows(here.peer.card(path="/anywhere"))
    await here.agents("probe", "maps")
    for words in (("accept", "maps", digest), ("update", "maps", "--accept", digest)):
        refused = await here.agents(*words)
        assert refused.returncode == 1 and "dragoman agents show maps" in refused.stderr
    assert (await here.json("show", "maps"))["card"] == shown["card"]
    assert (await here.agents("accept", "maps", "abc")).returncode == 2
    digest = (await here.json("show", "maps"))["pendingDigest"]
    accepted = await here.json("accept", "maps", digest)
    assert accepted["card"] == third and accepted["pendingReason"] is None
    again = await here.agents("update", "maps", "--accept", digest)
    assert again.returncode == 1


async def test_the_origin_a_card_needs_is_allowed_by_the_command_it_is_told(here: Here) -> None:
    other = "https://other.example.com"
    interface = {"url": other, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    here.peer.shows(here.peer.card(supportedInterfaces=[interface]))
    refused = await here.agents("register", here.peer.url)
    assert refused.returncode == 1 and f"--origin {other}" in refused.stderr
    assert (await here.agents("register", here.peer.url, "--origin", other)).returncode == 0


@pytest.mark.parametrize("way", ["env", "file"])
async def test_a_token_is_read_from_its_place_and_shown_nowhere(here: Here, way: str) -> None:
    file = here.folder / "token"
    file.write_text(f"{CANARY}\n")
    given = ["--token-env", "MAPS_TOKEN"] if way == "env" else ["--token-file", str(file)]
    outputs = [
        await here.agents("register", here.peer.url, *given, "--dry-run", MAPS_TOKEN=CANARY),
        await here.agents("register", here.peer.url, *given, "--debug", MAPS_TOKEN=CANARY),
        await here.agents("show", "maps", "-o", "json"),
        await here.agents("list"),
    ]
    assert all(one.returncode == 0 for one in outputs), [one.stderr for one in outputs]
    assert CANARY not in "".join(one.stdout + one.stderr for one in outputs)
    assert "bearer" in outputs[0].stdout
    credential = await here.site.gateway.registry.credential("maps")
    assert getattr(credential, "token", "") == CANARY
    await here.agents("update", "maps", *given, "--token-as", "X-Mine", MAPS_TOKEN=CANARY)
    agent = here.site.gateway.registry.get("maps")
    assert agent is not None and (agent.credential, agent.credential_header) == ("header", "X-Mine")
    await here.agents("update", "maps", "--no-token")
    assert await here.site.gateway.registry.credential("maps") is None


async def test_a_token_that_is_not_there_is_told(here: Here) -> None:
    wrong = [
        ("--token-env", "NOT_SET"),
        ("--token-file", "missing"),
        ("--token-env", "A", "--token-file", "b"),
        ("--token-file", str(here.folder)),
    ]
    for words in wrong:
        ended = await here.agents("register", here.peer.url, *words)
        assert ended.returncode == 2 and "--token" in ended.stderr


async def test_a_file_of_a_card_and_a_dry_run(here: Here) -> None:
    file = here.folder / "card.json"
    file.write_text(json.dumps(here.peer.cards[CARD_PATH]))
    dry = await here.json("register", file, "--name", "Ways", "--dry-run")
    assert dry["url"] == here.peer.url and dry["name"] == "Ways" and dry["skills"] == ["route"]
    assert here.site.gateway.registry.all() == []
    assert (await here.json("register", file, "--name", "Ways"))["name"] == "ways"
    file.write_text("{}")
    assert (await here.agents("register", file)).returncode == 1
    assert (await here.agents("register", "@maps")).returncode == 2


async def test_a_gateway_that_is_not_there_or_none_is_told(here: Here) -> None:
    away = await here.agents("list", DRAGOMAN_GATEWAY="http://127.0.0.1:9")
    assert away.returncode == 3 and "dragoman up" in away.stderr
    none = await here.agents("list", "--gateway", here.peer.url)
    assert none.returncode == 1 and f"Hint: dragoman doctor {here.peer.url}" in none.stderr
    assert (await here.agents("list", "--gateway", "no where")).returncode == 2


async def test_a_gateway_is_named_with_or_without_its_scheme(here: Here) -> None:
    address = here.site.url.removeprefix("http://")
    assert (await here.agents("list", "--gateway", address)).returncode == 0


async def test_an_agent_that_does_not_answer_is_told_in_words_and_looked_at(here: Here) -> None:
    refused = await here.agents("register", "http://127.0.0.1:9")
    assert "connection refused" in refused.stderr and "NotConnected" not in refused.stderr
    assert "Hint: dragoman card get -a 127.0.0.1:9" in refused.stderr


async def test_a_gateway_that_wants_a_token_gets_it_and_nobody_else_sees_it(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, auth_token=CANARY) as site:
        given = {"DRAGOMAN_GATEWAY": site.url}
        refused = await call("agents", "list", "--limit", "3", cwd=tmp_path, env=given)
        assert refused.returncode == 4
        assert "A2ACLI_BEARER='<token>' dragoman agents list --limit 3" in refused.stderr
        wrong = "wrong-token-0123456789"
        both = {"DRAGOMAN_ADMIN_TOKEN": CANARY, "A2ACLI_BEARER": wrong}
        assert (await call("agents", "list", cwd=tmp_path, env=given | both)).returncode == 0
        for token, name in (
            (CANARY, "DRAGOMAN_ADMIN_TOKEN"),
            (CANARY, "A2ACLI_BEARER"),
            (wrong, "DRAGOMAN_ADMIN_TOKEN"),
            (wrong, "A2ACLI_BEARER"),
        ):
            env = given | {name: token}
            ended = await call("agents", "list", "--debug", cwd=tmp_path, env=env)
            assert ended.returncode == (0 if token == CANARY else 4)
            assert token not in ended.stdout + ended.stderr


async def test_an_address_where_nothing_listens_is_told_and_no_success(here: Here) -> None:
    here.peer.is_up = False
    try:
        # Nothing but an address: there is nothing to register.
        bare = await here.agents("register", here.peer.url)
        assert bare.returncode == 1 and "could not be fetched" in bare.stderr
        assert here.site.gateway.registry.all() == []
        named = await here.agents("register", here.peer.url, "--name", "Typo")
        assert named.returncode == 1
        shown = fields(named.stdout)
        assert shown["Result"] == "registered as offline" and shown["Health"] == "offline"
        assert "refused" in shown["Health-Reason"]
        assert f"no agent answers at {here.peer.url}" in named.stderr and "refused" in named.stderr
        assert "dragoman agents update typo --url" in named.stderr
        # For programs there is one document, and the exit.
        ended = await here.agents("register", here.peer.url, "--name", "Again", "-o", "json")
        item = json.loads(ended.stdout)
        assert ended.returncode == 1 and item["result"] == "registered as offline"
        assert item["health"] == "offline" and "refused" in item["healthReason"]
    finally:
        here.peer.is_up = True
    assert (await here.json("probe", "typo"))["healthReason"] is None


async def test_an_agent_that_is_not_there_yet_is_registered_if_that_is_meant(here: Here) -> None:
    here.peer.is_up = False
    try:
        meant = await here.json("register", here.peer.url, "--name", "Late", "--offline")
        assert meant["result"] == "registered as offline"
        # By its address alone too: its name comes with its card.
        await here.json("register", here.peer.url, "--offline")
    finally:
        here.peer.is_up = True
    found = await here.json("probe", "127-0-0-1")
    assert (found["title"], found["health"], found["skills"]) == ("Maps", "online", ["route"])
    # One that is there is registered as ever.
    there = await here.json("register", here.peer.url, "--offline")
    assert (there["result"], there["health"]) == ("registered", "online")


async def test_a_change_to_an_address_where_nothing_listens_is_no_success(here: Here) -> None:
    await here.site.register(here.peer.url)
    async with Peer() as other:
        other.is_up = False
        moved = await here.agents("update", "maps", "--url", other.url)
        assert moved.returncode == 1 and f"no agent answers at {other.url}" in moved.stderr
        assert fields(moved.stdout)["Health"] == "offline"
        assert (await here.json("update", "maps", "--url", other.url, "--offline"))["health"] == (
            "offline"
        )
        # What does not move it is no reason to look.
        assert (await here.json("update", "maps", "--price", "1"))["price"] == 1
    back = await here.json("update", "maps", "--url", here.peer.url)
    assert back["health"] == "online"


async def test_ids_of_messages_are_kept_and_no_longer(here: Here) -> None:
    made = await here.agents("register", here.peer.url, "--keep-message-ids")
    assert fields(made.stdout)["Keep-Message-Ids"] == "yes"
    assert (await here.json("show", "maps"))["keepMessageIds"] is True
    off = await here.json("update", "maps", "--keep-message-ids=false")
    assert off["keepMessageIds"] is False
