"""What lists promise: one order, exact totals, nothing twice."""

import itertools
from typing import Any

from dragoman.model.artifact import Artifact
from dragoman.model.identity import Caller, ContextId, Scope, TaskId
from dragoman.model.message import Part
from dragoman.model.task import TaskState
from dragoman.stores.interface import (
    Bodies,
    Query,
    Store,
    Survey,
    TaskRow,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    opening,
    place_of,
    snapshot_of,
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
            await write(store, creation(f"t{n}", at=9 - n, snapshot=snapshot_of(task, 1)))
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
        """Latest status first, narrowed by whatever is asked for, page by page."""
        rooms = [HERE, Scope(HERE.agent, "acme", "anna"), Scope("other", "acme", "bert")]
        for number in range(9):
            state = TaskState.COMPLETED if number % 2 else TaskState.WORKING
            scope = rooms[number % 3]
            await write(store, creation(f"t{number}", scope=scope, state=state, at=number + 1))

        async def ids(**asked: Any) -> list[str]:
            return [head.task_id for head in await store.survey(Survey(limit=100, **asked))]

        assert await ids() == [f"t{number}" for number in reversed(range(9))]
        assert await ids(agent="other") == ["t8", "t5", "t2"]
        assert await ids(tenant="acme") == ["t8", "t7", "t5", "t4", "t2", "t1"]
        assert await ids(tenant="acme", owner="anna") == ["t7", "t4", "t1"]
        assert await ids(tenant="acme", state=TaskState.COMPLETED) == ["t7", "t5", "t1"]
        assert await ids(task_id=TaskId("t4")) == ["t4"]
        assert await ids(task_id=TaskId("t4"), tenant="none") == []
        assert await ids(status_since=4, status_before=7) == ["t5", "t4", "t3"]
        # Whatever a caller asks for: characters that no database has too.
        for name in ("agent", "tenant", "owner", "task_id", "context_id"):
            for text in ("\0", "t4\0", "\U0010ffff", "'; --", "%"):
                assert await ids(**{name: text}) == [], (name, text)
        mover = await head_of(store, "t0")
        await write(store, addition(mover, status("t0", TaskState.WORKING), at=20))
        assert (await ids())[:2] == ["t0", "t8"]
        for limit in (1, 4, 100):
            found: list[str] = []
            after: tuple[int, int] | None = None
            while heads := await store.survey(Survey(limit=limit, after=after)):
                found += [head.task_id for head in heads]
                after = place_of(heads[-1])
            assert found == await ids()

    async def test_a_survey_of_a_principal_has_what_is_its_own(self, store: Store) -> None:
        """Its tasks with every agent, and those in tenants that its requests named; neither those
        of the same name in another tenant nor those of others."""
        owned = [
            Scope.of(agent, tenant, caller)
            for agent in ("one", "two")
            for tenant, caller in (
                ("", Caller("anna", authenticated=True)),
                ("acme", Caller("anna", authenticated=True)),
                ("acme", Caller("anna", authenticated=True, tenant="acme")),
                ("acme", Caller("bert", authenticated=True, tenant="acme")),
                ("", Caller("@anna", authenticated=True)),
            )
        ]
        for number, scope in enumerate(owned):
            await write(store, creation(f"t{number}", scope=scope, at=number + 1))
        for who in {scope.principal for scope in owned}:
            heads = await store.survey(Survey(limit=100, principal=who))
            expected = [scope for scope in reversed(owned) if scope.principal == who]
            assert [head.scope for head in heads] == expected, who
            one = await store.survey(Survey(limit=100, principal=who, task_id=TaskId("t0")))
            assert [head.task_id for head in one] == (["t0"] if owned[0] in expected else [])

    async def test_every_combination_of_a_survey_agrees_with_a_plain_filter(
        self, store: Store
    ) -> None:
        """Whatever is asked for together, and in pages of any size."""
        rooms = [HERE, ELSEWHERE[0], Scope("other", "acme", "bert")]
        states = (TaskState.WORKING, TaskState.COMPLETED, TaskState.FAILED)
        everything: list[TaskRow] = []
        for n in range(36):
            scope = rooms[n % 3]
            made = creation(
                f"t{n}", scope=scope, state=states[n % 2 + n // 30], at=n % 7, context=f"c{n % 4}"
            )
            await write(store, made)
            head = await store.head(scope, TaskId(f"t{n}"))
            assert head is not None
            everything.append(head)
        asked = itertools.product(("", "other"), ("", "c1"), (None, *states), (0, 3), (None, 5))
        for agent, context, state, since, before in asked:
            expected = [
                head
                for head in everything
                if agent in ("", head.scope.agent)
                and context in ("", head.context_id)
                and state in (None, head.standing.state)
                and since <= head.standing.status_at < (before or 100)
            ]
            expected.sort(key=place_of, reverse=True)
            for limit in (2, 100):
                found: list[TaskRow] = []
                after: tuple[int, int] | None = None
                while heads := await store.survey(
                    Survey(
                        limit=limit,
                        agent=agent,
                        context_id=ContextId(context),
                        state=state,
                        status_since=since,
                        status_before=before,
                        after=after,
                    )
                ):
                    found += heads
                    after = place_of(heads[-1])
                assert found == expected, (agent, context, state, since, before, limit)

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
        assert await store.counts() == {}
        await submit(store, *(creation(f"t{n}") for n in range(5)))
        await write(store, creation("x", scope=ELSEWHERE[0]))
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
        assert await store.counts() == {
            TaskState.SUBMITTED: 3,
            TaskState.WORKING: 2,
            TaskState.COMPLETED: 1,
        }

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
