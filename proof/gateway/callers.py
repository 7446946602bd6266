"""Callers of a gateway under test. Each has one task done after another and sees every one of them
through: what was cut off is sent again as it was, a broken stream is gone on with where it broke.
"""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any, Literal

import msgspec

from proof.client import CallRefused, ConnectionGone, Frame, RpcConnection, ServerBusy, message
from proof.crash.checker import RESTING, TERMINAL, History, Sent, fold
from proof.gateway.agent import order_of, tale_of, word
from proof.results import Json
from proof.servers import Replicas

# Seconds a caller thinks between two tasks, at most, and before it tries again what was cut off.
PAUSE = 0.3
_AGAIN = (0.02, 0.2)
# Seconds a blocking send may wait for the end of its task before it is sent again.
_WITHIN = 15.0
Kind = Literal["short", "tale", "order", "walk", "cancel", "left", "namesake"]
# How often each is done, of a hundred.
_WEIGHTS: dict[Kind, int] = {
    "short": 32,
    "walk": 8,
    "tale": 25,
    "order": 10,
    "cancel": 8,
    "left": 12,
    "namesake": 5,
}


class Account(msgspec.Struct, frozen=True):
    """A caller with an account."""

    name: str
    token: str


class ExpectedTask(msgspec.Struct):
    """One thing a caller wants done, and what has to come of it."""

    kind: Kind
    party: Account
    # The agent that does it, and what it was told.
    agent: str
    text: str
    sent: Sent
    # What an undisturbed run says in the end.
    expected: str
    is_followed: bool = False
    # Whether its caller was told how it ended.
    is_seen: bool = False

    @property
    def task_id(self) -> str:
        """The task it led to, once an answer said so."""
        return self.sent.task_id


class GatewayLoad:
    """The callers and what they share."""

    def __init__(
        self, gateways: Replicas, seed: int, agents: list[str], pause: float = PAUSE
    ) -> None:
        self.gateways = gateways
        self.seed = seed
        self.agents = agents
        self.pause = pause
        self.history = History()
        self.wanted_tasks: list[ExpectedTask] = []
        self.stopping = asyncio.Event()
        # Requests that were cut off, streams that were gone on with, and what was refused.
        self.unknown = 0
        self.resumed = 0
        self.refused: Counter[str] = Counter()


class GatewayCaller:
    """One connection of one party."""

    def __init__(self, load: GatewayLoad, party: Account, number: int) -> None:
        self._load = load
        self._party = party
        self._number = number
        self._chance = random.Random(f"{load.seed}/{party.name}/{number}")
        self._count = 0
        self._same = 0
        self._connection: RpcConnection | None = None

    async def run(self) -> None:
        """Go on until it is time to stop, and see what was begun through."""
        try:
            while not self._load.stopping.is_set():
                try:
                    await self._one_task()
                except CallRefused as error:
                    self._load.refused[f"{error.code} {error}"] += 1
                await asyncio.sleep(self._chance.uniform(0, self._load.pause))
        finally:
            self._hang_up()

    # What callers do

    async def _one_task(self) -> None:
        (kind,) = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if kind in ("short", "walk"):
            await self._settled(self._new(kind, kind, self._name()))
        elif kind == "tale":
            await self._followed(self._new("tale", "tale", self._tale()))
        elif kind in ("order", "namesake"):
            await self._dialogue(kind)
        elif kind == "cancel":
            await self._canceled(
                self._new("cancel", "tale", f"20 100 {self._name()}", at_once=True)
            )
        else:
            skill = self._chance.choice(["short", "tale"])
            text = self._name() if skill == "short" else self._tale()
            await self._settled(self._new("left", skill, text, at_once=True))

    def _name(self) -> str:
        self._count += 1
        return f"{self._load.seed}-{self._party.name}-{self._number}-{self._count}"

    def _tale(self) -> str:
        return f"{self._chance.randint(3, 30)} {self._chance.randint(5, 120)} {self._name()}"

    def _new(self, kind: Kind, skill: str, text: str, *, at_once: bool = False) -> ExpectedTask:
        """Note a task before it is sent."""
        load = self._load
        # Who asked in a dialogue has to be there for the answer, and who took a step for the next
        # one: the one that is durable.
        is_lasting = skill in ("order", "walk")
        agent = load.agents[-1] if is_lasting else self._chance.choice(load.agents)
        id = text.split()[-1]
        params = message(skill, text, id, immediately=at_once)
        params["metadata"] = {"agentId": agent}
        method = "SendStreamingMessage" if kind == "tale" else "SendMessage"
        if kind == "namesake":
            # Others have messages of the same name, which must not be taken for this one.
            sent = Sent(method, params)
        else:
            sent = load.history.invoke(method, params)
        expected = tale_of(text) if skill == "tale" else word(text)
        wanted = ExpectedTask(kind, self._party, agent, text, sent, expected)
        load.wanted_tasks.append(wanted)
        return wanted

    async def _settled(self, wanted: ExpectedTask) -> None:
        """Send, and be told how it ended; or only that it began."""
        task = await self._sent(wanted.sent)
        wanted.is_seen = task["status"]["state"] in TERMINAL

    async def _dialogue(self, kind: Kind) -> None:
        text = self._name()
        if kind == "namesake":
            self._same += 1
            text = f"{self._load.seed}-same-{self._number}-{self._same}"
        wanted = self._new(kind, "order", text)
        answer = f"{self._party.name}-{self._count}"
        wanted.expected = order_of(text, answer)
        task = await self._sent(wanted.sent)
        if task["status"]["state"] != "TASK_STATE_INPUT_REQUIRED":
            wanted.is_seen = task["status"]["state"] in TERMINAL
            return
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        said = message("order", answer, f"{self._name()}-answer", task_id=wanted.task_id)
        if kind == "namesake":
            sent = Sent("SendMessage", said)
        else:
            sent = self._load.history.invoke("SendMessage", said)
        task = await self._sent(sent)
        wanted.is_seen = task["status"]["state"] in TERMINAL

    async def _canceled(self, wanted: ExpectedTask) -> None:
        await self._sent(wanted.sent)
        await asyncio.sleep(self._chance.uniform(0, 1.5))
        with contextlib.suppress(CallRefused):
            # One that has ended meanwhile cannot be.
            task = await self._persisted("CancelTask", {"id": wanted.task_id})
            self._load.history.saw(wanted.task_id, task["status"]["state"])

    async def _followed(self, wanted: ExpectedTask) -> None:
        """Follow a stream to its end, through every cut."""
        first: Json = {}
        events: list[Json] = []
        after: int | None = None
        while True:
            frames: list[Frame] = []
            try:
                await self._stretch(wanted, after, frames)
            except ConnectionGone:
                self._load.unknown += 1
            if frames:
                head, *rest = [frame.value for frame in frames]
                first = first or head["task"]
                events += rest
                after = frames[-1].seq
                if _rests(frames[-1]):
                    break
                self._load.resumed += 1
            await asyncio.sleep(self._chance.uniform(*_AGAIN))
        wanted.is_followed = wanted.is_seen = True
        ended = fold(first, events)
        told = text_of(ended)
        # How it ended is looked at in the end, with all others.
        if ended["status"]["state"] == "TASK_STATE_COMPLETED" and told != wanted.expected:
            fact = f"the stream of {wanted.task_id} said {told!r}, not {wanted.expected!r}"
            self._load.history.told.add("torn", fact)

    async def _stretch(self, wanted: ExpectedTask, after: int | None, frames: list[Frame]) -> None:
        history = self._load.history
        sent = wanted.sent
        method, params = sent.method, sent.params
        if after is not None:
            method, params = "SubscribeToTask", {"id": sent.task_id}
        connection = await self._connected()
        try:
            async with contextlib.aclosing(
                connection.stream(method, params, after=after)
            ) as stream:
                async for frame in stream:
                    frames.append(frame)
                    if len(frames) == 1:
                        history.ack(sent, frame.value["task"])
                        if after is not None and frame.seq != after:
                            fact = f"the stream of {sent.task_id} after {after} is at {frame.seq}"
                            history.told.add("torn", fact)
        finally:
            self._hang_up()
            if frames:
                history.saw_frames(sent.task_id, frames)

    # How

    async def _connected(self) -> RpcConnection:
        if self._connection is None:
            port = await self._load.gateways.port()
            self._connection = RpcConnection(port, token=self._party.token)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _sent(self, sent: Sent) -> Json:
        answer = await self._persisted(sent.method, sent.params)
        self._load.history.ack(sent, answer["task"])
        return answer["task"]

    async def _persisted(self, method: str, params: Json) -> Any:
        """Call until there is an answer."""
        while True:
            connection = await self._connected()
            try:
                return await connection.call(method, params, within=_WITHIN)
            except ServerBusy:
                self._hang_up()
            except ConnectionGone:
                self._load.unknown += 1
                self._hang_up()
            await asyncio.sleep(self._chance.uniform(*_AGAIN))


def _rests(frame: Frame) -> bool:
    shown = frame.value.get("statusUpdate") or frame.value.get("task")
    return shown is not None and shown["status"]["state"] in RESTING


def text_of(task: Json) -> str:
    """Return what an agent made, as one text."""
    return "".join(
        part.get("text", "") for made in task.get("artifacts", []) for part in made["parts"]
    )
