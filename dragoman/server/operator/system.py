"""How the server is, which processes there are, and which tasks show nothing."""

from typing import Literal

from dragoman.errors import TaskNotFound, UnsupportedOperation
from dragoman.server.operator.shapes import Done, Shape, TaskItem, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.items import items_of
from dragoman.server.store_marks import drained_processes

ENDPOINTS = OperatorRows()


class TroubleItem(Shape, frozen=True):
    """A part that does not work at present."""

    part: str
    reason: str


class ServerStatus(Shape, frozen=True):
    """How the server is."""

    version: str
    # ok, stopping or broken.
    state: str
    agents: list[str]
    # The ways in which callers prove who they are.
    authentication: list[str]
    worker: int
    # Whether no other process uses the store.
    is_alone: bool
    running_tasks: int
    open_streams: int
    audit_lines_lost: int
    troubles: list[TroubleItem]
    # How many tasks of all owners are in each state.
    tasks: dict[str, int]


class ProcessItem(Shape, frozen=True):
    """A process that uses the store."""

    number: int
    state: Literal["live", "frozen", "dead"]
    is_this: bool
    # Whether another one should have taken over what it held.
    is_due: bool
    # Tasks under way that it holds. Those that wait for a person rest: no process holds them.
    tasks: int


class ProcessItems(Shape, frozen=True):
    """All processes of the store."""

    items: list[ProcessItem]


class QuietItem(Shape, frozen=True):
    """A task under way that shows nothing."""

    task: TaskItem
    # Of its last sign.
    since: str
    # Whether its agent has not answered at all.
    is_unanswered: bool


class QuietItems(Shape, frozen=True):
    """Tasks under way that show nothing."""

    items: list[QuietItem]


@ENDPOINTS.add("GET", "/status", is_for_operators=True)
async def read_status(ask: OperatorAsk) -> ServerStatus:
    """Read how the server is, and how many tasks are in which state."""
    status, counts = ask.site.status(), await ask.store.counts()
    troubles = await ask.store.troubles()
    return ServerStatus(
        version=status["version"],
        state=status["state"],
        agents=status["agents"],
        authentication=status["authentication"],
        worker=status["worker"],
        is_alone=status["isAlone"],
        running_tasks=status["runningTasks"],
        open_streams=status["openStreams"],
        audit_lines_lost=status["auditLinesLost"],
        troubles=[TroubleItem(part=one.part, reason=one.reason) for one in troubles],
        tasks={state.value: count for state, count in counts.items()},
    )


@ENDPOINTS.add("GET", "/processes", is_for_operators=True)
async def list_processes(ask: OperatorAsk) -> ProcessItems:
    """List the processes that use the store."""
    found = await ask.store.workers()
    return ProcessItems(
        items=[
            ProcessItem(
                number=one.number,
                state=one.state,
                is_this=one.number == ask.store.worker,
                is_due=one.is_due,
                tasks=one.tasks,
            )
            for one in found
        ]
    )


@ENDPOINTS.add("POST", "/processes/{id}/drain", is_for_operators=True, scope="tasks:write")
async def drain_process(ask: OperatorAsk) -> Done:
    """Have a process end in good order, and leave its tasks to others.

    It takes nothing more, and answers what it has begun. Whatever started it may start another one:
    a supervisor of the system, or the parent of several workers, which does."""
    name = ask.path["id"]
    living = {str(one.number) for one in await ask.store.workers() if one.state == "live"}
    if name not in living:
        raise TaskNotFound(f"There is no live process {name}")
    if name == str(ask.store.worker):
        if ask.site.end_process is None:
            raise UnsupportedOperation("this process is not the server's to end")
        ask.record("console.process.drain", name)
        ask.site.end_process()
        return Done(result="ends")
    ask.record("console.process.drain", name)
    await drained_processes(ask.store).add(name)
    return Done(result="asked")


@ENDPOINTS.add("GET", "/quiet-tasks", is_for_operators=True)
async def list_quiet_tasks(ask: OperatorAsk) -> QuietItems:
    """List tasks under way that show nothing, the longest first: their agents may hang."""
    found = await ask.live.quiet_tasks([agent.name for agent in ask.site.agents])
    items = await items_of(ask.store, [head for head, _ in found])
    return QuietItems(
        items=[
            QuietItem(task=item, since=instant(sign.at), is_unanswered=sign.is_unanswered)
            for item, (_, sign) in zip(items, found, strict=True)
        ]
    )
