"""The full check of a card: our own are clean, and every broken member is found."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.dialects import cards
from dragoman.dialects.card_check import CardFinding, findings
from dragoman.model.card import (
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)
from tests.security.test_card_signatures import CARD

FLOW = {"tokenUrl": "https://id.example/token", "scopes": {}}
OLDER: dict[str, Any] = {
    "protocolVersion": "0.3.0",
    "name": "Old",
    "description": "",
    "url": "https://old.example/rpc",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [{"url": "https://old.example/v1", "transport": "HTTP+JSON"}],
    "provider": {"url": "https://example.com", "organization": "Example"},
    "version": "1",
    "documentationUrl": "https://old.example/docs",
    "iconUrl": "https://old.example/icon",
    "capabilities": {
        "streaming": True,
        "pushNotifications": False,
        "stateTransitionHistory": False,
        "extensions": [{"uri": "urn:x", "description": "", "required": False, "params": {}}],
    },
    "securitySchemes": {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key", "description": ""},
        "http": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        "oauth": {"type": "oauth2", "flows": {"clientCredentials": {**FLOW}, "password": {**FLOW}}},
        "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://id.example/o"},
        "tls": {"type": "mutualTLS"},
    },
    "security": [{"oauth": ["read"]}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [
        {
            "id": "s",
            "name": "S",
            "description": "",
            "tags": [],
            "examples": [""],
            "inputModes": ["text/plain"],
            "outputModes": ["text/plain"],
            "security": [{"key": []}],
        }
    ],
    "supportsAuthenticatedExtendedCard": True,
    "signatures": [{"protected": "a", "signature": "b", "header": {}}],
}
SIGNED = {**CARD, "signatures": [{"protected": "a", "signature": "b", "header": {}}]}


def ours() -> AgentCard:
    return AgentCard(
        name="Ours",
        description="",
        supported_interfaces=[
            AgentInterface("https://a.example/", JSONRPC, "1.0"),
            AgentInterface("https://a.example/", JSONRPC, "0.3"),
        ],
        version="1",
        capabilities=AgentCapabilities(extensions=[AgentExtension("urn:x")]),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill("s", "S", "", ["t"])],
    )


@pytest.mark.parametrize("shape", [cards.v1_0, cards.v0_3, cards.v0_2, cards.hybrid])
def test_cards_that_we_write_have_nothing_wrong(shape: Any) -> None:
    assert findings(shape(ours())) == []


def test_the_examples_have_nothing_wrong_either() -> None:
    assert findings(SIGNED) == []
    assert findings(OLDER) == []
    assert findings({**OLDER, "protocolVersion": "0.2.6"}) == []


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            if name != "params":
                yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def spelled(place: tuple[str | int, ...]) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@pytest.mark.parametrize("card", [SIGNED, OLDER], ids=["1.0", "0.3"])
def test_a_wrong_type_is_found_at_every_place_of_a_card(card: dict[str, Any]) -> None:
    found = list(places(card))
    assert len(found) >= 60
    for place in found:
        broken = copy.deepcopy(card)
        inner: Any = broken
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = 3.5
        paths = [finding.path for finding in findings(broken)]
        assert spelled(place) in paths, (place, paths)
        assert all(path.startswith(spelled(place)) for path in paths), (place, paths)


@pytest.mark.parametrize(
    ("card", "required"),
    [
        (
            SIGNED,
            "name description supportedInterfaces version capabilities defaultInputModes "
            "defaultOutputModes skills",
        ),
        (
            OLDER,
            "protocolVersion name description url version capabilities defaultInputModes "
            "defaultOutputModes skills",
        ),
    ],
    ids=["1.0", "0.3"],
)
def test_required_members_are_missed_and_all_of_them_are_told(
    card: dict[str, Any], required: str
) -> None:
    names = required.split()
    for name in card:
        kept = {key: item for key, item in card.items() if key != name}
        # Without its mark a card is taken for one of another version.
        if name in ("supportedInterfaces",):
            continue
        expected = [CardFinding(name, "is required")] if name in names else []
        assert findings(kept) == expected, name
    # null is unset.
    assert findings({**card, names[-1]: None}) == [CardFinding(names[-1], "is required")]
    assert {finding.path for finding in findings({names[2]: card[names[2]], "url": "x"})} >= (
        set(names) - {names[2], "url"}
    )


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": ""}, "name"),
        ({"supportedInterfaces": []}, "supportedInterfaces"),
        ({"skills": []}, "skills"),
        ({"defaultInputModes": []}, "defaultInputModes"),
        (
            {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "/rpc"}]},
            "supportedInterfaces[0].url",
        ),
        (
            {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "protocolVersion": "one"}]},
            "supportedInterfaces[0].protocolVersion",
        ),
        (
            {"securitySchemes": {"k": {"apiKeySecurityScheme": {"location": "body", "name": "x"}}}},
            "securitySchemes.k.apiKeySecurityScheme.location",
        ),
        ({"securitySchemes": {"k": {}}}, "securitySchemes.k"),
        (
            {"securitySchemes": {"k": {"mtlsSecurityScheme": {}, "httpAuthSecurityScheme": {}}}},
            "securitySchemes.k",
        ),
        (
            {"securitySchemes": {"k": {"oauth2SecurityScheme": {"flows": {"implicit": {}}}}}},
            "securitySchemes.k.oauth2SecurityScheme.flows.implicit.scopes",
        ),
    ],
)
def test_what_has_the_right_type_and_is_wrong_all_the_same(
    change: dict[str, Any], path: str
) -> None:
    assert path in [finding.path for finding in findings({**CARD, **change})]


def test_an_address_of_grpc_needs_no_scheme() -> None:
    grpc = {"url": "a.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    assert findings({**CARD, "supportedInterfaces": [grpc]}) == []


@pytest.mark.parametrize("value", [None, 5, "x", [], [CARD]])
def test_what_is_no_object_is_no_card(value: Any) -> None:
    assert findings(value) == [CardFinding("", "must be an object")]
    assert str(findings(value)[0]) == "must be an object"


def test_a_card_that_is_of_no_version_is_measured_by_the_newest() -> None:
    assert CardFinding("supportedInterfaces", "is required") in findings({"name": "x"})
    assert str(CardFinding("a", "b")) == "a: b"


def test_ten_thousand_findings_are_all_told() -> None:
    card = {**CARD, "skills": [5] * 10_000}
    assert len(findings(card)) == 10_000
