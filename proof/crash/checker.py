"""The checker: what clients were told is held against what the file holds.

It reads the file itself, with none of the store's code, so that a mistake there cannot hide
itself. A violation is counted once and described with the ids that show it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

import apsw
import msgspec

from proof.client import Frame
from proof.results import Json, Violations

# Positions are `number << 20 | seq`; a row holds the events up to its position, one a line.
_SEQ_BITS = 20
_MAX_SEQ = (1 << _SEQ_BITS) - 1
_UNFINISHED = (1, 2)
_STATES = {
    1: "TASK_STATE_SUBMITTED",
    2: "TASK_STATE_WORKING",
    3: "TASK_STATE_COMPLETED",
    4: "TASK_STATE_FAILED",
    5: "TASK_STATE_CANCELED",
    6: "TASK_STATE_INPUT_REQUIRED",
    7: "TASK_STATE_REJECTED",
    8: "TASK_STATE_AUTH_REQUIRED",
}
TERMINAL = {_STATES[number] for number in (3, 4, 5, 7)}
RESTING = TERMINAL | {_STATES[6], _STATES[8]}
# What streams show. Everything else in a log is between the store and its workers.
_PUBLIC = (b'{"task"', b'{"statusUpdate"', b'{"artifactUpdate"', b'{"message"')
# How the agent under test begins what names the results of its steps.
_NAMES_STEPS = b'"text":"journey '


# What clients were told


class Sent(msgspec.Struct):
    """A message that was sent at least once, always with the same contents."""

    method: str
    params: Json
    # The task it led to, once an answer said so.
    task_id: str = ""

    @property
    def message_id(self) -> str:
        """The id that makes a repetition recognisable."""
        return self.params["message"]["messageId"]

    @property
    def is_acked(self) -> bool:
        """Whether some answer was a success."""
        return bool(self.task_id)


class Seen(NamedTuple):
    """A stretch of a stream that a client has read."""

    task_id: str
    frames: list[Frame]


class Verdict(Violations):
    """How often each promise was broken, and the facts of the first few."""

    tasks: int = 0
    lost: int = 0
    hanging: int = 0
    changed: int = 0
    doubled: int = 0
    gaps: int = 0
    torn: int = 0
    repeated: int = 0


class History:
    """All that clients sent and were told, over every restart."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        # The terminal state some answer or event showed of a task.
        self.ends: dict[str, str] = {}
        self.streams: list[Seen] = []
        # Answers that contradict each other; found when they arrive.
        self.told = Verdict()

    @property
    def messages(self) -> int:
        """How many messages were acknowledged."""
        return sum(sent.is_acked for sent in self.sent.values())

    @property
    def acked(self) -> set[str]:
        """The tasks that were acknowledged."""
        return {sent.task_id for sent in self.sent.values() if sent.is_acked}

    def invoke(self, method: str, params: Json) -> Sent:
        """Note a message before it is sent."""
        sent = Sent(method, params)
        return self.sent.setdefault(sent.message_id, sent)

    def ack(self, sent: Sent, task: Json) -> None:
        """Note that a message was answered with a task."""
        if sent.task_id and sent.task_id != task["id"]:
            fact = f"message {sent.message_id} led to {sent.task_id} and to {task['id']}"
            self.told.add("doubled", fact)
            return
        sent.task_id = task["id"]
        self.saw(task["id"], task["status"]["state"])

    def saw(self, task_id: str, state: str) -> None:
        """Note the state a caller was shown. Only ends count: an answer that was on its way before
        the end may be read after it."""
        if state in TERMINAL and self.ends.setdefault(task_id, state) != state:
            fact = f"task {task_id} was {self.ends[task_id]} and then {state}"
            self.told.add("changed", fact)

    def saw_frames(self, task_id: str, frames: list[Frame]) -> None:
        """Note a stretch of a stream, and the states it shows."""
        self.streams.append(Seen(task_id, frames))
        for frame in frames:
            value = frame.value
            shown = value.get("statusUpdate") or value.get("task")
            if shown is not None:
                self.saw(task_id, shown["status"]["state"])


# What the file holds


class Stored(NamedTuple):
    """A task as the file has it; `events` begin with the one numbered 1."""

    number: int
    id: str
    state: str
    last_seq: int
    # Where the numbering of the log has a hole, or nothing.
    gap: str
    events: list[bytes]


class StoreFile:
    """The file, for reading only. Held open no longer than needed: a connection that lives through
    a kill would spare the next server the recovery that is under test."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, *values: Any) -> Iterable[tuple[Any, ...]]:
        """Run a statement."""
        # apsw's own types say too little for a strict checker.
        execute = cast("Callable[..., Any]", self._connection.execute)  # pyright: ignore[reportUnknownMemberType]
        return execute(sql, values)

    def unfinished(self) -> int:
        """Return how many tasks are not at rest."""
        ((count,),) = self.rows(f"SELECT count(*) FROM tasks WHERE state IN {_UNFINISHED}")
        return count

    def last_number(self) -> int:
        """Return the number of the latest task."""
        ((last,),) = self.rows("SELECT coalesce(max(number), 0) FROM tasks")
        return last

    def tasks(self, since: int = 0) -> Generator[Stored]:
        """Yield every task after a number, with its log."""
        heads = {
            number: (id, state, last_seq)
            for number, id, state, last_seq in self.rows(
                "SELECT number, id, state, last_seq FROM tasks WHERE number > ?", since
            )
        }
        events = self.rows(
            "SELECT position, n, bodies FROM events WHERE position > ? ORDER BY position",
            since << _SEQ_BITS | _MAX_SEQ,
        )
        for number, rows in groupby(events, lambda row: row[0] >> _SEQ_BITS):
            if number in heads:
                places = ((row[0] & _MAX_SEQ, row[1], row[2]) for row in rows)
                yield stored(number, *heads.pop(number), places)
        for number, (id, state, last_seq) in heads.items():
            yield stored(number, id, state, last_seq, [])

    def is_sound(self) -> bool:
        """Whether SQLite finds its own structures in order."""
        return list(self.rows("PRAGMA integrity_check")) == [("ok",)]


def stored(
    number: int, id: str, state: int, last_seq: int, rows: Iterable[tuple[int, int, bytes]]
) -> Stored:
    """Return a task of a row and of the rows of its log: last position, count, lines."""
    events: list[bytes] = []
    gap = ""
    for last, count, bodies in rows:
        lines = bytes(bodies).split(b"\n")
        first = last - count + 1
        if len(lines) != count or first != len(events) + 1:
            gap = gap or f"{len(lines)} events at {first} after {len(events)}"
        events.extend(lines)
    if not gap and len(events) != last_seq:
        gap = f"{len(events)} events, but the last is said to be {last_seq}"
    return Stored(number, id, _STATES[state], last_seq, gap, events)


@contextmanager
def reading(path: Path) -> Generator[StoreFile]:
    """Open the file as it is at this moment."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        file = StoreFile(connection)
        file.rows("BEGIN")
        yield file
    finally:
        connection.close()


# The comparison


def check(history: History, path: Path) -> Verdict:
    """Hold everything that was told against everything that is stored."""
    with reading(path) as file:
        verdict = held_against(history, file.tasks())
        if not file.is_sound():
            verdict.add("lost", "the integrity check of the file fails")
    return verdict


def held_against(history: History, tasks: Iterable[Stored]) -> Verdict:
    """Hold everything that was told against the tasks of a store."""
    verdict = Verdict(findings=list(history.told.findings))
    for kind in ("doubled", "changed"):
        setattr(verdict, kind, getattr(history.told, kind))
    streamed = {seen.task_id for seen in history.streams}
    known: dict[str, Stored] = {}
    places: dict[str, list[str]] = {}
    for task in tasks:
        _check_log(task, verdict)
        check_steps(task, verdict)
        for id in _message_ids(task):
            places.setdefault(id, []).append(task.id)
        # Only logs that are looked at again stay in memory.
        known[task.id] = task if task.id in streamed else task._replace(events=[])
    verdict.tasks = len(known)
    for sent in history.sent.values():
        _check_message(sent, places.get(sent.message_id, []), known, verdict)
    for task_id, state in history.ends.items():
        task = known.get(task_id)
        if task is not None and task.state != state:
            verdict.add("changed", f"task {task_id} was shown as {state}, is {task.state}")
    for seen in history.streams:
        task = known.get(seen.task_id)
        if task is None:
            verdict.add("lost", f"task {seen.task_id}, which a stream showed")
        elif problem := torn(seen.frames, task.events):
            verdict.add("torn", f"stream of task {seen.task_id}: {problem}")
    return verdict


def check_logs(path: Path, since: int) -> tuple[Verdict, int]:
    """Hold the logs after a task's number to themselves; return where the next look begins."""
    verdict = Verdict()
    with reading(path) as file:
        last = file.last_number()
        for task in file.tasks(since):
            _check_log(task, verdict)
    return verdict, last


def _check_log(task: Stored, verdict: Verdict) -> None:
    if task.gap:
        verdict.add("gaps", f"task {task.id}: {task.gap}")
    if task.state not in RESTING:
        verdict.add("hanging", f"task {task.id} is {task.state} after {len(task.events)} events")
    state = ""
    for seq, body in enumerate(task.events, 1):
        if state in TERMINAL:
            verdict.add("changed", f"task {task.id}: event {seq} after it was {state}")
            return
        if body.startswith((b'{"statusUpdate"', b'{"task"')):
            ((_, value),) = msgspec.json.decode(body).items()
            state = value["status"]["state"]
    if state != task.state and task.events:
        verdict.add("changed", f"task {task.id}: its log says {state}, its row {task.state}")


def check_steps(task: Stored, verdict: Verdict, names: bytes = _NAMES_STEPS) -> int:
    """A step that is recorded is not taken again: each place has one record, and an agent that
    names the results of its steps, in a text that begins so, names the recorded ones. Returns how
    many records there are."""
    places: list[tuple[int, str]] = []
    results: list[str] = []
    named: list[str] = []
    for body in task.events:
        if body.startswith(b'{"turnBegan"'):
            places, results = [], []
        elif body.startswith(b'{"stepRecorded"'):
            step = msgspec.json.decode(body)["stepRecorded"]
            places.append((step["index"], step["kind"]))
            if step["kind"] == "step":
                results.append(step["value"])
        elif body.startswith(b'{"artifactUpdate"') and names in body:
            (part,) = msgspec.json.decode(body)["artifactUpdate"]["artifact"]["parts"]
            named = part["text"].split()[1:]
    if len(set(places)) != len(places):
        verdict.add("repeated", f"task {task.id} has two records for one step")
    elif named and named != results:
        verdict.add("repeated", f"task {task.id} ended with {named}, recorded were {results}")
    return len(places)


def _message_ids(task: Stored) -> list[str]:
    """Return the ids of what callers said, as often as the log has them."""
    ids: list[str] = []
    for body in task.events:
        if body.startswith(b'{"task"'):
            ids += [said["messageId"] for said in msgspec.json.decode(body)["task"]["history"]]
        elif body.startswith(b'{"messageAdded"'):
            ids.append(msgspec.json.decode(body)["messageAdded"]["message"]["messageId"])
    return ids


def _check_message(
    sent: Sent, places: Sequence[str], stored: dict[str, Stored], verdict: Verdict
) -> None:
    if len(places) > 1:
        verdict.add("doubled", f"message {sent.message_id} is recorded in {', '.join(places)}")
    elif sent.is_acked and sent.task_id not in stored:
        verdict.add("lost", f"task {sent.task_id} of message {sent.message_id}")
    elif sent.is_acked and not places:
        verdict.add("lost", f"message {sent.message_id} in task {sent.task_id}")
    elif sent.is_acked and places[0] != sent.task_id:
        fact = f"message {sent.message_id} was answered with {sent.task_id}, is in {places[0]}"
        verdict.add("doubled", fact)


def is_public(body: bytes) -> bool:
    """Whether streams show an event."""
    return body.startswith(_PUBLIC)


def torn(frames: Sequence[Frame], events: Sequence[bytes]) -> str:
    """Return what keeps the frames from being a contiguous range of the log, or nothing.

    The first one is the task as of its position; each further one is the event at its own."""
    last: int | None = None
    for frame in frames:
        if frame.seq is None:
            return "an event without a position"
        if not 1 <= frame.seq <= len(events):
            return f"position {frame.seq} of a log that ends at {len(events)}"
        if last is not None:
            if frame.seq <= last:
                return f"position {frame.seq} after {last}"
            skipped = range(last + 1, frame.seq)
            if missing := [seq for seq in skipped if is_public(events[seq - 1])]:
                return f"position {missing[0]} is missing"
            if frame.body != events[frame.seq - 1] and frame.value != msgspec.json.decode(
                events[frame.seq - 1]
            ):
                return f"position {frame.seq} is not what the log holds"
        last = frame.seq
    return ""


# The fold


def fold(task: Json, events: Iterable[Json]) -> Json:
    """Return the task as a reader of the 1.0 stream knows it after some events.

    What callers said in the meantime is in no stream, so the history is only what agents said
    and what the first task had."""
    result: Json = dict(task)
    artifacts: dict[str, Json] = {
        artifact["artifactId"]: dict(artifact) for artifact in task.get("artifacts", [])
    }
    history: list[Json] = list(task.get("history", []))
    for event in events:
        if "statusUpdate" in event:
            if (said := result["status"].get("message")) is not None:
                history.append(said)
            result["status"] = event["statusUpdate"]["status"]
        elif "artifactUpdate" in event:
            update = event["artifactUpdate"]
            chunk: Json = update["artifact"]
            known = artifacts.get(chunk["artifactId"])
            if update.get("append") and known is not None:
                known["parts"] = [*known["parts"], *chunk["parts"]]
            else:
                artifacts[chunk["artifactId"]] = dict(chunk)
    result["history"] = history
    result["artifacts"] = list(artifacts.values())
    return result


def differs(folded: Json, read: Json) -> str:
    """Return where a folded task and one that was read differ, or nothing."""
    for member in ("id", "contextId", "status"):
        if folded.get(member) != read.get(member):
            return f"{member}: {folded.get(member)} is not {read.get(member)}"
    if folded["artifacts"] != read.get("artifacts", []):
        return "the artifacts differ"
    said = {entry["messageId"] for entry in folded["history"]}
    # What a caller said while no stream was open is in the task and in no stream.
    known = [
        entry
        for entry in read.get("history", [])
        if entry["role"] != "ROLE_USER" or entry["messageId"] in said
    ]
    return "" if folded["history"] == known else "the history differs"
