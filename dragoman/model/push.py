"""Where a task's events are posted to, as its caller configured it."""

import re
import unicodedata

import msgspec

from dragoman.model.identity import TaskId

# A token of RFC 9110, which the name of a scheme is.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


def is_sendable(text: str) -> bool:
    """Say whether a text can be the value of a header: it has no control characters."""
    return text.isprintable() or not any(unicodedata.category(c)[0] == "C" for c in text)


def is_scheme(text: str) -> bool:
    """Say whether a text can be the name of an authentication scheme."""
    return _TOKEN.fullmatch(text) is not None


def hidden(secret: str) -> str:
    """Return the `repr` of a secret."""
    return "'***'" if secret else "''"


class PushAuthentication(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The `Authorization` header for a receiver."""

    scheme: str
    credentials: str = ""

    def __repr__(self) -> str:
        return f"PushAuthentication(scheme={self.scheme!r}, credentials={hidden(self.credentials)})"


class PushConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One receiver of a task's events."""

    url: str
    # Empty in a request: the server chooses one.
    id: str = ""
    # Empty in a send, which makes the task.
    task_id: TaskId = TaskId("")
    token: str = ""
    authentication: PushAuthentication | None = None
    # The protocol version of the caller, and so of the posts.
    version: str = "1.0"

    def __repr__(self) -> str:
        return (
            f"PushConfig(url={self.url!r}, id={self.id!r}, task_id={self.task_id!r}, "
            f"token={hidden(self.token)}, authentication={self.authentication!r}, "
            f"version={self.version!r})"
        )

    def masked(self) -> "PushConfig":
        """Return it without credentials, which are never shown again."""
        if self.authentication is None or not self.authentication.credentials:
            return self
        shown = PushAuthentication(self.authentication.scheme)
        return msgspec.structs.replace(self, authentication=shown)
