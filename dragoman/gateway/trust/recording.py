"""Records what changes trust: each function reads facts, lets `observations` decide, and has the
store apply the effects."""

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.gateway.money.decisions import apply_decision
from dragoman.gateway.money.task_reference import TaskReference, order_meant
from dragoman.gateway.trust import observations
from dragoman.gateway.trust.observations import LONGEST_COMMENT, NoOpenDispute
from dragoman.model.identity import Principal
from dragoman.stores.interface.effects import AccountingStore
from dragoman.stores.interface.orders import OrderFacts


async def observe(store: AccountingStore, limit: int) -> int:
    """Turn orders that ended into events, the earliest first; return how many there were."""
    found = await apply_decision(store, lambda: store.trust.unobserved(limit), observations.observe)
    return len(found)


async def rate(
    store: AccountingStore,
    agent: str,
    task: TaskReference,
    requester: Principal,
    rating: int,
    comment: str,
    at: int,
) -> None:
    """Record what the requester of a completed task says of the agent."""
    if type(rating) is not int or not 1 <= rating <= 5:
        raise InvalidParams("must be a whole number from 1 to 5", field="rating")
    if len(comment) > LONGEST_COMMENT:
        raise InvalidParams(f"must have {LONGEST_COMMENT} characters at most", field="comment")
    await apply_decision(
        store,
        lambda: _of_requester(store, task, requester),
        lambda facts: observations.rate(facts, agent, rating, comment, at),
    )


async def dispute(
    store: AccountingStore,
    agent: str,
    task: TaskReference,
    requester: Principal,
    reason: str,
    at: int,
) -> int:
    """Record that the requester of a completed task says it was not done; return its number."""
    if not reason.strip() or len(reason) > LONGEST_COMMENT:
        raise InvalidParams(f"must have 1 to {LONGEST_COMMENT} characters", field="reason")
    facts = await apply_decision(
        store,
        lambda: _of_requester(store, task, requester),
        lambda facts: observations.dispute(facts, agent, reason, at),
    )
    return facts.order.task


async def resolve(
    store: AccountingStore, task: TaskReference, is_upheld: bool, note: str, at: int
) -> int:
    """Decide on a dispute, as an operator does; return the task's number. Raises `NoOpenDispute`,
    and `AmbiguousTask`."""
    if len(note) > LONGEST_COMMENT:
        raise InvalidParams(f"must have {LONGEST_COMMENT} characters at most", field="note")
    facts = await apply_decision(
        store,
        lambda: _disputed(store, task),
        lambda facts: observations.resolve(facts, is_upheld, note, at),
    )
    return facts.order.task


async def violate(store: AccountingStore, agent: str, reason: str, at: int) -> None:
    """Record that the gateway saw an agent break the rules of security."""
    await store.apply(observations.violation(agent, reason, at))


async def _of_requester(
    store: AccountingStore, task: TaskReference, requester: Principal
) -> OrderFacts:
    found = await store.ledger.facts(task.id)
    try:
        return order_meant(found, task, lambda one: one.order.requester == requester)
    except TaskNotFound:
        # Of another requester, or of none: that it exists is not ours to reveal.
        raise InvalidParams("you have no such task", field="taskId") from None


async def _disputed(store: AccountingStore, task: TaskReference) -> OrderFacts:
    found = await store.ledger.facts(task.id)
    try:
        return order_meant(found, task, lambda one: one.dispute == "")
    except TaskNotFound:
        raise NoOpenDispute("no open dispute is about this task", field="taskId") from None
