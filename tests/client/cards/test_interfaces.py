"""Which interface is spoken to: the card's order, the user's wishes, nothing we cannot speak."""

import msgspec
import pytest

from dragoman.client.cards.interfaces import candidates
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import CardInvalid, ConfigError, VersionNotSupported
from dragoman.model.card import AgentCapabilities, AgentCard, AgentInterface


def card(*interfaces: tuple[str, str]) -> AgentCard:
    return AgentCard(
        name="A",
        description="",
        supported_interfaces=[
            AgentInterface(f"https://a.example/{number}", binding, version)
            for number, (binding, version) in enumerate(interfaces)
        ],
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )


ALL = card(
    ("GRPC", "1.0"),
    ("HTTP+JSON", "1.0"),
    ("JSONRPC", "1.0"),
    ("JSONRPC", "0.3"),
    ("HTTP+JSON", "0.3"),
    ("JSONRPC", "0.2"),
)


def chosen(card: AgentCard, **wishes: object) -> list[int]:
    found = candidates(card, **wishes)  # type: ignore[arg-type]
    return [int(one.interface.url.rpartition("/")[2]) for one in found]


@pytest.mark.requirement("DC-7")
def test_the_cards_order_is_kept() -> None:
    assert chosen(ALL) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (["jsonrpc"], [2, 3, 5, 0, 1, 4]),
        (["REST"], [1, 4, 0, 2, 3, 5]),
        (["grpc", "JSONRPC"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_the_first_preferred_binding_that_is_offered_comes_first(
    bindings: list[str], expected: list[int]
) -> None:
    assert chosen(ALL, bindings=bindings) == expected


def test_versions_below_the_oldest_are_spoken_only_when_asked_for() -> None:
    assert chosen(ALL, oldest="1.0") == [0, 1, 2]
    assert chosen(ALL, oldest="1.0", version="0.3") == [3, 4]
    assert chosen(ALL, oldest="1.0", version="0.2") == [3, 4, 5]
    assert chosen(ALL, version="1.0") == [0, 1, 2]
    with pytest.raises(VersionNotSupported) as refused:
        candidates(card(("JSONRPC", "0.3")), oldest="1.0")
    assert refused.value.facts == {"supportedVersions": "0.3"}


def test_older_than_the_preferred_version_are_used_where_there_is_nothing_newer() -> None:
    old = card(("JSONRPC", "0.2"), ("HTTP+JSON", "0.3"))
    assert chosen(ALL, preferred="1.0") == [0, 1, 2], "no way down from a version that is offered"
    assert chosen(old, preferred="1.0") == chosen(old)
    assert chosen(ALL, preferred="1.0", version="0.3") == [3, 4]
    assert chosen(ALL, preferred="1.0", bindings=["jsonrpc"]) == [2, 0, 1]
    with pytest.raises(VersionNotSupported):
        candidates(old, preferred="1.0", oldest="1.0")


@pytest.mark.parametrize(
    ("binding", "version", "wanted", "dialect"),
    [
        ("JSONRPC", "1.0", "", V1_0),
        ("jsonrpc", "1.7", "", V1_0),
        ("JSONRPC", "0.3.0", "", V0_3),
        ("JSONRPC", "0.2.6", "", V0_2),
        ("JSONRPC", "", "", V0_2),
        ("JSONRPC", "0.3", "0.2", V0_2),
        ("HTTP+JSON", "1.0", "", V1_0),
        ("HTTP+JSON", "0.3", "", V0_3_PROTO),
        ("HTTP+JSON", "0.2.6", "", V0_3_PROTO),
    ],
)
def test_binding_and_version_tell_the_dialect(
    binding: str, version: str, wanted: str, dialect: object
) -> None:
    (found,) = candidates(card((binding, version)), version=wanted)
    assert found.dialect is dialect


def test_a_card_with_nothing_we_speak_is_said_to_be_that() -> None:
    with pytest.raises(CardInvalid, match="PIGEON"):
        candidates(card(("PIGEON", "1.0"), ("JSONRPC", "2.0")))


@pytest.mark.parametrize(
    ("url", "origin", "expected"),
    [
        ("agent.example:443", "https://agent.example", "https://agent.example:443"),
        ("agent.example:9000", "http://agent.example", "http://agent.example:9000"),
        ("other.example:9000", "https://agent.example", "https://other.example:9000"),
        ("other.example:9000", "", "https://other.example:9000"),
        ("127.0.0.1:9000", "", "http://127.0.0.1:9000"),
        ("grpc://other.example:9000", "https://agent.example", "http://other.example:9000"),
        ("grpcs://other.example:9000", "http://agent.example", "https://other.example:9000"),
        ("dns:///other.example:9000", "https://agent.example", "https://other.example:9000"),
        ("https://other.example", "http://agent.example", "https://other.example"),
    ],
)
def test_an_address_of_grpc_has_tls_as_its_card_has(url: str, origin: str, expected: str) -> None:
    interface = AgentInterface(url, "GRPC", "1.0")
    only = msgspec.structs.replace(ALL, supported_interfaces=[interface])
    (found,) = candidates(only, origin=origin)
    assert found.interface.url == expected


def test_an_address_of_grpc_has_tls_as_the_other_interfaces_of_its_host() -> None:
    faces = [
        AgentInterface("agent.example:9000", "GRPC", "1.0"),
        AgentInterface("http://agent.example:8000/rpc", "JSONRPC", "1.0"),
    ]
    both = msgspec.structs.replace(ALL, supported_interfaces=faces)
    first, _ = candidates(both, origin="https://cards.example")
    assert first.interface.url == "http://agent.example:9000"


@pytest.mark.parametrize("version", ["1.7", "0.4", "2.0"])
def test_a_version_we_do_not_speak_is_not_spoken_as_another(version: str) -> None:
    with pytest.raises(VersionNotSupported, match="this client speaks"):
        candidates(ALL, version=version)


def test_who_asks_for_0_3_does_not_get_0_2() -> None:
    with pytest.raises(VersionNotSupported):
        candidates(card(("JSONRPC", "0.2")), version="0.3")


@pytest.mark.parametrize("wish", [{"version": "1"}, {"version": "one"}, {"bindings": ["soap"]}])
def test_a_wish_that_makes_no_sense_is_a_mistake_of_the_user(wish: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        chosen(ALL, **wish)
