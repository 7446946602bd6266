"""Keys of agents as `dragoman keys` finds them: in the store of the gateway that made them.

The store is read also while a gateway works on it; a gateway sees within a second that a key was
revoked here.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.operating.key_items import instant

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.config import Settings
    from dragoman.model.agent_key import AgentKeyRow

ENDED = "ended with its parent"


def stored_keys(settings: "Settings") -> "Sequence[AgentKeyRow]":
    """Return the keys of agents in a store, in the order they were made; none if it has none."""
    from dragoman.stores.tools import agent_keys_in

    return agent_keys_in(settings)


def revoke_stored(settings: "Settings", id: str) -> None:
    """End a key of an agent, and with it all that were made by it."""
    from dragoman.stores.tools import revoke_agent_key

    revoke_agent_key(settings, id, int(time.time() * 1000))


def items_of(keys: "Sequence[AgentKeyRow]", settings: "Settings") -> list[dict[str, Any]]:
    """Return keys as they are shown. Whether the credential above one holds is told as far as the
    settings lead to it: keys of agents, the key file, and the file of tokens."""
    by_id = {key.id: key for key in keys}
    holds = _roots(settings)
    return [_item(key, by_id, holds) for key in keys]


def lineage(key: "AgentKeyRow", by_id: "dict[str, AgentKeyRow]") -> list[str]:
    """Return the credentials above a key, the nearest first."""
    from dragoman.security.keys.agent_keys import CREDENTIAL

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
    from dragoman.security.keys.agent_keys import CREDENTIAL

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
    from dragoman.security.bearer_tokens import BearerTokens
    from dragoman.security.keys.api_keys import CREDENTIAL, ApiKeys

    keys = ApiKeys(settings.keys_path(), header=settings.security.api_key_header)
    tokens = None
    if settings.security.auth_token or settings.security.auth_tokens:
        path = settings.security.auth_tokens
        file = Path(path).expanduser() if path else None
        tokens = BearerTokens(settings.security.auth_token, file=file)

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
