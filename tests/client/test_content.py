"""What a caller hands over becomes parts; what comes back becomes an answer."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.client import trace
from dragoman.client.answer import Answer
from dragoman.client.content import message_of
from dragoman.errors import ConfigError
from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("text", [Part(text="text")]),
        (b"raw", [Part(raw=b"raw", media_type="application/octet-stream")]),
        ({"a": 1}, [Part(data={"a": 1})]),
        (Part(data=[1, 2]), [Part(data=[1, 2])]),
        (["a", {"b": 1}, Part(url="https://x")], None),
    ],
)
def test_content_becomes_parts_in_order(content: Any, parts: list[Part] | None) -> None:
    expected = parts or [Part(text="a"), Part(data={"b": 1}), Part(url="https://x")]
    message = message_of(content)
    assert message.parts == expected and message.role is Role.USER


def test_a_file_keeps_its_last_name_and_its_type(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(b"%PDF")
    (part,) = message_of(file).parts
    assert (part.raw, part.filename, part.media_type) == (b"%PDF", "report.pdf", "application/pdf")
    with pytest.raises(ConfigError, match="No such file"):
        message_of(tmp_path / "missing.pdf")


def test_every_message_has_an_id_of_its_own_unless_one_is_given() -> None:
    assert message_of("a").message_id != message_of("a").message_id
    given = Message(MessageId("m-1"), Role.USER, [Part(text="a")], metadata={"x": 1})
    assert message_of(given) is given
    changed = message_of(given, task_id="t", context_id="c", message_id="m-2", metadata={"y": 2})
    assert (changed.task_id, changed.context_id, changed.message_id) == ("t", "c", "m-2")
    assert changed.metadata == {"x": 1, "y": 2}


def task(state: TaskState, said: str = "", *artifacts: list[Part], history: str = "") -> Task:
    def message(text: str) -> Message | None:
        return Message(MessageId(text), Role.AGENT, [Part(text=text)]) if text else None

    past = message(history)
    return Task(
        TaskId("t"),
        ContextId("c"),
        TaskStatus(state, message(said)),
        [Artifact(str(number), parts) for number, parts in enumerate(artifacts)],
        [past] if past else [],
    )


DONE, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (task(DONE, "", [Part(text="a"), Part(text="b")], [Part(text="c")]), "ab\nc"),
        (task(DONE, "said", [Part(text="made")]), "made"),
        (task(DONE, "said", [Part(raw=b"x")]), "said"),
        (task(DONE, "", history="before"), "before"),
        (task(ASKS, "which?", [Part(text="made")]), "which?"),
        (task(DONE), ""),
    ],
)
def test_the_text_of_an_answer_is_what_a_person_would_read(given: Task, text: str) -> None:
    assert Answer(given).text == text


def test_an_answer_that_has_not_come_is_empty() -> None:
    nothing = Answer()
    assert (nothing.text, nothing.parts, nothing.files, nothing.data) == ("", [], [], None)
    assert (nothing.task_id, nothing.context_id, nothing.state) == ("", "", None)


def test_a_trace_goes_on_with_the_one_that_came_in() -> None:
    own = trace.current().split("-")
    assert own[0] == "00" and len(own[1]) == 32 and len(own[2]) == 16
    token = trace.incoming.set(f"00-{'a' * 32}-{'b' * 16}-01")
    try:
        _, trace_id, span, flags = trace.current().split("-")
    finally:
        trace.incoming.reset(token)
    assert trace_id == "a" * 32 and span != "b" * 16 and flags == "01"
