"""An agent that joins a gateway from within a program: `async with agent.join(url)`."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator

from dragoman.authoring.agent import Agent
from dragoman.config import Settings, check_names, load_settings
from dragoman.http.admission import Admission
from dragoman.http.connections import Connections
from dragoman.http.protocol import protocol
from dragoman.server.app import App
from dragoman.server.process.joining import Joining, credential_headers
from dragoman.tunnels.frames import Welcome


@contextlib.asynccontextmanager
async def join_agent(
    agent: Agent,
    gateway: str,
    *,
    key: str = "",
    token: str = "",
    name: str = "",
    settings: Settings | None = None,
) -> AsyncGenerator[str]:
    """Serve an agent through a gateway for as long as the block lasts; give its address there.

    Begins when the gateway has let the agent in, and raises why it does not. The settings are those
    of the environment, unless some are given.
    """
    if settings is None:
        check_names(os.environ)
        settings = load_settings(os.environ)
    app = App(agent, settings=settings)
    app.access.admission = Admission()
    connections = Connections(settings, app.access.admission, app.access.refusals)
    joined: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
    headers = credential_headers(key=key, token=token)
    joining = Joining(gateway, name or agent.name, headers, joined.set_result)

    def refused() -> None:
        assert joining.refusal is not None, "why it ended"
        joined.set_exception(joining.refusal)

    async with app.running():
        await joining.start(app.store, protocol(app, connections), refused)
        try:
            yield f"{gateway.rstrip('/')}/a2a/{(await joined).agent}"
        finally:
            joining.leave()
            app.end_streams()
            await connections.close(settings.server.drain)
            await joining.close()
