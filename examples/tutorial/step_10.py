"""Step 10: the agent has tests."""

import pytest
from step_04 import agent

from dragoman import TaskState
from dragoman.testing.plugin import ServeAgent


def test_an_order_is_confirmed_first(serve_agent: ServeAgent) -> None:
    bakery = serve_agent(agent).sync
    asked = bakery.send("rye")
    assert asked.state is TaskState.INPUT_REQUIRED
    answer = bakery.send("yes", task_id=asked.task_id)
    assert answer.text == "1 rye for 4 credits."


@pytest.mark.parametrize("item", ["toast", "cake"])
def test_what_is_not_on_the_shelf_is_refused(serve_agent: ServeAgent, item: str) -> None:
    refused = serve_agent(agent).sync.send(item)
    assert refused.state is TaskState.REJECTED
