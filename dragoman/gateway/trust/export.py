"""The log of trust outside its store: lines of JSON, each with the hash of the one before.

From the lines alone the same scores are computed, bit for bit. As with every chain, an end that was
cut off looks in order: note down the head that `verify` prints.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.gateway.trust.counting import OUTCOMES, facts_of, fold, sum_window
from dragoman.gateway.trust.observations import NOT_THE_AGENTS
from dragoman.gateway.trust.scores import POLICIES, TrustRules, score
from dragoman.model.task import TaskState
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.interface.trust import NOTHING, TrustContents, TrustEventRow, TrustLine
from dragoman.stores.trust_sums import counted

_END = b',"hash":"'
_decode = msgspec.json.Decoder(TrustEventRow).decode


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


class TrustReport(NamedTuple):
    """What a check found."""

    events: int
    head: str
    scores: dict[str, int]
    # Empty: it is whole.
    problem: str = ""
    # Outcomes that are not among the events so far.
    waiting: int = 0


def computed(
    events: Iterable[TrustEventRow], created: Mapping[str, int], rules: TrustRules, at: int
) -> dict[str, int]:
    """Return the score of every agent that events or registrations name."""
    folded = fold(events)
    sums = counted(folded.days, folded.payers, sum_window(rules.cap, at))
    agents = {*created, *sums, *folded.violations}
    return {
        agent: score(
            facts_of(sums.get(agent), folded.violations.get(agent, ()), created.get(agent, 0), at),
            rules.policy,
        ).value
        for agent in sorted(agents)
    }


def export(
    contents: TrustContents, path: Path, created: Mapping[str, int], rules: TrustRules, at: int
) -> TrustReport:
    """Write the log and what was computed of it. It names requesters, so only its owner may read
    it. A file of this name is replaced once all is written."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    lines = contents.lines
    scores = computed((_decode(line.body) for line in lines), created, rules, at)
    summary = Summary(
        prev=lines[-1].hash if lines else NOTHING,
        events=len(lines),
        policy=rules.policy,
        cap=rules.cap,
        at=at,
        created=dict(created),
        scores=scores,
    )
    body = msgspec.json.encode(summary)
    last = hashlib.sha256(body).hexdigest()
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for line in lines:
                file.write(_sealed(line.body, line.hash))
            file.write(_sealed(body, last))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return TrustReport(len(lines), last, scores, waiting=_waiting(contents))


def _waiting(contents: TrustContents) -> int:
    return sum(not order.is_observed for order in contents.orders)


def _sealed(body: bytes, digest: str) -> bytes:
    return body[:-1] + _END + digest.encode() + b'"}\n'


def verify_file(path: Path) -> TrustReport:
    """Check an export by itself: its chain, and that its scores are what the lines give."""
    events: list[TrustEventRow] = []
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


def _judged(events: list[TrustEventRow], head: str, summary: Summary) -> TrustReport:
    if summary.policy not in POLICIES:
        return _broken(events, head, f"{summary.policy}: there is no such policy here")
    rules = TrustRules(summary.policy, summary.cap)
    scores = computed(events, summary.created, rules, summary.at)
    for agent in sorted(scores.keys() | summary.scores.keys()):
        claimed, found = summary.scores.get(agent), scores.get(agent)
        if claimed != found:
            return _broken(
                events, head, f"{agent}: the score is given as {claimed}, and is {found}"
            )
    return TrustReport(len(events), head, scores)


def verify_contents(
    contents: TrustContents, created: Mapping[str, int], rules: TrustRules, at: int
) -> TrustReport:
    """Check a store: the chain, that it says what the orders say, and that the sums that scores
    come from are those of the chain."""
    events: list[TrustEventRow] = []
    head = NOTHING
    for number, line in enumerate(contents.lines, 1):
        event = _decode(line.body)
        if hashlib.sha256(line.body).hexdigest() != line.hash:
            return _broken(events, head, f"event {number}: was changed: its hash does not fit it")
        if event.prev != head or event.number != number:
            return _broken(events, head, f"event {number}: does not follow the one before it")
        events.append(event)
        head = line.hash
    folded = fold(events)
    problem = ""
    if (wrong := _misfiled(contents.lines, events)) is not None:
        problem = f"event {wrong}: is filed under something else than it says"
    elif (task := _unequal(contents.orders, events)) is not None:
        problem = f"task {task}: its order and its events do not say the same"
    elif (folded.days, folded.payers) != (dict(contents.days), contents.payers):
        problem = "the sums are not those of the events"
    scores = computed(events, created, rules, at)
    return TrustReport(len(events), head, scores, problem, _waiting(contents))


def _misfiled(lines: Iterable[TrustLine], events: Iterable[TrustEventRow]) -> int | None:
    """Return the number of an event that is filed under something else than it says."""
    for line, event in zip(lines, events, strict=True):
        if (line.agent, line.type, line.task, line.at) != (
            event.agent,
            event.type,
            event.task,
            event.at,
        ):
            return event.number
    return None


def _unequal(orders: Iterable[OrderRow], events: Iterable[TrustEventRow]) -> int | None:
    """Return the number of a task whose order and event disagree, or of which one is missing."""
    tasks = {event.task for event in events if event.task}
    outcomes = {event.task: event for event in events if event.task and event.type in OUTCOMES}
    for order in orders:
        tasks.discard(order.task)
        is_silent = order.state is TaskState.CANCELED or order.cause in NOT_THE_AGENTS
        if not order.is_observed or not order.agent or is_silent:
            continue
        event = outcomes.get(order.task)
        if event is None or (event.agent, event.at, event.requester) != (
            order.agent,
            order.ended_at,
            order.requester.text,
        ):
            return order.task
        if (event.type == "task_completed") != (order.state is TaskState.COMPLETED):
            return order.task
    # Events of tasks that have no order, or one that has not ended.
    return min(tasks, default=None)


def _broken(events: list[TrustEventRow], head: str, problem: str) -> TrustReport:
    return TrustReport(len(events), head, {}, problem)
