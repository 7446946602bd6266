"""The A2AServer of PyPI selectools: 0.2 over JSON-RPC, every task done before the answer.

With the word `nowhere` as argument its card names no address, which is that library's default.
"""

import sys
import time
from typing import Any

from announcing import serve
from selectools import Agent, AgentConfig, tool
from selectools.a2a import A2AServer
from selectools.providers.stubs import LocalProvider
from selectools.types import Message, Role


class Player(LocalProvider):
    """Answers at once with what the other peers' artifacts say in the end."""

    def complete(self, *, messages: list[Message], **given: Any) -> Any:
        _, usage = super().complete(messages=messages, **given)
        text = next(m.content or "" for m in reversed(messages) if m.role == Role.USER)
        word, _, rest = text.partition(" ")
        if word == "fail":
            raise RuntimeError("It went wrong, as asked.")
        if word == "chunks":
            rest = "".join(f"c{i} " for i in range(int(rest)))
        elif word == "slow":
            time.sleep(int(rest) * 0.1)
            rest = "done"
        return Message(role=Role.ASSISTANT, content=rest), usage


@tool(description="Is never called; an agent of this library must have one.")
def idle(text: str) -> str:
    return text


def make_app(address: str) -> A2AServer:
    # Whatever is tried again is tried at once: a failure is meant.
    config = AgentConfig(name="Player", model="local-model", max_retries=0)
    agent = Agent(tools=[idle], provider=Player(), config=config)
    url = "" if "nowhere" in sys.argv else f"{address}/a2a"
    return A2AServer(agent, url=url)


if __name__ == "__main__":
    serve(make_app)
