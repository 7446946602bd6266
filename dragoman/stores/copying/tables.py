"""What a store consists of, table by table, as rows that a file and a database have in common.

A row is a tuple of numbers, texts, bytes and None: first its key, then the rest. Holders of
tasks and receivers are not copied: in the copy there are none, as if every worker had left in good
order. Counters are made anew from the rows.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

Row = tuple[Any, ...]
Key = Sequence[Any]


class Table(NamedTuple):
    """One kind of rows."""

    # In a database.
    name: str
    key: tuple[str, ...]
    rest: tuple[str, ...] = ()
    # In a file, if it is called otherwise.
    in_file: str = ""
    # Another table of a file that has rows of this kind.
    also_in_file: str = ""
    # Yes or no in a database, 1 or 0 in a file and here.
    switches: frozenset[str] = frozenset()
    # What a written row gets besides.
    fixed: tuple[tuple[str, int], ...] = ()
    # Only these rows, in both.
    where: str = "true"
    # Rows of a batch.
    at_once: int = 2000

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, the key first."""
        return (*self.key, *self.rest)

    @property
    def file_name(self) -> str:
        """The name in a file."""
        return self.in_file or self.name

    def key_of(self, row: Row) -> list[Any]:
        """Return the key of a row."""
        return list(row[: len(self.key)])


def _table(name: str, key: str, rest: str = "", switches: str = "", **more: Any) -> Table:
    return Table(
        name,
        tuple(key.split()),
        tuple(rest.split()),
        switches=frozenset(switches.split()),
        **more,
    )


_UNHELD = (("holder", 0),)
# Few and large rows.
_LARGE = 200

TABLES = (
    _table("facts", "name", "value", where="name IN ('secret', 'sealed_secret')"),
    _table("vault_keys", "id", "is_current", "is_current"),
    _table("scopes", "number", "agent tenant owner"),
    _table("tasks", "number", "id scope context state status_at last_seq fence", fixed=_UNHELD),
    _table("events", "task last", "n kind bodies", at_once=_LARGE),
    _table("snapshots", "task", "seq head artifacts", at_once=_LARGE),
    _table("keys", "scope key", "task reply made_at", also_in_file="fresh_keys"),
    _table("notes", "number", "task body"),
    _table("deadlines", "task", "at"),
    _table(
        "pushes",
        "number",
        "task id config sealed is_open cursor tries due_at failing_since problem",
        "is_open",
        fixed=_UNHELD,
    ),
    _table("dead_letters", "push seq", "tries at problem"),
    _table("withheld", "task seq", "body"),
    _table(
        "orders",
        "task",
        "task_id agent requester payee skill held price charged fee holds began_at due_at ended_at "
        "state cause is_observed moves escrow release_at fee_due",
        "is_observed",
        in_file="errands",
    ),
    _table("accounts", "number", "kind owner balance held"),
    _table(
        "transfers", "number", "id kind at task reference memo hash", where="number IS NOT NULL"
    ),
    _table("entries", "number", "account kind amount held balance reserved"),
    _table("checkouts", "id", "owner package credits cents made_at paid_at"),
    _table("payment_events", "id", "checkout at"),
    _table("agents", "id", "name body status last_seen_at beat_at version"),
    _table("agents_removed", "id", "at version"),
    _table("agent_credentials", "agent", "shown body"),
    _table("agent_places", "owner origin agent", "url"),
    _table(
        "agent_keys",
        "number",
        "id hash agent label tenant owner scopes parent parent_ref parent_mark generation made_at "
        "expires_at revoked_at version",
    ),
    _table("workflows", "number", "id tenant owner made_at definition"),
    _table("triggers", "number", "id tenant owner made_at definition due_at version"),
    _table(
        "rollouts",
        "number",
        "id tenant owner agent made_at definition is_running version",
        "is_running",
    ),
    _table("trust_events", "number", "agent type task at body hash"),
    _table(
        "trust_days",
        "agent requester is_own day",
        "completed failed response_ms ratings rating_sum",
        "is_own",
    ),
    _table("payers", "requester"),
    _table("ratings", "task", "agent requester rating comment at"),
    _table("disputes", "task", "agent requester reason opened_at outcome note resolved_at"),
)


class Sum(msgspec.Struct):
    """How many rows a table has, and what they come to, whatever their order."""

    rows: int = 0
    total: str = "0"

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        total = int(self.total, 16)
        for row in rows:
            total += int.from_bytes(sha256(msgspec.msgpack.encode(row)).digest(), "big")
        self.rows += len(rows)
        self.total = f"{total % (1 << 256):x}"


class Marks(msgspec.Struct):
    """What of a store is no row of a table: numbers that are never given twice, and versions."""

    # Tasks, receivers and notes have numbers up to these.
    task: int = 0
    push: int = 0
    note: int = 0
    agents_version: int = 0
    agent_keys_version: int = 0


class Place(msgspec.Struct):
    """How far a copy is; it lies in the target, and is written with each batch."""

    # What the source was when the copy began.
    source: str
    # By name: those that are done, and the one under way.
    sums: dict[str, Sum] = {}
    table: int = 0
    # The key of the last row of that table; none: it has not begun.
    after: list[Any] | None = None
