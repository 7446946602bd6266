"""The log of a task: windows of it, a stream that goes on, and what a timeline shows.

A window costs what is in it, however long the log is: positions have no gaps, and the store reads
from any of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import Overloaded, TaskNotFound
from dragoman.model.events import (
    ArtifactUpdate,
    AttemptStarted,
    Delegated,
    Event,
    Forwarded,
    MessageAdded,
    StatusUpdate,
    StepKind,
    StepRecorded,
)
from dragoman.model.record import Recorded
from dragoman.model.task import Task
from dragoman.push.request import origin
from dragoman.server.operator.shapes import (
    MOST_EVENTS,
    AfterQuery,
    EventItem,
    EventItems,
    EventQuery,
    OneTask,
    PushMark,
    TransitionItem,
    TransitionItems,
    instant,
)
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import find
from dragoman.stores.interface import TaskRow
from dragoman.telemetry import figures
from dragoman.transports import sse

ENDPOINTS = OperatorRows()
# A window ends after about so many bytes, and a look for transitions after so many events.
_WINDOW_BYTES = 512 * 1024
_LOOKED_AT = 5000
_MOST_TRANSITIONS = 500
# So many runs of chunks in a window are named, since the first chunk of each is read.
_MOST_NAMED = 50
_LINE = 200
_DIALECTS: dict[str, Dialect] = {"1.0": V1_0, "0.3": V0_3, "0.2": V0_2}
_encode = msgspec.json.Encoder().encode

# The kind of an event by the member of its record.
_KINDS = {
    b"task": "task",
    b"message": "message",
    b"statusUpdate": "status",
    b"artifactUpdate": "artifact",
    b"messageAdded": "message",
    b"attemptStarted": "attempt",
    b"turnBegan": "turn",
    b"stepRecorded": "step",
    b"cancelRequested": "cancel",
    b"deadlineSet": "deadline",
    b"traceJoined": "trace",
    b"scopesGranted": "scopes",
    b"forwarded": "forwarded",
    b"delegated": "delegated",
    b"eventDropped": "dropped",
}
_WITHOUT_TIME = frozenset({"artifact", "message", "turn", "trace", "scopes"})


def kind_of(recorded: Recorded) -> str:
    """Return the kind of an event, by its bytes."""
    return _KINDS[recorded.body[2 : recorded.body.index(b'"', 2)]]


def _time_of(event: Event) -> str:
    match event:
        case Task() | StatusUpdate():
            return event.status.timestamp
        case Delegated(at=at) | AttemptStarted(at=at) | StepRecorded(at=at):
            return instant(at)
        case _:
            return ""


def _is_shown(ask: OperatorAsk, recorded: Recorded) -> bool:
    """Tell whether the viewer may see an event: what the agent's code did is its operator's."""
    return (
        ask.viewer.is_operator or recorded.is_public or recorded.body.startswith(b'{"messageAdded"')
    )


def _stored(ask: OperatorAsk, recorded: Recorded) -> Any:
    """Return an event as it is stored; to others than operators without the scopes of senders."""
    if recorded.is_public or ask.viewer.is_operator:
        return msgspec.Raw(recorded.body)
    event = recorded.event
    assert isinstance(event, MessageAdded), "of what is not public only messages are shown"
    return {"messageAdded": {"message": event.message}}


def _item(ask: OperatorAsk, recorded: Recorded, dialect: Dialect | None = None) -> EventItem:
    kind = kind_of(recorded)
    # Artifacts are most of a log, and are not decoded.
    at = "" if kind in _WITHOUT_TIME else _time_of(recorded.event)
    if dialect is not None:
        shown: Any = msgspec.Raw(dialect.encode_event(recorded))
    else:
        shown = _stored(ask, recorded)
    return EventItem(
        position=recorded.seq, at=at, kind=kind, is_public=recorded.is_public, event=shown
    )


@ENDPOINTS.add("GET", "/tasks/{id}/events", query=EventQuery)
async def read_events(ask: OperatorAsk) -> EventItems:
    """Read a window of a task's log."""
    query: EventQuery = ask.query
    head = await find(ask)
    last, after, limit = head.standing.last_seq, query.after, query.limit
    if query.before:
        after = max(0, query.before - 1 - limit)
        limit = min(limit, query.before - 1 - after)
    dialect = _DIALECTS.get(query.version)
    items: list[EventItem] = []
    size = 0
    while len(items) < limit and size < _WINDOW_BYTES:
        batch = await ask.store.read(head.number, after=after, limit=limit - len(items))
        batch = [recorded for recorded in batch if recorded.seq <= last]
        for recorded in batch:
            after = recorded.seq
            if query.before and after >= query.before:
                break
            if _is_shown(ask, recorded) and (dialect is None or recorded.is_public):
                items.append(_item(ask, recorded, dialect))
            size += len(recorded.body)
            if size >= _WINDOW_BYTES:
                break
        if not batch or after >= last or (query.before and after >= query.before - 1):
            break
    return EventItems(items=items, last=last, next_after=after if after < last else 0)


@ENDPOINTS.add("GET", "/tasks/{id}/events/stream", query=OneTask, streams=True)
async def follow_events(ask: OperatorAsk) -> None:
    """Follow a task's log from a position: `event` for each, and `end` once the task has ended."""
    head = await find(ask)
    after = ask.request.after
    is_known = after is not None and 0 <= after <= head.standing.last_seq
    start = after if after is not None and is_known else 0
    await serve_stream(ask, _frames(ask, head, start))


async def _frames(ask: OperatorAsk, head: TaskRow, after: int) -> AsyncGenerator[bytes]:
    engines = ask.site.engines
    engine = engines.get(head.scope.agent) or next(iter(engines.values()), None)
    if engine is None:
        raise TaskNotFound(taskId=head.task_id)
    if head.standing.state.is_terminal and after >= head.standing.last_seq:
        yield b"event: end\ndata: {}\n\n"
        return
    async for batch in engine.follow_log(head, after):
        frames, is_last = _frames_of(ask, batch)
        if frames:
            yield frames
        if is_last:
            yield b"event: end\ndata: {}\n\n"
            return


def _frames_of(ask: OperatorAsk, batch: Sequence[Recorded]) -> tuple[bytes, bool]:
    """Return the frames of a batch, and whether the task ends with it."""
    frames: list[bytes] = []
    is_last = False
    for recorded in batch:
        if _is_shown(ask, recorded):
            data = _encode(_item(ask, recorded))
            frames.append(b"id: %d\nevent: event\ndata: %b\n\n" % (recorded.seq, data))
        if recorded.is_status and isinstance(event := recorded.event, StatusUpdate):
            is_last = is_last or event.status.state.is_terminal
        elif recorded.seq == 1 and isinstance(event := recorded.event, Task):
            is_last = is_last or event.status.state.is_terminal
    return b"".join(frames), is_last


async def serve_stream(ask: OperatorAsk, frames: AsyncGenerator[bytes]) -> None:
    """Answer with frames until they end. What goes wrong before the first one is a plain error."""
    request, streams = ask.request, ask.site.streams
    if request.room is not None:
        await request.room.open_stream()
    stream = request.sse_stream()
    streams.add(stream, request.pass_)
    try:
        request.watched.responded(200)
        request.is_answered = True
        await stream.open([*sse.HEADERS, *request.extra])
        reader = streams.reader(request.caller, request.mount.name)
        async for frame in frames:
            await stream.write(frame)
            if reader.is_ahead(frame.count(b"\n\n"), len(frame)):
                await reader.turn()
    except asyncio.CancelledError:
        figures.streams_cut.add("stopping" if streams.is_stopping else "gone")
        if not stream.is_closed:
            raise
        if (task := asyncio.current_task()) is not None:
            # The stream was ended by cancelling this task.
            task.uncancel()
        if not request.is_answered:
            raise Overloaded from None
    finally:
        stream.is_closed = True
        streams.discard(stream)
        await frames.aclose()
        if request.is_answered:
            await stream.close()


@ENDPOINTS.add("GET", "/tasks/{id}/transitions", query=AfterQuery)
async def read_timeline(ask: OperatorAsk) -> TransitionItems:
    """Read what a timeline shows: states, attempts, steps, questions, calls, artifacts, pushes."""
    head = await find(ask)
    after, last = ask.query.after, head.standing.last_seq
    items: list[TransitionItem] = []
    begin = after
    while after < last and after - begin < _LOOKED_AT and len(items) < _MOST_TRANSITIONS:
        # Artifacts are most of a log. Positions have no gaps: those that are left out are theirs.
        batch = await ask.store.read(head.number, after=after, limit=MOST_EVENTS, artifacts=False)
        for recorded in batch:
            if recorded.seq > last:
                break
            items += _chunks(after, recorded.seq)
            if _is_shown(ask, recorded):
                items += _transitions(recorded)
            after = recorded.seq
        if not batch or batch[-1].seq > last:
            items += _chunks(after, last + 1)
            after = last
        # Reads of a file do not wait.
        await asyncio.sleep(0)
    items = await _with_names(ask, head, items)
    pushes = [] if after < last else await _push_marks(ask, head)
    return TransitionItems(items=items, next_after=after if after < last else 0, pushes=pushes)


def _chunks(after: int, before: int) -> list[TransitionItem]:
    """Return the run of chunks between two other events, if there are any."""
    count = before - after - 1
    return [TransitionItem(position=after + 1, kind="artifact", chunks=count)] if count else []


async def _with_names(
    ask: OperatorAsk, head: TaskRow, items: list[TransitionItem]
) -> list[TransitionItem]:
    """Return the items, with the artifact that each of the first runs of chunks begins with."""
    runs = [place for place, one in enumerate(items) if one.chunks][:_MOST_NAMED]
    places = [(head.number, items[place].position - 1) for place in runs]
    firsts = await ask.store.read_many(places, limit=1) if places else []
    names: dict[str, str] = {}
    for place, read in zip(runs, firsts, strict=True):
        event = read[0].event if read else None
        if isinstance(event, ArtifactUpdate):
            made = event.artifact
            # Only the first chunk of an artifact has its name.
            name = made.name or names.get(made.artifact_id) or made.artifact_id
            names[made.artifact_id] = name
            items[place] = msgspec.structs.replace(items[place], text=_line(name))
    return items


def _line(text: str) -> str:
    return " ".join(text[: 4 * _LINE].split())[:_LINE]


async def _push_marks(ask: OperatorAsk, head: TaskRow) -> list[PushMark]:
    """Return what became of the events of a task at its receivers."""
    found: list[PushMark] = []
    letters = await ask.store.letters_of(head.number)
    for push in await ask.store.pushes(head.number):
        dead = [letter for letter in letters if letter.push == push.number]
        # A path or a query may be a secret.
        mark = PushMark(position=push.cursor, kind="delivered", url=origin(push.config.url))
        if push.cursor and push.cursor not in {letter.seq for letter in dead}:
            found.append(mark)
        for letter in dead:
            found.append(
                msgspec.structs.replace(
                    mark,
                    position=letter.seq,
                    kind="dead",
                    at=instant(letter.at),
                    tries=letter.tries,
                    problem=letter.problem,
                )
            )
        if push.cursor < head.standing.last_seq and (push.is_open or push.failing_since):
            kind = "failing" if push.failing_since else "waiting"
            found.append(
                msgspec.structs.replace(
                    mark,
                    position=push.cursor + 1,
                    kind=kind if push.is_open else "dead",
                    at=instant(push.failing_since),
                    tries=push.tries,
                    due_at=instant(push.due_at),
                    problem=push.problem,
                )
            )
    if not ask.viewer.is_operator:
        found = [msgspec.structs.replace(one, problem="") for one in found]
    return found


def _seconds_of(step: StepRecorded) -> float:
    """Return how long a step took, or is to sleep from when it was recorded."""
    if step.kind is StepKind.SLEEP and step.at:
        return max(0, msgspec.json.decode(step.value, type=int) - step.at) / 1000
    return step.took / 1000 or step.seconds


def _transitions(recorded: Recorded) -> list[TransitionItem]:
    event = recorded.event
    found = TransitionItem(position=recorded.seq, kind=kind_of(recorded), at=_time_of(event))
    more: dict[str, Any]
    match event:
        case Task() | StatusUpdate():
            message = event.status.message
            text = "" if message is None else message.text
            more = {"state": event.status.state, "text": text}
        case MessageAdded():
            more = {"text": event.message.text}
        case AttemptStarted():
            taken = "taken over from a process that left, " if event.at else ""
            more = {"text": f"{taken}attempt {event.attempt}"}
        case StepRecorded():
            kind = event.kind.value
            named = event.name if kind in ("step", event.name) else f"{kind} {event.name}"
            more = {"text": named, "seconds": _seconds_of(event)}
            if event.kind not in (StepKind.STEP, StepKind.FAILURE):
                more["kind"] = kind
        case Delegated():
            more = {"agent": event.agent, "task_id": event.task_id, "seconds": event.seconds}
        case Forwarded():
            more = {"agent": event.agent, "task_id": event.task_id, "text": event.why}
        case _:
            more = {}
    if "text" in more:
        more["text"] = _line(more["text"])
    return [msgspec.structs.replace(found, **more)]
