"""The services that clients of gRPC look for beside the one they want: whether there is health, and
what else there is. Their messages, and what reflection says, are those of the official packages.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from dragoman.http.grpc.rpc import RpcFailure, RpcHandler, ServedRpc
from dragoman.transports.grpc.classes import POOL
from dragoman.transports.grpc.framing import framed

_PACKAGE = "grpc.reflection"
# Seconds after which it is found out anew whether the server is ready.
_LOOK_EVERY = 1.0
# Callers that are told of each change. They need no credential, so that there are no more of them
# than there are connections.
_MOST_WATCHES = 1_000


class HealthService:
    """`grpc.health.v1.Health`, for everyone."""

    SERVICE: ClassVar = "grpc.health.v1.Health"

    def __init__(self, services: Sequence[str], is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._services = {"", *services}
        self._is_ready = is_ready
        # The answer of this second, for all who ask.
        self._answer: asyncio.Future[bool] | None = None
        self._answered_at = 0.0
        self._is_stopping = asyncio.Event()
        # How many watch, and what looks for all of them and tells them; None: no caller watches.
        self._watches = 0
        self._looking: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self.handlers = {
            f"/{self.SERVICE}/Check": RpcHandler(self._check),
            f"/{self.SERVICE}/Watch": RpcHandler(self._watch),
        }

    def stop(self) -> None:
        """Say from here on that nothing is served."""
        self._is_stopping.set()

    async def _check(self, rpc: ServedRpc) -> None:
        service = _service_name(rpc)
        if service not in self._services:
            raise RpcFailure("NOT_FOUND", "There is no such service")
        await rpc.finish(await self._status(service), ())

    async def _watch(self, rpc: ServedRpc) -> None:
        service = _service_name(rpc)
        if self._watches >= _MOST_WATCHES:
            raise RpcFailure(
                "RESOURCE_EXHAUSTED", "Too many callers watch the health of this server"
            )
        self._watches += 1
        try:
            told = b""
            while not self._is_stopping.is_set():
                status = await self._status(service)
                if status != told:
                    await rpc.write(status)
                    told = status
                    # It may have changed meanwhile.
                    continue
                await asyncio.shield(self._next_news())
            await rpc.finish(await self._status(service), ())
        finally:
            self._watches -= 1

    def _next_news(self) -> asyncio.Future[None]:
        """Return what is done when there may be news."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._news

    async def _look(self) -> None:
        """Tell all who watch of each change, for as long as anyone does."""
        told = None
        try:
            while self._watches and not self._is_stopping.is_set():
                serves = await self._serves()
                if serves != told:
                    told = serves
                    self._tell()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY):
                        await self._is_stopping.wait()
        finally:
            self._looking = None
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    async def _status(self, service: str) -> bytes:
        kinds: Any = health_pb2.HealthCheckResponse
        if service not in self._services:
            status = kinds.SERVICE_UNKNOWN
        else:
            status = kinds.SERVING if await self._serves() else kinds.NOT_SERVING
        return framed(kinds(status=status).SerializeToString())

    async def _serves(self) -> bool:
        if self._is_stopping.is_set():
            return False
        now = asyncio.get_running_loop().time()
        if self._answer is None or now - self._answered_at >= _LOOK_EVERY:
            self._answer = asyncio.ensure_future(self._is_ready())
            self._answered_at = now
        return await asyncio.shield(self._answer)


class ReflectionService:
    """Server reflection, by its name of today and by the one before: the messages are the same."""

    _NAMES: ClassVar = (f"{_PACKAGE}.v1.ServerReflection", f"{_PACKAGE}.v1alpha.ServerReflection")

    def __init__(self, services: Sequence[str]) -> None:
        handler = RpcHandler(self._answer, is_conversation=True)
        self.handlers = {f"/{name}/ServerReflectionInfo": handler for name in self._NAMES}
        self._services = [*services, *self._NAMES]
        self._servicer: Any = None

    async def _answer(self, rpc: ServedRpc) -> None:
        if self._servicer is None:
            # It loads grpcio, which nothing else here needs.
            reflection = await asyncio.to_thread(_load_reflection)
            self._servicer = reflection.aio.ReflectionServicer(self._services, _described())
        async for reply in self._servicer.ServerReflectionInfo(_questions(rpc), None):
            await rpc.write(framed(reply.SerializeToString()))
        await rpc.finish(b"", ())


def _load_reflection() -> Any:
    from grpc_reflection.v1alpha import reflection

    return reflection


def _described() -> DescriptorPool:
    """Return what describes every service that is listed: a tool that cannot find one gives up."""
    from grpc_reflection.v1alpha import reflection_pb2

    POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    older = reflection_pb2.DESCRIPTOR.serialized_pb
    POOL.AddSerializedFile(older)
    # The official package has only the older one, and the other differs in its package alone.
    file = FileDescriptorProto.FromString(older)
    file.name, file.package = f"{_PACKAGE.replace('.', '/')}/v1/reflection.proto", f"{_PACKAGE}.v1"
    for field in (field for message in file.message_type for field in message.field):
        if field.type_name:
            field.type_name = _newer(field.type_name)
    for method in file.service[0].method:
        method.input_type, method.output_type = (
            _newer(method.input_type),
            _newer(method.output_type),
        )
    POOL.AddSerializedFile(file.SerializeToString())
    return POOL


def _newer(name: str) -> str:
    return name.replace(f".{_PACKAGE}.v1alpha.", f".{_PACKAGE}.v1.")


async def _questions(rpc: ServedRpc) -> AsyncGenerator[Any]:
    from grpc_reflection.v1alpha import reflection_pb2

    kind: Any = vars(reflection_pb2)["ServerReflectionRequest"]
    async for data in rpc.messages():
        yield _parsed(kind(), data)


def _service_name(rpc: ServedRpc) -> str:
    """Return the service that a question about health names."""
    question: Any = vars(health_pb2)["HealthCheckRequest"]()
    return _parsed(question, rpc.request()).service


def _parsed(message: Any, data: bytes) -> Any:
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise RpcFailure("INVALID_ARGUMENT", "The request is not that message") from None
    return message
