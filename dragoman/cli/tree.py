"""`dragoman tasks tree`: a task and what other agents were given for it, as deep as stores tell.

A log says whom its task went to and what it is called there. Where that is, another store may know:
of several, given one after the other, each is asked.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import Failure
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import budget, ending_in_order, file_of, own

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.stores.sqlite.reading import Line, Reading

# Deeper than any call may go.
_DEEPEST = 32


class Forest:
    """Stores in which tasks are looked for."""

    def __init__(self, readings: "list[Reading]") -> None:
        self._readings = readings
        # What was shown. Others choose the ids of their tasks, and may choose one from above.
        self._shown: set[str] = set()

    def find(self, task_id: str) -> "tuple[Reading, Line] | None":
        """Return a task and the store it is in."""
        for reading in self._readings:
            for line in reading.find(task_id, ""):
                return reading, line
        return None

    def tree(self, task_id: str, url: str = "", agent: str = "", depth: int = 0) -> dict[str, Any]:
        """Return a task with all below it."""
        found = self.find(task_id)
        node: dict[str, Any] = {"id": task_id, "agent": agent, "url": url, "state": ""}
        if found is not None:
            reading, line = found
            node |= {"agent": agent or line.agent, "state": line.state.value}
            if depth < _DEEPEST and task_id not in self._shown:
                from dragoman.model.children import children

                self._shown.add(task_id)
                given = children(recorded.event for recorded in reading.log(line))
                node["children"] = [self.tree(*child, depth=depth + 1) for child in given]
        return {name: value for name, value in node.items() if value != ""}


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
    help="The file to look into (your data folder). Repeatable: each is asked for what others "
    "were given.",
)
def tree(run: Invocation, task_id: str, stores: tuple[str, ...]) -> None:
    """Show a task and what other agents were given for it."""
    from dragoman.stores.sqlite.inspection import open_to_read
    from dragoman.stores.sqlite.reading import Reading

    with ExitStack() as opened, ending_in_order(), budget(run):
        readings: list[Reading] = []
        for store in stores or (None,):
            connection = open_to_read(file_of(run, store).store_path())
            opened.callback(connection.close)
            readings.append(Reading(connection))
        forest = Forest(readings)
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
