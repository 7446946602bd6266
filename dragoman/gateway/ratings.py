"""What becomes an event of trust: outcomes that were observed, what was paid for them later,
ratings, disputes, violations.

Every function is a deed on a connection inside one transaction, and doing it twice does nothing
more. Nothing an agent says of itself is among them: outcomes come from the errands, and only the
requester of a completed task has a word on it, once.
"""

from collections.abc import Sequence

import apsw

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.gateway.task_reference import TaskReference, errand_meant
from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.stores.sqlite import escrow, outcomes, trust
from dragoman.stores.sqlite.outcomes import Outcome
from dragoman.stores.sqlite.trust import DAY_MS, Day, DayKey, Event

LONGEST_COMMENT = 1000
UPHELD, REJECTED = "upheld", "rejected"

_COMPLETED = TaskState.COMPLETED.value
_BAD = {TaskState.FAILED.value, TaskState.REJECTED.value}
_FAST_MS, _SLOW_MS = 150_000, 300_000
# Causes that no agent can help: it was too busy here to ask it, something here went wrong, or the
# requester left no time for it.
NOT_THE_AGENTS = frozenset({"busy", "gateway", "hurried"})


class NoOpenDispute(InvalidParams):
    """No open dispute is about this task"""


def observe(connection: apsw.Connection, limit: int) -> int:
    """Turn errands that ended into events, the earliest first; return how many there were."""
    found = outcomes.ended(connection, limit)
    if found:
        _observe(connection, found)
    return len(found)


def _observe(connection: apsw.Connection, found: Sequence[Outcome]) -> None:
    """Turn errands into events. All at once: the file is held meanwhile, and after each statement
    the thread that does it has to wait for the interpreter."""
    tasks = [one.task for one in found]
    outcomes.set_observed(connection, tasks)
    known = trust.known(connection, tasks)
    events: list[Event] = []
    days: dict[DayKey, Day] = {}
    payers: set[str] = set()
    for one in found:
        event = _event_of(one)
        if event is None or (event.task, event.type) in known:
            continue
        events.append(event)
        is_done = event.type == "task_completed"
        key = _key(one, one.ended_at)
        before = days.get(key, Day())
        if not is_done:
            days[key] = before._replace(failed=before.failed + 1)
            continue
        days[key] = before._replace(
            completed=before.completed + 1, response_ms=before.response_ms + event.response_ms
        )
        if one.charged > 0 and one.requester != one.payee:
            payers.add(one.requester)
        if event.response_ms > _SLOW_MS:
            reason = f"took {event.response_ms / 1000:.1f} s, more than 300 s"
            events.append(_event(one, one.ended_at, "sla_breach", -2, reason))
    trust.extend(connection, events)
    for key, day in days.items():
        trust.add(connection, key, day)
    for requester in payers:
        trust.set_paid(connection, requester)


def _event_of(one: Outcome) -> Event | None:
    if not one.agent or one.cause in NOT_THE_AGENTS:
        return None
    took = one.response_ms
    if one.state == _COMPLETED:
        score = 3 if took < _FAST_MS else 2 if took < _SLOW_MS else 1
        reason = f"completed in {took / 1000:.1f} s"
        return _event(one, one.ended_at, "task_completed", score, reason, response_ms=took)
    if one.state not in _BAD:
        # The requester's own cancel says nothing of the agent.
        return None
    if one.cause == "timeout" or 0 < one.due_at <= one.ended_at:
        reason = f"not done in {took / 1000:.1f} s"
        return _event(one, one.ended_at, "task_timeout", -4, reason, response_ms=took)
    reason = "refused by the agent" if one.state == TaskState.REJECTED.value else "failed"
    reason += f": {one.cause}" if one.cause else ""
    return _event(one, one.ended_at, "task_failed", -3, reason, response_ms=took)


def rate(
    connection: apsw.Connection,
    agent: str,
    task: TaskReference,
    requester: Principal,
    rating: int,
    comment: str,
    at: int,
) -> None:
    """Keep what the requester of a completed task says of the agent."""
    if type(rating) is not int or not 1 <= rating <= 5:
        raise InvalidParams("must be a whole number from 1 to 5", field="rating")
    if len(comment) > LONGEST_COMMENT:
        raise InvalidParams(f"must have {LONGEST_COMMENT} characters at most", field="comment")
    one = _completed(connection, agent, task, requester)
    if outcomes.rating(connection, one.task) is not None:
        raise InvalidParams("this task was already rated", field="taskId")
    outcomes.put_rating(connection, one, rating, comment, at)
    event = _event(one, at, "rating_received", rating, f"rated {rating} of 5", rating=rating)
    trust.append(connection, event)
    trust.add(connection, _key(one, at), Day(ratings=1, rating_sum=rating))


def dispute(
    connection: apsw.Connection,
    agent: str,
    task: TaskReference,
    requester: Principal,
    reason: str,
    at: int,
) -> int:
    """Keep that the requester of a completed task says it was not done; return its number."""
    if not reason.strip() or len(reason) > LONGEST_COMMENT:
        raise InvalidParams(f"must have 1 to {LONGEST_COMMENT} characters", field="reason")
    one = _completed(connection, agent, task, requester)
    if outcomes.dispute(connection, one.task) is not None:
        raise InvalidParams("this task was already disputed", field="taskId")
    outcomes.put_dispute(connection, one, reason, at)
    trust.append(connection, _event(one, at, "dispute_opened", 0, "disputed by its requester"))
    if not escrow.dispute(connection, one.task, at):
        # If it is in escrow at all, its time is over, and nobody has looked since.
        release(connection, one.task, escrow.IN_TIME, at)
    return one.task


def resolve(
    connection: apsw.Connection, task: TaskReference, is_upheld: bool, note: str, at: int
) -> int:
    """Decide on a dispute, as an operator does; return the task's number. If it is upheld, the task
    counts as failed. A price that is in escrow is given back then, and else paid."""
    if len(note) > LONGEST_COMMENT:
        raise InvalidParams(f"must have {LONGEST_COMMENT} characters at most", field="note")
    disputed = outcomes.open_disputes(connection)
    try:
        errand = errand_meant(connection, task, lambda one: one.task in disputed)
    except TaskNotFound:
        raise NoOpenDispute("no open dispute is about this task", field="taskId") from None
    one = outcomes.numbered(connection, errand.task)
    if not outcomes.is_observed(connection, one.task):
        _observe(connection, [one])
    outcome = UPHELD if is_upheld else REJECTED
    outcomes.resolve(connection, one.task, outcome, note, at)
    score, reason = (-3, "upheld: counts as failed") if is_upheld else (0, "rejected")
    trust.append(connection, _event(one, at, "dispute_resolved", score, reason, outcome=outcome))
    if is_upheld:
        changed = Day(completed=-1, failed=1, response_ms=-one.response_ms)
        trust.add(connection, _key(one, one.ended_at), changed)
    if escrow.decide(connection, one.task, at, is_upheld=is_upheld) and not is_upheld:
        _paid(connection, one.task, at)
    return one.task


def release(connection: apsw.Connection, task: int, memo: str, at: int) -> bool:
    """Pay for a task that is delivered and not disputed; False: there is none."""
    is_released = escrow.release(connection, task, memo, at)
    if is_released:
        _paid(connection, task, at)
    return is_released


def _paid(connection: apsw.Connection, task: int, at: int) -> None:
    """Have a requester count as one who paid, if the outcome was observed before that."""
    if (task, "task_completed") not in trust.known(connection, [task]):
        # It is observed with what was charged, or has no place among the events.
        return
    one = outcomes.numbered(connection, task)
    trust.append(connection, _event(one, at, "task_paid", 0, "paid after its delivery"))
    trust.set_paid(connection, one.requester)


def violate(connection: apsw.Connection, agent: str, reason: str, at: int) -> None:
    """Record that the gateway saw an agent break the rules of security."""
    event = Event(at=at, agent=agent, type="violation", score=-10, reason=reason[:LONGEST_COMMENT])
    trust.append(connection, event)


def _completed(
    connection: apsw.Connection, agent: str, task: TaskReference, requester: Principal
) -> Outcome:
    try:
        errand = errand_meant(connection, task, lambda one: one.requester == requester)
    except TaskNotFound:
        # Of another requester, or of none: that it exists is not ours to reveal.
        raise InvalidParams("you have no such task", field="taskId") from None
    one = outcomes.numbered(connection, errand.task)
    if agent and one.agent != agent:
        raise InvalidParams("this task was not done by this agent", field="taskId")
    if one.state != _COMPLETED or outcomes.dispute(connection, one.task) == UPHELD:
        raise InvalidParams("this task was not completed", field="taskId")
    return one


def _key(one: Outcome, at: int) -> DayKey:
    return one.agent, one.requester, one.is_own, at // DAY_MS


def _event(
    one: Outcome,
    at: int,
    type: str,
    score: int,
    reason: str,
    *,
    response_ms: int = 0,
    rating: int = 0,
    outcome: str = "",
) -> Event:
    return Event(
        at=at,
        agent=one.agent,
        type=type,
        score=score,
        reason=reason,
        task=one.task,
        task_id=one.task_id,
        requester=one.requester,
        is_own=one.is_own,
        skill=one.skill,
        charged=one.charged,
        response_ms=response_ms,
        rating=rating,
        outcome=outcome,
    )
