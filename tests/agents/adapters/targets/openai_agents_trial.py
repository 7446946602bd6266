"""An agent of the OpenAI Agents SDK that speaks in pieces, calls a tool first, fails and hangs."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, function_tool, set_tracing_disabled
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseOutputMessage
from openai.types.responses.response_stream_event import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseTextDeltaEvent,
)

set_tracing_disabled(True)


class Scripted(Model):
    """Asks for the tool, then tells what it said."""

    async def get_response(self, *args: Any, **more: Any) -> Any: ...

    async def stream_response(
        self, system: Any, input: Any, *rest: Any, **more: Any
    ) -> AsyncIterator[Any]:
        said = input if isinstance(input, str) else input[0]["content"]
        if said == "fail":
            raise ConnectionError("password hunter2")
        if said == "hang":
            print("the sdk agent hangs", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                print("the sdk agent was stopped", flush=True)
        results = [] if isinstance(input, str) else [i for i in input if "output" in i]
        texts = [f"{said} has ", f"{results[-1]['output']}"] if results else ["Let me see. "]
        yield ResponseCreatedEvent.model_construct(type="response.created")
        for text in texts:
            kind = "response.output_text.delta"
            yield ResponseTextDeltaEvent.model_construct(type=kind, delta=text)
        whole = {"type": "output_text", "text": "".join(texts), "annotations": []}
        message = ResponseOutputMessage(
            id="1", type="message", role="assistant", status="completed", content=[whole]
        )
        call = ResponseFunctionToolCall(
            type="function_call", call_id="1", name="length", arguments=json.dumps({"word": said})
        )
        output = [message] if results else [message, call]
        response = Response.model_construct(id="1", output=output, usage=None)
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response)


@function_tool
def length(word: str) -> int:
    """Counts letters."""
    return len(word)


agent = Agent(name="sdk trial", model=Scripted(), tools=[length])
