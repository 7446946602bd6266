"""An agent of the OpenAI Agents SDK: `dragoman serve examples/adapters/openai_agents_agent.py`."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, set_tracing_disabled
from openai.types.responses import Response, ResponseCompletedEvent

set_tracing_disabled(True)


class Parrot(Model):
    """Needs no key: it repeats the last thing it hears."""

    async def get_response(self, *args: Any, **more: Any) -> Any: ...

    async def stream_response(self, system: Any, input: Any, *a: Any, **m: Any) -> AsyncIterator:
        text = {"type": "output_text", "text": f"{input[-1]['content']}!", "annotations": []}
        said = {"id": "1", "type": "message", "role": "assistant", "content": [text]}
        response = Response.model_construct(id="1", output=[said], usage=None)
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response)


agent = Agent(name="parrot", model=Parrot())
