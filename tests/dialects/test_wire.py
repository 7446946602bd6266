"""Golden JSON of every version: it decodes, encodes back to itself, and survives other dialects.

Where a peer's JSON may be spelled more loosely than ours, the file says which normalisations apply
and what comes out; what a trip through another version costs stands in one table of losses.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dragoman.dialects import cards, reading
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import BY_V0_METHOD, BY_V1_METHOD
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.dialects.v1_0_shapes import without_extra
from dragoman.errors import A2AError, UnsupportedOperation, VersionNotSupported
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.clock import stamp
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.service import PushPage, TaskPage, TaskReply

Model = Any

WIRE = Path(__file__).parent.parent / "wire"
DIALECTS: dict[str, Dialect] = {"v1_0": V1_0, "v0_3": V0_3, "v0_2": V0_2}
CARDS = {"v1_0": cards.v1_0, "v0_3": cards.v0_3, "v0_2": cards.v0_2}
ZERO_X = ("v0_3", "v0_2")

NORMALISATIONS = {
    "`type` read as `kind`",
    "missing `kind` filled in",
    "message id beside the message",
    "file content under one name",
    "base64 in the standard alphabet",
    "times in UTC with milliseconds",
    "defaults spelled out",
    "empty members left out",
    "one spelling of names",
    "enums by name",
    "numbers as numbers",
    "unknown fields are not emitted",
    "the first of several push schemes",
    "a push configuration that is not nested",
    "one scheme per OAuth flow",
    "named schemes described",
    "security under the proto's names",
    "versions without patch numbers",
    "signatures of older cards",
}


class Golden(NamedTuple):
    """One file: what kind of thing it holds, and the JSON of it."""

    version: str
    name: str
    what: str
    value: Any
    canonical: Any
    normalised: list[str]
    method: str

    def __str__(self) -> str:
        return f"{self.version}/{self.name}"


def load(path: Path) -> Golden:
    file = json.loads(path.read_text(encoding="utf-8"))
    value = file[{"request": "params", "card": "card"}.get(file["what"], "result")]
    return Golden(
        version=path.parent.name,
        name=path.stem,
        what=file["what"],
        value=value,
        canonical=file.get("canonical", value),
        normalised=file.get("normalised", []),
        method=file.get("method", ""),
    )


GOLDENS = [load(path) for path in sorted(WIRE.glob("*/*.json"))]


def operation_of(method: str) -> ops.Operation:
    """Return some operation that the method's reply answers."""
    kind: Any = (BY_V1_METHOD | BY_V0_METHOD)[method].operation
    if issubclass(kind, ops.SendMessage):
        return kind(message=Message("m", Role.USER, [Part(text="")]))
    if kind is ops.ListTasks:
        return kind()
    more: dict[type, Any] = {
        ops.CreatePush: {"config": PushConfig("https://a.example/")},
        ops.DeletePush: {"config_id": "c"},
    }
    return kind(task_id=TaskId("t"), **more.get(kind, {}))


def decode(golden: Golden, version: str, value: Any, method: str = "") -> Model:
    dialect = DIALECTS[version]
    match golden.what:
        case "request":
            return dialect.decode_request(method or golden.method, value)
        case "reply":
            reply = dialect.decode_reply(operation_of(golden.method), value)
            if isinstance(reply, TaskPage):
                tasks = [entry.reading.task for entry in reply.tasks]
                return (tasks, reply.next_page_token, reply.page_size, reply.total_size)
            return reply.reading.task if isinstance(reply, TaskReply) else reply
        case "event":
            return dialect.decode_event(value)
        case _:
            return cards.decode(value)


def encode(golden: Golden, version: str, model: Model) -> tuple[str, Any]:
    """Return the method, if it is a request, and the JSON of a model."""
    dialect = DIALECTS[version]
    match golden.what:
        case "request":
            method, params = dialect.encode_request(model)
            return method, msgspec.json.decode(msgspec.json.encode(params))
        case "reply":
            operation = operation_of(golden.method)
            reply = DIALECTS[golden.version].decode_reply(operation, golden.value)
            return "", msgspec.json.decode(dialect.encode_reply(operation, reply))
        case "event":
            return "", msgspec.json.decode(dialect.encode_event(Recorded.of_event(1, model)))
        case _:
            return "", CARDS[version](model)


@pytest.mark.requirement("V-9", "P-1", "P-3", "P-4", "P-5", "P-6", "P-7", "E-2", "K-1")
@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_golden_decodes_and_encodes_back_to_itself(golden: Golden) -> None:
    model = decode(golden, golden.version, golden.value)
    method, value = encode(golden, golden.version, model)
    assert value == golden.canonical
    assert method == golden.method or golden.what != "request"
    again = decode(golden, golden.version, value, method)
    assert encode(golden, golden.version, again) == (method, value)


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_golden_that_changes_says_by_which_normalisation(golden: Golden) -> None:
    assert set(golden.normalised) <= NORMALISATIONS
    assert bool(golden.normalised) == (golden.canonical != golden.value)


def test_every_normalisation_is_met_in_some_golden() -> None:
    assert {name for golden in GOLDENS for name in golden.normalised} == NORMALISATIONS


class Loss(NamedTuple):
    """Something a version cannot say, and the model without it; a refusal where nothing is left."""

    name: str
    versions: tuple[str, ...]
    forget: Callable[[Model], Model]


class Refused(NamedTuple):
    """The version has no way to say any of it."""

    error: type[A2AError]


def tenant(model: Model) -> Model:
    if isinstance(model, ops.Operation):
        return msgspec.structs.replace(model, tenant="")
    return model


def listing(model: Model) -> Model:
    return Refused(UnsupportedOperation) if isinstance(model, ops.ListTasks | tuple) else model


def any_push(model: Model) -> Model:
    is_any = isinstance(model, ops.GetPush) and not model.config_id
    return Refused(UnsupportedOperation) if is_any else model


def push_pages(model: Model) -> Model:
    if isinstance(model, ops.ListPush):
        return msgspec.structs.replace(model, page_size=50, page_token="")
    if isinstance(model, PushPage):
        return msgspec.structs.replace(model, next_page_token="")
    return model


def push_version(model: Model) -> Model:
    match model:
        case PushConfig():
            return msgspec.structs.replace(model, version="")
        case PushPage():
            return msgspec.structs.replace(
                model, configs=[push_version(config) for config in model.configs]
            )
        case ops.CreatePush():
            return msgspec.structs.replace(model, config=push_version(model.config))
        case ops.SendMessage():
            return msgspec.structs.replace(model, push=push_version(model.push))
        case _:
            return model


def short_times(model: Model) -> Model:
    if not isinstance(model, StatusUpdate) or not model.status.timestamp:
        return model
    time = stamp(reading.instant(model.status.timestamp, ""))
    status = msgspec.structs.replace(model.status, timestamp=time)
    return msgspec.structs.replace(model, status=status)


def of_cards(forget: Callable[[AgentCard], Model]) -> Callable[[Model], Model]:
    return lambda model: forget(model) if isinstance(model, AgentCard) else model


def replaced(card: AgentCard, **changes: Any) -> AgentCard:
    return msgspec.structs.replace(card, **changes)


def older_interfaces(card: AgentCard) -> Model:
    kept = [item for item in card.supported_interfaces if item.protocol_version < "1"]
    return replaced(card, supported_interfaces=kept) if kept else Refused(VersionNotSupported)


def minor_version(card: AgentCard) -> AgentCard:
    return replaced(
        card,
        supported_interfaces=[
            msgspec.structs.replace(item, protocol_version="0")
            if item.protocol_version.startswith("0")
            else item
            for item in card.supported_interfaces
        ],
    )


def without_scheme(card: AgentCard, gone: Callable[[Any], bool]) -> AgentCard:
    names = {name for name, scheme in card.security_schemes.items() if gone(scheme)}
    return replaced(
        card,
        security_schemes={
            name: scheme for name, scheme in card.security_schemes.items() if name not in names
        },
        security_requirements=[
            item for item in card.security_requirements if not names & item["schemes"].keys()
        ],
    )


def device_code(card: AgentCard) -> AgentCard:
    return without_scheme(
        card, lambda scheme: "deviceCode" in scheme.get("oauth2SecurityScheme", {}).get("flows", {})
    )


def mutual_tls(card: AgentCard) -> AgentCard:
    return without_scheme(card, lambda scheme: "mtlsSecurityScheme" in scheme)


def without_member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: without_member(item, name) for key, item in value.items() if key != name}
    return value


def pkce(card: AgentCard) -> AgentCard:
    schemes = without_member(card.security_schemes, "pkceRequired")
    return replaced(card, security_schemes=schemes)


def oauth_metadata(card: AgentCard) -> AgentCard:
    schemes = without_member(card.security_schemes, "oauth2MetadataUrl")
    return replaced(card, security_schemes=schemes)


def skill_security(card: AgentCard) -> AgentCard:
    skills = [msgspec.structs.replace(skill, security_requirements=[]) for skill in card.skills]
    return replaced(card, skills=skills)


# The one table: all that a trip through a version costs.
LOSSES = (
    Loss("unknown fields", ("v1_0",), lambda m: m if isinstance(m, tuple) else without_extra(m)),
    Loss("tenant", ZERO_X, tenant),
    Loss("listing of tasks", ZERO_X, listing),
    # Whoever registers a receiver names, by speaking, the version of its posts.
    Loss("version of a push receiver", tuple(DIALECTS), push_version),
    Loss("pages of push configurations", ZERO_X, push_pages),
    Loss("reading whichever push configuration", ("v1_0",), any_push),
    Loss("times finer than milliseconds", ZERO_X, short_times),
    Loss("interfaces of 1.0", ZERO_X, of_cards(older_interfaces)),
    Loss("minor version of a 0.x interface", ZERO_X, of_cards(minor_version)),
    Loss("signatures", ZERO_X, of_cards(lambda card: replaced(card, signatures=[]))),
    Loss("OAuth device code", ZERO_X, of_cards(device_code)),
    Loss("OAuth PKCE", ZERO_X, of_cards(pkce)),
    Loss("mutual TLS", ("v0_2",), of_cards(mutual_tls)),
    Loss("OAuth metadata address", ("v0_2",), of_cards(oauth_metadata)),
    Loss("security of a skill", ("v0_2",), of_cards(skill_security)),
)


def survives(golden: Golden, version: str, losses: tuple[Loss, ...]) -> bool:
    """Tell whether a golden comes back from a version as it was, but for the losses."""

    def forget(model: Model) -> Model:
        for loss in losses:
            if version in loss.versions and not isinstance(model, Refused):
                model = loss.forget(model)
        return model

    model = decode(golden, golden.version, golden.value)
    expected = forget(model)
    try:
        method, value = encode(golden, version, model)
    except A2AError as error:
        return isinstance(expected, Refused) and type(error) is expected.error
    if isinstance(expected, Refused):
        return False
    return forget(decode(golden, version, value, method)) == expected


@pytest.mark.requirement("P-3", "P-4", "K-1", "K-2", "K-3")
@pytest.mark.parametrize("version", DIALECTS)
@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_golden_survives_a_trip_through_every_dialect(golden: Golden, version: str) -> None:
    assert survives(golden, version, LOSSES)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_every_loss_in_the_table_is_real(loss: Loss) -> None:
    others = tuple(other for other in LOSSES if other is not loss)
    trips = [(golden, version) for golden in GOLDENS for version in loss.versions]
    assert not all(survives(golden, version, others) for golden, version in trips)


@pytest.mark.parametrize("golden", [item for item in GOLDENS if item.what == "event"], ids=str)
def test_an_event_of_0_x_is_encoded_once_for_all_its_readers(golden: Golden) -> None:
    recorded = Recorded.of_event(1, decode(golden, golden.version, golden.value))
    assert V0_3.encode_event(recorded) is V0_2.encode_event(recorded)
