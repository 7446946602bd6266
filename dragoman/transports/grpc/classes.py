"""Classes of the messages in `tables.py`, made when this module is loaded.

They live in a descriptor pool of their own, so that a program which also loads another library's
generated classes of the same names has both.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.message import Message

from dragoman.transports.grpc import tables
from dragoman.transports.grpc.tables import ProtoSchema

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}
_WELL_KNOWN = {"Struct", "Value", "Timestamp", "Empty", "Any", "Duration"}
_ONEOF = re.compile(r"(\w+)\{([^}]*)\}")
_FIELD = re.compile(
    r"(?P<name>\w+)=(?P<number>\d+)(?P<mark>[*?!]?)"
    r"(?::(?P<type>\w+)|<(?P<values>\w+)>)?(?:@(?P<json>\w+))?\Z"
)


class FieldRow(NamedTuple):
    """One field, as the table has it."""

    name: str
    number: int
    # What it holds: a scalar, an enumeration, a message of the schema or a well-known one.
    type: str
    json: str
    is_repeated: bool = False
    is_map: bool = False
    has_presence: bool = False
    shows_zero: bool = False
    oneof: str = ""


def fields_of(line: str) -> Iterator[FieldRow]:
    """Yield the fields that a line of the table says."""
    for oneof, inner in [("", _ONEOF.sub("", line)), *_ONEOF.findall(line)]:
        for text in inner.split():
            found = _FIELD.match(text)
            assert found is not None, text
            name, mark = found["name"], found["mark"]
            yield FieldRow(
                name,
                int(found["number"]),
                found["type"] or found["values"] or "string",
                found["json"] or _camel(name),
                is_repeated=mark == "*",
                is_map=found["values"] is not None,
                has_presence=mark == "?",
                shows_zero=mark == "!",
                oneof=oneof,
            )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _file(schema: ProtoSchema) -> descriptor_pb2.FileDescriptorProto:
    """Return the file that protoc would have been given."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"dragoman/{schema.package}.proto", package=schema.package, syntax="proto3"
    )
    file.dependency.extend(
        one.DESCRIPTOR.name for one in (struct_pb2, timestamp_pb2, empty_pb2, any_pb2, duration_pb2)
    )
    for name, values in schema.enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, line in schema.messages.items():
        message = file.message_type.add(name=name)
        rows = list(fields_of(line))
        for oneof in dict.fromkeys(row.oneof for row in rows if row.oneof):
            message.oneof_decl.add(name=oneof)
        for row in rows:
            _add_field(schema, message, row)
    if schema.rpcs:
        service = file.service.add(name="A2AService")
        for name, rpc in schema.rpcs.items():
            service.method.add(
                name=name,
                input_type=_full(schema, rpc.request),
                output_type=_full(schema, rpc.reply),
                server_streaming=rpc.operation.streams,
            )
    return file


def _add_field(schema: ProtoSchema, message: descriptor_pb2.DescriptorProto, row: FieldRow) -> None:
    is_many = row.is_repeated or row.is_map
    field = message.field.add(
        name=row.name,
        number=row.number,
        json_name=row.json,
        label=_Field.LABEL_REPEATED if is_many else _Field.LABEL_OPTIONAL,
    )
    if row.is_map:
        entry = message.nested_type.add(name=f"{_camel('_' + row.name)}Entry")
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL)
        key.type = _Field.TYPE_STRING
        value = entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
        _set_type(schema, value, row.type)
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{schema.package}.{message.name}.{entry.name}"
        return
    _set_type(schema, field, row.type)
    if row.oneof:
        names = [one.name for one in message.oneof_decl]
        field.oneof_index = names.index(row.oneof)
    elif row.has_presence:
        # How proto3 writes `optional`.
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{row.name}")


def _set_type(schema: ProtoSchema, field: descriptor_pb2.FieldDescriptorProto, name: str) -> None:
    if name in _SCALARS:
        field.type = _SCALARS[name]
        return
    field.type = _Field.TYPE_ENUM if name in schema.enums else _Field.TYPE_MESSAGE
    field.type_name = _full(schema, name)


def _full(schema: ProtoSchema, name: str) -> str:
    return f".google.protobuf.{name}" if name in _WELL_KNOWN else f".{schema.package}.{name}"


POOL = descriptor_pool.DescriptorPool()
for _known in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
for _schema in (tables.V1_0, tables.V0_3, tables.STATUS):
    POOL.AddSerializedFile(_file(_schema).SerializeToString())


def class_of(schema: ProtoSchema, name: str) -> type[Message]:
    """Return the class of a message by its name in a schema."""
    full = _full(schema, name).removeprefix(".")
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(full))
