"""A graph whose process died: with a checkpointer that outlives it, the thread goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.agents.adapters.detect import adapt
from dragoman.model.identity import ANONYMOUS
from dragoman.model.message import Part, agent_message


class Graph:
    """As much of a compiled graph as is used; it notes what it is run with."""

    name = "LangGraph"
    checkpointer = object()

    def __init__(self, *, is_within_a_run: bool) -> None:
        self.given: list[Any] = []
        self._state = SimpleNamespace(next=("node",) if is_within_a_run else (), tasks=())

    async def aget_state(self, config: Any) -> Any:
        assert len(config["configurable"]["thread_id"]) == 32
        return self._state

    async def astream(self, given: Any, config: Any, stream_mode: Any) -> Any:
        self.given.append(given)
        self._state = SimpleNamespace(next=(), tasks=())
        yield "values", {"answer": "done"}


@pytest.mark.parametrize(
    ("attempt", "is_within_a_run", "given"),
    [(1, False, "hello"), (2, False, "hello"), (2, True, None), (1, True, "hello")],
)
async def test_a_thread_that_was_begun_is_resumed_by_the_task_that_began_it(
    attempt: int, is_within_a_run: bool, given: Any
) -> None:
    written: list[Any] = []

    class Writer:
        id = "1"

        def __await__(self) -> Any:
            yield from ()

    def artifact(content: Any = None, **_: Any) -> Writer:
        written.append(content)
        return Writer()

    graph = Graph(is_within_a_run=is_within_a_run)
    message = agent_message([Part(text="hello")], context_id="c")
    turn = SimpleNamespace(
        attempt=attempt,
        message=message,
        context="c",
        caller=ANONYMOUS,
        task_id="t",
        artifact=artifact,
    )
    await adapt(graph, "graph").skills["run"].function(message, turn)
    assert graph.given == [given]
    assert written[-1] == "done"
