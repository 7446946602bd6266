"""Would we notice? Each guard of the product is removed in turn, and a check has to turn red.

Every check runs twice, on the product as it is and without the guard: it must be green and then
red. `saboteur` removes a guard from the processes under test, or from this one where the check
needs no other. The agent for the checks that need a misbehaving one is in this file.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from dragoman import Agent, Turn
from dragoman.egress import dial, egress, errors
from dragoman.errors import StoreConflict
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event
from dragoman.model.identity import ContextId, Principal, Scope, TaskId, new_id
from dragoman.model.message import Part
from dragoman.model.money import MICRO
from dragoman.model.order import Order
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.push import NotVerified, Recent, verify
from dragoman.push.request import EVENT_HEADER
from dragoman.push.signature import encode_secret, sign
from dragoman.stores.interface import Append, Create, TaskPosition, TaskRow, Write
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.testing.load import HOST
from dragoman.testing.processes import CannotStart
from proof import scripted
from proof.client import CallRefused, ConnectionGone
from proof.crash import fencing, idempotency, powercut
from proof.crash.checker import is_public, reading
from proof.crash.crash import at_rest
from proof.money import spenders
from proof.money.spenders import creation, ending, outcome, with_orders
from proof.results import Json, Progress, Result, Row, silent, until, workplace
from proof.sabotage.guards import (
    access,
    authors,
    disclosure,
    forwarding,
    intake,
    postgres,
    shares,
    store_files,
    suspects,
    upstreams,
)
from proof.sabotage.patches import Patches
from proof.sabotage.saboteur import without
from proof.sabotage.trial import Check, Finding, Guard, Trial
from proof.servers import Server
from proof.wire import resume, slow_reader
from proof.wire.receivers import Receiver, Treatment

# How often to look for what is to be taken over.
_LOOKS = 50
# Seconds a check may take; one that hangs without its guard is red.
WITHIN = 45.0
_EVERY_PORT = range(1, 65536)
_PUBLIC_ADDRESS = "93.184.215.14"
_OLD = 3600
_SCOPE = Scope("sabotage")
_ALICE, _BOB = Principal("", "alice"), Principal("", "bob")
_SECRET = b"the secret of this proof"
# Seconds that code which will not be cancelled goes on.
_STUBBORN_FOR = 0.6

agent = Agent("Sabotage", "Misbehaves in ways that guards are there for.")


@agent.skill(tags=["proof"])
async def deadly(text: str) -> str:
    """Take the process along, each time."""
    # Long enough for the task to be recorded and its caller answered.
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
    return text


@agent.skill(tags=["proof"])
async def stubborn(text: str, turn: Turn) -> str:
    """Be deaf to a cancel and end as if there had been none; the text is a file to make then."""
    await turn.say("At work.")
    until_at = time.monotonic() + _STUBBORN_FOR
    while (left := until_at - time.monotonic()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
    os.close(os.open(text, os.O_WRONLY | os.O_CREAT))
    return text


@contextlib.contextmanager
def _served_without(guard: str) -> Generator[None]:
    """Start servers without a guard for a while."""
    ordinary = Server.command

    def command(self: Server) -> list[str]:
        *_, module, serve, target, port, number, option, store = ordinary(self)
        assert module == "dragoman", "the command is the ordinary one"
        start = [sys.executable, "-m", "proof.sabotage.saboteur", guard]
        return [*start, serve, target, port, number, option, store]

    if guard:
        Server.command = command
    try:
        yield
    finally:
        Server.command = ordinary


# Checks on server processes


async def one_task(trial: Trial) -> Finding:
    """Send messages many times at once, to two processes and over a crash."""
    result = await idempotency.prove(8, trial.seed, folder=trial.folder, processes=2)
    return Finding(result.kept, f"{result.tasks} tasks for {result.messages} messages")


async def streams(trial: Trial) -> Finding:
    """Cut streams and go on by cursor."""
    result = await resume.prove(40, trial.seed, folder=trial.folder, processes=1)
    figure = f"{result.missing} events missing, {result.doubled} doubled"
    return Finding(result.kept, f"{figure} in {result.disconnects} disconnects")


async def killed_at_the_answer(trial: Trial) -> Finding:
    """Kill the server the moment the first of many callers has its answer."""
    async with trial.replicas() as replicas:
        (server,) = replicas.servers
        for _ in range(2):
            sends = [
                asyncio.ensure_future(trial.send(server.port, trial.said("echo", "hello")))
                for _ in range(8)
            ]
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            server.kill()
            await asyncio.gather(*sends, return_exceptions=True)
            await replicas.start(server)
        await at_rest(trial.store)
        verdict = trial.verdict()
    return Finding(not verdict.lost, f"{verdict.lost} of {len(trial.history.acked)} acked lost")


async def left_behind(trial: Trial) -> Finding:
    """Kill a server at work; the next one ends its tasks."""
    async with trial.replicas() as replicas:
        (server,) = replicas.servers
        for _ in range(3):
            await trial.send(server.port, trial.said("steps", "10 50", immediately=True))
        server.kill()
        await replicas.start(server)
        await at_rest(trial.store, within=5.0)
        verdict = trial.verdict()
    return Finding(not verdict.hanging, f"{verdict.hanging} of {verdict.tasks} tasks hanging")


async def deadly_task(trial: Trial) -> Finding:
    """Give a server a task that kills it, and start it again and again."""
    deaths = 0
    async with trial.replicas(agent=Path(__file__)) as replicas:
        (server,) = replicas.servers
        with contextlib.suppress(ConnectionGone):
            await trial.send(server.port, trial.said("deadly", "now", immediately=True))
        for _ in range(4):
            server.kill()
            deaths += 1
            # It may die of the task before it is ready, or after.
            with contextlib.suppress(CannotStart):
                await replicas.start(server)
                if await at_rest(trial.store, within=0.6):
                    break
        with reading(trial.store) as file:
            left = file.unfinished()
    return Finding(not left, f"{'no end' if left else 'an end'} after {deaths} deaths")


async def frozen_workers(trial: Trial) -> Finding:
    """Freeze a worker past its lease and thaw it."""
    result = await fencing.prove(1, trial.seed, folder=trial.folder)
    broken = result.lost + result.hanging + result.changed + result.gaps
    figure = f"{result.accepted} chunks out of place, {result.tried} tried, {broken} logs broken"
    return Finding(result.kept, figure)


async def steps_once(trial: Trial) -> Finding:
    """Kill a server between the durable steps of its tasks."""

    def is_between() -> bool:
        with reading(trial.store) as file:
            logs = [b"\n".join(task.events) for task in file.tasks()]
        return any(b'{"stepRecorded"' in log and b"_COMPLETED" not in log for log in logs)

    async with trial.replicas() as replicas:
        (server,) = replicas.servers
        for _ in range(2):
            for _ in range(6):
                await trial.send(server.port, trial.said("journey", "go", immediately=True))
            await until(is_between, 5.0)
            server.kill()
            await replicas.start(server)
            await at_rest(trial.store)
        verdict = trial.verdict()
    return Finding(
        not verdict.repeated, f"{verdict.repeated} of {verdict.tasks} tasks took a step again"
    )


async def ended_for_good(trial: Trial) -> Finding:
    """Cancel a task whose code will not hear of it, and wait until that has its say."""
    mark = trial.folder / "ended"
    replicas = trial.replicas(agent=Path(__file__), DRAGOMAN_CANCEL_GRACE="0.1")
    async with replicas:
        (server,) = replicas.servers
        said = trial.said("stubborn", str(mark), immediately=True)
        task = await trial.send(server.port, said)
        answer = await trial.call(server.port, "CancelTask", {"id": task["id"]})
        trial.history.saw(task["id"], answer["status"]["state"])
        await until(mark.exists, 10 * _STUBBORN_FOR)
        # What the code tried as it ended is written before what comes after it.
        await trial.send(server.port, trial.said("stubborn", str(mark)))
        verdict = trial.verdict()
    return Finding(not verdict.changed, f"{verdict.changed} changes after an end")


async def other_tenants(trial: Trial) -> Finding:
    """Ask for another tenant's task in every way there is."""
    async with trial.replicas() as replicas:
        port = replicas.servers[0].port
        owners = {"tenant": "a"}, {"tenant": "b"}
        tasks = [
            await trial.send(port, trial.said("ask", "mine", immediately=True) | owner)
            for owner in owners
        ]
        asked = {"id": tasks[0]["id"]} | owners[1]
        answer: Json = {**trial.said("ask", "answer"), **owners[1]}
        answer["message"]["taskId"] = tasks[0]["id"]
        seen: list[str] = []
        for method, params in (
            ("GetTask", asked),
            ("SendMessage", answer),
            ("CancelTask", asked),
        ):
            with contextlib.suppress(CallRefused):
                await trial.call(port, method, params)
                seen.append(method)
        page = await trial.call(port, "ListTasks", owners[1])
        listed = {task["id"] for task in page["tasks"]} - {tasks[1]["id"]}
    names = ", ".join(seen) or "none"
    return Finding(not seen and not listed, f"{names} of 3 operations, {len(listed)} listed")


async def posts(trial: Trial) -> Finding:
    """Kill a server while its post is unanswered; the next one delivers the rest and this one."""
    async with (
        Receiver([Treatment.SILENCE, Treatment.OK]) as receiver,
        trial.replicas(DRAGOMAN_ALLOW_PRIVATE="true") as replicas,
    ):
        (server,) = replicas.servers
        params = trial.said("steps", "3 10", immediately=True)
        params["configuration"]["taskPushNotificationConfig"] = {"url": receiver.url}
        task = await trial.send(server.port, params)
        await asyncio.wait_for(receiver.arrived.wait(), WITHIN)
        await at_rest(trial.store)
        server.kill()
        await replicas.start(server)
        with reading(trial.store) as file:
            (log,) = [stored.events for stored in file.tasks() if stored.id == task["id"]]
        expected = {seq for seq, body in enumerate(log, 1) if is_public(body)}

        def taken() -> set[int]:
            return {int(post.headers[EVENT_HEADER]) for post in receiver.taken}

        # They are in order: whatever is missing when the last one is there does not come.
        await until(lambda: len(log) in taken(), 15.0)
        missing = expected - taken()
    return Finding(not missing, f"{len(missing)} of {len(expected)} events lost")


async def slow_readers(trial: Trial) -> Finding:
    """Hang readers that never read on a task, and weigh the server."""
    readers = 20
    async with trial.replicas() as replicas:
        subject = slow_reader.Trial(replicas.servers[0], trial.seed)
        await subject.time_of("3000 4096", 0)
        before = subject.peak
        await subject.time_of("3000 4096", readers)
        growth = subject.peak - before
    limit = readers * slow_reader.BYTES_PER_READER
    figure = f"{growth / 1e6:.0f} MB for {readers} readers (limit {limit / 1e6:.0f})"
    return Finding(growth <= limit, figure)


async def swift_agent(trial: Trial) -> Finding:
    """Have an agent say much without a pause, and weigh the server."""
    chunks, size, limit = 800, 20_000, 24_000_000
    async with trial.replicas() as replicas:
        (server,) = replicas.servers
        await trial.send(server.port, trial.said("flood", f"10 {size}"))
        before = peak = server.memory() or 0
        said = trial.said("flood", f"{chunks} {size}", immediately=True)
        sending = asyncio.ensure_future(trial.send(server.port, said))

        def is_over() -> bool:
            nonlocal peak
            peak = max(peak, server.memory() or 0)
            with reading(trial.store) as file:
                return sending.done() and not file.unfinished()

        await until(is_over, WITHIN)
        with contextlib.suppress(ConnectionGone):
            await sending
    growth = peak - before
    figure = f"{growth / 1e6:.0f} MB for {chunks * size / 1e6:.0f} MB (limit {limit / 1e6:.0f})"
    return Finding(growth <= limit, figure)


# Checks in this process, on real files and sockets


async def power_cuts(trial: Trial) -> Finding:
    """Cut the power of a recorded disk."""
    result = await asyncio.to_thread(powercut.run, 150, trial.seed)
    figure = f"{result.lost} lost, {result.corrupt} corrupt of {result.images} images"
    return Finding(not result.lost + result.corrupt, figure)


async def stale_writes(trial: Trial) -> Finding:
    """Take tasks over from a store whose lease has ended, and let it write on."""
    tasks = 5
    now = 0
    async with (
        # Time stands still for the one that is frozen.
        _opened(SQLiteStore(trial.store, lease=1.0, clock=lambda: 0)) as frozen,
        _opened(SQLiteStore(trial.store, lease=1.0, clock=lambda: now)) as other,
    ):
        held = [await _begun(frozen) for _ in range(tasks)]
        now = 10_000
        taken: list[tuple[TaskRow, int]] = []
        for _ in range(_LOOKS):
            # It is not frozen in truth, and may list itself again between the two.
            await other.renew()
            taken += await other.claim(_SCOPE.agent, tasks)
            if len(taken) >= tasks:
                break
        accepted = 0
        for head in held:
            with contextlib.suppress(StoreConflict):
                await _written(frozen, _append(head))
                accepted += 1
    return Finding(not accepted and len(taken) == tasks, f"{accepted} of {tasks} stale writes")


@contextlib.asynccontextmanager
async def _opened(store: SQLiteStore) -> AsyncGenerator[SQLiteStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _written(store: SQLiteStore, write: Write) -> int:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def told(error: Exception | None, number: int) -> None:
        if error is None:
            done.set_result(number)
        else:
            done.set_exception(error)

    store.submit(write, told)
    return await done


async def _begun(store: SQLiteStore) -> TaskRow:
    """Write the first event of a task and return its row."""
    task = Task(TaskId(new_id()), ContextId(new_id()), TaskStatus(TaskState.SUBMITTED))
    standing = TaskPosition(TaskState.SUBMITTED, 1, 1)
    events = [Recorded.of_event(1, task)]
    await _written(store, Create(_SCOPE, task.id, task.context_id, [], events, standing, None))
    head = await store.head(_SCOPE, task.id)
    assert head is not None, "the task was written"
    return head


def _append(head: TaskRow) -> Append:
    """Return the next event of a task, under the fence its row has."""
    event: Event = ArtifactUpdate(head.task_id, head.context_id, Artifact("a", [Part(text="late")]))
    after = TaskPosition(TaskState.WORKING, 1, 2)
    events = [Recorded.of_event(2, event)]
    fence = head.fence
    return Append(head.number, _SCOPE, head.standing, fence, fence, [], events, after, None)


async def old_posts(trial: Trial) -> Finding:
    """Show a receiver a post that was signed an hour ago."""
    body = b'{"statusUpdate":{"taskId":"t"}}'
    accepted: list[str] = []
    now = int(time.time())
    for name, at in (("fresh", now), ("old", now - _OLD), ("from the future", now + _OLD)):
        headers = {
            "webhook-id": f"{trial.seed}-{name.replace(' ', '-')}",
            "webhook-timestamp": str(at),
        }
        headers["webhook-signature"] = sign([_SECRET], headers["webhook-id"], at, body)
        with contextlib.suppress(NotVerified):
            verify(headers, body, encode_secret(_SECRET), seen=Recent())
            accepted.append(name)
    return Finding(accepted == ["fresh"], f"accepted: {', '.join(accepted)}")


class _Peer:
    """Answers every request alike and counts them by path."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.paths: list[str] = []
        self.dials = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; without an answer, only count it."""
        self.dials += 1
        if not self._answer:
            return
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split(b" ")[1].decode())
            writer.write(f"HTTP/1.1 {self._answer}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()


@contextlib.asynccontextmanager
async def _listening(answer: str) -> AsyncGenerator[_Peer]:
    peer = _Peer(answer)
    async with scripted.talking(peer.talk) as peer.port:
        yield peer


async def redirected_posts(trial: Trial) -> Finding:
    """Answer a post with a redirect."""
    async with (
        _listening("307 Elsewhere\r\nlocation: /elsewhere") as peer,
        egress.Egress(allow_private=True, ports=_EVERY_PORT) as client,
    ):
        with contextlib.suppress(errors.EgressError):
            await client.post(f"http://{HOST}:{peer.port}/hook", b"{}", {}, timeout=5.0)
    followed = len([path for path in peer.paths if path != "/hook"])
    return Finding(not followed and bool(peer.paths), f"{followed} redirects followed")


async def private_names(trial: Trial) -> Finding:
    """Post to a name that leads to this machine."""
    return await _dialled([HOST])


async def changing_names(trial: Trial) -> Finding:
    """Post to a name that is public at the first look and this machine at the second."""
    return await _dialled([_PUBLIC_ADDRESS, HOST])


async def _dialled(addresses: Sequence[str]) -> Finding:
    left = list(addresses)

    async def resolver(host: str) -> list[str]:
        return [left.pop(0) if len(left) > 1 else left[0]]

    patches = Patches()
    # Whatever is found: nothing leaves this machine.
    patches.put(dial, "open_socket", _only_home)
    try:
        async with (
            _listening("") as peer,
            egress.Egress(ports=_EVERY_PORT, resolver=resolver, connect_timeout=4) as client,
        ):
            for _ in range(2):
                with contextlib.suppress(errors.EgressError):
                    url = f"https://peer.example.com:{peer.port}/"
                    await client.post(url, b"{}", {}, timeout=20.0)
            return Finding(not peer.dials, f"{peer.dials} private addresses dialled")
    finally:
        patches.take_back()


def _only_home(open_socket: Callable[..., socket.socket]) -> Callable[..., socket.socket]:
    def checked(info: dial.AddressInfo) -> socket.socket:
        if info[4][0] != HOST:
            raise OSError("not dialled in a proof")
        return open_socket(info)

    return checked


async def many_spenders(trial: Trial) -> Finding:
    """Spend one account from many sides at once."""
    price = 60 * MICRO
    order = Order(agent="a", requester=_ALICE, payee=_BOB, price=price, held=price)
    async with with_orders(trial.store) as store:
        writes = [creation(f"t{n}", "alice", order) for n in range(64)]
        refused = await asyncio.gather(*(outcome(store, write) for write in writes))
        found = await SQLiteAccounting(store).ledger.balance("alice")
    accepted = sum(error is None for error in refused)
    assert found is not None, "the first of them opened the account"
    over = max(0, -found.available) // MICRO
    return Finding(not over and accepted == 16, f"{accepted} accepted, {over} credits overspent")


async def ended_twice(trial: Trial) -> Finding:
    """End a task twice, as a push that comes twice would."""
    order = Order(agent="a", requester=_ALICE, payee=_BOB, price=MICRO, held=MICRO)
    async with with_orders(trial.store) as store:
        await outcome(store, creation("t", "alice", order))
        for _ in range(2):
            head = await store.head(Scope(spenders.AGENT, "", "alice"), TaskId("t"))
            assert head is not None, "it was made a moment ago"
            await outcome(store, ending(head, TaskState.COMPLETED))
        ledger = SQLiteAccounting(store).ledger
        found, report = await ledger.balance("alice"), await ledger.verify()
    assert found is not None
    charged = (1000 * MICRO - found.total) // MICRO
    figure = f"{charged} credits charged for 1, {len(report.differences)} differences"
    return Finding(charged == 1 and report.is_whole, figure)


# The table


GUARDS: tuple[Guard, ...] = (
    Guard("sync", "D2", "commits are not synced to disk", power_cuts, is_here=True),
    Guard("acknowledgement", "D1", "callers hear before the commit", killed_at_the_answer),
    Guard("takeover", "D3", "tasks of dead workers are not claimed", left_behind),
    Guard("attempts", "X4", "attempts are not counted", deadly_task),
    Guard("steps", "X4", "recorded steps are not recalled", steps_once),
    Guard("ends", "D4", "events may follow a terminal state", ended_for_good),
    Guard("fence", "X1", "an append does not check the fence", stale_writes, is_here=True),
    Guard("place", "X1", "an append checks neither fence nor place", frozen_workers),
    Guard("claim", "X1", "a takeover does not raise the fence", stale_writes, is_here=True),
    Guard("unique keys", "I1", "keys need not be unique", one_task),
    Guard("kept keys", "I1", "keys are not written with the task", one_task),
    Guard("position", "E3", "streams go on at `>=` and not at `>`", streams),
    Guard("tenant", "A3", "look-ups by id are not by scope", other_tenants),
    Guard("cursor", "P1", "an event is settled before it is posted", posts),
    Guard("timestamp", "P5", "a signature's time is not checked", old_posts, is_here=True),
    Guard("redirects", "S3", "posts follow redirects", redirected_posts, is_here=True),
    Guard("addresses", "S2", "addresses are not checked", private_names, is_here=True),
    Guard("pinning", "S2", "names are resolved again to dial", changing_names, is_here=True),
    Guard("flow", "B1", "writing to readers never waits", slow_readers),
    Guard("pace", "B2", "agents may run ahead of the disk", swift_agent),
    Guard("hold", "L5", "a hold need not be covered", many_spenders, is_here=True),
    Guard("settlement", "L3", "a task may be settled again", ended_twice, is_here=True),
    *access.GUARDS,
    *intake.GUARDS,
    *shares.GUARDS,
    *disclosure.GUARDS,
    *authors.GUARDS,
    *suspects.GUARDS,
    *upstreams.GUARDS,
    *forwarding.GUARDS,
    *store_files.GUARDS,
    *postgres.GUARDS,
)


class Tested(msgspec.Struct):
    """One guard, and what its check saw with it and without."""

    guard: str
    protects: str
    removed: str
    check: str
    # Whether the check was as promised with the guard, and was not without it.
    green: bool
    red: bool
    figure: str
    figure_without: str


class SabotageResult(Result, kw_only=True):
    """Which removals were noticed."""

    proof: str = "sabotage"
    guards: int
    red: int
    table: list[Tested] = msgspec.field(name="rows")

    def rows(self) -> list[Row]:
        """Return each guard as a promise that its loss is noticed."""
        noticed = f"{self.red} of {self.guards}"
        return [
            Row("Guards whose removal turns a check red", noticed, self.red == self.guards),
            *(
                Row(
                    f"{line.guard} ({line.protects}): {line.removed}",
                    f"{line.check}: {line.figure_without}; with it {line.figure}",
                    line.green and line.red,
                )
                for line in self.table
            ),
        ]


async def attempt(guard: Guard, folder: Path, seed: int, *, is_removed: bool) -> Finding:
    """Run a guard's check with it or without."""
    name = guard.name if is_removed else ""
    trial = Trial(Path(tempfile.mkdtemp(dir=folder)), seed, name)
    remove = without(name) if guard.is_here else _served_without(name)
    try:
        with remove:
            async with asyncio.timeout(WITHIN):
                return await guard.check(trial)
    except TimeoutError:
        return Finding(False, f"no end in {WITHIN:g} s")
    except CannotStart as error:
        # A server that does not start shows nothing: neither that all is well nor that it is not.
        return Finding(is_removed, f"the server did not start: {_first(error)}")
    except Exception as error:
        # Whatever a check met instead of what it looked for, no promise was kept; and the other
        # guards have their turn.
        return Finding(False, f"no answer: {_first(error)}")


def _first(error: BaseException) -> str:
    """Return what went wrong first; the clients of a check run in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no words'}"


async def prove(
    seed: int,
    *,
    folder: Path,
    guards: Sequence[Guard] = GUARDS,
    progress: Progress = silent,
) -> SabotageResult:
    """Remove each guard in turn; a check that several share is run once with all of them."""
    began = time.monotonic()
    whole: dict[Check, Finding] = {}
    table: list[Tested] = []
    for number, guard in enumerate(guards, 1):
        progress(f"{number}/{len(guards)}: without {guard.name}, {guard.check_name}")
        if guard.check not in whole:
            whole[guard.check] = await attempt(guard, folder, seed, is_removed=False)
        with_it = whole[guard.check]
        without_it = await attempt(guard, folder, seed, is_removed=True)
        table.append(
            Tested(
                guard.name,
                guard.protects,
                guard.removed,
                guard.check_name,
                with_it.is_kept,
                not without_it.is_kept,
                with_it.figure,
                without_it.figure,
            )
        )
    return SabotageResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        guards=len(table),
        red=sum(line.green and line.red for line in table),
        table=table,
        findings=[f"{line.guard}: {line.check} did not notice" for line in table if not line.red],
    )


def run(seed: int = 1, *, progress: Progress = silent) -> SabotageResult:
    """Remove every guard in turn and see that a check notices."""
    with workplace() as folder:
        return asyncio.run(prove(seed, folder=folder, progress=progress))
