"""Fixtures for pytest. Say so in your conftest.py: `pytest_plugins = ["dragoman.testing.plugin"]`.

    def test_greets(serve_agent):
        served = serve_agent(my_agent)
        assert served.sync.send("hi").text == "hello"

The server runs in a thread with its own event loop, so the fixture works with any plugin for async
tests and without one.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dragoman.client.client import Client
from dragoman.testing.agents import Subject, app_of, hosted
from dragoman.testing.scripted.agent import ScriptedAgent

if TYPE_CHECKING:
    from dragoman.client.sync import Sync

# Takes an `Agent`, a script or any ASGI app, and the keywords of a client.
ServeAgent = Callable[..., "ServedAgent"]


class ServedAgent:
    """An agent on a port of this machine, until the test ends."""

    def __init__(self, app: Any, url: str, options: dict[str, Any]) -> None:
        self.app = app
        self.url = url
        self._options = options
        self._client: Client | None = None

    @property
    def agent(self) -> ScriptedAgent:
        """The scripted agent, to inspect its requests."""
        assert isinstance(self.app, ScriptedAgent), "only scripts are served by a scripted agent"
        return self.app

    def client(self, **options: Any) -> Client:
        """Return a client for an async test: `async with served.client() as agent`."""
        return Client(self.url, **{**self._options, **options})

    @property
    def sync(self) -> "Sync":
        """A client for a plain test, closed at its end."""
        if self._client is None:
            self._client = self.client()
        return self._client.sync

    def close(self) -> None:
        """Close the client of plain tests."""
        client, self._client = self._client, None
        if client is not None:
            client.sync.close()


@pytest.fixture
def serve_agent() -> Generator[ServeAgent]:
    """Serve an `Agent`, a script or an ASGI app on a free port; returns a `ServedAgent`."""
    with ExitStack() as stack:

        def serve(subject: Subject, **options: Any) -> ServedAgent:
            app = app_of(subject)
            url = stack.enter_context(hosted(app))
            served = ServedAgent(app, url, options)
            stack.callback(served.close)
            return served

        yield serve
