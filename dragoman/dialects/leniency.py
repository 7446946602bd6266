"""Answers that are almost A2A, read for what they mean.

A peer may answer in the shape of another version than it is spoken to in, or mix two: its card says
1.0, and the events of its streams are flat and have a `kind`. Only what the dialect itself cannot
read is tried in another one, and whoever reads it is told, so that nobody takes it for correct.
"""

from collections.abc import Callable
from typing import TypeVar

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.reading import Value
from dragoman.dialects.v0_2 import V0_2, V0_2_OBJECTS
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT, V0Proto
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams
from dragoman.model import operations as ops
from dragoman.model.events import Event
from dragoman.service import Reply

OTHER_SHAPE = "an answer came in the shape of another version than is spoken"

T = TypeVar("T")
# What read of a peer's answer was not as its version has it, in words.
Noted = Callable[[str], None]


class _Either(V0Proto):
    """Takes the names of both generations, with wrappers or flat. It is not the proto: a status
    without a state says nothing."""

    is_proto = False

    def _part(self, value: Value) -> Value:
        if type(value) is dict and ("raw" in value or "url" in value):
            raise InvalidParams("only 1.0 has such parts")
        return super()._part(value)


_EITHER = _Either()
_OTHERS: dict[Dialect, tuple[Dialect, ...]] = {
    V1_0: (_EITHER,),
    **dict.fromkeys((V0_3, V0_3_OBJECTS, V0_2, V0_2_OBJECTS), (_EITHER, V1_0)),
    **dict.fromkeys((V0_3_PROTO, V0_3_PROTO_TEXT), (V1_0,)),
}
_READ_SO = ops.SendMessage | ops.GetTask | ops.CancelTask


def decode_event(dialect: Dialect, value: Value, noted: Noted) -> Event:
    """Return the event that a peer's stream showed; raises `InvalidParams`."""
    return _decoded(dialect, lambda one: one.decode_event(value), noted)


def decode_reply(dialect: Dialect, operation: ops.Operation, value: Value, noted: Noted) -> Reply:
    """Return the reply a peer gave to an operation; raises `InvalidParams`."""
    if not isinstance(operation, _READ_SO):
        return dialect.decode_reply(operation, value)
    return _decoded(dialect, lambda one: one.decode_reply(operation, value), noted)


def _decoded(dialect: Dialect, decode: Callable[[Dialect], T], noted: Noted) -> T:
    try:
        return decode(dialect)
    except InvalidParams as error:
        for other in _OTHERS.get(dialect, ()):
            try:
                read = decode(other)
            except InvalidParams:
                continue
            noted(OTHER_SHAPE)
            return read
        raise error
