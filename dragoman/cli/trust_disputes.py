"""`dragoman trust disputes` and `resolve`: what requesters say was not done, decided by whoever has
the store's file.

The file may be in use: a gateway that works on it follows within seconds.
"""

import time
from typing import Any

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import (
    LIMIT,
    PAGE_TOKEN,
    STORE_OPTION,
    budget,
    ending_in_order,
    file_of,
    instant,
    own,
    show_page,
)
from dragoman.cli.recording import AUDIT_OPTION, record, recording
from dragoman.cli.trust import reading

_INVALID = "InvalidParamsError"
_LABELS = {
    "taskId": "Task",
    "taskNumber": "Number",
    "agentName": "Agent",
    "requester": "Requester",
    "reason": "Reason",
}


@command("disputes")
@STORE_OPTION
@LIMIT
@PAGE_TOKEN
def disputes(run: Invocation, store: str | None, limit: int, page_token: str) -> None:
    """List disputes that nobody decided on, the oldest first."""
    from dragoman.stores.sqlite import outcomes

    if page_token and not page_token.isdecimal():
        raise usage("--page-token is not one of `dragoman trust disputes`")
    offset = int(page_token or 0)
    with reading(run, store) as file:
        found = outcomes.disputes(file.connection, limit + 1, offset)
        names = {id: name for id, (name, _) in file.agents.items()}
    items = [
        {
            "taskId": one.task_id,
            "taskNumber": one.task,
            "agentId": one.agent,
            # Empty: it is registered no more.
            "agentName": names.get(one.agent, ""),
            "requester": one.requester,
            "reason": one.reason,
            "openedAt": instant(one.opened_at),
        }
        for one in found[:limit]
    ]
    token = str(offset + limit) if len(found) > limit else ""
    show_page(run, items, token, lambda item: _record(run, item))


def _record(run: Invocation, item: dict[str, Any]) -> None:
    for name, label in _LABELS.items():
        run.out.field(label, str(item[name] or (item["agentId"] if name == "agentName" else "")))
    run.out.field("Since", item["openedAt"])
    run.out.note("Hint", f"dragoman trust resolve {item['taskId']} upheld")


@command("resolve")
@click.argument("task", metavar="TASK", help="The id of the task that is disputed.")
@click.argument(
    "outcome",
    metavar="OUTCOME",
    type=click.Choice(["upheld", "rejected"]),
    help="upheld: it was not done; rejected: it was.",
)
@own("--note", default="", in_environment=False, metavar="<text>", help="Why, for the record.")
@own(
    "--number",
    type=click.IntRange(min=1),
    default=None,
    in_environment=False,
    metavar="<number>",
    help="Which task, where several have this id; dragoman trust disputes shows it.",
)
@STORE_OPTION
@AUDIT_OPTION
def resolve(
    run: Invocation,
    task: str,
    outcome: str,
    note: str,
    number: int | None,
    store: str | None,
    audit: str | None,
) -> None:
    """Decide on a dispute. If it is upheld, the task counts as failed.

    A price that is in escrow moves with it: upheld, it is given back; rejected, it is paid. What
    was paid before stays paid: POST /api/v1/tasks/TASK/refund gives it back.
    """
    from dragoman.errors import InvalidParams
    from dragoman.gateway import ratings
    from dragoman.gateway.task_reference import AmbiguousTask, TaskReference
    from dragoman.stores.sqlite.schema import connect, transaction

    with reading(run, store):
        # The file is one of a gateway; what is no such file is told here.
        pass
    path = file_of(run, store).store_path()
    with ending_in_order(), budget(run), recording(run, audit, store) as log:
        connection = connect(str(path))
        try:
            with transaction(connection):
                now = int(time.time() * 1000)
                meant = TaskReference(task, number or 0)
                decided = ratings.resolve(connection, meant, outcome == "upheld", note, now)
        except AmbiguousTask as error:
            numbers = ", ".join(str(one.task) for one in error.tasks)
            raise Failure(
                _INVALID,
                f"several tasks have this id: {numbers}; say which by --number",
                hint="dragoman trust disputes",
            ) from None
        except InvalidParams as error:
            raise Failure(_INVALID, error.public, hint="dragoman trust disputes") from None
        finally:
            connection.close()
        record(log, "trust.resolve", str(TaskReference(task, decided)), outcome)
    if run.out.is_json:
        run.out.json({"result": outcome, "taskId": task, "taskNumber": decided})
        return
    run.out.field("Result", outcome)
    run.out.field("Task", task)
    run.out.field("Number", str(decided))
