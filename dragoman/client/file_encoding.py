"""How a peer of 0.3 puts a file into the proto's bytes, over REST: as it is, or as base64 text.

The proto's bytes are the file. The official Python library, in 0.3 and in the 0.3 layer of 1.x,
puts the file's base64 there and reads nothing else: binary files fail, and texts become other texts
without an error. A file alone does not tell which it is, so the peer is asked once for a task that
does not exist, before the first file goes out or is read: libraries refuse that in their own ways.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.errors import A2AError
from dragoman.model import operations as ops

# What serves Python applications, by the header `server`.
_PYTHON_SERVERS = ("uvicorn", "hypercorn", "granian", "daphne", "gunicorn", "waitress")
UNKNOWN = (
    "how the agent encodes files over REST is not known: they are sent and read as the proto has it"
)
AS_TEXT = "files are sent and read as base64 text, as the official Python library has them"


class EncodingRefused(msgspec.Struct, frozen=True):
    """How a peer answered to the question."""

    headers: Mapping[str, str]
    # Its body as JSON; None: it is none.
    value: Any = None


def has_files(operation: ops.Operation) -> bool:
    """Tell whether an operation carries a file, and not only its address."""
    return isinstance(operation, ops.SendMessage) and any(
        part.raw is not UNSET for part in operation.message.parts
    )


def may_hold_files(body: bytes) -> bool:
    """Tell whether there may be a file in an answer."""
    return b"ileWithBytes" in body or b"ile_with_bytes" in body


def told_by(refusal: EncodingRefused) -> bool | None:
    """Tell whether a peer has base64 text where the proto has bytes; None: that is not known."""
    value = refusal.value
    body: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if type(body.get("code")) is int:
        # A code of JSON-RPC: the JavaScript library and ours, which keep to the proto.
        return False
    inner = body.get("error")
    if isinstance(inner, dict) and {"code", "status"} <= cast("dict[str, Any]", inner).keys():
        # An error of 1.0 on a path of 0.3: the 0.3 layer of the Python library.
        return True
    if body.keys() in ({"message"}, {"message", "data"}):
        return True
    server = refusal.headers.get("server", "").lower()
    if server.startswith(_PYTHON_SERVERS) or "python" in server:
        return True
    if "express" in refusal.headers.get("x-powered-by", "").lower():
        return False
    return None


class FileEncoding:
    """What is known of one peer."""

    def __init__(self, ask: Callable[[], Awaitable[EncodingRefused]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._is_known = False
        self._is_text: bool | None = None

    async def is_text(self, headers: Mapping[str, str] | None = None) -> bool:
        """Tell whether it is base64 text; asks the peer the first time. Where that fails, an
        answer's `headers` have to do: it is there to be read. Without any, what failed is raised.
        """
        async with self._asking:
            if not self._is_known:
                try:
                    self._is_text = told_by(await self._ask())
                except A2AError:
                    if headers is None:
                        raise
                    self._is_text = told_by(EncodingRefused(headers))
                self._is_known = True
        return bool(self._is_text)

    @property
    def note(self) -> str:
        """What is worth saying of it; empty: nothing."""
        return "" if self._is_text is False else AS_TEXT if self._is_text else UNKNOWN
