"""What an agent produces, as the text of one answer."""

import pytest

from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Part
from dragoman.model.record import Recorded
from dragoman.openai.answers import ChatAnswer


def said(*pieces: tuple[str, bool]) -> str:
    """Return the answer of an artifact that comes in pieces, each appended or from the start."""
    answer = ChatAnswer({})
    for number, (text, append) in enumerate(pieces):
        artifact = Artifact(artifact_id="a", parts=[Part(text=text)])
        event = ArtifactUpdate(TaskId("t"), ContextId("c"), artifact, append=append)
        answer.take([Recorded.of_event(number + 1, event)])
    return answer.text


@pytest.mark.parametrize(
    ("again", "found"),
    [
        ([("one ", False), ("two ", True), ("three", True)], "one two three"),
        ([("one two", False), (" three", True)], "one two three"),
        ([("one two three", False)], "one two three"),
        ([("one ", False), ("one ", False), ("two three", True)], "one two three"),
        ([("one ", False), ("2 ", True), ("3", True)], "one two \none 2 3"),
    ],
)
def test_what_an_agent_says_again_after_a_crash_is_shown_once(
    again: list[tuple[str, bool]], found: str
) -> None:
    assert said(("one ", False), ("two ", True), *again) == found
