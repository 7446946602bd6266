"""The table of who may do what to whose task, and the cells in which an answer differs from it.

`matrix.toml` is the table. Each cell has a task of its own, because what its owner may do changes
it; the owner asks last, and until then everything has to be as it was.
"""

import json
import re
import tomllib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dragoman.dialects.operations import BY_V1_METHOD, OperationRow
from dragoman.dialects.v1_0 import V1_0
from dragoman.model import operations as ops
from dragoman.model.identity import ContextId, MessageId, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushConfig
from proof.access.bindings import BINDINGS, HOUSES, Answer, Binding, Wire, request
from proof.access.callers import CALLERS, KEYS, ORDER, OWNER, UNBOUND

STATES = ("working", "waiting", "finished", "never", "deleted")
_JSON_RPC = BINDINGS[0]
# No server listens there: who is told of a task is the question, not what they are told.
_RECEIVER = "http://127.0.0.1:9/"

Table = dict[str, dict[str, list[str]]]


def table() -> Table:
    """Return the expected outcome by operation, caller and place of the state."""
    return tomllib.loads((Path(__file__).parent / "matrix.toml").read_text())


class Thing(NamedTuple):
    """A task, its context and its one receiver; all of them may be made up."""

    task_id: TaskId
    context_id: ContextId
    config_id: str

    @classmethod
    def imagined(cls) -> "Thing":
        """Return one that never existed."""
        return cls(TaskId(new_id()), ContextId(new_id()), new_id())


class Cell(NamedTuple):
    """One question: who asks for what, how, about a task in which state."""

    row: OperationRow
    binding: Binding
    caller: str
    state: str

    def __str__(self) -> str:
        return f"{self.row.v1} over {self.binding.name} by {self.caller}, {self.state}"


def told(thing: Thing, text: str = "again", **more: Any) -> Message:
    """Return a further message to a task."""
    return Message(MessageId(new_id()), Role.USER, [Part(text=text)], task_id=thing.task_id, **more)


def operation(row: OperationRow, thing: Thing) -> ops.Operation:
    """Return an operation about a thing."""
    task_id = thing.task_id
    match row.operation:
        case ops.SendMessage | ops.StreamMessage:
            return row.operation(message=told(thing), wait=False)
        case ops.ListTasks:
            return ops.ListTasks(context_id=thing.context_id)
        case ops.GetTask | ops.CancelTask | ops.SubscribeToTask | ops.ListPush:
            return row.operation(task_id=task_id)
        case ops.CreatePush:
            config = PushConfig(_RECEIVER, thing.config_id, task_id)
            return ops.CreatePush(task_id=task_id, config=config)
        case ops.GetPush | ops.DeletePush:
            return row.operation(task_id=task_id, config_id=thing.config_id)
        case ops.GetExtendedCard:
            return ops.GetExtendedCard()
        case _:
            raise LookupError(f"{row.v1} has no object here: say what it is asked about")


class Scene:
    """A server that knows the callers, and the tasks of one of them."""

    def __init__(self, port: int = 0, operations: Sequence[str] = ()) -> None:
        self.wire = Wire(port)
        self.things: dict[tuple[str, str, str], Thing] = {}
        # All of the table, or what it has of some operations.
        self.expected = {n: row for n, row in table().items() if n in operations or not operations}

    def rows(self) -> list[tuple[OperationRow, Binding]]:
        """Return each operation with each binding that has it."""
        found = [BY_V1_METHOD[name] for name in self.expected]
        wires = (*BINDINGS, *HOUSES)
        return [(row, binding) for row in found for binding in wires if binding.offers(row)]

    async def make(self, *states: str) -> None:
        """Make the tasks in some states, one for each operation and binding."""
        for row, binding in self.rows():
            for state in states:
                self.things[row.v1, binding.name, state] = await self._made(state)

    async def _made(self, state: str) -> Thing:
        skill = "finished" if state == "deleted" else state
        message = Message(
            MessageId(new_id()), Role.USER, [Part(text=state)], metadata={"skillId": skill}
        )
        send = ops.SendMessage(message=message, wait=state != "working")
        task = (await self._result(send))["task"]
        thing = Thing(task["id"], task["contextId"], new_id())
        config = PushConfig(_RECEIVER, thing.config_id, thing.task_id)
        await self._result(ops.CreatePush(task_id=thing.task_id, config=config))
        return thing

    async def _result(self, operation: ops.Operation) -> Any:
        answer = await self.wire.ask(request(_JSON_RPC, operation, KEYS[OWNER]))
        return json.loads(answer.body)["result"]

    async def ask(self, cell: Cell, thing: Thing) -> Answer:
        """Return the answer in a cell."""
        asked = operation(cell.row, thing)
        if cell.caller == UNBOUND and cell.binding.dialect is V1_0:
            # Who may name any tenant names the owner's.
            asked = msgspec.structs.replace(asked, tenant=CALLERS[OWNER].tenant or "")
        return await self.wire.ask(request(cell.binding, asked, KEYS[cell.caller]))

    def thing(self, row: OperationRow, binding: Binding, state: str) -> Thing:
        """Return what a cell is about."""
        return self.things.get((row.v1, binding.name, state)) or Thing.imagined()

    async def differences(self) -> AsyncGenerator[tuple[Cell, str]]:
        """Yield every cell, with what is wrong in it if something is."""
        shut = b""
        for row, binding in self.rows():
            things = [self.thing(row, binding, state) for state in STATES]
            before = [await self._seen(thing) for thing in things]
            for caller in ORDER:
                never = await self._never(Cell(row, binding, caller, "never"))
                shut = shut or never
                if caller == OWNER and [await self._seen(thing) for thing in things] != before:
                    yield Cell(row, binding, "others", "any"), "a task is not what it was"
                for state, thing, expected in zip(
                    STATES, things, self.expected[row.v1][caller], strict=True
                ):
                    cell = Cell(row, binding, caller, state)
                    answer = await self.ask(cell, thing)
                    outcome = expected
                    if expected == "end":
                        outcome = "yes" if binding.dialect.shows_ended else "over"
                    yield cell, _problem(row, outcome, answer, thing, never, shut)

    async def _never(self, cell: Cell) -> bytes:
        thing = Thing.imagined()
        return (await self.ask(cell, thing)).without(*thing)

    async def _seen(self, thing: Thing) -> bytes:
        """Return the task and its receivers as their owner sees them."""
        found = b""
        for one in (ops.GetTask(task_id=thing.task_id), ops.ListPush(task_id=thing.task_id)):
            found += (await self.wire.ask(request(_JSON_RPC, one, KEYS[OWNER]))).body
        return found


def _problem(
    row: OperationRow, expected: str, answer: Answer, thing: Thing, never: bytes, shut: bytes
) -> str:
    """Return what is wrong with an answer; empty: nothing."""
    said = answer.without(*thing)
    match expected:
        case "401":
            if answer.status != 401:
                return f"let in: {answer.status} {answer.body[:200]!r}"
            return "" if said == shut else f"not the one refusal: {said!r}"
        case "none":
            if said != never:
                return f"{said!r} is not {never!r}"
            return "" if _is_nothing(row, answer) else f"not a refusal: {answer.body[:200]!r}"
        case "over":
            is_error = b'"error"' in answer.body or answer.status >= 400
            return "" if is_error and said != never else f"taken: {answer.body[:200]!r}"
        case "yes":
            if answer.status != 200 or b'"error"' in answer.body:
                return f"refused: {answer.status} {answer.body[:200]!r}"
            is_silent = row.operation in (ops.DeletePush, ops.GetExtendedCard)
            is_about = is_silent or thing.task_id.encode() in answer.body
            return "" if is_about else f"of something else: {answer.body[:200]!r}"
        case _:
            return f"the table says {expected!r}, which is no outcome"


def _is_nothing(row: OperationRow, answer: Answer) -> bool:
    """Tell whether an answer says that there is no such thing."""
    if row.operation is ops.ListTasks:
        return answer.status == 200 and not re.search(rb'"(error|contextId)"', answer.body)
    # Houses have codes of their own for it, but the words are everybody's.
    return answer.status == 404 or b'"message":"Task not found"' in answer.body


async def gather(scene: Scene) -> tuple[int, list[str]]:
    """Ask everything; return the number of cells and what is wrong."""
    count, wrong = 0, list[str]()
    async for cell, problem in scene.differences():
        count += 1
        if problem:
            wrong.append(f"{cell}: {problem}")
    return count, wrong
