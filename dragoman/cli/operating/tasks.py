"""`dragoman tasks`: our own store, read only and also while servers work on it.

`task` asks an agent, `tasks` looks into the store. What is shown are the protocol's own objects;
what only we know is in their metadata, under names that begin with `dragoman:`.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway.store_place import (
    StorePlace,
    accounting_in,
    looks_elsewhere,
    tasks_in,
)
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    budget,
    ending_in_order,
    instant,
    own,
    show_page,
    show_table,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.model.record import Recorded
    from dragoman.stores.interface import Store
    from dragoman.stores.interface.inspection import (
        TailPosition,
        TaskFilter,
        TaskInspection,
        TaskLine,
    )
    from dragoman.stores.tools import Wait

# Seconds between two looks into the store, and between two words about where we are.
_LOOK = 0.1
_TELL = 5.0
_AT_ONCE = 500

tasks = Group(
    "tasks",
    help="Show tasks and their logs directly from the store of this machine. "
    "To ask an agent instead, use `dragoman task`.",
    elsewhere=dict.fromkeys(("get", "cancel", "subscribe", "download", "push-config"), "task"),
    places={
        "list": CommandPlace("operating.tasks:list_", "List tasks, the latest first."),
        "show": CommandPlace("operating.tasks:show", "Show a task."),
        "tree": CommandPlace("operating.tree:tree", "Show a task and its sub-tasks."),
        "tail": CommandPlace(
            "operating.tasks:tail", "Show the last events, or each as it happens."
        ),
    },
)
_AGENT = own("--agent", default="", metavar="<name>", help="Only tasks of this agent.")
_STATUS = own(
    "--status", default="", metavar="<state>", help="Only tasks in this state: working, failed."
)


@contextmanager
def reading_of(run: Invocation, store: StorePlace) -> "Generator[tuple[TaskInspection, Wait]]":
    """Give what reads tasks, for as long as the command may take."""
    with ending_in_order(), budget(run), tasks_in(run, store) as opened:
        yield opened


def _query(run: Invocation, agent: str, status: str, since: int) -> "TaskFilter":
    from dragoman.cli.calling.task import state_of
    from dragoman.stores.interface.inspection import TaskFilter

    return TaskFilter(agent, run.settings.context_id, state_of(status) if status else None, since)


def _milliseconds(text: str) -> int:
    """Return the time of a text, since the epoch."""
    from dragoman.cli.calling.task import instant

    return int(instant(text).timestamp() * 1000)


@command("list")
@looks_elsewhere
@_AGENT
@_STATUS
@typed_option(
    "--since", default="", metavar="<time>", help="Only tasks whose state changed since (RFC 3339)."
)
@LIMIT
@PAGE_TOKEN
def list_(
    run: Invocation,
    store: StorePlace,
    agent: str,
    status: str,
    since: str,
    limit: int,
    page_token: str,
) -> None:
    """List tasks, the latest first; --task-id and --context-id choose among them too."""
    task_filter = _query(run, agent, status, _milliseconds(since) if since else 0)
    texts: dict[int, dict[str, str]] = {}
    with reading_of(run, store) as (reading, wait):
        if run.settings.task_id:
            lines = wait(reading.find(run.settings.task_id, agent))
            found = [line for line in lines if _is(line, task_filter)]
        else:
            found = wait(reading.page(task_filter, limit + 1, _after(page_token)))
        page = found[:limit]
        if run.out.is_table:
            texts = {line.number: wait(_texts(reading, line)) for line in page}
    token = f"{page[-1].status_at}.{page[-1].number}" if len(found) > limit else ""
    if run.out.is_table:
        costs = _costs(run, store, page)
        rows = [_item(line) | texts[line.number] | {"cost": costs.get(line)} for line in page]
        show_table(run, rows, token, _COLUMNS, _NO_TASKS)
        return
    show_page(run, [_item(line) for line in page], token, lambda item: _record(run, item))


_COLUMNS = (
    Column("state", "status/state", "state"),
    Column("task", "id", "id"),
    Column("agent", "metadata/dragoman:agent"),
    Column("skill", "skill"),
    Column("first words", "words"),
    Column("age", "status/timestamp", "age"),
    Column("cost", "cost", "number"),
)
_NO_TASKS = "no task is here yet; `dragoman send -a <ref> <text>` begins one"


async def _texts(reading: "TaskInspection", line: "TaskLine") -> dict[str, str]:
    """Return what a task began with: of the first events alone, however long it is."""
    from dragoman.server.operator.tasks.items import FIRST_BYTES, FIRST_EVENTS, opening_texts

    log = await reading.read(line.number, after=0, limit=FIRST_EVENTS, size=FIRST_BYTES)
    texts = opening_texts(log)
    return {"words": texts.said, "skill": texts.skill}


def _costs(run: Invocation, store: StorePlace, page: "list[TaskLine]") -> "dict[TaskLine, str]":
    """Return what tasks of a gateway cost; a store that no gateway uses has no prices."""
    from dragoman.errors import ConfigError
    from dragoman.gateway.delivery.forwarding import NAME
    from dragoman.model.money import credits_text

    if not (paid := [line for line in page if line.agent == NAME]):
        return {}
    found: dict[TaskLine, str] = {}
    with suppress(ConfigError, Failure), accounting_in(run, store) as (accounting, wait):
        for line in paid:
            for facts in wait(accounting.ledger.facts(line.task_id))[:1]:
                found[line] = credits_text(facts.order.cost)
    return found


def _after(token: str) -> tuple[int, int] | None:
    if not token:
        return None
    at, _, number = token.partition(".")
    if not (at.isdecimal() and number.isdecimal()):
        raise usage("--page-token is not one of `dragoman tasks list`", "dragoman tasks list")
    return int(at), int(number)


def _is(line: "TaskLine", task_filter: "TaskFilter") -> bool:
    return (
        task_filter.state in (None, line.state)
        and task_filter.context_id in ("", line.context_id)
        and task_filter.agent in ("", line.agent)
        and line.status_at >= task_filter.since
    )


def _item(line: "TaskLine") -> dict[str, Any]:
    """Return a task as a list has it: without what was said and made."""
    about = {"agent": line.agent, "tenant": line.tenant, "owner": line.owner}
    metadata: dict[str, Any] = {f"dragoman:{name}": text for name, text in about.items() if text}
    return {
        "id": line.task_id,
        "contextId": line.context_id,
        "status": {"state": line.state.value, "timestamp": instant(line.status_at)},
        "metadata": metadata | {"dragoman:events": line.last_seq},
    }


def _record(run: Invocation, item: dict[str, Any]) -> None:
    run.out.field("Task", item["id"])
    run.out.field("Context", item["contextId"])
    run.out.field("State", item["status"]["state"])
    run.out.field("Updated", item["status"]["timestamp"])
    run.out.field("Agent", item["metadata"].get("dragoman:agent", ""))
    run.out.field("Events", str(item["metadata"]["dragoman:events"]))


@command("show")
@click.argument("task_id", metavar="TASK_ID")
@looks_elsewhere
@_AGENT
def show(run: Invocation, task_id: str, store: StorePlace, agent: str) -> None:
    """Show a task as its agent would; with --verbose also its log."""
    from dragoman.cli.output import bare
    from dragoman.engine.reading import read_task
    from dragoman.stores.interface.inspection import whole_log

    with reading_of(run, store) as (reading, wait):
        line = _only(wait(reading.find(task_id, agent)), task_id)
        # It has the two reads that folding a log takes.
        found = wait(read_task(cast("Store", reading), line.number))
        log = wait(whole_log(reading, line)) if run.settings.verbose else []
    assert found is not None, "a task in the store has a log"
    if not run.out.is_json:
        run.out.task(found.task, history=True)
        for one in log:
            run.out.field("Event", f"{one.seq} {one.body.decode()}")
    elif run.settings.verbose:
        import msgspec

        events = [{"position": one.seq, "event": msgspec.Raw(one.body)} for one in log]
        run.out.json({"task": msgspec.Raw(bare(found.task)), "log": events})
    else:
        run.out.json(bare(found.task))


def _only(found: "list[TaskLine]", task_id: str) -> "TaskLine":
    if not found:
        raise Failure(
            "TaskNotFoundError",
            f"{task_id}: there is no such task in this store",
            hint="dragoman tasks list",
        )
    if len({line.agent for line in found}) > 1:
        names = ", ".join(sorted({line.agent for line in found}))
        raise usage(
            f"{task_id}: several agents have a task of this id; --agent is one of {names}",
            remedy="--agent <name>",
        )
    return found[0]


@command("tail")
@looks_elsewhere
@_AGENT
@_STATUS
@typed_option(
    "--since",
    default="",
    metavar="<time|position>",
    help="Begin at a time (RFC 3339), or where an earlier run was: its Position.",
)
@LIMIT
@PAGE_TOKEN
def tail(
    run: Invocation,
    store: StorePlace,
    agent: str,
    status: str,
    since: str,
    limit: int,
    page_token: str,
) -> None:
    """Show the last events and end; with --stream, show each as it happens.

    Every event has its task and its place in that task's log in `dragoman:position`. The Position
    on stderr, or the next page's token, is where to go on: --since takes it, and nothing is lost.
    With --task-id a stream ends with the task.
    """
    start = page_token or since
    position = _position(start)
    at = 0 if position or not start else _milliseconds(start)
    task_filter = _query(run, agent, status, at)
    with reading_of(run, store) as (reading, wait):
        if task_id := run.settings.task_id:
            _only(wait(reading.find(task_id, agent)), task_id)
        Tail(run, reading, wait, task_filter, limit).run(position)


def _position(text: str) -> "TailPosition | None":
    from dragoman.stores.interface.inspection import TailPosition

    if not text.startswith("p"):
        return None
    try:
        return TailPosition.parse(text)
    except ValueError:
        raise usage(
            f"{text} is no position of `dragoman tasks tail`", "dragoman tasks tail"
        ) from None


class Tail:
    """Shows events of the tasks that are wanted."""

    def __init__(
        self,
        run: Invocation,
        reading: "TaskInspection",
        wait: "Wait",
        task_filter: "TaskFilter",
        limit: int,
    ) -> None:
        from dragoman.stores.interface.inspection import TailFilter

        self._run = run
        self._reading = reading
        self._wait = wait
        self._query = task_filter
        self._wanted = TailFilter(task_filter.agent, task_filter.context_id, run.settings.task_id)
        self._limit = limit
        self._told_at = time.monotonic()
        self._told = ""
        # Up to where everything was shown.
        self._position: TailPosition | None = None
        self._items: list[Any] = []

    def run(self, position: "TailPosition | None") -> None:
        """Show what there is, and what comes if that was task_filter for."""
        streams = self._run.settings.stream
        try:
            if position is None:
                # Taken first and kept to: what happens meanwhile is shown from there on.
                here = self._wait(self._reading.here(self._query.agent))
                for line, event in self._latest(here):
                    self._show(line, event)
                position = here
            else:
                position = self._further(position, self._limit if not streams else 0)
            while streams and not self._is_over():
                before = self._wait(self._reading.version())
                position = self._further(position, 0)
                self._tell(position)
                while not self._is_over() and self._wait(self._reading.version()) == before:
                    time.sleep(_LOOK)
            if streams:
                # What a task said last is there once it has ended.
                position = self._further(position, 0)
        finally:
            position = self._position or position
            if position is not None and (streams or not self._run.out.is_json):
                self._run.out.note("Position", str(position))
        if self._run.out.is_json and not streams:
            self._run.out.json({"items": self._items, "nextPageToken": str(position)})

    def _tell(self, position: "TailPosition") -> None:
        if time.monotonic() - self._told_at > _TELL and str(position) != self._told:
            self._told_at, self._told = time.monotonic(), str(position)
            self._run.out.note("Position", self._told)

    def _is_over(self) -> bool:
        task_id = self._run.settings.task_id
        if not task_id:
            return False
        found = self._wait(self._reading.find(task_id, self._query.agent))
        return all(line.state.is_terminal for line in found)

    def _further(self, position: "TailPosition", limit: int) -> "TailPosition":
        """Show what came after a position: up to a limit, or all of it."""
        while True:
            count = limit or _AT_ONCE
            following = self._reading.follow(position, self._wanted, count)
            events, position = self._wait(following)
            for line, event in events:
                self._show(line, event)
            # Noted at once: a signal may come at any time, and what was shown is not shown again.
            self._position = position
            if limit or len(events) < count:
                return position

    def _latest(self, here: "TailPosition") -> "list[tuple[TaskLine, Recorded]]":
        """Return the last events of all tasks, in the order of the states they followed."""
        from dragoman.stores.interface.inspection import last_events

        reading, task_id = self._reading, self._run.settings.task_id
        if task_id:
            lines = self._wait(reading.find(task_id, self._query.agent))
        else:
            lines = self._wait(reading.page(self._query, self._limit))
        found: list[tuple[str, TaskLine, Recorded]] = []
        for line in lines:
            if line.number > here.highest:
                continue
            at = ""
            for event in self._wait(last_events(reading, line, self._limit)):
                if event.seq <= here.seen.get(line.number, line.last_seq):
                    at = _time_of(event) or at
                    found.append((at, line, event))
        shown = [one for one in found if not one[0] < instant(self._query.since)]
        shown.sort(key=lambda one: (one[0], one[1].number, one[2].seq))
        return [(line, event) for _, line, event in shown[-self._limit :]]

    def _show(self, line: "TaskLine", recorded: "Recorded") -> None:
        import msgspec

        if not recorded.is_public or self._query.state not in (None, line.state):
            return
        event = cast(Any, recorded.event)
        place = {"dragoman:position": recorded.seq, "dragoman:agent": line.agent}
        event = msgspec.structs.replace(event, metadata=event.metadata | place)
        out = self._run.out
        if out.is_json and not out.is_stream:
            from dragoman.cli.output import stream_response

            self._items.append(msgspec.Raw(stream_response(event)))
            return
        if not out.is_json:
            out.field("Event", f"{line.task_id} {recorded.seq}")
        out.event(event)
        out.close()


def _time_of(recorded: "Recorded") -> str:
    from dragoman.model.events import StatusUpdate
    from dragoman.model.task import Task

    event = recorded.event
    return event.status.timestamp if isinstance(event, StatusUpdate | Task) else ""
