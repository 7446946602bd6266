"""What lists promise: one order, exact totals, nothing twice."""

import itertools
from typing import Any

from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.message import Part
from dragoman.model.task import TaskState
from dragoman.stores.interface import (
    Bodies,
    Query,
    Store,
    Survey,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    kept,
    opening,
    place_of,
    status,
    submit,
    walk,
    write,
)
from dragoman.testing.promises.suite import StoreSuite


class PagePromises(StoreSuite):
    """Pages of one scope, and the operator's survey."""

    async def test_pages_have_the_latest_status_first(self, store: Store) -> None:
        """By status time, then by number, both descending."""
        for task_id, at in (("a", 5), ("b", 9), ("c", 5), ("d", 7), ("e", 5)):
            await write(store, creation(task_id, at=at))
        found = await store.page(Query(HERE, 10))
        assert [head.task_id for head in found.heads] == ["b", "d", "e", "c", "a"]
        mover = await head_of(store, "a")
        await write(store, addition(mover, status("a", TaskState.WORKING), at=8))
        found = await store.page(Query(HERE, 10))
        assert [head.task_id for head in found.heads] == ["b", "a", "d", "e", "c"]

    async def test_a_page_brings_the_tasks_that_rest(self, store: Store) -> None:
        """Each as `at_rest` has it, with artifacts or without, until there are enough bytes."""
        for n in range(4):
            task = opening(f"t{n}")
            task.artifacts.append(Artifact("a", [Part(text="x" * 100)]))
            await write(store, creation(f"t{n}", at=9 - n, snapshot=kept(task, 1)))
        head = await head_of(store, "t1")
        await write(store, addition(head, chunk("t1", "x", append=False)))
        for artifacts in (True, False):
            asked = Bodies(1_000_000, artifacts=artifacts)
            page = await store.page(Query(HERE, 10), bodies=asked)
            assert [head.task_id for head in page.heads] == ["t0", "t1", "t2", "t3"]
            assert page.readings[1] is None
            for n in (0, 2, 3):
                found = page.readings[n]
                alone = await store.snapshot(page.heads[n].number, artifacts=artifacts)
                assert found is not None and alone is not None
                assert (found.seq, found.body) == (1, alone.body)
        page = await store.page(Query(HERE, 10), bodies=Bodies(150))
        assert [reading is not None for reading in page.readings] == [True, False, False, False]
        assert not (await store.page(Query(HERE, 10))).readings

    async def test_a_survey_sees_the_tasks_of_all_owners(self, store: Store) -> None:
        """Latest made first, narrowed by whatever is asked for, page by page."""
        rooms = [HERE, Scope(HERE.agent, "acme", "anna"), Scope("other", "acme", "bert")]
        for number in range(9):
            state = TaskState.COMPLETED if number % 2 else TaskState.WORKING
            await write(store, creation(f"t{number}", scope=rooms[number % 3], state=state))

        async def ids(**asked: Any) -> list[str]:
            return [head.task_id for head in await store.survey(Survey(limit=100, **asked))]

        assert await ids() == [f"t{number}" for number in reversed(range(9))]
        assert await ids(agent="other") == ["t8", "t5", "t2"]
        assert await ids(tenant="acme") == ["t8", "t7", "t5", "t4", "t2", "t1"]
        assert await ids(tenant="acme", owner="anna") == ["t7", "t4", "t1"]
        assert await ids(tenant="acme", state=TaskState.COMPLETED) == ["t7", "t5", "t1"]
        assert await ids(task_id=TaskId("t4")) == ["t4"]
        assert await ids(task_id=TaskId("t4"), tenant="none") == []
        first = await store.survey(Survey(limit=4))
        rest = await store.survey(Survey(limit=100, before=first[-1].number))
        assert [head.task_id for head in [*first, *rest]] == await ids()

    async def test_every_combination_of_filters_gives_its_tasks_and_their_total(
        self, store: Store
    ) -> None:
        """Filters, page sizes and cursors agree with a plain filter over all tasks."""
        await _fill(store, 60)
        everything = [await head_of(store, f"t{n}") for n in range(60)]
        states = (None, TaskState.SUBMITTED, TaskState.COMPLETED, TaskState.REJECTED)
        times = (None, 0, 4, 5, 100)
        for context, state, since in itertools.product(("", "c0", "c1", "none"), states, times):
            expected = [
                head
                for head in everything
                if (not context or head.context_id == context)
                and (state is None or head.standing.state is state)
                and (since is None or head.standing.status_at >= since)
            ]
            expected.sort(key=place_of, reverse=True)
            for limit in (1, 7, 100):
                query = Query(HERE, limit, ContextId(context), state, since)
                assert await walk(store, query) == expected, query

    async def test_totals_follow_tasks_from_state_to_state(self, store: Store) -> None:
        """A total by state counts where tasks stand, not where they stood."""
        await submit(store, *(creation(f"t{n}") for n in range(5)))
        for n in range(3):
            head = await head_of(store, f"t{n}")
            await write(
                store,
                addition(head, status(head.task_id, TaskState.WORKING), state=TaskState.WORKING),
            )
        head = await head_of(store, "t0")
        done = status("t0", TaskState.COMPLETED)
        await write(store, addition(head, done, state=TaskState.COMPLETED))
        totals = {
            state: (await store.page(Query(HERE, 1, state=state))).total for state in TaskState
        }
        assert {state: n for state, n in totals.items() if n} == {
            TaskState.SUBMITTED: 2,
            TaskState.WORKING: 2,
            TaskState.COMPLETED: 1,
        }
        assert (await store.page(Query(HERE, 1))).total == 5

    async def test_no_task_shows_twice_in_a_walk_while_tasks_move(self, store: Store) -> None:
        """A cursor is a strict bound: what moves up is missed, what stays is seen once."""
        await submit(store, *(creation(f"t{n}", at=n) for n in range(20)))
        seen: list[str] = []
        after: tuple[int, int] | None = None
        moved: set[str] = set()
        for step in range(20):
            page = await store.page(Query(HERE, 3, after=after))
            if not page.heads:
                break
            seen += [head.task_id for head in page.heads]
            after = place_of(page.heads[-1])
            # One that was seen and one that was not go to the top, and a new one arrives.
            for mover in {seen[0], f"t{step}"}:
                head = await head_of(store, mover)
                working = status(mover, TaskState.WORKING)
                await write(store, addition(head, working, at=1000 + step))
                moved.add(mover)
            await write(store, creation(f"new{step}", at=2000 + step))
        assert len(seen) == len(set(seen))
        assert {f"t{n}" for n in range(20)} - set(seen) <= moved
        assert not any(task_id.startswith("new") for task_id in seen)


async def _fill(store: Store, count: int) -> None:
    """Create tasks in two contexts, three states and few enough times that many are equal."""
    states = (TaskState.SUBMITTED, TaskState.COMPLETED, TaskState.REJECTED)
    for n in range(count):
        scope = HERE
        await write(
            store,
            creation(f"t{n}", scope=scope, context=f"c{n % 2}", state=states[n % 3], at=n * 7 % 10),
        )
        # Neighbours that no query may see.
        await write(store, creation(f"t{n}", scope=ELSEWHERE[n % 3], context=f"c{n % 2}", at=n))
