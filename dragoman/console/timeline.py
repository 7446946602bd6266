"""What happened to a task on one axis of time: bars and marks in lanes, as data for an SVG."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

import msgspec

from dragoman.console.rendering import STATES, read_instant, seconds

MOST_SHOWN = 2000
# Lines below the picture.
MOST_LINES = 300
WIDTH, LABELS, LANE = 1000.0, 96.0, 28.0
_INNER = WIDTH - LABELS - 16
_LANES = ("state", "attempts", "steps", "asks", "calls", "artifacts", "pushes")
_LANE_OF = {
    "status": "state",
    "task": "state",
    "attempt": "attempts",
    "turn": "attempts",
    "cancel": "attempts",
    "deadline": "attempts",
    "step": "steps",
    "sleep": "steps",
    "ask": "asks",
    "answer": "asks",
    "question": "asks",
    "message": "asks",
    "delegated": "calls",
    "forwarded": "calls",
    "call": "calls",
    "artifact": "artifacts",
}
_AT_WORK = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
# What may still be taken.
PENDING = ("waiting", "failing")
# Two times that are as good as one to people who read how long ago something was.
_ABOUT = timedelta(seconds=1)
LEFT = "left"
_PUSH_TONES = {"delivered": "good", "waiting": "quiet", "failing": "bad", "dead": "bad"}
_UNTOLD = ("trace", "scopes")
_UNSHOWN = (*_UNTOLD, "dropped")
_TONES = {
    "attempts": "bad",
    "steps": "accent",
    "asks": "ask",
    "calls": "active",
    "artifacts": "good",
}


class Shape(msgspec.Struct):
    """A bar, or a mark where it has no length."""

    lane: int
    x: float
    width: float
    tone: str
    title: str
    is_gap: bool = False
    # Whether its place is between its neighbours, since no time is recorded.
    is_guess: bool = False


class Drawing(msgspec.Struct):
    """The whole picture."""

    height: float
    lanes: list[str]
    shapes: list[Shape]
    ticks: list[tuple[float, str]]
    is_empty: bool = False


def draw(
    transitions: list[dict[str, Any]], pushes: list[dict[str, Any]], *, is_ended: bool
) -> Drawing:
    """Return the picture of some transitions, oldest first, and of what receivers were sent."""
    found = _timed(_bounded(transitions))
    if not found:
        return Drawing(0, [], [], [], is_empty=True)
    sent = _sent(found, pushes)
    first, last = found[0][0], max(at for at, _ in [*found, *sent])
    is_over = is_ended and not any(one["kind"] in PENDING for _, one in sent)
    end = last if is_over else max(last, datetime.now(UTC).replace(microsecond=0))
    span = max((end - first).total_seconds(), 0.001)

    def place(at: datetime) -> float:
        return LABELS + _INNER * min(max((at - first).total_seconds() / span, 0), 1)

    used = [
        name
        for name in _LANES
        if any(_LANE_OF.get(one["kind"], "attempts") == name for _, one in found)
        or (name == "pushes" and sent)
    ]
    # An ended task stays as it is, however long its receivers take.
    shapes = _states(found, max(at for at, _ in found) if is_ended else end, place, used)
    drawn = [one for _, one in found]
    for number, (at, one) in enumerate(found):
        lane = _LANE_OF.get(one["kind"], "attempts")
        if lane == "state" or one["kind"] == LEFT or _says_again(drawn, number):
            continue
        begin, until = _span(found, number, end)
        when = _after(first, at) if one.get("at") else _between(first, one)
        text = f"{one.get('text') or one['kind']} · {when}"
        text += f", {_lasts(one)} {seconds(one['seconds'])}" if one.get("seconds") else ""
        x = max(LABELS, place(begin))
        shape = Shape(used.index(lane), x, max(0.0, place(until) - x), _TONES[lane], text)
        shape.is_guess = not one.get("at")
        if one["kind"] == "turn":
            shape.tone = "quiet"
        shapes.append(shape)
    shapes += _gaps(found, end, place, used)
    for at, one in sent:
        shape = Shape(len(used) - 1, place(at), 0.0, _PUSH_TONES[one["kind"]], one["text"])
        shape.width = place(end) - shape.x if one["kind"] in PENDING else 0.0
        # When a receiver took an event is not recorded.
        shape.is_guess = not one.get("at")
        shapes.append(shape)
    ticks = [
        (LABELS + _INNER * part / 4, seconds(span * part / 4) if part else "0") for part in range(5)
    ]
    return Drawing(LANE * len(used) + 26, used, shapes, ticks)


def left(task: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for the end of the process that ran a task which rests: no event says it,
    and the next process that goes on with the task writes none either."""
    text = f"process {task['worker']} has left; the next answer goes on in another one"
    return {"position": task["events"], "kind": LEFT, "text": text}


def transition_lines(
    transitions: list[dict[str, Any]], names: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the lines below the picture: without those that say again which agent has the task,
    and with its name."""
    found = [one for one in _bounded(transitions) if one["kind"] not in _UNTOLD]
    return [
        {**one, "agent": names.get(one.get("agent", ""), one.get("agent", ""))}
        for number, one in enumerate(found)
        if not _says_again(found, number)
    ]


def _bounded(transitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the transitions; what has no time recorded has `after` and `before`: the times of its
    neighbours, which were recorded before and after it. Where both are the same, that is its
    time. Neighbours whose times are not in order, by clocks of several machines, tell nothing."""
    found: list[dict[str, Any]] = []
    latest = ""
    for one in transitions:
        latest = one.get("at") or latest
        said = {"text": _made(one)} if one["kind"] == "artifact" else {}
        found.append({**one, **said, "after": latest})
    following = ""
    for one in reversed(found):
        following = one.get("at") or following
        one["before"] = following
        begin, end = read_instant(one["after"]), read_instant(following)
        if begin is not None and end is not None:
            if begin > end:
                one["after"] = one["before"] = ""
            elif begin == end:
                one["at"] = following
            one["is_about"] = end - begin < _ABOUT
    return found


def _made(run: dict[str, Any]) -> str:
    """Return what is known of chunks that were recorded one after the other: how many, and the
    artifact of the first."""
    name, count = run.get("text", ""), run["chunks"]
    if count == 1:
        return name or "a chunk of an artifact"
    return f"{count:,} chunks" + (f", the first of {name}" if name else " of artifacts")


def _sent(
    found: list[tuple[datetime, dict[str, Any]]], pushes: list[dict[str, Any]]
) -> list[tuple[datetime, dict[str, Any]]]:
    """Return what receivers were sent, each with its time or that of the event that it is about."""
    sent: list[tuple[datetime, dict[str, Any]]] = []
    for one in pushes:
        before = [at for at, other in found if other["position"] <= one["position"]]
        at = read_instant(one.get("at", "")) or (before or [found[0][0]])[-1]
        sent.append((max(at, found[0][0]), {**one, "text": push_line(one)}))
    return sent


def push_line(push: dict[str, Any]) -> str:
    """Return what became of events at a receiver, in words."""
    tries = push.get("tries", 0)
    times = f"{tries} {'try' if tries == 1 else 'tries'}"
    said = {
        "delivered": f"taken up to event {push['position']}",
        "waiting": f"event {push['position']} waits",
        "failing": f"event {push['position']} is not taken, {times}",
        "dead": f"event {push['position']} given up, {times}",
    }[push["kind"]]
    problem = f": {push['problem']}" if push.get("problem") else ""
    return f"{push['url']} · {said}{problem}"


def _span(
    found: list[tuple[datetime, dict[str, Any]]], number: int, end: datetime
) -> tuple[datetime, datetime]:
    """Return from when to when something lasted, as far as that can be told."""
    at, one = found[number]
    if took := float(one.get("seconds") or 0):
        if one["kind"] == "sleep":
            return at, min(at + timedelta(seconds=took), end)
        return at - timedelta(seconds=took), at
    if one["kind"] == "step" and number and not one.get("at"):
        # Without times it was recorded when it was done, and began after what was before it.
        return found[number - 1][0], at
    if one.get("chunks", 0) > 1 and not one.get("at") and one["after"]:
        # None of them has a time: they were somewhere between these.
        return read_instant(one["after"]) or at, read_instant(one["before"]) or end
    if one["kind"] == "forwarded":
        # The agent has the task until it rests, or until another agent gets it.
        later = found[number + 1 :]
        return at, next((when for when, other in later if _ends_call(one, other)), end)
    return at, at


def _lasts(one: dict[str, Any]) -> str:
    return "for" if one["kind"] == "sleep" else "took"


def _ends_call(call: dict[str, Any], other: dict[str, Any]) -> bool:
    if other["kind"] == "forwarded":
        return other.get("agent") != call.get("agent")
    return other.get("state", "TASK_STATE_WORKING") not in _AT_WORK


def _says_again(found: list[dict[str, Any]], number: int) -> bool:
    """Tell whether a bar before says the same: that an agent has the task is recorded when it gets
    it, and again when it answers."""
    one = found[number]
    if one["kind"] != "forwarded":
        return False
    for before in reversed(found[:number]):
        if before["kind"] == "forwarded":
            return before.get("agent") == one.get("agent")
        if _ends_call(one, before):
            return False
    return False


def _timed(transitions: list[dict[str, Any]]) -> list[tuple[datetime, dict[str, Any]]]:
    """Return what is drawn with the time of each. What has none of its own lies between its
    neighbours: spread evenly there, but a takeover and an answer right before the next thing that
    was done, and a call of another agent right after the one before."""
    drawn = [one for one in transitions if one["kind"] not in _UNSHOWN]
    known = [read_instant(one.get("at", "")) for one in drawn]
    found: list[tuple[datetime, dict[str, Any]]] = []
    for place, one in enumerate(drawn):
        at = known[place]
        if at is None and found:
            before = found[-1][0]
            rest = list(takewhile(lambda later: later is None, known[place:]))
            after = next((later for later in known[place:] if later), before)
            # The last of some steps was done when the next thing was.
            shares = {"attempt": 1.0, "message": 1.0, "forwarded": 0.0, "step": 1 / len(rest)}
            share = shares.get(one["kind"], 1 / (len(rest) + 1))
            at = before + max(after - before, timedelta()) * share
        if at is not None:
            found.append((at, one))
    return found


def _states(
    found: list[tuple[datetime, dict[str, Any]]], end: datetime, place: Any, used: list[str]
) -> list[Shape]:
    """Return a bar for each time that the task spent in a state."""
    changes: list[tuple[datetime, str]] = []
    for at, one in found:
        # A status may say more of a state that the task is in already.
        if (state := one.get("state")) and (not changes or changes[-1][1] != state):
            changes.append((at, state))
    shapes: list[Shape] = []
    for number, (at, state) in enumerate(changes):
        until = changes[number + 1][0] if number + 1 < len(changes) else end
        name = STATES.get(state)
        word, tone = (name.word, name.tone) if name else (state, "quiet")
        took = (until - at).total_seconds()
        is_last = number + 1 == len(changes)
        title = word if is_last else f"{word} for {seconds(took)}"
        width = place(until) - place(at)
        shapes.append(Shape(used.index("state"), place(at), width, tone, title))
    return shapes


def _gaps(
    found: list[tuple[datetime, dict[str, Any]]], end: datetime, place: Any, used: list[str]
) -> list[Shape]:
    """Return the times within which a process left, until another one took over or will. What it
    did last may have no time of its own: then since the last that has."""
    shapes: list[Shape] = []
    for (before, last), (at, one) in pairwise(found):
        if not last.get("at"):
            before = read_instant(last["after"]) or before
        if one["kind"] == LEFT:
            until, rest = end, "the next answer goes on in another one"
        elif one["kind"] == "attempt" and at > before:
            until, rest = at, "then another took over"
        else:
            continue
        text = f"its process left within these {seconds((until - before).total_seconds())}; {rest}"
        x, width = place(before), place(until) - place(before)
        shapes.append(Shape(used.index("attempts"), x, width, "gap", text, is_gap=True))
    return shapes


def _between(first: datetime, one: dict[str, Any]) -> str:
    """Return what is known of when something was that has no time recorded."""
    after, before = read_instant(one["after"]), read_instant(one["before"])
    if after is None:
        return "at a time that is not recorded"
    if before is None:
        return f"later than {seconds((after - first).total_seconds())}"
    begin, end = ((at - first).total_seconds() for at in (after, before))
    return f"between {seconds(begin)} and {seconds(end)}"


def _after(first: datetime, at: datetime) -> str:
    return f"after {seconds((at - first).total_seconds())}"
