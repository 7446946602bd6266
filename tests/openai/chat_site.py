"""An agent for chat programs, served alone and behind a gateway, and the package that calls it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
from harness.serving import client, hosting

from dragoman import Agent, App, Part, TaskFailed, Turn
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.registry.registration import Registration
from dragoman.openai.part import OpenAIPart

Via = Literal["served", "gateway"]
VIAS: list[Via] = ["served", "gateway"]


def concierge() -> Agent:
    """Return an agent with a skill for everything that a chat can have."""
    agent = Agent("Concierge", "Answers chats.", input_modes=["text/plain", "image/*"])

    @agent.skill(default=True)
    async def talk(text: str) -> AsyncIterator[str]:
        """Says it again, word by word."""
        for word in f"You said: {text}".split(" "):
            yield f"{word} "

    @agent.skill
    async def book(what: str, turn: Turn) -> str:
        """Asks back, twice."""
        where = await turn.ask("Where to?")
        code = await turn.ask("Your code?", sensitive=True)
        return f"{what} to {where.text} with {len(code.text)} signs"

    @agent.skill
    async def look(text: str, turn: Turn) -> str:
        """Has the caller's program look."""
        seen = await turn.tool("look", {"at": text})
        return f"It saw {seen}"

    @agent.skill
    async def compare(text: str, turn: Turn) -> str:
        """Has the caller's program look twice at once."""
        seen = await asyncio.gather(*(turn.tool("look", {"at": one}) for one in text.split()))
        return " and ".join(seen)

    @agent.skill
    async def draft(text: str, turn: Turn) -> str:
        """Shows something before it asks."""
        await turn.artifact(f"{text}, a draft.")
        more = await turn.ask("What next?")
        return f"Then {more.text}."

    @agent.skill(input_modes=["*/*"])
    async def measure(content: bytes, text: str = "") -> dict[str, Any]:
        """Measures a file."""
        return {"bytes": len(content), "text": text}

    @agent.skill
    async def draw(text: str) -> list[Part]:
        """Draws."""
        return [Part(text="Here:"), Part(raw=b"png", media_type="image/png", filename="a]b.png")]

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        """Waits until it is canceled."""
        await turn.say("waiting")
        await asyncio.Event().wait()
        return text

    @agent.skill
    async def fail(text: str) -> str:
        """Fails."""
        raise TaskFailed("The kitchen is closed.")

    @agent.skill
    async def recall(text: str, turn: Turn) -> dict[str, Any]:
        """Says what it knows of its chat."""
        return {"context": turn.context, "chat": turn.message.metadata}

    @agent.skill
    async def reserve(seats: int, rows: list[str]) -> dict[str, Any]:
        """Takes no text."""
        return {"seats": seats, "rows": rows}

    @agent.skill(scopes=["vip"])
    async def upgrade(text: str) -> str:
        """For some callers only."""
        return text

    return agent


class ChatSite:
    """Agents served to chat programs."""

    def __init__(self, url: str, http: httpx.AsyncClient, app: App) -> None:
        self.url = url
        self.http = http
        self.app = app

    def openai(self, key: str = "none", base: str = "/v1") -> openai.AsyncOpenAI:
        """Return the package's client."""
        return openai.AsyncOpenAI(
            base_url=self.url + base, api_key=key, max_retries=0, http_client=self.http
        )

    async def ask(self, model: str, *messages: dict[str, Any], **more: Any) -> Any:
        """Return the one choice of a completion."""
        body: Any = {"model": model, "messages": list(messages), **more}
        answer = await self.openai().chat.completions.create(**body)
        return answer.choices[0]

    async def tasks(self) -> list[Any]:
        """Return the tasks of the agent's callers, the latest first."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        response = await self.http.post("/", json=body, headers={"A2A-Version": "1.0"})
        return response.json()["result"]["tasks"]


def said(text: Any) -> dict[str, Any]:
    """Return a message of a user."""
    return {"role": "user", "content": text}


def answered(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": text}


@asynccontextmanager
async def chatting(via: Via, folder: Path, **settings: Any) -> AsyncGenerator[ChatSite]:
    """Serve the agent to chat programs, by itself or through a gateway."""
    chosen: dict[str, Any] = {"openai": True, "store": str(folder / f"{via}.db")} | settings
    chosen["allow_private"] = True
    async with AsyncExitStack() as stack:
        if via == "served":
            app = App(concierge(), settings=load_settings({}, **chosen), parts=[OpenAIPart()])
            url = await stack.enter_async_context(hosting(app))
        else:
            behind = App(concierge(), settings=load_settings({}, store="memory:"))
            address = await stack.enter_async_context(hosting(behind))
            app = gateway_app(
                settings=load_settings({}, **chosen), is_local=True, parts=[OpenAIPart()]
            )
            url = await stack.enter_async_context(hosting(app))
            await gateway_of(app).registry.register(Registration(url=address))
        http = await stack.enter_async_context(client(url))
        yield ChatSite(url, http, app)
