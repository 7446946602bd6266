"""Requests, replies and events of one version as the bytes of its protobuf messages, and back.

The dialect says what plain values mean and whether they are valid; the shapes put them into
messages. An event is encoded once for all its readers, but for chunks, which cost less than to look
them up; its position is a field that is appended for those who asked for it.
"""

from functools import cache
from typing import NamedTuple

from dragoman.dialects.dialect import Dialect, ProtoDialect
from dragoman.dialects.operations import row_by
from dragoman.dialects.reading import Object
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import MethodNotFound
from dragoman.model.operations import Operation
from dragoman.model.record import Recorded
from dragoman.service import Reply, TaskReply
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.chunks import StreamEncoder
from dragoman.transports.grpc.field_count import check_fields
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.tables import ProtoSchema, Rpc
from dragoman.transports.grpc.varints import varint

# The key of the position's field, an integer of variable length.
_POSITION_KEY = tables.POSITION << 3


class EncodedRpc(NamedTuple):
    """What asks a peer for an operation."""

    path: str
    request: bytes


class PositionedValue(NamedTuple):
    """An event of a stream as plain values, and its position; 0: the peer did not say."""

    value: Object
    position: int


class GrpcCodec:
    """One version over gRPC, in one of its dialects."""

    def __init__(self, schema: ProtoSchema, dialect: ProtoDialect) -> None:
        self.schema = schema
        self.dialect = dialect
        self._stream = shape_of(schema, "StreamResponse")
        # The newest names come first in the table.
        self._by_operation = {rpc.operation: name for name, rpc in reversed(schema.rpcs.items())}
        version = dialect.version
        self._methods = {name: _method(name, rpc, version) for name, rpc in schema.rpcs.items()}

    # For servers

    def request_values(self, name: str, data: bytes, most_fields: int) -> Object:
        """Return what an rpc is asked with; raises `ParseFailed` or `InvalidParams`."""
        shape = shape_of(self.schema, self.schema.rpcs[name].request)
        check_fields(data, shape.make, most_fields)
        return shape.decode(data)

    def decode_request(self, name: str, values: Object) -> Operation:
        """Return the operation that an rpc asks for; raises `InvalidParams`."""
        return self.dialect.decode_request(self._methods[name], values)

    def encode_reply(self, name: str, operation: Operation, reply: Reply) -> bytes:
        """Return the bytes of a reply."""
        shape = shape_of(self.schema, self.schema.rpcs[name].reply)
        return shape.encode(self.dialect.reply_value(operation, reply))

    def encode_opening(self, operation: Operation, reply: TaskReply) -> bytes:
        """Return the bytes of the Task that opens the stream of an operation."""
        value = self.dialect.reply_value(operation, reply)
        # The reply to a send is in its wrapper already.
        return self._stream.encode(value if "task" in value else {"task": value})

    def encode_event(self, recorded: Recorded) -> bytes:
        """Return the bytes of an event, made once for all its readers."""
        key = self.dialect.proto_shape
        shape = recorded.shapes.get(key)
        if shape is None:
            value = self.dialect.event_value(recorded.event)
            shape = recorded.shapes[key] = self._stream.encode(value)
        return shape

    def stream_encoder(self) -> StreamEncoder:
        """Return what encodes the events of one stream."""
        return StreamEncoder(self.schema, self.dialect, self.encode_event)

    # For clients

    def encode_request(self, operation: Operation) -> EncodedRpc:
        """Return the rpc that asks for an operation; raises `UnsupportedOperation`."""
        params = self.dialect.encode_request(operation).params
        name = self._by_operation[type(operation)]
        request = shape_of(self.schema, self.schema.rpcs[name].request).encode(params)
        return EncodedRpc(f"/{self.schema.service}/{name}", request)

    def reply_values(self, operation: Operation, data: bytes, most_fields: int) -> Object:
        """Return a peer's reply as the plain values that the dialect reads."""
        name = self._by_operation[type(operation)]
        shape = shape_of(self.schema, self.schema.rpcs[name].reply)
        check_fields(data, shape.make, most_fields)
        return shape.decode(data)

    def event_values(self, data: bytes, most_fields: int) -> PositionedValue:
        """Return an event of a peer's stream as the plain values that the dialect reads."""
        check_fields(data, self._stream.make, most_fields)
        value = self._stream.decode(data)
        return PositionedValue(value, value.pop("position", 0))


def positioned(event: bytes, position: int) -> bytes:
    """Return an event with its position, which readers that do not know it skip."""
    return b"%b%b%b" % (event, _POSITION_TAG, varint(position))


def _method(name: str, rpc: Rpc, version: str) -> str:
    """Return what the dialect calls the method of an rpc."""
    return name if version == V1_0.version else row_by(rpc.operation).method(version)


_POSITION_TAG = varint(_POSITION_KEY)

V1 = GrpcCodec(tables.V1_0, V1_0)
V0 = GrpcCodec(tables.V0_3, V0_3_PROTO)
# For peers that put the base64 of a file where the proto has its bytes.
V0_TEXT = GrpcCodec(tables.V0_3, V0_3_PROTO_TEXT)
_BY_DIALECT: dict[Dialect, GrpcCodec] = {codec.dialect: codec for codec in (V1, V0, V0_TEXT)}


def codec_of(dialect: Dialect) -> GrpcCodec:
    """Return the codec of a dialect that gRPC carries."""
    return _BY_DIALECT[dialect]


class CalledRpc(NamedTuple):
    """An rpc of ours that a path names."""

    codec: GrpcCodec
    name: str
    rpc: Rpc


# There are few that are found, and an error is not kept.
@cache
def find(path: str) -> CalledRpc:
    """Return the rpc of a path; raises `MethodNotFound`."""
    service, _, name = path.removeprefix("/").partition("/")
    for codec in (V1, V0):
        if service == codec.schema.service and name in codec.schema.rpcs:
            return CalledRpc(codec, name, codec.schema.rpcs[name])
    raise MethodNotFound(method=name)
