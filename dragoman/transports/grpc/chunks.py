"""Chunks of an artifact as protobuf, without making a message of each.

The chunks of one artifact differ in their text alone, so all other bytes are made once, and with
them every length, which depends on that of the text. What is compared and cut is the record of the
event: bytes that begin and end as those of the first chunk did are another text between them, or
the event is left to the codec.
"""

from collections.abc import Callable, Iterable
from functools import cache

from msgspec import UNSET, DecodeError
from msgspec.json import Decoder
from msgspec.structs import replace

from dragoman.dialects.dialect import ProtoDialect
from dragoman.dialects.reading import Object
from dragoman.model.events import ArtifactUpdate, Event
from dragoman.model.message import Part
from dragoman.model.record import Recorded, encode_event
from dragoman.transports.grpc.classes import fields_of
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.tables import ProtoSchema
from dragoman.transports.grpc.varints import varint

_TEXT = b'"parts":[{"text":"'
_decode_text = Decoder(str).decode
# Artifacts of one stream that are known. Streams with more of them gain little.
_MOST_FORMS = 4
# Lengths of texts that are known for each.
_MOST_LENGTHS = 64


class ChunkForm:
    """What the chunks of one artifact have in common."""

    __slots__ = ("_heads", "_layers", "_start", "_stop", "prefix", "suffix", "tail")

    def __init__(self, schema: ProtoSchema, record: bytes, value: Object) -> None:
        """`record` and `value` are a chunk whose text is empty, as it is recorded and as the
        dialect has it."""
        before, separator, after = record.partition(_TEXT)
        self.prefix, self.suffix = before + separator, after
        self._start, self._stop = len(self.prefix), -len(after)
        self._heads: dict[int, bytes] = {}
        update: Object = value["artifactUpdate"]
        # From the inside: the key of each message, and the fields before and behind the inner one.
        self._layers = [
            _Layer(schema, "Part", "text", {}),
            _Layer(schema, "Artifact", "parts", update["artifact"]),
            _Layer(schema, "TaskArtifactUpdateEvent", "artifact", update),
            _Layer(schema, "StreamResponse", "artifactUpdate", {}),
        ]
        self.tail = b"".join(layer.after for layer in self._layers)

    def encode(self, record: bytes) -> bytes | None:
        """Return the message of a chunk; None: it is not one of these."""
        if not record.startswith(self.prefix) or not record.endswith(self.suffix):
            return None
        text = record[self._start : self._stop]
        if b"\\" in text:
            try:
                text = _decode_text(b'"%b"' % text).encode()
            except DecodeError:
                return None
        elif b'"' in text:
            # There is more than a text here.
            return None
        return (self._heads.get(len(text)) or self._head(len(text))) + text + self.tail

    def _head(self, size: int) -> bytes:
        """Return what comes before a text of some length."""
        head = b""
        inner = size
        for layer in self._layers:
            own = layer.before + layer.key + varint(inner)
            head = own + head
            inner += len(own) + len(layer.after)
        if len(self._heads) >= _MOST_LENGTHS:
            self._heads.clear()
        self._heads[size] = head
        return head


class _Layer:
    """A message around another one or a text: its other fields, in the order of their numbers."""

    __slots__ = ("after", "before", "key")

    def __init__(self, schema: ProtoSchema, name: str, inner: str, values: Object) -> None:
        numbers = _numbers(schema.messages[name])
        number = numbers[inner]
        self.key = varint(number << 3 | 2)
        others = [field for field in values if field in numbers and field != inner]
        self.before = self.after = b""
        if others:
            encode = shape_of(schema, name).encode
            self.before = encode({one: values[one] for one in others if numbers[one] < number})
            self.after = encode({one: values[one] for one in others if numbers[one] > number})


@cache
def _numbers(line: str) -> dict[str, int]:
    return {row.json: row.number for row in fields_of(line)}


class StreamEncoder:
    """Encodes the events of one stream. It knows the artifacts whose chunks have come."""

    __slots__ = ("_dialect", "_encode", "_forms", "_schema")

    def __init__(
        self, schema: ProtoSchema, dialect: ProtoDialect, encode: Callable[[Recorded], bytes]
    ) -> None:
        """`encode` is for all that is not a chunk of a known artifact."""
        self._schema = schema
        self._dialect = dialect
        self._encode = encode
        self._forms: list[ChunkForm] = []

    def encode(self, events: Iterable[Recorded]) -> list[bytes]:
        """Return the message of each event."""
        found: list[bytes] = []
        for recorded in events:
            for form in self._forms:
                message = form.encode(recorded.body)
                if message is not None:
                    break
            else:
                message = self._encode(recorded)
                if len(self._forms) < _MOST_FORMS:
                    self._learn(recorded.event)
            found.append(message)
        return found

    def _learn(self, event: Event) -> None:
        """Know the artifact that an event is a chunk of, if more of them may follow."""
        if not isinstance(event, ArtifactUpdate) or not event.append or event.last_chunk:
            return
        artifact = event.artifact
        text = artifact.parts[0].text if len(artifact.parts) == 1 else UNSET
        if text is UNSET or artifact.parts[0] != Part(text=text):
            return
        empty = replace(event, artifact=replace(artifact, parts=[Part(text="")]))
        value = self._dialect.event_value(empty)
        self._forms.insert(0, ChunkForm(self._schema, encode_event(empty), value))
