"""The tree of a task, from whichever of its tasks one looks."""

import time
from typing import Any

from harness.waiting import within
from msgspec.structs import replace

from dragoman import Agent, Client, Turn
from dragoman.model.events import Delegated
from dragoman.model.record import Recorded
from dragoman.model.task import TaskState
from dragoman.testing.promises.samples import creation, opening, submit
from tests.http.test_access_control import ALICE, ANNA, BOSS, CHIEF
from tests.server.operator.operator_site import clerk, operator_site

# Not so long ago that they would be forgotten.
NOW = time.time_ns() // 1_000_000


def names(node: dict[str, Any]) -> Any:
    return node["agent"], [names(child) for child in node.get("children", [])]


async def test_a_tree_is_the_same_from_each_of_its_tasks() -> None:
    chief, middle = Agent("Chief", "has others do it"), Agent("Middle", "passes on")
    below: dict[str, Client] = {}

    @chief.skill
    async def work(text: str, turn: Turn) -> str:
        first = await turn.call(below["middle"], text)
        second = await turn.call(below["clerk"], text)
        return f"{first.text}, {second.text}"

    @middle.skill
    async def relay(text: str, turn: Turn) -> str:
        return (await turn.call(below["clerk"], text)).text

    async with operator_site(chief, middle, clerk()) as site:
        url = str(site.http.base_url).rstrip("/")
        async with (
            Client(f"{url}/agents/middle", bearer=ALICE) as relayed,
            Client(f"{url}/agents/clerk", bearer=ALICE) as asked,
        ):
            below |= {"middle": relayed, "clerk": asked}
            task = await site.made("x", ALICE, "work")
            foreign = await site.made("x", ANNA, "work")
        tree = await site.read(f"/tasks/{task}/tree")
        expected: Any = ("chief", [("middle", [("clerk", [])]), ("clerk", [])])
        assert tree["id"] == tree["top"]["id"] == task and names(tree["top"]) == expected
        assert tree["top"]["task"]["state"] == "TASK_STATE_COMPLETED"
        (first, second) = tree["top"]["children"]
        assert first["at"] and first["url"] == f"{url}/agents/middle"
        for node in (first, second, first["children"][0]):
            found = await site.read(f"/tasks/{node['id']}/tree", ALICE)
            assert found["id"] == node["id"] and found["top"] == tree["top"]
        # What is another owner's is a name and an address.
        seen = (await site.read(f"/tasks/{foreign}/tree", CHIEF))["top"]
        assert seen["task"]["tenant"] == "acme"
        assert [child.get("task") for child in seen["children"]] == [None, None]
        assert len((await site.read(f"/tasks/{foreign}/tree", BOSS))["top"]["children"]) == 2


async def test_a_claim_to_be_below_a_task_is_not_believed() -> None:
    """A caller may refer to any task; only the log of that one says whom it called."""
    async with operator_site() as site:
        above = await site.made("mine", BOSS)
        task = await site.made("x", ALICE, referenceTaskIds=[above, "unknown"])
        for token in (BOSS, ALICE):
            tree = await site.read(f"/tasks/{task}/tree", token)
            assert tree["top"]["id"] == task and "children" not in tree["top"]


async def test_tasks_that_wait_for_each_other_in_a_circle_have_a_tree() -> None:
    """Others choose the ids of their tasks and what they say of them."""
    async with operator_site() as site:
        for task, other in (("a", "b"), ("b", "a")):
            begun = opening(task)
            begun.history[0].reference_task_ids.append(other)
            called = Delegated(0, 0, "x", "http://x", other)
            made = creation(task, called, state=TaskState.COMPLETED, at=NOW)
            events = [Recorded.of_event(1, begun), *made.events[1:]]
            await submit(site.app.store, replace(made, events=events))
        for task, other in (("a", "b"), ("b", "a")):
            tree = await within(site.read(f"/tasks/{task}/tree"))
            top = tree["top"]
            assert top["id"] == other and [child["id"] for child in top["children"]] == [task]
