"""What a caller learns of a refusal: why, what it would take, and when to come back."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.serving import serving
from harness.waiting import within

from dragoman import Agent, Client
from dragoman.errors import (
    CredentialsMissing,
    Overloaded,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
)
from tests.client.stub import Asked, Said, Stub, card, client, rest_card

TOKEN = "bob-token-0123456789"
ASKED = 'Bearer error="insufficient_scope", scope="gold silver"'
CARDS = {"JSONRPC": card(streaming=False), "HTTP+JSON": rest_card(streaming=False)}


def refusing(status: int, body: Any, **headers: str) -> Stub:
    """A peer that refuses."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(asked: Asked) -> Said:
        return Said(status, named, pieces=[json.dumps(body).encode()])

    return Stub(answer)


@pytest.mark.parametrize("binding", CARDS)
async def test_a_skill_for_others_says_which_scope_it_takes(binding: str, tmp_path: Path) -> None:
    agent = Agent("Bank", "Has a skill for some.")

    @agent.skill(scopes=["gold"])
    async def pay(text: str) -> str:
        return "paid"

    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[bob]\ntoken = "{TOKEN}"\n')
    tokens.chmod(0o600)
    async with (
        serving(agent, auth_tokens=str(tokens)) as site,
        Client(site.url, bearer=TOKEN, bindings=[binding]) as bob,
    ):
        with pytest.raises(PermissionDenied) as denied:
            await within(bob.send("hi"))
    assert denied.value.public == "Forbidden: Insufficient permissions for skill 'pay'"
    assert denied.value.facts["scope"] == "gold" and denied.value.code == 403


@pytest.mark.parametrize("binding", CARDS)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "Not\x1b[2J for\u202eyou"}}, "Not\\x1b[2J for\\u202eyou"),
        ({"detail": "Not for you"}, "Not for you"),
        ({"jsonrpc": "2.0", "error": {"code": -32603, "message": "No"}}, "No"),
        ({"error": {"message": "x" * 5000}}, "x" * 200 + "…"),
        ({"error": {"message": 7}}, "Permission denied"),
        ({"error": "Not for you"}, "Not for you"),
        (["odd"], "Permission denied"),
    ],
)
async def test_the_sentence_of_a_403_is_made_fit_to_be_shown(
    binding: str, body: Any, said: str
) -> None:
    with pytest.raises(PermissionDenied) as denied:
        await within(client(refusing(403, body), CARDS[binding]).get("t-1"))
    assert denied.value.public == said and "scope" not in denied.value.facts


@pytest.mark.parametrize(
    ("asked", "scope"),
    [(ASKED, "gold silver"), ('Bearer scope="a\x7fb"', None), ('Bearer noscope="gold"', None)],
)
async def test_the_scope_of_a_403_is_one_of_its_facts(asked: str, scope: str | None) -> None:
    stub = refusing(403, {}, www_authenticate=asked)
    with pytest.raises(PermissionDenied) as denied:
        await within(client(stub, CARDS["JSONRPC"]).get("t-1"))
    assert denied.value.facts.get("scope") == scope


async def test_a_401_says_the_same_whatever_the_peer_says() -> None:
    stub = refusing(401, {"error": {"message": "No user bob"}}, www_authenticate=ASKED)
    with pytest.raises(CredentialsMissing) as missing:
        await within(client(stub, CARDS["JSONRPC"]).get("t-1"))
    refusal = missing.value.__cause__
    assert isinstance(refusal, Unauthenticated) and refusal.public == "Authentication is required"
    assert "scope" not in refusal.facts


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, Overloaded)])
async def test_a_message_is_not_kept_waiting_for_longer_than_a_person_would(
    status: int, kind: type[Overloaded]
) -> None:
    stub = refusing(status, {"title": "Busy"}, retry_after="3600")
    with pytest.raises(kind) as busy:
        await within(client(stub, CARDS["JSONRPC"]).send("hi"))
    assert busy.value.facts["retryAfter"] == "3600" and len(stub.requests) == 1
