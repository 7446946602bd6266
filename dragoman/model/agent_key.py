"""The key of a registered agent as a gateway stores it."""

from typing import NamedTuple


class AgentKeyRow(NamedTuple):
    """A key without its text: a reader of the row can neither use the key nor guess it."""

    id: str
    hash: bytes
    agent: str
    label: str
    # None: the credential that made it named no tenant.
    tenant: str | None
    owner: str
    # With spaces in between.
    scopes: str
    # The credential that made it, what finds that one again, and a keyed hash of it.
    parent: str
    parent_ref: str
    parent_mark: bytes
    generation: int
    # Milliseconds since the epoch.
    made_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
