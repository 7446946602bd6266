"""How an API key is shown to people and programs: all of it but its secret, which is not stored."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dragoman.cli.invocation import Invocation
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.security.keys.api_keys import ApiKeyRecord


def item_of(key: "ApiKeyRecord") -> dict[str, Any]:
    return {
        "id": key.id,
        "state": key.state(time.time()),
        "owner": key.owner,
        "scopes": key.scopes,
        "tenant": key.tenant,
        "agent": key.agent or None,
        "name": key.label or None,
        "parent": None,
        "madeBy": [],
        "createdAt": instant(key.created_at),
        "expiresAt": instant(key.expires_at),
        "revokedAt": instant(key.revoked_at),
        "followedBy": key.followed_by or None,
    }


def instant(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


# In the order of a record, and what is not labelled by its own name.
_SHOWN = """
    result key id state owner scopes tenant agent name madeBy createdAt expiresAt revokedAt
    followedBy replaces replacedUntil file
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
