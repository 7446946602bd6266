"""An agent of the ADK that speaks in pieces, fails and hangs; and a runner that remembers."""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import BaseAgent, InvocationContext
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Content, Part

from dragoman.agents.adapters.detect import adapt


class Trial(BaseAgent):
    """Tells what its session has of what was said."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        said = [e.content.parts[0].text for e in ctx.session.events if e.author == "user"]
        if said[-1] == "fail":
            raise ConnectionError("password hunter2")
        if said[-1] == "error":
            yield Event(author=self.name, error_code="500", error_message="password hunter2")
            return
        if said[-1] == "hang":
            print("the adk agent hangs", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                print("the adk agent was stopped", flush=True)
        for text, partial in (("You said ", True), (said[-1], True), ("", False)):
            whole = text or f"You said {', '.join(said)}"
            yield Event(
                author=self.name, partial=partial, content=Content(parts=[Part(text=whole)])
            )


fresh = adapt(Trial(name="adk_trial", description="Tells."), "x")
sessions = InMemorySessionService()
remembering = adapt(
    Runner(app_name="trial", agent=Trial(name="adk_runner"), session_service=sessions), "x"
)
