"""Guards of the store on PostgreSQL: who may write, in which order rows are locked, whom a restart
takes for dead, what waits for a ring, and what a refused group looks like."""

# pyright: reportPrivateUsage=false
import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event
from dragoman.model.identity import ContextId, Scope, TaskId, new_id
from dragoman.model.message import Part
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import Append, Create, TaskPosition, TaskRow, Write
from dragoman.stores.postgres import Addresses, PostgresStore, schema, workers
from dragoman.testing.servers import PostgresServer
from proof.results import workplace
from proof.sabotage.patches import Patches, Removal, edited
from proof.sabotage.trial import Finding, Guard, Trial

_SCOPE = Scope("sabotage")
_WITHIN = 30.0
_SOON = 5.0
_KEYS = 40
_GONE = "SELECT count(*) FROM workers WHERE gone_at IS NOT NULL"
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
# Long enough for two groups to meet at any two keys.
_SLOW_KEYS = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION slow();
"""


class _Cluster:
    """A server and stores on one database of it."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.url = url
        self._open: list[PostgresStore] = []

    async def store(self, *, grace: float | None = None) -> PostgresStore:
        """Open a further store."""
        grace = workers.GRACE if grace is None else grace
        store = PostgresStore(Addresses(self.url), grace=grace)
        await store.open()
        self._open.append(store)
        return store

    async def sql(self, text: str) -> str:
        """Run statements beside the stores."""
        return await asyncio.to_thread(self.server.sql, text, self.url.rpartition("/")[2])

    async def close(self) -> None:
        """End everything."""
        for store in self._open:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(store.close(), _SOON)
        await asyncio.to_thread(self.server.kill)


@contextlib.asynccontextmanager
async def _cluster() -> AsyncGenerator[_Cluster]:
    # Not in the folder of the trial: PostgreSQL may run as another user, who has to get there.
    with workplace() as folder:
        server = PostgresServer(folder / "postgres")
        await asyncio.to_thread(server.start)
        cluster = _Cluster(server, await asyncio.to_thread(server.make_database))
        try:
            yield cluster
        finally:
            await cluster.close()


def _creation(*keys: bytes) -> Create:
    task = Task(TaskId(new_id()), ContextId(new_id()), TaskStatus(TaskState.SUBMITTED))
    standing = TaskPosition(TaskState.SUBMITTED, 1, 1)
    return Create(
        _SCOPE, task.id, task.context_id, list(keys), [Recorded.of_event(1, task)], standing, None
    )


def _append(head: TaskRow) -> Append:
    event: Event = ArtifactUpdate(head.task_id, head.context_id, Artifact("a", [Part(text="late")]))
    before, fence = head.standing, head.fence
    after = TaskPosition(TaskState.WORKING, 1, before.last_seq + 1)
    events = [Recorded.of_event(after.last_seq, event)]
    return Append(head.number, _SCOPE, before, fence, fence, [], events, after, None)


def _submitted(store: PostgresStore, write: Write) -> "asyncio.Future[bool]":
    """Submit a write; tell whether it was acknowledged."""
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def told(error: Exception | None, number: int) -> None:
        if not done.done():
            done.set_result(error is None)

    store.submit(write, told)
    return done


async def _acknowledged(store: PostgresStore, write: Write) -> bool:
    return await asyncio.wait_for(_submitted(store, write), _WITHIN)


# The checks


async def writes_of_the_dead(trial: Trial) -> Finding:
    """Take a replica for dead that lives, and let it write on."""
    async with _cluster() as cluster:
        store = await cluster.store()
        await _acknowledged(store, _creation())
        await cluster.sql(f"SELECT bury({store.worker})")
        late = [_submitted(store, _creation()) for _ in range(3)]
        accepted = sum(await asyncio.gather(*late))
    return Finding(not accepted, f"{accepted} of 3 writes of a dead replica accepted")


async def writes_of_the_replaced(trial: Trial) -> Finding:
    """Take a replica's task over; it comes back under another number and writes on."""
    async with _cluster() as cluster:
        frozen, other = await cluster.store(), await cluster.store()
        write = _creation()
        await _acknowledged(frozen, write)
        head = await frozen.head(_SCOPE, write.task_id)
        assert head is not None
        await cluster.sql(f"SELECT bury({frozen.worker})")
        taken = await other.claim(_SCOPE.agent, 5)
        await frozen.renew()
        accepted = await _acknowledged(frozen, _append(head))
    figure = "accepted" if accepted else "refused"
    return Finding(not accepted and len(taken) == 1, f"a write with the former fence was {figure}")


async def groups_that_meet(trial: Trial) -> Finding:
    """Have two replicas write the same keys in opposite order, slowly."""
    async with _cluster() as cluster:
        one, other = await cluster.store(), await cluster.store()
        await _acknowledged(one, _creation())
        await _acknowledged(other, _creation())
        await cluster.sql(_SLOW_KEYS)
        keys = [bytes([n]) for n in range(_KEYS)]
        ways = ((one, keys), (other, keys[::-1]))
        sent = [_submitted(store, _creation(*some)) for store, some in ways]
        accepted = sum(await asyncio.wait_for(asyncio.gather(*sent), _WITHIN))
        met = await _deadlocks(cluster)
    return Finding(not met and accepted == 1, f"{met} deadlocks, {accepted} of 2 accepted")


async def _deadlocks(cluster: _Cluster) -> int:
    # Backends tell of them when they are idle for a moment, or end.
    await cluster.sql("SELECT pg_sleep(1.2)")
    return int(await cluster.sql(_DEADLOCKS))


_ROUNDS = 15


async def restarted_server(trial: Trial) -> Finding:
    """Restart PostgreSQL under living replicas, of which one comes back last."""
    async with _cluster() as cluster:
        last, *others = [await cluster.store() for _ in range(3)]
        # As long as this is held it opens no session.
        async with last._workers._using:
            await asyncio.to_thread(cluster.server.stop)
            await asyncio.to_thread(cluster.server.start)
            # Silent for longer than a worker may be that has no session.
            for _ in range(_ROUNDS):
                for store in others:
                    await asyncio.wait_for(_renewed(store), _WITHIN)
                await asyncio.sleep(0.1)
        await asyncio.wait_for(_renewed(last), _WITHIN)
        gone = int(await cluster.sql(_GONE))
    return Finding(not gone, f"{gone} living replicas taken for dead")


async def _renewed(store: PostgresStore) -> None:
    while True:
        with contextlib.suppress(Exception):
            await store.renew()
            return
        await asyncio.sleep(0.05)


async def beside_a_slow_commit(trial: Trial) -> Finding:
    """Have one replica's commit wait for a standby; another's waits for none."""
    async with _cluster() as cluster:
        slow, swift = await cluster.store(), await cluster.store()
        for store in (slow, swift):
            await _acknowledged(store, _creation())
        writer = await swift._connections.writer()
        await writer.execute("SET synchronous_commit = local")
        # Others may wait too, and hold nobody up.
        slow_one: int = (await slow._connections.writer()).get_server_pid()
        await _standbys(cluster, "*")
        waiting = await _waits(cluster, slow, slow_one)
        beside = _submitted(swift, _creation())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(beside), _SOON)
        is_held = not beside.done()
        await _standbys(cluster, "")
        await asyncio.wait_for(asyncio.gather(waiting, beside), _WITHIN)
    figure = "waited for the slow one" if is_held else "went its way"
    return Finding(not is_held, f"a commit beside a slow one {figure}")


async def _standbys(cluster: _Cluster, names: str) -> None:
    await cluster.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await cluster.sql("SELECT pg_reload_conf()")


async def _waits(cluster: _Cluster, store: PostgresStore, pid: int) -> "asyncio.Future[bool]":
    """Submit a write whose commit waits for a standby: the setting takes a moment to count."""
    waiting = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = {pid}"
    submitted = _submitted(store, _creation())
    async with asyncio.timeout(_WITHIN):
        while not int(await cluster.sql(waiting)):
            if submitted.done():
                submitted = _submitted(store, _creation())
    return submitted


async def wholly_refused_group(trial: Trial) -> Finding:
    """Submit a message that another replica has recorded, alone in its group."""
    async with _cluster() as cluster:
        one, other = await cluster.store(), await cluster.store()
        first = await _acknowledged(one, _creation(b"message"))
        second = await _acknowledged(other, _creation(b"message"))
        tasks = int(await cluster.sql("SELECT count(*) FROM tasks"))
    return Finding(first and not second and tasks == 1, f"{tasks} tasks of one message")


# The removals


def _migration(old: str, new: str) -> Removal:
    """Change the functions that a new database gets."""

    def removal(patches: Patches) -> None:
        def make(migrations: Callable[[], Any]) -> Callable[[], Any]:
            scripts = migrations()
            edited("".join(script for _, script in scripts), old, new)
            changed = tuple((number, script.replace(old, new)) for number, script in scripts)
            return lambda: changed

        patches.put(schema, "migrations", make)

    return removal


def _grace(patches: Patches) -> None:
    patches.put(workers.Workers, "judges_sessions", lambda _: property(lambda self: True))


_REFUSED_KEYS = "FROM given LEFT JOIN made USING (scope, key) WHERE made.key IS NULL;"
_LAST = "        PERFORM write_rest(w, rest);\n    END IF;\nEND $$;"

GUARDS: tuple[Guard, ...] = (
    Guard("gone replica", "X1", "whoever was taken for dead may write", writes_of_the_dead, True),
    Guard(
        "replica fence", "X1", "an append does not check the fence", writes_of_the_replaced, True
    ),
    Guard("lock order", "D1", "keys are locked as they come", groups_that_meet, True),
    Guard("grace", "D3", "locks are judged at once after a restart", restarted_server, True),
    Guard("ring after commit", "B1", "rings are part of the commit", beside_a_slow_commit, True),
    Guard("empty array", "I1", "a wholly refused group looks accepted", wholly_refused_group, True),
)
REMOVALS: dict[str, Removal] = {
    "gone replica": _migration(
        "IF me.number IS NULL OR me.gone_at IS NOT NULL THEN", "IF false THEN"
    ),
    "replica fence": _migration(" AND tasks.fence = a.fence", ""),
    "lock order": _migration(
        "AS k (write, scope, key, task, reply) ORDER BY scope, key",
        "AS k (write, scope, key, task, reply)",
    ),
    "grace": _grace,
    "ring after commit": _migration(
        _LAST, _LAST.replace("END $$;", "    PERFORM pg_notify('dragoman', '');\nEND $$;")
    ),
    "empty array": _migration(
        _REFUSED_KEYS,
        "FROM given WHERE NOT key = ANY ((SELECT array_agg(key) FROM made)::bytea[]);",
    ),
}
