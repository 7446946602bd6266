"""Tasks that a gateway gave to one agent.

No index has them: the log of each says it. Logs are read from the latest task on, until a page is
full or its time is spent; the next page goes on from there.
"""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.server.operator.tasks.budget import ReadBudget
from dragoman.server.operator.tasks.items import FIRST_BYTES, FIRST_EVENTS, agent_in, place_of
from dragoman.stores.interface import Store, Survey, TaskRow

# Tasks that are looked at together.
_AT_ONCE = 200


async def agents_of(store: Store, heads: Sequence[TaskRow]) -> list[str]:
    """Return the id of the agent that each of some tasks was given to; empty: to none."""
    places = [(head.number, 0) for head in heads]
    logs = await store.read_many(places, limit=FIRST_EVENTS, size=FIRST_BYTES)
    # A file is read without waiting.
    await asyncio.sleep(0)
    return [agent_in(log) for log in logs]


async def given_to(store: Store, agent: str, heads: Sequence[TaskRow]) -> list[TaskRow]:
    """Return those of some tasks that were given to an agent, by its id."""
    agents = await agents_of(store, heads)
    return [head for head, one in zip(heads, agents, strict=True) if one == agent]


async def find_given_to(
    store: Store, agent: str, survey: Survey
) -> tuple[list[TaskRow], tuple[int, int] | None]:
    """Return tasks that were given to an agent, at most `survey.limit`, and the place where the
    search goes on; None: there are no more."""
    budget, limit, found = ReadBudget(), survey.limit, list[TaskRow]()
    while True:
        heads = await store.survey(replace(survey, limit=_AT_ONCE))
        found += await given_to(store, agent, heads)
        if len(found) > limit:
            return found[:limit], place_of(found[limit - 1])
        if len(heads) < _AT_ONCE:
            return found, None
        survey = replace(survey, after=place_of(heads[-1]))
        if budget.is_spent:
            return found, survey.after
