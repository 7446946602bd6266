"""The log of trust outside its store: lines of JSON, each with the hash of the one before.

`fold` turns events into facts and is all that decides what counts: of a requester that ever paid
another, or of the local user; not of the agent's own owner; and of each requester and day only so
much. Whoever has the lines computes the same scores, bit for bit. As with every chain, an end that
was cut off looks in order: note down the head that `verify` tells.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from dragoman.gateway.ratings import NOT_THE_AGENTS
from dragoman.gateway.scores import (
    ACTIVE_DAYS,
    MOST_VIOLATIONS,
    POLICIES,
    RECENT_DAYS,
    Facts,
    score,
)
from dragoman.stores.sqlite import outcomes, trust
from dragoman.stores.sqlite.trust import DAY_MS, NOTHING, UNIT, Day, DayKey, Event, Sums

_END = b',"hash":"'
_OUTCOMES = ("task_completed", "task_failed", "task_timeout")
_decode = msgspec.json.Decoder(Event).decode


class Folded(NamedTuple):
    """What a log says, before it is weighed."""

    days: dict[DayKey, Day]
    payers: set[str]
    # When, by agent.
    violations: dict[str, list[int]]


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line of an export: what was computed of the lines before, and with what."""

    prev: str
    events: int
    policy: str
    cap: int
    # Milliseconds.
    at: int
    # When each agent was registered.
    created: dict[str, int]
    scores: dict[str, int]


class Report(NamedTuple):
    """What a check found."""

    events: int
    head: str
    scores: dict[str, int]
    # Empty: it is whole.
    problem: str = ""
    # Outcomes that are not among the events so far.
    waiting: int = 0


def fold(events: Iterable[Event]) -> Folded:
    """Return what events say, in whatever order and however often they come."""
    found: dict[DayKey, Day] = {}
    payers: set[str] = set()
    violations: dict[str, dict[int, int]] = {}
    seen: dict[tuple[int, str], Event] = {}
    for event in events:
        if event.task:
            seen[event.task, event.type] = event
        elif event.type == "violation":
            # The number tells repetitions from violations of the same moment.
            violations.setdefault(event.agent, {})[event.number] = event.at
    for event in seen.values():
        key = (event.agent, event.requester, event.is_own, event.at // DAY_MS)
        if event.type == "task_paid":
            payers.add(event.requester)
        elif event.type == "rating_received":
            _add(found, key, Day(ratings=1, rating_sum=event.rating))
        elif event.type in _OUTCOMES:
            resolved = seen.get((event.task, "dispute_resolved"))
            is_upheld = resolved is not None and resolved.outcome == "upheld"
            if event.type == "task_completed" and event.charged > 0 and not event.is_own:
                payers.add(event.requester)
            if event.type == "task_completed" and not is_upheld:
                _add(found, key, Day(completed=1, response_ms=event.response_ms))
            else:
                _add(found, key, Day(failed=1))
    return Folded(found, payers, {agent: sorted(at.values()) for agent, at in violations.items()})


def _add(days: dict[DayKey, Day], key: DayKey, more: Day) -> None:
    before = days.get(key, Day())
    days[key] = Day(*(one + other for one, other in zip(before, more, strict=True)))


def counted(folded: Folded, cap: int, today: int) -> dict[str, Sums]:
    """Return what counts, by agent: what the store's own sums are."""
    found: dict[str, Sums] = {}
    for (agent, requester, is_own, day), one in folded.days.items():
        if is_own or (requester and requester not in folded.payers):
            continue
        before = found.get(agent, Sums(0, 0, 0, 0, 0, 0, 0, 0, day))
        completed, failed, response_ms = _weighed(one, cap)
        is_recent, is_active = day > today - RECENT_DAYS, day > today - ACTIVE_DAYS
        found[agent] = Sums(
            before.completed + completed,
            before.failed + failed,
            before.response_ms + response_ms,
            before.ratings + min(one.ratings, cap) * UNIT,
            before.rating_sum + one.rating_sum * UNIT * min(one.ratings, cap) // (one.ratings or 1),
            before.recent_completed + completed * is_recent,
            before.recent_failed + failed * is_recent,
            before.active + (completed + failed) * is_active,
            max(before.last_day, day),
        )
    return found


def _weighed(day: Day, cap: int) -> tuple[int, int, int]:
    total = day.completed + day.failed
    if total <= cap:
        return day.completed * UNIT, day.failed * UNIT, day.response_ms
    completed = day.completed * UNIT * cap // total
    return completed, cap * UNIT - completed, day.response_ms * cap // total


def facts_of(sums: Sums | None, violations: Iterable[int], created_at: int, at: int) -> Facts:
    """Return what a policy is told of an agent at a time."""
    today = at // DAY_MS
    age = max(at - created_at, 0) // DAY_MS if created_at else 0
    times = sorted(one for one in violations if one // DAY_MS > today - RECENT_DAYS)
    last = zip(times, times[MOST_VIOLATIONS - 1 :], strict=False)
    is_blacklisted = any(late - early < DAY_MS for early, late in last)
    if sums is None:
        return Facts(age_days=age, violations=len(times), is_blacklisted=is_blacklisted)
    return Facts(
        completed=Fraction(sums.completed, UNIT),
        failed=Fraction(sums.failed, UNIT),
        response_ms=Fraction(sums.response_ms),
        ratings=Fraction(sums.ratings, UNIT),
        rating_sum=Fraction(sums.rating_sum, UNIT),
        age_days=age,
        recent_completed=Fraction(sums.recent_completed, UNIT),
        recent_failed=Fraction(sums.recent_failed, UNIT),
        active=Fraction(sums.active, UNIT),
        idle_days=max(today - sums.last_day, 0),
        violations=len(times),
        is_blacklisted=is_blacklisted,
    )


def computed(
    events: Iterable[Event], created: Mapping[str, int], *, policy: str, cap: int, at: int
) -> dict[str, int]:
    """Return the score of every agent that events or registrations name."""
    folded = fold(events)
    sums = counted(folded, cap, at // DAY_MS)
    agents = {*created, *sums, *folded.violations}
    return {
        agent: score(
            facts_of(sums.get(agent), folded.violations.get(agent, ()), created.get(agent, 0), at),
            policy,
        ).value
        for agent in sorted(agents)
    }


def export(
    connection: apsw.Connection,
    path: Path,
    created: Mapping[str, int],
    *,
    policy: str,
    cap: int,
    at: int,
) -> Report:
    """Write the log and what was computed of it; it names requesters, so it is for its owner's
    eyes. Whatever was there before is replaced once all is written."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            events: list[Event] = []
            head = NOTHING
            for body, head in trust.chain(connection):
                file.write(_sealed(body, head))
                events.append(_decode(body))
            scores = computed(events, created, policy=policy, cap=cap, at=at)
            summary = Summary(
                prev=head,
                events=len(events),
                policy=policy,
                cap=cap,
                at=at,
                created=dict(created),
                scores=scores,
            )
            body = msgspec.json.encode(summary)
            last = hashlib.sha256(body).hexdigest()
            file.write(_sealed(body, last))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return Report(len(events), last, scores, waiting=outcomes.waiting(connection))


def _sealed(body: bytes, digest: str) -> bytes:
    return body[:-1] + _END + digest.encode() + b'"}\n'


def verify_file(path: Path) -> Report:
    """Check an export by itself: its chain, and that its scores are what the lines give."""
    events: list[Event] = []
    summary: Summary | None = None
    head = NOTHING
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        body, mark, digest = line.rpartition(_END)
        body += b"}"
        if not mark or digest.removesuffix(b'"}') != hashlib.sha256(body).hexdigest().encode():
            return _broken(events, head, f"line {number}: was changed: its hash does not fit it")
        try:
            if summary is not None:
                return _broken(events, head, f"line {number}: comes after the summary")
            if b'"scores":' in body:
                summary = msgspec.json.decode(body, type=Summary)
                prev = summary.prev
            else:
                events.append(_decode(body))
                prev = events[-1].prev
        except msgspec.MsgspecError as error:
            return _broken(events, head, f"line {number}: {error}")
        if prev != head:
            return _broken(events, head, f"line {number}: does not follow the line before it")
        head = digest.removesuffix(b'"}').decode()
    if summary is None:
        return _broken(events, head, "has no summary: its end is missing")
    return _judged(events, head, summary)


def _judged(events: list[Event], head: str, summary: Summary) -> Report:
    if summary.policy not in POLICIES:
        return _broken(events, head, f"{summary.policy}: there is no such policy here")
    scores = computed(
        events, summary.created, policy=summary.policy, cap=summary.cap, at=summary.at
    )
    for agent in sorted(scores.keys() | summary.scores.keys()):
        told, found = summary.scores.get(agent), scores.get(agent)
        if told != found:
            return _broken(events, head, f"{agent}: the score is told as {told}, and is {found}")
    return Report(len(events), head, scores)


def verify_store(
    connection: apsw.Connection, created: Mapping[str, int], *, policy: str, cap: int, at: int
) -> Report:
    """Check a store: the chain, that it tells what the errands tell, and that the sums that scores
    come from are those of the chain."""
    events: list[Event] = []
    head = NOTHING
    for number, (body, digest) in enumerate(trust.chain(connection), 1):
        event = _decode(body)
        if hashlib.sha256(body).hexdigest() != digest:
            return _broken(events, head, f"event {number}: was changed: its hash does not fit it")
        if event.prev != head or event.number != number:
            return _broken(events, head, f"event {number}: does not follow the one before it")
        events.append(event)
        head = digest
    folded = fold(events)
    problem = ""
    if (wrong := outcomes.misfiled(connection)) is not None:
        problem = f"event {wrong}: is filed under something else than it says"
    elif (task := outcomes.unequal(connection, NOT_THE_AGENTS)) is not None:
        problem = f"task {task}: what the errand tells is not what the events tell"
    elif folded.days != trust.days(connection) or folded.payers != trust.payers(connection):
        problem = "the sums are not those of the events"
    scores = computed(events, created, policy=policy, cap=cap, at=at)
    return Report(len(events), head, scores, problem, outcomes.waiting(connection))


def _broken(events: list[Event], head: str, problem: str) -> Report:
    return Report(len(events), head, {}, problem)


def created_of(connection: apsw.Connection) -> dict[str, tuple[str, int]]:
    """Return the name and the time of registration of every agent in a store."""
    found: dict[str, tuple[str, int]] = {}
    for id, name, body in trust.registered(connection):
        known: dict[str, Any] = msgspec.json.decode(body)
        found[id] = name, int(known.get("created_at", 0))
    return found
