"""Guards on what is read: public bodies, values in a body, memory, connections."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Any

from dragoman import Agent, App, Settings
from dragoman.config import HttpSettings, StoreSettings, load_settings
from dragoman.dialects import errors
from dragoman.egress import descriptors
from dragoman.errors import BodyTooLarge, Overloaded, ParseFailed, PermissionDenied, RateLimited
from dragoman.http import access_control, incidents, protocol, request_head
from dragoman.http.connections import Connections
from dragoman.http.incidents import incident
from dragoman.http.limits import CallerLimits
from dragoman.http.raw_request import ChunkLines, RawRequest
from dragoman.http.request import HttpRequest, read_body
from dragoman.http.routes import Access, Routes
from dragoman.model.identity import Caller
from dragoman.testing.load import HOST
from dragoman.transports import json_text
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_HEAD = b"Host: a\r\n\r\n"
_LARGE_TEXT = b'["' + b'\\"' * 2_000_000 + b'"]'
# More than any machine has.
_BEYOND = 10**12
_MANY = 300_000


# What is inside a body


async def values_are_counted(trial: Trial) -> Finding:
    """Read a text of very many empty objects."""
    try:
        json_text.parse(b"[" + b",".join([b"{}"] * _MANY) + b"]")
    except ParseFailed:
        return Finding(True, "refused before one was made")
    return Finding(False, f"{_MANY:,} values were made")


async def the_loop_goes_on(trial: Trial) -> Finding:
    """Read a large text while something else wants the loop."""
    ticks, reading = 0, asyncio.ensure_future(json_text.read(_LARGE_TEXT))
    while not reading.done():
        await asyncio.sleep(0)
        ticks += 1
    await reading
    return Finding(ticks > 2, f"{ticks} turns of the loop meanwhile")


async def memory_is_asked_for(trial: Trial) -> Finding:
    """Read a large text that would take more than there is."""
    before, json_text._MEMORY = json_text._MEMORY, _BEYOND  # pyright: ignore[reportPrivateUsage] - a text that takes so much cannot be made
    try:
        json_text.parse(_LARGE_TEXT)
    except MemoryError:
        return Finding(True, "refused before it was read")
    finally:
        json_text._MEMORY = before  # pyright: ignore[reportPrivateUsage] - as above
    return Finding(False, "it was read")


# Who may have how much


class _Reader:
    """An app with one public path, which reads whatever it is sent."""

    def __init__(self) -> None:
        self.app = App(
            Agent("Reader", "Reads."), settings=Settings(stores=StoreSettings(location="memory:"))
        )
        self.routes = Routes()
        self.routes.add("/public", self._answer, Access.PUBLIC)
        self.routes.add_others(self._answer, Access.CALLER)
        self.is_refused = False

    async def _answer(self, request: HttpRequest) -> None:
        try:
            await read_body(request, _MANY)
        except BodyTooLarge:
            self.is_refused = True

    async def ask(self, size: int) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/public",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"a" * size, "more_body": False}

        async def send(message: Any) -> None:
            """The answer is of no interest."""

        async with self.app.running():
            (mount,) = self.app.site.mounts.values()
            request = HttpRequest.of(scope, receive, send, mount, "/public")
            await self.app.access.answer(request, self.routes)


async def public_paths_read_little(trial: Trial) -> Finding:
    """Send more to a public path than it takes."""
    reader = _Reader()
    await reader.ask(_MANY // 2)
    return Finding(reader.is_refused, "refused" if reader.is_refused else "all of it was read")


async def one_caller_holds_no_more(trial: Trial) -> Finding:
    """Have two requests of one caller hold more than it may."""
    limits = CallerLimits(Settings(http=HttpSettings(max_bytes_per_caller=64 * 1024)))
    first, second = (limits.admit(Caller("ada", True), None, "192.0.2.1") for _ in range(2))
    first.hold(60_000)
    try:
        second.hold(60_000)
    except RateLimited:
        return Finding(True, "the second is told to come back")
    return Finding(False, "both hold it")


async def connections_follow_the_limit(trial: Trial) -> Finding:
    """Ask for more connections than there can be descriptors."""
    share = descriptors.for_callers(_BEYOND)
    return Finding(share.connections < _BEYOND, f"{share.connections} of {share.limit}")


# What is said


async def a_lack_of_memory_is_told_as_one(trial: Trial) -> Finding:
    """Have a request fail for want of memory."""
    try:
        raise MemoryError
    except MemoryError:
        said = incident()
    return Finding(isinstance(said, Overloaded), f"{errors.http_status(said)} {said.public}")


async def a_refusal_is_no_internal_error(trial: Trial) -> Finding:
    """Refuse a caller of 0.3."""
    said = errors.jsonrpc(PermissionDenied("You may not"), "0.3")["message"]
    return Finding(said == "You may not", said)


# HTTP


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    fields = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"ok"})


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer without a look at the body."""
    await send(
        {"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body"})


@contextlib.asynccontextmanager
async def _served(app: Any = _echo, **settings: Any) -> AsyncGenerator[int]:
    """Serve an app behind the guard; give its port."""
    connections = Connections(load_settings({}, store="memory:", **settings))
    make = protocol.protocol(app, connections)
    server = await asyncio.get_running_loop().create_server(make, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if connections._timer is not None:  # pyright: ignore[reportPrivateUsage] - it would outlive the loop
            connections._timer.cancel()  # pyright: ignore[reportPrivateUsage] - as above


@contextlib.asynccontextmanager
async def _asked(port: int, data: bytes) -> AsyncGenerator[str]:
    """Send something, and leave the connection open; give the first line of the answer."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        yield (await reader.readline()).decode().strip()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _is_bad(data: bytes) -> Finding:
    """Send a request that is to be refused as HTTP."""
    async with _served() as port, _asked(port, data) as line:
        return Finding(" 400 " in line, line)


async def answered_callers_make_room(trial: Trial) -> Finding:
    """Fill all places with callers who have their answer, and whose bodies are not there yet."""
    places = 4
    begun = b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n" + _HEAD + b"ab"
    async with (
        _served(_refuse, max_connections=places) as port,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(places):
            await stack.enter_async_context(_asked(port, begun))
        async with _asked(port, b"GET / HTTP/1.1\r\n" + _HEAD) as line:
            return Finding(" 401 " in line, f"one more caller: {line}")


async def two_spaces_are_refused(trial: Trial) -> Finding:
    """Separate method and target by two spaces."""
    return await _is_bad(b"GET  /healthz HTTP/1.1\r\n" + _HEAD)


async def a_fragment_is_refused(trial: Trial) -> Finding:
    """Ask for a target with a fragment."""
    return await _is_bad(b"GET /healthz#x HTTP/1.1\r\n" + _HEAD)


async def zeros_before_a_size_are_refused(trial: Trial) -> Finding:
    """Write thousands of zeros before the size of a chunk."""
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + _HEAD
    return await _is_bad(head + b"0" * 5_000 + b"3\r\nabc\r\n0\r\n\r\n")


# Removals


def _nothing(*given: Any, **named: Any) -> None:
    """What a guard does that is not there."""


def _no(error: BaseException | None) -> bool:
    return False


def _yes(lines: ChunkLines, data: bytes, begin: int = 0) -> bool:
    return True


def _values(patches: Patches) -> None:
    patches.put(json_text, "check_values", lambda _: _nothing)


def _off_loop(patches: Patches) -> None:
    async def on_loop(step: Any, *given: Any) -> Any:
        return step(*given)

    patches.put(json_text, "off_loop", lambda _: on_loop)


def _reserve(patches: Patches) -> None:
    patches.put(json_text, "reserve", lambda _: _nothing)


def _public(patches: Patches) -> None:
    patches.put(access_control, "PUBLIC_BODY_BYTES", lambda _: math.inf)


def _held(patches: Patches) -> None:
    patches.put(CallerLimits, "hold", lambda _: _nothing)


def _descriptors(patches: Patches) -> None:
    patches.put(descriptors, "limit", lambda _: lambda: 2 * _BEYOND)


def _memory(patches: Patches) -> None:
    patches.put(incidents, "_is_memory", lambda _: _no)


def _wording(patches: Patches) -> None:
    patches.put(errors, "_INTERNAL", lambda _: 0)


def _line(patches: Patches) -> None:
    patches.put(RawRequest, "check_line", lambda _: _nothing)


def _fragment(patches: Patches) -> None:
    def make(check: Any) -> Any:
        def lax(version: str, method: bytes, url: bytes, *more: Any) -> bytes:
            return check(version, method, url.partition(b"#")[0], *more)

        return lax

    patches.put(request_head, "check", make)


def _answered(patches: Patches) -> None:
    def make(is_waiting: property) -> property:
        def has_sent_all(self: Any) -> bool:
            return self._phase != protocol.BODY and is_waiting.__get__(self)

        return property(has_sent_all)

    patches.put(protocol.HttpProtocol, "is_waiting", make)


def _chunk_size(patches: Patches) -> None:
    patches.put(ChunkLines, "take", lambda _: _yes)


GUARDS: tuple[Guard, ...] = (
    Guard("values", "A7", "values of a body are not counted", values_are_counted, True),
    Guard("off-loop", "A7", "large bodies are read on the loop", the_loop_goes_on, True),
    Guard("reserve", "B6", "memory is not asked for before", memory_is_asked_for, True),
    Guard("public-body", "A5", "public paths read any body", public_paths_read_little, True),
    Guard("held-bytes", "A7", "what requests hold is not bounded", one_caller_holds_no_more, True),
    Guard("descriptors", "B6", "the limit is not looked at", connections_follow_the_limit, True),
    Guard("answered", "B6", "unread bodies keep their places", answered_callers_make_room, True),
    Guard("memory", "B6", "no memory is an incident", a_lack_of_memory_is_told_as_one, True),
    Guard("wording", "A9", "refusals are internal errors", a_refusal_is_no_internal_error, True),
    Guard("request-line", "A9", "spaces are passed over", two_spaces_are_refused, True),
    Guard("fragment", "A9", "fragments are cut off", a_fragment_is_refused, True),
    Guard(
        "chunk-size", "A9", "chunk lines are not looked at", zeros_before_a_size_are_refused, True
    ),
)
REMOVALS: dict[str, Removal] = {
    "values": _values,
    "off-loop": _off_loop,
    "reserve": _reserve,
    "public-body": _public,
    "held-bytes": _held,
    "descriptors": _descriptors,
    "answered": _answered,
    "memory": _memory,
    "wording": _wording,
    "request-line": _line,
    "fragment": _fragment,
    "chunk-size": _chunk_size,
}
