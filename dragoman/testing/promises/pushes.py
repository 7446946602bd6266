"""What receivers are promised: one worker delivers, and no event is lost silently."""

import msgspec

from dragoman.errors import StoreConflict
from dragoman.model.identity import TaskId
from dragoman.model.push import PushConfig
from dragoman.stores.interface import (
    DeadLetter,
    Push,
    Store,
)
from dragoman.testing.promises.samples import (
    ELSEWHERE,
    HERE,
    chunk,
    creation,
    letter,
    receiver,
    write,
)
from dragoman.testing.promises.suite import StoreSuite

# Milliseconds, as the time of day is.
NOW = 1_700_000_000_000


class PushPromises(StoreSuite):
    """Receivers, how far each is, and dead letters."""

    async def test_receivers_are_kept_with_their_task(self, store: Store) -> None:
        """From its first write or later, in the order of their ids, with all that was said."""
        configs = [receiver("c"), receiver("a")]
        number = await write(store, creation("t", chunk("t", "x"), pushes=configs))
        added = await store.put_push(number, receiver("b"), 2, most=3)
        assert added is not None
        assert await store.put_push(number, receiver("d"), 2, most=3) is None
        assert added == Push(added.number, number, HERE, receiver("b"), cursor=2)
        kept_ones = await store.pushes(number)
        assert [push.config for push in kept_ones] == [receiver("a"), receiver("b"), receiver("c")]
        assert [push.cursor for push in kept_ones] == [0, 2, 0]
        assert len({push.number for push in kept_ones}) == 3
        other = await write(store, creation("u"))
        assert await store.pushes(other) == []
        await store.drop_push(number, "a")
        await store.drop_push(number, "unknown")
        assert [push.config.id for push in await store.pushes(number)] == ["b", "c"]

    async def test_a_receiver_of_the_same_id_goes_on_where_the_other_was(
        self, store: Store
    ) -> None:
        """Under a number of its own: what the first still has to say is void."""
        number = await write(store, creation("t", pushes=[receiver("a")]))
        (first,) = await store.pushes(number)
        first = msgspec.structs.replace(first, cursor=1, tries=4, problem="a 500")
        await store.settle(first, letter(first, 1, 5))
        moved = PushConfig("https://example.net/", "a", TaskId("t"))
        second = await store.put_push(number, moved, 9, most=1)
        assert second is not None and second.number > first.number
        assert await store.pushes(number) == [Push(second.number, number, HERE, moved, cursor=1)]
        assert [(dead.push, dead.seq) for dead in await store.dead_letters(10)] == [
            (second.number, 1)
        ]
        assert await _refuses_to_settle(store, first)
        await store.drop_push(number, "a")
        assert await store.dead_letters(10) == []
        assert await _refuses_to_settle(store, second)
        third = await store.put_push(number, moved, 1, most=1)
        assert third is not None and third.number > second.number and third.cursor == 1

    async def test_how_far_a_receiver_is_is_remembered(self, store: Store) -> None:
        """Every field, and for the next worker too."""
        number = await write(store, creation("t", pushes=[receiver("a"), receiver("b")]))
        push = (await store.pushes(number))[0]
        push = msgspec.structs.replace(
            push, cursor=7, tries=3, due_at=99, failing_since=11, problem="a 500"
        )
        await store.settle(push)
        assert (await store.pushes(number))[0] == push
        later = await self.successor(store)
        assert (await later.pushes(number))[0] == push
        claimed = {taken.number: taken for taken in await later.claim_pushes(10)}
        assert claimed[push.number] == push

    async def test_receivers_are_served_by_one_worker_at_a_time(self, store: Store) -> None:
        """The dead one's open receivers are claimed, once; only the holder may settle."""
        number = await write(store, creation("t", pushes=[receiver(c) for c in "abcd"]))
        done = (await store.pushes(number))[0]
        await store.settle(msgspec.structs.replace(done, is_open=False))
        assert await store.claim_pushes(10) == []
        later = await self.successor(store)
        left = (await later.pushes(number))[1:]
        assert await _refuses_to_settle(later, left[0])
        portions = [await later.claim_pushes(2) for _ in range(3)]
        assert [len(portion) for portion in portions] == [2, 1, 0]
        assert {push.config.id for portion in portions for push in portion} == set("bcd")
        ahead = msgspec.structs.replace(left[0], cursor=5)
        await later.settle(ahead)
        if later is not store:
            assert await _refuses_to_settle(store, left[0], letter(left[0], 1, 5))
        assert (await later.pushes(number))[1] == ahead
        assert await later.dead_letters(10) == []

    async def test_receivers_let_go_in_good_order_are_claimed(self, store: Store) -> None:
        """By the next worker."""
        await write(store, creation("t", pushes=[receiver("a")]))
        await store.close()
        await store.open()
        assert len(await store.claim_pushes(10)) == 1

    async def test_a_receiver_that_was_given_up_may_be_opened_again(self, store: Store) -> None:
        """It goes on where it was, for the worker that claims it; letters go one by one."""
        number = await write(store, creation("t", pushes=[receiver("a"), receiver("b")]))
        first, second = await store.pushes(number)
        given_up = msgspec.structs.replace(
            first, cursor=3, tries=9, failing_since=5, is_open=False, problem="a 500"
        )
        for seq in (1, 2):
            await store.settle(given_up, letter(first, seq, seq))
        await store.drop_letter(first.number, 1)
        await store.drop_letter(first.number, 7)
        assert [dead.seq for dead in await store.dead_letters(10)] == [2]
        await store.reopen_push(first.number)
        await store.reopen_push(second.number)
        opened = Push(first.number, number, HERE, receiver("a"), cursor=3)
        assert await store.claim_pushes(10) == [opened]
        assert await store.pushes(number) == [opened, second]

    async def test_receivers_of_all_tasks_are_listed_latest_first(self, store: Store) -> None:
        """Page by page, without their secrets; or only those that do not get their posts."""
        numbers = [
            await write(store, creation("t", pushes=[receiver("a"), receiver("b")])),
            await write(store, creation("u", scope=ELSEWHERE[0], pushes=[receiver("a", "u")])),
        ]
        found = await store.receivers(limit=10)
        assert [push.task for push, _ in found] == [numbers[1], numbers[0], numbers[0]]
        assert [last for _, last in found] == [1, 1, 1] and found[0][0].scope == ELSEWHERE[0]
        assert "s3cret" not in str(msgspec.to_builtins([push for push, _ in found]))
        assert all(not push.config.token for push, _ in found)
        for n, (push, _) in enumerate(found, 1):
            assert await store.receivers(limit=10, before=push.number) == found[n:]
        assert await store.receivers(limit=2) == found[:2]
        assert await store.receivers(limit=10, failing=True) == []
        first, second = await store.pushes(numbers[0])
        (third,) = await store.pushes(numbers[1])
        await store.settle(msgspec.structs.replace(first, failing_since=5))
        await store.settle(
            msgspec.structs.replace(second, cursor=1, failing_since=5, is_open=False)
        )
        await store.settle(msgspec.structs.replace(third, cursor=0, failing_since=5, is_open=False))
        failing = await store.receivers(limit=10, failing=True)
        assert [push.number for push, _ in failing] == [third.number, first.number]

    async def test_what_receivers_never_took_is_listed_latest_first(self, store: Store) -> None:
        """One entry per event and receiver, until the receiver is forgotten."""
        number = await write(store, creation("t", pushes=[receiver("a"), receiver("b")]))
        first, second = await store.pushes(number)
        letters = [
            letter(first, 1, NOW + 30),
            letter(second, 1, NOW + 10),
            letter(first, 2, NOW + 20, "no answer"),
        ]
        for one in letters:
            await store.settle(first if one.push == first.number else second, one)
        expected = [letters[0], letters[2], letters[1]]
        assert await store.dead_letters(10) == expected
        assert await store.dead_letters(2) == expected[:2]
        assert await store.letters_of(number) == [letters[0], letters[2], letters[1]]
        other = await write(store, creation("u", pushes=[receiver("a", "u")]))
        assert await store.letters_of(other) == []
        for n, one in enumerate(expected, 1):
            place = (one.at, one.push, one.seq)
            assert await store.dead_letters(10, before=place) == expected[n:]
        again = letter(first, 2, NOW + 40, "refused")
        await store.settle(first, again)
        assert await store.dead_letters(10) == [again, letters[0], letters[1]]
        await store.drop_push(number, "a")
        assert await store.dead_letters(10) == [letters[1]]


async def _refuses_to_settle(store: Store, push: Push, letter: DeadLetter | None = None) -> bool:
    try:
        await store.settle(push, letter)
    except StoreConflict:
        return True
    return False
