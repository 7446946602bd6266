"""Keys of agents as `dragoman keys` finds them: in the store of the gateway that made them.

The file is read also while a gateway works on it; a gateway sees within a second that a key was
revoked here.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.key_items import instant

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.config import Settings
    from dragoman.stores.sqlite.agent_keys import AgentKeyRow

# The first schema with keys of agents.
_SCHEMA = 11
ENDED = "ended with its parent"


def stored_keys(settings: "Settings") -> "Sequence[AgentKeyRow]":
    """Return the keys of agents in a store, in the order they were made; none if it has none."""
    from dragoman.stores.sqlite import agent_keys
    from dragoman.stores.sqlite.inspection import open_to_read
    from dragoman.stores.sqlite.schema import run

    path = settings.store_path()
    if settings.store == "memory:" or not path.is_file():
        return []
    connection = open_to_read(path)
    try:
        ((schema,),) = run(connection, "PRAGMA user_version")
        return agent_keys.every(connection) if schema >= _SCHEMA else []
    finally:
        connection.close()


def revoke_stored(path: Path, id: str) -> None:
    """End a key of an agent, and with it all that were made by it."""
    from dragoman.stores.sqlite import agent_keys
    from dragoman.stores.sqlite.schema import connect, transaction

    connection = connect(str(path))
    try:
        with transaction(connection):
            agent_keys.revoke(connection, id, int(time.time() * 1000))
    finally:
        connection.close()


def items_of(keys: "Sequence[AgentKeyRow]", settings: "Settings") -> list[dict[str, Any]]:
    """Return keys as they are shown. Whether the credential above one holds is told as far as the
    settings lead to it: keys of agents, the key file, and the file of tokens."""
    by_id = {key.id: key for key in keys}
    holds = _roots(settings)
    return [_item(key, by_id, holds) for key in keys]


def lineage(key: "AgentKeyRow", by_id: "dict[str, AgentKeyRow]") -> list[str]:
    """Return the credentials above a key, the nearest first."""
    from dragoman.security.agent_keys import CREDENTIAL

    found = [key.parent]
    while (above := by_id.get(found[-1].removeprefix(CREDENTIAL))) and above.parent not in found:
        found.append(above.parent)
    return found


def _item(
    key: "AgentKeyRow", by_id: "dict[str, AgentKeyRow]", holds: Callable[[str, str], bool]
) -> dict[str, Any]:
    return {
        "id": key.id,
        "state": _state(key, by_id, holds),
        "owner": key.owner,
        "scopes": key.scopes.split(),
        "tenant": key.tenant,
        "agent": key.agent,
        "name": key.label,
        "parent": key.parent,
        "madeBy": lineage(key, by_id),
        "createdAt": _instant(key.made_at),
        "expiresAt": _instant(key.expires_at),
        "revokedAt": _instant(key.revoked_at),
        "followedBy": None,
    }


def _state(
    key: "AgentKeyRow", by_id: "dict[str, AgentKeyRow]", holds: Callable[[str, str], bool]
) -> str:
    from dragoman.security.agent_keys import CREDENTIAL

    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= time.time() * 1000:
        return "expired"
    if not key.parent.startswith(CREDENTIAL):
        return "active" if holds(key.parent, key.parent_ref) else ENDED
    above = by_id.get(key.parent.removeprefix(CREDENTIAL))
    if above is None or above.made_at > key.made_at:
        return ENDED
    return "active" if _state(above, by_id, holds) == "active" else ENDED


def _roots(settings: "Settings") -> Callable[[str, str], bool]:
    """Return what tells whether a credential that is no key of an agent holds, as far as files
    say: of a token without a file, a JWT or a certificate only its own server knows."""
    from dragoman.security.api_keys import CREDENTIAL, ApiKeys
    from dragoman.security.tokens import BearerTokens

    keys = ApiKeys(settings.keys_path(), header=settings.api_key_header)
    tokens = None
    if settings.auth_token or settings.auth_tokens:
        file = Path(settings.auth_tokens).expanduser() if settings.auth_tokens else None
        tokens = BearerTokens(settings.auth_token, file=file)

    def holds(name: str, ref: str) -> bool:
        if name.startswith(CREDENTIAL):
            return bool(keys.recall(name, ref))
        if name.startswith("token:") and tokens is not None:
            return bool(tokens.recall(name, ref))
        return True

    return holds


def _instant(milliseconds: int | None) -> str | None:
    return instant(
        None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    )
