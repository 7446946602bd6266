"""`dragoman trust disputes` and `resolve`: what requesters say was not done, decided by whoever has
the store's file, or by an operator of a running gateway.

The file may be in use: a gateway that works on it follows within seconds.
"""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway_api import ELSEWHERE_OPTIONS, elsewhere
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

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.gateway.task_reference import TaskReference

_INVALID = "InvalidParamsError"
# On one page of a gateway.
_MOST = 100
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
@ELSEWHERE_OPTIONS
def disputes(
    run: Invocation,
    store: str | None,
    limit: int,
    page_token: str,
    gateway: str,
    admin_token: str,
) -> None:
    """List disputes that nobody decided on, the oldest first: of a store's file, or with --gateway
    of a running gateway that you are an operator of."""
    if page_token and not page_token.isdecimal():
        raise usage("--page-token is not one of `dragoman trust disputes`")
    offset = int(page_token or 0)
    if gateway:
        api = elsewhere(run, gateway, admin_token)
        query = {"limit": min(limit, _MOST), "offset": offset}
        told = api.ask("GET", "disputes", query=query)
        items, more = told["disputes"], told["total"] > offset + len(told["disputes"])
    else:
        items, more = _of_file(run, store, limit, offset)
    token = str(offset + len(items)) if more else ""
    show_page(run, items, token, lambda item: _record(run, item, gateway))


def _of_file(
    run: Invocation, store: str | None, limit: int, offset: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of what the store's file has, and whether there is more."""
    from dragoman.stores.sqlite import outcomes

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
    return items, len(found) > limit


def _record(run: Invocation, item: dict[str, Any], gateway: str) -> None:
    for name, label in _LABELS.items():
        run.out.field(label, str(item[name] or (item["agentId"] if name == "agentName" else "")))
    run.out.field("Since", item["openedAt"])
    more = f" --gateway {gateway}" if gateway else ""
    run.out.note("Hint", f"dragoman trust resolve {item['taskId']} upheld{more}")


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
@ELSEWHERE_OPTIONS
def resolve(
    run: Invocation,
    task: str,
    outcome: str,
    note: str,
    number: int | None,
    store: str | None,
    audit: str | None,
    gateway: str,
    admin_token: str,
) -> None:
    """Decide on a dispute. If it is upheld, the task counts as failed.

    A price that is in escrow moves with it: upheld, it is given back; rejected, it is paid. What
    was paid before stays paid: `dragoman credits refund` gives it back. In a store's file whoever
    may write it decides; with --gateway an operator of that gateway.
    """
    if gateway:
        api = elsewhere(run, gateway, admin_token, {"NOT_FOUND": "trust disputes"})
        path = f"disputes/{quote(task, safe='')}/resolve"
        told = api.ask("POST", path, {"outcome": outcome, "note": note}, {"number": number})
        _decided(run, {"result": outcome} | {k: v for k, v in told.items() if k != "outcome"})
        return
    from dragoman.gateway.task_reference import TaskReference

    decided = _in_file(run, TaskReference(task, number or 0), outcome, note, store, audit)
    _decided(run, {"result": outcome, "taskId": task, "taskNumber": decided})


def _in_file(
    run: Invocation,
    meant: "TaskReference",
    outcome: str,
    note: str,
    store: str | None,
    audit: str | None,
) -> int:
    """Decide in the store's file; return the number of the task."""
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
        record(log, "trust.resolve", str(TaskReference(meant.id, decided)), outcome)
    return decided


def _decided(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
        return
    run.out.field("Result", item["result"])
    run.out.field("Task", item["taskId"])
    run.out.field("Number", str(item["taskNumber"]))
    if item.get("escrow"):
        run.out.field("Escrow", item["escrow"])
