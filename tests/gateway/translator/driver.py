"""Has a Python library of A2A do the same with each of many agents, in the library's environment.

How a library is spoken to is written in `tests/peers/drivers`; there a message is told apart by its
id, and here, behind a gateway that gives messages ids of its own, by its text.
"""

import asyncio
import importlib
import json
import sys
import traceback
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[2] / "peers" / "drivers"))
import scenarios as plain

EACH_WITHIN = 60.0
# The agent that messages name; empty: the address leads to it.
named: ContextVar[str] = ContextVar("named", default="")
WHOLE = "c0 c1 c2 c3 "


def speaking(library: Any) -> None:
    """Make what the library's driver takes for the id of a message its text."""
    name = "request" if hasattr(library, "request") else "message"
    made = getattr(library, name)

    def told(text: str, *rest: Any) -> Any:
        request = made(uuid4().hex, *rest)
        if isinstance(request, dict):
            request["parts"][0]["text"] = text
            return request
        message = getattr(request, "message", request)
        if named.get() and hasattr(message, "DESCRIPTOR"):
            message.metadata.update({"agentId": named.get()})
        elif named.get():
            message.metadata = {"agentId": named.get()}
        part = message.parts[0]
        # Parts of 0.3 have the text one level below.
        getattr(part, "root", part).text = text
        return request

    setattr(library, name, told)


def text_of(task: plain.Task) -> str:
    return "".join(artifact.text for artifact in task.artifacts) or task.said


async def send(peer: plain.Peer) -> None:
    task = plain.a_task(await peer.send("echo hello"))
    plain.expect("task", (task.state, text_of(task)), ("completed", "hello"))


async def stream(peer: plain.Peer) -> None:
    events = await plain.follow(peer.stream("chunks 4"))
    plain.expect("last event", getattr(events[-1], "state", events[-1]), "completed")
    task = await peer.get(plain.a_task(events[0]).id)
    plain.expect("task", (task.state, text_of(task)), ("completed", WHOLE))


async def ask(peer: plain.Peer) -> None:
    asked = plain.a_task(await peer.send("ask"))
    plain.expect("question", (asked.state, asked.said), ("input-required", "Which city?"))
    done = plain.a_task(await peer.send("Graz", task=asked.id, context=asked.context))
    plain.expect("answer", (done.id, done.state), (asked.id, "completed"))
    plain.expect("text", text_of(done), "got Graz")


async def answer_in_a_stream(peer: plain.Peer) -> None:
    asked = plain.a_task(await peer.send("ask"))
    events = await plain.follow(peer.stream("Graz", task=asked.id))
    states = [event.state for event in events if hasattr(event, "state")]
    plain.expect("first and last state", (states[0], states[-1]), ("working", "completed"))
    plain.expect("questions", states.count("input-required"), 0)


async def cancel(peer: plain.Peer) -> None:
    task = plain.a_task(await peer.send("cancelme", wait=False))
    canceled = await peer.cancel(task.id)
    plain.expect("answer", (canceled.id, canceled.state), (task.id, "canceled"))


async def tried(library: Any, spoken: str, agent: str, address: str) -> None:
    address, _, agent_id = address.partition("#")
    named.set(agent_id)
    async with library.connect(address, spoken) as peer:
        for deed in (send, stream, ask, answer_in_a_stream, cancel):
            if agent == "corvid" and deed in (ask, answer_in_a_stream):
                # Their tasks cannot wait for anybody.
                continue
            if deed is cancel and not hasattr(peer, "cancel"):
                # Its client cannot do it.
                continue
            detail = ""
            try:
                async with asyncio.timeout(EACH_WITHIN):
                    await deed(peer)
            except Exception:
                detail = traceback.format_exc()[-1500:]
            told = {"spoken": spoken, "agent": agent, "deed": deed.__name__, "detail": detail}
            print(json.dumps(told), flush=True)


async def main() -> None:
    name, asked = sys.argv[1:]
    library = importlib.import_module(name)
    speaking(library)
    for spoken, agents in json.loads(asked).items():
        await asyncio.gather(*(tried(library, spoken, *agent) for agent in agents.items()))


if __name__ == "__main__":
    asyncio.run(main())
