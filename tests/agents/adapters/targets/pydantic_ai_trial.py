"""Agents of Pydantic AI that call a tool first, fail, hang, and return an object."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from dragoman.agents.adapters.detect import adapt


async def speak(messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
    said = str(messages[0].parts[0].content)
    if said == "fail":
        raise ConnectionError("password hunter2")
    if said == "hang":
        print("the pydantic agent hangs", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("the pydantic agent was stopped", flush=True)
    if not any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        yield "Let me see. "
        yield {1: DeltaToolCall(name="length", json_args=f'{{"word": "{said}"}}', tool_call_id="1")}
        return
    for piece in (f"{said} has ", str(messages[-1].parts[0].content), f" of {len(messages)}"):
        yield piece


writer = PydanticAgent(FunctionModel(stream_function=speak), name="pydantic trial")


@writer.tool_plain
def length(word: str) -> int:
    """Counts letters."""
    return len(word)


class City(BaseModel):
    name: str


async def answer(messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
    tool = info.output_tools[0].name
    yield {0: DeltaToolCall(name=tool, json_args='{"name": "Oslo"}', tool_call_id="1")}


typed = PydanticAgent(FunctionModel(stream_function=answer), output_type=City, name="typed trial")
one, two = adapt(writer, "writer"), adapt(typed, "typed")
