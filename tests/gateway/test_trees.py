"""The tree of a task that gateways passed on, from whichever of its tasks one looks."""

from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Client, Turn
from dragoman.server import upkeep
from dragoman.server.operator.tasks.words import index_some
from dragoman.stores.interface import Store, Survey, TaskWords
from tests.gateway.gateway_site import GatewaySite, gateway

API = "/api/v1/console"


def clerk() -> Agent:
    """Return an agent that answers at once, or asks before."""
    agent = Agent("Clerk", "does paperwork")

    @agent.skill
    async def hello(text: str) -> str:
        return f"hello {text}"

    @agent.skill
    async def order(text: str, turn: Turn) -> str:
        return str(await turn.ask("Where to?"))

    return agent


async def read(site: GatewaySite, path: str, **query: Any) -> Any:
    answer = await site.http.get(API + path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(node: dict[str, Any]) -> list[str]:
    """Return the tasks of a tree in which each was given one other."""
    children = node.get("children", [])
    assert len(children) <= 1 and "task" in node
    return [node["id"], *(ids(children[0]) if children else [])]


def agents(node: dict[str, Any]) -> list[str]:
    return [node["task"]["agent"], *(agents(node["children"][0]) if "children" in node else [])]


async def made(store: Store) -> list[str]:
    """Return the ids of all tasks."""
    return [head.task_id for head in await store.survey(Survey(limit=100))]


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("skill", ["hello", "order"])
async def test_a_tree_is_whole_from_each_of_its_tasks(
    tmp_path: Path, skill: str, is_indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of the gateway's process calls the next one through the gateway, twice over: from
    the first task to the last, ended or under way."""
    # By the test alone.
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    chief, middle = Agent("Chief", "has others do it"), Agent("Middle", "passes on")
    below: dict[str, Client] = {}

    @chief.skill
    async def work(text: str, turn: Turn) -> str:
        return (await turn.call(below["middle"], text)).text

    @middle.skill
    async def relay(text: str, turn: Turn) -> str:
        return (await turn.call(below["clerk"], text, metadata={"skillId": skill})).text

    async with gateway(tmp_path, clerk(), chief, middle) as site:
        known = {one: await site.register(f"{site.url}/agents/{one}") for one in NAMES}
        async with (
            site.client(known["middle"]) as relayed,
            site.client(known["clerk"]) as asked,
            site.client(known["chief"]) as first,
        ):
            below |= {"middle": relayed, "clerk": asked}
            await first.send("x")
            # Others, that have nothing to do with it.
            await first.send("y")
            store = site.app.store
            while is_indexed and await index_some(store):
                pass
            top = next(
                one["id"]
                for one in (await read(site, "/tasks", text="x", agent="gateway"))["items"][::-1]
            )
            whole = (await read(site, f"/tasks/{top}/tree"))["top"]
            expected = ["gateway", "chief", "gateway", "middle", "gateway", "clerk"]
            assert agents(whole) == expected
            for id in ids(whole):
                found = await read(site, f"/tasks/{id}/tree")
                assert found["id"] == id and ids(found["top"]) == ids(whole)
                assert "origin" not in found
            assert len(await made(store)) == 2 * len(expected)


NAMES = ("clerk", "chief", "middle")


async def test_a_task_that_was_indexed_before_its_agent_was_named_has_its_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    async with gateway(tmp_path, clerk()) as site:
        agent = await site.register(f"{site.url}/agents/clerk")
        async with site.client(agent) as client:
            await client.send("x", metadata={"skillId": "order"})
            (outer,) = (await read(site, "/tasks", agent="gateway"))["items"]
            (inner,) = (await read(site, "/tasks", agent="clerk"))["items"]
            store = site.app.store
            # As if it had been looked at when it had one event.
            await store.index_words(
                [
                    TaskWords(head.number, frozenset(), is_final=False)
                    for head in await store.unindexed(10)
                ]
            )
            found = await read(site, f"/tasks/{inner['id']}/tree")
            assert ids(found["top"]) == [outer["id"], inner["id"]]


async def test_what_another_store_has_is_told_as_the_caller_claims_it(tmp_path: Path) -> None:
    """Two gateways, each with a store of its own, and an agent behind the second."""
    (tmp_path / "first").mkdir()
    chief = Agent("Chief", "has others do it")
    below: list[Client] = []

    @chief.skill
    async def work(text: str, turn: Turn) -> str:
        return (await turn.call(below[0], text)).text

    async with (
        gateway(tmp_path, clerk()) as second,
        gateway(tmp_path / "first", chief) as first,
    ):
        behind = await second.register(f"{second.url}/agents/clerk")
        passed = await first.register(second.at(behind))
        async with first.client(passed) as client:
            await client.send("x")
            (outer,) = (await read(first, "/tasks"))["items"]
            (inner,) = (await read(second, "/tasks", agent="clerk"))["items"]
            (between,) = (await read(second, "/tasks", agent="gateway"))["items"]
            for id in (inner["id"], between["id"]):
                found = await read(second, f"/tasks/{id}/tree")
                assert ids(found["top"]) == [between["id"], inner["id"]]
                assert found["origin"]["gateways"] == [first.gateway.id]
                opening = await read(first, f"/tasks/{outer['id']}/events", limit=1)
                sent = opening["items"][0]["event"]["task"]["history"][0]["messageId"]
                assert found["origin"]["messageId"] == sent
            top = (await read(first, f"/tasks/{outer['id']}/tree"))["top"]
            assert [child["id"] for child in top["children"]] == [between["id"]]
        async with second.client(behind) as client:
            below.append(client)
            async with Client(f"{first.url}/agents/chief") as called:
                await called.send("y")
            (waiting,) = (await read(first, "/tasks", text="y"))["items"]
            (asked,) = (await read(second, "/tasks", text="y", agent="clerk"))["items"]
            found = await read(second, f"/tasks/{asked['id']}/tree")
            assert found["origin"]["taskIds"] == [waiting["id"]]
            assert len(ids(found["top"])) == 2
