"""What a read promises: every acknowledged write, from any position."""

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import Event
from dragoman.model.identity import Caller, ContextId, Scope, TaskId
from dragoman.model.message import Part
from dragoman.model.record import decode_task, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import (
    Known,
    Query,
    Store,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    opening,
    snapshot_of,
    status,
    submit,
    write,
)
from dragoman.testing.promises.suite import StoreSuite


class ReadPromises(StoreSuite):
    """Logs, snapshots, keys, and what a log does not show."""

    # Reads

    async def test_what_a_principal_stores_is_counted_over_its_agents(self, store: Store) -> None:
        """What others store, of whichever tenant, is not counted."""
        assert await store.stored(HERE.principal) == 0
        await write(store, creation("t"))
        one = await store.stored(HERE.principal)
        assert one >= len(encode(opening("t")))
        await write(store, addition(await head_of(store, "t"), chunk("t", "x" * 1000)))
        both = await store.stored(HERE.principal)
        assert both > one + 1000
        for scope in ELSEWHERE:
            await write(store, creation("t", scope=scope))
        # The task of the other agent is the same principal's.
        assert await store.stored(HERE.principal) == both + one
        for scope in ELSEWHERE[:2]:
            assert await store.stored(scope.principal) == one
        # In whichever tenant one wrote whose credential is for none.
        free = Caller("free", authenticated=True)
        for count, tenant in enumerate(("", "acme", "globex"), 1):
            await write(store, creation("t", scope=Scope.of("agent", tenant, free)))
            assert await store.stored(free.principal) == one * count

    async def test_ids_and_names_are_kept_as_they_are_said(self, store: Store) -> None:
        """Whatever peers may use as an id, and issuers as a name; nothing in them means anything
        to the store, and two that differ in one character are two."""
        ids = ["'; DROP TABLE tasks; --", "%", "_", "\\", "\\x00", "{}", "A", "a", "~" * 256]
        owners = ["", "é", "e\u0301", "日本", "🦜", "{'a': 1}", "o" * 1000]
        for owner in owners:
            scope = Scope("agent", "tenant", owner)
            keys = [id.encode() for id in ids]
            await submit(
                store,
                *(
                    creation(id, scope=scope, context=id, keys=[key])
                    for id, key in zip(ids, keys, strict=True)
                ),
            )
        for owner in owners:
            scope = Scope("agent", "tenant", owner)
            for id in ids:
                head = await head_of(store, id, scope)
                assert (head.task_id, head.context_id, head.scope) == (id, id, scope)
                page = await store.page(Query(scope, 10, context_id=ContextId(id)))
                assert [one.number for one in page.heads] == [head.number]
                assert await store.known(scope, id.encode()) == Known(TaskId(id))
            assert (await store.page(Query(scope, 1))).total == len(ids)

    async def test_a_log_is_read_from_any_position_in_any_portion(self, store: Store) -> None:
        """`after` and `limit` cut the log exactly."""
        chunks = [chunk("t", str(n)) for n in range(30)]
        await write(store, creation("t", *chunks))
        number = (await head_of(store, "t")).number
        for after in (0, 1, 15, 30, 31, 32, 5000):
            for limit in (1, 7, 100):
                read = await store.read(number, after=after, limit=limit)
                expected = list(range(after + 1, 32))[:limit]
                assert [recorded.seq for recorded in read] == expected

    async def test_many_logs_are_read_in_one_go(self, store: Store) -> None:
        """Each from its own position, in the order that was asked for; none has nothing."""
        for task_id in ("t", "u"):
            chunks = [chunk(task_id, f"{n}", append=False) for n in range(5)]
            await write(store, creation(task_id, *chunks))
        first, second = await head_of(store, "t"), await head_of(store, "u")
        places = [(second.number, 3), (first.number, 0), (second.number + 99, 0), (first.number, 6)]
        found = await store.read_many(places, limit=4)
        assert [[one.seq for one in events] for events in found] == [
            [4, 5, 6],
            [1, 2, 3, 4],
            [],
            [],
        ]
        alone = await store.read(second.number, after=3, limit=4)
        assert [one.body for one in found[0]] == [one.body for one in alone]

    async def test_a_read_without_artifacts_is_empty_only_at_the_end(self, store: Store) -> None:
        """However large what it leaves out is."""
        await write(store, creation("t", state=TaskState.WORKING))
        head = await head_of(store, "t")
        await write(store, addition(head, status("t", TaskState.WORKING), chunk("t", "x" * 999)))
        head = await head_of(store, "t")
        await write(store, addition(head, status("t", TaskState.WORKING)))
        found = await store.read(head.number, after=2, limit=10, artifacts=False, size=100)
        assert [recorded.seq for recorded in found] == [4]
        assert await store.read(head.number, after=4, limit=10, artifacts=False, size=100) == []

    async def test_the_ends_of_many_logs_are_told_at_once(self, store: Store) -> None:
        """By their numbers; of tasks that are gone nothing is said."""
        await submit(store, *(creation(f"t{n}") for n in range(3)))
        heads = [await head_of(store, f"t{n}") for n in range(3)]
        await write(store, addition(heads[1], chunk("t1", "x"), chunk("t1", "y")))
        numbers = [head.number for head in heads]
        gone = max(numbers) + 1000
        assert await store.last_seqs([*numbers, gone]) == dict(zip(numbers, (1, 3, 1), strict=True))
        assert await store.last_seqs([]) == {}

    async def test_a_log_is_read_without_its_chunks(self, store: Store) -> None:
        """`artifacts=False` leaves out chunks, keeps positions, and counts what it returns."""
        events: list[Event] = []
        for n in range(10):
            events += [chunk("t", str(n)), status("t", TaskState.WORKING)]
        await write(store, creation("t", *events))
        number = (await head_of(store, "t")).number
        read = await store.read(number, after=0, limit=100, artifacts=False)
        assert [recorded.seq for recorded in read] == list(range(1, 22, 2))
        read = await store.read(number, after=3, limit=2, artifacts=False)
        assert [recorded.seq for recorded in read] == [5, 7]

    async def test_the_logs_of_neighbours_do_not_touch(self, store: Store) -> None:
        """Reading past the end of one log never reaches the next."""
        await submit(store, creation("a"), creation("b"), creation("c"))
        for task_id in "abc":
            head = await head_of(store, task_id)
            assert [r.event for r in await log_of(store, head)] == [opening(task_id)]
            assert await store.read(head.number, after=10**6, limit=10) == []

    async def test_a_snapshot_is_whole_or_without_artifacts(self, store: Store) -> None:
        """The last one kept is returned, at its position."""
        artifact = Artifact("a", [Part(text="x"), Part(data={"n": 1})], name="result")
        asked = TaskStatus(TaskState.INPUT_REQUIRED, None, stamp(0))
        task = Task(
            TaskId("t"),
            ContextId("c"),
            asked,
            artifacts=[artifact],
            history=opening("t").history,
        )
        await write(
            store,
            creation("t", state=TaskState.INPUT_REQUIRED, snapshot=snapshot_of(opening("t"), 1)),
        )
        head = await head_of(store, "t")
        bare = await store.snapshot(head.number)
        assert bare is not None and (bare.seq, bare.task) == (1, opening("t"))
        await write(store, addition(head, chunk("t", "x"), snapshot=snapshot_of(task, 2)))
        whole = await store.snapshot(head.number)
        assert whole is not None and (whole.seq, decode_task(whole.body)) == (2, task)
        light = await store.snapshot(head.number, artifacts=False)
        assert light is not None and light.seq == 2
        assert decode_task(light.body) == Task(task.id, task.context_id, asked, [], task.history)

    async def test_a_write_without_a_snapshot_keeps_the_last_one(self, store: Store) -> None:
        """A task that goes on does not lose its resting point."""
        await write(store, creation("t", snapshot=snapshot_of(opening("t"), 1)))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "x", append=False)))
        reading = await store.snapshot(head.number)
        assert reading is not None and reading.seq == 1

    async def test_a_task_at_rest_is_read_with_its_position(self, store: Store) -> None:
        """Only while its log ends where the snapshot was kept, and only in its scope."""
        assert await store.at_rest(HERE, TaskId("t")) is None
        await write(store, creation("t", snapshot=snapshot_of(opening("t"), 1)))
        head = await head_of(store, "t")
        found = await store.at_rest(HERE, TaskId("t"))
        assert found is not None and found[2] is not None
        assert (*found[:2], found[2].seq, found[2].task) == (head.number, 1, 1, opening("t"))
        for scope in ELSEWHERE:
            assert await store.at_rest(scope, TaskId("t")) is None
        await write(store, addition(head, chunk("t", "x", append=False)))
        head = await head_of(store, "t")
        assert await store.at_rest(HERE, TaskId("t")) == (head.number, 2, None)
        await write(store, creation("u"))
        number = (await head_of(store, "u")).number
        assert await store.at_rest(HERE, TaskId("u")) == (number, 1, None)

    async def test_a_key_is_known_once_its_write_is(self, store: Store) -> None:
        """A look-up after `done` finds it, however many keys there are."""
        keys = [f"{n}".encode().rjust(16, b"k") for n in range(300)]
        for first in range(0, 300, 50):
            several = keys[first : first + 50]
            await submit(store, *(creation(key.decode(), keys=[key]) for key in several))
            for key in several:
                assert await store.known(HERE, key) == Known(task_id=TaskId(key.decode()))
        assert await store.known(HERE, b"never used".rjust(16)) is None

    async def test_there_is_a_secret(self, store: Store) -> None:
        """Long enough to seal with."""
        await store.prepare()
        assert len(store.secret) >= 16

    # What logs do not show

    async def test_what_is_withheld_is_kept_beside_the_log_until_a_write_forgets_it(
        self, store: Store
    ) -> None:
        """Each with its event or not at all, also for the worker that takes the task over."""
        for task_id in ("t", "u"):
            await write(store, creation(task_id, state=TaskState.WORKING))
        head, other = await head_of(store, "t"), await head_of(store, "u")
        assert await store.withheld(head.number) == {}
        said = addition(head, chunk("t", "x", append=False), chunk("t", "y"))
        said = msgspec.structs.replace(said, withheld=[(2, b'{"a":1}'), (3, b"\x00any\xff")])
        await write(store, said)
        (outcome,) = await submit(store, msgspec.structs.replace(said, withheld=[(2, b"lost")]))
        assert outcome.is_refused
        await write(
            store,
            msgspec.structs.replace(
                addition(other, chunk("u", "z", append=False)), withheld=[(2, b"other")]
            ),
        )
        later = await self.successor(store)
        assert await later.withheld(head.number) == {2: b'{"a":1}', 3: b"\x00any\xff"}
        head = await head_of(later, "t")
        last = addition(head, status("t", TaskState.COMPLETED), state=TaskState.COMPLETED)
        last = msgspec.structs.replace(last, next_fence=head.fence + 1, forgets=True)
        await write(later, last)
        assert await later.withheld(head.number) == {}
        assert await later.withheld(other.number) == {2: b"other"}

    async def test_a_store_tells_how_large_it_is(self, store: Store) -> None:
        """Never less than nothing, and what is left only where that is known."""
        await write(store, creation("t"))
        size = await store.size()
        assert size.used >= 0 and (size.free is None or size.free > 0)
