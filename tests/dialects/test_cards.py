"""Cards: what each version's reader finds, what older ones do not, what a client demands."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.dialects import cards
from dragoman.errors import InvalidParams, VersionNotSupported
from dragoman.model.card import (
    HTTP_JSON,
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
)

WIRE = Path(__file__).parent.parent / "wire"
HOME = "https://agent.example"

PLAIN = AgentCard(
    name="Echo",
    description="",
    supported_interfaces=[
        AgentInterface(f"{HOME}/rpc", JSONRPC, "1.0"),
        AgentInterface(HOME, HTTP_JSON, "1.0"),
        AgentInterface(f"{HOME}/old", JSONRPC, "0.3"),
    ],
    version="1.0.0",
    capabilities=AgentCapabilities(
        streaming=True, push_notifications=False, extended_agent_card=False
    ),
    default_input_modes=["text/plain"],
    default_output_modes=[],
    skills=[AgentSkill("echo", "Echo", "", [])],
)


def with_schemes(schemes: Any, requirements: Any, *, skill: Any = ()) -> AgentCard:
    echo = AgentSkill("echo", "Echo", "", [], security_requirements=list(skill))
    return msgspec.structs.replace(
        PLAIN, security_schemes=schemes, security_requirements=requirements, skills=[echo]
    )


def requirement(*names: str) -> Any:
    return {"schemes": {name: {"list": []} for name in names}}


def golden(version: str) -> Any:
    return json.loads((WIRE / version / "card.json").read_text(encoding="utf-8"))["card"]


def test_a_card_of_1_0_has_its_required_members_even_when_empty() -> None:
    value = cards.v1_0(PLAIN)
    assert value["description"] == ""
    assert value["defaultOutputModes"] == []
    assert value["skills"] == [{"id": "echo", "name": "Echo", "description": "", "tags": []}]
    empty = msgspec.structs.replace(PLAIN, skills=[], capabilities=AgentCapabilities())
    assert cards.v1_0(empty)["skills"] == []
    assert cards.v1_0(empty)["capabilities"] == {}


def test_capabilities_that_are_off_say_so_in_1_0() -> None:
    assert cards.v1_0(PLAIN)["capabilities"] == {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": False,
    }


def test_an_older_card_names_its_main_interface_and_no_other_generation() -> None:
    assert cards.v0_3(PLAIN) == {
        "protocolVersion": "0.3.0",
        "name": "Echo",
        "description": "",
        "url": f"{HOME}/old",
        "preferredTransport": "JSONRPC",
        "version": "1.0.0",
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "stateTransitionHistory": False,
        },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": [],
        "skills": [{"id": "echo", "name": "Echo", "description": "", "tags": []}],
        "supportsAuthenticatedExtendedCard": False,
    }
    assert cards.v0_2(PLAIN) == cards.v0_3(PLAIN) | {"protocolVersion": "0.2.6"}


def test_jsonrpc_is_an_older_cards_main_interface_wherever_it_stands() -> None:
    card = msgspec.structs.replace(
        PLAIN,
        supported_interfaces=[
            AgentInterface(f"{HOME}/v1", HTTP_JSON, "0.3"),
            AgentInterface("agent.example:50051", "GRPC", ""),
            AgentInterface(f"{HOME}/rpc", JSONRPC, "0.2"),
        ],
    )
    value = cards.v0_3(card)
    assert (value["url"], value["preferredTransport"]) == (f"{HOME}/rpc", "JSONRPC")
    assert value["additionalInterfaces"] == [
        {"url": f"{HOME}/v1", "transport": "HTTP+JSON"},
        {"url": "agent.example:50051", "transport": "GRPC"},
    ]


def test_an_agent_of_1_0_alone_has_no_older_card() -> None:
    card = msgspec.structs.replace(PLAIN, supported_interfaces=PLAIN.supported_interfaces[:2])
    with pytest.raises(VersionNotSupported) as refused:
        cards.v0_3(card)
    assert refused.value.facts == {"supportedVersions": "1.0"}
    assert cards.hybrid(card) == cards.v1_0(card)


@pytest.mark.requirement("K-6", "DC-1")
@pytest.mark.parametrize("version", ["v1_0", "v0_3"])
def test_both_generations_read_the_hybrid_card(version: str) -> None:
    card = cards.decode(golden(version))
    value = cards.hybrid(card)
    assert value == json.loads(json.dumps(value))
    assert cards.decode(value) == card

    def within(part: Any, whole: Any) -> bool:
        if isinstance(part, dict) and isinstance(whole, dict):
            return all(name in whole and within(part[name], whole[name]) for name in part)
        if isinstance(part, list) and isinstance(whole, list):
            return len(part) == len(whole) and all(map(within, part, whole))
        return part == whole

    assert within(cards.v1_0(card), value)
    assert within(cards.v0_3(card), value)


@pytest.mark.requirement("K-6")
def test_skills_of_the_hybrid_card_say_their_modes_unless_it_is_signed() -> None:
    (skill,) = PLAIN.skills
    assert not skill.input_modes and not skill.output_modes
    (shown,) = cards.hybrid(PLAIN)["skills"]
    assert shown["inputModes"] == PLAIN.default_input_modes
    assert shown["outputModes"] == PLAIN.default_output_modes
    own = msgspec.structs.replace(skill, input_modes=["image/png"])
    (shown,) = cards.hybrid(msgspec.structs.replace(PLAIN, skills=[own]))["skills"]
    assert shown["inputModes"] == ["image/png"]
    signed = msgspec.structs.replace(PLAIN, signatures=[{"protected": "e30", "signature": "x"}])
    (shown,) = cards.hybrid(signed)["skills"]
    assert "inputModes" not in shown


@pytest.mark.requirement("K-6")
def test_a_scheme_of_the_hybrid_card_has_both_forms_side_by_side() -> None:
    bearer = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
    tokens = with_schemes({"token": bearer}, [requirement("token")], skill=[requirement("token")])
    value = cards.hybrid(tokens)
    assert value["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"} | bearer}
    assert value["security"] == [{"token": []}]
    assert value["securityRequirements"] == [requirement("token")]
    (skill,) = value["skills"]
    assert skill["security"] == [{"token": []}]
    assert skill["securityRequirements"] == [requirement("token")]


def test_scheme_names_are_listed_for_the_oldest_readers_only_if_there_are_any() -> None:
    assert "authentication" not in cards.hybrid(PLAIN)
    schemes = {
        "a": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
        "b": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
        "c": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
    }
    card = with_schemes(schemes, [])
    for value in (cards.hybrid(card), cards.v0_3(card), cards.v0_2(card)):
        assert value["authentication"] == {"schemes": ["bearer", "apiKey"]}


@pytest.mark.requirement("K-2", "K-3")
def test_what_0_x_cannot_say_takes_its_requirements_along() -> None:
    device: Any = {"oauth2SecurityScheme": {"flows": {"deviceCode": {"scopes": {}}}}}
    bearer = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
    card = with_schemes(
        {"device": device, "token": bearer, "odd": {"futureSecurityScheme": {}}},
        [requirement("device"), requirement("token", "device"), requirement("token")],
        skill=[requirement("device")],
    )
    value = cards.v0_3(card)
    assert value["securitySchemes"].keys() == {"token"}
    assert value["security"] == [{"token": []}]
    assert "security" not in value["skills"][0]


@pytest.mark.requirement("K-1", "K-3")
def test_several_flows_become_several_schemes_any_of_which_will_do() -> None:
    flows = {"password": {"scopes": {}}, "implicit": {"scopes": {}}, "deviceCode": {}}
    value = cards.v0_3(PLAIN) | {
        "securitySchemes": {
            "o": {"type": "oauth2", "flows": flows, "description": "d"},
            "key": {"type": "apiKey", "in": "query", "name": "k"},
        },
        "security": [{"key": [], "o": ["s"]}],
    }
    card = cards.decode(value)
    assert card.security_schemes == {
        "o": {"oauth2SecurityScheme": {"flows": {"implicit": {"scopes": {}}}, "description": "d"}},
        "o__password": {
            "oauth2SecurityScheme": {"flows": {"password": {"scopes": {}}}, "description": "d"}
        },
        "key": {"apiKeySecurityScheme": {"location": "query", "name": "k"}},
    }
    assert card.security_requirements == [
        {"schemes": {"key": {"list": []}, "o": {"list": ["s"]}}},
        {"schemes": {"key": {"list": []}, "o__password": {"list": ["s"]}}},
    ]


@pytest.mark.requirement("K-4")
@pytest.mark.parametrize("name", ["security", "securityRequirements", "security_requirements"])
@pytest.mark.parametrize("form", [{"token": ["s"]}, {"schemes": {"token": {"list": ["s"]}}}])
def test_a_card_of_1_0_may_name_its_requirements_as_the_prose_does(name: str, form: Any) -> None:
    card = cards.decode(cards.v1_0(PLAIN) | {name: [form]})
    assert card.security_requirements == [{"schemes": {"token": {"list": ["s"]}}}]


def test_a_scheme_may_be_called_schemes() -> None:
    card = cards.decode(cards.v0_3(PLAIN) | {"security": [{"schemes": ["s"]}]})
    assert card.security_requirements == [{"schemes": {"schemes": {"list": ["s"]}}}]


@pytest.mark.requirement("K-5")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "name"),
        ({"name": "A"}, "url"),
        ({"name": 7, "url": ""}, "name"),
        ({"name": "A", "supportedInterfaces": []}, "version"),
        ({"name": "A", "version": "1", "supportedInterfaces": []}, "supportedInterfaces"),
        (
            {"name": "A", "version": "1", "supportedInterfaces": [{"url": HOME}]},
            "supportedInterfaces",
        ),
        ({"name": "A", "url": HOME, "securitySchemes": []}, "securitySchemes"),
        ({"name": "A", "url": HOME, "securitySchemes": {"a": 1}}, "securitySchemes.a"),
        ({"name": "A", "url": HOME, "capabilities": {"streaming": 1}}, "capabilities.streaming"),
        ({"name": "A", "url": HOME, "skills": [{"tags": "x"}]}, "skills[0].tags"),
        ({"name": "A", "url": HOME, "security": ["a"]}, "security[0]"),
        ([], ""),
    ],
)
def test_a_client_demands_a_name_and_an_address(value: Any, field: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        cards.decode(value)
    assert refused.value.field == field


@pytest.mark.requirement("K-5")
def test_a_client_makes_do_with_little() -> None:
    older = cards.decode({"name": "A", "url": ""})
    assert older.supported_interfaces == [AgentInterface("", JSONRPC, "0.3")]
    newer = cards.decode(
        {
            "name": "A",
            "version": "1",
            "supportedInterfaces": [{"url": HOME, "protocolBinding": "GRPC"}, {"url": HOME}],
            "skills": [{"name": "Echo"}],
            "securitySchemes": {"odd": {"type": "future"}},
        }
    )
    assert newer.supported_interfaces == [AgentInterface(HOME, "GRPC", "1.0")]
    assert newer.skills == [AgentSkill("Echo", "Echo", "", [])]
    assert newer.security_schemes == {}


def test_the_main_interface_is_not_repeated() -> None:
    main = {"url": HOME, "transport": "JSONRPC"}
    other = {"url": HOME, "transport": "HTTP+JSON"}
    card = cards.decode(
        {
            "name": "A",
            "url": HOME,
            "protocolVersion": "0.2.9",
            "additionalInterfaces": [main, other],
        }
    )
    assert card.supported_interfaces == [
        AgentInterface(HOME, JSONRPC, "0.2"),
        AgentInterface(HOME, HTTP_JSON, "0.2"),
    ]
