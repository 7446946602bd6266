"""Answers that are almost A2A, read for what they mean.

A peer may answer in the shape of another version than it is spoken to in, or mix two: its card says
1.0, and the events of its streams are flat and have a `kind`. Only what the dialect itself cannot
read is tried in another one, and the reader is told, so that it is not taken for correct.
"""

from collections.abc import Callable
from typing import TypeVar

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.reading import Value
from dragoman.dialects.v0_2 import V0_2, V0_2_OBJECTS
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT, V0Proto
from dragoman.dialects.v0_3_proto_shapes import ProtoSpelling
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams
from dragoman.model import operations as ops
from dragoman.model.events import Event
from dragoman.service import Reply

OTHER_SHAPE = "an answer came in the shape of another version than is spoken"

T = TypeVar("T")
# Takes a sentence about an answer that is not as its version has it.
Note = Callable[[str], None]


class _EitherSpelling(ProtoSpelling):
    """Takes the names of both generations, with wrappers or flat. It is not the proto: a status
    without a state says nothing."""

    def part(self, value: Value) -> Value:
        if type(value) is dict and ("raw" in value or "url" in value):
            raise InvalidParams("only 1.0 has such parts")
        return super().part(value)


_EITHER = V0Proto(_EitherSpelling(is_proto=False))
_OTHERS: dict[Dialect, tuple[Dialect, ...]] = {
    V1_0: (_EITHER,),
    **dict.fromkeys((V0_3, V0_3_OBJECTS, V0_2, V0_2_OBJECTS), (_EITHER, V1_0)),
    **dict.fromkeys((V0_3_PROTO, V0_3_PROTO_TEXT), (V1_0,)),
}
_READ_LENIENTLY = ops.SendMessage | ops.GetTask | ops.CancelTask


def decode_event(dialect: Dialect, value: Value, note: Note) -> Event:
    """Return the event that a peer's stream showed; raises `InvalidParams`."""
    return _decoded(dialect, lambda one: one.decode_event(value), note)


def decode_reply(dialect: Dialect, operation: ops.Operation, value: Value, note: Note) -> Reply:
    """Return the reply a peer gave to an operation; raises `InvalidParams`."""
    if not isinstance(operation, _READ_LENIENTLY):
        return dialect.decode_reply(operation, value)
    return _decoded(dialect, lambda one: one.decode_reply(operation, value), note)


def _decoded(dialect: Dialect, decode: Callable[[Dialect], T], note: Note) -> T:
    try:
        return decode(dialect)
    except InvalidParams as error:
        for other in _OTHERS.get(dialect, ()):
            try:
                read = decode(other)
            except InvalidParams:
                continue
            note(OTHER_SHAPE)
            return read
        raise error
