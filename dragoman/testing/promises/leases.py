"""What leases promise: one worker writes a task, and what a dead one left is taken over."""

import msgspec

from dragoman.model.identity import TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import Duty, Known, Store
from dragoman.stores.interface.inspection import WorkerFacts
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    END_OF_TIME,
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    note,
    status,
    submit,
    write,
)
from dragoman.testing.promises.suite import StoreSuite


class LeasePromises(StoreSuite):
    """Claims, fences, notes for the holder, and deadlines."""

    # Leases

    async def test_a_task_is_held_by_who_wrote_it_last(self, store: Store) -> None:
        """A worker that goes on with a task of the dead holds it from then on."""
        await write(store, creation("t", state=TaskState.INPUT_REQUIRED))
        head = await head_of(store, "t")
        assert head.holder == store.worker
        assert await store.is_live(store.worker)
        assert not await store.is_live(0)
        later = await self.successor(store)
        assert later.worker != head.holder
        assert not await later.is_live(head.holder)
        assert await head_of(later, "t") == head
        await write(later, addition(head, chunk("t", "x"), next_fence=head.fence + 1))
        head = await head_of(later, "t")
        assert (head.holder, head.fence) == (later.worker, 2)

    async def test_a_store_knows_its_workers(self, store: Store) -> None:
        """One that lives is live, and a successor is another one."""
        own = WorkerFacts(store.worker, "live", is_due=False)
        assert own in await store.workers()
        later = await self.successor(store)
        states = {worker.number: worker.state for worker in await later.workers()}
        assert states[later.worker] == "live"

    async def test_a_worker_holds_the_tasks_that_it_has_under_way(self, store: Store) -> None:
        """Not those that wait for their callers, and not those that ended."""
        for state in TaskState:
            await write(store, creation(state.value, state=state))
        held = {worker.number: worker.tasks for worker in await store.workers()}
        assert held[store.worker] == 2
        later = await self.successor(store)
        held = {worker.number: worker.tasks for worker in await later.workers()}
        assert held[later.worker] == 0

    async def test_what_a_dead_worker_left_unfinished_is_claimed_under_a_higher_fence(
        self, store: Store
    ) -> None:
        """Only that: not what ended, not what waits for its caller, not what is another agent's."""
        for state in TaskState:
            await write(store, creation(state.value, state=state))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, creation("tenants", scope=ELSEWHERE[1]))
        left = store.worker
        later = await self.successor(store)
        claimed = await later.claim("agent", 100)
        ids = {TaskState.SUBMITTED.value, TaskState.WORKING.value, "tenants"}
        assert {head.task_id for head, _ in claimed} == ids
        assert {(head.fence, head.holder) for head, _ in claimed} == {(2, later.worker)}
        assert {held_by for _, held_by in claimed} == {-left}
        for head, _ in claimed:
            assert await later.head(head.scope, head.task_id) == head
        others = [await head_of(later, s.value) for s in TaskState if s.value not in ids]
        others.append(await head_of(later, "foreign", ELSEWHERE[2]))
        assert {(head.fence, head.holder) for head in others} == {(1, left)}

    async def test_a_dead_worker_with_one_task_under_way_is_told_from_one_with_several(
        self, store: Store
    ) -> None:
        """Whichever agents they are of, and in however many portions they are claimed."""
        await write(store, creation("first"))
        await write(store, creation("second"))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, creation("done", state=TaskState.COMPLETED))
        await write(store, creation("waits", state=TaskState.INPUT_REQUIRED))
        crowd = store.worker
        later = await self.successor(store)
        held_by = [await later.claim("agent", 1), await later.claim("agent", 1)]
        held_by.append(await later.claim(ELSEWHERE[2].agent, 1))
        assert [number for ((_, number),) in held_by] == [-crowd] * 3
        for task, scope in (("second", HERE), ("foreign", ELSEWHERE[2])):
            head = await head_of(later, task, scope)
            ended = status(task, TaskState.COMPLETED)
            await write(later, addition(head, ended, state=TaskState.COMPLETED))
        alone = later.worker
        last = await self.successor(later)
        ((_, number),) = await last.claim("agent", 10)
        assert number == alone

    async def test_a_task_is_claimed_once_and_never_from_the_living(self, store: Store) -> None:
        """At most one lease is valid, however often it is asked for."""
        await submit(store, *(creation(f"t{n}") for n in range(5)))
        await store.renew()
        assert await store.claim("agent", 100) == []
        later = await self.successor(store)
        portions = [await later.claim("agent", 2) for _ in range(4)]
        assert [len(portion) for portion in portions] == [2, 2, 1, 0]
        assert len({head.task_id for portion in portions for head, _ in portion}) == 5
        await later.renew()
        assert await later.claim("agent", 100) == []

    async def test_nothing_is_accepted_from_the_worker_of_before(self, store: Store) -> None:
        """Neither its events, nor their keys, nor that it dealt with a note."""
        await write(store, creation("t"))
        before = await head_of(store, "t")
        await write(store, note(before, b"{}"))
        (left,) = await store.notes(before.number)
        later = await self.successor(store)
        ((head, _),) = await later.claim("agent", 10)
        stale = addition(
            before,
            status("t", TaskState.COMPLETED),
            state=TaskState.COMPLETED,
            keys=[b"stale"],
            notes=[left.number],
        )
        for _ in range(2):
            (outcome,) = await submit(store, stale)
            assert outcome.is_refused
        assert await head_of(later, "t") == head
        assert await later.known(HERE, b"stale") is None
        assert await later.notes(head.number) == [left]
        assert len(await log_of(later, head)) == 1
        await write(later, addition(head, chunk("t", "x"), notes=[left.number]))
        assert await later.notes(head.number) == []

    async def test_what_was_let_go_in_good_order_has_no_holder(self, store: Store) -> None:
        """The next worker takes it and sees that no worker died on it."""
        await write(store, creation("t"))
        before = store.worker
        await store.close()
        await store.open()
        assert store.worker != before
        assert (await head_of(store, "t")).holder == 0
        ((head, held_by),) = await store.claim("agent", 10)
        assert (held_by, head.holder, head.fence) == (0, store.worker, 2)

    # Duties

    async def test_a_duty_has_one_worker_until_that_one_is_gone(self, store: Store) -> None:
        """It keeps it by asking again; each duty is by itself."""
        assert await store.lead(Duty.PRUNE)
        assert await store.lead(Duty.PRUNE)
        later = await self.successor(store)
        assert await later.lead(Duty.PRUNE)
        assert await later.lead(Duty.SEAL)
        assert await later.lead(Duty.PRUNE)

    async def test_a_duty_is_handed_over_in_good_order(self, store: Store) -> None:
        """The next worker has it at once."""
        assert await store.lead(Duty.PRUNE)
        await store.close()
        await store.open()
        assert await store.lead(Duty.PRUNE)

    # Notes

    async def test_notes_wait_for_the_holder_in_order(self, store: Store) -> None:
        """Each until a write of the task deals with it."""
        for task_id in ("t", "u"):
            await write(store, creation(task_id, state=TaskState.WORKING))
        head, other = await head_of(store, "t"), await head_of(store, "u")
        for body in (b"one", b"two", b"three"):
            assert await write(store, note(head, body)) == head.number
        await write(store, note(other, b"theirs"))
        notes = await store.notes(head.number)
        assert [left.body for left in notes] == [b"one", b"two", b"three"]
        assert [left.number for left in notes] == sorted({left.number for left in notes})
        assert await head_of(store, "t") == head
        await write(store, addition(head, chunk("t", "x"), notes=[notes[0].number]))
        assert await store.notes(head.number) == notes[1:]
        assert [left.body for left in await store.notes(other.number)] == [b"theirs"]
        assert await store.notes(other.number + 1000) == []

    async def test_a_note_carries_its_keys(self, store: Store) -> None:
        """The same message is left once; what is refused leaves nothing."""
        await write(store, creation("t", keys=[b"first"]))
        head = await head_of(store, "t")
        await write(store, note(head, b"{}", b"key"))
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        for keys in ([b"key"], [b"first"], [b"fresh", b"key"]):
            (outcome,) = await submit(store, note(head, b"again", *keys))
            assert outcome.is_refused
        assert await store.known(HERE, b"fresh") is None
        assert len(await store.notes(head.number)) == 1
        outcomes = await submit(store, *(note(head, b"{}", b"once") for _ in range(5)))
        assert [outcome.is_refused for outcome in outcomes].count(False) == 1
        assert len(await store.notes(head.number)) == 2

    async def test_nothing_is_left_for_a_task_that_ended_or_is_gone(self, store: Store) -> None:
        """No worker would read it, and its sender would not know."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        for state in (state for state in TaskState if state.is_terminal):
            await write(store, creation(state.value, state=state))
            head = await head_of(store, state.value)
            (outcome,) = await submit(store, note(head, b"{}", b"late"))
            assert outcome.is_refused
            assert await store.notes(head.number) == []
        ghost = msgspec.structs.replace(head, number=head.number + 1000)
        (outcome,) = await submit(store, note(ghost, b"{}", b"late"))
        assert outcome.is_refused
        assert await store.known(HERE, b"late") is None

    async def test_a_worker_finds_the_notes_of_what_it_holds(self, store: Store) -> None:
        """Each task once; not those of others, of another agent, nor of tasks that ended."""
        for state in TaskState:
            if not state.is_terminal:
                await write(store, creation(state.value, state=state))
                for body in (b"one", b"two"):
                    await write(store, note(await head_of(store, state.value), body))
        await write(store, creation("quiet"))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, note(await head_of(store, "foreign", ELSEWHERE[2]), b"{}"))
        noted = [head.task_id for head in await store.noted("agent")]
        assert sorted(noted) == sorted(s.value for s in TaskState if not s.is_terminal)
        working = await head_of(store, TaskState.WORKING.value)
        done = status(working.task_id, TaskState.FAILED)
        await write(store, addition(working, done, state=TaskState.FAILED))
        assert working.task_id not in {head.task_id for head in await store.noted("agent")}
        later = await self.successor(store)
        assert await later.noted("agent") == []

    async def test_a_task_that_waits_is_claimed_when_something_was_left_for_it(
        self, store: Store
    ) -> None:
        """The dead will not read it."""
        waiting = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
        for state in waiting:
            await write(store, creation(state.value, state=state))
            await write(store, creation(f"quiet {state.value}", state=state))
            await write(store, note(await head_of(store, state.value), b"{}"))
        later = await self.successor(store)
        claimed = await later.claim("agent", 10)
        assert {head.task_id for head, _ in claimed} == {state.value for state in waiting}
        assert {head.fence for head, _ in claimed} == {2}
        assert len(await later.noted("agent")) == 2

    # Deadlines

    async def test_a_task_is_overdue_from_its_deadline_until_it_ends(self, store: Store) -> None:
        """Whatever it does and whichever worker holds it; a task without one never is."""
        await write(store, creation("early", deadline=1000))
        await write(store, creation("late", state=TaskState.INPUT_REQUIRED, deadline=2000))
        await write(store, creation("never"))
        await write(store, creation("ended", state=TaskState.FAILED, deadline=1000))
        await write(store, creation("foreign", scope=ELSEWHERE[2], deadline=1000))

        async def overdue(at: int, of: Store) -> list[str]:
            heads = await of.overdue("agent", at)
            assert heads == [await head_of(of, head.task_id) for head in heads]
            return sorted(head.task_id for head in heads)

        assert await overdue(999, store) == []
        assert await overdue(1000, store) == ["early"]
        assert await overdue(END_OF_TIME, store) == ["early", "late"]
        later = await self.successor(store)
        assert await overdue(2000, later) == ["early", "late"]
        head = await head_of(later, "early")
        failed = status("early", TaskState.FAILED)
        await write(later, addition(head, failed, state=TaskState.FAILED, next_fence=2))
        assert await overdue(END_OF_TIME, later) == ["late"]
        assert await overdue(END_OF_TIME, later) == ["late"]
