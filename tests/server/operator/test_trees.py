"""The tree of a task, from whichever of its tasks one looks."""

from typing import Any

from dragoman import Agent, Client, Turn
from tests.http.test_access_control import ALICE, ANNA, BOSS, CHIEF
from tests.server.operator.operator_site import clerk, operator_site


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
