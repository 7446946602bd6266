"""Guards on what one caller may take: quotas, and shares of events, bytes and disk."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from dragoman import Agent, Turn
from dragoman import shares as shares_module
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.config import HttpSettings, Settings, load_settings
from dragoman.engine.engine import Engine
from dragoman.engine.intake import Intake
from dragoman.engine.log import LogIsFull
from dragoman.engine.running.worker import Worker
from dragoman.errors import RateLimited
from dragoman.http.rates import quota_of
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate
from dragoman.model.identity import Caller, ContextId, MessageId, Principal, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Call, TaskReply
from dragoman.shares import ASKING, QUANTUM, Account, Root, Shares
from dragoman.stores.memory import MemoryStore
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_GREEDY = Caller("greedy", authenticated=True)
_OTHER = Caller("other", authenticated=True)
_STREAMS = 24
# Turns of the loop after which something is not waited for any more.
_TURNS = 20_000
_SHARE = 100_000
_ids = itertools.count()


def endless_agent() -> Agent:
    """Return an agent that streams without end, also where it is told to stop."""
    agent = Agent("Shares", "Takes what it can.")

    @agent.skill(default=True)
    async def endless(text: str) -> AsyncIterator[str]:
        """Stream without end."""
        while True:
            yield "x" * 100

    @agent.skill
    async def stubborn(text: str, turn: Turn) -> None:
        """Stream without end, whatever is in the way."""
        async with turn.artifact(name="log") as log:
            while True:
                with contextlib.suppress(Exception):
                    await log.write("x" * 100)
                await asyncio.sleep(0)

    @agent.skill
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    return agent


@contextlib.asynccontextmanager
async def _engine(shares: Shares, **settings: Any) -> AsyncGenerator[Engine]:
    store = MemoryStore()
    await store.open()
    engine = Engine(endless_agent(), store, load_settings({}, **settings), shares=shares)
    try:
        yield engine
    finally:
        await engine.stop()


async def _begin(engine: Engine, skill: str, caller: Caller = _GREEDY, id: str = "") -> Task:
    message = Message(
        MessageId(id or f"m{next(_ids)}"),
        Role.USER,
        [Part(text="hi")],
        metadata={"skillId": skill},
    )
    operation = ops.SendMessage(message=message, wait=False)
    reply = await engine.answer(Call(operation=operation, caller=caller))
    assert isinstance(reply, TaskReply), "everything here is a task"
    return reply.reading.task


async def _state(engine: Engine, task: Task) -> TaskState:
    reply = await engine.answer(Call(operation=ops.GetTask(task_id=task.id), caller=_GREEDY))
    assert isinstance(reply, TaskReply), "a task that is read is a task"
    return reply.reading.task.status.state


async def _turns(is_so: Callable[[], bool]) -> bool:
    """Let the loop turn until something is so; tell whether it came to be."""
    for _ in range(_TURNS):
        if is_so():
            return True
        await asyncio.sleep(0)
    return False


# Checks


async def tasks_beyond_a_quota(trial: Trial) -> Finding:
    """Begin more tasks than a quota has, below all that HTTP knows of."""
    begun = 0
    async with _engine(Shares(quota_of(Settings(http=HttpSettings(quota="2/d"))))) as engine:
        for _ in range(4):
            with contextlib.suppress(RateLimited):
                await _begin(engine, "echo")
                begun += 1
    return Finding(begun == 2, f"{begun} tasks begun under a quota of 2")


async def tasks_of_calls(trial: Trial) -> Finding:
    """Have an agent's calls begin tasks in the same process, under its own name."""
    shares, begun = Shares(quota_of(Settings(http=HttpSettings(quota="2/d")))), 0
    async with _engine(shares) as engine:
        for number in range(4):
            id = f"call-{number}"
            with contextlib.suppress(RateLimited), shares.calling(id, _GREEDY.who):
                # Each agent calls as another caller.
                caller = Caller(f"agent-{number}", authenticated=True)
                await _begin(engine, "echo", caller, id)
                begun += 1
    return Finding(begun == 2, f"{begun} tasks begun for a caller with a quota of 2")


async def tasks_by_the_id_of_a_call(trial: Trial) -> Finding:
    """Have others begin tasks by the id of a call that is on its way."""
    left, shares = 0, Shares(quota_of(Settings(http=HttpSettings(quota="4/d"))))
    async with _engine(shares) as engine:
        with shares.calling("call", _GREEDY.who):
            for number in range(3):
                await _begin(engine, "echo", Caller(f"agent-{number}", authenticated=True), "call")
        with contextlib.suppress(RateLimited):
            while left < 4:
                await _begin(engine, "echo")
                left += 1
    return Finding(left == 3, f"{4 - left} tasks counted for one call")


@contextlib.asynccontextmanager
async def _beside_another() -> AsyncGenerator[tuple[Account, Callable[[float], None]]]:
    """Begin endless tasks of one caller while another is there; the value is the account, and what
    tells that the other asked for something, so many seconds ago."""
    # Time stands still: what is done in a turn is counted, however long it takes.
    now = 1000.0
    shares = Shares(now=lambda: now)

    def asked(ago: float) -> None:
        nonlocal now
        shares.saw(_OTHER.who)
        now += ago

    async with _engine(shares, max_events=1_000_000) as engine:
        account = shares.account(_GREEDY.who)
        # All at once: what runs alone meanwhile writes thousands of events.
        await asyncio.gather(*(_begin(engine, "endless") for _ in range(_STREAMS)))
        asked(0)
        await _turns(lambda: account.is_heavy)
        yield account, asked


async def endless_tasks(trial: Trial) -> Finding:
    """See what endless tasks of one caller do in one turn of the loop while another is there."""
    most = 0
    async with _beside_another() as (account, asked):
        # No caller asks for anything at present, so there are no pauses.
        asked(ASKING + 1)
        for _ in range(50):
            await asyncio.sleep(0)
        for _ in range(200):
            before = account.used
            await asyncio.sleep(0)
            most = max(most, account.used - before)
    return Finding(most <= 1.5 * QUANTUM, f"{most / QUANTUM:.1f} slices in one turn of the loop")


async def slices_while_others_ask(trial: Trial) -> Finding:
    """See whether endless tasks of one caller pause while another asks for things."""
    pause, shares_module.PAUSE = shares_module.PAUSE, 3600.0
    try:
        async with _beside_another() as (account, asked):
            asked(0)
            for _ in range(50):
                await asyncio.sleep(0)
            before = account.used
            for _ in range(200):
                await asyncio.sleep(0)
            used = account.used - before
    finally:
        shares_module.PAUSE = pause
    return Finding(not used, f"{used / QUANTUM:.1f} slices during a pause")


async def code_beyond_its_limit(trial: Trial) -> Finding:
    """Let code go on that ignores that its task is as large as it may be."""
    async with _engine(Shares(), max_events=50) as engine:
        task = await _begin(engine, "stubborn")
        is_over = await _turns(lambda: not engine.live_tasks)
        state = await _state(engine, task)
    said = f"{state.name.lower()}, its code {'stopped' if is_over else 'goes on'}"
    return Finding(is_over and state is TaskState.FAILED, said)


async def endless_store(trial: Trial) -> Finding:
    """Let one caller's tasks fill the store."""
    shares = Shares(most_stored=_SHARE)
    account = shares.account(_GREEDY.who)
    async with _engine(shares, max_events=1_000_000) as engine:
        await asyncio.gather(*(_begin(engine, "endless") for _ in range(3)))
        for _ in range(_TURNS):
            if not engine.live_tasks or account.used > 1000 * _SHARE:
                break
            await asyncio.sleep(0)
        live = engine.live_tasks
        try:
            await _begin(engine, "echo")
            is_refused = False
        except RateLimited:
            is_refused = True
    return Finding(not live and is_refused, f"{live} tasks go on, one more refused: {is_refused}")


async def relayed_contents(trial: Trial) -> Finding:
    """Follow a large task only to pass it on."""
    seen = ReplayFilter(is_light=True)
    ids = TaskId("t"), ContextId("c")
    seen.apply(Task(*ids, TaskStatus(TaskState.WORKING)))
    for number in range(500):
        chunk = Artifact("a", [Part(text="x" * 10_000)])
        seen.apply(ArtifactUpdate(*ids, chunk, append=number > 0))
    task = seen.task()
    assert task is not None, "it was begun"
    held = sum(len(part.text) for part in task.artifacts[0].parts if isinstance(part.text, str))
    whole = Task(*ids, task.status, artifacts=[Artifact("a", [Part(text="x" * 5_000_001)])])
    found = seen.missing(whole)
    is_told = [event.artifact.parts for event in found if isinstance(event, ArtifactUpdate)]
    is_right = is_told == [[Part(text="x")]]
    return Finding(held == 0 and is_right, f"{held:,} characters of 5,000,000 held")


# Removals


def _quota(patches: Patches) -> None:
    def uncounted(self: Any, log: Any, root: Any, count: int) -> None:
        return None

    patches.put(Intake, "_count", lambda _: uncounted)


def _root(patches: Patches) -> None:
    def sender(self: Any, message_id: str, who: Principal | str) -> Root:
        return Root(who, is_counted=False)

    patches.put(Shares, "root", lambda _: sender)


def _once(patches: Patches) -> None:
    def remembered(self: Any, message_id: str, who: Principal | str) -> Root:
        return self._roots.get(message_id) or Root(who, is_counted=False)

    patches.put(Shares, "root", lambda _: remembered)


def _turn(patches: Patches) -> None:
    async def at_once(self: Any, account: Any, agent: str) -> None:
        return None

    patches.put(Shares, "turn", lambda _: at_once)


def _slices(patches: Patches) -> None:
    def alone(self: Any, account: Any) -> bool:
        return False

    patches.put(Shares, "is_shared", lambda _: alone)


def _pauses(patches: Patches) -> None:
    def none_asks(self: Any, account: Any) -> bool:
        return False

    patches.put(Shares, "is_asked", lambda _: none_asks)


def _limit(patches: Patches) -> None:
    def only_told(self: Any, reason: str) -> None:
        raise LogIsFull(reason)

    patches.put(Worker, "exceed", lambda _: only_told)


def _disk(patches: Patches) -> None:
    def uncounted(self: Any, account: Any, size: int) -> None:
        return None

    patches.put(Shares, "store", lambda _: uncounted)


def _light(patches: Patches) -> None:
    def hold(self: Any) -> None:
        return None

    patches.put(ReplayFilter, "_lighten", lambda _: hold)


GUARDS: tuple[Guard, ...] = (
    Guard("quota", "A6", "the engine counts no tasks", tasks_beyond_a_quota, is_here=True),
    Guard("root", "A6", "calls count for the agent that calls", tasks_of_calls, is_here=True),
    Guard("once", "A6", "a call counts each time", tasks_by_the_id_of_a_call, is_here=True),
    Guard("turns", "A8", "no task waits for a turn of the loop", endless_tasks, is_here=True),
    Guard("slices", "A8", "others' presence makes slices no smaller", endless_tasks, is_here=True),
    Guard("asking", "A8", "no pauses while others ask", slices_while_others_ask, is_here=True),
    Guard("limit", "A8", "code may ignore its limit", code_beyond_its_limit, is_here=True),
    Guard("disk", "A8", "what a caller stores is not counted", endless_store, is_here=True),
    Guard("light", "A8", "what is passed on is held", relayed_contents, is_here=True),
)
REMOVALS: dict[str, Removal] = {
    "quota": _quota,
    "root": _root,
    "once": _once,
    "turns": _turn,
    "slices": _slices,
    "asking": _pauses,
    "limit": _limit,
    "disk": _disk,
    "light": _light,
}
