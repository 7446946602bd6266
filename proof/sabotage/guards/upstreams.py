"""Guards against agents behind the gateway: silence, lost tasks, empty accounts."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from dragoman import Client, Settings
from dragoman.client.streams import life_signs, stream
from dragoman.client.streams.life_signs import LifeSigns, SilenceWatch
from dragoman.engine import engine, intake, sending
from dragoman.engine.engine import Engine
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import A2AError, InsufficientCredits, StoreRefused
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.model import operations as ops
from dragoman.model.identity import ANONYMOUS, Caller, MessageId, Principal
from dragoman.model.message import Message, Part, Role
from dragoman.model.money import MICRO
from dragoman.model.order import Order
from dragoman.service import Call
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.ledger.task_orders import TaskOrders
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial
from proof.scripted import DONE, WORKING, Answer, Say, card, hang, listening, task

# Seconds: how long the agents of these checks may be silent, and the whole of a check.
_PATIENCE = 0.6
_WITHIN = 2.5
_COMMENTS_WITHIN = 0.2
# More than an account has to begin with.
_DEAR = 10**9 * MICRO


@contextlib.asynccontextmanager
async def _agent(say: Say) -> AsyncGenerator[Client]:
    """Give a client of an agent that answers as it is told."""
    async with (
        listening(say) as url,
        Client(card(url), quiet=_PATIENCE / 3, patience=_PATIENCE) as client,
    ):
        yield client


async def _followed(client: Client, pause: Callable[[], Awaitable[None]] | None = None) -> str:
    """Give the agent a task and follow it; return how it ends, in a word."""
    try:
        async with asyncio.timeout(_WITHIN), client.stream("x") as events:
            async for _ in events:
                if pause is not None:
                    await pause()
                    pause = None
            return events.task.status.state.value if events.task is not None else "no task"
    except TimeoutError:
        return "no end"
    except A2AError as error:
        return type(error).__name__


# The checks


async def silent_agent(trial: Trial) -> Finding:
    """An agent that shows a task and then nothing, and answers nothing, is given up."""

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage":
            await answer.head()
            await answer.event(WORKING)
        await hang()

    async with _agent(say) as client:
        ends = await _followed(client)
    return Finding(ends == "NoSignOfLife", f"a task of a silent agent: {ends}")


async def questions_to_a_quiet_agent(trial: Trial) -> Finding:
    """An agent whose stream shows nothing is asked, and its answer counts."""

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage":
            await answer.head()
            await answer.event(WORKING)
            await hang()
        await answer.whole(result=task(DONE))

    async with _agent(say) as client:
        ends = await _followed(client)
    return Finding(ends == DONE, f"a task whose end its stream did not show: {ends}")


async def stream_without_its_comments(trial: Trial) -> Finding:
    """A stream whose comments stop is taken up anew, whatever the agent answers."""

    async def say(answer: Answer, method: str) -> None:
        if method == "GetTask":
            await answer.whole(result=task(WORKING))
            return
        await answer.head()
        await answer.event(WORKING)
        if method == "SubscribeToTask":
            await answer.event(DONE)
        for _ in range(3):
            await asyncio.sleep(0.02)
            await answer.piece(b": alive\n\n")
        await hang()

    patches = Patches()
    patches.put(life_signs, "SHORTEST_INTERVALS", lambda _: _COMMENTS_WITHIN)
    try:
        async with _agent(say) as client:
            ends = await _followed(client)
    finally:
        patches.take_back()
    return Finding(ends == DONE, f"a task whose stream lost its comments: {ends}")


async def reader_that_pauses(trial: Trial) -> Finding:
    """A reader that does not read for longer than patience lasts has not been left alone."""
    is_read = asyncio.Event()

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage":
            await answer.head()
            await answer.event(WORKING)
            await is_read.wait()
            await asyncio.sleep(_PATIENCE / 4)
            await answer.event(DONE)
        await hang()

    async def pause() -> None:
        await asyncio.sleep(1.5 * _PATIENCE)
        is_read.set()

    async with _agent(say) as client:
        ends = await _followed(client, pause)
    return Finding(ends == DONE, f"a task that was read late: {ends}")


async def process_that_stood_still(trial: Trial) -> Finding:
    """An agent is not blamed for a time in which this process stood still."""

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage":
            await answer.head()
            await answer.event(WORKING)
            # While the other end waits, nothing runs here for longer than its patience and a timer.
            asyncio.get_running_loop().call_later(0.05, time.sleep, _PATIENCE + 1.2)
            await asyncio.sleep(_PATIENCE / 2)
            await answer.event(DONE)
        await hang()

    async with _agent(say) as client:
        ends = await _followed(client)
    return Finding(ends == DONE, f"a task that lasted through a stop of ours: {ends}")


async def task_that_cannot_be_followed(trial: Trial) -> Finding:
    """A task that its agent does not know when it is to be followed again is asked for."""

    async def say(answer: Answer, method: str) -> None:
        if method == "SendStreamingMessage":
            await answer.head()
            await answer.event(WORKING)
        elif method == "GetTask":
            await answer.whole(result=task(DONE))
        else:
            await answer.whole(error={"code": -32001, "message": "Task not found"})

    async with _agent(say) as client:
        ends = await _followed(client)
    return Finding(ends == DONE, f"a task that ended behind our back: {ends}")


class _Dear:
    """Code whose tasks cost more than there is."""

    name = "dear"
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def admit(
        self, caller: Caller, operation: ops.SendMessage, began: ops.SendMessage | None = None
    ) -> None:
        """Let every caller in."""

    def plan(
        self,
        operation: ops.SendMessage,
        began: ops.SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Return what costs too much."""
        order = Order(agent="a-1", payee=Principal("", "bob"), price=_DEAR, held=_DEAR)
        return Plan(self._run, order=order)

    async def _run(self, worker: Worker) -> None:
        """Do nothing."""

    def withdraw(self, replay: Replay) -> None:
        """There is no other to be told."""


async def empty_account(trial: Trial) -> Finding:
    """A caller that cannot pay is told so, by one process on a file and by two."""
    said: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            store = SQLiteStore(trial.store, orders=TaskOrders(TaskOrderRules()))
            await store.open()
            stack.push_async_callback(store.close)
            await store.renew()
            code = Engine(_Dear(), store, Settings())
            stack.push_async_callback(code.stop)
            said.append(await _refusal(code))
    is_kept = said == [InsufficientCredits.__name__] * 2
    return Finding(is_kept, f"without credit, one process and two: {', '.join(said)}")


async def _refusal(code: Engine) -> str:
    message = Message(MessageId("m-1"), Role.USER, [Part(text="x")])
    call = Call(operation=ops.SendMessage(message=message), caller=Caller("alice"))
    try:
        await code.answer(call)
    except (A2AError, StoreRefused) as error:
        return type(error).__name__
    return "a task"


# What is removed


def _silence(patches: Patches) -> None:
    def endless(self: Any, verdict: A2AError) -> None:
        return None

    patches.put(SilenceWatch, "_end", lambda _: endless)


def _questions(patches: Patches) -> None:
    patches.put(SilenceWatch, "_asks", lambda _: property(lambda self: False))


def _comments(patches: Patches) -> None:
    def unexpected(self: Any) -> bool:
        return False

    patches.put(SilenceWatch, "_is_stalled", lambda _: unexpected)


def _pauses(patches: Patches) -> None:
    def run_on(self: Any) -> None:
        return None

    for name in ("hold", "hold_since_sign"):
        patches.put(LifeSigns, name, lambda _: run_on)


def _stops(patches: Patches) -> None:
    def blame(self: Any, seconds: float) -> None:
        return None

    patches.put(LifeSigns, "forgive", lambda _: blame)


class _Never(Exception):
    """Raised nowhere."""


def _unfollowed(patches: Patches) -> None:
    patches.put(stream, "TaskNotFound", lambda _: _Never)


def _refusals(patches: Patches) -> None:
    def as_it_is(error: StoreRefused) -> StoreRefused:
        return error

    for module in (engine, intake, sending):
        patches.put(module, "refused", lambda _: as_it_is)


GUARDS: tuple[Guard, ...] = (
    Guard("silence", "B3", "a silent agent is waited for without end", silent_agent, True),
    Guard("questions", "B3", "a quiet agent is not asked", questions_to_a_quiet_agent, True),
    Guard("comments", "B3", "comments may stop", stream_without_its_comments, True),
    Guard("pauses", "B3", "our own pauses count as silence", reader_that_pauses, True),
    Guard("stops", "B3", "our own stops count as silence", process_that_stood_still, True),
    Guard("unfollowed", "B3", "not found is not looked into", task_that_cannot_be_followed, True),
    Guard("refusals", "B4", "what the store refuses is not translated", empty_account, True),
)
REMOVALS: dict[str, Removal] = {
    "silence": _silence,
    "questions": _questions,
    "comments": _comments,
    "pauses": _pauses,
    "stops": _stops,
    "unfollowed": _unfollowed,
    "refusals": _refusals,
}
