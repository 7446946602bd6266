"""The server of PyPI langgraph-api, with everything in memory: 1.0 over JSON-RPC, one graph.

The card is at an address of its own for each assistant, so that is what is announced. A graph that
reads messages answers with a message; an interrupt asks.
"""

import contextlib
import os
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import playing
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

POLL_EVERY = 0.1
START_WITHIN = 50.0


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def answer(state: State) -> Any:
    """Do what the last message says; the library streams a message as a whole."""
    content = state["messages"][-1].content
    blocks = [content] if isinstance(content, str) else content
    text = "".join(one if isinstance(one, str) else one.get("text", "") for one in blocks)
    word, _, rest = text.partition(" ")
    if word == "ask":
        rest = f"got {interrupt(playing.QUESTION)}"
    elif word == "fail":
        raise RuntimeError(playing.REASON)
    elif word == "chunks":
        rest = "".join(f"c{i} " for i in range(int(rest)))
    return {"messages": [AIMessage(rest)]}


# The server reads this file once more for it.
graph = (
    StateGraph(State)
    .add_node("answer", answer)
    .add_edge(START, "answer")
    .add_edge("answer", END)
    .compile()
)


def free_port() -> int:
    """Return a port that is free, and that no connection of this machine is given meanwhile."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise SystemExit("no port is free")


def announce(address: str) -> None:
    """Say where the card is, once the server tells."""
    import httpx

    until = time.monotonic() + START_WITHIN
    while time.monotonic() < until:
        try:
            found = httpx.post(f"{address}/assistants/search", json={}).json()
            card = f"{address}/.well-known/agent-card.json?assistant_id={found[0]['assistant_id']}"
            httpx.get(card).raise_for_status()
        except (httpx.HTTPError, ValueError, IndexError, KeyError):
            time.sleep(POLL_EVERY)
        else:
            print(f"\nReady: {card}", flush=True)
            return


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    from langgraph_api.cli import run_server

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    # It tells its makers about every run unless it is told not to.
    os.environ |= {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    for act in (lambda: announce(address), end_with_input):
        threading.Thread(target=act, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        # It keeps a folder of its own where it runs.
        os.chdir(folder)
        run_server(
            "127.0.0.1", port, graphs={"player": f"{Path(__file__)}:graph"}, server_level="ERROR"
        )
