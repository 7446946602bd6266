"""Drives the client of PyPI a2a-sdk 1.x: A2A 1.0 over all bindings, and its 0.3 layer."""

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import scenarios as plain
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.compat.v0_3 import types as types_0_3
from a2a.compat.v0_3.conversions import to_core_task
from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, Parse

BINDINGS = {
    "1.0-jsonrpc": "JSONRPC",
    "1.0-rest": "HTTP+JSON",
    "1.0-grpc": "GRPC",
    "0.3-jsonrpc": "JSONRPC",
    "0.3-grpc": "GRPC",
}
STATES = {
    value: name.removeprefix("TASK_STATE_").lower().replace("_", "-")
    for name, value in TaskState.items()
}


def plain_part(part: Part) -> plain.Part:
    kind = part.WhichOneof("content")
    value: Any = MessageToDict(part.data) if kind == "data" else getattr(part, str(kind))
    return plain.Part(**{kind: value}, filename=part.filename, media_type=part.media_type)


def plain_artifact(artifact: Any) -> plain.Artifact:
    return plain.Artifact(artifact.artifact_id, [plain_part(part) for part in artifact.parts])


def plain_message(message: Message) -> plain.Message:
    role = Role.Name(message.role).removeprefix("ROLE_").lower()
    return plain.Message(message.message_id, role, "".join(part.text for part in message.parts))


def plain_task(task: Task) -> plain.Task:
    return plain.Task(
        id=task.id,
        context=task.context_id,
        state=STATES[task.status.state],
        said=plain_message(task.status.message).text,
        history=[plain_message(message) for message in task.history],
        artifacts=[plain_artifact(artifact) for artifact in task.artifacts],
    )


def plain_event(event: StreamResponse) -> plain.Event:
    match event.WhichOneof("payload"):
        case "task":
            return plain_task(event.task)
        case "message":
            return plain_message(event.message)
        case "status_update":
            update = event.status_update
            said = plain_message(update.status.message).text
            return plain.Status(update.task_id, STATES[update.status.state], said)
        case "artifact_update":
            update = event.artifact_update
            artifact = plain_artifact(update.artifact)
            return plain.Chunk(update.task_id, artifact, update.append, update.last_chunk)
        case other:
            raise AssertionError(f"an event with {other!r} as its payload")


def request(message_id: str, task: str, context: str, wait: bool) -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(
            message_id=message_id,
            task_id=task,
            context_id=context,
            role=Role.ROLE_USER,
            parts=[Part(text="Hello")],
        ),
        configuration=SendMessageConfiguration(return_immediately=not wait),
    )


def config_of(receiver: plain.Receiver) -> TaskPushNotificationConfig:
    config = TaskPushNotificationConfig(
        id=receiver.id, task_id=receiver.task, url=receiver.url, token=receiver.token
    )
    if receiver.scheme:
        given = AuthenticationInfo(scheme=receiver.scheme, credentials=receiver.credentials)
        config.authentication.CopyFrom(given)
    return config


def plain_receiver(config: TaskPushNotificationConfig) -> plain.Receiver:
    shown = config.authentication
    return plain.Receiver(
        config.id, config.task_id, config.url, config.token, shown.scheme, shown.credentials
    )


class Sdk:
    """The library's factory and client, for one of the three ways it can speak to us."""

    def __init__(self, address: str, version: str, http: httpx.AsyncClient) -> None:
        self.address, self.version, self.http = address, version, http
        self.lists = version.startswith("1.0")
        self.lists_receivers = True
        self.shows_ended = version in ("0.3-rest", "0.3-grpc")
        self.extended_card_off = {"0.3-grpc": ""}.get(
            version, "UnsupportedOperation" if self.lists else "ExtendedAgentCardNotConfigured"
        )

    async def resolve(self) -> AgentCard:
        # A server of 0.3 alone would show this card to every caller.
        asked = self.version.partition("-")[0]
        return await A2ACardResolver(self.http, self.address).get_agent_card(
            http_kwargs={"headers": {"A2A-Version": asked}}
        )

    async def client(self, *, streaming: bool, http: httpx.AsyncClient | None = None) -> Client:
        return self.client_for(await self.resolve(), streaming=streaming, http=http)

    def client_for(
        self, card: AgentCard, *, streaming: bool = False, http: httpx.AsyncClient | None = None
    ) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http or self.http,
            supported_protocol_bindings=[BINDINGS[self.version]],
        )
        if BINDINGS[self.version] == "GRPC":
            # The library leaves it to its users how to connect.
            config.grpc_channel_factory = importlib.import_module("grpc.aio").insecure_channel
        return ClientFactory(config).create(card)

    async def card(self) -> plain.Card:
        card = await self.resolve()
        # Without a version the card is the one that both generations read; a client of either
        # must find its way with it.
        async with httpx.AsyncClient() as http:
            self.client_for(await A2ACardResolver(http, self.address).get_agent_card())
        wanted = self.version.partition("-")[0]
        offered = [
            (interface.protocol_binding, ".".join(interface.protocol_version.split(".")[:2]))
            for interface in card.supported_interfaces
        ]
        plain.expect_that((BINDINGS[self.version], wanted) in offered, f"interfaces: {offered}")
        return plain.Card(card.name, len(card.skills), card.capabilities.streaming, offered)

    async def send(
        self, message_id: str, *, task: str = "", context: str = "", wait: bool = True
    ) -> plain.Task | plain.Message:
        client = await self.client(streaming=False)
        (reply,) = [
            plain_event(event)
            async for event in client.send_message(request(message_id, task, context, wait))
        ]
        assert isinstance(reply, plain.Task | plain.Message), reply
        return reply

    @asynccontextmanager
    async def stream(
        self, message_id: str, *, task: str = ""
    ) -> AsyncIterator[AsyncIterator[plain.Event]]:
        # A connection of its own: leaving the block drops the stream as a lost line would.
        async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
            client = await self.client(streaming=True, http=http)
            sent = client.send_message(request(message_id, task, "", True))
            yield (plain_event(event) async for event in sent)

    @asynccontextmanager
    async def subscribe(self, task: str) -> AsyncIterator[AsyncIterator[plain.Event]]:
        async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
            client = await self.client(streaming=True, http=http)
            events = client.subscribe(SubscribeToTaskRequest(id=task))
            yield (plain_event(event) async for event in events)

    async def get(self, task: str, history: int | None = None) -> plain.Task:
        client = await self.client(streaming=False)
        return plain_task(await client.get_task(GetTaskRequest(id=task, history_length=history)))

    async def page(
        self, context: str, token: str = "", artifacts: bool = False, state: str = ""
    ) -> plain.Page:
        client = await self.client(streaming=False)
        states = {name: value for value, name in STATES.items()}
        answer = await client.list_tasks(
            ListTasksRequest(
                context_id=context,
                page_size=1,
                page_token=token,
                include_artifacts=artifacts or None,
                status=states[state] if state else None,
            )
        )
        tasks = [plain_task(task) for task in answer.tasks]
        return plain.Page(tasks, answer.next_page_token, answer.total_size)

    async def cancel(self, task: str) -> plain.Task:
        client = await self.client(streaming=False)
        return plain_task(await client.cancel_task(CancelTaskRequest(id=task)))

    async def set_push(self, receiver: plain.Receiver) -> plain.Receiver:
        client = await self.client(streaming=False)
        made = await client.create_task_push_notification_config(config_of(receiver))
        return plain_receiver(made)

    async def get_push(self, task: str, id: str) -> plain.Receiver:
        client = await self.client(streaming=False)
        asked = GetTaskPushNotificationConfigRequest(task_id=task, id=id)
        return plain_receiver(await client.get_task_push_notification_config(asked))

    async def list_push(self, task: str) -> list[plain.Receiver]:
        client = await self.client(streaming=False)
        asked = ListTaskPushNotificationConfigsRequest(task_id=task)
        found = await client.list_task_push_notification_configs(asked)
        return [plain_receiver(config) for config in found.configs]

    async def delete_push(self, task: str, id: str) -> None:
        client = await self.client(streaming=False)
        asked = DeleteTaskPushNotificationConfigRequest(task_id=task, id=id)
        await client.delete_task_push_notification_config(asked)

    async def send_with_push(self, message_id: str, receiver: plain.Receiver) -> plain.Task:
        client = await self.client(streaming=False)
        asked = request(message_id, "", "", True)
        asked.configuration.task_push_notification_config.CopyFrom(config_of(receiver))
        (reply,) = [plain_event(event) async for event in client.send_message(asked)]
        assert isinstance(reply, plain.Task), reply
        return reply

    def posted(self, body: bytes) -> plain.Event:
        if self.version.startswith("0.3"):
            return plain_task(to_core_task(types_0_3.Task.model_validate_json(body)))
        return plain_event(Parse(body, StreamResponse()))

    async def extended_card(self) -> str:
        card = await self.resolve()
        plain.expect("capability", card.capabilities.extended_agent_card, False)
        # The library asks only where the card offers it, so this client is told that it does.
        card.capabilities.extended_agent_card = True
        request = GetExtendedAgentCardRequest()
        return (await self.client_for(card).get_extended_agent_card(request)).name

    def meaning(self, error: Exception) -> str | None:
        return type(error).__name__.removesuffix("Error") if isinstance(error, A2AError) else None


@asynccontextmanager
async def connect(address: str, version: str) -> AsyncIterator[Sdk]:
    async with httpx.AsyncClient(timeout=plain.EACH_WITHIN) as http:
        yield Sdk(address, version, http)


if __name__ == "__main__":
    plain.main(connect)
