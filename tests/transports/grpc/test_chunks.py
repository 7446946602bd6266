"""Chunks of artifacts: the bytes are those of a message that was filled field by field."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Part
from dragoman.model.record import Recorded, encode_event
from dragoman.model.task import TaskState, TaskStatus
from dragoman.transports.grpc.codec import V0, V0_TEXT, V1, GrpcCodec
from dragoman.transports.grpc.framing import PREFIX_BYTES, framed

CODECS = pytest.mark.parametrize("codec", [V1, V0, V0_TEXT], ids=["1.0", "0.3", "0.3-text"])
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(
        ["", '"', "\\", 'a"}],"name":"n"', '"},{"text":"', "\n\t\0", "é", "x" * 70_000]
    ),
    st.integers(0, 300).map(lambda size: "y" * size),
)
METADATA = st.sampled_from([{}, {"k": 1}, {"parts": [{"text": ""}]}, {"k": '"parts":[{"text":"'}])
PARTS = st.one_of(
    TEXTS.map(lambda text: [Part(text=text)]),
    TEXTS.map(lambda text: [Part(text=text)]),
    st.lists(
        st.one_of(
            st.builds(Part, text=TEXTS, metadata=METADATA, filename=st.sampled_from(["", "f"])),
            st.just(Part(data={"text": "t"})),
            st.just(Part(raw=b"\0")),
        ),
        max_size=3,
    ),
)
ARTIFACTS = st.builds(
    Artifact,
    artifact_id=st.sampled_from(["a", "b", '"parts":[{"text":"']),
    parts=PARTS,
    name=st.sampled_from(["", "", "n", '"'])
    | TEXTS.filter(lambda text: len(text) < 200),
    metadata=METADATA,
    extensions=st.sampled_from([[], [], ["urn:x"]]),
    extra=st.sampled_from([{}, {}, {"z": 1}]),
)  # fmt: skip
EVENTS = st.builds(
    ArtifactUpdate,
    task_id=st.sampled_from([TaskId("t"), TaskId("u" * 40)]),
    context_id=st.sampled_from([ContextId("c"), ContextId('"')]),
    artifact=ARTIFACTS,
    append=st.booleans(),
    last_chunk=st.booleans(),
    metadata=METADATA,
    extra=st.sampled_from([{}, {}, {"z": 1}]),
)


@CODECS
@given(events=st.lists(EVENTS, min_size=1, max_size=8))
def test_a_stream_has_the_bytes_of_its_events(codec: GrpcCodec, events: list[Any]) -> None:
    # Each twice: what was learned from one is used for the next.
    recorded = [Recorded.of_event(1, event) for event in events for _ in range(2)]
    expected = [
        framed(codec.encode_event(Recorded.of_event(1, event)))
        for event in events
        for _ in range(2)
    ]
    assert codec.stream_encoder().encode(recorded) == expected


def chunk(text: str, *, artifact_id: str = "a", last_chunk: bool = False) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
    return ArtifactUpdate(TaskId("t"), ContextId("c"), artifact, append=True, last_chunk=last_chunk)


@CODECS
@given(texts=st.lists(TEXTS, min_size=3, max_size=9))
def test_chunks_of_one_artifact_differ_in_their_text(codec: GrpcCodec, texts: list[str]) -> None:
    events: list[Event] = [chunk(text) for text in texts]
    events[1] = chunk(texts[1], last_chunk=True)
    events[2] = StatusUpdate(TaskId("t"), ContextId("c"), TaskStatus(TaskState.WORKING))
    expected = [framed(codec.encode_event(Recorded.of_event(1, event))) for event in events]
    # As they are read from a store: their bytes alone are there.
    stored = [Recorded.of_body(1, encode_event(event)) for event in events]
    assert codec.stream_encoder().encode(stored) == expected


def test_chunks_of_a_known_artifact_are_not_decoded() -> None:
    encoder = V1.stream_encoder()
    encoder.encode([Recorded.of_event(1, chunk("first"))])
    texts = ["second", 'a "word"\n', "third", "back\\slash"]
    later = [Recorded.of_body(2, encode_event(chunk(text))) for text in texts]
    for message, text in zip(encoder.encode(later), texts, strict=True):
        update = V1.event_values(message[PREFIX_BYTES:], 100).value["artifactUpdate"]
        assert update["artifact"]["parts"] == [{"text": text}]
    for recorded in later:
        with pytest.raises(AttributeError):
            object.__getattribute__(recorded, "event")


def test_what_is_known_of_artifacts_and_lengths_has_a_bound() -> None:
    encoder = V1.stream_encoder()
    encoder.encode([Recorded.of_event(1, chunk("x"))])
    body = encode_event(chunk("@", artifact_id="a0"))
    tracemalloc.start()
    try:
        for number in range(1_000):
            encoder.encode([Recorded.of_event(1, chunk("x", artifact_id=f"a{number}"))])
        for size in range(4_000):
            encoder.encode([Recorded.of_body(1, body.replace(b"@", b"x" * size))])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
