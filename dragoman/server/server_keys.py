"""The API keys of a server: those of its file, and those of agents in the store of its gateway.

For the command on its machine, and for operators who ask the server. A key is shown as plain values
without its secret, which is stored nowhere. Servers see each change within a second.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.config import Settings
from dragoman.errors import ConfigError

if TYPE_CHECKING:
    # Heavy: loaded when keys are read.
    from dragoman.model.agent_key import AgentKeyRow
    from dragoman.security.keys.api_keys import ApiKeyRecord

ENDED = "ended with its parent"


class ServerKeys:
    """The keys that the settings lead to. All of it blocks, and raises `ConfigError`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = settings.keys_path()

    @property
    def place(self) -> dict[str, str]:
        """Where the keys are that it makes."""
        return {"file": str(self._path)}

    def items(self) -> list[dict[str, Any]]:
        """Return all keys in the order they were made: those of the file, then those of agents."""
        from dragoman.security.keys import key_file

        of_file = [_of_file(key) for key in key_file.read_keys(self._path)]
        return [*of_file, *self._of_agents()]

    def item(self, id: str) -> dict[str, Any]:
        """Return a key. The file comes first: a store that cannot be read keeps no key of the file
        from being revoked."""
        from dragoman.security.keys import key_file

        of_file = [_of_file(key) for key in key_file.read_keys(self._path) if key.id == id]
        for item in of_file or self._of_agents():
            if item["id"] == id:
                return item
        return _of_file(key_file.find(self._path, id))

    def create(
        self, owner: str, scopes: Sequence[str], tenant: str | None, lifetime: timedelta | None
    ) -> dict[str, Any]:
        """Make a key; its text is in what is returned, and nowhere else."""
        from dragoman.security.keys import key_file

        key, text = key_file.create(
            self._path, owner, scopes=list(scopes), tenant=tenant, lifetime=lifetime
        )
        return {"key": text, **_of_file(key)}

    def check_rotation(self, id: str, lifetime: timedelta | None) -> dict[str, Any]:
        """Return a key that can have a successor."""
        from dragoman.security.keys import key_file

        if (item := self.item(id))["parent"] is not None:
            raise ConfigError(
                f"{id} is the key of an agent, which the gateway made: have it make another by "
                "POST /api/v1/agents/ID/api-keys, then revoke this one"
            )
        key_file.check_rotation(key_file.find(self._path, id), lifetime)
        return item

    def rotate(self, id: str, overlap: timedelta, lifetime: timedelta | None) -> dict[str, Any]:
        """Make the successor of a key of the file, which ends after a while."""
        from dragoman.security.keys import key_file

        self.check_rotation(id, lifetime)
        before, key, text = key_file.rotate(self._path, id, overlap=overlap, lifetime=lifetime)
        ends = instant(before.expires_at)
        return {"key": text, **_of_file(key), "replaces": before.id, "replacedUntil": ends}

    def revoke(self, id: str) -> dict[str, Any]:
        """End a key where it is, and return it: of an agent's, all that it made end with it."""
        from dragoman.security.keys import key_file

        if self.item(id)["parent"] is None:
            return _of_file(key_file.revoke(self._path, id))
        from dragoman.stores.tools import revoke_agent_key

        revoke_agent_key(self._settings, id, int(time.time() * 1000))
        return self.item(id)

    def _of_agents(self) -> list[dict[str, Any]]:
        """Return the keys of agents. Whether the credential above one holds is told as far as the
        settings lead to it: keys of agents, the key file, and the file of tokens."""
        from dragoman.stores.tools import agent_keys_in

        keys = agent_keys_in(self._settings)
        by_id = {key.id: key for key in keys}
        holds = _roots(self._settings)
        return [_of_agent(key, by_id, holds) for key in keys]


def audited(item: dict[str, Any]) -> tuple[str, str]:
    """Return what the audit log says of a deed with a key: which it is, and what it may do."""
    if item["madeBy"]:
        made_by = " < ".join(item["madeBy"])
        return f"{item['id']} {item['agent']} {item['owner']}", f"made by {made_by}"
    if "replaces" in item:
        return f"{item['replaces']} {item['owner']}", f"followed by {item['id']}"
    tenant = [f"tenant {item['tenant']}"] if item["tenant"] is not None else []
    return f"{item['id']} {item['owner']}", " ".join([*item["scopes"], *tenant])


def _of_file(key: "ApiKeyRecord") -> dict[str, Any]:
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
    """Return a time as keys show it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _lineage(key: "AgentKeyRow", by_id: "dict[str, AgentKeyRow]") -> list[str]:
    """Return the credentials above a key, the nearest first."""
    from dragoman.security.keys.agent_keys import CREDENTIAL

    found = [key.parent]
    while (above := by_id.get(found[-1].removeprefix(CREDENTIAL))) and above.parent not in found:
        found.append(above.parent)
    return found


def _of_agent(
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
        "madeBy": _lineage(key, by_id),
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


def _roots(settings: Settings) -> Callable[[str, str], bool]:
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
