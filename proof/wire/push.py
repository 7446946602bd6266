"""Push: receivers that fail in every way we know of, under a clock that makes days of seconds.

The store, the sender, the egress client and the sockets are real; only the time of the schedule is
not. The sender is ended without a word a few times and taken over by another. At the end every
event is looked for at every receiver: it was taken, it is a dead letter, or its receiver is
visibly given up with the event still ahead of its cursor. All else is lost. Signatures are checked
by the public library of Standard Webhooks.
"""

import asyncio
import contextlib
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.egress.egress import Egress
from dragoman.engine.reading import read_task
from dragoman.errors import ConfigError
from dragoman.model.artifact import Artifact
from dragoman.model.clock import Clock
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, Scope, TaskId, new_id
from dragoman.model.message import Part
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.push.posting import Follow, Read
from dragoman.push.request import webhook_id
from dragoman.push.schedule import JITTER, PAUSES, TRIES
from dragoman.push.sender import Sender
from dragoman.push.signature import encode_secret
from dragoman.stores.interface import Create, Push, Store, TaskPosition
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock
from proof.results import Progress, Row, bound, silent, spread
from proof.results import Result as Base
from proof.wire.receivers import Receiver, Treatment

DIALECTS = {"1.0": V1_0, "0.3": V0_3, "0.2": V0_2}
SCOPE = Scope("proof")
# A receiver fails so often before it takes what it is sent; TRIES or more: an event dies.
FAILURES = (1, 4, TRIES - 1, 1000)
_FAILING = [t for t in Treatment if t not in (Treatment.OK, Treatment.GONE, Treatment.TLS)]
_EVENTS = 4
_MANY_EVENTS = 40
_KEY = b"the secret of this proof"
# Receivers are local: one that has not answered by then never will.
_TIMEOUT = 0.25
_SETTLE_WITHIN = 30.0
_EVERY_PORT = range(1, 65536)
_TOLD = 5


class Library(Protocol):
    """What we use of the independent library."""

    def verify(self, data: bytes, headers: dict[str, str], *, json_parse: bool = ...) -> Any: ...
    def sign(self, msg_id: str, timestamp: datetime, data: str) -> str: ...


class Result(Base, kw_only=True):
    """What became of every event for every receiver."""

    receivers: int = 0
    posts: int = 0
    delivered: int = 0
    # Posts after the first of an event.
    retried: int = 0
    dead: int = 0
    # Ahead of a receiver that was given up.
    held: int = 0
    lost: int = 0
    reordered: int = 0
    # Events that a receiver took more than once, which its webhook-id tells it.
    repeated: int = 0
    unverified: int = 0
    restarts: int = 0
    # From the first try to the last, without the jitter.
    schedule_seconds: float = 0.0
    # Pauses outside of their fifth.
    irregular: int = 0
    alone_p99_ms: float = 0.0
    beside_dead_p99_ms: float = 0.0
    treatments: dict[str, int] = msgspec.field(default_factory=dict[str, int])

    def rows(self) -> list[Row]:
        """Return the promises this proof is about."""
        pairs = self.delivered + self.dead + self.held + self.lost
        hours, rest = divmod(self.schedule_seconds, 3600)
        span = f"{hours:.0f} h {rest // 60:02.0f} m {rest % 60:02.0f} s"
        return [
            Row(
                "Webhooks lost",
                f"{self.lost} of {pairs:,} ({self.delivered:,} delivered, {self.dead} dead, "
                f"{self.held} held; {self.retried:,} retries, {self.restarts} restarts)",
                not self.lost,
                bound(pairs),
            ),
            Row("Webhooks out of order", f"{self.reordered}", not self.reordered, bound(pairs)),
            Row(
                "Signatures the independent library refuses",
                f"{self.unverified} of {self.posts:,}",
                not self.unverified and self.posts > 0,
                bound(self.posts),
            ),
            Row(
                "Ten tries take 75 h 35 m 05 s",
                f"{span}, {self.irregular} pauses out of bounds",
                round(self.schedule_seconds * 1000) == sum(PAUSES) and not self.irregular,
            ),
            Row(
                "Healthy receivers beside 100 dead ones, p99",
                f"{self.beside_dead_p99_ms} ms, alone {self.alone_p99_ms} ms",
                self.beside_dead_p99_ms <= 2 * self.alone_p99_ms,
            ),
        ]


def run(
    *,
    receivers: int = 40,
    restarts: int = 5,
    healthy: int = 300,
    seed: int,
    progress: Progress = silent,
) -> Result:
    """Run the proof; raises `ConfigError` without the library that checks it."""
    library = _library()
    began = time.monotonic()
    result = Result(proof="push", seed=seed)
    with _unlogged(), tempfile.TemporaryDirectory(prefix="dragoman-push-") as folder:
        path = Path(folder)
        chance = random.Random(seed)
        asyncio.run(_fail(result, path / "fail.db", library, chance, receivers, restarts, progress))
        progress("the schedule of one receiver that never recovers")
        asyncio.run(_schedule(result, path / "schedule.db", library))
        progress("healthy receivers beside dead ones")
        asyncio.run(_neighbours(result, path / "neighbours.db", healthy))
    result.bound = bound(result.delivered + result.dead + result.held)
    result.seconds = round(time.monotonic() - began, 3)
    return result


@contextlib.contextmanager
def _unlogged() -> Generator[None]:
    """Keep to ourselves what failed on purpose."""
    logger = logging.getLogger("dragoman.push")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _library() -> Library:
    try:
        from standardwebhooks.webhooks import Webhook
    except ImportError:
        raise ConfigError("proof push: needs the package standardwebhooks to check us") from None
    return Webhook(encode_secret(_KEY))


# Tasks and senders


async def begin(
    store: Store, configs: Sequence[PushConfig], *, events: int = _EVENTS, ends: bool = True
) -> list[Push]:
    """Write a task with its receivers, in one write, and return them."""
    id, context = TaskId(new_id()), ContextId(new_id())
    log: list[Event] = [Task(id, context, TaskStatus(TaskState.SUBMITTED))]
    for n in range(events - 2):
        log.append(ArtifactUpdate(id, context, Artifact(f"a{n}", [Part(text=f"chunk {n} 🐉")])))
    state = TaskState.COMPLETED if ends else TaskState.WORKING
    log.append(StatusUpdate(id, context, TaskStatus(state)))
    standing = TaskPosition(state, time.time_ns() // 1_000_000, len(log))
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def written(error: Exception | None, number: int) -> None:
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(number)

    write = Create(
        SCOPE,
        id,
        context,
        [],
        [Recorded.of_event(seq, event) for seq, event in enumerate(log, 1)],
        standing,
        None,
        [msgspec.structs.replace(config, task_id=id) for config in configs],
    )
    store.submit(write, written)
    return await store.pushes(await done)


def follower(store: Store) -> Follow:
    """Return a follower of logs that are complete."""

    async def follow(push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        after = push.cursor
        while batch := await store.read(push.task, after=after, limit=100):
            yield batch
            after = batch[-1].seq

    return follow


def reader(store: Store) -> Read:
    """Return what reads a task as of an event."""

    async def read(push: Push, seq: int) -> Task:
        reading = await read_task(store, push.task, upto=seq)
        assert reading is not None, "the receiver's task is in the store"
        return reading.task

    return read


def sender(
    store: Store,
    egress: Egress,
    clock: Clock | None,
    chance: random.Random,
    timeout: float = _TIMEOUT,
) -> Sender:
    """Return a sender over a store."""
    return Sender(
        store,
        egress,
        follow=follower(store),
        read=reader(store),
        dialects=DIALECTS,
        secrets=[_KEY],
        clock=clock,
        timeout=timeout,
        random=chance,
    )


async def quiet(sender: Sender, clock: ManualClock) -> None:
    """Wait until every receiver is done or waits for its time."""
    async with asyncio.timeout(_SETTLE_WITHIN):
        # Sockets and disks decide when, and there is no event for it.
        while clock.waiting < sender.running:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# Receivers that fail


class _Case(msgspec.Struct):
    treatment: Treatment
    receiver: Receiver
    push: Push
    # What the receiver should be posted, in order.
    expected: list[int]


def _scripts(count: int, chance: random.Random) -> list[list[Treatment]]:
    """Every way to fail, so often and then no more, and some that do not fail, in any order."""
    scripts = [[t] * n + [Treatment.OK] for n in FAILURES for t in _FAILING]
    scripts += [[Treatment.GONE], [Treatment.TLS]]
    scripts += [[Treatment.OK]] * max(1, count - len(scripts))
    chance.shuffle(scripts)
    return scripts[:count]


async def _fail(
    result: Result,
    path: Path,
    library: Library,
    chance: random.Random,
    count: int,
    restarts: int,
    progress: Progress,
) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    async with contextlib.AsyncExitStack() as stack, _egress() as egress:
        store = SQLiteStore(path)
        await store.open()
        cases: list[_Case] = []
        for n, script in enumerate(_scripts(count, chance)):
            receiver = await stack.enter_async_context(Receiver(script))
            version = chance.choice(list(DIALECTS))
            # Those that never recover hold whatever follows; the others may get much.
            events = _EVENTS if len(script) > TRIES else _MANY_EVENTS
            config = PushConfig(receiver.url, f"c{n}", version=version)
            (push,) = await begin(store, [config], events=events)
            log = await store.read(push.task, after=0, limit=100)
            posted = [r.seq for r in log if DIALECTS[version].posts(r)]
            cases.append(_Case(script[0], receiver, push, posted))
        ours = sender(store, egress, clock, chance)
        for case in cases:
            ours.add(case.push)
        hours, began, step = 0, clock.now(), 0
        # Most is on its way in the beginning.
        ends = set(chance.sample(range(3 * restarts), restarts))
        while True:
            if step in ends:
                # Let some of it be on its way, or taken and not yet recorded.
                await asyncio.sleep(chance.uniform(0, 0.05))
                # Without waiting for what is on its way: its outcome is nowhere recorded.
                await ours.stop(0)
                await store.close()
                store = SQLiteStore(path)
                await store.open()
                ours = sender(store, egress, clock, chance)
                while left := await store.claim_pushes(200):
                    for push in left:
                        ours.add(push)
                result.restarts += 1
            await quiet(ours, clock)
            if not ours.running:
                break
            step += 1
            hours = (await clock.leap() - began) // 3_600_000
            progress(f"{ours.running} of {count} receivers still waited for, hour {hours}")
        await ours.stop()
        try:
            await _judge(result, store, cases, library)
        finally:
            await store.close()


async def _judge(result: Result, store: Store, cases: Sequence[_Case], library: Library) -> None:
    letters = {(letter.push, letter.seq) for letter in await store.dead_letters(100_000)}
    kinds: Counter[str] = Counter()
    for case in cases:
        (push,) = await store.pushes(case.push.task)
        ids = {webhook_id(push.scope, push.config, seq): seq for seq in case.expected}
        kinds[case.treatment] += 1
        posts = case.receiver.posts
        result.posts += len(posts)
        # Without a handshake there is nothing to count but connections.
        tried = {post.headers["webhook-id"] for post in posts}
        result.retried += max(0, len(posts) - len(tried))
        for post in posts:
            if not _is_verified(library, post.headers, post.body):
                result.unverified += 1
        taken = [ids.get(post.headers["webhook-id"], 0) for post in case.receiver.taken]
        result.repeated += len(taken) - len(set(taken))
        # Firsts in order: a repetition may follow an end that was not recorded.
        firsts = list(dict.fromkeys(taken))
        if firsts != sorted(firsts) or 0 in firsts:
            result.reordered += 1
            result.findings.append(f"{case.treatment}: taken in the order {taken}")
        for seq in case.expected:
            if seq in firsts:
                result.delivered += 1
            elif (push.number, seq) in letters:
                result.dead += 1
            elif not push.is_open and push.problem and seq > push.cursor:
                result.held += 1
            else:
                result.lost += 1
                if result.lost <= _TOLD:
                    result.findings.append(f"{case.treatment}: event {seq} of {push.config.id}")
    result.receivers = len(cases)
    result.treatments = dict(kinds)


def _is_verified(library: Library, headers: dict[str, str], body: bytes) -> bool:
    """Ask the library. It knows no time but its own, so what our clock dates otherwise is signed
    by it once more and compared."""
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    signed = library.sign(headers["webhook-id"], at, body.decode())
    if signed != headers["webhook-signature"]:
        return False
    if abs(at.timestamp() - time.time()) < 200:
        library.verify(body, headers, json_parse=True)
    return True


# The schedule, and the neighbours


class _Even(random.Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


async def _schedule(result: Result, path: Path, library: Library) -> None:
    """Time ten tries without jitter to the millisecond, and many with it to a fifth."""
    result.schedule_seconds = (await _tries(path, _Even(), result, library))[-1] / 1000
    for n in range(5):
        times = await _tries(path, random.Random(f"{result.seed} {n}"), result, library)
        for pause, (before, after) in zip(PAUSES[1:], pairwise(times), strict=True):
            if not pause * (1 - JITTER) - 1 <= after - before <= pause * (1 + JITTER):
                result.irregular += 1


async def _tries(path: Path, chance: random.Random, result: Result, library: Library) -> list[int]:
    """Return when each try of one event was, in milliseconds since the first."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    began, times = clock.now(), [0]
    store = SQLiteStore(path)
    await store.open()
    try:
        async with Receiver([Treatment.ERROR]) as receiver, _egress() as egress:
            (push,) = await begin(store, [PushConfig(receiver.url, "c")], events=2)
            ours = sender(store, egress, clock, chance)
            ours.add(push)
            while True:
                await quiet(ours, clock)
                if (await store.pushes(push.task))[0].cursor or not ours.running:
                    break
                times.append(await clock.leap() - began)
            await ours.stop(0)
            first = webhook_id(push.scope, push.config, 1)
            posts = [post for post in receiver.posts if post.headers["webhook-id"] == first]
            assert len(posts) == TRIES, f"{len(posts)} tries"
            result.posts += len(posts)
            result.unverified += sum(not _is_verified(library, p.headers, p.body) for p in posts)
    finally:
        await store.close()
    return times[:TRIES]


async def _neighbours(result: Result, path: Path, count: int) -> None:
    """Compare how soon healthy receivers get theirs, alone and beside a hundred dead ones."""
    store = SQLiteStore(path)
    await store.open()
    try:
        async with contextlib.AsyncExitStack() as stack, _egress() as egress:
            healthy = await stack.enter_async_context(Receiver([Treatment.OK]))
            # As long as in earnest, so that the dead hold on to what they got all the while.
            ours = sender(store, egress, None, random.Random(result.seed), timeout=15.0)
            result.alone_p99_ms = await _p99(store, ours, healthy, count)
            for _ in range(100):
                dead = await stack.enter_async_context(Receiver([Treatment.SILENCE]))
                (push,) = await begin(store, [PushConfig(dead.url, "c")])
                ours.add(push)
            result.beside_dead_p99_ms = await _p99(store, ours, healthy, count)
            await ours.stop(0)
    finally:
        await store.close()


async def _p99(store: Store, ours: Sender, healthy: Receiver, count: int) -> float:
    times: list[float] = []
    for _ in range(count):
        (push,) = await begin(store, [PushConfig(healthy.url, "c")], events=2)
        seen = len(healthy.posts)
        began = time.perf_counter()
        ours.add(push)
        async with asyncio.timeout(_SETTLE_WITHIN):
            while len(healthy.posts) < seen + 2:
                healthy.arrived.clear()
                await healthy.arrived.wait()
        times.append((time.perf_counter() - began) * 1000)
    return spread(times).p99


def _egress() -> Egress:
    return Egress(allow_private=True, ports=_EVERY_PORT)
