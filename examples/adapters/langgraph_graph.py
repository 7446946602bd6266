"""A graph that remembers and asks: `dragoman serve examples/adapters/langgraph_graph.py`."""

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


def book(state: MessagesState) -> dict[str, Any]:
    # The thread is the caller's conversation: it has what was said in it before.
    said = [str(message.content) for message in state["messages"] if message.type == "human"]
    if said[-1].startswith("book"):
        answer = interrupt(f"Really {said[-1]}?")
        return {"messages": [{"role": "ai", "content": f"{said[-1]}: {answer}"}]}
    return {"messages": [{"role": "ai", "content": f"You said {', '.join(said)}"}]}


builder = StateGraph(MessagesState)
builder.add_node(book)
builder.add_edge(START, "book")
graph = builder.compile(checkpointer=InMemorySaver())
