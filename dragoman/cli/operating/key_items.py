"""How an API key is shown to people and programs: all of it but its secret, which is not stored."""

from typing import Any

from dragoman.cli.invocation import Invocation
from dragoman.cli.terminal.table import Column

# In the order of a record, and what is not labelled by its own name.
_SHOWN = """
    result key id state owner scopes tenant agent name madeBy createdAt expiresAt revokedAt
    followedBy replaces replacedUntil file gateway
    """.split()  # noqa: SIM905 - so many quoted words are harder to read
_LABELS = {"createdAt": "Created", "expiresAt": "Expires", "revokedAt": "Revoked"}


COLUMNS = (
    Column("state", "state", "state"),
    Column("key", "id", "id"),
    Column("owner", "owner"),
    Column("scopes", "scopes"),
    Column("tenant", "tenant"),
    Column("agent", "agent"),
    Column("age", "createdAt", "age"),
    Column("expires", "expiresAt", "age"),
)


def show_fields(run: Invocation, item: dict[str, Any]) -> None:
    made_by = " < ".join(item.get("madeBy") or ())
    run.out.fields({**item, "madeBy": made_by}, _LABELS, _SHOWN)


def tell(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        show_fields(run, item)
