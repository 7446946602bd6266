"""A peer behind one of its interfaces: a Service over the wire.

One request, one answer, no second try: what to do when something breaks is decided by
`agent_connection` and `streams`. Whatever a peer sends, what comes out is the model or one class of
`dragoman.errors`.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from dragoman.client.file_encoding import EncodingRefused, FileEncoding, has_files, may_hold_files
from dragoman.client.http import Http
from dragoman.client.pending_request import (
    EVENT_STREAM,
    CompleteRequest,
    Observer,
    OutgoingRequest,
    PendingRequest,
    RequestContext,
)
from dragoman.dialects import leniency
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import Corvid, Nexus
from dragoman.dialects.leniency import Note
from dragoman.dialects.v0_2 import V0_2, V0_2_OBJECTS
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    ParseFailed,
    TimedOut,
)
from dragoman.model import operations as ops
from dragoman.model.card import JSONRPC, AgentInterface
from dragoman.model.identity import TaskId, new_id
from dragoman.model.message import Message
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task
from dragoman.security.json_values import MAX_VALUES
from dragoman.service import Batch, Call, Opening, Reply, TaskReply
from dragoman.transports import json_text, jsonrpc, rest, sse

# The largest answer, and the largest event of a stream: a task with its files comes as one.
MAX_ANSWER = 64 * 1024 * 1024
# So much of an event that has not ended yet shows that its peer is there: a large one takes long.
_PIECE = 1024
_JSON = "application/json"

ADDRESS = "the REST address ends with the /v1 that the paths of 0.3 begin with: it is there once"
# What is spoken to a peer that refuses arrays in data parts, as the official Python library does.
_OBJECTS: dict[Dialect, Dialect] = {V0_3: V0_3_OBJECTS, V0_2: V0_2_OBJECTS}


# Bytes of a stream that are read in one go; without an event others have their turn after them.
_SLICE = 4 * 1024
T = TypeVar("T")
# Hears that something came in a stream, and whether it was only a comment.
Heard = Callable[[bool], None]
# Is waited for whenever a stream has sent much of nothing: comments, or what was known.
Idle = Callable[[], Awaitable[None]]


# What does something each time that it is asked for.
_DEEDS = ops.SendMessage | ops.CreatePush


def _nowhere(note: str) -> None:
    """No observer."""


class Remote:
    """Answers calls by asking a peer."""

    def __init__(
        self,
        interface: AgentInterface,
        dialect: Dialect,
        http: Http,
        *,
        complete_request: CompleteRequest | None = None,
        observer: Observer | None = None,
        timeout: float | None = 30.0,
        most: int = MAX_ANSWER,
        most_values: int = MAX_VALUES,
        works_once: bool = False,
    ) -> None:
        self.interface = interface
        self.dialect = dialect
        self._context = RequestContext(
            http, interface.protocol_binding, complete_request, observer, most, most_values
        )
        self._timeout = timeout
        self._most = most
        self._most_values = most_values
        self._works_once = works_once
        # Looked at once: asking a class that is a Protocol for its instances takes long.
        self._corvid = dialect if isinstance(dialect, Corvid) else None
        self._nexus = dialect if isinstance(dialect, Nexus) else None
        self._ids = itertools.count(1)
        # Only there do peers differ.
        self._files = FileEncoding(self._refusal) if dialect is V0_3_PROTO else None
        self._ends_with_v1 = self._files is not None and interface.url.rstrip("/").endswith("/v1")

    async def answer(self, call: Call, noted: Note = _nowhere) -> Reply:
        """Return the peer's reply. A send may take as long as it likes: many peers do not answer
        before the task is done, whatever they were asked. `noted` is told what of the answer is
        not as its version has it, and was read for what it means."""
        operation = call.operation
        if self._ends_with_v1:
            noted(ADDRESS)
        if self._files is not None and has_files(operation):
            await self._learn_of_files(self._files, noted)
        request = self._ask(call, _JSON)
        if isinstance(operation, ops.SendMessage):
            async with request:
                value = await request.value()
        else:
            try:
                async with asyncio.timeout(self._timeout), request:
                    value = await request.value()
            except TimeoutError:
                raise TimedOut(f"No answer in {self._timeout:g} s") from None
        try:
            result = request.result(value)
        except A2AError as error:
            if self._nexus is not None:
                raise self._nexus.decode_error(operation, error) from None
            raise
        if self._files is not None and may_hold_files(request.body):
            await self._learn_of_files(self._files, noted, request.headers)
        return _read(lambda: leniency.decode_reply(self.dialect, operation, result, noted))

    async def follow(
        self,
        call: Call,
        heard: Heard | None = None,
        idle: Idle | None = None,
        noted: Note = _nowhere,
    ) -> AsyncGenerator[Batch]:
        """Yield what the peer streams: an opening Task or a Message, then batches of events.
        `heard` is told of all that comes, comments too; `noted` as by `answer`."""
        if self._ends_with_v1:
            noted(ADDRESS)
        if self._files is not None and has_files(call.operation):
            await self._learn_of_files(self._files, noted)
        async with self._ask(call, EVENT_STREAM) as request:
            if not request.is_stream:
                # An error, or a peer that answers with all there is.
                result = request.result(await request.value())
                if self._files is not None and may_hold_files(request.body):
                    await self._learn_of_files(self._files, noted, request.headers)
                event = _read(lambda: leniency.decode_event(self.dialect, result, noted))
                yield first_batch(Recorded.of_event(0, event), is_reset=False)
                return
            is_first = True
            async for batch in self._batches(request, heard, idle or _others, noted):
                if is_first:
                    is_first = False
                    yield first_batch(batch[0], is_reset=request.is_reset)
                    del batch[0]
                if batch:
                    yield batch

    def adapts(self, operation: ops.Operation, error: A2AError) -> bool:
        """After a refusal, tell whether the same operation is worth sending in another shape, and
        keep to that shape: a peer of 0.x that is refused an array may take an object. What was
        refused as not valid did nothing."""
        objects = _OBJECTS.get(self.dialect)
        is_refused = isinstance(error, InvalidParams | InvalidRequest) and error.code is not None
        if objects is None or not is_refused or not isinstance(operation, ops.SendMessage):
            return False
        if not any(isinstance(part.data, list) for part in operation.message.parts):
            return False
        self.dialect = objects
        return True

    async def learn(self, noted: Note) -> None:
        """Find out what the peer does in its own way, before it is needed."""
        if self._files is not None:
            await self._learn_of_files(self._files, noted)

    async def _learn_of_files(
        self, files: FileEncoding, noted: Note, headers: Mapping[str, str] | None = None
    ) -> None:
        """Speak as the peer encodes files; `headers` are those of an answer that is read in any
        case."""
        if await files.is_text(headers):
            self.dialect = V0_3_PROTO_TEXT
        if files.note:
            noted(files.note)

    async def _refusal(self) -> EncodingRefused:
        """Ask for a task that the peer cannot have; return how it says so."""
        call = Call(operation=ops.GetTask(task_id=TaskId(new_id())))
        try:
            async with asyncio.timeout(self._timeout), self._ask(call, _JSON) as request:
                return await request.refusal()
        except TimeoutError:
            raise TimedOut(f"No answer in {self._timeout:g} s") from None

    async def _batches(
        self, request: PendingRequest, heard: Heard | None, idle: Idle, noted: Note
    ) -> AsyncGenerator[list[Recorded]]:
        reader = sse.SseReader(self._most)
        quiet = 0
        async for chunk in _slices(request.chunks()):
            lines, comments = reader.lines, reader.comments
            try:
                sent = reader.feed(chunk)
            except sse.TooLong:
                raise InvalidAgentResponse(f"an event has more than {self._most} bytes") from None
            if heard is not None and (reader.lines != lines or len(chunk) >= _PIECE):
                heard(not sent and reader.comments != comments)
            batch: list[Recorded] = []
            for one in sent:
                if not one.data.strip():
                    continue
                request.observe("event", body=one.data)
                try:
                    value = await self._parsed(one.data)
                    result = request.result(value, is_error=one.kind == "error")
                    if self._files is not None and may_hold_files(one.data):
                        await self._learn_of_files(self._files, noted, request.headers)
                    event = _read(lambda: leniency.decode_event(self.dialect, result, noted))  # noqa: B023 - called at once
                except A2AError:
                    # What came before it is the caller's all the same.
                    if batch:
                        yield batch
                    raise
                batch.append(Recorded.of_event(_position(one.id), event))
            quiet = 0 if batch else quiet + len(chunk)
            if batch:
                yield batch
            elif quiet >= _SLICE:
                # However much of nothing a peer sends, others have their turn.
                quiet = 0
                await idle()

    async def _parsed(self, body: bytes) -> Any:
        """Return the JSON that a peer sent; raises `InvalidAgentResponse`."""
        try:
            if len(body) <= json_text.READ_IN_LINE_BYTES:
                return json_text.parse(body, self._most_values)
            return await json_text.read(body, self._most_values)
        except ParseFailed as error:
            raise _unreadable(error) from None

    def _ask(self, call: Call, accept: str) -> PendingRequest:
        """Put a call in the shape of the interface; it is sent once the context is entered."""
        operation = call.operation
        tenant = self.interface.tenant
        if tenant and not operation.tenant:
            operation = msgspec.structs.replace(operation, tenant=tenant)
        headers = {"accept": accept, "a2a-version": self.dialect.version}
        if call.after is not None:
            headers["last-event-id"] = str(call.after)
        if call.extensions:
            is_new = self.dialect.version == "1.0"
            name = "a2a-extensions" if is_new else "x-a2a-extensions"
            headers[name] = ", ".join(sorted(call.extensions))
        id: jsonrpc.Id = None
        if self._corvid is not None:
            verb, path, value = self._corvid.request(operation)
            url = self.interface.url.rstrip("/") + path
            body = None if value is None else encode(value)
        elif self.interface.protocol_binding == JSONRPC:
            # Only the other requests on its connection have to have others.
            method, params = self.dialect.encode_request(operation)
            # Its gateway calls a request by the task that it is about.
            named = params.get("id") if self._nexus is not None else None
            id = named if isinstance(named, str) else str(next(self._ids))
            verb, url = "POST", self.interface.url
            body = jsonrpc.request(id, method, params)
        else:
            outgoing = rest.request(self.dialect, operation)
            verb, url = outgoing.verb, _joined(self.interface.url, outgoing.path)
            body = None if outgoing.body is None else encode(outgoing.body)
            is_proto = self.dialect.version == "1.0"
            headers["accept"] = f"{accept}, application/a2a+json" if is_proto else accept
        if body is not None or verb == "POST":
            # Said of an empty body as well, lest the library calls it something else.
            headers["content-type"] = _JSON
        request = OutgoingRequest(operation, verb, url, headers, body, id)
        # A connection that its peer just closed loses what is sent on it, without a sign.
        # Only what may be asked twice goes on one that was used before.
        reuse = self._works_once or not isinstance(operation, _DEEDS)
        return PendingRequest(self._context, request, self.dialect.version, reuse=reuse)


def _read(decode: Callable[[], T]) -> T:
    """Return what a peer's answer says; what cannot be read is the peer's fault."""
    try:
        return decode()
    except (InvalidParams, ParseFailed) as error:
        raise _unreadable(error) from None


def _unreadable(error: A2AError) -> InvalidAgentResponse:
    return InvalidAgentResponse(f"The agent's answer cannot be read: {error}")


async def _others() -> None:
    """Let others have their turn."""
    await asyncio.sleep(0)


async def _slices(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what a peer sends in pieces that are read in a moment: what waits unread may be far
    more, and others have their turn in between."""
    async for chunk in chunks:
        if len(chunk) <= _SLICE:
            yield chunk
            continue
        for start in range(0, len(chunk), _SLICE):
            yield chunk[start : start + _SLICE]


def first_batch(recorded: Recorded, *, is_reset: bool) -> Batch:
    """Return what the first event of a peer's stream begins it with."""
    match recorded.event:
        case Task() as task:
            return Opening(TaskReply(TaskReading(recorded.seq, task)), is_reset=is_reset)
        case Message() as message:
            return message
        case _:
            # Peers of 0.x resume without a Task.
            return [recorded]


def _position(id: str | None) -> int:
    """Return the position an event's id says; 0: it says none."""
    return int(id) if id and id.isascii() and id.isdigit() and len(id) < 19 else 0


def _joined(url: str, path: str) -> str:
    """Return a path below an interface's address. The paths of 0.3 begin with `/v1`, and many an
    address ends with it: it is there once."""
    base = url.rstrip("/")
    if path.startswith("/v1/"):
        base = base.removesuffix("/v1")
    return base + path
