"""`dragoman trust disputes` and `resolve`: what requesters say was not done, decided in the store,
or by an operator of a running gateway.

The store may be in use: a gateway that works on it follows within seconds.
"""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman.cli.audit_trail import AUDIT_OPTION, record, recording
from dragoman.cli.failures import Failure
from dragoman.cli.gateway.gateway_api import ELSEWHERE_OPTIONS, elsewhere
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.trust import reading
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    STORE_OPTION,
    budget,
    ending_in_order,
    instant,
    kept_by,
    offset_of,
    show_page,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.gateway.money.task_reference import TaskReference

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
    """List disputes without a decision, the oldest first: of a store, or with --gateway of a
    running gateway that you are an operator of."""
    if gateway:
        api = elsewhere(run, gateway, admin_token)
        items, token = api.page("disputes", "disputes", page_token, {"limit": min(limit, _MOST)})
    else:
        items, token = _of_file(run, store, limit, offset_of(page_token))
    show_page(
        run,
        items,
        token,
        lambda item: _record(run, item, gateway),
        columns=_COLUMNS,
        empty="no dispute waits for a decision",
    )


_COLUMNS = (
    Column("task", "taskId", "id"),
    Column("agent", "agentName|agentId"),
    Column("requester", "requester"),
    Column("reason", "reason"),
    Column("age", "openedAt", "age"),
)


def _of_file(
    run: Invocation, store: str | None, limit: int, after: int
) -> tuple[list[dict[str, Any]], str]:
    """Return a page of what the store has, and the token of the next; empty: there is none."""
    with reading(run, store) as file:
        found, _ = file.wait(file.store.disputes(limit=limit + 1, after=after))
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
    return items, str(items[-1]["taskNumber"]) if len(found) > limit else ""


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
@typed_option("--note", default="", metavar="<text>", help="Why, for the record.")
@typed_option(
    "--number",
    type=click.IntRange(min=1),
    default=None,
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
    was paid before stays paid: `dragoman credits refund` gives it back. In a store's file any user
    that may write it decides; with --gateway an operator of that gateway.
    """
    if gateway:
        api = elsewhere(run, gateway, admin_token, {"NOT_FOUND": "trust disputes"})
        path = f"disputes/{quote(task, safe='')}/resolve"
        answer = api.ask("POST", path, {"outcome": outcome, "note": note}, {"number": number})
        _decided(run, {"result": outcome} | {k: v for k, v in answer.items() if k != "outcome"})
        return
    from dragoman.gateway.money.task_reference import TaskReference

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
    """Decide in the store; return the number of the task."""
    from dragoman.errors import InvalidParams
    from dragoman.gateway.money.task_reference import AmbiguousTask, TaskReference
    from dragoman.gateway.trust.recording import resolve as resolve_dispute
    from dragoman.stores.tools import writable_accounting_of

    with reading(run, store):
        # Raises where the file is not that of a gateway.
        pass
    settings = kept_by(run, store)
    with ending_in_order(), budget(run), recording(run, audit, store) as log:
        try:
            with writable_accounting_of(settings) as (file, wait):
                now = int(time.time() * 1000)
                decided = wait(resolve_dispute(file, meant, outcome == "upheld", note, now))
        except AmbiguousTask as error:
            numbers = ", ".join(str(one.task) for one in error.tasks)
            raise Failure(
                _INVALID,
                f"several tasks have this id: {numbers}; say which by --number",
                hint="dragoman trust disputes",
            ) from None
        except InvalidParams as error:
            raise Failure(_INVALID, error.public, hint="dragoman trust disputes") from None
        record(log, "trust.resolve", str(TaskReference(meant.id, decided)), outcome)
    return decided


def _decided(run: Invocation, item: dict[str, Any]) -> None:
    run.out.item(item, _LABELS, ("result", "taskId", "taskNumber", "escrow"))
