"""Runs rollouts: has copies of tasks made, compares answers, counts, promotes and rolls back.

Nothing of this is on the way of a task. Ended tasks are read from the events of trust, which have
each of them once and in order; what was seen, what is open and what was counted is one row, changed
at once or not at all. The message of a copy is named by the rollout and the task: begun a second
time, after a crash or beside another process, it leads to the first copy. So a process that ends
anywhere loses nothing and counts nothing twice.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.engine.engine import Engine
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.log import READ_AT_ONCE
from dragoman.errors import (
    InvalidParams,
    NoAgentAvailable,
    Overloaded,
    UnsupportedOperation,
)
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.gateway.registry.registry import Registry
from dragoman.gateway.repeating import Repeating
from dragoman.gateway.rollouts.definition import (
    LONGEST_REASON,
    NewRollout,
    OpenSample,
    RolloutChange,
    RolloutDefinition,
    decide,
)
from dragoman.gateway.rollouts.judging import Judging
from dragoman.gateway.rollouts.shadows import Shadows
from dragoman.gateway.routing.canaries import Canary, in_share
from dragoman.gateway.trust.counting import OUTCOMES
from dragoman.gateway.trust.recording import observe
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.events import Forwarded
from dragoman.model.identity import (
    Principal,
    new_id,
)
from dragoman.model.record import encode
from dragoman.security.audit.log import Audit
from dragoman.shares import Shares
from dragoman.stores.interface import Duty
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.rollouts import RolloutRow
from dragoman.stores.interface.trust import TrustEventRow
from dragoman.telemetry import figures

logger = logging.getLogger("dragoman")

# Rollouts of an owner that ended and are kept.
KEPT = 100
# Milliseconds between two looks, events that are read at one, and copies under way at a time.
TICK = 500
_READ = 2000
_AT_ONCE = 8
_TRIES = 20
_GONE = "one of the two is not registered any more"
_SKIPPED = (b'{"statusUpdate"', b'{"artifactUpdate"')


class Rollouts:
    """All rollouts of a gateway."""

    def __init__(
        self,
        store: GatewayStore,
        registry: Registry,
        context: DeliveryContext,
        audit: Audit,
        *,
        shares: Shares | None = None,
        hooks: Sequence[EventHooks] = (),
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._rows = store.rollouts
        self._trust = store.accounting.trust
        self._registry = registry
        self._canaries = context.router.canaries
        self._is_idempotent = context.settings.engine.idempotency
        self._audit = audit
        self._clock = clock or SystemClock()
        # With hooks: what they hide of an answer is not to be recorded of a copy either.
        self.engine = Engine(Shadows(context), store, context.settings, shares=shares, hooks=hooks)
        self._judging = Judging(self.engine, store)
        self._looking = Repeating("rollouts could not be looked at", self.sweep, self._pause)

    async def start(self) -> None:
        """Begin to look; a canary of before goes on from the first task."""
        self._follow(await self._rows.running())
        self._looking.start()

    async def _pause(self) -> None:
        await self._clock.wait_until(self._clock.now() + TICK)

    async def stop(self) -> None:
        """Stop; the next process goes on."""
        await self._looking.stop()
        await self.engine.stop()

    # What owners do

    async def create(
        self, caller: Principal, said: NewRollout, *, operator: bool = False
    ) -> RolloutRow:
        """Begin a rollout; raises `InvalidParams`, `PermissionDenied` or `NoAgentAvailable`."""
        if not self._is_idempotent:
            raise UnsupportedOperation("rollouts need the setting `idempotency`, which is off here")
        agent = self._registry.owned(said.agent_id, caller, operator)
        if not (agent.repeatable or agent.repeatable_skills):
            raise InvalidParams("is not registered as safe to repeat", field="agentId")
        candidate = self._version(agent, said.candidate_id)
        check = ""
        if said.check_agent_id:
            check = self._own(agent.owner, said.check_agent_id, "checkAgentId").id
        found = RolloutDefinition(
            candidate=candidate.id,
            mode=said.mode,
            share=said.share,
            max_distance=said.max_distance,
            check_agent=check,
            timeout=said.timeout_seconds,
            rule=said.rule,
            position=await self._last_ended(),
        )
        row = RolloutRow(new_id(), agent.owner, agent.id, self._clock.now(), encode(found))
        if not await self._rows.put(row, keep=KEPT):
            raise InvalidParams("has a rollout already; end that first", field="agentId")
        # It gets the tasks of the rollout and no others, or its share would be another.
        paused = AgentChanges(is_paused=True)
        await self._registry.update(candidate.id, paused, agent.owner, operator=True)
        self._follow(await self._rows.running())
        return row

    async def _last_ended(self) -> int:
        """Return the last event of the tasks that have ended. By the clock it could not be told:
        processes have their own, and a task ends within the same millisecond."""
        while await observe(self._store.accounting, _READ) == _READ:
            pass
        return await self._trust.last_number()

    def _version(self, agent: Registered, ref: str) -> Registered:
        """Return an agent that may become the next version of another."""
        field = "candidateId"
        found = self._own(agent.owner, ref, field)
        if found.id == agent.id:
            raise InvalidParams("is the agent itself", field=field)
        if found.price > agent.price:
            raise InvalidParams("costs more than the agent; callers agreed to less", field=field)
        return found

    def _own(self, owner: Principal, ref: str, field: str) -> Registered:
        """Return an agent of an owner: what callers said goes to no other owner's agent."""
        found = self._registry.get(ref)
        if found is None or found.owner != owner:
            raise InvalidParams("is no agent of the same owner", field=field)
        return found

    async def one(self, id: str, owner: Principal | None) -> RolloutRow | None:
        """Return a rollout of an owner, or of any (None)."""
        row = await self._rows.one(id)
        return row if row is not None and owner in (None, row.owner) else None

    async def page(
        self, owner: Principal | None, agent: str, *, limit: int, after: str = ""
    ) -> tuple[Sequence[RolloutRow], int]:
        """Return some rollouts of an owner or of all (None), of one agent or of all (empty)."""
        return await self._rows.page(owner, agent, limit=limit, after=after)

    async def change(
        self, id: str, owner: Principal | None, said: RolloutChange
    ) -> RolloutRow | None:
        """Give a rollout that is running another mode or share; None: there is no such one."""
        now = self._clock.now()
        row = await self._edit(id, owner, lambda found: _running(found).changed(said, now))
        if row is not None and not read(row).open:
            # Nothing waits for the copies of before.
            await self._judging.clear(row)
        return row

    async def promote(self, id: str, owner: Principal | None, reason: str) -> RolloutRow | None:
        """Put the new version in the agent's place; None: there is no such rollout. Raises
        `UnsupportedOperation` for one that ended."""
        row = await self._edit(id, owner, lambda found: _promoting(found, reason))
        return None if row is None else await self._put_in_place(row)

    async def roll_back(self, id: str, owner: Principal | None, reason: str) -> RolloutRow | None:
        """Leave the old version where it is, and end the rollout; None: there is no such one."""
        row = await self._edit(
            id, owner, lambda found: self._ended(_running(found), "rolledBack", reason)
        )
        if row is not None:
            await self._judging.clear(row)
        return row

    async def _edit(
        self,
        id: str,
        owner: Principal | None,
        edit: Callable[[RolloutDefinition], RolloutDefinition],
    ) -> RolloutRow | None:
        for _ in range(_TRIES):
            row = await self.one(id, owner)
            if row is None:
                return None
            stored = await self._write(row, edit(read(row)))
            if stored is not None:
                self._follow(await self._rows.running())
                return stored
        raise Overloaded("the rollout keeps changing; try again")

    async def _write(self, row: RolloutRow, after: RolloutDefinition) -> RolloutRow | None:
        """Store a rollout, unless it was changed meanwhile; return it."""
        is_running = after.state in ("running", "promoting")
        made = row._replace(definition=encode(after), is_running=is_running)
        return made._replace(version=row.version + 1) if await self._rows.change(made) else None

    async def _put_in_place(self, row: RolloutRow) -> RolloutRow | None:
        """Finish what was decided: after a crash, too."""
        found = read(row)
        state, reason = "promoted", found.reason
        try:
            await self._registry.adopt(row.agent, found.candidate, row.owner)
        except NoAgentAvailable:
            state, reason = "rolledBack", _GONE
        except InvalidParams as error:
            state, reason = "rolledBack", f"its card is refused: {error.public}"
        done = await self._edit(
            row.id,
            None,
            lambda one: self._ended(one, state, reason) if one.state == "promoting" else one,
        )
        await self._judging.clear(row)
        return done

    def _ended(self, found: RolloutDefinition, state: Any, reason: str) -> RolloutDefinition:
        dropped = found.figures.dropped + len(found.open)
        return replace(
            found,
            state=state,
            reason=reason[:LONGEST_REASON],
            ended_at=self._clock.now(),
            open=[],
            figures=replace(found.figures, dropped=dropped),
        )

    # Looking

    def _follow(self, rows: Sequence[RolloutRow]) -> None:
        """Have tasks go to the canaries that are running."""
        pairs = [(row, read(row)) for row in rows]
        self._canaries.follow(
            Canary(row.id, row.agent, found.candidate, found.share)
            for row, found in pairs
            if found.mode == "canary" and found.state == "running"
        )

    async def sweep(self) -> int:
        """Bring all rollouts up to date, unless another process does; return how many there are."""
        rows = await self._rows.running()
        self._follow(rows)
        is_ours = bool(rows) and await self._store.lead(Duty.RUN_ROLLOUTS)
        rows = rows if is_ours else ()
        self._judging.keep((row.id, one.task) for row in rows for one in read(row).open)
        for row in rows:
            await self._step(row)
        return len(rows)

    async def _step(self, row: RolloutRow) -> None:
        before = read(row)
        if before.state == "promoting":
            await self._put_in_place(row)
            return
        agent = self._registry.get(row.agent)
        candidate = self._registry.get(before.candidate)
        if agent is None or candidate is None:
            await self._carry_out(row, "rollback", _GONE)
            return
        found = before
        for sample in before.open[:_AT_ONCE]:
            found = await self._judging.judge(row, found, sample, agent)
        found = await self._discover(row, found, agent)
        is_far = found.position - before.position >= _READ
        if is_far or found.figures != before.figures or found.open != before.open:
            stored = await self._write(row, found)
            if stored is None:
                # Ended or changed meanwhile: nothing of this was counted.
                return
            _measure(before, found)
            row = stored
        age = self._clock.now() - (found.since or row.made_at)
        decision = decide(found, age / 1000)
        if decision is not None:
            await self._carry_out(row, decision[0], f"by its rule: {decision[1]}")

    async def _carry_out(self, row: RolloutRow, decision: str, why: str) -> None:
        act = self.promote if decision == "promote" else self.roll_back
        try:
            await act(row.id, None, why)
        except UnsupportedOperation:
            # Its owner was quicker.
            return
        self._audit.record(
            f"rollout.{decision}", outcome="done", who=row.owner.text, object=row.id, reason=why
        )

    async def _discover(
        self, row: RolloutRow, found: RolloutDefinition, agent: Registered
    ) -> RolloutDefinition:
        """Return a rollout with the tasks that ended since."""
        for event in await self._trust.after(found.position, _READ):
            found = replace(found, position=event.number)
            if event.agent == agent.id and event.type in OUTCOMES:
                found = await self._seen(row, found, agent, event)
        return found

    async def _seen(
        self,
        row: RolloutRow,
        found: RolloutDefinition,
        agent: Registered,
        event: TrustEventRow,
    ) -> RolloutDefinition:
        """Return a rollout after a task of the agent ended."""
        is_chosen = in_share(row.id, event.task_id, found.share)
        is_chosen = is_chosen and agent.is_repeatable(event.skill)
        is_done = event.type == "task_completed"
        # Also of a shadow: it may have been a canary when the task began, or had a larger share.
        if is_chosen or found.since:
            went_to = await self._went_to(event.task)
            if found.candidate in went_to:
                is_done = is_done and went_to[-1] == found.candidate
                if found.mode == "shadow":
                    return found.seen_new(event.response_ms, is_done=is_done)
                return _seen_at_canary(found, event, is_done=is_done)
        found = found.seen_old(event.response_ms, is_done=is_done)
        if not is_chosen or found.mode == "canary" or not is_done:
            return found
        return found.with_sample(OpenSample(task=event.task, task_id=event.task_id))

    async def _went_to(self, number: int) -> list[str]:
        """Return the agents that a task was given to, in order."""
        went_to: list[str] = []
        after = 0
        while batch := await self._store.read(
            number, after=after, limit=READ_AT_ONCE, artifacts=False
        ):
            for recorded in batch:
                if not recorded.body.startswith(_SKIPPED):
                    event = recorded.event
                    if isinstance(event, Forwarded):
                        went_to.append(event.agent)
            after = batch[-1].seq
        return went_to


def read(row: RolloutRow) -> RolloutDefinition:
    """Return what a row says."""
    return msgspec.json.decode(row.definition, type=RolloutDefinition)


def _running(found: RolloutDefinition) -> RolloutDefinition:
    if found.state != "running":
        raise UnsupportedOperation("the rollout has ended")
    return found


def _promoting(found: RolloutDefinition, reason: str) -> RolloutDefinition:
    return replace(_running(found), state="promoting", reason=reason[:LONGEST_REASON])


def _seen_at_canary(
    found: RolloutDefinition, event: TrustEventRow, *, is_done: bool
) -> RolloutDefinition:
    """Return a rollout after the new version was given a task."""
    found = found.seen_new(event.response_ms, is_done=is_done)
    sample = OpenSample(task=event.task, task_id=event.task_id, is_answered=True, is_canary=True)
    if not is_done:
        return found.judged(sample, "failed", event.reason)
    return found.with_sample(sample) if found.check_agent else found.judged(sample, "agreed")


def _measure(before: RolloutDefinition, after: RolloutDefinition) -> None:
    """Count what was judged and dropped in the metrics."""
    for name in ("agreed", "structure", "text", "check", "failed", "dropped"):
        more = getattr(after.figures, name) - getattr(before.figures, name)
        if more:
            figures.rollout_tasks.add(after.mode, name, by=more)
