"""The server of PyPI strands-agents, `A2AServer`: an agent with a model that plays.

As it comes, chunks are what it says while it works and the whole text is the artifact; with
`compliant` the artifact comes in chunks.
"""

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import playing
from announcing import serve
from fastapi import FastAPI
from strands import Agent, ToolContext, tool
from strands.models import Model
from strands.multiagent.a2a import A2AServer


class Stage:
    """An answer of the model: texts, put in a queue from which the model streams them."""

    def __init__(self) -> None:
        self.texts: asyncio.Queue[str] = asyncio.Queue()
        self.is_asking = False

    async def reply(self, text: str) -> None:
        raise NotImplementedError("the library answers with tasks only")

    async def work(self) -> None:
        pass

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        for part in parts:
            assert part.text is not None, "a model of this library answers with text"
            self.texts.put_nowait(part.text)

    async def complete(self) -> None:
        pass

    async def ask(self, question: str) -> None:
        self.is_asking = True

    async def fail(self, reason: str) -> None:
        raise RuntimeError(reason)

    async def canceled(self) -> None:
        await asyncio.Event().wait()


@tool(context=True)
def city(tool_context: ToolContext) -> str:
    """Asks for a city."""
    return str(tool_context.interrupt("city", reason=playing.QUESTION))


def plain(block: dict[str, Any]) -> playing.Part:
    if document := block.get("document"):
        name = f"{document['name']}.{document['format']}"
        return playing.Part(raw=document["source"]["bytes"], filename=name)
    return playing.Part(text=block.get("text", ""))


class Playing(Model):
    """A model that does what the last message says."""

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        stage = Stage()
        content = messages[-1]["content"]
        results = [block["toolResult"] for block in content if "toolResult" in block]
        if results:
            parts = [playing.Part(text=results[0]["content"][0]["text"])]
        else:
            parts = [plain(block) for block in content]
        played = asyncio.create_task(playing.play(parts, stage, answering=bool(results)))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        try:
            while not (played.done() and stage.texts.empty()):
                text = asyncio.create_task(stage.texts.get())
                await asyncio.wait({text, played}, return_when=asyncio.FIRST_COMPLETED)
                if text.done():
                    yield {"contentBlockDelta": {"delta": {"text": text.result()}}}
                else:
                    text.cancel()
            await played
        finally:
            played.cancel()
        yield {"contentBlockStop": {}}
        if stage.is_asking:
            use = {"toolUse": {"toolUseId": "ask-1", "name": "city"}}
            yield {"contentBlockStart": {"start": use}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if stage.is_asking else "end_turn"}}


def make_app(address: str) -> FastAPI:
    # It warns of its own default.
    warnings.simplefilter("ignore")

    def make(context_id: str) -> Agent:
        return Agent(
            name="Player",
            description="Does what the text says.",
            model=Playing(),
            tools=[city],
            callback_handler=None,
        )

    server = A2AServer(
        agent_factory=make,
        http_url=address,
        enable_a2a_compliant_streaming=sys.argv[1:] == ["compliant"],
    )
    return server.to_fastapi_app()


if __name__ == "__main__":
    serve(make_app)
