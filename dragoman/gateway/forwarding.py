"""The gateway's code as the engine sees it: an agent that has others do its work."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from dragoman.engine.replay import Replay
from dragoman.engine.worker import Ended, Plan, Worker
from dragoman.errors import NoAgentAvailable
from dragoman.gateway import hops, wishes
from dragoman.gateway.agents import Registered
from dragoman.gateway.carrier import Carrier, canceled
from dragoman.gateway.contest import Contest
from dragoman.gateway.means import Directory, Means
from dragoman.gateway.wishes import Wishes
from dragoman.model.artifact import Artifact
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.errand import Errand
from dragoman.model.identity import ANONYMOUS, Caller, Principal
from dragoman.model.message import Json, Message, Part
from dragoman.model.operations import SendMessage, StreamMessage
from dragoman.stores.sqlite.errands import ErrandRow

logger = logging.getLogger("dragoman")

NAME = "gateway"
# The skill that is the gateway's own.
DISCOVERY = "agent-discovery"
# Seconds: what becomes of a task that is given less says nothing of its agent.
_LEAST_TIME = 1.0


class Chosen(msgspec.Struct, frozen=True):
    """Who may do a task, best first, and why."""

    agents: Sequence[Registered]
    why: str = ""
    # What was asked for, or what fits the text.
    skill: str = ""


class Router(Directory, Protocol):
    """Knows the agents, and which of them is for what."""

    def choose(self, operation: SendMessage, wanted: Wishes, requester: Principal) -> Chosen:
        """Return who does it for a requester; raises `NoAgentAvailable`, `AgentOffline`,
        `TrustTooLow` or `InsufficientCredits`."""
        ...

    def find(self, text: str, caller: Caller) -> list[Json]:
        """Return agents by what they can do, as a caller may see them."""
        ...

    def ended(self) -> None:
        """Note that a task ended, or is about to."""
        ...

    async def errand(self, number: int) -> ErrandRow | None:
        """Return the errand of a task, by its number."""
        ...


class Forwarding:
    """An agent whose code is another agent."""

    name = NAME
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def __init__(self, means: Means, router: Router, clock: Clock | None = None) -> None:
        self._means = means
        self._router = router
        self._clock = clock or SystemClock()

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Everybody whom the gateway knows may have tasks done."""

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Choose who does it. A further message goes where the first one went."""
        if is_answer or began is not None:
            return Plan(self._run([]))
        arrival = hops.arrive(operation.metadata, self._means.id)
        wanted = wishes.read(operation)
        if wanted.skill == DISCOVERY and not wanted.agent:
            return Plan(self._found)
        chosen = self._router.choose(operation, wanted, caller.principal)
        if not chosen.agents:
            raise NoAgentAvailable("No agent available")
        now = self._clock.now()
        ends = wishes.deadline(wanted, arrival, now)
        rivals = chosen.agents[: wanted.race]
        best = rivals[0]
        seconds = None if ends is None else max(0.001, (ends - now) / 1000)
        is_hurried = seconds is not None and seconds < _LEAST_TIME
        held = max(agent.price for agent in rivals)
        errand = Errand(
            agent=best.id,
            payee=best.owner,
            held=held,
            price=best.price,
            skill=chosen.skill or wanted.skill,
            due_at=ends or 0,
            cause="hurried" if is_hurried else "",
        )
        return Plan(
            self._run(
                [agent.id for agent in chosen.agents],
                wanted,
                chosen.why,
                # Else its caller has chosen one.
                is_ours=not operation.message.task_id,
            ),
            deadline=seconds,
            tasks=len(rivals),
            errand=errand,
            may_begin_early=seconds is None and self._may_begin_early(operation, best, wanted),
        )

    def _may_begin_early(self, operation: SendMessage, agent: Registered, wanted: Wishes) -> bool:
        """Say whether a task without a deadline may go out before it is on disk: nothing is held
        for it, whoever sends it waits, and the message given to another process, or sent again
        after a crash of this one, goes to the same address and leads to the same task there. (A
        deadline is counted from now: the same message again would have another.)"""
        return (
            bool(wanted.agent)
            and wanted.race == 1
            and operation.wait
            and not isinstance(operation, StreamMessage)
            and self._means.settings.idempotency
            and not agent.price
            and not agent.replicas
            and self._means.upstreams.of(agent).works_once(agent.url)
        )

    def _run(
        self,
        chosen: Sequence[str],
        wanted: Wishes | None = None,
        why: str = "",
        *,
        is_ours: bool = False,
    ) -> Any:
        async def run(worker: Worker) -> Message | None:
            return await self._carried(worker, chosen, wanted, why, is_ours=is_ours)

        return run

    async def _carried(
        self,
        worker: Worker,
        chosen: Sequence[str],
        wanted: Wishes | None,
        why: str,
        *,
        is_ours: bool,
    ) -> Message | None:
        wanted = wanted or wishes.read(worker.replay.began)
        if not chosen and worker.replay.forwarded is None:
            # It was taken over before anything was sent.
            found = self._router.choose(worker.replay.began, wanted, worker.caller.principal)
            chosen, why = await self._agreed(worker, found.agents), found.why
        if wanted.race > 1 and worker.replay.turn == 0:
            return await Contest(self._means, worker, chosen, wanted, is_ours=is_ours).run()
        carrier = Carrier(self._means, worker, chosen, why, is_ours=is_ours)
        try:
            await carrier.carry()
        except (asyncio.CancelledError, Ended):
            # Also a task that reached a limit: its agent is not to work on for nothing.
            if worker.is_cancelled or worker.log.is_over:
                self._means.soon(carrier.cancel())
            raise
        finally:
            self._router.ended()
        return None

    async def _agreed(self, worker: Worker, agents: Sequence[Registered]) -> list[str]:
        """Return who may do a task that was held for already: the one it was held for comes first,
        another does it for no more, and is the one who is paid."""
        errand = await self._router.errand(worker.log.number)
        if errand is None:
            return [agent.id for agent in agents]
        fitting = [one for one in agents if one.id == errand.agent or one.price <= errand.held]
        if not fitting:
            raise NoAgentAvailable("No agent available")
        fitting.sort(key=lambda agent: agent.id != errand.agent)
        best = fitting[0]
        if best.id != errand.agent:
            worker.log.errand = Errand(
                agent=best.id, payee=best.owner, price=best.price, held=best.price
            )
        return [agent.id for agent in fitting]

    def withdraw(self, replay: Replay) -> None:
        """Tell the agent that has a task which nobody carries any more."""
        if replay.forwarded is not None and replay.forwarded.task_id:
            self._means.soon(canceled(self._means, replay.forwarded))

    async def _found(self, worker: Worker) -> None:
        """Answer who could do what a message says: the gateway's own skill."""
        found = self._router.find(worker.message.text, worker.caller)
        artifact = Artifact(
            artifact_id=worker.artifact_id(), parts=[Part(data=found)], name="agents"
        )
        worker.artifact(artifact)
