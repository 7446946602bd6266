"""Our client behind a proxy that breaks answers off at any byte, over and over.

What a caller was shown through all the cuts has to be what an undisturbed reader is shown: event
for event where streams have positions, and as the task they add up to where they have none. And
no message, however often its answer was lost, may lead to a second task.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dragoman.client.client import Client
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.errors import A2AError, DeliveryUnknown
from dragoman.model.artifact import Artifact
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentCard
from dragoman.model.events import ArtifactUpdate
from dragoman.model.message import Message, MessageId, Part, Role
from dragoman.model.task import Task
from dragoman.testing.load import HOST
from proof.results import Progress, Result, Row, bound, silent, workplace
from proof.servers import Replicas, make_replicas
from proof.wire.chaos import Chaos, chaos

READERS = 24
# A task and everything about it, however often it is cut.
TASK_WITHIN = 60.0


class Way(NamedTuple):
    """How a reader talks to the server, and whether it knows of the server's promises."""

    version: str
    binding: str
    has_promises: bool


WAYS = [
    Way(version, binding, has_promises)
    for has_promises in (True, False)
    for version, binding in [("1.0", JSONRPC), ("1.0", HTTP_JSON), ("0.3", JSONRPC)]
]


class CutsResult(Result, kw_only=True):
    """What callers were shown through cuts."""

    proof: str = "cuts"
    cuts: int
    # By where an answer broke, and by how the server was talked to.
    places: dict[str, int]
    ways: dict[str, int]
    tasks: int
    events: int
    # Runs whose events, or whose task, are not those of an undisturbed reader.
    differing: int
    folded_wrong: int
    # Messages in more than one task.
    doubled: int
    # Runs that ended with an error, but for those whose outcome cannot be known.
    failed: int
    unknown: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        cuts = f"in {self.cuts:,} cuts, {self.tasks:,} tasks, {self.events:,} events"
        return [
            Row(
                "Streams with positions that differ after cuts",
                f"{self.differing} {cuts}",
                not self.differing,
                self.bound,
            ),
            Row(
                "Streams without positions that add up differently after cuts",
                f"{self.folded_wrong} {cuts}",
                not self.folded_wrong,
                self.bound,
            ),
            Row(
                "Messages in two tasks because an answer was lost",
                f"{self.doubled} of {self.tasks:,} tasks",
                not self.doubled,
                self.bound,
            ),
            Row(
                "Calls that gave up although the agent was there",
                f"{self.failed} {cuts}",
                not self.failed,
                self.bound,
            ),
        ]


class Tally:
    """What all readers found so far."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.places: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        self.tasks = self.events = 0
        self.differing = self.folded_wrong = self.doubled = self.failed = self.unknown = 0
        self.messages: list[str] = []
        self.findings: list[str] = []

    @property
    def cuts(self) -> int:
        """How many answers broke."""
        return self.places.total()

    def note(self, fact: str) -> None:
        """Keep the facts of a violation, if they are among the first."""
        if len(self.findings) < 20:
            self.findings.append(fact)


def behind(card: AgentCard, way: Way, address: str) -> AgentCard:
    """Return a card that leads to the proxy, and promises no more than a reader may know."""
    interface = next(
        one
        for one in card.supported_interfaces
        if one.protocol_binding == way.binding and one.protocol_version.startswith(way.version)
    )
    path = interface.url.partition("://")[2].partition("/")[2]
    capabilities = card.capabilities
    if not way.has_promises:
        capabilities = msgspec.structs.replace(capabilities, extensions=[])
    return msgspec.structs.replace(
        card,
        supported_interfaces=[msgspec.structs.replace(interface, url=f"{address}/{path}")],
        capabilities=capabilities,
    )


class Reader:
    """Has tasks done one after another, in one way, behind a proxy of its own."""

    def __init__(self, direct: Client, tally: Tally, way: Way, name: str) -> None:
        self._direct = direct
        self._tally = tally
        self._way = way
        self._name = name
        self._chance = random.Random(name)
        self._count = 0

    async def run(self, port: int) -> None:
        """Go on until enough was cut."""
        async with chaos(port, self._chance) as proxy:
            card = behind(self._direct.card, self._way, proxy.address)
            async with Client(card, timeout=TASK_WITHIN / 4) as client:
                while self._tally.cuts < self._tally.goal:
                    before = Counter(proxy.cuts)
                    await self._one(client, proxy)
                    self._tally.places += proxy.cuts - before
                    self._tally.ways[" ".join(map(str, self._way))] += proxy.total - before.total()

    async def _one(self, client: Client, proxy: Chaos) -> None:
        """Have one task done, and compare."""
        chance, tally = self._chance, self._tally
        self._count += 1
        message_id = f"{self._name}-{self._count}"
        skill = chance.choice(["mixed", "steps"])
        text = f"{chance.randint(10, 80)} {chance.choice([0, 2, 5, 10])}"
        said = Message(
            message_id=MessageId(message_id),
            role=Role.USER,
            parts=[Part(text=text)],
            metadata={"skillId": skill},
        )
        stream = client.stream(said)
        shown: list[Shown] = []
        tally.messages.append(message_id)
        try:
            async with asyncio.timeout(TASK_WITHIN), stream:
                async for event in stream:
                    shown.append(event)
        except DeliveryUnknown as error:
            # Without a promise of the server it cannot be known; with it, there is no excuse.
            if self._way.has_promises or shown:
                self._fail(message_id, error)
            else:
                tally.unknown += 1
            return
        except (A2AError, TimeoutError) as error:
            self._fail(message_id, error)
            return
        tally.tasks += 1
        tally.events += len(shown)
        if self._way.has_promises:
            await self._compare_events(stream, shown)
        await self._compare_tasks(stream, shown, skill)

    def _fail(self, message_id: str, error: Exception) -> None:
        self._tally.failed += 1
        self._tally.note(f"{message_id} over {self._way}: {type(error).__name__}: {error}")

    async def _compare_events(self, stream: Stream, shown: list[Shown]) -> None:
        """Hold what was shown against the whole stream of the same task, read without cuts."""
        async with asyncio.timeout(TASK_WITHIN):
            whole = [e async for e in self._direct.subscribe(stream.task_id, after=0)]
        # Where the opening Task came late it stands for the events before it; the Task the whole
        # stream opens with is compared as what it adds up to.
        if shown[0] == whole[0]:
            is_same = shown == whole
        else:
            is_same = len(shown) > 1 and shown[1:] == whole[-(len(shown) - 1) :]
        if not is_same:
            self._tally.differing += 1
            self._tally.note(
                f"{stream.task_id} over {self._way}: {len(shown)} events of {len(whole)}: "
                f"{_first_difference(shown, whole)}"
            )

    async def _compare_tasks(self, stream: Stream, shown: list[Shown], skill: str) -> None:
        """Hold what the events add up to against the task as it is."""
        task = await self._direct.get(stream.task_id)
        problem = differs(stream.task, task)
        if not problem and skill == "steps":
            told = "".join(_texts(shown))
            whole = "".join(_text(artifact) for artifact in task.artifacts)
            if told != whole:
                problem = f"the text is {told[-60:]!r} and not {whole[-60:]!r}"
        if problem:
            self._tally.folded_wrong += 1
            self._tally.note(f"{stream.task_id} over {self._way}: {problem}")


def differs(folded: Task | None, task: Task) -> str:
    """Return how what a caller was shown differs from a task, or nothing.

    What the caller said itself is in no stream, and the parts of an artifact may be joined.
    """
    if folded is None:
        return "no task was shown"
    if folded.status.state is not task.status.state:
        return f"the state is {folded.status.state} and not {task.status.state}"
    shown = {artifact.artifact_id: _text(artifact) for artifact in folded.artifacts}
    there = {artifact.artifact_id: _text(artifact) for artifact in task.artifacts}
    if shown != there:
        return f"the artifacts are {str(shown)[-80:]} and not {str(there)[-80:]}"
    said, heard = _said(task), _said(folded)
    if said != heard:
        return f"{len(heard)} messages of the agent's were shown of {len(said)}"
    return ""


def _said(task: Task) -> list[str]:
    """Return the ids of what the agent said, in order."""
    spoken = [message for message in task.history if message.role is Role.AGENT]
    if task.status.message is not None:
        spoken.append(task.status.message)
    return [message.message_id for message in spoken]


def _text(artifact: Artifact) -> str:
    return "".join(part.text for part in artifact.parts if isinstance(part.text, str))


def _texts(shown: list[Shown]) -> list[str]:
    """Return what a caller that prints each chunk has printed."""
    found: list[str] = []
    for event in shown:
        match event:
            case Task():
                found += [_text(artifact) for artifact in event.artifacts]
            case ArtifactUpdate():
                found.append(_text(event.artifact))
            case _:
                pass
    return found


def _first_difference(shown: list[Shown], whole: list[Shown]) -> str:
    for number, (ours, theirs) in enumerate(zip(shown, whole, strict=False)):
        if ours != theirs:
            return f"event {number} is {str(ours)[:120]} and not {str(theirs)[:120]}"
    return "one is longer"


async def _count_tasks(direct: Client, tally: Tally) -> None:
    """Look for messages that led to more than one task."""
    led: Counter[str] = Counter()
    async for task in direct.list(page_size=100, history=None):
        led.update(message.message_id for message in task.history if message.role is Role.USER)
    for message_id in tally.messages:
        if led[message_id] > 1:
            tally.doubled += 1
            tally.note(f"{message_id} is in {led[message_id]} tasks")


async def prove(
    cuts: int,
    seed: int,
    *,
    folder: Path,
    readers: int = READERS,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> CutsResult:
    """Run the proof in a folder, on a server with some settings of its own."""
    began = time.monotonic()
    tally = Tally(cuts)
    replicas: Replicas
    async with make_replicas(folder / "tasks.db", 1, environment) as replicas:
        port = await replicas.port()
        async with Client(f"http://{HOST}:{port}") as direct:
            following: set[asyncio.Task[Any]] = set()
            async with asyncio.TaskGroup() as group:
                for number in range(readers):
                    way = WAYS[number % len(WAYS)]
                    reader = Reader(direct, tally, way, f"{seed}-{number}")
                    following.add(group.create_task(reader.run(port)))
                while not all(one.done() for one in following):
                    progress(
                        f"{tally.cuts:,} of {cuts:,} cuts, {tally.tasks:,} tasks, "
                        f"{len(tally.findings)} findings"
                    )
                    await asyncio.wait(following, timeout=0.2)
            await _count_tasks(direct, tally)
    return CutsResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(tally.cuts),
        cuts=tally.cuts,
        places=dict(tally.places),
        ways=dict(tally.ways),
        tasks=tally.tasks,
        events=tally.events,
        differing=tally.differing,
        folded_wrong=tally.folded_wrong,
        doubled=tally.doubled,
        failed=tally.failed,
        unknown=tally.unknown,
        findings=tally.findings,
    )


def run(cuts: int = 2000, seed: int = 1, *, progress: Progress = silent) -> CutsResult:
    """Cut our own client off and check what it shows."""
    with workplace() as folder:
        return asyncio.run(prove(cuts, seed, folder=folder, progress=progress))
