"""The calls that selectools' documents show, made with its own package and with ours; then each
client calls the other's server.

Started by a test where both are installed, with the address of a server of ours. Prints what came
of each call, one JSON object a line. The agents here are selectools' own.
"""

import asyncio
import json
import socket
import sys
from typing import Any

import httpx
import uvicorn
from selectools import Agent, AgentConfig, a2a, tool
from selectools.providers.stubs import LocalProvider

from dragoman.compat import selectools as ours

TOKEN = "sk-demo-token"
# Which of the runs is under way.
run = ""


@tool()
def summarize(text: str) -> str:
    """Summarize a text in one sentence."""
    return f"Summary: {text[:60]}"


class Failing(LocalProvider):
    """Raises what must not be seen."""

    def complete(self, **given: Any) -> Any:
        raise RuntimeError("http://10.0.0.7/secret")


def researcher(provider: Any = None) -> Agent:
    config = AgentConfig(name="researcher", model="local-model", max_retries=0)
    return Agent(tools=[summarize], provider=provider or LocalProvider(), config=config)


class Picky(LocalProvider):
    """Fails when it is told to."""

    def complete(self, **given: Any) -> Any:
        if given["messages"][-1].content.startswith("fail"):
            raise RuntimeError("as asked")
        return super().complete(**given)


def say(call: str, **came: Any) -> None:
    print(json.dumps({"run": run, "call": call, **came}), flush=True)


def shown(task: Any) -> dict[str, Any]:
    return {"state": task.state, "text": task.text, "error": task.error}


async def main(package: Any) -> None:
    server = package.A2AServer(
        agent=researcher(), auth_token=TOKEN, description="Research agent that summarizes topics"
    )
    transport = httpx.ASGITransport(app=server)
    client = package.A2AClient("http://a2a-demo", auth_token=TOKEN, transport=transport)
    card = await client.discover()
    say(
        "discover",
        name=card.name,
        description=card.description,
        protocol=card.protocol_version,
        capabilities=card.capabilities,
        skills=[[skill.id, skill.name, skill.description, skill.tags] for skill in card.skills],
    )
    task = await client.send_task("Research quantum computing trends", context_id="ctx")
    say("send_task", **shown(task), context=task.context_id, members=sorted(task.raw))
    fetched = await client.get_task(task.id)
    say("get_task", **shown(fetched), is_same=fetched.id == task.id)
    say("send_task_sync", **shown(client.send_task_sync("Summarize the A2A protocol")))
    say("discover_sync", name=client.discover_sync().name)
    data = [{"kind": "data", "data": {"ä": [1]}}, {"kind": "file", "file": {"uri": "https://x.y"}}]
    say("extra_parts", **shown(await client.send_task("sum", extra_parts=data)))
    failing = package.A2AServer(agent=researcher(Failing()))
    there = package.A2AClient("http://b", transport=httpx.ASGITransport(app=failing))
    say("fails", **shown(await there.send_task("hi")))
    wrong = package.A2AClient("http://a2a-demo", auth_token="no", transport=transport)
    for call, made in (
        ("unknown", client.get_task("nobody")),
        ("refused", wrong.send_task("hi")),
    ):
        try:
            await made
        except package.A2AError as error:
            say(call, code=error.code, is_http="HTTP 401" in error.message)
    say("constants", terminal=sorted(package.TaskState.TERMINAL), names=sorted(package.__all__))


async def call(package: Any, address: str) -> None:
    """Call a server that listens somewhere."""
    client = package.A2AClient(address)
    say("discover", name=(await client.discover()).name)
    task = await client.send_task("hi", context_id="c")
    say("send_task", **shown(task), context=task.context_id)
    say("get_task", **shown(await client.get_task(task.id)))
    say("fails", **shown(await client.send_task("fail now")))


async def everything(address: str) -> None:
    global run
    run = "theirs"
    await main(a2a)
    run = "ours"
    await main(ours)
    run = "theirs at ours"
    await call(a2a, address)
    run = "ours at theirs"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(a2a.A2AServer(researcher(Picky())), log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        await call(ours, f"http://127.0.0.1:{listener.getsockname()[1]}")
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(everything(sys.argv[1]))
