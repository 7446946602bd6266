"""What a write promises: whole or not at all, one writer per log, one meaning per key."""

import msgspec

from dragoman.model.identity import ContextId, TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import (
    KeepReply,
    Known,
    Query,
    Store,
    TaskPosition,
    TaskRow,
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
    status,
    submit,
    write,
)
from dragoman.testing.promises.suite import StoreSuite


class WritePromises(StoreSuite):
    """Create, append, keep a reply; and that scopes do not touch."""

    # Writes

    async def test_what_was_created_can_be_read(self, store: Store) -> None:
        """A created task has its row, its log and its key."""
        working = status("t", TaskState.WORKING)
        first = creation("t", working, state=TaskState.WORKING, at=1234, keys=[b"key"])
        number = await write(store, first)
        head = await head_of(store, "t")
        assert head == TaskRow(
            number,
            TaskId("t"),
            ContextId("c"),
            HERE,
            TaskPosition(TaskState.WORKING, 1234, 2),
            fence=1,
            holder=store.worker,
        )
        assert [recorded.event for recorded in await log_of(store, head)] == [
            opening("t"),
            working,
        ]
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        assert await store.snapshot(number) is None

    async def test_positions_have_no_gaps_over_many_appends(self, store: Store) -> None:
        """Appends of any size continue the log where it ended."""
        await write(store, creation("t"))
        for size in (1, 3, 70, 1, 200):
            head = await head_of(store, "t")
            chunks = [chunk("t", f"{size}.{n}") for n in range(size)]
            assert await write(store, addition(head, *chunks)) == head.number
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.seq for recorded in log] == list(range(1, 277))

    async def test_bodies_come_back_byte_for_byte(self, store: Store) -> None:
        """What is read has the bytes that were written."""
        text = 'a "quoted" ütf-8 \N{GRINNING FACE} line\n\t\x7f'
        first = creation("t", chunk("t", text, append=False))
        await write(store, first)
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.body for recorded in log] == [recorded.body for recorded in first.events]

    async def test_an_append_is_refused_once_the_log_moved_on(self, store: Store) -> None:
        """Of two writers with one view of the log, the first wins and the second leaves nothing."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "first", append=False)))
        stale = addition(head, chunk("t", "second", append=False), keys=[b"stale"])
        (outcome,) = await submit(store, stale)
        assert outcome.is_refused
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.event for recorded in log[1:]] == [chunk("t", "first", append=False)]
        assert await store.known(HERE, b"stale") is None

    async def test_of_two_appends_at_the_same_moment_one_wins(self, store: Store) -> None:
        """The race is decided once, and the log holds the winner's events only."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        rivals = [
            addition(head, status("t", TaskState.COMPLETED), state=TaskState.COMPLETED),
            addition(head, status("t", TaskState.CANCELED), state=TaskState.CANCELED),
            addition(head, status("t", TaskState.FAILED), state=TaskState.FAILED),
        ]
        outcomes = await submit(store, *rivals)
        winners = [rival for rival, o in zip(rivals, outcomes, strict=True) if o.error is None]
        assert len(winners) == 1
        assert [outcome.is_refused for outcome in outcomes].count(True) == 2
        after = await head_of(store, "t")
        assert after.standing == winners[0].standing
        log = await log_of(store, after)
        assert [recorded.body for recorded in log[1:]] == [r.body for r in winners[0].events]
        found = await store.page(Query(HERE, 10, state=after.standing.state))
        assert found.total == 1

    async def test_a_raised_fence_shuts_the_old_writer_out(self, store: Store) -> None:
        """After a take-over nothing is accepted under the old fence, wherever the log ends."""
        await write(store, creation("t"))
        old = await head_of(store, "t")
        await write(store, addition(old, chunk("t", "new", append=False), next_fence=2))
        current = await head_of(store, "t")
        assert current.fence == 2
        (outcome,) = await submit(store, addition(current, chunk("t", "old"), fence=1))
        assert outcome.is_refused
        (outcome,) = await submit(store, addition(current, chunk("t", "future"), fence=3))
        assert outcome.is_refused
        await write(store, addition(current, chunk("t", "newer")))
        log = await log_of(store, await head_of(store, "t"))
        assert len(log) == 3

    async def test_an_append_to_no_task_is_refused(self, store: Store) -> None:
        """A number that was never given has no log."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        ghost = msgspec.structs.replace(head, number=head.number + 1000)
        (outcome,) = await submit(store, addition(ghost, chunk("t", "x", append=False)))
        assert outcome.is_refused
        assert await store.read(ghost.number, after=0, limit=10) == []

    async def test_an_id_that_exists_is_refused_and_nothing_of_the_write_is_there(
        self, store: Store
    ) -> None:
        """The first task of an id stays as it is."""
        await write(store, creation("t", keys=[b"one"]))
        twin = creation("t", chunk("t", "twin", append=False), context="other", keys=[b"two"])
        (outcome,) = await submit(store, twin)
        assert outcome.is_refused
        head = await head_of(store, "t")
        assert head.context_id == "c"
        assert len(await log_of(store, head)) == 1
        assert await store.known(HERE, b"two") is None
        assert (await store.page(Query(HERE, 10))).total == 1

    async def test_a_used_key_is_refused_and_nothing_of_the_write_is_there(
        self, store: Store
    ) -> None:
        """A key stands for one thing: the first."""
        await write(store, creation("t", keys=[b"key"]))
        for late in (creation("u", keys=[b"fresh", b"key"]), KeepReply(HERE, b"key", b"{}")):
            (outcome,) = await submit(store, late)
            assert outcome.is_refused
        head = await head_of(store, "t")
        (outcome,) = await submit(store, addition(head, chunk("t", "x"), keys=[b"new", b"key"]))
        assert outcome.is_refused
        assert await store.head(HERE, TaskId("u")) is None
        assert await store.known(HERE, b"fresh") is None
        assert await store.known(HERE, b"new") is None
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        assert (await head_of(store, "t")) == head
        assert (await store.page(Query(HERE, 10))).total == 1

    async def test_an_append_may_bring_keys(self, store: Store) -> None:
        """A further message's key leads to the task it was given to."""
        await write(store, creation("t", keys=[b"one"]))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "x", append=False), keys=[b"two", b"three"]))
        for key in (b"one", b"two", b"three"):
            assert await store.known(HERE, key) == Known(task_id=TaskId("t"))

    async def test_a_reply_is_kept_under_its_key(self, store: Store) -> None:
        """An answer without a task comes back as it was, and makes no task."""
        await write(store, KeepReply(HERE, b"key", b'{"said":"hi"}'))
        assert await store.known(HERE, b"key") == Known(reply=b'{"said":"hi"}')
        assert (await store.page(Query(HERE, 10))).total == 0

    async def test_a_refused_write_harms_no_other_of_its_group(self, store: Store) -> None:
        """Writes of one moment share a fate only with themselves, also in scopes never seen."""
        await write(store, creation("there", keys=[b"used"]))
        there = await head_of(store, "there")
        await write(store, addition(there, chunk("there", "x", append=False)))
        strangers = ELSEWHERE[:2]
        group = [
            creation("a"),
            creation("a1", scope=strangers[0], keys=[b"used"]),
            creation("a2", scope=strangers[0], keys=[b"own"]),
            creation("there", keys=[b"k1"]),
            addition(there, chunk("there", "late")),
            KeepReply(HERE, b"used", b"{}"),
            KeepReply(HERE, b"reply", b"{}"),
            creation("b", keys=[b"k2"]),
            creation("b1", scope=strangers[1]),
        ]
        outcomes = await submit(store, *group)
        assert [outcome.is_refused for outcome in outcomes] == [
            *(False, False, False, True, True, True, False, False, False),
        ]
        assert all(outcome.error is None or outcome.is_refused for outcome in outcomes)
        # A scope made later must not find itself in the room of one made in that group.
        await write(store, creation("c1", scope=ELSEWHERE[2]))
        expected = {
            HERE: {"there", "a", "b"},
            strangers[0]: {"a1", "a2"},
            strangers[1]: {"b1"},
            ELSEWHERE[2]: {"c1"},
        }
        for scope, ids in expected.items():
            found = await store.page(Query(scope, 10))
            assert {head.task_id for head in found.heads} == ids
            assert found.total == len(ids)
            for task_id in ids:
                head = await head_of(store, task_id, scope)
                assert head.scope == scope
                assert len(await log_of(store, head)) == head.standing.last_seq
        assert await store.known(strangers[0], b"own") == Known(task_id=TaskId("a2"))
        assert await store.known(HERE, b"k1") is None
        assert len({outcome.number for outcome in outcomes if outcome.number}) == 5

    async def test_many_writers_at_once_each_get_their_own_log(self, store: Store) -> None:
        """A group of many tasks mixes nothing."""
        ids = [f"t{n}" for n in range(150)]
        created = await submit(store, *(creation(i, chunk(i, i, append=False)) for i in ids))
        assert len({outcome.number for outcome in created}) == len(ids)
        heads = [await head_of(store, task_id) for task_id in ids]
        assert [head.number for head in heads] == [outcome.number for outcome in created]
        more = [addition(head, chunk(head.task_id, "more")) for head in heads]
        assert all(outcome.error is None for outcome in await submit(store, *more))
        for task_id in ids:
            log = await log_of(store, await head_of(store, task_id))
            assert [recorded.event for recorded in log] == [
                opening(task_id),
                chunk(task_id, task_id, append=False),
                chunk(task_id, "more"),
            ]

    # Scopes

    async def test_a_foreign_scope_finds_nothing(self, store: Store) -> None:
        """Neither the task, nor its key, nor its place in a list."""
        await write(store, creation("t", keys=[b"key"]))
        for scope in ELSEWHERE:
            assert await store.head(scope, TaskId("t")) is None
            assert await store.known(scope, b"key") is None
            found = await store.page(Query(scope, 10))
            assert (found.heads, found.total) == ([], 0)

    async def test_ids_and_keys_are_free_in_every_scope(self, store: Store) -> None:
        """The same id and key may exist once per scope, each with its own log."""
        scopes = [HERE, *ELSEWHERE]
        for scope in scopes:
            own = chunk("t", scope.agent + scope.tenant + scope.owner, append=False)
            await write(store, creation("t", own, scope=scope, keys=[b"key"]))
        seen: set[bytes] = set()
        for scope in scopes:
            head = await head_of(store, "t", scope)
            assert head.scope == scope
            seen.add((await log_of(store, head))[1].body)
            assert (await store.page(Query(scope, 10))).total == 1
        assert len(seen) == len(scopes)
