"""Processes that spend credits, to be killed: `python -m proof.money.spenders`.

It is told what to do on stdin and does each job in a process of its own, which it forks: starting
an interpreter for each of hundreds would take most of a proof's time. A job uses the real store
with the real ledger, as a gateway does, and writes down outside of it what it was told is durable.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Literal, cast

import apsw
import msgspec
from msgspec.structs import replace

from dragoman.errors import HoldRefused, StoreRefused
from dragoman.gateway.money.decisions import apply_decision
from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.gateway.money.payments import Payment, purchase_effects
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import ContextId, Principal, Scope, TaskId
from dragoman.model.money import MICRO
from dragoman.model.order import Order
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import Append, Create, TaskPosition, TaskRow, Write
from dragoman.stores.interface.effects import PutCheckout
from dragoman.stores.interface.ledger import Checkout
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.ledger.task_orders import TaskOrders
from dragoman.stores.sqlite.schema import run as query
from proof.money import escrows

AGENT = "gateway"
# Seconds a store may take for a write.
_WITHIN = 45.0
OWNERS = ("alice", "bob", "carol", "dave")
_ENDS = (TaskState.COMPLETED, TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do, and where it is to die."""

    # Errands of all kinds until it is killed; one account spent by many; what is left, ended.
    kind: Literal["errands", "spend", "finish"]
    store: str
    # Where it writes down what is durable.
    acks: str
    seed: int
    # So many statements before this one, of those that have this text: it dies there. 0: nowhere.
    dies_at: int = 0
    point: str = ""
    spenders: int = 0
    price: int = 0


class JobRequest(msgspec.Struct, frozen=True):
    """What the proof wants: a job begun, or an ended process's status."""

    job: Job | None = None
    wait: int = 0


class Answer(msgspec.Struct, frozen=True):
    """The process of the job, or how it ended."""

    pid: int
    # None: it was only begun.
    status: int | None = None


class Spending:
    """One process at work on a store."""

    def __init__(self, job: Job, store: SQLiteStore, rules: TaskOrderRules) -> None:
        self._job = job
        self._store = store
        self._chance = random.Random(job.seed)
        self._count = 0
        self._acks = os.open(job.acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._rules = rules
        self._accounting = SQLiteAccounting(store)
        self._ledger = Ledger(self._accounting, rules, store)

    async def run(self) -> None:
        """Do the job."""
        match self._job.kind:
            case "errands":
                await self._finish(half=True)
                while True:
                    await self._some_orders()
            case "spend":
                await asyncio.gather(*(self._spend(n) for n in range(self._job.spenders)))
            case "finish":
                await self._finish(half=False)
                await self._ledger.sweep()
                await self._settle(1 << 40)

    def _ack(self, text: str) -> None:
        os.write(self._acks, f"{text}\n".encode())

    async def write(self, write: Write) -> Exception | None:
        """Make a write; return why it was refused."""
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._store.submit(write, lambda error, _: told.set_result(error))
        return await told

    async def _finish(self, *, half: bool) -> None:
        """Take over what the dead left, and end it: all of it, or as much as comes."""
        for head, _ in await self._store.claim(AGENT, 10_000):
            if not half or self._chance.random() < 0.5:
                await self._end(head)
        if half:
            # As a push that comes twice would: what has ended is ended again.
            await self._end_again()

    async def _some_orders(self) -> None:
        chance = self._chance
        self._rules.terms = chance.choice(escrows.TERMS)
        await asyncio.gather(*(self._order() for _ in range(chance.randint(1, 6))))
        if chance.random() < 0.5:
            await self._settle(3)
        if chance.random() < 0.2:
            await self._purchase()
        if chance.random() < 0.2:
            await self._end_again()

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._job.seed}-{os.getpid()}-{self._count}"

    async def _order(self) -> None:
        chance = self._chance
        requester, payee = chance.choice(OWNERS), chance.choice(OWNERS)
        price = chance.choice((0, 50_000, 1_110_000, 10 * MICRO, 99_990_000, 300 * MICRO))
        order = Order(
            agent="a1",
            requester=Principal("", requester),
            payee=Principal("", payee),
            price=price,
            held=price + chance.choice((0, MICRO)),
        )
        task_id = self._new_id()
        error = await self.write(creation(task_id, requester, order))
        if error is not None:
            assert isinstance(error, HoldRefused), error
            return
        self._ack(f"begun {task_id}")
        head = await self._store.head(_scope(requester), TaskId(task_id))
        assert head is not None, "it is durable"
        if chance.random() < 0.3:
            cheaper = replace(order, agent="a2", price=price // 2, held=price // 2)
            await self.write(_status(head, TaskState.WORKING, cheaper))
            head = await self._store.head(_scope(requester), TaskId(task_id))
            assert head is not None
        if chance.random() < 0.8:
            await self._end(head)

    async def _end(self, head: TaskRow) -> None:
        if head.standing.state.is_terminal:
            return
        if await self.write(_status(head, self._chance.choice(_ENDS))) is None:
            self._ack(f"ended {head.task_id}")

    async def _end_again(self) -> None:
        """End some tasks that have ended; the store lets it happen, the ledger must not mind."""
        rows = await self._store.read_tx(_some_ended)
        for task_id, owner in rows:
            head = await self._store.head(_scope(owner), TaskId(task_id))
            if head is not None:
                await self.write(_status(head, self._chance.choice(_ENDS)))

    async def _settle(self, most: int) -> None:
        """Have the money of some tasks leave its escrow."""
        for one in await self._store.read_tx(lambda c: escrows.kept(c, most)):
            for deed in escrows.deeds(self._chance):
                await self._do(one.task, deed)

    async def _do(self, task: int, deed: escrows.Deed) -> None:
        async def read() -> OrderRow:
            order = await self._accounting.ledger.order(task)
            assert order is not None, "orders stay"
            return order

        await apply_decision(self._accounting, read, deed)

    async def _purchase(self) -> None:
        owner = self._chance.choice(OWNERS)
        checkout = Checkout(self._new_id(), owner, "starter", 1_000 * MICRO, 1_000, _now())
        await self._accounting.apply([PutCheckout(checkout)])
        for _ in range(2):
            await self._pay(Payment(f"e-{checkout.id}", checkout.id, checkout.cents))
        self._ack(f"paid {checkout.id}")

    async def _pay(self, payment: Payment) -> None:
        grant, ledger = self._rules.terms.grant, self._accounting.ledger

        async def read() -> tuple[Checkout | None, bool]:
            checkout = await ledger.checkout(payment.checkout)
            return checkout, await ledger.is_payment_recorded(payment.event)

        await apply_decision(
            self._accounting,
            read,
            lambda facts: purchase_effects(payment, *facts, grant, _now()),
        )

    async def _spend(self, spender: int) -> None:
        """Begin tasks on the one account until there is nothing left."""
        price = self._job.price
        order = Order(
            agent="a1",
            requester=Principal("", "alice"),
            payee=Principal("", "bob"),
            price=price,
            held=price,
        )
        tasks = 0
        while True:
            tasks += 1
            task_id = f"{os.getpid()}-{spender}-{tasks}"
            error = await self.write(creation(task_id, "alice", order))
            if isinstance(error, HoldRefused):
                return
            assert error is None, error
            self._ack(f"begun {task_id}")


def creation(task_id: str, requester: str, order: Order) -> Create:
    """Return the first write of a task with its order."""
    status = TaskStatus(TaskState.WORKING)
    task = Task(TaskId(task_id), ContextId("c"), status)
    return Create(
        scope=_scope(requester),
        task_id=task.id,
        context_id=task.context_id,
        keys=[],
        events=[Recorded.of_event(1, task)],
        standing=TaskPosition(TaskState.WORKING, _now(), 1),
        snapshot=None,
        order=order,
    )


def _status(head: TaskRow, state: TaskState, order: Order | None = None) -> Append:
    event = StatusUpdate(head.task_id, head.context_id, TaskStatus(state))
    seq = head.standing.last_seq + 1
    return Append(
        number=head.number,
        scope=head.scope,
        before=head.standing,
        fence=head.fence,
        next_fence=head.fence,
        keys=[],
        events=[Recorded.of_event(seq, event)],
        standing=TaskPosition(state, _now(), seq),
        snapshot=None,
        order=order,
    )


def ending(head: TaskRow, state: TaskState) -> Append:
    """Return a write that ends a task."""
    return _status(head, state)


@contextlib.asynccontextmanager
async def with_orders(path: Path) -> AsyncGenerator[SQLiteStore]:
    """Open a store whose tasks have orders, for a while."""
    store = SQLiteStore(path, orders=TaskOrders(TaskOrderRules()))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def outcome(store: SQLiteStore, write: Write) -> Exception | None:
    """Hand a write to a store; return why it was refused."""
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    store.submit(write, lambda error, _: told.set_result(error))
    return await asyncio.wait_for(told, _WITHIN)


def _some_ended(connection: apsw.Connection) -> Sequence[tuple[str, str]]:
    sql = "SELECT task_id, requester FROM errands WHERE ended_at > 0 ORDER BY task DESC LIMIT 3"
    return [(task_id, owner) for task_id, owner in query(connection, sql)]


def _scope(owner: str) -> Scope:
    return Scope(AGENT, "", owner)


def _now() -> int:
    return time.time_ns() // 1_000_000


async def _work(job: Job) -> None:
    rules = TaskOrderRules()
    store = SQLiteStore(Path(job.store), orders=TaskOrders(rules))
    await store.open()
    if job.dies_at:
        writing = cast("apsw.Connection", vars(vars(store)["_writer"])["_connection"])
        writing.exec_trace = _dying(job.dies_at, job.point)
    try:
        await Spending(job, store, rules).run()
    finally:
        await store.close()


def _dying(at: int, point: str) -> Callable[[apsw.Cursor, str, object], bool]:
    """Return what ends the process before a statement, as a crash would: in any thread."""
    left = at

    def trace(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        nonlocal left
        if point in sql:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return True

    return trace


def main() -> None:
    """Do the jobs that arrive on stdin until it ends."""
    decode = msgspec.json.Decoder(JobRequest).decode
    for line in sys.stdin.buffer:
        asked = decode(line)
        if asked.job is None:
            _, status = os.waitpid(asked.wait, 0)
            answer = Answer(asked.wait, status)
        else:
            pid = os.fork()
            if not pid:
                _do(asked.job)
            answer = Answer(pid)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def _do(job: Job) -> None:
    """Do a job and end the process: nothing of the one it was forked from is to run."""
    code = 1
    try:
        asyncio.run(_work(job))
        code = 0
    except StoreRefused as error:
        print(f"a job was refused: {error!r}", file=sys.stderr)
    except BaseException as error:
        # The outermost frame of this process: every exception is reported to the proof.
        import traceback

        traceback.print_exception(error)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
