"""selectools' server on our engine: the same card and the same calls, with tasks that can be
followed, canceled and stored.

A message runs on a clone of the agent, so no caller sees the messages of another. An exception
fails the task and goes to the log; the caller learns only its class.
"""

import hmac
import logging
import os
from typing import Any

import msgspec

from dragoman import __version__
from dragoman.authoring.agent import Agent
from dragoman.compat.selectools.app import SelectoolsPart
from dragoman.compat.selectools.clones import Clones, SelectoolsAgent
from dragoman.compat.selectools.home import Home
from dragoman.config import PushSettings, Settings, StoreSettings
from dragoman.config.formats import SHORTEST_TOKEN
from dragoman.http.request import Scope
from dragoman.model.identity import Caller
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.server.app import App
from dragoman.server.process.run import Ready, run
from dragoman.transports import sse

logger = logging.getLogger(__name__)

PROTOCOL_VERSION = "0.2.6"
# The caller with the token: all of them are one.
HOLDER = Caller("default", authenticated=True)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class A2AServer:
    """Serves an agent of selectools: an ASGI app, or by itself with `serve`.

    The arguments are selectools' own. `settings` is how our server stores and guards tasks, such as
    `Settings(stores=StoreSettings(location="tasks.db"))`; without it they are in memory, the last
    `max_tasks` that ended.
    """

    def __init__(
        self,
        agent: SelectoolsAgent,
        auth_token: str | None = None,
        name: str | None = None,
        description: str | None = None,
        url: str = "",
        version: str | None = None,
        max_tasks: int = 2000,
        max_body_bytes: int = 1_048_576,
        *,
        settings: Settings | None = None,
    ) -> None:
        self._agent = agent
        self._name = name or str(agent.config.name)
        # Never the system prompt: the card is public.
        self._description = description or f"The agent {self._name!r}, served over A2A"
        self._url = url
        self._version = version or __version__
        self._max_tasks = max_tasks
        self._token = auth_token
        if auth_token and len(auth_token) < SHORTEST_TOKEN:
            logger.warning(
                "auth_token has less than %d characters and can be guessed", SHORTEST_TOKEN
            )
        self._max_body_bytes = max_body_bytes
        self._settings = self._with_arguments(
            settings
            or Settings(stores=StoreSettings(location="memory:"), push=PushSettings(enabled=False))
        )
        self.served = Clones(agent, self._name, self._description, self._version)
        self._home = Home(self.app(settings=self._settings))

    def _with_arguments(self, settings: Settings) -> Settings:
        """Return settings changed by the arguments."""
        return msgspec.structs.replace(
            settings,
            dialects=msgspec.structs.replace(settings.dialects, houses=["selectools", "0.1"]),
            http=msgspec.structs.replace(settings.http, max_body_bytes=self._max_body_bytes),
            stores=msgspec.structs.replace(settings.stores, retain_tasks=self._max_tasks),
        )

    @property
    def has_token(self) -> bool:
        """Whether callers have to show a token."""
        return bool(self._token)

    def app(self, *agents: Agent, settings: Settings, is_local: bool = False) -> App:
        """Return the app, with the given settings; for `dragoman.server.process.run`."""
        ways = [_tokens(self._token)] if self._token else []
        return App(
            self.served,
            settings=self._with_arguments(settings),
            authenticators=ways,
            is_local=is_local,
            parts=[SelectoolsPart(self.build_agent_card, self._max_tasks)],
        )

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        """Answer one ASGI connection, from any event loop."""
        await self._home(scope, receive, send)

    def serve(self, port: int = 8000, host: str | None = None) -> None:
        """Serve until a signal ends it. Without a host only this machine is served, unless callers
        need a token."""
        if host is None:
            host = os.environ.get("BIND_HOST") or ("0.0.0.0" if self._token else "127.0.0.1")
        if not self._token and host not in _LOOPBACK:
            logger.warning(
                "A2AServer starts unauthenticated on %s: every caller can run the agent and read "
                "all tasks. Give it an auth_token.",
                host,
            )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        settings = msgspec.structs.replace(
            self._settings, http=msgspec.structs.replace(self._settings.http, listen=[address])
        )
        try:
            run([], settings, public=True, on_ready=_log_ready, make=self.app)
        except SystemExit as ended:
            # The calling program goes on, as after selectools' own `serve`.
            if ended.code:
                raise

    def close(self) -> None:
        """Stop the app that calls without a socket have started; the next call starts it again."""
        self._home.close()

    def build_agent_card(self, url: str = "") -> dict[str, Any]:
        """Return the card of selectools' version; `url` is the address, unless one was given to the
        constructor."""
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "name": self._name,
            "description": self._description,
            "url": self._url or url,
            "version": self._version,
            "capabilities": {
                "streaming": False,
                "pushNotifications": False,
                "stateTransitionHistory": False,
            },
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [
                {
                    "id": tool.name,
                    "name": tool.name,
                    "description": tool.description,
                    "tags": ["tool"],
                }
                for tool in self._agent.tools
            ],
        }


def _tokens(token: str) -> BearerTokens:
    """Return the authenticator of the one token; its holder sees every task."""
    known = token.encode()

    def check(shown: str) -> Caller | None:
        return HOLDER if hmac.compare_digest(shown.encode(), known) else None

    return BearerTokens(check=check)


def _log_ready(ready: Ready) -> None:
    logger.info("A2AServer listens on %s", ", ".join(ready.urls))
