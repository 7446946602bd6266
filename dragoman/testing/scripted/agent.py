"""The scripted agent: an ASGI app that follows a script.

It speaks 1.0, 0.3 and 0.2 over JSON-RPC, REST and gRPC, records every request, keeps its tasks in
memory, and misbehaves where the script says so.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman.dialects import negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import row_of
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    ExtendedCardNotConfigured,
    ExtensionRequired,
    InvalidParams,
    MethodNotFound,
    Overloaded,
    PushNotSupported,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model import operations as ops
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, ONCE_URI, RESUME_URI, AgentExtension
from dragoman.model.identity import ContextId, new_id
from dragoman.model.message import agent_message
from dragoman.service import Reply
from dragoman.testing.issuer import METADATA, Issuer
from dragoman.testing.scripted import cards
from dragoman.testing.scripted.access import ISSUER, Gate
from dragoman.testing.scripted.connection import Scope, ScriptedConnection, attend
from dragoman.testing.scripted.delivery import Streaming, misbehave, write_single_event
from dragoman.testing.scripted.rules import CARD, ScriptRules, v1_name
from dragoman.testing.scripted.script import DIRECT, ECHO, Script, ScriptStep, build, read, seconds
from dragoman.testing.scripted.stage import Stage, content, filled
from dragoman.testing.scripted.tasks import ScriptedTasks, reply_of
from dragoman.testing.scripted.wire import ScriptedWire
from dragoman.transports import json_text, jsonrpc, rest, sse

App = Callable[[Scope, sse.Receive, sse.Send], Awaitable[None]]
_RPC_PATHS = ("/", "", "/a2a", "/rpc")
_PUSH = (ops.CreatePush, ops.GetPush, ops.ListPush, ops.DeletePush)


class SeenRequest(msgspec.Struct):
    """A request as it was received."""

    verb: str
    path: str
    headers: dict[str, str]
    query: dict[str, list[str]]
    body: bytes
    # The operation, if one could be decoded, and its dialect.
    operation: ops.Operation | None = None
    version: str = ""
    binding: str = ""

    @property
    def method(self) -> str:
        """The operation's name in 1.0, `card` for a card, or nothing."""
        if self.operation is not None:
            return row_of(self.operation).v1
        return CARD if self.path in cards.PATHS else ""

    @property
    def json(self) -> Any:
        """The body as a plain value; None: there is none."""
        return msgspec.json.decode(self.body) if self.body else None


class ScriptedAgent:
    """Follows a script. `requests` has all requests so far, `tasks` its tasks."""

    def __init__(self, script: Script | Mapping[str, Any] | Path | str | None = None) -> None:
        self.script = _script(script)
        self.requests: list[SeenRequest] = []
        self._tasks = ScriptedTasks(self.script.tasks)
        self._rules = ScriptRules(self.script.rules)
        self._by_message: dict[str, Stage] = {}
        self._chance = random.Random(self.script.seed)
        self._mounts: dict[str, App] = {}
        self._gate = Gate(self.script.access)
        if self.issuer is not None:
            self._mounts |= {ISSUER: self.issuer, METADATA: self.issuer}
        self._cards = cards.ScriptedCards(
            self.script.card, self._gate, _own_extensions(self.script)
        )
        self._running: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[Any]] = set()

    @property
    def issuer(self) -> Issuer | None:
        """The issuer of tokens, if the script requires OAuth or OpenID Connect."""
        return self._gate.issuer

    @property
    def tasks(self) -> dict[str, Stage]:
        """The tasks by their ids."""
        return self._tasks.stages

    def calls(self, method: str = "") -> list[SeenRequest]:
        """Return the requests of a method, named as in any version; without a name all of them."""
        if not method:
            return list(self.requests)
        return [seen for seen in self.requests if seen.method == v1_name(method)]

    async def close(self) -> None:
        """End all running tasks."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._tasks.postings.close()

    def end_streams(self) -> None:
        """Cancel all open requests."""
        for task in self._open:
            task.cancel()

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        if scope["type"] == "http":
            for prefix, app in self._mounts.items():
                if scope["path"] == prefix or scope["path"].startswith(prefix + "/"):
                    await app(scope, receive, send)
                    return
            task = asyncio.current_task()
            assert task is not None, "apps run in tasks"
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await attend(scope, receive, send, self._attend, self.close)

    async def _attend(self, connection: ScriptedConnection) -> None:
        seen = SeenRequest(
            connection.verb,
            connection.path,
            connection.headers,
            connection.query,
            connection.body,
        )
        self.requests.append(seen)
        await self._serve(connection, seen)

    async def _serve(self, connection: ScriptedConnection, seen: SeenRequest) -> None:
        if delay := seconds(self.script.latency):
            await asyncio.sleep(delay)
        if seen.path in cards.PATHS:
            await self._card(connection)
            return
        if seen.verb == "GET" and seen.path in self.script.documents:
            body = msgspec.json.encode(self.script.documents[seen.path])
            await connection.answer(200, body.replace(b"{base}", connection.base.encode()))
            return
        if "grpc" in (connection.scope.get("extensions") or {}):
            await self._grpc(connection, seen)
            return
        path, binding = self._cards.binding_of(seen.path)
        if binding == JSONRPC or (not binding and path in _RPC_PATHS):
            await self._jsonrpc(connection, seen)
        elif path == cards.OLD_EXTENDED_PATH:
            seen.operation = ops.GetExtendedCard()
            await self._old_extended_card(connection)
        else:
            await self._rest(connection, seen, path)

    # Cards

    async def _card(self, connection: ScriptedConnection) -> None:
        wire = ScriptedWire(V1_0, is_rpc=False)
        if await self._is_intercepted(connection, wire, None, CARD):
            return
        if self.script.access.card and not self._gate.admits(connection):
            await wire.refuse(connection, self._gate.refusal())
            return
        await self._cards.serve(connection)

    async def _old_extended_card(self, connection: ScriptedConnection) -> None:
        """Serve the extended card of 0.2, which is read by a plain GET."""
        if not self._gate.admits(connection):
            await ScriptedWire(V1_0, is_rpc=False).refuse(connection, self._gate.refusal())
            return
        card = self._cards.extended_shape(connection.base)
        status = 200 if card is not None else 404
        await connection.answer(status, msgspec.json.encode(card))

    # Requests

    async def _jsonrpc(self, connection: ScriptedConnection, seen: SeenRequest) -> None:
        seen.binding = JSONRPC
        wire = ScriptedWire(V1_0, is_rpc=True)
        try:
            value = json_text.parse(seen.body)
            id = jsonrpc.request_id(value)
            wire = ScriptedWire(V1_0, id, is_rpc=True)
            envelope = jsonrpc.parse(value)
            dialect = negotiate.for_jsonrpc(envelope.method, *connection.version, infer=True)
            agent = connection.headers.get("user-agent", "")
            dialect = negotiate.for_library(dialect, agent, next(iter(value)))
            wire = ScriptedWire(dialect, id, is_rpc=True)
            self._check_offer(JSONRPC, dialect)
            seen.version = dialect.version
            seen.operation = dialect.decode_request(envelope.method, envelope.params)
            if not envelope.has_id:
                raise jsonrpc.unanswerable()
            await self._answer(connection, wire, seen.operation)
        except A2AError as error:
            await wire.refuse(connection, error)

    async def _rest(self, connection: ScriptedConnection, seen: SeenRequest, path: str) -> None:
        seen.binding = HTTP_JSON
        version = connection.version
        is_old = negotiate.rest_version(*version, path) != V1_0.version
        wire = ScriptedWire(V1_0, is_rpc=False)
        try:
            route = (rest.find_0_3 if is_old else rest.find)(seen.verb, path)
            if not isinstance(route, rest.RestRoute):
                raise MethodNotFound("Nothing is served here")
            value = json_text.parse(seen.body) if seen.body else None
            if is_old:
                agent = connection.headers.get("user-agent", "")
                dialect = negotiate.for_rest_0_3(*version, agent, value, infer=True)
            else:
                dialect = negotiate.for_rest(*version, infer=True)
            wire = ScriptedWire(dialect, is_rpc=False)
            self._check_offer(HTTP_JSON, dialect)
            seen.version = dialect.version
            params = rest.params(route, connection.scope["query_string"], value)
            seen.operation = dialect.decode_request(rest.method(route, dialect), params)
            await self._answer(connection, wire, seen.operation)
        except A2AError as error:
            await wire.refuse(connection, error)

    async def _grpc(self, connection: ScriptedConnection, seen: SeenRequest) -> None:
        """Answer an rpc, whose messages are JSON here."""
        # Loads protobuf, which an rpc has loaded already.
        from dragoman.transports.grpc.codec import find

        seen.binding = GRPC
        called = find(seen.path)
        dialect = called.codec.dialect
        wire = ScriptedWire(dialect, is_rpc=False)
        try:
            self._check_offer(GRPC, dialect)
            seen.version = dialect.version
            seen.operation = called.codec.decode_request(called.name, json_text.parse(seen.body))
            await self._answer(connection, wire, seen.operation)
        except A2AError as error:
            await wire.refuse(connection, error)

    def _check_offer(self, binding: str, dialect: Dialect) -> None:
        offered = [offer for offer in self.script.card.offers() if offer.binding == binding]
        if not offered:
            raise MethodNotFound(f"{binding} is not offered")
        versions = [offer.version for offer in offered]
        if not any(version.startswith(dialect.version) for version in versions):
            raise VersionNotSupported(supportedVersions=",".join(versions))

    def _check_call(
        self, connection: ScriptedConnection, wire: ScriptedWire, operation: ops.Operation
    ) -> None:
        """Refuse a call that the card does not allow."""
        if not self._gate.admits(connection):
            raise self._gate.refusal()
        requested = negotiate.extensions(connection.scope["headers"])
        card = self.script.card
        required = [item.uri for item in card.extensions if item.required]
        missing = [uri for uri in required if uri not in requested]
        if missing:
            raise ExtensionRequired(extensions=",".join(missing))
        tenants = {offer.tenant for offer in card.offers()}
        if wire.dialect is V1_0 and operation.tenant not in tenants:
            raise InvalidParams("is not the tenant of any interface", field="tenant")
        if operation.streams and not card.streaming:
            raise UnsupportedOperation("Streaming is not offered")
        configures = isinstance(operation, ops.SendMessage) and operation.push is not None
        if (configures or isinstance(operation, _PUSH)) and not card.push:
            raise PushNotSupported
        if self.script.fail_rate and self._chance.random() < self.script.fail_rate:
            raise Overloaded("It fails at random, as the script says")

    async def _answer(
        self, connection: ScriptedConnection, wire: ScriptedWire, operation: ops.Operation
    ) -> None:
        self._check_call(connection, wire, operation)
        if isinstance(operation, ops.SendMessage):
            await self._send(connection, wire, operation)
            return
        if await self._is_intercepted(connection, wire, operation, row_of(operation).v1):
            return
        if isinstance(operation, ops.SubscribeToTask):
            await self._subscribe(connection, wire, operation)
            return
        if isinstance(operation, ops.GetExtendedCard):
            reply: Reply | None = self._cards.extended(connection.base)
            if reply is None:
                raise UnsupportedOperation if wire.dialect is V1_0 else ExtendedCardNotConfigured
        else:
            reply = self._tasks.reply(operation, wire.dialect)
        body = wire.reply(operation, reply, self.tasks)
        await connection.answer(200, body, wire.kind, wire.headers)

    # Rules

    async def _is_intercepted(
        self,
        connection: ScriptedConnection,
        wire: ScriptedWire,
        operation: ops.Operation | None,
        method: str,
    ) -> bool:
        """Run the steps of a rule for this method; say whether they answered the request."""
        found = self._rules.find(operation, method, wire.dialect.version)
        if found is None:
            return False
        rule, words = found
        return await self._direct(connection, wire, rule.steps, words) is None

    async def _direct(
        self,
        connection: ScriptedConnection,
        wire: ScriptedWire,
        steps: Sequence[ScriptStep],
        words: dict[str, str],
        operation: ops.SendMessage | None = None,
    ) -> list[ScriptStep] | None:
        """Run the steps before there is a task; return the rest, or None if it is answered."""
        for index, step in enumerate(steps):
            if step.verb == "wait":
                length = step.wait if step.wait is not None else 0.0
                is_text = isinstance(length, str)
                await asyncio.sleep(seconds(filled(length, words) if is_text else length))
            elif step.verb not in DIRECT:
                return list(steps[index:])
            elif step.verb == "message":
                if operation is not None:
                    await self._say(connection, wire, step, words, operation)
                return None
            else:
                await misbehave(connection, wire, step, words)
                return None
        return []

    # Sending

    async def _send(
        self, connection: ScriptedConnection, wire: ScriptedWire, operation: ops.SendMessage
    ) -> None:
        message = operation.message
        found = None
        if message.task_id:
            stage = self._tasks.continued(message)
            found = self._rules.find(operation, row_of(operation).v1, wire.dialect.version)
            # A rule that names a method is about the connection; others are about tasks.
            if found is not None and found[0].when.method:
                left = await self._direct(connection, wire, found[0].steps, found[1])
                if left is None:
                    return
            stage.add_message(message)
            await self._deliver(connection, wire, operation, stage, len(stage.entries))
            return
        earlier = self._by_message.get(message.message_id)
        if earlier is not None:
            await self._deliver(connection, wire, operation, earlier, 0)
            return
        found = self._rules.find(operation, row_of(operation).v1, wire.dialect.version)
        rule, words = found or (ECHO, dict[str, str]())
        words |= {"text": message.text, "first": message.text, "context": message.context_id}
        steps = await self._direct(connection, wire, rule.steps, words, operation)
        if steps is None:
            return
        stage = Stage(new_id(), message.context_id or new_id(), message)
        self.tasks[stage.id] = stage
        if self.script.dedupe:
            self._by_message[message.message_id] = stage
        if operation.push is not None:
            self._tasks.configure(stage, operation.push, wire.dialect, 0)
        self._start(stage, steps or ECHO.steps, words)
        await self._deliver(connection, wire, operation, stage, 0)

    def _start(self, stage: Stage, steps: Sequence[ScriptStep], words: Mapping[str, str]) -> None:
        play = stage.play(steps, words, self._rules.choose)
        stage.player = asyncio.get_running_loop().create_task(play)
        self._running.add(stage.player)
        stage.player.add_done_callback(self._running.discard)

    async def _say(
        self,
        connection: ScriptedConnection,
        wire: ScriptedWire,
        step: ScriptStep,
        words: dict[str, str],
        operation: ops.SendMessage,
    ) -> None:
        """Answer with a message and without a task."""
        message = agent_message(
            content(step, step.message or None, words),
            context_id=operation.message.context_id or ContextId(new_id()),
            metadata=step.metadata,
        )
        if operation.streams:
            await write_single_event(connection, wire, message)
            return
        body = wire.reply(operation, message, self.tasks)
        await connection.answer(200, body, wire.kind, wire.headers)

    async def _deliver(
        self,
        connection: ScriptedConnection,
        wire: ScriptedWire,
        operation: ops.SendMessage,
        stage: Stage,
        index: int,
    ) -> None:
        if operation.streams:
            # The first entry is the Task itself.
            opening = b"" if index == 0 else self._opening(wire, stage, operation.history)
            await self._streaming(connection, wire, stage, is_send=True).run(index, opening)
            return
        if operation.wait:
            fault = await stage.rested(index)
            if fault is not None:
                await misbehave(connection, wire, fault.step, {"task": stage.id})
                return
        body = wire.reply(operation, reply_of(stage, operation.history), self.tasks)
        await connection.answer(200, body, wire.kind, wire.headers)

    # Streams

    def _streaming(
        self, connection: ScriptedConnection, wire: ScriptedWire, stage: Stage, *, is_send: bool
    ) -> Streaming:
        with_ids = self.script.cursors
        return Streaming(connection, wire, stage, is_send=is_send, with_ids=with_ids)

    def _opening(self, wire: ScriptedWire, stage: Stage, history: int | None = None) -> bytes:
        return wire.opening(stage, history, stage.seq if self.script.cursors else None)

    async def _subscribe(
        self, connection: ScriptedConnection, wire: ScriptedWire, operation: ops.SubscribeToTask
    ) -> None:
        stage = self._tasks.get(operation.task_id)
        position = connection.headers.get("last-event-id", "")
        streaming = self._streaming(connection, wire, stage, is_send=False)
        if self.script.cursors and position.isdecimal():
            # From a position an ended task can be read as well.
            seq = min(int(position), stage.seq)
            opening = wire.opening(stage, None, seq, stage.as_of(seq))
            await streaming.run(stage.index_after(seq), opening)
            return
        if stage.state.is_terminal:
            raise UnsupportedOperation("The task has ended", taskId=stage.id)
        await streaming.run(len(stage.entries), self._opening(wire, stage))


def _script(given: Script | Mapping[str, Any] | Path | str | None) -> Script:
    if isinstance(given, Script):
        return given
    if isinstance(given, Path | str):
        return read(Path(given))
    return build(given or {})


def _own_extensions(script: Script) -> list[AgentExtension]:
    """Return the extensions that the script switches on."""
    offered = {extension.uri for extension in script.card.extensions}
    wanted = {RESUME_URI: script.cursors, ONCE_URI: script.dedupe}
    return [
        AgentExtension(uri=uri) for uri, is_on in wanted.items() if is_on and uri not in offered
    ]
