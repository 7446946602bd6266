"""A graph that is made to stream, fail and hang, with a model that speaks in pieces."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph


class State(TypedDict):
    question: str
    seen: Annotated[list[str], operator.add]
    answer: str


async def think(state: State) -> dict[str, Any]:
    question = state["question"]
    if question == "fail":
        raise ConnectionError("password hunter2")
    if question == "hang":
        print("the graph hangs", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("the graph was stopped", flush=True)
    model = GenericFakeChatModel(messages=iter([AIMessage(f"It is {question}")]))
    reply = await model.ainvoke(question)
    return {"seen": [question], "answer": reply.content}


builder = StateGraph(State)
builder.add_node(think)
builder.add_edge(START, "think")
agent = builder.compile(name="graph trial")
