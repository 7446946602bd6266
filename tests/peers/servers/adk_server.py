"""The server of PyPI google-adk, `to_a2a`: an agent without a model, whose events are its own.

Such an agent tells in the end what it said last: chunks are what it says meanwhile, and the whole
text is the artifact.
"""

import asyncio
import json
import logging
import warnings
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import urlsplit

import playing
from announcing import serve
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.genai.types import Blob, Content, FunctionCall, Part
from starlette.applications import Starlette

# How data parts travel inside the library: their JSON, between tags that only it reads.
OPEN, CLOSE = b"<a2a_datapart_json>", b"</a2a_datapart_json>"


def plain(part: Part) -> playing.Part:
    if part.inline_data is None:
        return playing.Part(text=part.text or "")
    raw = part.inline_data.data or b""
    if raw.startswith(OPEN):
        return playing.Part(data=json.loads(raw[len(OPEN) : -len(CLOSE)]))
    return playing.Part(
        raw=raw,
        filename=part.inline_data.display_name or "",
        media_type=part.inline_data.mime_type or "",
    )


def theirs(part: playing.Part) -> Part:
    if part.text is not None:
        return Part(text=part.text)
    if part.raw is None:
        raw = OPEN + json.dumps(part.data).encode() + CLOSE
        return Part(inline_data=Blob(data=raw, mime_type="text/plain"))
    blob = Blob(data=part.raw, mime_type=part.media_type, display_name=part.filename)
    return Part(inline_data=blob)


class Stage:
    """A run of this library: events are put in a queue, from which the agent yields them."""

    def __init__(self, author: str, invocation: str) -> None:
        self.author, self.invocation = author, invocation
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.text = ""

    def tell(self, parts: list[Part], **more: object) -> None:
        content = Content(role="model", parts=parts)
        event = Event(author=self.author, invocation_id=self.invocation, content=content, **more)
        self.events.put_nowait(event)

    async def reply(self, text: str) -> None:
        raise NotImplementedError("the library answers with tasks only")

    async def work(self) -> None:
        pass

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        self.text += "".join(part.text or "" for part in parts)
        self.tell([theirs(part) for part in parts], partial=append or not last)
        if append and last:
            self.tell([Part(text=self.text)])

    async def complete(self) -> None:
        pass

    async def ask(self, question: str) -> None:
        call = FunctionCall(id="ask-1", name="ask", args={})
        parts = [Part(text=question), Part(function_call=call)]
        self.tell(parts, long_running_tool_ids={"ask-1"})

    async def fail(self, reason: str) -> None:
        raise RuntimeError(reason)

    async def canceled(self) -> None:
        await asyncio.Event().wait()


class Player(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        stage = Stage(self.name, ctx.invocation_id)
        # An invocation begins with what the user said; before it is what was asked.
        asked = any(event.long_running_tool_ids for event in ctx.session.events)
        parts = [plain(part) for part in ctx.user_content.parts or []]
        played = asyncio.create_task(playing.play(parts, stage, answering=asked))
        try:
            while not (played.done() and stage.events.empty()):
                event = asyncio.create_task(stage.events.get())
                await asyncio.wait({event, played}, return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    yield event.result()
                else:
                    event.cancel()
            await played
        finally:
            played.cancel()


def make_app(address: str) -> Starlette:
    # A failed run is what a script asks for, and the whole of it is experimental.
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    at = urlsplit(address)
    agent = Player(name="player", description="Does what the text says.")
    return to_a2a(agent, host=at.hostname or "", port=at.port or 0)


if __name__ == "__main__":
    serve(make_app)
