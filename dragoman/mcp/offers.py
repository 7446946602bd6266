"""What an MCP server of ours offers, independent of the `mcp` package: tools and documents."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

# Reports progress while a tool runs.
ReportProgress = Callable[[str], Awaitable[None]]


class ToolText(msgspec.Struct, frozen=True):
    """The result of a call: a text for models, and the same as data for programs."""

    text: str
    data: dict[str, Any] | None = None
    is_error: bool = False


ToolFunction = Callable[[dict[str, Any], ReportProgress], Awaitable[ToolText]]


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """One tool."""

    name: str
    title: str
    description: str
    # The JSON Schema of its arguments, an object.
    schema: dict[str, Any]
    function: ToolFunction
    # Whether it changes nothing.
    reads_only: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document. One with {braces} in its URI stands for many."""

    uri: str
    name: str
    description: str


class Offers(Protocol):
    """Tools and documents."""

    @property
    def name(self) -> str:
        """The name of the server."""
        ...

    @property
    def about(self) -> str:
        """What a model should know before it uses the tools."""
        ...

    @property
    def documents(self) -> Sequence[Document]:
        """The documents there are."""
        ...

    async def tools(self) -> Sequence[ToolOffer]:
        """Return the tools there are at present. Raises `A2AError`."""
        ...

    async def read(self, uri: str) -> Any:
        """Return a document as plain JSON. Raises `LookupError`, and `A2AError`."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


def bounded(value: Any, default: int, most: int) -> int:
    """Return a number that a caller may have given, from 1 to `most`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return max(1, min(most, int(value)))
    return default
