"""What a card may say, and which changes of it are held."""

import json
from typing import Any

import pytest

from dragoman.client.cards.cards import Fetched
from dragoman.client.cards.cards import read as read_card
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.gateway.registry import card_pinning, card_review
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.security import base64url

URL = "https://agent.example.com/"


def card(**members: Any) -> dict[str, Any]:
    return {
        "name": "Maps",
        "description": "Finds ways.",
        "version": "1",
        "supportedInterfaces": [
            {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "route", "name": "Route", "description": "A way.", "tags": ["geo"]}],
        **members,
    }


def interface(url: str, binding: str = "JSONRPC") -> dict[str, Any]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}


def signature(**header: str) -> dict[str, Any]:
    return {"protected": base64url.encode(json.dumps(header).encode()), "signature": "AA"}


def oauth(url: str) -> dict[str, Any]:
    flow = {"tokenUrl": url, "scopes": {"readUrl": "https://elsewhere.example.com/"}}
    return {"o": {"oauth2SecurityScheme": {"flows": {"clientCredentials": flow}}}}


def agent(raw: dict[str, Any] | None = None, **more: Any) -> Registered:
    bare = Registered(id="a1", name="maps", title="", url=URL, **more)
    return card_pinning.pinned(bare, raw or card(), URL)


def fetched(raw: dict[str, Any]) -> Fetched:
    return read_card(raw, url=URL, origin="https://agent.example.com")


FOREIGN = [
    card(supportedInterfaces=[interface("https://evil.example.com/")]),
    card(supportedInterfaces=[interface(URL), interface("https://agent.example.com:8443/")]),
    card(supportedInterfaces=[interface("http://agent.example.com/")]),
    card(supportedInterfaces=[interface(URL), interface("evil.example.com:50051", "GRPC")]),
    card(securitySchemes=oauth("https://evil.example.com/token")),
    card(
        securitySchemes={
            "c": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://evil.example.com"}}
        }
    ),
    card(signatures=[signature(kid="k", jku="https://evil.example.com/jwks")]),
    {
        "name": "old",
        "description": "",
        "url": URL,
        "version": "1",
        "capabilities": {},
        "skills": [],
        "additionalInterfaces": [{"url": "https://evil.example.com", "transport": "HTTP+JSON"}],
    },
]


@pytest.mark.parametrize("raw", FOREIGN)
def test_a_card_that_leads_to_another_origin_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match="origins") as refused:
        agent(raw)
    assert "--origin" in refused.value.public


@pytest.mark.parametrize("raw", FOREIGN)
def test_it_is_taken_where_its_owner_allows_the_origin(raw: dict[str, Any]) -> None:
    allowed = [
        "https://evil.example.com",
        "https://agent.example.com:8443",
        "http://agent.example.com",
    ]
    assert agent(raw, origins=allowed).card == raw


def test_a_replica_is_an_origin_that_was_named() -> None:
    raw = card(supportedInterfaces=[interface(URL), interface("https://two.example.com/")])
    assert agent(raw, replicas=["https://two.example.com/"]).card == raw


def test_addresses_of_its_own_need_no_permission() -> None:
    raw = card(
        supportedInterfaces=[interface(URL), interface("agent.example.com:50051", "GRPC")],
        securitySchemes=oauth("https://agent.example.com/token"),
    )
    assert agent(raw).card == raw


HELD = {
    "addresses": card(supportedInterfaces=[interface(URL + "other")]),
    "authenticate changes: b": card(
        securitySchemes={"b": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    ),
    "authenticate with": card(securityRequirements=[{"schemes": {"b": {"list": []}}}]),
    "skills ask of callers changes: route": card(
        skills=[
            {
                "id": "route",
                "name": "Route",
                "description": "",
                "tags": [],
                "securityRequirements": [{"schemes": {"b": {"list": []}}}],
            }
        ]
    ),
    "signed": card(signatures=[signature(kid="other")]),
    "not registered": card(supportedInterfaces=[interface("https://evil.example.com/")]),
    "more than 200 skills": card(
        skills=[
            {"id": f"s{n}", "name": "S", "description": "", "tags": []}
            for n in range(card_review.MOST_SKILLS + 1)
        ]
    ),
}


@pytest.mark.parametrize("reason", HELD)
def test_a_change_of_where_calls_and_credentials_go_is_held(reason: str) -> None:
    before = agent()
    after = card_pinning.reviewed(before, fetched(HELD[reason]))
    assert after.card == before.card and after.card_digest == before.card_digest
    assert after.pending == HELD[reason] and reason in after.pending_reason


def test_other_keys_are_held() -> None:
    before = agent(card(signatures=[signature(kid="first")]))
    same = card_pinning.reviewed(before, fetched(card(signatures=[signature(kid="first")])))
    assert same.pending is None
    other = card_pinning.reviewed(before, fetched(card(signatures=[signature(kid="second")])))
    assert "signed with other keys" in other.pending_reason


def test_texts_skills_and_examples_apply_at_once() -> None:
    skills = [
        {"id": "route", "name": "R", "description": "D", "tags": [], "examples": ["to Rome"]},
        {"id": "map", "name": "Map", "description": "", "tags": []},
    ]
    raw = card(name="Ways", description="Other.", version="2", skills=skills)
    after = card_pinning.reviewed(agent(), fetched(raw))
    assert after.pending is None and after.card == raw
    assert (after.title, after.description) == ("Ways", "Other.")
    assert [skill.id for skill in after.skills] == ["route", "map"]


def test_what_the_owner_wrote_is_not_changed_by_a_card() -> None:
    before = card_pinning.changed(agent(), AgentChanges(name="M"))
    after = card_pinning.reviewed(before, fetched(card(name="Ways", description="Other.")))
    assert (after.title, after.description) == ("M", "Other.")


def test_a_card_that_goes_back_is_held_no_longer() -> None:
    held = card_pinning.reviewed(agent(), fetched(HELD["addresses"]))
    assert card_pinning.reviewed(held, fetched(card())).pending is None


def test_a_held_card_is_accepted_only_once_its_origins_are_allowed() -> None:
    held = card_pinning.reviewed(agent(), fetched(HELD["not registered"]))
    digest = card_review.digest(HELD["not registered"])
    with pytest.raises(InvalidParams, match="origins"):
        card_pinning.accepted(held, digest)
    allowed = card_pinning.changed(held, AgentChanges(origins=["https://evil.example.com"]))
    with pytest.raises(InvalidParams, match="digest"):
        card_pinning.accepted(allowed, card_review.digest(card()))
    after = card_pinning.accepted(allowed, digest)
    assert after.card == HELD["not registered"] and after.pending is None
    with pytest.raises(UnsupportedOperation):
        card_pinning.accepted(after, digest)


def test_the_first_card_of_an_agent_without_one_is_pinned() -> None:
    bare = Registered(id="a1", name="maps", title="maps", url=URL)
    assert card_pinning.reviewed(bare, fetched(card())).card == card()
    evil = card_pinning.reviewed(bare, fetched(HELD["not registered"]))
    assert evil.card is None and evil.pending is not None


def test_a_pin_does_not_depend_on_how_a_card_is_written() -> None:
    turned = dict(reversed(card().items()))
    assert card_review.digest(turned) == card_review.digest(card())
    assert card_review.digest(card(version="2")) != card_review.digest(card())


def test_what_is_no_card_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidParams, match="name"):
        agent({"url": URL})
