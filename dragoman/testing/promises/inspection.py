"""What an operator's look into a store promises: it misses nothing, and changes nothing."""

import time
from contextlib import AbstractAsyncContextManager

import msgspec

from dragoman.model.record import Recorded
from dragoman.model.task import TaskState
from dragoman.stores.interface import Store, TaskRow
from dragoman.stores.interface.inspection import (
    HealthInspection,
    NoteFacts,
    OrphanFacts,
    TailFilter,
    TailPosition,
    TaskFilter,
    TaskInspection,
    TaskLine,
    last_events,
    whole_log,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    letter,
    log_of,
    note,
    opening,
    receiver,
    snapshot_of,
    status,
    submit,
    write,
)
from dragoman.testing.promises.suite import StoreSuite

Seen = list[tuple[str, int]]
EVERYTHING = TailFilter()


class InspectionPromises(StoreSuite):
    """Pages, logs and the tail of all tasks; facts about workers, receivers and what is late."""

    def reading(self, store: Store) -> AbstractAsyncContextManager[TaskInspection]:
        """Open the tasks of a store that is in use."""
        raise NotImplementedError

    def looking(self, store: Store) -> AbstractAsyncContextManager[HealthInspection]:
        """Look into a store that is in use; its lease counts as none."""
        raise NotImplementedError

    async def second(self, store: Store) -> Store:
        """Return another worker on the same data, beside the first."""
        raise NotImplementedError

    # Tasks

    async def test_a_page_has_the_tasks_whose_status_changed_last(self, store: Store) -> None:
        """Of all owners; filters and places as they are said."""
        for n in range(5):
            await write(store, creation(f"t{n}", at=1000 + n, context=f"c{n % 2}"))
        await write(store, creation("b", scope=ELSEWHERE[0], at=2000, state=TaskState.COMPLETED))
        await write(store, creation("o", scope=ELSEWHERE[2], at=1500))
        async with self.reading(store) as reading:
            lines = await reading.page(TaskFilter(), 10)
            assert [line.task_id for line in lines] == ["b", "o", "t4", "t3", "t2", "t1", "t0"]
            assert lines[0][3:6] == (TaskState.COMPLETED, 2000, 1)
            assert lines[0][6:] == ("agent", "", "bob")
            place = (lines[2].status_at, lines[2].number)
            assert await reading.page(TaskFilter(), 2, place) == lines[3:5]
            for wanted, ids in (
                (TaskFilter(agent="other"), ["o"]),
                (TaskFilter(context_id="c1"), ["t3", "t1"]),
                (TaskFilter(state=TaskState.COMPLETED), ["b"]),
                (TaskFilter(since=1004), ["b", "o", "t4"]),
            ):
                assert [line.task_id for line in await reading.page(wanted, 10)] == ids

    async def test_a_task_is_found_by_its_id_among_agents_and_owners(self, store: Store) -> None:
        """Each of those that share it."""
        for scope in (HERE, *ELSEWHERE):
            await write(store, creation("t", scope=scope))
        async with self.reading(store) as reading:
            assert len(await reading.find("t")) == 4
            (line,) = await reading.find("t", "other")
            assert (line.agent, line.owner) == ("other", "alice")
            assert await reading.find("u") == []

    async def test_a_log_is_read_whole_and_from_its_end(self, store: Store) -> None:
        """However long it is, and with the snapshot that a task is folded from."""
        chunks = [chunk("t", f"{n}") for n in range(700)]
        snapshot = snapshot_of(opening("t"), 701)
        await write(store, creation("t", *chunks, snapshot=snapshot))
        head = await head_of(store, "t")
        async with self.reading(store) as reading:
            (line,) = await reading.find("t")
            found = await whole_log(reading, line)
            assert [one.seq for one in found] == list(range(1, 702))
            some = await log_of(store, head)
            assert bodies(found[: len(some)]) == bodies(some)
            assert [one.seq for one in await last_events(reading, line, 3)] == [699, 700, 701]
            assert [one.seq for one in await last_events(reading, line, 1000)] == list(
                range(1, 702)
            )
            some = await reading.read(line.number, after=3, limit=2)
            assert [one.seq for one in some] == [4, 5]
            task = await reading.snapshot(line.number)
            assert task is not None and (task.seq, task.body) == (701, snapshot.reading().body)

    async def test_a_reader_of_all_tasks_misses_nothing_of_two_workers(self, store: Store) -> None:
        """Whichever of them made the task with the higher number first."""
        other = await self.second(store)
        async with self.reading(store) as reading:
            position = await reading.here()
            version = await reading.version()
            seen: Seen = []
            # The first task of a worker may come after many of another.
            await write(store, creation("s0"))
            position = await follow(reading, position, seen)
            assert await reading.version() != version
            for n in range(3):
                await write(other, creation(f"o{n}", state=TaskState.COMPLETED))
            position = await follow(reading, position, seen)
            for n in range(1, 4):
                await write(store, creation(f"s{n}", state=TaskState.COMPLETED))
                await write(other, creation(f"p{n}"))
                position = await follow(reading, position, seen)
            head = await head_of(store, "s0")
            await write(store, addition(head, chunk("s0", "x"), chunk("s0", "y")))
            position = await follow(reading, position, seen)
        made = ["s0", "o0", "o1", "o2", "s1", "p1", "s2", "p2", "s3", "p3"]
        assert sorted(seen) == sorted([*((one, 1) for one in made), ("s0", 2), ("s0", 3)])

    async def test_what_came_before_a_reader_began_is_not_shown_to_it(self, store: Store) -> None:
        """Also where a worker left some of its numbers unused when it died."""
        await write(store, creation("old"))
        other = await self.second(store)
        await write(other, creation("older", state=TaskState.COMPLETED))
        async with self.reading(store) as reading:
            position = await reading.here()
            seen: Seen = []
            await write(store, creation("new"))
            later = await self.successor(store)
            await write(later, creation("later"))
            await write(other, creation("other"))
            position = await follow(reading, position, seen)
            assert sorted(seen) == [("later", 1), ("new", 1), ("other", 1)]
            assert await reading.follow(position, EVERYTHING, 10) == ([], position)

    async def test_a_reader_goes_on_from_a_position_in_words_in_any_portion(
        self, store: Store
    ) -> None:
        """One event at a time, each position said and read again; what it does not want is not
        shown later either."""
        other = await self.second(store)
        async with self.reading(store) as reading:
            start = await reading.here()
            for n in range(4):
                await write(store, creation(f"a{n}", chunk(f"a{n}", "x")))
                await write(other, creation(f"b{n}", state=TaskState.COMPLETED))
            seen: Seen = []
            position = start
            while True:
                events, position = await reading.follow(position, EVERYTHING, 1)
                if not events:
                    break
                seen += places(events)
                position = TailPosition.parse(str(position))
            wanted = [*((f"a{n}", seq) for n in range(4) for seq in (1, 2))]
            assert sorted(seen) == sorted([*wanted, *((f"b{n}", 1) for n in range(4))])
            events, position = await reading.follow(start, TailFilter(task_id="a1"), 100)
            assert places(events) == [("a1", 1), ("a1", 2)]
            assert await reading.follow(position, EVERYTHING, 100) == ([], position)

    async def test_a_reader_of_one_agent_sees_its_tasks_alone(self, store: Store) -> None:
        """From the same position."""
        async with self.reading(store) as reading:
            start = await reading.here("other")
            await write(store, creation("t"))
            await write(store, creation("o", scope=ELSEWHERE[2]))
            events, _ = await reading.follow(start, TailFilter(agent="other"), 10)
            assert places(events) == [("o", 1)]

    # Facts

    async def test_workers_are_told_by_whether_they_live(self, store: Store) -> None:
        """A dead one until the others have taken note of it, at most."""
        async with self.looking(store) as look:
            assert [worker[:2] for worker in await look.workers()] == [(store.worker, "live")]
            before = store.worker
            later = await self.successor(store)
            states = {worker.number: worker.state for worker in await look.workers()}
            assert states[later.worker] == "live"
            assert states.get(before, "dead") in ("dead", "frozen")

    async def test_what_is_left_undone_is_counted(self, store: Store) -> None:
        """Tasks, notes, deadlines; what a living worker holds is not left."""
        async with self.looking(store) as look:
            assert (await look.tasks(), await look.newest()) == (0, 0)
            await write(store, creation("t", at=5, deadline=1))
            await write(store, creation("done", at=9, state=TaskState.COMPLETED))
            await write(store, note(await head_of(store, "t"), b"{}"))
            assert (await look.tasks(), await look.newest()) == (2, 9)
            assert await look.orphans() == OrphanFacts(0, [], 1)
            assert await look.notes() == NoteFacts(0, 0, 1)
            assert await look.overdue() == 1

    async def test_receivers_are_counted_by_what_keeps_their_posts(self, store: Store) -> None:
        """Failing ones, and those that were given up; letters with their receivers."""
        ids = ("fails", "ended", "fine")
        configs = [receiver(id) for id in ids]
        number = await write(store, creation("t", state=TaskState.COMPLETED, pushes=configs))
        pushes = {push.config.id: push for push in await store.pushes(number)}
        since = int(time.time() * 1000)
        failing = msgspec.structs.replace(pushes["fails"], tries=1, failing_since=since)
        given_up = msgspec.structs.replace(pushes["ended"], is_open=False, failing_since=since)
        await store.settle(failing)
        await store.settle(given_up, letter(given_up, 1, 77))
        async with self.looking(store) as look:
            facts = await look.receivers()
            assert (facts.failing, facts.given_up) == (1, 1)
            shown = await look.pushes()
            assert [(push.config.id, last) for push, last in shown] == [(id, 1) for id in ids]
            assert [push.scope for push, _ in shown] == [HERE] * 3
            (dead,) = await look.letters()
            assert (dead.config_id, dead.seq, dead.at) == ("ended", 1, 77)
            assert await look.dead_letters() == (1, 77)
            # Long after: only what a living worker should have posted to.
            assert await look.stuck(since + 1_000_000) == 2
            assert await look.stuck(1) == 0

    async def test_a_look_changes_nothing(self, store: Store) -> None:
        """Neither who holds a task nor what a worker may write."""
        await submit(store, *(creation(f"t{n}") for n in range(3)))
        before = [await head_of(store, f"t{n}") for n in range(3)]
        async with self.reading(store) as reading, self.looking(store) as look:
            await reading.follow(TailPosition(0, {}), EVERYTHING, 100)
            await look.workers()
            await look.orphans()
            after = [await head_of(store, f"t{n}") for n in range(3)]
            await end(store, before[0])
        assert after == before


def bodies(events: list[Recorded]) -> list[tuple[int, bytes]]:
    """Return events by their places."""
    return [(one.seq, one.body) for one in events]


def places(events: list[tuple[TaskLine, Recorded]]) -> Seen:
    """Return which events of which tasks they are."""
    return [(line.task_id, one.seq) for line, one in events]


async def follow(reading: TaskInspection, position: TailPosition, seen: Seen) -> TailPosition:
    """Read on to the present."""
    events, position = await reading.follow(position, EVERYTHING, 1000)
    seen += places(events)
    return position


async def end(store: Store, head: TaskRow) -> None:
    """Write the last event of a task."""
    done = status(head.task_id, TaskState.COMPLETED)
    await write(store, addition(head, done, state=TaskState.COMPLETED))
