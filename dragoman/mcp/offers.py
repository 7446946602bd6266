"""What an MCP server of ours offers, before it is put in the words of MCP: tools and documents."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

# Says how the work goes while it goes on.
Tell = Callable[[str], Awaitable[None]]


class Said(msgspec.Struct, frozen=True):
    """What came of a call: a text for whoever reads, and the same for programs."""

    text: str
    data: dict[str, Any] | None = None
    is_error: bool = False


Deed = Callable[[dict[str, Any], Tell], Awaitable[Said]]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One tool."""

    name: str
    title: str
    description: str
    # The JSON Schema of its arguments, an object.
    schema: dict[str, Any]
    do: Deed
    # Whether it leaves everything as it is.
    reads_only: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Something to read, as JSON. One with {braces} in its address stands for many."""

    uri: str
    name: str
    description: str


class Desk(Protocol):
    """Whoever has tools and documents."""

    @property
    def name(self) -> str:
        """What the server is called."""
        ...

    @property
    def about(self) -> str:
        """What a model should know before it uses the tools."""
        ...

    @property
    def documents(self) -> Sequence[Document]:
        """What there is to read."""
        ...

    async def offers(self) -> Sequence[Offer]:
        """Return the tools there are at present. Raises `A2AError`."""
        ...

    async def read(self, uri: str) -> Any:
        """Return a document as plain JSON. Raises `LookupError`, and `A2AError`."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


def whole(value: Any, default: int, most: int) -> int:
    """Return a number of seconds or of things that a caller may have named."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return max(1, min(most, int(value)))
    return default
