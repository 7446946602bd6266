"""Begins the tasks of triggers, each due time and each post once.

The message of a run is known by the trigger and its due time, or by the id of the post. A process
that begins it a second time, after a crash or beside another, is answered with the first task, also
if the trigger says something else by then. So
the due time is moved on after the task is recorded, and one process at a time looks for what is
due only to save the others the work.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.config import Settings
from dragoman.errors import (
    A2AError,
    InvalidParams,
    NoAgentAvailable,
    Overloaded,
    StoreRefused,
    UnsupportedOperation,
)
from dragoman.gateway.registry.registered import Registered, serves
from dragoman.gateway.repeating import Repeating
from dragoman.gateway.triggers import schedule, template
from dragoman.gateway.triggers.definition import (
    LastRun,
    NewTrigger,
    TriggerChange,
    TriggerDefinition,
    changed,
    defined,
)
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock, stamp
from dragoman.model.identity import Caller, MessageId, Principal, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import encode
from dragoman.service import Call, Service, TaskReply
from dragoman.stores.interface import Duty
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.triggers import TriggerRow

logger = logging.getLogger("dragoman")

# Triggers that one owner may have.
MOST = 1000
# Milliseconds between two looks, and triggers that are taken at one.
TICK = 500
_AT_ONCE = 100
_TRIES = 20
SECRET_PREFIX = "whsec_"


class Triggers:
    """All triggers of a gateway."""

    def __init__(
        self,
        store: GatewayStore,
        find_agent: Callable[[str], Registered | None],
        service: Service,
        settings: Settings,
        clock: Clock | None = None,
    ) -> None:
        """`find_agent` returns an agent by its id or name; `service` makes the tasks."""
        self._store = store
        self._rows = store.triggers
        self._find_agent = find_agent
        self._service = service
        self._is_idempotent = settings.engine.idempotency
        self.clock = clock or SystemClock()
        self._looking = Repeating("triggers could not be looked at", self.sweep, self._pause)
        # Posts come at once; noted one after the other they do not undo each other's count.
        self._noting = asyncio.Lock()

    def start(self) -> None:
        """Begin to look for what is due."""
        self._looking.start()

    async def _pause(self) -> None:
        await self.clock.wait_until(self.clock.now() + TICK)

    async def stop(self) -> None:
        """Stop; what is due is begun by the next process."""
        await self._looking.stop()

    # What owners do

    async def create(self, owner: Principal, said: NewTrigger) -> TriggerRow:
        """Store a trigger; raises `InvalidParams`."""
        if not self._is_idempotent:
            raise UnsupportedOperation("triggers need the setting `idempotency`, which is off here")
        agent = self._agent(said.agent_id, owner)
        found = defined(said, agent.id)
        now = self.clock.now()
        row = TriggerRow(new_id(), owner, now, encode(found), found.next_due(now))
        if not await self._rows.put(row, most=MOST):
            raise InvalidParams(f"There are {MOST} triggers already, which is the most")
        return row

    async def one(self, id: str, owner: Principal | None) -> TriggerRow | None:
        """Return a trigger of an owner, or of any (None)."""
        row = await self._rows.one(id)
        return row if row is not None and owner in (None, row.owner) else None

    async def page(
        self, owner: Principal | None, *, limit: int, after: str = ""
    ) -> tuple[Sequence[TriggerRow], int]:
        """Return some triggers of an owner or of all (None), newest first, and how many; those
        after an id."""
        return await self._rows.page(owner, limit=limit, after=after)

    async def change(
        self, id: str, owner: Principal | None, said: TriggerChange
    ) -> TriggerRow | None:
        """Change a trigger; return it, or None if there is none."""
        return await self._edit(id, owner, lambda before: changed(before, said))

    async def replace_secret(self, id: str, owner: Principal | None) -> TriggerRow | None:
        """Give a webhook another secret; the one before is no longer good."""

        def next_one(before: TriggerDefinition) -> TriggerDefinition:
            if not before.webhook:
                raise UnsupportedOperation("this trigger waits for a time and has no secret")
            return msgspec.structs.replace(before, generation=before.generation + 1)

        return await self._edit(id, owner, next_one)

    async def remove(self, id: str, owner: Principal | None) -> bool:
        """Remove a trigger; its tasks stay."""
        row = await self.one(id, owner)
        return row is not None and await self._rows.remove(id)

    async def _edit(
        self,
        id: str,
        owner: Principal | None,
        edit: Callable[[TriggerDefinition], TriggerDefinition],
    ) -> TriggerRow | None:
        for _ in range(_TRIES):
            row = await self.one(id, owner)
            if row is None:
                return None
            before = read(row)
            after = edit(before)
            due_at = row.due_at
            # A time that is due already and not begun yet stays due.
            if (before.schedule, before.enabled) != (after.schedule, after.enabled):
                due_at = after.next_due(self.clock.now())
            made = row._replace(definition=encode(after), due_at=due_at)
            if await self._rows.change(made):
                return made._replace(version=row.version + 1)
        raise Overloaded("the trigger keeps changing; try again")

    # Runs

    async def run_once(self, row: TriggerRow, key: str = "") -> str:
        """Begin a task now, whatever the schedule says; return its id. The same key leads to the
        same task."""
        at = self.clock.now()
        name, due = f"run-{key or new_id()}", stamp(at * 1000)
        task_id = await self._begin(row, read(row), name, None, due)
        await self._note(row.id, LastRun(at=at, task_id=task_id))
        return task_id

    async def posted(self, row: TriggerRow, id: str, body: Any) -> str:
        """Begin the task of a post; return its id. The same id leads to the same task."""
        at = self.clock.now()
        found = read(row)
        said = id.encode("utf-8", "surrogatepass") + b"\n" + msgspec.json.encode(body)
        digest = hashlib.blake2b(said, digest_size=16).hexdigest()
        try:
            task_id = await self._begin(row, found, f"post-{digest}", body)
        except (Overloaded, StoreRefused):
            # The sender tries again.
            raise
        except A2AError as error:
            await self._note(row.id, LastRun(at=at, problem=error.public))
            raise
        await self._note(row.id, LastRun(at=at, task_id=task_id))
        return task_id

    async def _note(self, id: str, last: LastRun) -> None:
        """Note what came of a run, unless the store is away: the task has begun, and a sender that
        was told otherwise would post it again."""
        try:
            async with self._noting:
                for _ in range(_TRIES):
                    row = await self._rows.one(id)
                    if row is None:
                        return
                    noted = row._replace(definition=encode(read(row).after(last)))
                    if await self._rows.change(noted):
                        return
        except StoreRefused as error:
            logger.warning("a run of the trigger %s is not in its figures: %s", id, error)

    async def sweep(self) -> int:
        """Begin the tasks of triggers that are due, unless another process does; return how many
        triggers were due."""
        if not await self._store.lead(Duty.RUN_TRIGGERS):
            return 0
        now = self.clock.now()
        due = await self._rows.due(now, _AT_ONCE)
        for row in due:
            try:
                await self._run_due(row, now)
            except (StoreRefused, asyncio.CancelledError):
                raise
            except Exception:
                # Its zone is unknown here, say: those behind it are due all the same.
                logger.exception("the trigger %s cannot be run here", row.id)
        return len(due)

    async def _run_due(self, row: TriggerRow, now: int) -> None:
        found = read(row)
        assert row.due_at is not None, "it is due"
        if found.schedule is None or not found.enabled:
            await self._rows.change(row._replace(due_at=None))
            return
        plan = found.schedule
        times = schedule.due_times(plan.cron, plan.zone, plan.missed, row.due_at, now)
        for time in times.now:
            try:
                due = stamp(time * 1000)
                task_id = await self._begin(row, found, str(time), None, due)
            except (Overloaded, StoreRefused) as error:
                logger.warning("the trigger %s has to wait: %s", found.name, error)
                return
            except A2AError as error:
                logger.warning("the trigger %s began no task: %s", found.name, error)
                found = found.after(LastRun(at=time, problem=error.public))
            else:
                found = found.after(LastRun(at=time, task_id=task_id))
        # Refused if it was changed meanwhile: then it is looked at again, and what was begun is
        # known by its name.
        await self._rows.change(row._replace(definition=encode(found), due_at=times.next))

    async def _begin(
        self, row: TriggerRow, found: TriggerDefinition, name: str, posted: Any, due: str = ""
    ) -> str:
        owner = row.owner
        agent = self._agent(found.agent_id, owner)
        trigger = {"id": row.id} | ({"due": due} if due else {})
        metadata: dict[str, Any] = {"agentId": agent.id, "trigger": trigger}
        if found.skill_id:
            metadata["skillId"] = found.skill_id
        key = f"trigger-{row.id}-{name}"
        message = Message(MessageId(key), Role.USER, _parts(found, posted, due))
        operation = ops.SendMessage(
            message=message, wait=False, metadata=metadata, tenant=owner.tenant
        )
        caller = Caller(owner.owner, bool(owner.owner), frozenset(), owner.tenant or None)
        call = Call(operation=operation, caller=caller, message_key=key)
        reply = await self._service.answer(call)
        assert isinstance(reply, TaskReply), "everything forwarded is a task"
        return reply.reading.task.id

    def _agent(self, ref: str, owner: Principal) -> Registered:
        agent = self._find_agent(ref)
        if agent is None or not serves(agent, owner):
            raise NoAgentAvailable("There is no such agent")
        return agent

    # Secrets of webhooks

    def secret(self, row: TriggerRow) -> bytes:
        """Return the secret of a webhook: it follows from the store's own, and is not stored."""
        named = f"trigger {row.id} {read(row).generation}".encode()
        return hmac.new(self._store.secret, named, hashlib.sha256).digest()

    def secret_text(self, row: TriggerRow) -> str:
        """Return the secret as people pass it on."""
        return SECRET_PREFIX + base64.b64encode(self.secret(row)).decode()


def read(row: TriggerRow) -> TriggerDefinition:
    """Return what a row says."""
    return msgspec.json.decode(row.definition, type=TriggerDefinition)


def _parts(found: TriggerDefinition, posted: Any, due: str) -> list[Part]:
    parts: list[Part] = []
    if found.text:
        text = template.filled(found.text, posted, due)
        parts.append(Part(text=text) if isinstance(text, str) else Part(data=text))
    if found.data is not UNSET:
        parts.append(Part(data=template.filled(found.data, posted, due)))
    return parts or [Part(data=posted)]
