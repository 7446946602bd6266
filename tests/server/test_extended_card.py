"""The extended card: each caller sees what is for it, nobody sees another's, strangers nothing."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import V1, client, hosting
from joserfc.jwk import ECKey

from dragoman import Agent, AgentSkill, App, Settings
from dragoman.config import CardSettings, StoreSettings, load_settings
from dragoman.model.identity import Caller
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.security.card_keys import KeySet
from dragoman.security.card_signatures import verify

TOKENS = {
    "alice-token-0123456789": Caller("alice", True, frozenset({"gold"})),
    "bob-token-0123456789": Caller("bob", True),
}
ALICE, BOB = TOKENS
OLD = "/agent/authenticatedExtendedCard"
NEW = "/extendedAgentCard"


def skill(id: str, *requirements: Any) -> AgentSkill:
    return AgentSkill(
        id=id,
        name=id.capitalize(),
        description=f"Is {id}.",
        tags=["x"],
        security_requirements=list(requirements),
    )


def needs(*scopes: str) -> Any:
    return {"schemes": {"bearer": {"list": list(scopes)}}}


def agent_with(extended: Any) -> Agent:
    agent = Agent("House", "Has rooms.", extended_skills=extended)

    @agent.skill
    def hall(text: str) -> str:
        """Enter."""
        return text

    return agent


@asynccontextmanager
async def house(extended: Any, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    ways = [BearerTokens(tokens=TOKENS)]
    chosen = load_settings({}, store="memory:", **settings)
    app = App(agent_with(extended), settings=chosen, authenticators=ways)
    async with hosting(app) as url, client(url) as http:
        yield http


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


async def answers(http: httpx.AsyncClient, token: str) -> dict[str, httpx.Response]:
    """Return the extended card as every binding and generation asks for it."""
    headers = bearer(token)

    async def rpc(method: str, **more: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
        return await http.post("/", json=body, headers=headers | more)

    return {
        "jsonrpc 1.0": await rpc("GetExtendedAgentCard", **V1),
        "jsonrpc 0.3": await rpc("agent/getAuthenticatedExtendedCard"),
        "rest 1.0": await http.get(NEW, headers=headers | V1),
        "rest 0.3": await http.get("/v1/card", headers=headers),
        "get 0.2": await http.get(OLD, headers=headers),
    }


def card_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    value = answer.json()
    return value.get("result", value)


def ids(answer: httpx.Response) -> list[str]:
    return [one["id"] for one in card_of(answer)["skills"]]


def name_of(caller: Caller) -> str:
    """Return the name without the kind of credential that it is known by."""
    return caller.owner.rpartition(":")[2]


async def later(caller: Caller) -> list[AgentSkill]:
    await asyncio.sleep(0)
    return [skill(f"room-of-{name_of(caller)}")]


def at_once(caller: Caller) -> list[AgentSkill]:
    return [skill(f"room-of-{name_of(caller)}")]


@pytest.mark.parametrize("extended", [later, at_once])
async def test_two_callers_get_two_cards_and_a_stranger_none(extended: Any) -> None:
    async with house(extended) as http:
        for token, name in ((ALICE, "alice"), (BOB, "bob")):
            for way, answer in (await answers(http, token)).items():
                assert ids(answer) == ["hall", f"room-of-{name}"], way
        strangers = await answers(http, "")
        wrong = await answers(http, "nobody-token-0123456789")
        refusals = [*strangers.values(), *wrong.values()]
        assert {answer.status_code for answer in refusals} == {401}
        assert len({answer.content for answer in refusals}) == 1


async def test_no_cache_gives_one_callers_card_to_another() -> None:
    async with house(at_once) as http:
        for way, answer in (await answers(http, ALICE)).items():
            assert answer.headers["cache-control"] == "private, no-store", way
            named = answer.headers["vary"].lower().split(", ")
            assert "authorization" in named, way
            assert "etag" not in answer.headers, way
        # The card for everybody says nothing of it, before and after.
        public = await http.get("/.well-known/agent-card.json", headers=bearer(ALICE) | V1)
        assert ids(public) == ["hall"] and public.json()["capabilities"]["extendedAgentCard"]


async def test_skills_with_requirements_are_for_those_whose_scopes_fulfil_one() -> None:
    extended = [
        skill("open"),
        skill("any", needs()),
        skill("gold", needs("gold")),
        skill("both", needs("gold", "silver")),
        skill("either", needs("silver"), needs("gold")),
        skill("odd", {"schemes": ["bearer"]}),
        skill("odder", {}),
        skill("oddest", "gold"),
    ]
    async with house(extended) as http:
        seen = {
            token: {tuple(ids(answer)) for answer in (await answers(http, token)).values()}
            for token in (ALICE, BOB)
        }
        assert seen[ALICE] == {("hall", "open", "any", "gold", "either")}
        assert seen[BOB] == {("hall", "open", "any")}
    async with house(lambda caller: extended) as http:
        assert ids((await answers(http, BOB))["rest 1.0"]) == ["hall", "open", "any"]


async def test_every_callers_card_is_signed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(json.dumps(ECKey.generate_key("P-256").as_dict(private=True)))
    more = {"sign_key": str(key), "public_url": "https://a.example"}
    async with house(at_once, **more) as http:
        keys = KeySet.decode((await http.get("/.well-known/jwks.json")).json())
        for token in (ALICE, BOB):
            found = await answers(http, token)
            for way in ("jsonrpc 1.0", "rest 1.0"):
                card = card_of(found[way])
                verdict = verify(card, keys)
                assert (verdict.kind, verdict.form) == ("verified", "strict"), verdict.reason
                assert verdict.covered["skills"][1]["id"] == f"room-of-{TOKENS[token].owner}"
                card["skills"][1]["id"] = "forged"
                assert verify(card, keys).kind == "unverifiable"


async def test_a_function_that_fails_shows_nothing_of_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(caller: Caller) -> list[AgentSkill]:
        raise RuntimeError("s3cret of the house")

    async with house(broken) as http:
        for way, answer in (await answers(http, ALICE)).items():
            assert "skills" not in answer.text and "s3cret" not in answer.text, way
            assert "error" in answer.json() or answer.status_code >= 500, way
        assert caplog.text.count("s3cret of the house") >= 5


async def test_nobody_in_particular_sees_what_is_for_nobody_in_particular() -> None:
    app = App(
        agent_with(lambda caller: [skill("known" if caller.authenticated else "stranger")]),
        settings=Settings(
            stores=StoreSettings(location="memory:"), cards=CardSettings(extended_public=True)
        ),
    )
    async with hosting(app) as url, client(url) as http:
        for way, answer in (await answers(http, "")).items():
            assert ids(answer) == ["hall", "stranger"], way


async def test_a_card_for_known_callers_alone_is_kept_by_no_shared_cache() -> None:
    for is_public, word in ((True, "public"), (False, "private")):
        async with house([], card_public=is_public) as http:
            answer = await http.get("/.well-known/agent-card.json", headers=bearer(ALICE))
            assert answer.headers["cache-control"].startswith(f"{word}, ")
