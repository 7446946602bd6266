"""Where a task's events are posted to, as its caller configured it."""

import msgspec

from dragoman.model.identity import TaskId


class PushAuthentication(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the receiver wants to see in `Authorization`."""

    scheme: str
    credentials: str = ""


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

    def masked(self) -> "PushConfig":
        """Return it as it may be shown later: credentials are never said again."""
        if self.authentication is None or not self.authentication.credentials:
            return self
        shown = PushAuthentication(self.authentication.scheme)
        return msgspec.structs.replace(self, authentication=shown)
