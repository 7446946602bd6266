"""The calls of one agent: everything `Client` does but its blocking twin.

Version, binding, credentials and what to do when a connection breaks follow from the card;
everything that fails is one class of `dragoman.errors`.
"""

import math
import ssl
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from dragoman.client import checks
from dragoman.client.agent_connection import AgentConnection, Options
from dragoman.client.answer import Answer, task_of
from dragoman.client.asgi import App, InProcess
from dragoman.client.cards.cards import Cards
from dragoman.client.content import Content, message_of
from dragoman.client.credentials.credentials import ApiKey, Bearer, Credential
from dragoman.client.credentials.origins import Origins
from dragoman.client.http import Http
from dragoman.client.pending_request import Observer
from dragoman.client.requests import (
    Attendant,
    OnRequest,
    Tools,
    answer_parts,
    no_answer,
)
from dragoman.client.streams.bound_streams import ClientStream, closed, closed_sending
from dragoman.client.streams.life_signs import Silence
from dragoman.client.streams.lost_messages import find_task
from dragoman.client.streams.presence import send_watched
from dragoman.client.streams.shown_task import Until
from dragoman.client.streams.stream import Polling, Stream
from dragoman.client.streams.texts import StreamTexts
from dragoman.client.streams.transitions import read_all
from dragoman.egress.egress import Egress
from dragoman.egress.http1 import OnSent
from dragoman.egress.targets import Anywhere
from dragoman.egress.waits import Waits
from dragoman.errors import (
    A2AError,
    ConfigError,
    DeliveryUnknown,
    InvalidAgentResponse,
    PushNotSupported,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard, AgentInterface
from dragoman.model.identity import ContextId, TaskId, new_id
from dragoman.model.message import Message, Metadata
from dragoman.model.push import PushConfig
from dragoman.model.requests import Request
from dragoman.model.task import TRANSITIONS_URI, Task, TaskState, Transition
from dragoman.service import PushPage, Reply, TaskPage

if TYPE_CHECKING:
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import SignatureVerdict

# An app in this process has an address too, for its card; nothing is ever dialled there.
IN_PROCESS = "http://localhost"
# More streams than this wait for one another: a bound, not a target.
CONNECTIONS = 1000
VERSIONS = ("1.0", "0.3", "0.2")

T = TypeVar("T")


class AgentCalls:
    """Talks to one agent. `ref` is a host, a URL, a card file or a card; `app` is an ASGI app of
    this process, called without a socket.

    `version` and `bindings` override what the card prefers; interfaces older than `oldest` are not
    used, those older than `preferred` only where the card has none that are newer. Credentials go
    to the origin of `ref` and to `origins`, never to another that a card names. `guard` keeps it
    from private addresses: a server turns it on. `tools` are functions by name that agents may ask
    to have called. `on_sent` is told how many bytes of a long message went out, and of how many.

    An agent that shows nothing for `quiet` seconds while a message or a task is with it is asked
    how that stands; after `patience` seconds without a sign of life the call ends with `TimedOut`.
    None: never.
    """

    def __init__(
        self,
        ref: str | Path | AgentCard | None = None,
        *,
        app: App | None = None,
        credentials: Sequence[Credential] = (),
        bearer: str = "",
        api_key: str = "",
        version: str = "",
        oldest: str = "0.2",
        preferred: str = "",
        bindings: Sequence[str] = (),
        extensions: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        origins: Sequence[str] = (),
        keys: "KeySet | None" = None,
        require_signature: bool = False,
        tls: ssl.SSLContext | None = None,
        guard: bool = False,
        timeout: float | None = 30.0,
        connect_timeout: float = 10.0,
        quiet: float = Silence().ask_after,
        patience: float | None = Silence().most,
        cards: Cards | None = None,
        observer: Observer | None = None,
        on_sent: OnSent | None = None,
        tools: Tools | None = None,
    ) -> None:
        if (ref is None) == (app is None):
            raise ConfigError("a client is for a reference or for an app: give one of them")
        checks.check_reference(ref)
        _check_version("oldest", oldest)
        if preferred:
            _check_version("preferred", preferred)
        checks.check_list("bindings", bindings)
        checks.check_list("origins", origins)
        checks.check_extensions(extensions)
        checks.check_headers(headers or {})
        if timeout is not None:
            checks.check_seconds("timeout", timeout)
        checks.check_seconds("connect_timeout", connect_timeout)
        checks.check_seconds("quiet", quiet)
        if patience is not None:
            checks.check_seconds("patience", patience)
        given = [*credentials]
        if bearer:
            given.append(Bearer(bearer))
        if api_key:
            given.append(ApiKey(api_key))
        self._ref = IN_PROCESS if ref is None else ref
        self._app = app
        self._tls = tls
        self._guard = guard
        self._connect_timeout = connect_timeout
        self._on_sent = on_sent
        self._cards = cards or Cards()
        self._tools = dict(tools or {})
        self._options = Options(
            credentials=given,
            version=version,
            oldest=oldest,
            preferred=preferred,
            bindings=bindings,
            extensions=extensions,
            headers=headers or {},
            origins=origins,
            keys=keys,
            require_signature=require_signature,
            timeout=timeout,
            silence=Silence(
                ask_after=quiet, most=math.inf if patience is None else patience
            ).shortened(),
            observer=observer,
        )
        self._http = self._new_http()
        self._connection = AgentConnection(self._ref, self._http, self._cards, self._options)
        self._waits = Waits()
        self._streams: weakref.WeakSet[ClientStream] = weakref.WeakSet()

    def _new_http(self) -> Http:
        if self._app is not None:
            return InProcess(self._app)
        return Egress(
            policy=None if self._guard else Anywhere(),
            tls=self._tls,
            keep_alive=True,
            connect_timeout=self._connect_timeout,
            per_host=CONNECTIONS,
            on_sent=self._on_sent,
        )

    def copy(self) -> Self:
        """Return a client of the same agent with connections of its own."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._http = twin._new_http()
        twin._connection = AgentConnection(self._ref, twin._http, self._cards, self._options)
        twin._waits = Waits()
        twin._streams = weakref.WeakSet()
        return twin

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what is open, for good. Calls under way end with `Unreachable`; tasks go on
        without us."""
        self._waits.close()
        for stream in list(self._streams):
            await stream.leave()
        await self._http.close()

    @property
    def _live(self) -> AgentConnection:
        """The connection, for as long as the client is open."""
        if self._waits.is_closed:
            raise ConfigError("the client is closed")
        return self._connection

    async def _open(self) -> None:
        connection = self._live
        with self._waits.until_closed(closed):
            await connection.open()

    async def _answer(self, operation: ops.Operation) -> Reply:
        connection = self._live
        if isinstance(operation, ops.SendMessage):
            with self._waits.until_closed(closed_sending):
                return await send_watched(connection, operation)
        with self._waits.until_closed(closed):
            return await connection.answer(operation)

    # The agent

    async def look(self, *, fresh: bool = False) -> AgentCard:
        """Read the agent's card, anew if `fresh`, without choosing how to talk to it: this works
        where no version, extension or credential fits as well. `connect` goes on from there."""
        connection = self._live
        with self._waits.until_closed(closed):
            return await connection.look(fresh=fresh)

    @property
    def reference(self) -> str:
        """What it was made for, as a text: a name, an address or a file."""
        return self._ref.name if isinstance(self._ref, AgentCard) else str(self._ref)

    async def connect(self) -> AgentCard:
        """Read the agent's card and choose how to talk to it; the first call does so too."""
        await self._open()
        return self._connection.card

    @property
    def card(self) -> AgentCard:
        """The agent's card, once it was read."""
        return self._connection.card

    @property
    def raw_card(self) -> dict[str, Any]:
        """The card as it came, once it was read."""
        return self._connection.fetched.raw

    @property
    def card_origin(self) -> str:
        """Where the card came from, once it was read; empty: from no server."""
        return self._connection.fetched.origin

    @property
    def origins(self) -> Origins:
        """Where credentials may go, once the card was read."""
        return self._connection.origins

    @property
    def interface(self) -> AgentInterface:
        """The interface that is spoken to, once connected."""
        return self._connection.interface

    @property
    def version(self) -> str:
        """The version of the protocol that is spoken, once connected."""
        return self._connection.version

    @property
    def signature(self) -> "SignatureVerdict":
        """Whether the card is signed by one of `keys`, once it was read."""
        return self._connection.signature()

    @property
    def unused_credentials(self) -> Sequence[Credential]:
        """What was given and is not sent, because the card asks for it nowhere."""
        return self._connection.unused

    async def extended_card(self) -> AgentCard:
        """Return the card that only known callers see."""
        await self._open()
        if not self._connection.card.capabilities.extended_agent_card:
            raise UnsupportedOperation("The agent has no extended card")
        reply = await self._answer(ops.GetExtendedCard())
        if not isinstance(reply, AgentCard):
            raise InvalidAgentResponse("The agent answered with something that is no card")
        return reply

    async def examine(self) -> list[str]:
        """Ask what gives the agent no work; return what of its answers was not as its version has
        it, and was read for what it means. Raises what an agent would not answer."""
        await self._open()
        with self._waits.until_closed(closed):
            return await self._live.examine()

    # Messages

    async def send(
        self,
        content: Content,
        *,
        task_id: str = "",
        context_id: str = "",
        message_id: str = "",
        metadata: Metadata | None = None,
        message_metadata: Metadata | None = None,
        accept: Sequence[str] = (),
        history: int | None = None,
        wait: bool = True,
        push: PushConfig | None = None,
        poll_interval: float | None = None,
        on_request: OnRequest | None = None,
    ) -> Answer:
        """Give the agent a message and return what came of it: where the task rests, or at once
        with `wait=False`. The same `message_id` again leads to the same task, where the agent
        keeps that promise. What the agent asks meanwhile is answered by the client's tools and by
        `on_request`, which returns the answer, or None to leave the request to you."""
        message = message_of(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            metadata=message_metadata,
        )
        operation = ops.SendMessage(
            message=message,
            accepted_output_modes=list(accept),
            history=history,
            wait=wait,
            push=push,
            metadata=metadata or {},
        )
        await self._open()
        if push is not None:
            self._check_push()
        try:
            reply = await self._answer(operation)
        except DeliveryUnknown as error:
            if self._waits.is_closed:
                raise
            found = await self._find_lost_task(operation)
            if found is None:
                raise error
            reply = found
        if isinstance(reply, Message):
            return Answer(None, reply)
        task = task_of(reply)
        answer = Answer(task)
        if wait and not task.status.state.is_resting:
            # A server may answer before the end: some do not wait, some not so long.
            answer = await self._rested(
                ops.SubscribeToTask(task_id=task.id),
                Polling(poll_interval, history),
                until="rest",
                polls_only=poll_interval is not None or history is not None,
                begun=task,
            )
        if not wait or on_request is no_answer or not (on_request or self._tools):
            return answer
        attendant = Attendant(self._tools, on_request)
        more: dict[str, Any] = {"history": history, "poll_interval": poll_interval}
        return await self._answer_requests(answer, attendant, accept=accept, **more)

    async def _answer_requests(self, answer: Answer, attendant: Attendant, **more: Any) -> Answer:
        """Return a task where it rests and what it waits for cannot be answered here."""
        while parts := await attendant.parts(answer):
            answer = await self.send(parts, task_id=answer.task_id, on_request=no_answer, **more)
        return answer

    async def answer_request(
        self, task_id: str, request: Request | str, result: Any = None, *, error: str = ""
    ) -> Answer:
        """Answer one of the requests that a task waits for, by its id, or say why there is no
        answer; return the task where it rests next."""
        question = Request(request) if isinstance(request, str) else request
        parts = question.failed(error) if error else answer_parts(question, result)
        return await self.send(parts, task_id=task_id)

    async def _find_lost_task(self, operation: ops.SendMessage) -> Any:
        """Return the task of a message whose answer was lost, if the agent has it."""
        with self._waits.until_closed(closed_sending):
            task_id = await find_task(self._live, operation.message)
        if not task_id:
            return None
        try:
            return await self._answer(ops.GetTask(task_id=TaskId(task_id)))
        except A2AError:
            # The caller hears of the first failure, which says what is unknown.
            return None

    def stream(
        self,
        content: Content,
        *,
        task_id: str = "",
        context_id: str = "",
        message_id: str = "",
        metadata: Metadata | None = None,
        message_metadata: Metadata | None = None,
        accept: Sequence[str] = (),
        history: int | None = None,
        push: PushConfig | None = None,
        until: Until = "rest",
        poll_interval: float | None = None,
    ) -> Stream:
        """Give the agent a message and return the events of its task, through every cut."""
        message = message_of(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            metadata=message_metadata,
        )
        operation = ops.StreamMessage(
            message=message,
            accepted_output_modes=list(accept),
            history=history,
            push=push,
            metadata=metadata or {},
        )
        polling = Polling(poll_interval, history)
        return self._tracked(ClientStream(self._live, operation, until=until, polling=polling))

    def _tracked(self, stream: "ClientStream") -> Stream:
        stream.waits = self._waits
        self._streams.add(stream)
        return stream

    async def stream_text(
        self,
        content: Content,
        *,
        task_id: str = "",
        context_id: str = "",
        message_id: str = "",
        metadata: Metadata | None = None,
        message_metadata: Metadata | None = None,
        accept: Sequence[str] = (),
        history: int | None = None,
        push: PushConfig | None = None,
        until: Until = "rest",
        poll_interval: float | None = None,
    ) -> AsyncGenerator[str]:
        """Yield the text of the answer as it comes; takes what `stream` takes."""
        async with self.stream(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            metadata=metadata,
            message_metadata=message_metadata,
            accept=accept,
            history=history,
            push=push,
            until=until,
            poll_interval=poll_interval,
        ) as events:
            # A task that goes on opens with what it produced before.
            is_new = not (task_id or (isinstance(content, Message) and content.task_id))
            texts = StreamTexts(is_new=is_new)
            async for event in events:
                for text in texts.of(event):
                    yield text
            if text := texts.last(events):
                yield text

    # Tasks

    async def get(self, task_id: str, *, history: int | None = None) -> Task:
        """Return a task as it stands."""
        operation = ops.GetTask(task_id=TaskId(task_id), history=history)
        return _same(task_of(await self._answer(operation)), task_id)

    async def transitions(self, task_id: str) -> list[Transition]:
        """Return the states that a task went through, oldest first; raises `UnsupportedOperation`
        if the agent does not tell them."""
        operation = ops.GetTask(task_id=TaskId(task_id), history=0)
        connection, extensions = self._live, frozenset({TRANSITIONS_URI})

        async def ask(after: int | None) -> Task:
            with self._waits.until_closed(closed):
                reply = await connection.answer(operation, after=after, extensions=extensions)
            return _same(task_of(reply), task_id)

        return await read_all(ask)

    async def cancel(self, task_id: str, *, metadata: Metadata | None = None) -> Task:
        """End a task before it is done; raises `TaskNotCancelable` if it has ended."""
        operation = ops.CancelTask(task_id=TaskId(task_id), metadata=metadata or {})
        return _same(task_of(await self._answer(operation)), task_id)

    def subscribe(
        self,
        task_id: str,
        *,
        after: int | None = None,
        until: Until = "rest",
        poll_interval: float | None = None,
    ) -> Stream:
        """Follow a task that is under way, from here or from a cursor seen before."""
        operation = ops.SubscribeToTask(task_id=TaskId(task_id))
        polling = Polling(poll_interval)
        return self._tracked(
            ClientStream(self._live, operation, after=after, until=until, polling=polling)
        )

    async def wait(
        self,
        task_id: str,
        *,
        until: Until = "rest",
        poll_interval: float | None = None,
        history: int | None = None,
        stream: bool = True,
    ) -> Answer:
        """Return a task once it rests: by following it, or, with `stream=False`, an interval or a
        wish for its history, by asking again and again."""
        return await self._rested(
            ops.SubscribeToTask(task_id=TaskId(task_id)),
            Polling(poll_interval, history),
            until=until,
            polls_only=not stream or poll_interval is not None or history is not None,
        )

    async def _rested(
        self,
        operation: ops.SubscribeToTask,
        polling: Polling,
        *,
        until: Until,
        polls_only: bool,
        begun: Task | None = None,
    ) -> Answer:
        stream = ClientStream(
            self._live,
            operation,
            until=until,
            polling=polling,
            polls_only=polls_only,
            begun=begun,
        )
        async with self._tracked(stream) as events:
            async for _ in events:
                pass
            return events.answer

    async def page(
        self,
        *,
        context_id: str = "",
        state: TaskState | None = None,
        page_size: int = 50,
        page_token: str = "",
        history: int | None = None,
        since: datetime | None = None,
        artifacts: bool = False,
    ) -> TaskPage:
        """Return one page of the caller's tasks, latest first."""
        reply = await self._answer(
            ops.ListTasks(
                context_id=ContextId(context_id),
                state=state,
                page_size=page_size,
                page_token=page_token,
                history=history,
                status_since=None if since is None else int(since.timestamp() * 1_000_000),
                include_artifacts=artifacts,
            )
        )
        if not isinstance(reply, TaskPage):
            raise InvalidAgentResponse("The agent answered with something that is no list of tasks")
        return reply

    async def list(
        self,
        *,
        context_id: str = "",
        state: TaskState | None = None,
        page_size: int = 50,
        history: int | None = None,
        since: datetime | None = None,
        artifacts: bool = False,
    ) -> AsyncGenerator[Task]:
        """Yield the caller's tasks, page after page, latest first."""
        token, known = "", {""}
        while True:
            page = await self.page(
                context_id=context_id,
                state=state,
                page_size=page_size,
                page_token=token,
                history=history,
                since=since,
                artifacts=artifacts,
            )
            for reply in page.tasks:
                yield reply.reading.task
            if not page.next_page_token:
                return
            token = _next(page.next_page_token, known)

    # Push

    async def create_push(self, task_id: str, config: PushConfig) -> PushConfig:
        """Have a task's events posted somewhere; the same id again replaces."""
        # With an id of ours, a request that is made again replaces what the first one made.
        named = msgspec.structs.replace(config, task_id=TaskId(task_id), id=config.id or new_id())
        return await self._push(ops.CreatePush(task_id=TaskId(task_id), config=named))

    async def get_push(self, task_id: str, config_id: str = "") -> PushConfig:
        """Return one push configuration."""
        return await self._push(ops.GetPush(task_id=TaskId(task_id), config_id=config_id))

    async def list_push(self, task_id: str) -> "list[PushConfig]":
        """Return a task's push configurations."""
        found: list[PushConfig] = []
        token, known = "", {""}
        while True:
            page = await self.push_page(task_id, page_token=token)
            found += page.configs
            if not page.next_page_token:
                return found
            token = _next(page.next_page_token, known)

    async def push_page(
        self, task_id: str, *, page_size: int = 50, page_token: str = ""
    ) -> PushPage:
        """Return one page of a task's push configurations."""
        await self._open()
        self._check_push()
        reply = await self._answer(
            ops.ListPush(task_id=TaskId(task_id), page_size=page_size, page_token=page_token)
        )
        if not isinstance(reply, PushPage):
            raise InvalidAgentResponse("The agent answered with something that is no list")
        return reply

    async def delete_push(self, task_id: str, config_id: str) -> None:
        """Stop posting to a receiver; deleting what is not there is fine."""
        await self._open()
        self._check_push()
        await self._answer(ops.DeletePush(task_id=TaskId(task_id), config_id=config_id))

    async def _push(self, operation: ops.CreatePush | ops.GetPush) -> PushConfig:
        await self._open()
        self._check_push()
        reply = await self._answer(operation)
        if not isinstance(reply, PushConfig):
            raise InvalidAgentResponse("The agent answered with something that is no configuration")
        return reply

    def _check_push(self) -> None:
        if not self._connection.card.capabilities.push_notifications:
            raise PushNotSupported("The agent posts no events, its card says")


def _check_version(field: str, version: str) -> None:
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        raise ConfigError(f"{field}={version!r} is no version: {', '.join(VERSIONS)}")


def _next(token: str, known: set[str]) -> str:
    if token in known:
        raise InvalidAgentResponse("The agent's pages go round in a circle")
    known.add(token)
    return token


def _same(task: Task, task_id: str) -> Task:
    if task.id != task_id:
        raise InvalidAgentResponse("The agent answered with another task than was asked for")
    return task
