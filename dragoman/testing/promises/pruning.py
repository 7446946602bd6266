"""What pruning promises: only what has ended goes, and all of it."""

import asyncio

import msgspec

from dragoman.model.identity import TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import (
    KeepReply,
    Known,
    Query,
    Store,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    END_OF_TIME,
    HERE,
    WITHIN,
    WriteOutcome,
    addition,
    creation,
    head_of,
    letter,
    note,
    opening,
    receiver,
    snapshot_of,
    status,
    submit,
    walk,
    write,
)
from dragoman.testing.promises.suite import StoreSuite


class PruningPromises(StoreSuite):
    """Which tasks are forgotten, and when their keys are."""

    async def test_what_belongs_to_a_forgotten_task_goes_with_it(self, store: Store) -> None:
        """Receivers, letters, notes and its deadline; its neighbours keep theirs."""
        numbers = [
            await write(store, creation(task_id, at=1, deadline=5, pushes=[receiver("a", task_id)]))
            for task_id in ("t", "u")
        ]
        for number in numbers:
            (push,) = await store.pushes(number)
            await store.settle(push, letter(push, 1, 1))
        for task_id in ("t", "u"):
            await write(store, note(await head_of(store, task_id), b"{}"))
        head = await head_of(store, "t")
        failed = status("t", TaskState.FAILED)
        await write(store, addition(head, failed, state=TaskState.FAILED, at=1))
        # A receiver still waits for its events.
        assert await store.prune(ended_before=2, keep=0) == 0
        (push,) = await store.pushes(head.number)
        await store.settle(msgspec.structs.replace(push, is_open=False))
        assert await store.prune(ended_before=2, keep=0) == 1
        assert await store.pushes(numbers[0]) == []
        assert await store.notes(numbers[0]) == []
        assert [one.task_id for one in await store.dead_letters(10)] == ["u"]
        assert [head.task_id for head in await store.overdue("agent", 9)] == ["u"]
        assert [head.task_id for head in await store.noted("agent")] == ["u"]
        assert len(await store.pushes(numbers[1])) == len(await store.notes(numbers[1])) == 1
        later = await self.successor(store)
        assert [push.task for push in await later.claim_pushes(10)] == [numbers[1]]

    async def test_old_finished_tasks_are_forgotten(self, store: Store) -> None:
        """By the time of their status: row, log, snapshot and place in lists."""
        for n in range(6):
            task_id = f"t{n}"
            await write(
                store,
                creation(
                    task_id,
                    state=TaskState.COMPLETED,
                    at=n,
                    snapshot=snapshot_of(opening(task_id), 1),
                ),
            )
        heads = [await head_of(store, f"t{n}") for n in range(6)]
        assert await store.prune(ended_before=4, keep=100) == 4
        for head in heads[:4]:
            assert await store.head(HERE, head.task_id) is None
            assert await store.read(head.number, after=0, limit=10) == []
            assert await store.snapshot(head.number) is None
        assert await walk(store, Query(HERE, 2)) == [heads[5], heads[4]]
        assert (await store.page(Query(HERE, 1, state=TaskState.COMPLETED))).total == 2
        assert await store.prune(ended_before=4, keep=100) == 0

    async def test_surplus_finished_tasks_are_forgotten(self, store: Store) -> None:
        """The newest stay, over all scopes together."""
        scopes = [HERE, *ELSEWHERE]
        for n in range(450):
            ended = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED)[n % 3]
            await write(store, creation(f"t{n}", scope=scopes[n % 4], state=ended, at=n))
        assert await store.prune(ended_before=0, keep=20) == 430
        left = [head for scope in scopes for head in await walk(store, Query(scope, 50))]
        assert sorted(head.standing.status_at for head in left) == list(range(430, 450))
        assert await store.prune(ended_before=0, keep=20) == 0

    async def test_active_tasks_are_never_forgotten(self, store: Store) -> None:
        """However old and however many: only terminal states end a task's right to be there."""
        for state in TaskState:
            await write(store, creation(state.value, state=state, at=1))
        assert await store.prune(ended_before=END_OF_TIME, keep=0) == 4
        left = {head.standing.state for head in await walk(store, Query(HERE, 3))}
        assert left == {state for state in TaskState if not state.is_terminal}

    async def test_a_key_outlives_its_task_until_the_cut_off(self, store: Store) -> None:
        """A late repetition finds that there was something; in the end keys go too."""
        await write(store, creation("t", state=TaskState.COMPLETED, at=1, keys=[b"task"]))
        await write(store, creation("u", at=1, keys=[b"active"]))
        await write(store, KeepReply(HERE, b"reply", b"{}"))
        assert await store.prune(ended_before=2, keep=0) == 1
        assert await store.known(HERE, b"task") == Known()
        (outcome,) = await submit(store, creation("v", keys=[b"task"]))
        assert outcome.is_refused
        assert await store.known(HERE, b"reply") == Known(reply=b"{}")
        await store.prune(ended_before=END_OF_TIME, keep=0)
        assert await store.known(HERE, b"task") is None
        assert await store.known(HERE, b"reply") is None
        assert await store.known(HERE, b"active") == Known(task_id=TaskId("u"))

    async def test_numbers_are_never_given_again(self, store: Store) -> None:
        """A cursor or a key may still name the number of a forgotten task."""
        numbers: list[int] = []
        for n in range(4):
            numbers.append(await write(store, creation(f"t{n}", state=TaskState.FAILED, at=1)))
            assert await store.prune(ended_before=END_OF_TIME, keep=0) == 1
        assert numbers == sorted(set(numbers))
        assert (await store.page(Query(HERE, 10))).total == 0

    async def test_writes_and_pruning_go_on_side_by_side(self, store: Store) -> None:
        """A write while tasks are forgotten is neither refused nor lost."""
        ended = [creation(f"old{n}", state=TaskState.FAILED, at=1) for n in range(500)]
        await submit(store, *ended)
        pruning = asyncio.ensure_future(store.prune(ended_before=2, keep=1000))
        outcomes: list[WriteOutcome] = []
        for n in range(50):
            outcomes += await submit(store, creation(f"new{n}", at=5))
        assert await asyncio.wait_for(pruning, WITHIN) == 500
        assert all(outcome.error is None for outcome in outcomes)
        assert len(await walk(store, Query(HERE, 20))) == 50
