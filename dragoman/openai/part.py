"""The API of chat programs as a part of an app: its paths, and the way of a request through the
service of an agent and back."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams
from dragoman.http.documents import document
from dragoman.http.request import HttpRequest, check_type, read_body, read_value
from dragoman.http.routes import BY_REQUEST, CARDS, Access, Answer
from dragoman.model import operations as ops
from dragoman.model.identity import MessageId, is_id, new_id
from dragoman.model.message import Message, Metadata, Role
from dragoman.model.requests import INTERNAL_REQUESTED
from dragoman.model.task import TaskState
from dragoman.openai import chat_requests, response_requests
from dragoman.openai.answers import ChatAnswer
from dragoman.openai.chat_encoding import ChatEncoder
from dragoman.openai.conversations import Conversations
from dragoman.openai.encoding import AnswerEncoder
from dragoman.openai.errors import ChatError, refuse
from dragoman.openai.models import ChatModel, Models
from dragoman.openai.prompts import Prompt
from dragoman.openai.response_encoding import ResponseEncoder
from dragoman.openai.stored_responses import StoredResponses
from dragoman.openai.writers import StreamedAnswer, WholeAnswer
from dragoman.server.endpoints.event_stream import EventStreams
from dragoman.server.endpoints.responder import Responder
from dragoman.server.site import AppPart, Site
from dragoman.service import Call, Opening, TaskReply
from dragoman.transports import rest

MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
_CONVERSATION = b"x-conversation-id"
_IDEMPOTENCY = b"idempotency-key"

Decode = Callable[[Any, str | None], Prompt]
MakeEncoder = Callable[[Prompt], AnswerEncoder]


class OpenAIPart(AppPart):
    """Serves agents to chat programs, where the setting `openai` is on."""

    def add_routes(self, site: Site) -> None:
        """Serve its paths; other paths below `/v1` are those of REST 0.3."""
        settings = site.settings
        if not settings.server.openai:
            return
        self._settings = settings
        self._models = Models(site, int(time.time()))
        self._responder = Responder(settings, site.discovery, site.streams, site.audit)
        cancels = settings.server.openai_cancel_on_disconnect
        self._stream = EventStreams(site.streams, cancels=cancels).serve
        site.routes.add(MODELS, self._list_models, Access.CALLER, CARDS)
        site.routes.add(f"{MODELS}/*", self._show_model, Access.CALLER, CARDS)
        chat = self._answering(chat_requests.decode, ChatEncoder)
        site.routes.add(CHAT, chat, Access.CALLER, BY_REQUEST)
        responses = self._answering(response_requests.decode, ResponseEncoder)
        site.routes.add(RESPONSES, responses, Access.CALLER, BY_REQUEST)
        self._stored = StoredResponses(self._responder, self._models.own_mounts, RESPONSES)
        site.routes.add(f"{RESPONSES}/*", self._show_response, Access.CALLER, BY_REQUEST)

    async def _show_response(self, request: HttpRequest) -> None:
        await self._refusing(request, self._stored.answer(request))

    async def _list_models(self, request: HttpRequest) -> None:
        if request.verb not in ("GET", "HEAD"):
            await request.refuse_verb("GET, HEAD")
            return
        await document(request, {"object": "list", "data": self._models.listed(request)})

    async def _show_model(self, request: HttpRequest) -> None:
        if request.verb not in ("GET", "HEAD"):
            await request.refuse_verb("GET, HEAD")
            return
        try:
            id = rest.segment(request.path.removeprefix(f"{MODELS}/"))
            model = self._models.find(request, id)
        except ChatError as error:
            await refuse(request, error)
            return
        await document(request, self._models.document(model))

    def _answering(self, decode: Decode, encoder: MakeEncoder) -> Answer:
        async def answer(request: HttpRequest) -> None:
            if request.verb != "POST":
                await request.refuse_verb("POST")
                return
            await self._refusing(request, self._answer_prompt(request, decode, encoder))

        return answer

    async def _refusing(self, request: HttpRequest, answering: Awaitable[None]) -> None:
        """Answer, with an error in the shape of that API if it comes to one."""
        request.watched.binding = "openai"
        try:
            await answering
        except ChatError as error:
            await refuse(request, error)
        except (Exception, asyncio.CancelledError) as error:
            if request.is_answered:
                raise
            await refuse(request, self._responder.public_error(request, error))

    async def _answer_prompt(
        self, request: HttpRequest, decode: Decode, encoder: MakeEncoder
    ) -> None:
        prompt = decode(await self._body(request), request.header(_CONVERSATION))
        model = self._models.find(request, prompt.model)
        await self._answer(request, prompt, model, encoder(prompt))

    async def _body(self, request: HttpRequest) -> Any:
        check_type(request)
        body = await read_body(request, self._settings.http.max_body_bytes)
        return await read_value(body, self._settings.http.max_json_values)

    async def _answer(
        self, request: HttpRequest, prompt: Prompt, model: ChatModel, encoder: AnswerEncoder
    ) -> None:
        """Give the message of a prompt to a task, and answer with what becomes of it."""
        request.mount = model.mount
        repeated_id = _repeated_id(request)
        message = Message(
            message_id=repeated_id or MessageId(new_id()),
            role=Role.USER,
            parts=prompt.parts(),
            metadata=prompt.metadata(),
        )
        # Agents that offer internal events say by them how many tokens they use.
        metadata: Metadata = {INTERNAL_REQUESTED: True}
        if model.skill:
            metadata["skillId"] = model.skill
        operation = ops.StreamMessage(message=message, metadata=metadata)
        call = msgspec.structs.replace(
            self._responder.call(request, operation, V1_0), after=None, extensions=frozenset()
        )
        place = await Conversations(model.mount.service, call).place(prompt, repeated_id)
        sent = msgspec.structs.replace(message, task_id=place.task_id, context_id=place.context_id)
        operation = msgspec.structs.replace(call.operation, message=sent)
        call = msgspec.structs.replace(call, operation=operation)
        answer = ChatAnswer(prompt.tools, place.shown)
        if prompt.background:
            await self._begin(request, call, answer, ResponseEncoder(prompt))
            return
        kind = StreamedAnswer if prompt.stream else WholeAnswer
        await self._stream(request, call, V1_0, kind(request, answer, encoder))

    async def _begin(
        self, request: HttpRequest, call: Call, answer: ChatAnswer, encoder: ResponseEncoder
    ) -> None:
        """Begin a task, and answer with what it is so far: its caller comes back for the rest."""
        sent = call.operation
        assert isinstance(sent, ops.StreamMessage)
        operation = ops.SendMessage(
            tenant=sent.tenant, message=sent.message, metadata=sent.metadata, wait=False
        )
        begun = msgspec.structs.replace(call, operation=operation)
        reply = await request.mount.service.answer(begun)
        if isinstance(reply, TaskReply):
            answer.take(Opening(reply))
            state = reply.reading.task.status.state
        else:
            assert isinstance(reply, Message), "a send leads to a task or a message"
            answer.take(reply)
            state = TaskState.COMPLETED
        await document(request, encoder.stored(answer, state))


def _repeated_id(request: HttpRequest) -> MessageId | None:
    """Return the id of a message that is one and the same however often it is sent; None: each
    request is a message of its own."""
    key = request.header(_IDEMPOTENCY)
    if key is None:
        return None
    if is_id(key) is None:
        raise InvalidParams("must be up to 256 visible characters", field="Idempotency-Key")
    digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return MessageId(f"once-{digest}")
