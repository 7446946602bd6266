"""The table of protobuf messages, held against the generated classes of the official library."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dragoman.transports.grpc import tables
from dragoman.transports.grpc.classes import class_of
from dragoman.transports.grpc.tables import ProtoSchema
from tests.peers.libraries import python_of

SCRIPT = Path(__file__).parent / "drivers" / "official_messages.py"
GOLDEN = Path(__file__).parent.parent / "transports" / "grpc" / "golden"
VERSIONS = [
    pytest.param("a2a-sdk==1.3.0", tables.V1_0, "v1_0", id="1.0"),
    pytest.param("a2a-sdk==0.3.26", tables.V0_3, "v0_3", id="0.3"),
]
pytestmark = pytest.mark.peer


def said(library: str, *arguments: str, given: str = "") -> str:
    python = python_of(library)
    done = subprocess.run(
        [python, SCRIPT, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def described(field: Any) -> list[Any]:
    inner = field.message_type or field.enum_type
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        inner = field.message_type.fields_by_name["value"].message_type
    oneof = field.containing_oneof
    return [
        field.number,
        field.type,
        field.is_repeated,
        is_map,
        inner.name if inner else "",
        oneof.name if oneof else "",
        field.json_name,
    ]


@pytest.mark.parametrize(("library", "schema", "name"), VERSIONS)
def test_the_table_is_what_the_official_classes_say(
    library: str, schema: ProtoSchema, name: str
) -> None:
    official = json.loads(said(library, "table"))
    assert official["package"] == schema.package
    assert {name: tuple(values) for name, values in official["enums"].items()} == schema.enums
    ours = {
        message: {
            field.name: described(field) for field in class_of(schema, message).DESCRIPTOR.fields
        }
        for message in schema.messages
    }
    # The one field of our own.
    assert ours["StreamResponse"].pop("position")[0] == tables.POSITION
    assert ours == official["messages"]
    for rpc, (request, reply, streams) in official["rpcs"].items():
        found = schema.rpcs[rpc]
        assert (found.request, found.reply, found.operation.streams) == (request, reply, streams)


@pytest.mark.parametrize(("library", "schema", "name"), VERSIONS)
def test_golden_bytes_are_those_of_the_official_classes(
    library: str, schema: ProtoSchema, name: str
) -> None:
    cases = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    given = "\n".join(json.dumps([one["message"], one["json"]]) for one in cases)
    assert said(library, "bytes", given=given).splitlines() == [one["bytes"] for one in cases]
