"""`dragoman task`: read, cancel, list and follow the tasks of an agent."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.calling.outcome import FAIL, check_outcome
from dragoman.cli.failures import similar, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import command as command_about
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.own_options import show_table
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.model.task import Task, TaskState
    from dragoman.service import TaskPage

UNTIL = option(
    "--until",
    type=click.Choice(["rest", "terminal"]),
    default="rest",
    help="Where waiting ends: also when the agent waits for something, or only at the end.",
)
HISTORY = option(
    "--history", type=click.IntRange(0), metavar="<n>", help="How many earlier messages to show."
)
TASK_ID = click.argument("task_id", metavar="TASK_ID")

task = Group(
    "task",
    help="Ask an agent (-a) about its tasks. To see the "
    "store of this machine, use `dragoman tasks`.",
    elsewhere=dict.fromkeys(("show", "tree", "tail"), "tasks"),
    places={
        "get": CommandPlace("calling.task:get", "Show a task."),
        "cancel": CommandPlace("calling.task:cancel", "End a task before it is done."),
        "list": CommandPlace("calling.task:list_", "List tasks, page by page."),
        "subscribe": CommandPlace("calling.task:subscribe", "Follow a running task."),
        "download": CommandPlace("calling.download:download", "Save the artifacts of a task."),
        "push-config": CommandPlace(
            "calling.push_config:push_config", "Manage receivers of events."
        ),
    },
)


def about(run: Invocation, task_id: str) -> str:
    """Note which task a command is about, for hints."""
    run.is_about_task = True
    run.task_id = task_id
    return task_id


@command("get", defaults={"wait": "false"})
@TASK_ID
@HISTORY
@UNTIL
@FAIL
def get(run: Invocation, task_id: str, history: int | None, until: Any, fail: bool) -> None:
    """Show a task; with --wait, once it rests."""
    from dragoman.cli.session import Session, talk

    about(run, task_id)

    async def work(session: Session) -> None:
        settings, agent = session.settings, session.agent
        if settings.wait:
            answer = await agent.wait(
                task_id,
                until=until,
                poll_interval=settings.explicit_interval,
                history=history,
                stream=False,
            )
            assert answer.task is not None, "a wait for a task returns one"
            found = answer.task
        else:
            found = await agent.get(task_id, history=history)
        show(session, found, history=history is not None)

    talk(run, work, live=run.settings.wait)
    check_outcome(run, fail=fail)


def show(
    session: "Session", task: "Task", *, history: bool = False, canceled: bool = False
) -> None:
    """Show a task that was asked for."""
    from dragoman.cli.output import bare

    if session.out.is_json:
        session.out.json(bare(task))
    else:
        session.out.task(task, history=history)
    session.close(task, canceled=canceled)


@command("cancel", defaults={"wait": "false"})
@TASK_ID
def cancel(run: Invocation, task_id: str) -> None:
    """End a task before it is done; to end it twice is fine."""
    from dragoman.cli.session import Session, talk

    about(run, task_id)

    async def work(session: Session) -> None:
        from dragoman.errors import TaskNotCancelable
        from dragoman.model.task import TaskState

        settings, agent = session.settings, session.agent
        try:
            found = await agent.cancel(task_id, metadata=settings.metadata or None)
        except TaskNotCancelable:
            found = await agent.get(task_id)
            if found.status.state is not TaskState.CANCELED:
                raise
        if settings.wait and not found.status.state.is_terminal:
            interval = settings.explicit_interval
            answer = await agent.wait(
                task_id, until="terminal", poll_interval=interval, stream=False
            )
            found = answer.task or found
        show(session, found, canceled=True)

    talk(run, work, live=run.settings.wait)


@command("subscribe", defaults={"wait": "true"})
@TASK_ID
@UNTIL
@FAIL
def subscribe(run: Invocation, task_id: str, until: Any, fail: bool) -> None:
    """Follow a task until it rests; with --stream, show each event."""
    from dragoman.cli.calling.send import follow
    from dragoman.cli.session import Session, talk

    about(run, task_id)

    async def work(session: Session) -> None:
        from dragoman.errors import UnsupportedOperation

        stream = session.agent.subscribe(
            task_id, until=until, poll_interval=session.settings.explicit_interval
        )
        try:
            await follow(session, stream, wrapped=False)
        except UnsupportedOperation:
            # It ended before we came: how it ended is all there is to see.
            found = await session.agent.get(task_id)
            if not found.status.state.is_terminal:
                raise
            if session.settings.stream:
                session.out.event(found)
                session.close(found)
            else:
                show(session, found)

    talk(run, work, live=True)
    check_outcome(run, fail=fail)


@command("list")
@option("--status", metavar="<state>", help="Only tasks in this state: working, INPUT_REQUIRED.")
@option("--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size.")
@option("--page-token", default="", metavar="<token>", help="The page to show.")
@option("--since", metavar="<time>", help="Only tasks whose state changed since (RFC 3339).")
@HISTORY
@option("--with-artifacts", switch=True, help="Show the artifacts of the tasks.")
@option("--all", "everything", switch=True, help="Show all pages.")
def list_(
    run: Invocation,
    status: str | None,
    limit: int,
    page_token: str,
    since: str | None,
    history: int | None,
    with_artifacts: bool,
    everything: bool,
) -> None:
    """List tasks, the latest first; --context-id and --status choose among them."""
    from dragoman.cli.session import Session, talk

    run.is_about_task = True
    query: dict[str, Any] = {
        "context_id": run.settings.context_id,
        "state": state_of(status) if status else None,
        "page_size": limit,
        "history": history,
        "since": instant(since) if since else None,
        "artifacts": with_artifacts,
    }

    async def work(session: Session) -> None:
        # A line per task leaves no room for a token.
        walks = everything or session.settings.stream
        pages: list[TaskPage] = []
        token = page_token
        while True:
            page = await session.agent.page(page_token=token, **query)
            if session.settings.stream and session.out.is_json:
                _lines(session, page)
            elif not session.out.is_json and not session.out.is_table:
                _records(session, page, history is not None)
            pages.append(page)
            if not walks or not page.next_page_token or page.next_page_token == token:
                break
            token = page.next_page_token
        if session.out.is_json and not session.settings.stream:
            session.out.json(_document(pages, walks))
        elif session.out.is_table:
            _table(session, pages, "" if walks else pages[-1].next_page_token)
        elif not session.out.is_json:
            session.out.field("Next-Page", "" if walks else pages[-1].next_page_token)

    talk(run, work)


def _lines(session: "Session", page: "TaskPage") -> None:
    from dragoman.dialects.v1_0 import encode_task

    for reply in page.tasks:
        session.out.json(encode_task(reply))


def _records(session: "Session", page: "TaskPage", history: bool) -> None:
    for reply in page.tasks:
        session.out.task(reply.reading.task, history=history)


_COLUMNS = (
    Column("state", "state", "state"),
    Column("task", "id", "id"),
    Column("skill", "skill"),
    Column("first words", "words"),
    Column("age", "updated", "age"),
    Column("cost", "cost", "number"),
)


def _table(session: "Session", pages: "list[TaskPage]", token: str) -> None:
    rows = [_row(reply.reading.task) for page in pages for reply in page.tasks]
    begin = command_about(session.run, "send", "<text>")
    show_table(session.run, rows, token, _COLUMNS, f"no task is here yet; {begin} begins one")


def _row(task: "Task") -> dict[str, Any]:
    """Return what a table shows of a task: what it was asked for, as far as the agent shows that,
    else what it said last."""
    from dragoman.model.money import COST

    status = task.status
    first = task.history[0] if task.history else status.message
    return {
        "id": task.id,
        "state": status.name,
        "skill": first.metadata.get("skillId") if first is not None else None,
        "words": first.text if first is not None else "",
        "updated": status.timestamp,
        "cost": task.metadata.get(COST),
    }


def _document(pages: "list[TaskPage]", walked: bool) -> bytes:
    import msgspec

    from dragoman.dialects.v1_0 import V1_0
    from dragoman.model.operations import ListTasks

    page = pages[-1]
    if walked:
        tasks = [reply for one in pages for reply in one.tasks]
        page = msgspec.structs.replace(page, tasks=tasks, next_page_token="")
    return V1_0.encode_reply(ListTasks(), page)


def state_of(text: str) -> "TaskState":
    """Return the state of a name: as the wire has it, or shorter."""
    from dragoman.model.task import TaskState

    name = text.upper().replace("-", "_").removeprefix("TASK_STATE_")
    if name not in TaskState.__members__:
        known = ", ".join(one.lower() for one in TaskState.__members__)
        near = similar(text.lower(), [one.lower() for one in TaskState.__members__])
        raise usage(f"--status must be one of {known}", remedy=f"--status {near or 'completed'}")
    return TaskState[name]


def instant(text: str) -> datetime:
    """Return the time of a text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise usage("--since must be a time such as 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise usage("--since must say its zone: end it with Z or an offset")
    return found.astimezone(UTC)
