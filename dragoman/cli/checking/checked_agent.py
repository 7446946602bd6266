"""An agent under check: one interface of it, asked on the wire as it is."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from dragoman.client.agent_connection import remote_class
from dragoman.client.answer import task_of
from dragoman.client.cards.interfaces import InterfaceCandidate
from dragoman.client.content import message_of
from dragoman.client.credentials.credentials import ChosenCredential
from dragoman.client.credentials.origins import Origins
from dragoman.client.http import Http
from dragoman.client.pending_request import Exchanged, Observer
from dragoman.dialects.leniency import OTHER_SHAPE
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    CallFailed,
    InvalidAgentResponse,
)
from dragoman.model import operations as ops
from dragoman.model.card import GRPC, JSONRPC, AgentCard
from dragoman.model.message import Message
from dragoman.model.task import Task
from dragoman.service import Call, Reply
from dragoman.transports import json_text

# Seconds a check may take: agents think, and a person waits for the report.
PATIENCE = 60.0


class Skipped(Exception):
    """There is nothing to look at; the text says why."""


class CheckAccess(msgspec.Struct, frozen=True):
    """How the agent is dialled: with what credentials and headers."""

    http: Http
    chosen: ChosenCredential
    origins: Origins
    headers: Mapping[str, str] = {}
    extensions: Sequence[str] = ()
    # Who else looks at the wire.
    observer: Observer | None = None


def _strictly(words: str) -> None:
    """Refuse an answer that clients read all the same: this is what is looked for here."""
    if words == OTHER_SHAPE:
        raise InvalidAgentResponse(words)


class CheckedAgent:
    """One interface of the agent."""

    def __init__(
        self, candidate: InterfaceCandidate, card: AgentCard, access: CheckAccess, text: str
    ) -> None:
        interface = candidate.interface
        self.card = card
        self.version = candidate.dialect.version
        self.label = f"{interface.protocol_binding} {interface.protocol_version}"
        self.is_new = candidate.dialect is V1_0
        self.is_rpc = interface.protocol_binding.upper() == JSONRPC
        # Messages of gRPC have the shapes of their version, or cannot be read at all.
        self._is_json = interface.protocol_binding.upper() != GRPC
        # gRPC 0.3 has one rpc, which gives the public card where there is no other.
        self.has_one_card_rpc = not self._is_json and not self.is_new
        self._access = access
        self._text = text
        self._bodies: list[bytes] = []
        self._odd_version = ""
        self._sample: Task | Message | A2AError | None = None
        self._remote = remote_class(candidate)(
            interface,
            candidate.dialect,
            access.http,
            complete_request=self._add_common_headers,
            observer=self._observe,
            timeout=PATIENCE,
        )
        required = [one.uri for one in card.capabilities.extensions if one.required]
        self._extensions = frozenset({*access.extensions, *required})

    async def _add_common_headers(
        self, url: str, headers: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        access = self._access
        attached = await access.chosen.attach(url, access.http, access.origins)
        odd = {"a2a-version": self._odd_version} if self._odd_version else {}
        return attached.onto({**access.headers, **headers, **odd})

    def _observe(self, seen: Exchanged) -> None:
        if seen.kind == "event" and self._is_json:
            self._bodies.append(seen.body)
        if self._access.observer is not None:
            self._access.observer(seen)

    async def ask(self, operation: ops.Operation) -> Reply:
        """Return the answer to one request, as it is."""
        async with asyncio.timeout(PATIENCE):
            return await self._remote.answer(self._call(operation), _strictly)

    async def ask_as(self, version: str, operation: ops.Operation) -> Reply:
        """Return the answer to a request that says it is of another version."""
        self._odd_version = version
        try:
            return await self.ask(operation)
        finally:
            self._odd_version = ""

    async def refusal(self, operation: ops.Operation) -> A2AError | None:
        """Return how a request is refused; None: it is not."""
        try:
            await self.ask(operation)
        except CallFailed:
            # It did not get there.
            raise
        except A2AError as error:
            return error
        return None

    def stream(self, operation: ops.Operation) -> Any:
        """Return what is streamed, closed with its reader."""
        return contextlib.aclosing(self._remote.follow(self._call(operation), noted=_strictly))

    def _call(self, operation: ops.Operation) -> Call:
        return Call(operation=operation, extensions=self._extensions)

    def message(self, task_id: str = "", context_id: str = "") -> Message:
        """Return the message that is sent, under an id of its own."""
        return message_of(self._text, task_id=task_id, context_id=context_id)

    def bodies(self) -> list[Any]:
        """Return the results of the answers since they were last asked for."""
        taken, self._bodies = self._bodies, []
        values = [json_text.parse(body) for body in taken if body.strip()]
        return [
            cast("dict[str, Any]", value).get("result", cast(Any, value))
            for value in values
            if isinstance(value, dict)
        ]

    async def sample(self) -> Task | Message:
        """Return what came of the first message: it is sent once for all checks."""
        if self._sample is None:
            try:
                reply = await self.ask(ops.SendMessage(message=self.message()))
                self._sample = reply if isinstance(reply, Message) else task_of(reply)
            except A2AError as error:
                self._sample = error
        if isinstance(self._sample, A2AError):
            raise self._sample
        return self._sample

    async def task(self) -> Task:
        """Return the task of the first message."""
        found = await self.sample()
        if isinstance(found, Message):
            raise Skipped("the agent answered with a message, so there is no task")
        return found

    async def ended(self) -> Task:
        """Return the task of the first message, which must have ended."""
        found = await self.task()
        if not found.status.state.is_terminal:
            raise Skipped(f"the task rests in {found.status.state.value} and has not ended")
        return found
