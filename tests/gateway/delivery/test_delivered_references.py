"""Which tasks an agent says that it gave to others, seen by whoever calls it through a gateway."""

from pathlib import Path

from harness.serving import serving
from harness.waiting import within

from dragoman import Agent, Client, Turn
from tests.gateway.gateway_site import gateway


def helper() -> Agent:
    agent = Agent("Helper", "Helps.")

    @agent.skill
    async def help(text: str) -> str:
        return f"helped {text}"

    return agent


async def test_what_an_agent_refers_to_is_kept_on_the_way_through_a_gateway(
    tmp_path: Path,
) -> None:
    herald = Agent("Herald", "Says what it has others do.")
    async with serving(helper()) as there:

        @herald.skill
        async def work(text: str, turn: Turn) -> str:
            return (await turn.call(there.url, text, announce=True)).text

        async with serving(herald) as below, gateway(tmp_path) as site:
            agent = await site.register(below.url)
            async with Client(site.at(agent)) as client:
                stream = client.stream("x")

                async def read() -> None:
                    async for _ in stream:
                        pass

                await within(read())
                (child,) = (await there.call("ListTasks", {}))["tasks"]
                assert stream.references == {stream.task_id: [child["id"]]}
