"""Guards of a gateway against agents that send much of nothing, or use what they are told."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.config import load_settings
from dragoman.errors import RateLimited
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.delivery import race
from dragoman.gateway.delivery.answer_relay import AnswerRelay
from dragoman.gateway.registry.registration import Registration
from dragoman.gateway.router import Router
from dragoman.model import operations as ops
from dragoman.model.identity import Caller, MessageId, Principal
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.service import Call, TaskReply
from dragoman.shares import Shares
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial
from proof.scripted import DONE, WORKING, Answer, Say, card, hang, listening, task

# Of a task; an agent here sends nothing four times as often, and would still end it.
_MOST_EVENTS = 20
_ALICE, _EVE = (Caller(name, authenticated=True) for name in ("alice", "eve"))


@contextlib.asynccontextmanager
async def _gateway(trial: Trial, say: Say, count: int, **more: Any) -> AsyncGenerator[App]:
    """Give a gateway to so many agents that answer as they are told."""
    settings = load_settings({}, store=str(trial.store), allow_private=True, **more)
    owner = Principal("", "bob")
    async with listening(say) as url, gateway_app(settings=settings).running() as app:
        registry, shown = gateway_of(app).registry, msgspec.to_builtins(card(url))
        for name in "ab"[:count]:
            said = Registration(url=url, name=name, card=shown, repeatable=True)
            agent = await registry.register(said, owner)
            await registry.heartbeat(agent.id, "online", owner=owner)
        yield app


def _sent(caller: Caller, id: str, *, wait: bool, text: str = "x", **metadata: Any) -> Call:
    message = Message(MessageId(id), Role.USER, [Part(text=text)])
    operation = ops.SendMessage(message=message, wait=wait, metadata=metadata)
    return Call(operation=operation, caller=caller)


# Checks


async def _nothing(answer: Answer, method: str) -> None:
    """Do a task, and send much of nothing before its end."""
    if method in ("SendStreamingMessage", "SubscribeToTask"):
        await answer.head()
        await answer.event(WORKING)
        for _ in range(4 * _MOST_EVENTS):
            await answer.piece(b": x\n" * 1024)
        await answer.event(DONE)
    else:
        await answer.whole(result=task(WORKING))


async def _carried(trial: Trial, count: int) -> Finding:
    """Have agents do a task that send nothing more often than they may send events."""
    turns = 0

    def make(turn: Any) -> Any:
        async def counted(self: Any, account: Any, agent: str) -> None:
            nonlocal turns
            turns += 1
            await turn(self, account, agent)

        return counted

    patches = Patches()
    patches.put(Shares, "turn", make)
    try:
        async with _gateway(trial, _nothing, count, max_events=_MOST_EVENTS) as app:
            call = _sent(_ALICE, "m-1", wait=True, skillId="s", race=count)
            reply = await gateway_of(app).service.answer(call)
    finally:
        patches.take_back()
    assert isinstance(reply, TaskReply), "everything here is a task"
    state = reply.reading.task.status.state
    is_kept = state is TaskState.FAILED and turns >= _MOST_EVENTS
    return Finding(is_kept, f"{state.name.lower()} after {turns} turns")


async def much_of_nothing(trial: Trial) -> Finding:
    """An agent that sends comments without end waits for turns, and its task has an end."""
    return await _carried(trial, 1)


async def much_of_nothing_in_a_race(trial: Trial) -> Finding:
    """Agents that race, and send comments without end, wait for turns and have an end."""
    return await _carried(trial, 2)


async def ids_that_agents_are_told(trial: Trial) -> Finding:
    """An agent begins tasks of its own by the id of the message that it was sent."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun = 0

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage" and not told.done():
            told.set_result(answer.params["message"]["messageId"])
        await hang()

    async with _gateway(trial, say, 1, quota="1/d") as app:
        service = gateway_of(app).service
        await service.answer(_sent(_ALICE, "m-1", wait=False, skillId="s"))
        id = await told
        for number in range(3):
            call = _sent(_EVE, id, wait=False, text=f"{number}", skillId="s")
            with contextlib.suppress(RateLimited):
                await service.answer(call)
                begun += 1
    return Finding(begun == 1, f"{begun} tasks begun under a quota of 1")


# Removals


async def _let_others(self: Any) -> None:
    """Neither count nor wait for a turn."""
    await asyncio.sleep(0)


def _idle(patches: Patches) -> None:
    patches.put(AnswerRelay, "take_idle_turn", lambda _: _let_others)


def _idle_rivals(patches: Patches) -> None:
    patches.put(race._UnshownAnswer, "take_idle_turn", lambda _: _let_others)  # pyright: ignore[reportPrivateUsage] - what is to be removed


def _elsewhere(patches: Patches) -> None:
    def anywhere(self: Any, url: str) -> bool:
        return True

    patches.put(Router, "is_own", lambda _: anywhere)


GUARDS: tuple[Guard, ...] = (
    Guard("nothing", "A8", "comments take no turns and have no end", much_of_nothing, True),
    Guard("nothing-raced", "A8", "so it is with those in a race", much_of_nothing_in_a_race, True),
    Guard("elsewhere", "A6", "agents may use ids they are told", ids_that_agents_are_told, True),
)
REMOVALS: dict[str, Removal] = {
    "nothing": _idle,
    "nothing-raced": _idle_rivals,
    "elsewhere": _elsewhere,
}
