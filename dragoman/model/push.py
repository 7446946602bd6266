"""Where a task's events are posted to, as its caller configured it."""

import re
import unicodedata

import msgspec

from dragoman.model.identity import TaskId

# A token of RFC 9110, which the name of a scheme is.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


def is_sendable(text: str) -> bool:
    """Say whether a text can be the value of a header: nothing in it ends it or is unseen."""
    return text.isprintable() or not any(unicodedata.category(c)[0] == "C" for c in text)


def is_scheme(text: str) -> bool:
    """Say whether a text can be the name of an authentication scheme."""
    return _TOKEN.fullmatch(text) is not None


def hidden(secret: str) -> str:
    """Return what a secret is shown as where an object is printed."""
    return "'***'" if secret else "''"


class PushAuthentication(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the receiver wants to see in `Authorization`."""

    scheme: str
    credentials: str = ""

    def __repr__(self) -> str:
        return f"PushAuthentication(scheme={self.scheme!r}, credentials={hidden(self.credentials)})"


class PushConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One receiver of a task's events."""

    url: str
    # Empty in a request: we choose one.
    id: str = ""
    # Empty in a send: the task is made by it.
    task_id: TaskId = TaskId("")
    token: str = ""
    authentication: PushAuthentication | None = None
    # The version its caller spoke, and so the one its receiver gets.
    version: str = "1.0"

    def __repr__(self) -> str:
        return (
            f"PushConfig(url={self.url!r}, id={self.id!r}, task_id={self.task_id!r}, "
            f"token={hidden(self.token)}, authentication={self.authentication!r}, "
            f"version={self.version!r})"
        )

    def masked(self) -> "PushConfig":
        """Return it as it may be shown later: credentials are never said again."""
        if self.authentication is None or not self.authentication.credentials:
            return self
        shown = PushAuthentication(self.authentication.scheme)
        return msgspec.structs.replace(self, authentication=shown)
