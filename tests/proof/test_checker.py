"""The checker: every kind of violation is found in a file that has it, and only there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from proof.client import Frame, message
from proof.crash.checker import History, Verdict, check, differs, fold, torn

WORKING, COMPLETED, CANCELED = 2, 3, 5
NAMES = {
    2: "TASK_STATE_WORKING",
    3: "TASK_STATE_COMPLETED",
    5: "TASK_STATE_CANCELED",
}


def began(task: str, message_id: str) -> dict[str, Any]:
    said = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "go"}]}
    status = {"state": "TASK_STATE_SUBMITTED"}
    return {"task": {"id": task, "contextId": "c", "status": status, "history": [said]}}


def status(state: int, text: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = {"state": NAMES[state]}
    if text:
        shown["message"] = {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}
    return {"statusUpdate": {"taskId": "t", "contextId": "c", "status": shown}}


def chunk(text: str, *, append: bool = True, name: str = "a") -> dict[str, Any]:
    update: dict[str, Any] = {"artifact": {"artifactId": name, "parts": [{"text": text}]}}
    return {"artifactUpdate": update | ({"append": True} if append else {})}


def added(message_id: str) -> dict[str, Any]:
    said = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "more"}]}
    return {"messageAdded": {"message": said}}


def frames(*events: tuple[int | None, dict[str, Any]]) -> list[Frame]:
    return [Frame(seq, msgspec.json.encode(event)) for seq, event in events]


class Book:
    """A store file written by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = apsw.Connection(str(path))
        self._file.execute(
            "CREATE TABLE tasks (number INTEGER PRIMARY KEY, id, state, last_seq);"
            "CREATE TABLE events (position INTEGER PRIMARY KEY, n, bodies)"
        )
        self._count = 0

    def add(
        self, id: str, state: int, events: Sequence[dict[str, Any]], *, skip: int = 0, last: int = 0
    ) -> None:
        """Add a task and its log, one row an event; `skip` leaves a row out."""
        self._count += 1
        values = (self._count, id, state, last or len(events))
        self._file.execute("INSERT INTO tasks VALUES (?, ?, ?, ?)", values)
        for seq, event in enumerate(events, 1):
            if seq != skip:
                row = (self._count << 20 | seq, 1, msgspec.json.encode(event))
                self._file.execute("INSERT INTO events VALUES (?, ?, ?)", row)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def book(tmp_path: Path) -> Any:
    book = Book(tmp_path / "tasks.db")
    yield book
    book.close()


def told(*acked: tuple[str, str, int]) -> History:
    """Return a history of messages, each with the task and the state it was answered with."""
    history = History()
    for message_id, task_id, state in acked:
        sent = history.invoke("SendMessage", message("echo", "go", message_id))
        history.ack(sent, {"id": task_id, "status": {"state": NAMES[state]}})
    return history


def counts(verdict: Verdict) -> dict[str, int]:
    kinds = ("lost", "hanging", "changed", "doubled", "gaps", "torn")
    return {kind: count for kind in kinds if (count := getattr(verdict, kind))}


DONE = [began("t", "m"), status(WORKING), chunk("x", append=False), status(COMPLETED)]


def test_a_file_that_keeps_what_was_told_has_no_violation(book: Book) -> None:
    book.add("t", COMPLETED, DONE)
    history = told(("m", "t", COMPLETED))
    history.saw_frames("t", frames(*enumerate(DONE, 1)))
    verdict = check(history, book.path)
    assert counts(verdict) == {} and verdict.findings == [] and verdict.tasks == 1


def test_an_acknowledged_task_that_is_not_there_is_lost(book: Book) -> None:
    assert counts(check(told(("m", "t", WORKING)), book.path)) == {"lost": 1}


def test_an_acknowledged_message_that_is_not_in_its_task_is_lost(book: Book) -> None:
    book.add("t", COMPLETED, DONE)
    history = told(("m", "t", WORKING), ("further", "t", WORKING))
    assert counts(check(history, book.path)) == {"lost": 1}


def test_a_message_nobody_heard_of_may_be_missing(book: Book) -> None:
    history = History()
    history.invoke("SendMessage", message("echo", "go", "m"))
    assert counts(check(history, book.path)) == {}


def test_a_task_that_is_not_at_rest_hangs(book: Book) -> None:
    book.add("t", WORKING, DONE[:3])
    assert counts(check(told(("m", "t", WORKING)), book.path)) == {"hanging": 1}


def test_an_end_that_was_shown_and_is_not_stored_is_a_change(book: Book) -> None:
    book.add("t", COMPLETED, DONE)
    assert counts(check(told(("m", "t", CANCELED)), book.path)) == {"changed": 1}


def test_anything_after_the_end_is_a_change(book: Book) -> None:
    book.add("t", CANCELED, [*DONE, status(CANCELED)])
    assert counts(check(told(("m", "t", WORKING)), book.path)) == {"changed": 1}


def test_two_ends_of_one_task_are_a_change_when_they_are_told() -> None:
    history = told(("m", "t", COMPLETED), ("n", "t", CANCELED))
    assert history.told.changed == 1


def test_a_message_in_two_tasks_is_doubled(book: Book) -> None:
    book.add("t", COMPLETED, DONE)
    book.add("u", COMPLETED, [began("u", "m"), *DONE[1:]])
    assert counts(check(told(("m", "t", COMPLETED)), book.path)) == {"doubled": 1}


def test_a_message_recorded_twice_in_its_task_is_doubled(book: Book) -> None:
    book.add("t", COMPLETED, [DONE[0], added("n"), added("n"), *DONE[1:]])
    history = told(("m", "t", COMPLETED), ("n", "t", COMPLETED))
    assert counts(check(history, book.path)) == {"doubled": 1}


def test_two_tasks_for_one_message_are_doubled_when_they_are_told() -> None:
    assert told(("m", "t", WORKING), ("m", "u", WORKING)).told.doubled == 1


@pytest.mark.parametrize("hole", [{"skip": 2}, {"skip": 4}, {"last": 5}])
def test_a_hole_in_a_log_is_a_gap(book: Book, hole: dict[str, int]) -> None:
    book.add("t", COMPLETED, DONE, **hole)
    assert check(told(("m", "t", COMPLETED)), book.path).gaps == 1


def step(index: int, value: str) -> dict[str, Any]:
    return {"stepRecorded": {"kind": "step", "index": index, "name": "s", "value": value}}


@pytest.mark.parametrize(
    ("recorded", "named", "repeated"),
    [
        ([step(0, "a"), step(1, "b")], "journey a b", 0),
        ([step(0, "a"), step(0, "b")], "journey b", 1),
        ([step(0, "a"), step(1, "b")], "journey a c", 1),
        ([step(0, "a"), {"turnBegan": {"message": 1}}, step(0, "b")], "journey b", 0),
    ],
)
def test_a_recorded_step_that_was_taken_again_is_found(
    book: Book, recorded: list[dict[str, Any]], named: str, repeated: int
) -> None:
    book.add("t", COMPLETED, [DONE[0], *recorded, chunk(named, append=False), DONE[-1]])
    verdict = check(told(("m", "t", COMPLETED)), book.path)
    assert counts(verdict) == {} and verdict.repeated == repeated


LOG = [msgspec.json.encode(event) for event in (DONE[0], added("n"), *DONE[1:])]


def test_a_stream_may_leave_out_only_what_no_stream_shows() -> None:
    assert torn(frames((1, DONE[0]), (3, DONE[1]), (4, DONE[2])), LOG) == ""
    assert "4 is missing" in torn(frames((1, DONE[0]), (3, DONE[1]), (5, DONE[3])), LOG)


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ([(1, DONE[0]), (3, DONE[1]), (3, DONE[1])], "3 after 3"),
        ([(1, DONE[0]), (3, DONE[2])], "not what the log holds"),
        ([(1, DONE[0]), (None, DONE[1])], "without a position"),
        ([(1, DONE[0]), (9, DONE[1])], "ends at 5"),
    ],
)
def test_a_stream_that_is_no_range_of_its_log_is_torn(
    seen: list[tuple[int | None, dict[str, Any]]], problem: str
) -> None:
    assert problem in torn(frames(*seen), LOG)


def test_the_fold_appends_replaces_and_retires_what_agents_said() -> None:
    task = began("t", "m")["task"]
    events = [
        status(WORKING, "one"),
        chunk("a", append=False),
        chunk("b"),
        chunk("first", append=False, name="count"),
        chunk("second", append=False, name="count"),
        status(COMPLETED, "two"),
    ]
    folded = fold(task, events)
    texts = [[part["text"] for part in artifact["parts"]] for artifact in folded["artifacts"]]
    assert texts == [["a", "b"], ["second"]]
    assert [said["messageId"] for said in folded["history"]] == ["m", "one"]
    assert folded["status"] == events[-1]["statusUpdate"]["status"]
    assert differs(folded, folded) == ""


def test_a_fold_that_lacks_a_chunk_differs() -> None:
    task = began("t", "m")["task"]
    events = [status(WORKING), chunk("a", append=False), chunk("b"), status(COMPLETED)]
    whole = fold(task, events)
    assert differs(fold(task, events[:2] + events[3:]), whole) == "the artifacts differ"
    assert "status" in differs(fold(task, events[:3]), whole)
    said = fold(task, [status(WORKING, "one"), *events])
    assert differs(whole, said) == "the history differs"
