"""A task sent through a gateway, as its caller sees it."""

from pathlib import Path

import pytest
from harness.serving import serving
from harness.waiting import within

from dragoman.errors import RateLimited
from dragoman.model.task import TaskState
from tests.gateway.gateway_site import gateway, workshop


async def test_a_task_is_done_by_the_agent_it_is_for(tmp_path: Path) -> None:
    async with serving(workshop()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        async with gate.client(agent) as client:
            answer = await within(client.send("hello"))
            assert answer.text == "echo: hello"
            assert answer.task is not None and answer.task.status.state is TaskState.COMPLETED
            there = await site.call("ListTasks", {})
            (upstream,) = there["tasks"]
            assert upstream["id"] != answer.task.id
            assert (await client.get(answer.task.id)).id == answer.task.id


async def test_chunks_arrive_one_by_one_and_end_as_one_artifact(tmp_path: Path) -> None:
    async with serving(workshop()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        async with gate.client(agent) as client:
            stream = client.stream({"to": 5}, metadata={"skillId": "count"})
            events = [event async for event in stream]
            assert stream.answer.text == "1 2 3 4 5 "
            assert len(events) > 4


async def test_a_question_goes_to_the_caller_and_the_answer_to_the_agent(tmp_path: Path) -> None:
    async with serving(workshop()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        async with gate.client(agent) as client:
            asked = await within(client.send("tea", metadata={"skillId": "order"}))
            assert asked.task is not None
            assert asked.task.status.state is TaskState.INPUT_REQUIRED
            assert asked.text.endswith("Where to?")
            done = await within(client.send("Rome", task_id=asked.task.id))
            assert done.text.endswith("tea to Rome")
            (upstream,) = (await site.call("ListTasks", {}))["tasks"]
            assert upstream["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("skill", "state", "said"),
    [("refuse", TaskState.REJECTED, "not today"), ("fail", TaskState.FAILED, "The agent failed")],
)
async def test_what_an_agent_does_not_do_ends_as_it_says(
    tmp_path: Path, skill: str, state: TaskState, said: str
) -> None:
    async with serving(workshop()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        async with gate.client(agent) as client:
            answer = await within(client.send("x", metadata={"skillId": skill}))
            assert answer.task is not None and answer.task.status.state is state
            assert said in answer.text


async def test_a_cancel_reaches_the_agent(tmp_path: Path) -> None:
    async with serving(workshop()) as site, gateway(tmp_path) as gate:
        agent = await gate.register(site.url)
        async with gate.client(agent) as client:
            stream = client.stream("x", metadata={"skillId": "wait"})
            async for _ in stream:
                if stream.answer.text.endswith("waiting"):
                    break
            task = await within(client.cancel(stream.task_id))
            assert task.status.state is TaskState.CANCELED

            async def canceled() -> None:
                while True:
                    (upstream,) = (await site.call("ListTasks", {}))["tasks"]
                    if upstream["status"]["state"] == "TASK_STATE_CANCELED":
                        return

            await within(canceled())


async def test_nobody_fills_the_registry(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, gateway(tmp_path, max_agents_per_owner=2) as gate:
        for _ in range(2):
            await gate.register(upstream.url, "bob")
        with pytest.raises(RateLimited, match="remove one"):
            await gate.register(upstream.url, "bob")
        await gate.register(upstream.url, "alice")
