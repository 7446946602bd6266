"""`dragoman task push-config listen`: a receiver for one task, for as long as it is under way.

It registers itself with a random token, answers quickly, believes only posts that show the token
and are about the task, and removes its registration at the end.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dragoman.cli.calling.task import TASK_ID, UNTIL, about
from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.model.events import ArtifactUpdate, StatusUpdate
    from dragoman.model.message import Message
    from dragoman.model.task import Task

    Shown = Task | Message | StatusUpdate | ArtifactUpdate

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LARGEST = 16 * 1024 * 1024
_MOST_WAITING = 1000


@command("listen")
@TASK_ID
@option(
    "--listen",
    "address",
    default="127.0.0.1:0",
    metavar="<host:port>",
    help="Where to listen; port 0 takes a free one.",
)
@option("--public-url", default="", metavar="<url>", help="The address the agent reaches us at.")
@option("--keep", switch=True, help="Leave the registration when we end.")
@UNTIL
def listen(
    run: Invocation, task_id: str, address: str, public_url: str, keep: bool, until: str
) -> None:
    """Receive a task's events here until it rests."""
    about(run, task_id)
    host, port = _split(address)
    from dragoman.cli.session import Session, talk

    async def work(session: Session) -> None:
        from dragoman.model.push import PushConfig

        receiver = Receiver(task_id, secrets.token_urlsafe(32))
        run.redactor.add(receiver.token)
        async with _serving(receiver, host, port) as url:
            here = public_url or url
            made = await session.agent.create_push(
                task_id, PushConfig(url=here, token=receiver.token)
            )
            session.out.note("Listening", f"{here} config {made.id}")
            try:
                await _until_rest(session, receiver, task_id, until)
            finally:
                if not keep:
                    # However we end, the agent must not post here any more.
                    await asyncio.shield(_forget(session, task_id, made.id))

    talk(run, work)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise usage("--listen must be host:port")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _forget(session: "Session", task_id: str, config_id: str) -> None:
    from dragoman.errors import A2AError

    with contextlib.suppress(A2AError, TimeoutError):
        async with asyncio.timeout(5):
            await session.agent.delete_push(task_id, config_id)


async def _until_rest(session: "Session", receiver: "Receiver", task_id: str, until: str) -> None:
    """Show what comes until the task rests; what came before we listened is in the task."""
    from dragoman.cli.calling.task import show
    from dragoman.model.events import StatusUpdate
    from dragoman.model.task import Task

    def is_over(event: Any) -> bool:
        if not isinstance(event, Task | StatusUpdate):
            return False
        state = event.status.state
        return state.is_terminal or (state.is_interrupted and until == "rest")

    event: Any = await session.agent.get(task_id)
    session.know(event.id, event.context_id)
    is_first = True
    while not is_over(event):
        is_first = False
        event = await receiver.events.get()
        if session.settings.stream:
            session.out.event(event)
    task = await session.agent.get(task_id)
    if not session.settings.stream:
        show(session, task)
        return
    if is_first:
        session.out.event(task)
    session.close(task)


class Receiver:
    """An ASGI app that takes the posts about one task."""

    def __init__(self, task_id: str, token: str) -> None:
        self.token = token
        self.events: asyncio.Queue[Shown] = asyncio.Queue(_MOST_WAITING)
        self._task_id = task_id
        self._taken_ids: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a post."""
        if scope["type"] != "http":
            return
        status = await self._take(scope, receive)
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _take(self, scope: Scope, receive: Receive) -> int:
        from dragoman.push.request import TOKEN_HEADER

        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        given: bytes = headers.get(TOKEN_HEADER, b"")
        # In constant time: how long a refusal takes tells nothing about the token.
        if not hmac.compare_digest(given, self.token.encode()):
            return 401
        if scope["method"] != "POST":
            return 405
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > _LARGEST:
                return 413
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        event = _event(bytes(body))
        if event is None:
            return 400
        if _task_of(event) != self._task_id:
            return 404
        id = headers.get("webhook-id", b"").decode("latin-1") or hashlib.sha256(body).hexdigest()
        if id not in self._taken_ids:
            if self.events.full():
                return 503
            self._taken_ids.add(id)
            self.events.put_nowait(event)
        return 204


def _event(body: bytes) -> "Shown | None":
    """Return the event of a post, of any version."""
    from dragoman.dialects.v0_3 import V0_3
    from dragoman.dialects.v1_0 import V1_0
    from dragoman.errors import A2AError
    from dragoman.model.events import ArtifactUpdate, StatusUpdate
    from dragoman.model.message import Message
    from dragoman.model.task import Task
    from dragoman.transports import json_text

    for dialect in (V1_0, V0_3):
        with contextlib.suppress(A2AError):
            found = dialect.decode_event(json_text.parse(body))
            if isinstance(found, Task | Message | StatusUpdate | ArtifactUpdate):
                return found
    return None


def _task_of(event: "Shown") -> str:
    from dragoman.model.task import Task

    return event.id if isinstance(event, Task) else event.task_id


@asynccontextmanager
async def _serving(app: Receiver, host: str, port: int) -> AsyncGenerator[str]:
    from dragoman.server.process.plain_serving import serving_socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        shown = f"[{host}]" if ":" in host else host
        async with serving_socket(app, listener):
            yield f"http://{shown}:{listener.getsockname()[1]}/"
    finally:
        listener.close()
