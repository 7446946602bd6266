"""The settings of tasks: where they are stored and how they run."""

from typing import Annotated, Literal

import msgspec

from dragoman.config.formats import (
    is_database,
    read_bus,
    read_database,
    read_sealing_keys,
    read_store,
    unless_empty,
)
from dragoman.config.group import SettingsGroup, about, refusal


class StoreSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tasks are stored, and for how long."""

    location: Annotated[
        str,
        about(
            "Where tasks are stored: a SQLite file (a path, or `sqlite:` and a path), a PostgreSQL "
            "database (`postgresql://user@host/name`; needs the extra `postgres`), or `memory:`. "
            "Empty: `tasks.db` in the user's data folder.",
            name="store",
            check=read_store,
        ),
    ] = ""
    session_url: Annotated[
        str,
        about(
            "The direct address of the same database, if `store` goes through a pooler: locks "
            "and wake-ups need their own connection. Empty: `store` is direct.",
            name="store_session_url",
            check=unless_empty(read_database),
        ),
    ] = ""
    bus: Annotated[
        str,
        about(
            "How wake-ups travel between the replicas on one database: `nats://host:4222` (needs "
            "the extra `nats`). Empty: PostgreSQL itself.",
            check=unless_empty(read_bus),
        ),
    ] = ""
    sealing_keys: Annotated[
        list[str],
        about(
            "Keys that encrypt the secrets in the store: 32 bytes in base64 each, the "
            "current one first, then older ones while they are replaced. Empty: those in "
            "`store_key_file`.",
            name="store_key",
            check=read_sealing_keys,
        ),
    ] = msgspec.field(default_factory=list[str])
    sealing_key_file: Annotated[
        str,
        about(
            "A file with these keys, one per line. Empty: the file beside the store "
            "with its name and `.key`; the first server makes it.",
            name="store_key_file",
        ),
    ] = ""
    synchronous: Annotated[
        Literal["full", "normal", "off"],
        about(
            "How SQLite waits for the disk. Below `full` a power cut loses acknowledged tasks, so "
            "it is refused unless `accept_data_loss` is on."
        ),
    ] = "full"
    accept_data_loss: Annotated[
        bool, about("Whether settings that lose acknowledged tasks may be used.")
    ] = False
    new_store: Annotated[
        bool,
        about(
            "Whether to begin with an empty store although the file of an earlier one is gone. "
            "For one start only: left on, it would hide that a store was lost."
        ),
    ] = False
    read_only: Annotated[
        bool,
        about(
            "Whether to serve what the store has and change nothing in it, while "
            "`dragoman store copy` reads it."
        ),
    ] = False
    retain_seconds: Annotated[int, about("Seconds that finished tasks are stored.", ge=86_400)] = (
        30 * 86_400
    )
    retain_tasks: Annotated[int, about("Finished tasks that are stored at most.", ge=1)] = 1_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("store_session_url", self.session_url), ("bus", self.bus)):
            if value and not self.is_postgres:
                raise refusal(name, value, "goes with a store on PostgreSQL alone")
        if self.read_only and self.location == "memory:":
            raise refusal("read_only", True, "goes with a file or a database that is there already")

    @property
    def is_postgres(self) -> bool:
        """Whether tasks are stored in PostgreSQL."""
        return is_database(self.location)


class EngineSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks run, and how large they may get."""

    idempotency: Annotated[
        bool, about("Whether a repeated message gets the task that it made before.")
    ] = True
    max_events: Annotated[
        int, about("Events in one task's log; beyond that the task fails.", ge=10, le=1_000_000)
    ] = 100_000
    max_task_bytes: Annotated[
        int, about("Bytes in one task's log; beyond that the task fails.", ge=1024)
    ] = 256 * 1024 * 1024
    max_stored_bytes: Annotated[
        int,
        about(
            "Bytes that the logs of one caller's tasks may have in the store together. Beyond "
            "that its tasks fail, and new ones are refused "
            "until old ones are deleted. 0: no limit. Callers that do not authenticate have no "
            "limit.",
            ge=0,
        ),
    ] = 8 * 1024 * 1024 * 1024
    max_live_tasks: Annotated[
        int, about("Tasks running at once; further ones are refused as overload.", ge=1)
    ] = 10_000
    max_queued_messages: Annotated[
        int, about("Messages waiting behind one running task.", ge=1)
    ] = 100
    max_tasks_per_caller: Annotated[
        int, about("Tasks of one caller that run at once; on PostgreSQL, over all replicas.", ge=1)
    ] = 1_000
    max_attempts: Annotated[
        int,
        about(
            "How often the process may die while only this task runs in it, "
            "without progress of the task, before the task fails.",
            ge=1,
        ),
    ] = 3
    suspect_seconds: Annotated[
        float,
        about(
            "Seconds for which a task runs alone if it was running when two processes died: it is "
            "suspected. The time doubles each time that the task survives and is suspected again, "
            "up to 32 times. Other tasks wait meanwhile, for at most six times this setting or for "
            "one longer turn.",
            gt=0,
        ),
    ] = 5.0
    lease: Annotated[
        float,
        about(
            "Seconds after which a process that does not renew its lease loses its tasks to "
            "another one on the same store. A process that ended loses them at once.",
            ge=1,
        ),
    ] = 30.0
    cancel_grace: Annotated[
        float, about("Seconds that an agent has to end after a cancel, before it is stopped.", ge=0)
    ] = 5.0
