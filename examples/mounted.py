"""An agent inside a larger web app, here one of Starlette's (`pip install starlette uvicorn`).

    uvicorn --app-dir examples mounted:app
    curl localhost:8000/agent/.well-known/agent-card.json

The outer app starts and stops the agent with itself.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dragoman import Agent, App, Settings
from dragoman.config import StoreSettings

agent = Agent("Greeter", "Greets.")
agent_app = App(agent, settings=Settings(stores=StoreSettings(location="memory:")))


@agent.skill(tags=["greeting"])
async def greet(name: str) -> str:
    """Greets a person by name."""
    return f"Hello {name}"


async def home(request: Request) -> PlainTextResponse:
    """Answer what is not the agent's."""
    return PlainTextResponse("The agent is at /agent")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Run the agent as long as the app."""
    async with agent_app.running():
        yield


app = Starlette(routes=[Route("/", home), Mount("/agent", agent_app)], lifespan=lifespan)
