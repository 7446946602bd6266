"""Chunks of an artifact as protobuf, without making a message of each.

The chunks of one artifact differ in their text alone, so all other bytes are made once, and with
them every length, which depends on that of the text: those of its messages and of the one that is
sent, whose length stands before it. What is compared and cut is the record of the
event: bytes that begin and end as those of the first chunk did are another text between them, or
the event is left to the codec.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import takewhile
from operator import attrgetter, methodcaller
from typing import NamedTuple

from msgspec import UNSET, DecodeError
from msgspec.json import Decoder
from msgspec.structs import replace

from dragoman.dialects.dialect import ProtoDialect
from dragoman.dialects.reading import Object
from dragoman.model.events import ArtifactUpdate, Event
from dragoman.model.message import Part
from dragoman.model.record import Recorded, encode_event
from dragoman.transports.grpc.classes import FieldRow, fields_of
from dragoman.transports.grpc.framing import framed
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.tables import ProtoSchema
from dragoman.transports.grpc.varints import varint

_TEXT = b'"parts":[{"text":"'
_decode_text = Decoder(str).decode
# Without a step of Python for each event.
_body_of = attrgetter("body")
# Artifacts of one stream that are known. Streams with more of them gain little.
_MOST_FORMS = 4
# Lengths of texts that are known for each.
_MOST_LENGTHS = 64


class ChunkForm:
    """What the chunks of one artifact have in common."""

    __slots__ = ("_begins", "_ends", "_layers", "heads", "start", "stop", "tail")

    def __init__(self, schema: ProtoSchema, record: bytes, value: Object) -> None:
        """`record` and `value` are a chunk whose text is empty, as it is recorded and as the
        dialect has it."""
        before, separator, after = record.partition(_TEXT)
        self._begins = methodcaller("startswith", before + separator)
        self._ends = methodcaller("endswith", after)
        self.start, self.stop = len(before + separator), -len(after)
        # What comes before texts, by their lengths, from the frame on.
        self.heads: dict[int, bytes] = {}
        update: Object = value["artifactUpdate"]
        # From the inside: the key of each message, and the fields before and behind the inner one.
        self._layers = [
            _Layer(schema, "Part", "text", {}),
            _Layer(schema, "Artifact", "parts", update["artifact"]),
            _Layer(schema, "TaskArtifactUpdateEvent", "artifact", update),
            _Layer(schema, "StreamResponse", "artifactUpdate", {}),
        ]
        self.tail = b"".join(layer.after for layer in self._layers)

    def messages(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the messages of the chunks of this artifact that records begin with."""
        # Chunks are most of what there is: little is done for each of them in Python.
        chunks = takewhile(self._ends, takewhile(self._begins, records))
        start, stop = self.start, self.stop
        texts = [chunk[start:stop] for chunk in chunks]
        all_texts = b"".join(texts)
        if b"\\" in all_texts or b'"' in all_texts:
            return self._one_by_one(texts)
        heads, tail = self.heads, self.tail
        sizes = set(map(len, texts))
        if len(sizes) == 1:
            (size,) = sizes
            head = heads.get(size) or self.head(size)
            return [head + text + tail for text in texts]
        return [(heads.get(len(text)) or self.head(len(text))) + text + tail for text in texts]

    def _one_by_one(self, texts: Sequence[bytes]) -> list[bytes]:
        """Return the messages of texts that may be written with escapes, up to the first that is
        more than a text."""
        found: list[bytes] = []
        for text in texts:
            if b"\\" in text:
                try:
                    text = _decode_text(b'"%b"' % text).encode()
                except DecodeError:
                    break
            elif b'"' in text:
                break
            head = self.heads.get(len(text)) or self.head(len(text))
            found.append(head + text + self.tail)
        return found

    def head(self, size: int) -> bytes:
        """Return what comes before a text of some length."""
        head = b""
        inner = size
        for layer in self._layers:
            own = layer.before + layer.key + varint(inner)
            head = own + head
            inner += len(own) + len(layer.after)
        head = b"\0%b%b" % (inner.to_bytes(4), head)
        if len(self.heads) >= _MOST_LENGTHS:
            self.heads.clear()
        self.heads[size] = head
        return head


class _Layer:
    """A message around another one or a text: its other fields, in the order of their numbers."""

    __slots__ = ("after", "before", "key")

    def __init__(self, schema: ProtoSchema, name: str, inner: str, values: Object) -> None:
        self.key, before, after = _places(schema.messages[name], inner)
        self.before = _others(schema, name, before, values)
        self.after = _others(schema, name, after, values)


# A field: its name, and its key if it is a text that is left out where it is empty.
_Place = tuple[str, bytes]


class _Places(NamedTuple):
    """The tag of the inner message, and the fields before and behind it."""

    tag: bytes
    before: tuple[_Place, ...]
    after: tuple[_Place, ...]


@cache
def _places(line: str, inner: str) -> _Places:
    rows = sorted(fields_of(line), key=lambda row: row.number)
    (number,) = (row.number for row in rows if row.json == inner)

    def place(row: FieldRow) -> _Place:
        is_text = row.type == "string" and not (row.is_repeated or row.is_map or row.has_presence)
        return row.json, varint(row.number << 3 | 2) if is_text and not row.oneof else b""

    return _Places(
        varint(number << 3 | 2),
        tuple(place(row) for row in rows if row.number < number),
        tuple(place(row) for row in rows if row.number > number),
    )


def _others(schema: ProtoSchema, name: str, places: tuple[_Place, ...], values: Object) -> bytes:
    """Return fields in their order. Texts are most of them, and need no message to be made."""
    written = b""
    for field, key in places:
        value = values.get(field)
        if value is None:
            continue
        if not key:
            written += shape_of(schema, name).encode({field: value})
        elif value:
            text = value.encode()
            written += key + varint(len(text)) + text
    return written


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

    def encode(self, events: Sequence[Recorded]) -> list[bytes]:
        """Return the message of each event, as it is sent."""
        records = list(map(_body_of, events))
        found: list[bytes] = []
        while records:
            messages = self._chunks(records)
            if not messages:
                recorded = events[len(found)]
                if len(self._forms) < _MOST_FORMS and self._learn(recorded.event):
                    messages = self._forms[0].messages(records)
                messages = messages or [framed(self._encode(recorded))]
            found += messages
            del records[: len(messages)]
        return found

    def _chunks(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the messages of the chunks of a known artifact that records begin with."""
        for form in self._forms:
            if messages := form.messages(records):
                return messages
        return []

    def _learn(self, event: Event) -> bool:
        """Know the artifact that an event is a chunk of, if more of them may follow."""
        if not isinstance(event, ArtifactUpdate) or not event.append or event.last_chunk:
            return False
        artifact = event.artifact
        text = artifact.parts[0].text if len(artifact.parts) == 1 else UNSET
        if text is UNSET or artifact.parts[0] != Part(text=text):
            return False
        empty = replace(event, artifact=replace(artifact, parts=[Part(text="")]))
        value = self._dialect.event_value(empty)
        self._forms.insert(0, ChunkForm(self._schema, encode_event(empty), value))
        return True
