"""What becomes an event of trust, pure: observed outcomes, payments, ratings, disputes, violations.

Every function returns effects, and doing it twice does nothing more. No statement of an agent about
itself counts: outcomes come from orders, and only the requester of a completed task has a word on
it, once.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.gateway.money import order_rules
from dragoman.model.task import TaskState
from dragoman.stores.interface.effects import (
    AddDay,
    AddPayer,
    AppendEvents,
    DecideDispute,
    Effect,
    PutDispute,
    PutRating,
    SetObserved,
)
from dragoman.stores.interface.orders import OrderFacts, OrderRow
from dragoman.stores.interface.trust import DAY_MS, DayKey, TrustDay, TrustEventRow

LONGEST_COMMENT = 1000
UPHELD, REJECTED = "upheld", "rejected"

_FAST_MS, _SLOW_MS = 150_000, 300_000
# Causes that no agent can help: the gateway was too busy to call it, the gateway failed, or the
# requester left no time for it.
NOT_THE_AGENTS = frozenset({"busy", "gateway", "hurried"})


class NoOpenDispute(InvalidParams):
    """No open dispute is about this task"""


def observe(found: Sequence[OrderFacts]) -> list[Effect]:
    """Turn orders that ended into events."""
    if not found:
        return []
    events: list[TrustEventRow] = []
    days: dict[DayKey, TrustDay] = {}
    payers: dict[str, None] = {}
    for facts in found:
        order = facts.order
        event = _outcome(order)
        if event is None or event.type in facts.events:
            continue
        events.append(event)
        key = _key(order, order.ended_at)
        if event.type != "task_completed":
            days[key] = days.get(key, TrustDay()).plus(TrustDay(failed=1))
            continue
        done = TrustDay(completed=1, response_ms=event.response_ms)
        days[key] = days.get(key, TrustDay()).plus(done)
        if order.charged > 0 and order.requester != order.payee:
            payers[order.requester.text] = None
        if event.response_ms > _SLOW_MS:
            reason = f"took {event.response_ms / 1000:.1f} s, more than 300 s"
            events.append(_event(order, order.ended_at, "sla_breach", -2, reason))
    return [
        SetObserved([facts.order for facts in found]),
        AppendEvents(events),
        *(AddDay(key, day) for key, day in days.items()),
        *(AddPayer(requester) for requester in payers),
    ]


def _outcome(order: OrderRow) -> TrustEventRow | None:
    if not order.agent or order.cause in NOT_THE_AGENTS:
        return None
    took = order.response_ms
    seconds = f"{took / 1000:.1f} s"
    if order.state is TaskState.COMPLETED:
        score = 3 if took < _FAST_MS else 2 if took < _SLOW_MS else 1
        type, reason = "task_completed", f"completed in {seconds}"
    elif order.state not in (TaskState.FAILED, TaskState.REJECTED):
        # The requester's own cancel says nothing of the agent.
        return None
    elif order.cause == "timeout" or 0 < order.due_at <= order.ended_at:
        type, score, reason = "task_timeout", -4, f"not done in {seconds}"
    else:
        type, score = "task_failed", -3
        reason = "refused by the agent" if order.state is TaskState.REJECTED else "failed"
        reason += f": {order.cause}" if order.cause else ""
    return _event(order, order.ended_at, type, score, reason, response_ms=took)


def rate(facts: OrderFacts, agent: str, rating: int, comment: str, at: int) -> list[Effect]:
    """Record what the requester of a completed task says of the agent."""
    order = _completed(facts, agent)
    if facts.rating is not None:
        raise InvalidParams("this task was already rated", field="taskId")
    event = _event(order, at, "rating_received", rating, f"rated {rating} of 5", rating=rating)
    return [
        PutRating(order, rating, comment, at, facts.dispute),
        AppendEvents([event]),
        AddDay(_key(order, at), TrustDay(ratings=1, rating_sum=rating)),
    ]


def dispute(facts: OrderFacts, agent: str, reason: str, at: int) -> list[Effect]:
    """Record that the requester of a completed task says it was not done. A price in escrow stays
    there; if the time for a dispute is over, it is paid."""
    order = _completed(facts, agent)
    if facts.dispute is not None:
        raise InvalidParams("this task was already disputed", field="taskId")
    event = _event(order, at, "dispute_opened", 0, "disputed by its requester")
    stopped = order_rules.stop_release(order, at)
    if not stopped and (released := order_rules.release(order, order_rules.IN_TIME, at)):
        stopped = [*released, *paid_effects(facts, at)]
    return [PutDispute(order, reason, at), AppendEvents([event]), *stopped]


def resolve(facts: OrderFacts, is_upheld: bool, note: str, at: int) -> list[Effect]:
    """Decide on a dispute, as an operator does. If it is upheld, the task counts as failed, and a
    price in escrow is given back; else that is paid."""
    order = facts.order
    effects: list[Effect] = []
    if not order.is_observed:
        effects += observe([facts])
        event = _outcome(order)
        events = {event.type} if event is not None else set[str]()
        facts = replace(facts, order=replace(order, is_observed=True), events=facts.events | events)
    outcome = UPHELD if is_upheld else REJECTED
    score, reason = (-3, "upheld: counts as failed") if is_upheld else (0, "rejected")
    event = _event(order, at, "dispute_resolved", score, reason, outcome=outcome)
    effects += [DecideDispute(order.task, outcome, note, at), AppendEvents([event])]
    if is_upheld:
        changed = TrustDay(completed=-1, failed=1, response_ms=-order.response_ms)
        effects.append(AddDay(_key(order, order.ended_at), changed))
    settled = order_rules.decide(facts.order, at, is_upheld=is_upheld)
    if settled and not is_upheld:
        settled += paid_effects(facts, at)
    return [*effects, *settled]


def paid_effects(facts: OrderFacts, at: int) -> list[Effect]:
    """Count a requester as a payer, if the outcome was observed before the payment. An outcome
    that is observed later says itself what was charged."""
    if "task_completed" not in facts.events:
        return []
    order = replace(facts.order, charged=facts.order.price)
    event = _event(order, at, "task_paid", 0, "paid after its delivery")
    return [AppendEvents([event]), AddPayer(order.requester.text)]


def violation(agent: str, reason: str, at: int) -> list[Effect]:
    """Record that the gateway saw an agent break the rules of security."""
    text = reason[:LONGEST_COMMENT]
    event = TrustEventRow(at=at, agent=agent, type="violation", score=-10, reason=text)
    return [AppendEvents([event])]


def _completed(facts: OrderFacts, agent: str) -> OrderRow:
    order = facts.order
    if agent and order.agent != agent:
        raise InvalidParams("this task was not done by this agent", field="taskId")
    if order.state is not TaskState.COMPLETED or facts.dispute == UPHELD:
        raise InvalidParams("this task was not completed", field="taskId")
    return order


def _key(order: OrderRow, at: int) -> DayKey:
    return order.agent, order.requester.text, order.is_own, at // DAY_MS


def _event(
    order: OrderRow,
    at: int,
    type: str,
    score: int,
    reason: str,
    *,
    response_ms: int = 0,
    rating: int = 0,
    outcome: str = "",
) -> TrustEventRow:
    return TrustEventRow(
        at=at,
        agent=order.agent,
        type=type,
        score=score,
        reason=reason,
        task=order.task,
        task_id=order.task_id,
        requester=order.requester.text,
        is_own=order.is_own,
        skill=order.skill,
        charged=order.charged,
        response_ms=response_ms,
        rating=rating,
        outcome=outcome,
    )
