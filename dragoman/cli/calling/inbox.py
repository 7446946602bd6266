"""`dragoman inbox`: all that waits for a person, over all agents of a store or of one that is
called, and the answers.

A store is read as `tasks` does, and an answer is left there for the process that has
the task, or for the next one that serves its agent. A user who may write the file may answer.
"""

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from dragoman.cli.audit_trail import record, recording
from dragoman.cli.calling.answer_prompt import (
    described,
    parts_of,
    parts_with,
    typed,
    typed_form,
)
from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway.store_place import RemoteStore, StorePlace, looks_elsewhere
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation, is_terminal
from dragoman.cli.own_options import LIMIT, budget, kept_by, show_page, typed_option
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.cli.session import Session
    from dragoman.config import Settings
    from dragoman.model.identity import TaskId
    from dragoman.model.message import Part
    from dragoman.model.requests import Request
    from dragoman.model.task import Task
    from dragoman.stores.interface import Store, TaskRow
    from dragoman.stores.interface.inspection import TaskFilter, TaskInspection, TaskLine
    from dragoman.stores.tools import Wait

# Tasks that are read together, and how long a server has to take an answer, in seconds.
_PAGE = 1000
_TAKEN_WITHIN = 3.0
_LOOK = 0.05
# Events of a task that are looked at for where it was forwarded to: just before its question.
_LAST = 4

inbox = Group(
    "inbox",
    help="List and answer questions that wait for a person.",
    places={
        "list": CommandPlace("calling.inbox:list_", "List open questions."),
        "show": CommandPlace("calling.inbox:show", "Show one of them."),
        "answer": CommandPlace("calling.inbox:answer", "Answer one of them."),
    },
)


class Waiting(NamedTuple):
    """A request of a task."""

    request: "Request"
    task: "Task"
    agent: str
    tenant: str = ""
    owner: str = ""

    def item(self) -> dict[str, Any]:
        """Return it as a list has it."""
        import msgspec

        data = cast("dict[str, Any]", msgspec.to_builtins(self.request))
        data.pop("~", None)
        about = {"agent": self.agent, "tenant": self.tenant, "owner": self.owner}
        return {
            "id": self.request.request_id,
            "kind": self.request.kind,
            **{name: value for name, value in data.items() if name not in ("requestId", "kind")},
            "taskId": self.task.id,
            "contextId": self.task.context_id,
            "since": self.task.status.timestamp,
            **{name: value for name, value in about.items() if value},
        }


@command("list")
@looks_elsewhere
@LIMIT
def list_(run: Invocation, store: StorePlace, limit: int) -> None:
    """List what waits for a person: of a store, or with -a of one agent's tasks of yours."""
    found = _waiting_requests(run, store)[:limit]
    requests = {waiting.request.request_id: waiting.request for waiting in found}
    items = [waiting.item() for waiting in found]
    show_page(
        run,
        items,
        "",
        lambda item: _show(run, item, requests[item["id"]]),
        columns=_COLUMNS,
        empty="nothing waits for a person",
    )


_COLUMNS = (
    Column("kind", "kind"),
    Column("request", "id", "id"),
    Column("agent", "agent"),
    Column("prompt", "prompt"),
    Column("age", "since", "age"),
)


@command("show")
@click.argument(
    "name", metavar="ID", help="A request, as `dragoman inbox list` shows it, or a task."
)
@looks_elsewhere
def show(run: Invocation, name: str, store: StorePlace) -> None:
    """Show one request by its ID, or by that of its task where it is the only one."""
    waiting = _only(_waiting_requests(run, store), name)
    if run.out.is_json:
        run.out.json(waiting.item())
    else:
        _show(run, waiting.item(), waiting.request)


def _waiting_requests(run: Invocation, store: StorePlace) -> list[Waiting]:
    """Return what waits, in a store or with the agent that is named."""
    if not _asks_an_agent(run, store):
        return _of_store(run, store)
    from dragoman.cli.session import Session, talk

    found: list[Waiting] = []

    async def work(session: Session) -> None:
        found.extend(await _of_agent(session))

    talk(run, work)
    return found


def _show(run: Invocation, item: dict[str, Any], request: "Request") -> None:
    run.out.field("Request", item["id"])
    run.out.field("Kind", item["kind"] + (" (secret)" if request.sensitive else ""))
    run.out.field("Task", item["taskId"])
    run.out.field("Agent", item.get("agent", ""))
    run.out.field("Since", item["since"])
    if request.due:
        run.out.field("Due", request.due)
    run.out.field("Prompt", request.prompt)
    for line in described(request):
        run.out.field("Answer", line)


@command("answer")
@click.argument(
    "name", metavar="ID", help="A request, as `dragoman inbox list` shows it, or a task."
)
@click.argument("value", required=False, help="The answer.")
@looks_elsewhere
@typed_option(
    "--decline",
    default="",
    metavar="<reason>",
    help="Decline with this reason instead of answering.",
)
def answer(run: Invocation, name: str, value: str | None, store: StorePlace, decline: str) -> None:
    """Answer a request by its ID, or by the ID of its task if that has only one.

    VALUE is a text, a choice or its number, yes or no, or JSON for a form and for a tool. Without
    it you are asked, for a form field by field, and unseen where the answer is secret.
    """
    if _asks_an_agent(run, store):
        from dragoman.cli.calling.send import conclude
        from dragoman.cli.session import Session, talk

        async def work(session: Session) -> None:
            waiting = _only(await _of_agent(session), name)
            parts = await asyncio.to_thread(_parts, run, waiting.request, value, decline)
            found = await session.agent.send(parts, task_id=waiting.task.id)
            conclude(session, found.task, found.message)

        talk(run, work)
        return
    waiting = _only(_of_store(run, store), name)
    parts = _parts(run, waiting.request, value, decline)
    if isinstance(store, RemoteStore):
        store.api.operate("POST", "inbox", {"id": waiting.request.request_id} | _said(parts))
        _show_result(run, waiting, "answered")
        return
    settings = kept_by(run, store)
    with budget(run), recording(run, None, store) as log:
        is_taken = asyncio.run(_leave(settings, waiting, parts))
        record(log, "inbox.answer", f"{waiting.agent} {waiting.task.id}")
    _show_result(run, waiting, "answered" if is_taken else "left for the agent, until it is served")


def _said(parts: "list[Part]") -> dict[str, Any]:
    """Return what an answer's message says, as the operator API takes it."""
    last = parts[-1]
    if isinstance(last.text, str):
        return {"value": last.text}
    data = cast("dict[str, Any]", last.data)
    return {"decline": data["error"]} if "error" in data else {"value": data["result"]}


def _show_result(run: Invocation, waiting: Waiting, result: str) -> None:
    item = {"id": waiting.request.request_id, "taskId": waiting.task.id, "result": result}
    run.out.item(item, {"taskId": "Task"}, ("taskId", "result"))


def _asks_an_agent(run: Invocation, store: StorePlace) -> bool:
    return bool(run.settings.agent_card) and not store


def _parts(run: Invocation, request: "Request", value: str | None, decline: str) -> "list[Part]":
    if decline:
        return request.failed(decline)
    if value is not None and request.sensitive:
        raise usage(
            "a secret on the command line can be read by others: leave it out, and type it when "
            "you are asked, or write it to stdin"
        )
    if value is None:
        run.out.note("Prompt", request.prompt)
        if request.kind == "form" and is_terminal(sys.stdin):
            return parts_with(request, typed_form(request, run.out.note))
        for line in described(request):
            run.out.note("Answer", line)
        value = typed(request)
    return parts_of(request, value)


def _only(found: list[Waiting], name: str) -> Waiting:
    by_id = [waiting for waiting in found if waiting.request.request_id == name]
    chosen = by_id or [waiting for waiting in found if waiting.task.id == name]
    if not chosen:
        raise Failure(
            "TaskNotFoundError", f"{name}: nothing of this id waits", hint="dragoman inbox list"
        )
    if len(chosen) > 1:
        ids = ", ".join(waiting.request.request_id for waiting in chosen)
        raise usage(f"{name} waits for several answers: name one of {ids}")
    return chosen[0]


def _waits(run: Invocation, task: "Task") -> bool:
    wanted = run.settings.task_id, run.settings.context_id
    return wanted[0] in ("", task.id) and wanted[1] in ("", task.context_id)


def _of_store(run: Invocation, store: StorePlace) -> list[Waiting]:
    """Return what a store's tasks wait for, the longest first."""
    from dragoman.cli.operating.tasks import reading_of
    from dragoman.engine.reading import read_task
    from dragoman.model.requests import open_requests
    from dragoman.model.task import INTERRUPTED
    from dragoman.stores.interface.inspection import TaskFilter

    found: dict[tuple[str, str], Waiting] = {}
    # By the id of a request: the tasks that wait for it.
    lines: dict[str, list[TaskLine]] = {}
    with reading_of(run, store) as (reading, wait):
        for state in INTERRUPTED:
            for line in _lines(reading, wait, TaskFilter(state=state)):
                read = wait(read_task(cast("Store", reading), line.number))
                if read is not None and _waits(run, read.task):
                    about = line.agent, line.tenant, line.owner
                    for one in open_requests(read.task.status):
                        found[one.request_id, line.task_id] = Waiting(one, read.task, *about)
                        lines.setdefault(one.request_id, []).append(line)
        for request_id, some in lines.items():
            for task_id in _passed_on(reading, wait, some) if len(some) > 1 else ():
                found.pop((request_id, task_id), None)
    return sorted(found.values(), key=lambda one: one.task.status.timestamp)


def _passed_on(
    reading: "TaskInspection", wait: "Wait", lines: "list[TaskLine]"
) -> "Iterator[TaskId]":
    """Yield those tasks whose question a gateway of the same store has too: the gateway's is the
    one to answer."""
    from dragoman.model.events import Forwarded
    from dragoman.model.identity import TaskId

    for line in lines:
        after = max(0, line.last_seq - _LAST)
        for recorded in wait(reading.read(line.number, after=after, limit=_LAST)):
            if isinstance(event := recorded.event, Forwarded):
                yield TaskId(event.task_id)


def _lines(
    reading: "TaskInspection", wait: "Wait", task_filter: "TaskFilter"
) -> "Iterator[TaskLine]":
    """Yield all tasks of a kind: the oldest are at the end, and have waited longest."""
    after: tuple[int, int] | None = None
    while page := wait(reading.page(task_filter, _PAGE, after)):
        yield from page
        after = page[-1].status_at, page[-1].number


async def _of_agent(session: "Session") -> list[Waiting]:
    from dragoman.model.requests import open_requests
    from dragoman.model.task import INTERRUPTED

    found: list[Waiting] = []
    for state in INTERRUPTED:
        async for task in session.agent.list(state=state):
            if _waits(session.run, task):
                name = session.agent.card.name
                found += [Waiting(one, task, name) for one in open_requests(task.status)]
    return sorted(found, key=lambda one: one.task.status.timestamp)


async def _leave(settings: "Settings", waiting: Waiting, parts: "list[Part]") -> bool:
    """Leave an answer for the process that has its task; tell whether it was taken."""
    from dragoman.model.identity import Scope
    from dragoman.security.vault import vault_of
    from dragoman.stores.opening import tool_store_of

    store = tool_store_of(settings, vault_of)
    await store.open()
    try:
        scope = Scope(waiting.agent, waiting.tenant, waiting.owner)
        head = await store.head(scope, waiting.task.id)
        if head is None:
            raise Failure(
                "TaskNotFoundError",
                f"{waiting.task.id}: the task is gone",
                hint="dragoman inbox list",
            )
        await _write(store, head, parts)
        if store.knows_all:
            return False
        try:
            async with asyncio.timeout(_TAKEN_WITHIN):
                # The store is another process's to change: there is no event to wait for.
                while await store.notes(head.number):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            return False
        return True
    finally:
        await store.close()


async def _write(store: "Store", head: "TaskRow", parts: "list[Part]") -> None:
    from dragoman.engine.notes import NoteBody
    from dragoman.model.identity import MessageId, new_id
    from dragoman.model.message import Message, Role
    from dragoman.model.operations import SendMessage
    from dragoman.stores.interface import LeaveNote, write

    message = Message(
        MessageId(new_id()), Role.USER, parts, context_id=head.context_id, task_id=head.task_id
    )
    body = NoteBody(SendMessage(message=message)).encoded()
    await write(store, LeaveNote(head.scope, head.number, [], body))
