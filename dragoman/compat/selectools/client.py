"""selectools' client over ours: the same methods and results, and one class of error for
everything that fails.

An agent is called where its card says, as selectools wrote it first and as others write it, and
at `/a2a` where there is no card. The token goes to the address that was given and to no other.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.cards import Cards
from dragoman.client.client import Client
from dragoman.client.http import Http
from dragoman.client.origins import origin_of
from dragoman.compat.selectools.records import A2AError, A2ATask, AgentCard, Json
from dragoman.compat.selectools.transport import HttpxTransport
from dragoman.dialects import errors as error_table
from dragoman.dialects.v0_3 import decode_part, encode_message, encode_task
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
from dragoman.model.message import Part
from dragoman.model.task import Task

T = TypeVar("T")

# Where selectools shows its card, and where others do besides.
CARD_PATH = "/.well-known/agent.json"
RPC_PATH = "/a2a"


class A2AClient:
    """Talks to an agent at an address. `transport` is one of httpx, such as
    `httpx.ASGITransport(app=server)` for a server of this process.

    What the agent refuses and what cannot be reached is an `A2AError`; what the agent tried and
    could not do is a task whose state is `failed`.
    """

    def __init__(
        self,
        base_url: str,
        auth_token: str | None = None,
        timeout: float = 30.0,
        transport: Any | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = auth_token
        self._timeout = timeout
        self._http = None if transport is None else HttpxTransport(transport, timeout)
        self._cards = Cards(timeout=timeout or 10.0)

    # The card

    async def discover(self) -> AgentCard:
        """Return the agent's card, read anew."""
        with _told():
            async with asyncio.timeout(self._timeout):
                return AgentCard.from_dict((await self._look(fresh=True))[1])

    def discover_sync(self) -> AgentCard:
        """Return the agent's card, read anew, in code that is not async."""
        return _waited(self.discover())

    # Tasks

    async def send_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> A2ATask:
        """Send a text, and more parts as they are on the wire; return the task once it rests."""

        async def send(client: Client) -> A2ATask:
            content = _content(text, extra_parts)
            answer = await client.send(
                content, context_id=context_id or "", message_id=uuid.uuid4().hex
            )
            return _shown(answer)

        return await self._call(send)

    def send_task_sync(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> A2ATask:
        """Send a text in code that is not async."""
        return _waited(self.send_task(text, context_id=context_id, extra_parts=extra_parts))

    async def get_task(self, task_id: str) -> A2ATask:
        """Return a task as it stands."""

        async def get(client: Client) -> A2ATask:
            return _task(await client.get(task_id))

        return await self._call(get)

    def get_task_sync(self, task_id: str) -> A2ATask:
        """Return a task as it stands in code that is not async."""
        return _waited(self.get_task(task_id))

    async def cancel_task(self, task_id: str) -> A2ATask:
        """End a task before it is done."""

        async def cancel(client: Client) -> A2ATask:
            return _task(await client.cancel(task_id))

        return await self._call(cancel)

    def cancel_task_sync(self, task_id: str) -> A2ATask:
        """End a task before it is done, in code that is not async."""
        return _waited(self.cancel_task(task_id))

    async def stream_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> AsyncGenerator[A2ATask]:
        """Send a text and yield the task each time that something came of it, until it rests."""
        with _told():
            # selectools' card knows of no streams; that of today does, where there are some.
            client = await self._connected([self._base_url])
            try:
                content = _content(text, extra_parts)
                stream = client.stream(
                    content, context_id=context_id or "", message_id=uuid.uuid4().hex
                )
                async with aclosing(stream) as events:
                    async for _ in events:
                        yield _shown(stream.answer)
            finally:
                await client.close()

    # Connections

    async def _call(self, deed: Callable[[Client], Awaitable[A2ATask]]) -> A2ATask:
        """Do something with a client of its own: whoever calls next may be on another loop."""
        with _told():
            async with asyncio.timeout(self._timeout):
                client = await self._connected()
                try:
                    return await deed(client)
                finally:
                    await client.close()

    async def _connected(self, places: Sequence[str] = ()) -> Client:
        """Return a client of the address that the card names, if the token may go there, else of
        `/a2a` below the one that was given."""
        card = await self._card(places)
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
            card, _ = await self._look(places)
        except (CardNotFound, CardInvalid, Unauthenticated, CredentialsMissing):
            return self._own_card()
        named = {_origin(interface.url) for interface in card.supported_interfaces}
        is_bound = self._token is not None or self._http is not None
        if is_bound and named != {_origin(self._base_url)}:
            return self._own_card()
        # The token is sent whatever the card says of it: selectools' own says nothing.
        return msgspec.structs.replace(card, security_schemes={}, security_requirements=[])

    async def _look(self, places: Sequence[str] = (), *, fresh: bool = False) -> tuple[Card, Json]:
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


def _content(text: str, extra_parts: list[Json] | None) -> list[Part]:
    more = [
        decode_part(part, f"extra_parts[{index}]") for index, part in enumerate(extra_parts or [])
    ]
    return [Part(text=text), *more]


def _shown(answer: Answer) -> A2ATask:
    if answer.task is not None:
        return _task(answer.task)
    assert answer.message is not None, "an answer is a task or a message"
    return A2ATask.from_dict(encode_message(answer.message))


def _task(task: Task) -> A2ATask:
    return A2ATask.from_dict(encode_task(task))


def _origin(url: str) -> str:
    try:
        return origin_of(url)
    except ConfigError:
        return url


@contextmanager
def _told() -> Generator[None]:
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


def _waited(deed: Coroutine[Any, Any, T]) -> T:
    """Return what comes of a coroutine. Inside a running loop, which waits meanwhile, it is done
    on another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(deed)
    with ThreadPoolExecutor(1, "dragoman client") as thread:
        return thread.submit(asyncio.run, deed).result()
