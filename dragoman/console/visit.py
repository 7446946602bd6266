"""One visit of a page: who asks, what they ask for, and the kinds of answers there are."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from dragoman.console.api import VisitorApi
from dragoman.console.sessions import VisitorSession


class DrawnPage(msgspec.Struct):
    """A page: a template and what it is filled with."""

    template: str
    title: str
    context: dict[str, Any] = {}
    # Its parts that change while it is looked at, by name.
    live: Sequence[str] = ()
    # Seconds after which such a part is drawn again although no task changed; 0: never.
    every: float = 0.0
    status: int = 200
    # Where its parts that change are read, if not at its own address; a path below the console.
    live_at: str = ""


class Redirect(msgspec.Struct):
    """Another page; a path below the console."""

    to: str
    # A sentence to show there.
    notice: str = ""


class Download(msgspec.Struct):
    """A file to keep. Only pictures are shown: anything else may be anything."""

    name: str
    kind: str
    body: bytes = b""
    # In place of the body, where it may be long: sent piece by piece.
    pieces: AsyncIterator[bytes] | None = None
    is_shown: bool = False


Answer = DrawnPage | Redirect | Download


class Visit:
    """What a page is told."""

    def __init__(
        self,
        api: VisitorApi,
        session: VisitorSession,
        me: dict[str, Any],
        query: Mapping[str, str],
        params: Mapping[str, str],
        form: Mapping[str, Sequence[str]] | None = None,
        *,
        origin: str = "",
    ) -> None:
        self.api = api
        self.session = session
        # As the operator API describes the visitor.
        self.me = me
        self.query = query
        # What stands in the path.
        self.params = params
        # What was submitted; None: the page is only read.
        self.form = form
        # Scheme and host, for commands that people copy.
        self.origin = origin

    @property
    def is_operator(self) -> bool:
        """Whether the visitor may see the whole server."""
        return self.me.get("role") == "operator"

    def command(self, text: str) -> str:
        """Return a command of curl or grpcurl as this visitor types it: where one has to sign in,
        with the credential from a variable, so that it is on no page."""
        header = self.session.header
        if not header:
            return text
        program, _, rest = text.partition(" ")
        kind = "Bearer " if header == "authorization" else ""
        return f'{program} -H "{header}: {kind}$TOKEN" {rest}'

    def field(self, name: str) -> str:
        """Return what was submitted under a name."""
        values = (self.form or {}).get(name) or [""]
        return values[0]

    def filters(self, *names: str) -> dict[str, str]:
        """Return those filters of the address that say something."""
        return {name: value for name in names if (value := self.query.get(name, "").strip())}


Page = Callable[[Visit], Awaitable[Answer]]


def link(path: str, **query: Any) -> str:
    """Return a path with what it is asked."""
    said = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(said)}" if said else path
