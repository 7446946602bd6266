"""How a registered agent is shown to people and programs: nothing secret is in it."""

from collections.abc import Sequence
from typing import Any

from dragoman.cli.invocation import Invocation
from dragoman.cli.terminal.table import Column

# How members of the gateway's answers are called here; what is empty is left out of records.
_MEMBERS = {
    "slug": "name",
    "id": "id",
    "name": "title",
    "description": "description",
    "status": "health",
    "status_reason": "healthReason",
    "tags": "tags",
    "endpoint": "url",
    "price_per_task": "price",
    "trust_score": "trust",
    "repeatable": "repeatable",
    "repeatable_skills": "repeatableSkills",
    "keep_message_ids": "keepMessageIds",
    "is_default": "isDefault",
    "is_paused": "isPaused",
    "is_mine": "isMine",
    "callers": "callers",
    "refresh": "refresh",
    "last_seen_at": "lastSeenAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "pending_reason": "pendingReason",
    "pending_digest": "pendingDigest",
}
# In the order of a record, and what is not labelled by its own name.
_SHOWN = """
    result name address id title description health healthReason tags skills url price trust
    repeatable repeatableSkills keepMessageIds isDefault isPaused replicas origins callers dialect
    refresh credential lastSeenAt createdAt pendingReason pendingDigest
    """.split()  # noqa: SIM905 - so many quoted words are harder to read
_LABELS = {
    "isDefault": "Default",
    "isPaused": "Paused",
    "lastSeenAt": "Last-Seen",
    "createdAt": "Created",
    "pendingReason": "Pending",
}


COLUMNS = (
    Column("health", "health", "state"),
    Column("agent", "name", "id"),
    Column("skills", "skills"),
    Column("description", "description"),
    Column("trust", "trust", "number"),
    Column("price", "price", "number"),
    Column("tags", "tags"),
    Column("seen", "lastSeenAt", "age"),
)


def item_of(agent: dict[str, Any], *, card: bool = True) -> dict[str, Any]:
    """Return an agent of the gateway's, with its card if that is wanted."""
    item = {ours: agent.get(theirs) for theirs, ours in _MEMBERS.items()}
    item["skills"] = [skill["id"] for skill in agent.get("skills", [])]
    if card:
        item["card"] = agent.get("agent_card")
        item["pendingCard"] = agent.get("pending_card")
    return item


def described(body: dict[str, Any]) -> dict[str, Any]:
    """Return what would be sent to the gateway, without the secret."""
    names = {"endpoint": "url", "pricePerTask": "price"}
    item = {names.get(name, name): value for name, value in body.items()}
    if "skills" in item:
        item["skills"] = [skill["id"] for skill in item["skills"]]
    if item.get("credential"):
        item["credential"] = item["credential"]["kind"]
    elif "credential" in item:
        item["credential"] = "none"
    return item


def tell_unpaid(run: Invocation, items: Sequence[dict[str, Any]]) -> None:
    """Say why no caller paid: calls of an owner's own agents cost nothing, whatever their price."""
    own = [item["name"] for item in items if item.get("isMine") and _is_priced(item.get("price"))]
    if own and not run.out.is_json:
        run.out.note(
            "Note",
            f"your own calls of {', '.join(own)} cost nothing, as you would pay yourself; "
            "other callers pay the price",
        )


def _is_priced(price: Any) -> bool:
    try:
        return float(price or 0) > 0
    except (TypeError, ValueError):
        return False


def show_record(run: Invocation, item: dict[str, Any]) -> None:
    """Write an agent as a record."""
    run.out.fields({name: item.get(name) or "" for name in _SHOWN}, _LABELS)
