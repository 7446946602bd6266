"""Delivery over real sockets and both stores, under a clock that the tests move."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness.databases import new_database
from harness.waiting import eventually
from msgspec.structs import replace

from dragoman.egress.answers import EgressResponse
from dragoman.egress.egress import Egress
from dragoman.errors import InvalidParams, StoreConflict, StoreUnavailable
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded
from dragoman.push import Recent, verify
from dragoman.push.request import webhook_id
from dragoman.push.schedule import GIVE_UP_AFTER, PAUSES
from dragoman.push.sender import Sender
from dragoman.push.signature import encode_secret
from dragoman.push.slots import Slots
from dragoman.stores.interface import DeadLetter, Push, Store
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock
from proof.wire.push import DIALECTS, begin, follower, quiet, reader
from proof.wire.receivers import Receiver, Treatment

SECRET = b"s" * 32
WITHIN = 60.0
OK, ERROR = Treatment.OK, Treatment.ERROR


class Office:
    """A sender over a store, with a clock and a way out."""

    def __init__(self, store: Store, egress: Any) -> None:
        self.store = store
        self.egress = egress
        self.clock = ManualClock()
        self.sender = self.another()

    def another(self, **given: Any) -> Sender:
        arguments: dict[str, Any] = {
            "follow": follower(self.store),
            "read": reader(self.store),
            "dialects": DIALECTS,
            "secrets": [SECRET],
            "clock": self.clock,
            # A machine that is busy must not make a failure of a receiver that answers.
            "timeout": WITHIN,
            "random": Random(1),
        }
        return Sender(self.store, self.egress, **(arguments | given))

    async def send(self, *configs: PushConfig, events: int = 4) -> list[Push]:
        pushes = await begin(self.store, configs, events=events)
        for push in pushes:
            self.sender.add(push)
        return pushes

    async def quiet(self) -> None:
        await quiet(self.sender, self.clock)

    async def now(self, push: Push) -> Push:
        (found,) = [p for p in await self.store.pushes(push.task) if p.number == push.number]
        return found


async def store_over(request: pytest.FixtureRequest, folder: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SQLiteStore(folder / "tasks.db")
        case _:
            return PostgresStore(Addresses(await new_database(request)))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def office(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Office]:
    store = await store_over(request, tmp_path)
    await store.open()
    async with Egress(allow_private=True, ports=range(1, 65536)) as egress:
        office = Office(store, egress)
        yield office
        await office.sender.stop(0)
    await store.close()


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2"])
async def test_every_event_arrives_in_order_signed_and_in_its_version(
    office: Office, version: str
) -> None:
    async with Receiver([OK]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c", version=version))
        await office.quiet()
    wanted = [1, 2, 3, 4] if version == "1.0" else [1, 4]
    seen = Recent()
    deliveries = [
        verify(
            post.headers,
            post.body,
            encode_secret(SECRET),
            seen=seen,
            task_ids={push.config.task_id},
            now=office.clock.now() / 1000,
        )
        for post in receiver.posts
    ]
    assert [delivery.position for delivery in deliveries] == wanted
    assert [d.id for d in deliveries] == [webhook_id(push.scope, push.config, n) for n in wanted]
    content_type = "application/a2a+json" if version == "1.0" else "application/json"
    for post in receiver.posts:
        assert post.headers["content-type"] == content_type
        assert post.headers["a2a-version"] == version
    end = deliveries[-1].content
    if version == "1.0":
        assert end["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    else:
        assert end["kind"] == "task" and len(end["artifacts"]) == 2
        assert end["status"]["state"] == "completed"
    done = await office.now(push)
    assert (done.cursor, done.is_open, done.problem, done.failing_since) == (4, False, "", 0)


@pytest.mark.requirement("T-43")
async def test_a_failing_receiver_is_tried_on_schedule_and_then_gets_the_rest(
    office: Office,
) -> None:
    async with Receiver([ERROR, ERROR, ERROR, OK]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        times = [office.clock.now()]
        for tries in (1, 2, 3):
            await office.quiet()
            found = await office.now(push)
            assert (found.cursor, found.tries, found.problem) == (0, tries, "answered 500")
            assert found.failing_since == times[0] and found.is_open
            assert await office.clock.leap() == found.due_at
            times.append(found.due_at)
        await office.quiet()
    for n in (1, 2, 3):
        assert 0.8 * PAUSES[n] - 1 <= times[n] - times[n - 1] <= 1.2 * PAUSES[n]
    ids = [post.headers["webhook-id"] for post in receiver.posts]
    assert len(set(ids[:4])) == 1 and len(set(ids)) == 4
    stamps = [post.headers["webhook-timestamp"] for post in receiver.posts[:4]]
    assert stamps == [str(at // 1000) for at in times]
    assert len({post.body for post in receiver.posts[:4]}) == 1
    done = await office.now(push)
    assert (done.cursor, done.tries, done.problem, done.failing_since) == (4, 0, "", 0)
    assert await office.store.dead_letters(10) == []


async def test_after_ten_tries_an_event_is_dead_and_the_next_follows(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    async with Receiver([ERROR] * 10 + [OK]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url + "?key=QUERY", "c", token="TOKEN"))
        for _ in range(9):
            await office.quiet()
            await office.clock.leap()
        await office.quiet()
    first, *rest = [int(post.headers["x-dragoman-event"]) for post in receiver.posts[9:]]
    assert (first, rest) == (1, [2, 3, 4])
    (letter,) = await office.store.dead_letters(10)
    assert (letter.push, letter.seq, letter.tries) == (push.number, 1, 10)
    assert letter.problem == "answered 500" and letter.at == office.clock.now()
    assert any("never took msg_" in record.getMessage() for record in caplog.records)
    # Once when it began, once for the letter, once when it was over.
    assert len(caplog.records) <= 3
    assert "QUERY" not in caplog.text and "TOKEN" not in caplog.text


async def test_a_receiver_that_is_gone_is_not_asked_again_and_keeps_its_place(
    office: Office,
) -> None:
    async with Receiver([OK, Treatment.GONE]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        assert len(receiver.posts) == 2
    found = await office.now(push)
    assert not found.is_open and found.cursor == 1 and "410" in found.problem
    assert office.sender.running == 0 and await office.store.claim_pushes(10) == []


async def test_after_five_days_of_failures_a_receiver_is_given_up(office: Office) -> None:
    async with Receiver([ERROR]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        began = office.clock.now()
        while True:
            await office.quiet()
            if not office.sender.running:
                break
            await office.clock.leap()
    found = await office.now(push)
    assert not found.is_open and found.problem == "answered 500" and found.failing_since == began
    assert GIVE_UP_AFTER <= office.clock.now() - began < GIVE_UP_AFTER + 1.2 * PAUSES[-1]
    letters = [letter.seq for letter in await office.store.dead_letters(10)]
    assert letters == list(range(found.cursor, 0, -1)) and len(letters) >= 1


@pytest.mark.parametrize(
    ("treatment", "problem"),
    [
        (Treatment.SILENCE, "no answer in 0.3 s"),
        (Treatment.DRIP, "no answer in 0.3 s"),
        (Treatment.RESET, "no answer: connection reset by peer"),
        (Treatment.TLS, "no answer: "),
        (Treatment.MOVED, "answered 301"),
        (Treatment.BUSY, "answered 429"),
    ],
)
async def test_a_failure_of_any_kind_is_recorded_and_tried_again(
    office: Office, treatment: Treatment, problem: str
) -> None:
    if treatment in (Treatment.SILENCE, Treatment.DRIP):
        office.sender = office.another(timeout=0.3)
    async with Receiver([treatment], busy_for=7200) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        found = await office.now(push)
        assert found.problem.startswith(problem) and len(found.problem) <= 200
        assert found.tries == 1 and found.is_open and found.cursor == 0
        assert receiver.connections == 1, "a redirect is not followed"
        wait = found.due_at - office.clock.now()
        assert wait == 7_200_000 if treatment is Treatment.BUSY else wait <= 6000


async def test_of_an_endless_answer_little_is_read(office: Office) -> None:
    async with Receiver([Treatment.FLOOD]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
    assert (await office.now(push)).cursor == 4
    # What fits into the buffers between us; far from 10 GB.
    assert receiver.flooded < 64 * 1024 * 1024


async def test_a_private_address_is_refused_like_any_failure(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Receiver([OK]) as receiver, Egress(ports=range(1, 65536)) as egress:
        office = Office(store, egress)
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        found = await office.now(push)
        assert found.problem.startswith("refused: ") and found.tries == 1 and found.is_open
        # Whoever runs the server reads it, and is told what would open the way.
        assert "`allow`" in found.problem and "--allow-private" in found.problem
        assert receiver.connections == 0
        await office.sender.stop(0)


@pytest.mark.requirement("T-44")
@pytest.mark.parametrize(
    ("authentication", "sent"),
    [
        (None, None),
        (PushAuthentication("Bearer"), None),
        (PushAuthentication("Bearer", "abc"), "Bearer abc"),
        (PushAuthentication("Basic", "user:pass:word"), "Basic dXNlcjpwYXNzOndvcmQ="),
        (PushAuthentication("basic", "dXNlcjpwYXNz"), "basic dXNlcjpwYXNz"),
        (PushAuthentication("ApiKey", "k:1"), "ApiKey k:1"),
    ],
)
async def test_the_receiver_sees_the_credentials_it_asked_for(
    office: Office, authentication: PushAuthentication | None, sent: str | None
) -> None:
    async with Receiver([OK]) as receiver:
        config = PushConfig(receiver.url, "c", token="tok", authentication=authentication)
        await office.send(config, events=2)
        await office.quiet()
    for post in receiver.posts:
        assert post.headers.get("authorization") == sent
        assert post.headers["x-a2a-notification-token"] == "tok"
        assert b"tok" not in post.body


@pytest.mark.requirement("T-41")
async def test_one_receiver_that_fails_delays_no_other(office: Office) -> None:
    async with Receiver([Treatment.SILENCE]) as dead, Receiver([OK]) as well:
        pushes = await office.send(PushConfig(dead.url, "a"), PushConfig(well.url, "b"))
        await asyncio.wait_for(eventually(lambda: len(well.posts) == 4), WITHIN)
        assert len(dead.posts) <= 1
        assert (await office.now(pushes[0])).cursor == 0


async def test_another_sender_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with (
        Receiver([OK, ERROR, ERROR, OK]) as receiver,
        Egress(allow_private=True, ports=range(1, 65536)) as egress,
    ):
        store = SQLiteStore(path)
        await store.open()
        office = Office(store, egress)
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        found = await office.now(push)
        assert (found.cursor, found.tries) == (1, 1)
        await office.sender.stop(0)
        await store.close()
        again = SQLiteStore(path)
        await again.open()
        later = Office(again, egress)
        for left in await again.claim_pushes(10):
            later.sender.add(left)
        await later.quiet()
        assert len(receiver.posts) == 2, "the time of the next try has not come"
        assert await later.clock.leap() == found.due_at
        await later.quiet()
        assert (await later.now(push)).tries == 2, "tries are counted across restarts"
        await later.clock.leap()
        await later.quiet()
        assert not (await later.now(push)).is_open
        await later.sender.stop(0)
        await again.close()
    places = [post.headers["x-dragoman-event"] for post in receiver.posts]
    assert places == ["1", "2", "2", "2", "3", "4"]


class Gate:
    """A way out whose answers the test gives."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.open = asyncio.Event()

    def check(self, url: str) -> None:
        pass

    async def post(self, url: str, body: bytes, headers: Any, *, timeout: float) -> EgressResponse:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        return EgressResponse(204, {}, b"")


async def test_posts_on_their_way_are_bounded_in_all_and_for_one_origin() -> None:
    gate = Gate()
    office = Office(MemoryStore(), gate)
    office.sender = office.another(slots=24)
    for n in range(40):
        await office.send(PushConfig(f"http://same.example/{n}", "c"), events=2)
    await eventually(lambda: gate.at_once == 16)
    for n in range(40):
        await office.send(PushConfig(f"http://{n}.example/", "c"), events=2)
    # A quarter of the places is for those that answered before, and nobody did.
    await eventually(lambda: gate.at_once == 18)
    gate.open.set()
    await office.quiet()
    assert 18 <= gate.most_at_once <= 24 and gate.asked == 160


class Crowd:
    """Posts that hold the places they get until they are let go."""

    def __init__(self, slots: Slots, group: asyncio.TaskGroup) -> None:
        self.slots = slots
        self.group = group
        self.inside = 0
        self.most_inside = 0
        self.let_go = asyncio.Event()

    def come(self, *origins: str) -> None:
        for origin in origins:
            self.group.create_task(self._hold(origin))

    async def _hold(self, origin: str) -> None:
        async with self.slots.place(origin):
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            await self.let_go.wait()
            self.inside -= 1


async def test_those_that_were_silent_leave_places_for_the_others() -> None:
    slots = Slots(8)
    for n in range(10):
        slots.mark(f"dead{n}", silent=True)
    slots.mark("dead9", silent=False)
    async with asyncio.TaskGroup() as group:
        crowd = Crowd(slots, group)
        crowd.come(*(f"dead{n}" for n in range(9)))
        await eventually(lambda: crowd.inside == 2)
        crowd.come(*(f"new{n}" for n in range(6)))
        await eventually(lambda: crowd.inside == 8)
        crowd.come("dead9")
        await eventually(lambda: crowd.inside == 9)
        crowd.let_go.set()


async def test_however_many_strangers_come_those_that_answered_have_places() -> None:
    slots = Slots(8)
    slots.mark("a", silent=False)
    slots.mark("b", silent=False)
    async with asyncio.TaskGroup() as group:
        crowd = Crowd(slots, group)
        crowd.come(*(f"new{n}" for n in range(800)))
        await eventually(lambda: crowd.inside == 6)
        crowd.come("a", "b")
        await eventually(lambda: crowd.inside == 8)
        crowd.let_go.set()
    assert crowd.most_inside == 8


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_with_few_places_nobody_is_shut_out(limit: int) -> None:
    slots = Slots(limit)
    slots.mark("dead", silent=True)
    slots.mark("well", silent=False)
    async with asyncio.timeout(WITHIN):
        for origin in ("dead", "well", "new"):
            async with slots.place(origin):
                pass


async def test_a_dropped_receiver_gets_nothing_more(office: Office) -> None:
    async with Receiver([OK, ERROR, OK]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        await office.store.drop_push(push.task, "c")
        # Not told, as when another process dropped it: it looks before it posts.
        await office.clock.leap()
        await office.quiet()
        assert len(receiver.posts) == 2 and office.sender.running == 0
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        office.sender.drop(push)
        await office.quiet()
        assert office.sender.running == 0 and len(receiver.posts) == 2


async def test_a_receiver_replaced_elsewhere_is_not_posted_to_with_what_it_had(
    office: Office,
) -> None:
    async with Receiver([ERROR, OK]) as former, Receiver([OK]) as later:
        (push,) = await office.send(PushConfig(former.url, "c", token="former"))
        await office.quiet()
        config = PushConfig(later.url, "c", task_id=push.config.task_id)
        await office.store.put_push(push.task, config, 0, most=10)
        await office.clock.leap()
        await office.quiet()
        assert len(former.posts) == 1 and office.sender.running == 0


async def test_a_receiver_that_another_worker_went_on_with_is_left_to_it(office: Office) -> None:
    async with Receiver([ERROR, OK]) as receiver:
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        await office.quiet()
        await office.store.settle(replace(await office.now(push), cursor=1))
        await office.clock.leap()
        await office.quiet()
        assert len(receiver.posts) == 1 and office.sender.running == 0


class Faulty(MemoryStore):
    """A store whose disk refuses some writes."""

    refusing = 0
    settled = 0

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        if self.refusing:
            self.refusing -= 1
            raise StoreUnavailable("full")
        self.settled += 1
        await super().settle(push, letter)


async def test_a_full_disk_costs_patience_and_no_second_post() -> None:
    store = Faulty()
    store.refusing = 5
    async with Receiver([OK]) as receiver, Egress(allow_private=True, ports=range(1, 65536)) as out:
        office = Office(store, out)
        (push,) = await office.send(PushConfig(receiver.url, "c"))
        for _ in range(5):
            await office.quiet()
            assert len(receiver.posts) == 1
            await office.clock.leap()
        await office.quiet()
        assert len(receiver.posts) == 4 and not (await office.now(push)).is_open
        assert store.settled == 4


async def test_an_ending_sender_lets_what_is_on_its_way_arrive_and_be_recorded() -> None:
    gate = Gate()
    office = Office(MemoryStore(), gate)
    (push,) = await office.send(PushConfig("http://a.example/", "c"))
    await eventually(lambda: gate.asked == 1)
    ending = asyncio.get_running_loop().create_task(office.sender.stop(WITHIN))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.wait_for(ending, WITHIN)
    assert gate.asked == 1 and (await office.now(push)).cursor == 1
    assert (await office.now(push)).is_open


async def test_an_event_that_cannot_be_written_down_becomes_a_dead_letter(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def broken(push: Push, seq: int) -> Any:
        if seq == 1:
            raise RuntimeError("a bug")
        return await reader(office.store)(push, seq)

    office.sender = office.another(read=broken)
    async with Receiver([OK]) as receiver:
        await office.send(PushConfig(receiver.url, "c", version="0.3"))
        for _ in range(9):
            await office.quiet()
            await office.clock.leap()
        await office.quiet()
    (letter,) = await office.store.dead_letters(10)
    assert letter.seq == 1 and letter.problem == "could not be made"
    assert [post.headers["x-dragoman-event"] for post in receiver.posts] == ["4"]


async def test_a_log_that_breaks_off_is_followed_again_and_none_is_lost(office: Office) -> None:
    broken = 3

    async def follow(push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        nonlocal broken
        batch = await office.store.read(push.task, after=push.cursor, limit=1)
        if batch:
            yield batch
        broken -= 1
        if broken == 1:
            raise RuntimeError("a bug")

    office.sender = office.another(follow=follow)
    async with Receiver([OK]) as receiver:
        pushes = await begin(office.store, [PushConfig(receiver.url, "c")], ends=False)
        office.sender.add(pushes[0])
        for _ in range(3):
            await office.quiet()
            await office.clock.leap()
        await office.quiet()
        assert len(receiver.posts) == 4
        # The task lives, so there may be more.
        assert (await office.now(pushes[0])).is_open


async def test_a_config_for_a_task_that_ended_is_closed_without_a_post(office: Office) -> None:
    async with Receiver([OK]) as receiver:
        (push,) = await begin(office.store, [PushConfig(receiver.url, "c")])
        late = await office.store.put_push(
            push.task, PushConfig(receiver.url, "late", task_id=push.config.task_id), 4, most=10
        )
        assert late is not None
        office.sender.add(late)
        await office.quiet()
        assert receiver.posts == [] and not (await office.now(late)).is_open


async def test_a_receiver_of_a_version_nobody_knows_harms_no_other(office: Office) -> None:
    async with Receiver([OK]) as receiver:
        await office.send(
            PushConfig(receiver.url, "a", version="9.9"), PushConfig(receiver.url, "b"), events=2
        )
        await office.quiet()
    assert len(receiver.posts) == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/?key=QUERY", "http://[", "file:///etc", ""])
async def test_an_address_we_never_go_to_is_refused_at_once_without_a_reason(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Egress() as egress:
        office = Office(MemoryStore(), egress)
        office.sender.check(PushConfig("https://hooks.example.com/"))
        with pytest.raises(InvalidParams) as refused:
            office.sender.check(PushConfig(url))
    assert refused.value.field == "url" and "private" not in refused.value.public
    assert "QUERY" not in caplog.text


class LateRefusal(MemoryStore):
    """Refuses once to record how far a receiver is, and says so late."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.answers = asyncio.Event(), asyncio.Event()

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        if not self.is_asked.is_set():
            self.is_asked.set()
            await self.answers.wait()
            raise StoreConflict("another worker delivers")
        await super().settle(push, letter)


async def test_a_receiver_that_comes_back_before_its_loss_is_heard_of_is_delivered_to() -> None:
    """After a lapse a worker claims what it had itself; what was refused under its former number
    may be told later."""
    store = LateRefusal()
    await store.open()
    async with Egress(allow_private=True, ports=range(1, 65536)) as egress:
        office = Office(store, egress)
        async with Receiver([OK]) as receiver:
            (push,) = await office.send(PushConfig(receiver.url, "c"))
            await asyncio.wait_for(store.is_asked.wait(), WITHIN)
            office.sender.add(await office.now(push))
            store.answers.set()
            await office.quiet()
        # The first is not known to have arrived.
        ids = [webhook_id(push.scope, push.config, n) for n in (1, 1, 2, 3, 4)]
        assert [post.headers["webhook-id"] for post in receiver.posts] == ids
        assert not (await office.now(push)).is_open
        await office.sender.stop(0)
    await store.close()
