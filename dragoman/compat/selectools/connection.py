"""The connection of selectools' client, and the translation of errors.

An agent is called at the address in its card, read from selectools' path or from the current one,
and at `/a2a` if there is no card. The token is sent to the given origin only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from dragoman.client.cards.cards import Cards
from dragoman.client.client import Client
from dragoman.client.credentials.origins import origin_of
from dragoman.client.http import Http
from dragoman.compat.selectools.records import A2AError, Json
from dragoman.compat.selectools.transport import HttpxTransport
from dragoman.dialects import errors as error_table
from dragoman.errors import A2AError as Failure
from dragoman.errors import (
    CallFailed,
    CardInvalid,
    CardNotFound,
    ConfigError,
    CredentialsMissing,
    InvalidParams,
    Unauthenticated,
)
from dragoman.model.card import JSONRPC, AgentCapabilities, AgentInterface
from dragoman.model.card import AgentCard as Card

T = TypeVar("T")

# The path of selectools' card, which older agents use too.
CARD_PATH = "/.well-known/agent.json"
RPC_PATH = "/a2a"


class SelectoolsConnection:
    """An agent at an address. Each call makes a new client: the next call may be on another event
    loop."""

    def __init__(self, base_url: str, token: str | None, timeout: float, transport: Any) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._http = None if transport is None else HttpxTransport(transport, timeout)
        self._cards = Cards(timeout=timeout or 10.0)

    async def call(self, use: Callable[[Client], Awaitable[T]], *, is_current: bool = False) -> T:
        """Use a client of the agent. `is_current`: by the card at the current path, for features
        that selectools' card does not declare."""
        with translated_errors():
            async with asyncio.timeout(self._timeout):
                client = await self.connected(is_current=is_current)
                try:
                    return await use(client)
                finally:
                    await client.close()

    async def connected(self, *, is_current: bool = False) -> Client:
        """Return a client for the address in the card, if the token may be sent there, else for
        `/a2a` below the given address."""
        card = await self._card([self._base_url] if is_current else [])
        client = self._client(card)
        try:
            await client.connect()
        except Failure:
            await client.close()
            client = self._client(self._own_card())
            await client.connect()
        return client

    async def _card(self, urls: Sequence[str]) -> Card:
        try:
            card, _ = await self.read_card(urls)
        except (CardNotFound, CardInvalid, Unauthenticated, CredentialsMissing):
            return self._own_card()
        named = {_origin(interface.url) for interface in card.supported_interfaces}
        is_bound = self._token is not None or self._http is not None
        if is_bound and named != {_origin(self._base_url)}:
            return self._own_card()
        # The token is always sent: selectools' card does not declare it.
        return msgspec.structs.replace(card, security_schemes={}, security_requirements=[])

    async def read_card(
        self, urls: Sequence[str] = (), *, fresh: bool = False
    ) -> tuple[Card, Json]:
        """Return the card, decoded and raw, from selectools' path or from the current one."""
        problem: Failure | None = None
        for url in urls or (self._base_url + CARD_PATH, self._base_url):
            client = self._client(url)
            try:
                return await client.look(fresh=fresh), client.raw_card
            except CardNotFound as error:
                problem = problem or error
            finally:
                await client.close()
        assert problem is not None, "at least one URL was tried"
        raise problem

    def _own_card(self) -> Card:
        """Return a card for an agent without one."""
        interface = AgentInterface(
            url=self._base_url + RPC_PATH, protocol_binding=JSONRPC, protocol_version="0.2"
        )
        return Card(
            name=self._base_url,
            description="",
            supported_interfaces=[interface],
            version="",
            capabilities=AgentCapabilities(),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[],
        )

    def _client(self, ref: str | Card) -> Client:
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        options: dict[str, Any] = {"headers": headers, "cards": self._cards}
        if headers and not isinstance(ref, str):
            options["origins"] = [_origin(self._base_url)]
        if self._http is None:
            return Client(ref, timeout=self._timeout, **options)
        return _TransportClient(self._http, ref, timeout=self._timeout, **options)


class _TransportClient(Client):
    """A client that sends its requests by a given transport."""

    def __init__(self, http: Http, *args: Any, **more: Any) -> None:
        self._transport = http
        super().__init__(*args, **more)

    def _new_http(self) -> Http:
        return self._transport


def _origin(url: str) -> str:
    try:
        return origin_of(url)
    except ConfigError:
        return url


@contextmanager
def translated_errors() -> Generator[None]:
    """Raise all failures as selectools' error."""
    try:
        yield
    except TimeoutError:
        raise A2AError("The agent did not answer in time; it may be at work") from None
    except (Unauthenticated, CredentialsMissing) as error:
        status = error.code if isinstance(error.code, int) else 401
        reason = "the token is missing or not accepted"
        raise A2AError(f"HTTP {status} from A2A server: {reason}") from None
    except CallFailed as error:
        is_status = isinstance(error.code, int) and error.code > 0
        prefix = f"HTTP {error.code} from A2A server: " if is_status else ""
        raise A2AError(prefix + error.public) from None
    except InvalidParams as error:
        raise A2AError(error.public, -32602) from None
    except Failure as error:
        row = error_table.jsonrpc(error, "0.3")
        code = error.code if isinstance(error.code, int) else row["code"]
        raise A2AError(error.public, code, error.facts or None) from None
    except ConfigError as error:
        raise A2AError(str(error)) from None


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine. Inside a running event loop, which blocks meanwhile, it
    runs on another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "dragoman client") as thread:
        return thread.submit(asyncio.run, coroutine).result()
