"""Where selectools' client calls, and what becomes of what fails there.

An agent is called where its card says, as selectools wrote it first and as others write it, and
at `/a2a` where there is no card. The token goes to the address that was given and to no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from dragoman.client.cards import Cards
from dragoman.client.client import Client
from dragoman.client.http import Http
from dragoman.client.origins import origin_of
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

# Where selectools shows its card, and where others do besides.
CARD_PATH = "/.well-known/agent.json"
RPC_PATH = "/a2a"


class Connection:
    """An agent at an address, reached anew by every call: whoever calls next may be on another
    loop."""

    def __init__(self, base_url: str, token: str | None, timeout: float, transport: Any) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._http = None if transport is None else HttpxTransport(transport, timeout)
        self._cards = Cards(timeout=timeout or 10.0)

    async def call(
        self, deed: Callable[[Client], Awaitable[T]], *, by_todays_card: bool = False
    ) -> T:
        """Do something with a client of the agent. What selectools' card knows nothing of, today's
        does, where the agent has one."""
        with told():
            async with asyncio.timeout(self._timeout):
                client = await self.connected(by_todays_card=by_todays_card)
                try:
                    return await deed(client)
                finally:
                    await client.close()

    async def connected(self, *, by_todays_card: bool = False) -> Client:
        """Return a client of the address that the card names, if the token may go there, else of
        `/a2a` below the one that was given."""
        card = await self._card([self._base_url] if by_todays_card else [])
        client = self._client(card)
        try:
            await client.connect()
        except Failure:
            await client.close()
            client = self._client(self._own_card())
            await client.connect()
        return client

    async def _card(self, places: Sequence[str]) -> Card:
        try:
            card, _ = await self.look(places)
        except (CardNotFound, CardInvalid, Unauthenticated, CredentialsMissing):
            return self._own_card()
        named = {_origin(interface.url) for interface in card.supported_interfaces}
        is_bound = self._token is not None or self._http is not None
        if is_bound and named != {_origin(self._base_url)}:
            return self._own_card()
        # The token is sent whatever the card says of it: selectools' own says nothing.
        return msgspec.structs.replace(card, security_schemes={}, security_requirements=[])

    async def look(self, places: Sequence[str] = (), *, fresh: bool = False) -> tuple[Card, Json]:
        """Return the card and how it is written, at selectools' path or at that of today."""
        problem: Failure | None = None
        for place in places or (self._base_url + CARD_PATH, self._base_url):
            client = self._client(place)
            try:
                return await client.look(fresh=fresh), client.raw_card
            except CardNotFound as error:
                problem = problem or error
            finally:
                await client.close()
        assert problem is not None, "there are two places to look at"
        raise problem

    def _own_card(self) -> Card:
        """Return the card of an agent that shows none."""
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
        return _Carried(self._http, ref, timeout=self._timeout, **options)


class _Carried(Client):
    """A client whose requests are carried by somebody's own transport."""

    def __init__(self, http: Http, *args: Any, **more: Any) -> None:
        self._carrier = http
        super().__init__(*args, **more)

    def _new_http(self) -> Http:
        return self._carrier


def _origin(url: str) -> str:
    try:
        return origin_of(url)
    except ConfigError:
        return url


@contextmanager
def told() -> Generator[None]:
    """Say whatever goes wrong as selectools does."""
    try:
        yield
    except TimeoutError:
        raise A2AError("The agent did not answer in time; it may be at work") from None
    except (Unauthenticated, CredentialsMissing) as error:
        status = error.code if isinstance(error.code, int) else 401
        said = "the token is missing or not accepted"
        raise A2AError(f"HTTP {status} from A2A server: {said}") from None
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


def waited(deed: Coroutine[Any, Any, T]) -> T:
    """Return what comes of a coroutine. Inside a running loop, which waits meanwhile, it is done
    on another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(deed)
    with ThreadPoolExecutor(1, "dragoman client") as thread:
        return thread.submit(asyncio.run, deed).result()
