"""How an API key is shown to people and programs: all of it but its secret, which nobody has."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dragoman.cli.invocation import Invocation

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.security.api_keys import Key


def item_of(key: "Key") -> dict[str, Any]:
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


_LABELS = {
    "result": "Result",
    "key": "Key",
    "id": "Id",
    "state": "State",
    "owner": "Owner",
    "scopes": "Scopes",
    "tenant": "Tenant",
    "agent": "Agent",
    "name": "Name",
    "madeBy": "Made-By",
    "createdAt": "Created",
    "expiresAt": "Expires",
    "revokedAt": "Revoked",
    "followedBy": "Followed-By",
    "replaces": "Replaces",
    "replacedUntil": "Replaced-Until",
    "file": "File",
}


_BETWEEN = {"scopes": " ", "madeBy": " < "}


def show_fields(run: Invocation, item: dict[str, Any]) -> None:
    for name, label in _LABELS.items():
        value = item.get(name)
        if value and name in _BETWEEN:
            value = _BETWEEN[name].join(value)
        if value:
            run.out.field(label, str(value))


def tell(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        show_fields(run, item)
