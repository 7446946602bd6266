"""Drives the client of PyPI a2a-sdk 0.3.x over JSON-RPC, REST or gRPC."""

import base64
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import scenarios as plain
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientEvent, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.utils.constants import PREV_AGENT_CARD_WELL_KNOWN_PATH

BINDINGS = {"0.3-jsonrpc": "JSONRPC", "0.3-rest": "HTTP+JSON", "0.3-grpc": "GRPC"}
# What 1.0 calls an error that 0.3 has under another name.
NAMES = {"ExtendedAgentCardNotConfigured": "AuthenticatedExtendedCardNotConfigured"}
# The library reads every error as its plain JSON-RPC one; the code leads to the class it has.
ERRORS = {
    error.model_fields["code"].default: error.__name__.removesuffix("Error")
    for error in (
        types.TaskNotFoundError,
        types.TaskNotCancelableError,
        types.PushNotificationNotSupportedError,
        types.UnsupportedOperationError,
        types.AuthenticatedExtendedCardNotConfiguredError,
    )
}


def plain_part(part: types.Part) -> plain.Part:
    match part.root:
        case types.TextPart(text=text):
            return plain.Part(text=text)
        case types.DataPart(data=data):
            return plain.Part(data=data)
        case types.FilePart(file=types.FileWithBytes() as file):
            raw = base64.b64decode(file.bytes, validate=True)
            return plain.Part(raw=raw, filename=file.name or "", media_type=file.mime_type or "")
        case types.FilePart(file=types.FileWithUri() as file):
            return plain.Part(
                url=file.uri, filename=file.name or "", media_type=file.mime_type or ""
            )


def plain_artifact(artifact: types.Artifact) -> plain.Artifact:
    return plain.Artifact(artifact.artifact_id, [plain_part(part) for part in artifact.parts])


def plain_message(message: types.Message) -> plain.Message:
    text = "".join(plain_part(part).text or "" for part in message.parts)
    return plain.Message(message.message_id, message.role.value, text)


def said(status: types.TaskStatus) -> str:
    return plain_message(status.message).text if status.message else ""


def plain_task(task: types.Task) -> plain.Task:
    return plain.Task(
        id=task.id,
        context=task.context_id,
        state=task.status.state.value,
        said=said(task.status),
        history=[plain_message(message) for message in task.history or []],
        artifacts=[plain_artifact(artifact) for artifact in task.artifacts or []],
    )


def plain_event(event: ClientEvent | types.Message) -> plain.Event:
    match event:
        case types.Message():
            return plain_message(event)
        case (task, None):
            return plain_task(task)
        case (_, types.TaskStatusUpdateEvent() as update):
            return plain.Status(update.task_id, update.status.state.value, said(update.status))
        case (_, types.TaskArtifactUpdateEvent() as update):
            artifact = plain_artifact(update.artifact)
            return plain.Chunk(
                update.task_id, artifact, bool(update.append), bool(update.last_chunk)
            )
        case other:
            raise AssertionError(f"an event of no known kind: {other!r}")


def message(message_id: str, task: str = "", context: str = "") -> types.Message:
    return types.Message(
        message_id=message_id,
        task_id=task or None,
        context_id=context or None,
        role=types.Role.user,
        parts=[types.Part(types.TextPart(text="Hello"))],
    )


def config_of(receiver: plain.Receiver) -> types.PushNotificationConfig:
    given = None
    if receiver.scheme:
        given = types.PushNotificationAuthenticationInfo(
            schemes=[receiver.scheme], credentials=receiver.credentials or None
        )
    return types.PushNotificationConfig(
        id=receiver.id or None,
        url=receiver.url,
        token=receiver.token or None,
        authentication=given,
    )


def plain_receiver(found: types.TaskPushNotificationConfig) -> plain.Receiver:
    config = found.push_notification_config
    shown = config.authentication
    return plain.Receiver(
        config.id or "",
        found.task_id,
        config.url,
        config.token or "",
        shown.schemes[0] if shown else "",
        (shown.credentials or "") if shown else "",
    )


class Sdk:
    """The library's factory and client."""

    lists = False
    lists_receivers = False

    def __init__(self, address: str, binding: str, http: httpx.AsyncClient) -> None:
        self.address, self.binding, self.http = address, binding, http
        self.extended_card_off = (
            "" if binding == "GRPC" else "AuthenticatedExtendedCardNotConfigured"
        )
        self.shows_ended = binding != "JSONRPC"
        self.refusal: int | None = None
        http.event_hooks["response"].append(self.note)

    async def note(self, response: httpx.Response) -> None:
        """Keep what a refusal over REST says: the library shows no more than its status."""
        if response.is_error:
            await response.aread()
            self.refusal = response.json()["code"]

    def config(self, **options: object) -> ClientConfig:
        if self.binding == "GRPC":
            # The library leaves it to its users how to connect.
            options["grpc_channel_factory"] = importlib.import_module("grpc.aio").insecure_channel
        return ClientConfig(supported_transports=[self.binding], **options)

    async def client(self, *, streaming: bool, http: httpx.AsyncClient | None = None) -> Client:
        if http is not None:
            http.event_hooks["response"].append(self.note)
        config = self.config(streaming=streaming, httpx_client=http or self.http)
        return await ClientFactory.connect(self.address, config)

    async def card(self) -> plain.Card:
        resolver = A2ACardResolver(self.http, self.address)
        older = await resolver.get_agent_card(PREV_AGENT_CARD_WELL_KNOWN_PATH)
        card = await resolver.get_agent_card()
        plain.expect("name at the older address", older.name, card.name)
        version = ".".join(card.protocol_version.split(".")[:2])
        offered = (card.preferred_transport, version)
        plain.expect("preferred interface", offered, ("JSONRPC", "0.3"))
        streaming = bool(card.capabilities.streaming)
        return plain.Card(card.name, len(card.skills), streaming, [("JSONRPC", version)])

    async def send(
        self, message_id: str, *, task: str = "", context: str = "", wait: bool = True
    ) -> plain.Task | plain.Message:
        client = await self.client(streaming=False)
        sent = client.send_message(
            message(message_id, task, context),
            configuration=types.MessageSendConfiguration(blocking=wait),
        )
        (reply,) = [plain_event(event) async for event in sent]
        assert isinstance(reply, plain.Task | plain.Message), reply
        return reply

    @asynccontextmanager
    async def stream(
        self, message_id: str, *, task: str = ""
    ) -> AsyncIterator[AsyncIterator[plain.Event]]:
        # A connection of its own: leaving the block drops the stream as a lost line would.
        async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
            client = await self.client(streaming=True, http=http)
            sent = client.send_message(message(message_id, task))
            yield (plain_event(event) async for event in sent)

    @asynccontextmanager
    async def subscribe(self, task: str) -> AsyncIterator[AsyncIterator[plain.Event]]:
        async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
            client = await self.client(streaming=True, http=http)
            events = client.resubscribe(types.TaskIdParams(id=task))
            yield (plain_event(event) async for event in events)

    async def get(self, task: str, history: int | None = None) -> plain.Task:
        client = await self.client(streaming=False)
        query = types.TaskQueryParams(id=task, history_length=history)
        return plain_task(await client.get_task(query))

    async def page(
        self, context: str, token: str = "", artifacts: bool = False, state: str = ""
    ) -> plain.Page:
        raise NotImplementedError("0.3 lists no tasks over JSON-RPC")

    async def cancel(self, task: str) -> plain.Task:
        client = await self.client(streaming=False)
        return plain_task(await client.cancel_task(types.TaskIdParams(id=task)))

    async def set_push(self, receiver: plain.Receiver) -> plain.Receiver:
        client = await self.client(streaming=False)
        config = config_of(receiver)
        return plain_receiver(
            await client.set_task_callback(
                types.TaskPushNotificationConfig(
                    task_id=receiver.task, push_notification_config=config
                )
            )
        )

    async def get_push(self, task: str, id: str) -> plain.Receiver:
        client = await self.client(streaming=False)
        asked = types.GetTaskPushNotificationConfigParams(id=task, push_notification_config_id=id)
        return plain_receiver(await client.get_task_callback(asked))

    async def list_push(self, task: str) -> list[plain.Receiver]:
        raise NotImplementedError("the library's client lists none")

    async def delete_push(self, task: str, id: str) -> None:
        raise NotImplementedError("the library's client deletes none")

    async def send_with_push(self, message_id: str, receiver: plain.Receiver) -> plain.Task:
        config = self.config(
            streaming=False,
            httpx_client=self.http,
            push_notification_configs=[config_of(receiver)],
        )
        client = await ClientFactory.connect(self.address, config)
        (reply,) = [plain_event(e) async for e in client.send_message(message(message_id))]
        assert isinstance(reply, plain.Task), reply
        return reply

    def posted(self, body: bytes) -> plain.Event:
        return plain_task(types.Task.model_validate_json(body))

    async def extended_card(self) -> str:
        card = await A2ACardResolver(self.http, self.address).get_agent_card()
        plain.expect("capability", bool(card.supports_authenticated_extended_card), False)
        # The library asks only where the card offers it, so this client is told that it does.
        card.supports_authenticated_extended_card = True
        config = self.config(httpx_client=self.http)
        return (await ClientFactory(config).create(card).get_card()).name

    def meaning(self, error: Exception) -> str | None:
        if self.binding == "GRPC" and hasattr(error, "details"):
            # The status of gRPC as it is: its words begin with the name.
            name = str(error.details()).partition(":")[0].removesuffix("Error")
            return NAMES.get(name, name)
        if isinstance(error, A2AClientHTTPError) and self.refusal is not None:
            return ERRORS.get(self.refusal)
        return ERRORS.get(error.error.code) if isinstance(error, A2AClientJSONRPCError) else None


@asynccontextmanager
async def connect(address: str, version: str) -> AsyncIterator[Sdk]:
    async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
        yield Sdk(address, BINDINGS[version], http)


if __name__ == "__main__":
    plain.main(connect)
