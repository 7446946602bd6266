"""An agent of Google's ADK: `dragoman serve examples/adapters/adk_agent.py`."""

from collections.abc import AsyncGenerator

from google.adk.agents import BaseAgent, InvocationContext
from google.adk.events import Event
from google.genai.types import Content, Part


class Shouter(BaseAgent):
    """Needs no model: it says what it is told, louder."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        said = ctx.user_content.parts[0].text
        yield Event(author=self.name, content=Content(parts=[Part(text=said.upper())]))


root_agent = Shouter(name="shouter", description="Says it louder.")
