"""`dragoman tasks tree`: a task and what other agents were given for it, as deep as stores tell.

A log says whom its task went to and what it is called there. Where that is, another store may know:
of several, given one after the other, each is asked.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import Failure
from dragoman.cli.gateway.gateway_api import ELSEWHERE_OPTIONS, GatewayApi
from dragoman.cli.gateway.store_place import RemoteStore, StorePlace, tasks_in
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import budget, ending_in_order, own

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.model.children import Child
    from dragoman.stores.interface.inspection import TaskInspection, TaskLine
    from dragoman.stores.tools import Wait

    Opened = tuple[TaskInspection, Wait]


class Forest:
    """Stores in which tasks are looked for."""

    def __init__(self, readings: "list[Opened]") -> None:
        self._readings = readings
        # What was shown. Others choose the ids of their tasks, and may choose one from above.
        self._shown_ids: set[str] = set()

    def find(self, task_id: str) -> "tuple[Opened, TaskLine] | None":
        """Return a task and the store it is in."""
        for reading, wait in self._readings:
            for line in wait(reading.find(task_id, "")):
                return (reading, wait), line
        return None

    def tree(self, task_id: str, url: str = "", agent: str = "", depth: int = 0) -> dict[str, Any]:
        """Return a task with all below it."""
        from dragoman.model.children import DEEPEST

        found = self.find(task_id)
        node: dict[str, Any] = {"id": task_id, "agent": agent, "url": url, "state": ""}
        if found is not None:
            (reading, wait), line = found
            node |= {"agent": agent or line.agent, "state": line.state.value}
            if depth < DEEPEST and task_id not in self._shown_ids:
                self._shown_ids.add(task_id)
                given = wait(_given(reading, line))
                node["children"] = [
                    self.tree(child.task_id, child.url, child.agent, depth + 1) for child in given
                ]
        return {name: value for name, value in node.items() if value != ""}


async def _given(reading: "TaskInspection", line: "TaskLine") -> "list[Child]":
    from dragoman.model.children import children
    from dragoman.stores.interface.inspection import whole_log

    return list(children([recorded.event for recorded in await whole_log(reading, line)]))


def lines(node: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield a tree for people, a task a line."""
    words = [node["id"], node.get("state", "elsewhere"), node.get("agent", ""), node.get("url", "")]
    yield "  " * depth + " ".join(word for word in words if word)
    for child in node.get("children", []):
        yield from lines(child, depth + 1)


@command("tree")
@click.argument("task_id", metavar="TASK_ID")
@own(
    "--store",
    "stores",
    multiple=True,
    metavar="<url>",
    help="The store to look into (your data folder). Repeatable: each is asked for what others "
    "were given.",
)
@ELSEWHERE_OPTIONS
def tree(
    run: Invocation, task_id: str, stores: tuple[str, ...], gateway: str, admin_token: str
) -> None:
    """Show a task and what other agents were given for it."""
    places: list[StorePlace] = [*stores] or [None]
    if gateway:
        # Also beside stores: what a gateway gave to others may be in one of them.
        places = [RemoteStore(GatewayApi(run, gateway, admin_token)), *stores]
    with ExitStack() as opened, ending_in_order(), budget(run):
        forest = Forest([opened.enter_context(tasks_in(run, one)) for one in places])
        if forest.find(task_id) is None:
            raise Failure(
                "TaskNotFoundError",
                f"{task_id}: there is no such task in this store",
                hint="dragoman tasks list",
            )
        found = forest.tree(task_id)
    if run.out.is_json:
        run.out.json(found)
        return
    for line in lines(found):
        run.out.field("Task", line)
