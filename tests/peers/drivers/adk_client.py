"""PyPI google-adk as a client: a `RemoteA2aAgent`, run as any other agent is."""

import logging
import warnings
from typing import Any

import httpx
import talking
from a2a.client import ClientConfig, ClientFactory
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Blob, Content, FunctionResponse, Part
from talking import same

CARD = "/.well-known/agent-card.json"


class Conversation:
    """A session with the remote agent."""

    def __init__(self, address: str, *, streaming: bool, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.AsyncClient(timeout=60, headers=headers)
        config = ClientConfig(httpx_client=client, streaming=streaming)
        self.agent = RemoteA2aAgent(
            name="remote",
            agent_card=address + CARD,
            httpx_client=client,
            a2a_client_factory=ClientFactory(config),
        )
        self.sessions = InMemorySessionService()
        self.runner = Runner(app_name="test", agent=self.agent, session_service=self.sessions)

    async def say(self, *parts: Part) -> list[Event]:
        session = await self.sessions.get_session(app_name="test", user_id="u", session_id="s")
        if session is None:
            await self.sessions.create_session(app_name="test", user_id="u", session_id="s")
        content = Content(role="user", parts=list(parts))
        run = self.runner.run_async(user_id="u", session_id="s", new_message=content)
        return [event async for event in run]


def text_of(events: list[Event]) -> str:
    """Return what a person is shown: the last event that is whole and is no thought."""
    texts = [
        "".join(part.text or "" for part in event.content.parts or [] if not part.thought)
        for event in events
        if event.content and not event.partial
    ]
    return next((text for text in reversed(texts) if text), "")


def calls_of(events: list[Event]) -> list[Any]:
    return [call for event in events for call in event.get_function_calls()]


class Adk:
    def __init__(self, place: talking.Place) -> None:
        self.place = place

    def open(self, *, streaming: bool = True, token: str = "") -> Conversation:
        address = self.place.guarded if token else self.place.address
        return Conversation(address, streaming=streaming, token=token)

    async def send(self) -> None:
        events = await self.open(streaming=False).say(Part(text="echo hello"))
        same(text_of(events), "hello")

    async def stream(self) -> None:
        events = await self.open().say(Part(text=f"chunks {talking.CHUNKS}"))
        told = [
            part.text
            for event in events
            if event.partial is not None and event.content
            for part in event.content.parts or []
            if part.text and not part.thought
        ]
        same("".join(told), talking.WHOLE)

    async def last_chunk(self) -> None:
        talk = Conversation(self.place.words, streaming=True)
        events = await talk.say(Part(text="one two three"))
        # Only the last chunk is whole to it.
        same(text_of(events).strip(), "three")

    async def ask(self) -> None:
        await self.answer(self.open(streaming=False))

    async def ask_in_a_stream(self) -> None:
        await self.answer(self.open())

    async def answer(self, talk: Conversation) -> None:
        asked = await talk.say(Part(text="ask"))
        (call,) = calls_of(asked)
        said = FunctionResponse(id=call.id, name=call.name, response={"result": "Graz"})
        done = await talk.say(Part(function_response=said))
        # A second question would be the first one, told again.
        same([call.name for call in calls_of(done)], [])
        same(text_of(done), "got Graz")

    async def ask_in_words(self) -> None:
        talk = self.open()
        await talk.say(Part(text="ask"))
        done = await talk.say(Part(text="Graz"))
        same((calls_of(done), text_of(done)), ([], "got Graz"))

    async def files(self) -> None:
        blob = Blob(data=talking.NOTES, mime_type="text/plain", display_name="notes.txt")
        talk = self.open(streaming=False)
        events = await talk.say(Part(text="describe"), Part(inline_data=blob))
        same(text_of(events), talking.DESCRIBED)
        events = await talk.say(Part(text="file"))
        files = [
            part.inline_data
            for event in events
            if event.content
            for part in event.content.parts or []
            if part.inline_data
        ]
        same(files[0].data, talking.REPORT)

    async def failure(self) -> None:
        events = await self.open().say(Part(text="fail"))
        same(text_of(events), talking.REASON)

    async def auth(self) -> None:
        events = await self.open(token=self.place.token).say(Part(text="echo hello"))
        same(text_of(events), "hello")
        refused = await self.open(token="wrong").say(Part(text="echo hello"))
        if not any("401" in (event.error_message or "") for event in refused):
            raise AssertionError(f"not refused: {refused}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    talking.run(Adk)
