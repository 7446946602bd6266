"""What a caller hands over becomes parts; what comes back becomes an answer."""

import datetime
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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


_CIRCLE: dict[str, Any] = {}
_CIRCLE["a"] = _CIRCLE


@dataclass
class _Reading:
    value: Any


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": object()}, "the content, at 'a': JSON has no object"),
        ({"a": [1, {"b": math.nan}]}, "the content, at 'a', at 1, at 'b': it is nan"),
        ({"a": -math.inf}, "the content, at 'a': it is -inf"),
        ({"a": "x\ud800"}, "the content, at 'a': it has half of a surrogate pair"),
        ({"\ud800": 1}, r"the content, at '\ud800': it has half of a surrogate pair"),
        ({("a", "b"): 1}, "the content, at ('a', 'b'): the names of a JSON object are texts"),
        (_CIRCLE, "the content: it is nested too deep, or contains itself"),
        (_Reading(math.nan), "the content cannot be sent: JSON has no NaN and no infinity"),
        (_Reading(object()), "the content cannot be sent: "),
        (object(), "the content cannot be sent: "),
        ("\ud800", "text of part 1: it has half of a surrogate pair"),
        (["fine", "\ud800"], "text of part 2: it has half of a surrogate pair"),
        (Part(data=[math.nan]), "data of part 1, at 0: it is nan"),
        (Part(data=object()), "data of part 1: JSON has no object"),
        (Part(text="a", metadata={"k": object()}), "metadata of part 1, at 'k': JSON has no"),
        (Part(raw=b"x", filename="\udcff.txt"), "filename of part 1: it has half"),
        (Part(url="https://x/\ud800"), "url of part 1: it has half"),
        (
            Message(MessageId("m"), Role.USER, [Part(text="a")], metadata={"k": math.inf}),
            "metadata of the message, at 'k': it is inf",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_place(content: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        message_of(content)
    assert str(refused.value).startswith(said)
    # It is printed somewhere.
    str(refused.value).encode()


@pytest.mark.parametrize("name", ["task_id", "context_id", "message_id"])
def test_ids_that_cannot_be_sent_are_refused_too(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} of the message: it has half"):
        message_of("a", **{name: "\ud800"})
    with pytest.raises(ConfigError, match=r"^metadata of the message, at 'k': it is nan"):
        message_of("a", metadata={"k": math.nan})


def test_what_json_has_a_form_for_is_sent_in_it() -> None:
    day = datetime.date(2024, 2, 29)
    content = {"day": day, "big": 2**70, 3: (1.5, None, True), "text": "\U0001f600"}
    (part,) = message_of(content).parts
    assert part.data == {
        "day": "2024-02-29",
        "big": 2**70,
        "3": (1.5, None, True),
        "text": "\U0001f600",
    }
    assert message_of(Part(data={"day": day})).parts[0].data == {"day": day}


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
