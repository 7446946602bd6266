"""Power cuts: the product at work on a disk that remembers, cut off thousands of times.

A whole app serves callers while `disk.Recorder` records what its store does to the files, and every
word of "durable" is noted with its place on that tape. Each image is what a cut at some place could
leave; SQLite recovers it, and the checker asks for all that was promised before the cut. What the
tape holds is the store's own doing, with its own settings.
"""

import asyncio
import itertools
import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.config import Settings
from dragoman.model.message import Message
from dragoman.server.app import App
from dragoman.stores.interface import Append, Create, Done, KeepReply
from dragoman.stores.interface import Write as StoreWrite
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.schema import run as query
from proof.crash.disk import Link, Medium, Operation, Recorder, Sync, Variant, Write
from proof.results import Result, Row

Synchronous = Literal["full", "normal", "off"]
Progress = Callable[[int, int], None]

STORE = "tasks.db"
_WAL = f"{STORE}-wal"
_PER_RECORDING = 2_500
_CALLERS = 8
_PATIENCE = 60.0
# Without syncs a system still writes back what is old; so many operations may be on their way.
_WRITEBACK = 400
# One image in so many is first opened, recovered and closed by the product's own store.
_OPENED_BY_STORE = 50
_MAX_FINDINGS = 20
_SEQ_BITS = 20
_KEYS = "SELECT key FROM keys UNION ALL SELECT key FROM fresh_keys"
# The numbers of the schema; kept apart from the store's so that one mistake is not made twice.
_ENDS = {
    "TASK_STATE_COMPLETED": 3,
    "TASK_STATE_FAILED": 4,
    "TASK_STATE_CANCELED": 5,
    "TASK_STATE_REJECTED": 7,
}
# What the agent says carries a mark that is found again in the log.
_MARK = re.compile(rb"~[0-9.]+~")


class PowercutResult(Result, kw_only=True):
    """What a run found. Images are counted, not the things missing in them."""

    proof: str = "powercut"
    images: int
    lost: int
    corrupt: int
    # Writes the store called durable, and ends and chunks that callers were shown.
    acked: int
    tasks: int
    commits: int
    checkpoints: int
    operations: int
    recordings: int
    # Images that the product's own store opened, recovered and closed before the checks.
    opened: int
    variants: dict[str, int]
    synchronous: str

    def rows(self) -> list[Row]:
        """Return the promises."""
        cuts = f"of {self.images:,} images"
        return [
            Row(
                "Power cuts that lost an acknowledged write",
                f"{self.lost} {cuts}",
                not self.lost,
                self.bound,
            ),
            Row(
                "Power cuts that damaged the file",
                f"{self.corrupt} {cuts}",
                not self.corrupt,
                self.bound,
            ),
        ]


class Promise(msgspec.Struct, frozen=True):
    """At this place of the tape it was told that a task has this event, or that a key is kept."""

    place: int
    number: int = 0
    seq: int = 0
    key: bytes = b""


class _Shown(msgspec.Struct, frozen=True):
    """At this place a caller saw a mark, or the end of a task."""

    place: int
    mark: bytes = b""
    task_id: str = ""
    state: str = ""


class Truth(msgspec.Struct):
    """All that was ever written, which any image holds the beginning of."""

    # By id: number, state and last event.
    tasks: dict[str, tuple[int, int, int]]
    # By position: how many events the row has, and they themselves.
    events: dict[int, tuple[int, bytes]]


class Recording(msgspec.Struct):
    """A tape, what was promised when, and what was written in the end."""

    found: dict[str, bytes]
    tape: list[Operation]
    promises: list[Promise]
    truth: Truth
    # What callers were shown and the log does not have.
    broken: list[str]


class Witness(SQLiteStore):
    """The store, with a note of each write it calls durable."""

    def __init__(self, path: Path, tape: list[Operation], promises: list[Promise]) -> None:
        super().__init__(path)
        self._tape = tape
        self._promises = promises

    def submit(self, write: StoreWrite, done: Done) -> None:
        """Pass the write on and note the answer before anyone hears it."""

        def told(error: Exception | None, number: int) -> None:
            if error is None:
                self.note(write, number)
            done(error, number)

        super().submit(write, told)

    def note(self, write: StoreWrite, number: int) -> None:
        """From here on every image must hold this write."""
        place = len(self._tape)
        if isinstance(write, Create | Append):
            of = write.number if isinstance(write, Append) else number
            self._promises.append(Promise(place, of, write.standing.last_seq))
        keys = [write.key] if isinstance(write, KeepReply) else write.keys
        self._promises.extend(Promise(place, key=key) for key in keys)


class _Workload:
    """Callers and an agent that do everything that is written to a store."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._path = folder / STORE
        self._chance = chance
        self._recorder = Recorder(folder)
        self._promises: list[Promise] = []
        self._shown: list[_Shown] = []
        self._ids = itertools.count(1)
        self._prefix = f"{chance.randrange(1 << 48):012x}"
        self._is_last = False

    def record(self, steps: int) -> Recording:
        """Serve three times on one file, the last time to the end of all tasks."""
        with self._recorder.recording():
            for self._is_last in (False, False, True):
                asyncio.run(self._serve(steps))
        truth = read_truth(self._path)
        shown, broken = _resolve(self._shown, truth)
        promises = sorted(self._promises + shown, key=lambda promise: promise.place)
        return Recording(self._recorder.found, self._recorder.tape, promises, truth, broken)

    async def _serve(self, steps: int) -> None:
        store = Witness(self._path, self._recorder.tape, self._promises)
        async with App(self._agent(), settings=Settings(), store=store).running() as app:
            callers = [self._call_often(app, steps) for _ in range(_CALLERS)]
            await asyncio.gather(*callers)

    def _agent(self) -> Agent:
        agent = Agent("Subject", "Writes all that can be written.")
        chance = self._chance

        @agent.skill
        async def echo(text: str) -> str:
            return f"~{text}.0~"

        @agent.skill
        async def chunks(text: str) -> AsyncIterator[str]:
            for number in range(chance.randint(2, 12)):
                # Some chunks fill pages of their own.
                yield f"~{text}.{number}~" + "x" * (6_000 if chance.random() < 0.03 else 60)
                if chance.random() < 0.7:
                    await asyncio.sleep(0)

        @agent.skill
        async def order(text: str, turn: Turn) -> str:
            await turn.say(f"~{text}.0~")
            answer = await turn.ask("Where to?")
            return f"~{text}.1~ {answer.text}"

        @agent.skill
        async def reply(text: str, turn: Turn) -> Message:
            return turn.reply(text)

        @agent.skill
        async def fail(text: str) -> str:
            raise RuntimeError(text)

        @agent.skill
        async def stay(text: str, turn: Turn) -> str:
            await turn.artifact(f"~{text}.{turn.attempt}~")
            if not self._is_last:
                await asyncio.Event().wait()
            return f"~{text}.999~"

        return agent

    async def _call_often(self, app: App, steps: int) -> None:
        skills = ["echo", "echo", "chunks", "chunks", "chunks", "order", "reply", "fail", "stay"]
        for _ in range(steps):
            skill = self._chance.choice(skills)
            streams = skill in ("chunks", "order") or self._chance.random() < 0.3
            at_once = skill == "stay" or self._chance.random() < 0.1
            if skill == "stay":
                streams = False
            answer = await self._send(app, skill, streams=streams, at_once=at_once)
            task_id = _task_id(answer)
            if task_id and skill == "order" and not at_once and self._chance.random() < 0.8:
                await self._send(app, skill, task_id=task_id, streams=False)
            elif task_id and skill == "stay" and self._chance.random() < 0.3:
                await self._post(app, "CancelTask", {"id": task_id})

    async def _send(
        self, app: App, skill: str, *, streams: bool, at_once: bool = False, task_id: str = ""
    ) -> bytes:
        number = next(self._ids)
        message: dict[str, Any] = {
            "messageId": f"{self._prefix}-{number}",
            "role": "ROLE_USER",
            "parts": [{"text": f"{int(self._prefix, 16)}.{number}"}],
            "metadata": {"skill": skill},
        }
        if task_id:
            message["taskId"] = task_id
        params = {"message": message, "configuration": {"returnImmediately": at_once}}
        method = "SendStreamingMessage" if streams else "SendMessage"
        return await self._post(app, method, params)

    async def _post(self, app: App, method: str, params: dict[str, Any]) -> bytes:
        """Call the app as a server would, and note what it shows when it shows it."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"a2a-version", b"1.0"),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])
        is_over = asyncio.Event()
        answer = bytearray()

        async def receive() -> dict[str, Any]:
            for message in asked:
                return message
            await is_over.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                shown = message.get("body", b"")
                answer.extend(shown)
                self._note(shown)

        async with asyncio.timeout(_PATIENCE):
            await app(scope, receive, send)
        is_over.set()
        return bytes(answer)

    def _note(self, shown: bytes) -> None:
        place = len(self._recorder.tape)
        self._shown.extend(_Shown(place, mark=mark) for mark in _MARK.findall(shown))
        for line in shown.splitlines():
            text = line.removeprefix(b"data: ")
            if any(state.encode() in text for state in _ENDS):
                task_id, state = _status(json.loads(text).get("result", {}))
                if state in _ENDS:
                    self._shown.append(_Shown(place, task_id=task_id, state=state))


def record(folder: Path, seed: int, steps: int) -> Recording:
    """Put the product to work on a store in a folder; it goes on with what it finds there."""
    return _Workload(folder, random.Random(seed)).record(steps)


def _status(result: dict[str, Any]) -> tuple[str, str]:
    """Return whose state an answer or an event tells, and which."""
    update = result.get("statusUpdate")
    if update:
        return update["taskId"], update["status"]["state"]
    task = result.get("task") or result
    return task.get("id", ""), task.get("status", {}).get("state", "")


def _task_id(answer: bytes) -> str:
    found = re.search(rb'"task":\{"id":"([^"]+)"', answer)
    return found[1].decode() if found else ""


def read_truth(path: Path) -> Truth:
    """Return what a store holds."""
    connection = apsw.Connection(str(path))
    try:
        tasks = query(connection, "SELECT id, number, state, last_seq FROM tasks")
        events = query(connection, "SELECT position, n, bodies FROM events")
    finally:
        connection.close()
    return Truth(
        {str(id): (number, state, last) for id, number, state, last in tasks},
        {int(position): (n, bytes(bodies)) for position, n, bodies in events},
    )


def _resolve(shown: list[_Shown], truth: Truth) -> tuple[list[Promise], list[str]]:
    """Turn what callers saw into events of the log that must be there."""
    marks: dict[bytes, int] = {}
    for position, (n, bodies) in sorted(truth.events.items()):
        for place, body in enumerate(bodies.split(b"\n"), position - n + 1):
            for mark in _MARK.findall(body):
                marks.setdefault(mark, place)
    promises: list[Promise] = []
    broken: list[str] = []
    mask = (1 << _SEQ_BITS) - 1
    for sight in shown:
        if sight.mark:
            position = marks.get(sight.mark)
            if position is None:
                broken.append(f"{sight.mark.decode()} was shown and is not in the log")
            else:
                promises.append(Promise(sight.place, position >> _SEQ_BITS, position & mask))
            continue
        number, state, last = truth.tasks.get(sight.task_id, (0, 0, 0))
        if state != _ENDS[sight.state]:
            broken.append(f"{sight.task_id} was shown as {sight.state} and has state {state}")
        else:
            promises.append(Promise(sight.place, number, last))
    return promises, broken


class Checker:
    """Asks an image for all that was promised before the cut."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        # By number: what a task must at least have; and the keys that must be there.
        self.seqs: dict[int, int] = {}
        self.keys: set[bytes] = set()

    def expect(self, promise: Promise) -> None:
        """From here on an image must keep this promise."""
        if promise.key:
            self.keys.add(promise.key)
        else:
            self.seqs[promise.number] = max(promise.seq, self.seqs.get(promise.number, 0))

    def check(self, path: Path) -> tuple[str, str]:
        """Return what is lost and what is corrupt; empty texts: nothing."""
        try:
            connection = apsw.Connection(str(path))
            try:
                return self._check(connection)
            finally:
                connection.close()
        except apsw.Error as error:
            return "", f"cannot be read: {error}"

    def _check(self, connection: apsw.Connection) -> tuple[str, str]:
        # The image is looked at, not changed; and alone, so that no shared memory is needed.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        query(connection, "PRAGMA locking_mode = exclusive")
        tables = {name for (name,) in query(connection, "SELECT name FROM sqlite_schema")}
        if not {"tasks", "events", "keys"} <= tables:
            return ("the whole store" if self.seqs or self.keys else ""), ""
        verdict = query(connection, "PRAGMA integrity_check")
        if verdict != [("ok",)]:
            return "", f"integrity_check: {verdict[0][0]}"
        ends: dict[int, int] = {}
        damage = self._events(connection, ends) or self._tasks(connection, ends)
        return self._missing(connection, ends), damage

    def _events(self, connection: apsw.Connection, ends: dict[int, int]) -> str:
        events = self._truth.events
        mask = (1 << _SEQ_BITS) - 1
        rows = query(connection, "SELECT position, n, bodies FROM events ORDER BY position")
        for position, n, bodies in rows:
            number, seq = position >> _SEQ_BITS, position & mask
            if events.get(position) != (n, bodies):
                return f"events of task {number} at {seq} were never written so"
            if ends.get(number, 0) != seq - n:
                return f"a gap before event {seq} of task {number}"
            ends[number] = seq
        return ""

    def _tasks(self, connection: apsw.Connection, ends: dict[int, int]) -> str:
        tasks = self._truth.tasks
        rows = query(connection, "SELECT id, number, state, last_seq FROM tasks")
        if len(rows) != len(ends):
            return f"{len(rows)} tasks, {len(ends)} logs"
        for id, number, state, last in rows:
            if ends.get(number) != last:
                return f"task {number} says {last}, its log ends at {ends.get(number)}"
            true_number, true_state, true_last = tasks.get(id, (0, 0, 0))
            is_final = last == true_last or state in _ENDS.values()
            if number != true_number or (is_final and (state, last) != (true_state, true_last)):
                return f"task {number} has state {state} at {last}, not {true_state}"
        return ""

    def _missing(self, connection: apsw.Connection, ends: dict[int, int]) -> str:
        for number, seq in self.seqs.items():
            if ends.get(number, 0) < seq:
                return f"task {number} has {ends.get(number, 0)} of {seq} events"
        kept = {bytes(key) for (key,) in query(connection, _KEYS)}
        missing = len(self.keys - kept)
        return f"{missing} keys" if missing else ""


def lost_syncs(recording: Recording, synchronous: Synchronous) -> set[int]:
    """Return the places of syncs that a weaker setting would not have made."""
    tape = recording.tape
    places = {
        place
        for place, operation in enumerate(tape)
        if isinstance(operation, Sync) or (isinstance(operation, Link) and operation.is_synced)
    }
    if synchronous == "full":
        return set()
    if synchronous == "off":
        return places
    # NORMAL syncs the log when it begins anew and before a checkpoint, not for a commit.
    logs = files_named(recording, _WAL)
    mains = files_named(recording, STORE)
    lost: set[int] = set()
    for place in places:
        operation = tape[place]
        if not isinstance(operation, Sync) or operation.file not in logs:
            continue
        before = tape[place - 1]
        after = tape[place + 1] if place + 1 < len(tape) else None
        begins = isinstance(before, Write) and before.offset == 0 and len(before.data) == 32
        checkpoints = isinstance(after, Write) and after.file in mains
        if not (begins or checkpoints):
            lost.add(place)
    return lost


def files_named(recording: Recording, name: str) -> set[int]:
    """Return the files that had a name at some time."""
    found = [file for file, known in enumerate(recording.found) if known == name]
    made = [
        operation.file
        for operation in recording.tape
        if isinstance(operation, Link) and operation.name == name and operation.file is not None
    ]
    return {*found, *made}


class _Cuts:
    """Cuts recordings into images and counts what the checker says."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        synchronous: Synchronous,
        tick: Callable[[], None],
    ) -> None:
        self._path = folder / STORE
        self._chance = chance
        self._synchronous: Synchronous = synchronous
        self._tick = tick
        self.images = self.lost = self.corrupt = self.opened = 0
        self.variants: Counter[str] = Counter()
        self.findings: list[str] = []

    def cut(
        self, name: str, recording: Recording, images: int
    ) -> tuple[dict[str, bytearray], list[Promise]]:
        """Make and check so many images; return one that is sound, and what it must keep."""
        chance = self._chance
        tape = recording.tape
        lost = lost_syncs(recording, self._synchronous)
        medium = Medium(recording.found, writeback=0 if self._synchronous == "full" else _WRITEBACK)
        checker = Checker(recording.truth)
        promises = iter([*recording.promises, Promise(len(tape) + 1)])
        promise = next(promises)
        # Right after a sync there is one image only, and it is also one of the next place's.
        places = [place for place, operation in enumerate(tape) if not isinstance(operation, Sync)]
        cuts = Counter(chance.choices(places, k=images))
        kept = chance.choice(list(cuts))
        chosen: dict[str, bytearray] = {}
        must: list[Promise] = []
        for place, operation in enumerate(tape):
            medium.play(place, operation, is_sync_lost=place in lost)
            while promise.place <= place + 1:
                checker.expect(promise)
                promise = next(promises)
            for _ in range(cuts[place]):
                variant = chance.choice(list(Variant))
                image = medium.image(variant, chance)
                is_sound = self._judge(f"{name}, cut at {place}, {variant}", image, checker)
                self.variants[variant] += 1
                if place == kept and is_sound:
                    chosen = image
            if place == kept and chosen:
                must = [Promise(0, number, seq) for number, seq in checker.seqs.items()]
                must += [Promise(0, key=key) for key in checker.keys]
        return chosen, must

    def _judge(self, where: str, image: dict[str, bytearray], checker: Checker) -> bool:
        lay(image, self._path.parent)
        self.images += 1
        damage = ""
        if self.images % _OPENED_BY_STORE == 0:
            self.opened += 1
            damage = _open_by_store(self._path)
        lost, corrupt = checker.check(self._path)
        corrupt = damage or corrupt
        self.lost += bool(lost)
        self.corrupt += bool(corrupt)
        for finding in (lost and f"lost: {lost}", corrupt and f"corrupt: {corrupt}"):
            if finding and len(self.findings) < _MAX_FINDINGS:
                self.findings.append(f"{where}: {finding}")
        self._tick()
        return not (lost or corrupt)


def lay(image: dict[str, bytearray], folder: Path) -> None:
    """Make the files of an image all that is in a folder."""
    for path in folder.iterdir():
        if path.name not in image:
            path.unlink()
    for name, content in image.items():
        # Written over and not anew: the system need not find room for every image.
        with open(os.open(folder / name, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
            file.write(content)
            file.truncate()


def _open_by_store(path: Path) -> str:
    """Let the product recover the image; return why it would not."""

    async def open_and_close() -> None:
        store = SQLiteStore(path)
        await store.open()
        await store.close()

    try:
        asyncio.run(open_and_close())
    except Exception as error:
        # Whatever it is: a store that cannot be opened after a power cut is what we look for.
        return f"the store refuses it: {error!r}"
    return ""


def run(
    images: int,
    seed: int,
    progress: Progress | None = None,
    synchronous: Synchronous = "full",
) -> PowercutResult:
    """Cut the power so many times; anything but `full` is a sabotage that must be found out."""
    started = time.perf_counter()
    chance = random.Random(seed)
    recordings = max(2 if synchronous == "full" else 1, images // _PER_RECORDING)
    totals: Counter[str] = Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dragoman-powercut-") as folder:
        cut_folder = Path(folder) / "cut"
        cut_folder.mkdir()
        cuts = _Cuts(
            cut_folder, chance, synchronous, lambda: progress and progress(cuts.images, images)
        )
        image: dict[str, bytearray] = {}
        must: list[Promise] = []
        for turn in range(recordings):
            # Every second recording begins on what a power cut left of the one before.
            if turn % 2 == 0:
                image, must = {}, []
            home = Path(folder) / f"recording-{turn}"
            home.mkdir()
            lay(image, home)
            # Few steps suffice for few images, so that small runs are quick.
            steps = 24 if images >= _PER_RECORDING else 5
            recording = record(home, chance.randrange(1 << 32), steps)
            recording.promises[:0] = must
            broken += recording.broken
            share = images * (turn + 1) // recordings - images * turn // recordings
            image, must = cuts.cut(f"recording {turn}", recording, share)
            totals += _figures(recording)
    return PowercutResult(
        images=cuts.images,
        lost=cuts.lost + len(broken),
        corrupt=cuts.corrupt,
        acked=totals["acked"],
        tasks=totals["tasks"],
        commits=totals["commits"],
        checkpoints=totals["checkpoints"],
        operations=totals["operations"],
        recordings=recordings,
        opened=cuts.opened,
        variants={variant.value: cuts.variants[variant] for variant in Variant},
        synchronous=synchronous,
        seed=seed,
        seconds=round(time.perf_counter() - started, 3),
        bound=3 / images,
        findings=[*broken, *cuts.findings][:_MAX_FINDINGS],
    )


def _figures(recording: Recording) -> Counter[str]:
    logs = files_named(recording, _WAL)
    mains = files_named(recording, STORE)
    figures = Counter[str]()
    for operation in recording.tape:
        match operation:
            # The head of a frame that ends a transaction holds the size of the database.
            case Write(file, _, data) if file in logs and len(data) == 24 and any(data[4:8]):
                figures["commits"] += 1
            case Sync(file) if file in mains:
                figures["checkpoints"] += 1
            case _:
                pass
    figures["acked"] = len(recording.promises)
    figures["tasks"] = len(recording.truth.tasks)
    figures["operations"] = len(recording.tape)
    return figures
