"""Lists of tasks."""

import msgspec
import pytest

from dragoman.errors import (
    InvalidParams,
)
from dragoman.model.task import Task, TaskState
from tests.engine.engines import House
from tests.engine.stage import Stage

S = TaskState


@pytest.mark.requirement("T-35", "T-36", "T-37", "T-38")
async def test_a_list_is_walked_by_its_tokens(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    assert (await house.list()).tasks == []
    tasks = [await house.send(f"{n}") for n in range(7)]
    await house.send("theirs", owner="bob")
    seen: list[Task] = []
    token = ""
    for expected in (3, 3, 1):
        page = await house.list(page_size=3, page_token=token, include_artifacts=True)
        assert (len(page.tasks), page.total_size, page.page_size) == (expected, 7, 3)
        seen += [reply.reading.task for reply in page.tasks]
        token = page.next_page_token
        assert bool(token) == (len(seen) < 7)
    assert seen == list(reversed(tasks))
    for owner, query in (("bob", {}), ("", {"state": S.COMPLETED})):
        page = await house.list(page_size=3)
        with pytest.raises(InvalidParams):
            await house.list(owner=owner, page_token=page.next_page_token, **query)


async def test_a_list_shows_artifacts_only_when_asked(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    done = await house.send("hi")
    asked = await tell_part(house)
    for include in (False, True):
        page = await house.list(include_artifacts=include)
        shown = {reply.reading.task.id: reply.reading.task for reply in page.tasks}
        for task in (done, asked):
            expected = task if include else msgspec.structs.replace(task, artifacts=[])
            assert shown[task.id] == expected


async def tell_part(house: House) -> Task:
    """Return a task whose snapshot is older than its log."""
    task = await house.send("tell", skill="story")
    return await house.send("more", task=task.id, skill="story")


@pytest.mark.requirement("T-35")
async def test_a_list_can_begin_at_a_time(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    task = await house.send("hi")
    head = await house.store.head(house.scope, task.id)
    assert head is not None
    at = head.standing.status_at * 1000
    for since, count in ((at - 1, 1), (at, 1), (at + 1, 0), (at + 1000, 0)):
        assert (await house.list(status_since=since)).total_size == count
