"""The callers of the tables of who may do what: who they are, and the API keys they show.

Things belong to `owner`. Each of the others differs from it by as little as possible: a name is not
enough to be that caller, and neither is a tenant.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.model.identity import ADMIN, OPERATOR, Principal
from dragoman.security.keys.api_keys import ApiKeyRecord, KeyFile, hash_of, new_id, new_text

OWNER, NAMESAKE, NEIGHBOUR, ANONYMOUS = "owner", "namesake", "neighbour", "anonymous"
STRANGER, UNBOUND, ADMINISTRATOR, RUNNER = "stranger", "unbound", "admin", "operator"


class Identity(NamedTuple):
    """A caller: the name and the tenant of its key, and what the key is for besides."""

    name: str
    tenant: str | None
    scopes: Sequence[str] = ()

    @property
    def principal(self) -> Principal:
        """Who that is to a server."""
        return Principal(self.tenant or "", f"key:{self.name}")


CALLERS: Mapping[str, Identity] = {
    OWNER: Identity("ada", "acme"),
    # The same name in another tenant.
    NAMESAKE: Identity("ada", "globex"),
    # Another name in the same tenant.
    NEIGHBOUR: Identity("bob", "acme"),
    STRANGER: Identity("bob", "globex"),
    # The same name, by a key that is for no tenant.
    UNBOUND: Identity("ada", None),
    ADMINISTRATOR: Identity("chief", "acme", (ADMIN,)),
    RUNNER: Identity("boss", None, (OPERATOR,)),
}
# A caller without things or neighbours; and the other side of a purchase.
NEWCOMER, SELLER, BUYER = "newcomer", "seller", "buyer"
OTHERS: Mapping[str, Identity] = {
    NEWCOMER: Identity("eve", "initech"),
    SELLER: Identity("sam", "market"),
    BUYER: Identity("ben", "market"),
}
# The owner last: it may change what the others must leave as it is.
ORDER = (ANONYMOUS, *(name for name in CALLERS if name != OWNER), OWNER)


def _key(identity: Identity) -> tuple[ApiKeyRecord, str]:
    id = new_id()
    text = new_text(id)
    key = ApiKeyRecord(
        id=id,
        owner=identity.name,
        hash=hash_of(text).hex(),
        scopes=list(identity.scopes),
        tenant=identity.tenant,
        created_at=datetime.now(UTC),
    )
    return key, text


_MADE = {name: _key(identity) for name, identity in (*CALLERS.items(), *OTHERS.items())}
# The text of each caller's key; of who shows none, nothing.
KEYS: Mapping[str, str] = {name: text for name, (_, text) in _MADE.items()} | {ANONYMOUS: ""}


def write_keys(path: Path) -> Path:
    """Write the file by which a server knows the callers; return its path."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(KeyFile([key for key, _ in _MADE.values()])))
    return path
