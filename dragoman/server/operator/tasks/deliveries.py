"""Tasks without the deliveries of others: what a gateway gives to an agent of its own server is
there as two tasks of the same words, the caller's in the gateway and the agent's own.

The log of each says it. Logs are read from the latest task on, until a page is full or its time is
spent; the next page goes on from there.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.model.record import decode_event
from dragoman.model.request_metadata import HOPS
from dragoman.model.task import Task
from dragoman.server.operator.tasks.budget import ReadBudget
from dragoman.server.operator.tasks.items import openings_of, place_of
from dragoman.server.site import Site
from dragoman.stores.interface import Survey, TaskRow

# Tasks that are looked at together, at most.
_AT_ONCE = 200


async def without_deliveries(site: Site, heads: Sequence[TaskRow]) -> list[TaskRow]:
    """Return tasks without those that are the delivery of another one."""
    if site.is_delivery is None:
        return list(heads)
    openings = await openings_of(site.store, heads)
    return [
        head
        for head, body in zip(heads, openings, strict=True)
        # Judged by its bytes: most are not decoded.
        if HOPS.encode() not in body
        or not isinstance(first := decode_event(body), Task)
        or not site.is_delivery(head.scope, first)
    ]


async def share_but_deliveries(site: Site, survey: Survey) -> float:
    """Return which share of some tasks are no deliveries, as far as the latest of them tell."""
    if site.is_delivery is None:
        return 1.0
    heads = await site.store.survey(replace(survey, limit=_AT_ONCE))
    return len(await without_deliveries(site, heads)) / len(heads) if heads else 1.0


async def find_but_deliveries(
    site: Site, survey: Survey
) -> tuple[list[TaskRow], tuple[int, int] | None]:
    """Return tasks that are no deliveries, at most `survey.limit`, and the place where the search
    goes on; None: there are no more."""
    budget, limit, found = ReadBudget(), survey.limit, list[TaskRow]()
    # Where each has a delivery, one look is enough.
    at_once = min(_AT_ONCE, 2 * limit + 1)
    while True:
        heads = await site.store.survey(replace(survey, limit=at_once))
        found += await without_deliveries(site, heads)
        if len(found) > limit:
            return found[:limit], place_of(found[limit - 1])
        if len(heads) < at_once:
            return found, None
        survey = replace(survey, after=place_of(heads[-1]))
        if budget.is_spent:
            return found, survey.after
