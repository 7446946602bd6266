"""Protobuf messages as the plain values that dialects read and make, and back, without JSON text.

A shape is made once for each message of the table: it knows its fields by number, to read them, and
by JSON name, to write them. The values are those of ProtoJSON, but for bytes, which stay bytes.
Whether they are valid is for the dialect to say; what ProtoJSON cannot express is refused here.
"""

import base64
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from dragoman.dialects.reading import Object, Value
from dragoman.errors import InvalidParams, ParseFailed
from dragoman.transports.grpc.classes import FieldRow, class_of, fields_of
from dragoman.transports.grpc.tables import ProtoSchema

# Objects and lists inside each other. Protobuf itself stops at 100 messages, of which an object
# takes three.
MAX_DEPTH = 30
_SCALARS = frozenset({"string", "bytes", "bool", "int32", "int64"})
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The seconds of the years 1 to 9999, which is what a timestamp may say.
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
_LARGEST = 1.7976931348623157e308

# A message of some class: its fields are known by the table alone.
AnyMessage = Any
Read = Callable[[Any], Value]
Write = Callable[[AnyMessage, Value], None]


class MessageShape:
    """One message of a schema."""

    def __init__(self, schema: ProtoSchema, name: str) -> None:
        self.name = name
        self.make: type[Message] = class_of(schema, name)
        self._schema = schema
        self._readers: dict[int, tuple[str, Read]] | None = None
        self._writers: dict[str, Write] = {}
        self._zeros: Object = {}
        # Fields in which null is a value; in all others it means unset.
        self._nullable: set[str] = set()

    def parse(self, data: bytes) -> AnyMessage:
        """Return the message that bytes are; raises `ParseFailed`."""
        message = self.make()
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise ParseFailed("The request is not the protobuf message it should be") from None
        return message

    def values(self, message: AnyMessage) -> Object:
        """Return a message as plain values; raises `InvalidParams`."""
        if self._readers is None:
            self._compile()
        readers = self._readers
        assert readers is not None
        found = dict(self._zeros)
        for field, value in message.ListFields():
            name, read = readers[field.number]
            found[name] = read(value)
        return found

    def decode(self, data: bytes) -> Object:
        """Return the plain values that bytes are; raises `ParseFailed` or `InvalidParams`."""
        return self.values(self.parse(data))

    def write(self, message: AnyMessage, values: Object) -> None:
        """Fill a message; members that it has no field for are left out."""
        if self._readers is None:
            self._compile()
        writers = self._writers
        for name, value in values.items():
            write = writers.get(name)
            if write is not None and (value is not None or name in self._nullable):
                write(message, value)

    def message(self, values: Object) -> AnyMessage:
        """Return the message of plain values."""
        message = self.make()
        self.write(message, values)
        return message

    def encode(self, values: Object) -> bytes:
        """Return the bytes of plain values."""
        return self.message(values).SerializeToString()

    def _compile(self) -> None:
        """Make readers and writers, once a message is first met: messages hold each other."""
        readers: dict[int, tuple[str, Read]] = {}
        for row in fields_of(self._schema.messages.get(self.name, "")):
            readers[row.number] = row.json, _reader(self._schema, row)
            self._writers[row.json] = _writer(self._schema, row)
            if row.type == "Value":
                self._nullable.add(row.json)
            if row.shows_zero:
                is_enum = row.type in self._schema.enums
                self._zeros[row.json] = self._schema.enums[row.type][0] if is_enum else 0
        self._readers = readers


_shapes: dict[tuple[str, str], MessageShape] = {}


def shape_of(schema: ProtoSchema, name: str) -> MessageShape:
    """Return the shape of a message."""
    found = _shapes.get((schema.package, name))
    if found is None:
        found = _shapes[schema.package, name] = MessageShape(schema, name)
    return found


def _one(schema: ProtoSchema, row: FieldRow) -> Read:
    """Return what reads one value of a field."""
    if row.type in _SCALARS:
        return _as_it_is
    if row.type in schema.enums:
        names = schema.enums[row.type]
        prefix = names[0].removesuffix("UNSPECIFIED")

        def read_enum(number: int) -> str:
            # A number of a later version is read like its name would be.
            return names[number] if 0 <= number < len(names) else f"{prefix}{number}"

        return read_enum
    if row.type == "Struct":
        path = row.json
        return lambda struct: _struct(struct, path, 1)
    if row.type == "Value":
        path = row.json
        return lambda value: _value(value, path, 1)
    if row.type == "Timestamp":
        path = row.json
        return lambda moment: _read_instant(moment, path)
    return shape_of(schema, row.type).values


def _reader(schema: ProtoSchema, row: FieldRow) -> Read:
    read = _one(schema, row)
    if row.is_map:
        return lambda found: {key: read(found[key]) for key in found}
    if row.is_repeated:
        if read is _as_it_is:
            return list[Any]
        return lambda found: [read(item) for item in found]
    return read


def _as_it_is(value: Value) -> Value:
    return value


def _writer(schema: ProtoSchema, row: FieldRow) -> Write:
    name = row.name
    if row.type in schema.enums:
        numbers = {text: number for number, text in enumerate(schema.enums[row.type])}
        return lambda message, value: setattr(message, name, numbers.get(value, 0))
    if row.type == "bytes":
        return lambda message, value: setattr(message, name, _bytes(value))
    if row.type in _SCALARS:
        if row.is_map:
            return lambda message, value: getattr(message, name).update(value)
        if row.is_repeated:
            return lambda message, value: getattr(message, name).extend(value)
        return lambda message, value: setattr(message, name, value)
    fill = _filler(schema, row)
    if row.is_map:

        def write_map(message: AnyMessage, value: Value) -> None:
            entries = getattr(message, name)
            for key, item in value.items():
                fill(entries[key], item)

        return write_map
    if row.is_repeated:

        def write_list(message: AnyMessage, value: Value) -> None:
            items = getattr(message, name)
            for item in value:
                fill(items.add(), item)

        return write_list

    def write_one(message: AnyMessage, value: Value) -> None:
        inner = getattr(message, name)
        # One without content is there all the same.
        inner.SetInParent()
        fill(inner, value)

    if row.type == "Value":
        # Here null is a value, and not the absence of one.
        def write_value(message: AnyMessage, value: Value) -> None:
            _fill_value(getattr(message, name), value)

        return write_value
    return write_one


def _bytes(value: Value) -> bytes:
    """Return bytes that may be base64, as in JSON."""
    return base64.b64decode(value) if isinstance(value, str) else value


def _filler(schema: ProtoSchema, row: FieldRow) -> Write:
    match row.type:
        case "Struct":
            return _fill_struct
        case "Value":
            return _fill_value
        case "Timestamp":
            return _fill_instant
        case "Any":
            return _fill_any
        case "Duration":
            return _fill_duration
        case _:
            return shape_of(schema, row.type).write


# Free-form JSON


def _struct(struct: AnyMessage, path: str, depth: int) -> Object:
    if depth > MAX_DEPTH:
        raise InvalidParams(f"must not have more than {MAX_DEPTH} levels", field=path)
    return {key: _value(item, path, depth) for key, item in struct.fields.items()}


def _value(value: AnyMessage, path: str, depth: int) -> Value:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            number = value.number_value
            if number.is_integer():
                # JSON knows one kind of number: 1 and 1.0 are the same.
                return int(number)
            if not math.isfinite(number):
                raise InvalidParams("must not have numbers that are none", field=path)
            return number
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _struct(value.struct_value, path, depth + 1)
        case "list_value":
            if depth >= MAX_DEPTH:
                raise InvalidParams(f"must not have more than {MAX_DEPTH} levels", field=path)
            return [_value(item, path, depth + 1) for item in value.list_value.values]
        case _:
            return None


def _fill_struct(struct: AnyMessage, value: Object) -> None:
    fields = struct.fields
    for key, item in value.items():
        _fill_value(fields[key], item)


def _fill_value(message: AnyMessage, value: Value) -> None:
    if isinstance(value, str):
        message.string_value = value
    elif value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int | float):
        # Doubles are all there is: larger numbers become the largest.
        message.number_value = max(-_LARGEST, min(_LARGEST, value))
    elif isinstance(value, dict):
        inner = message.struct_value
        inner.SetInParent()
        _fill_struct(inner, cast(Object, value))
    else:
        items = message.list_value.values
        message.list_value.SetInParent()
        for item in value:
            _fill_value(items.add(), item)


# Instants


def _read_instant(moment: AnyMessage, path: str) -> str:
    seconds, nanos = moment.seconds, moment.nanos
    if not _FIRST <= seconds <= _LAST or not 0 <= nanos < 1_000_000_000:
        raise InvalidParams("must be a time between the years 1 and 9999", field=path)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").zfill(19)
    if nanos % 1_000_000 == 0:
        return f"{text}.{nanos // 1_000_000:03d}Z"
    if nanos % 1_000 == 0:
        return f"{text}.{nanos // 1_000:06d}Z"
    return f"{text}.{nanos:09d}Z"


def _fill_instant(moment: AnyMessage, text: str) -> None:
    found = _INSTANT.match(text)
    if found is None:
        # What a peer said in its own way stays out: the field has room for instants alone.
        return
    moment.seconds = _seconds_of(found[1])
    moment.nanos = int((found[2] or "0").ljust(9, "0"))


# Thousands of events share a second.
@lru_cache(maxsize=16)
def _seconds_of(text: str) -> int:
    elapsed = datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH
    return elapsed.days * 86_400 + elapsed.seconds


# Details of errors


def _fill_any(message: AnyMessage, packed: tuple[str, bytes]) -> None:
    message.type_url, message.value = packed


def _fill_duration(message: AnyMessage, seconds: int) -> None:
    message.seconds = seconds
