"""The system: processes, store, limits, keys, settings, and the audit log with its chain."""

from typing import Any
from urllib.parse import quote

from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link

# Settings that say how much one caller may have; beyond that it is refused. By how they begin, and
# by how they end.
_RATES = ("rate_limit", "quota", "max_stored_bytes")
_SHARES = ("_per_caller", "_per_owner", "_per_address")


async def show(visit: Visit) -> Answer:
    """Draw what the server runs with, and what was done."""
    api, filters = visit.api, visit.filters("act", "who")
    page = visit.query.get("page", "")
    audit = await api.get("/audit", **filters, pageToken=page)
    token = audit.get("nextPageToken", "")
    samples = (await api.get("/samples"))["items"]
    settings = (await api.get("/settings"))["items"]
    context = {
        "processes": (await api.get("/processes"))["items"],
        "store": await api.get("/store"),
        "status": await api.get("/status"),
        "lines": [line for line in audit["items"] if "reads" in visit.query or not _is_read(line)],
        "has_reads": "reads" in visit.query,
        "filters": filters,
        "next": link("/system", **filters, page=token) if token else "",
        "memory": samples[-1]["memory"] if samples else 0,
        "refused": sum(one["refused"] for one in samples),
        "limits": [one for one in settings if _is_limit(one["name"])],
        "settings": settings,
        "chosen": [one for one in settings if one["source"] != "default"],
        "keys": (await api.get("/keys"))["items"][::-1],
        # Reading the whole log takes a while, so it is read when one asks for it.
        "chain": await api.get("/audit/chain") if "verify" in visit.query else None,
    }
    live = ["processes", "keys", "audit"] if context["chain"] is None else []
    return DrawnPage("system.html", "System", context, live=live, every=5.0)


async def drain(visit: Visit) -> Answer:
    """Have a process end in good order."""
    await visit.api.post(f"/processes/{quote(visit.params['number'], safe='')}/drain")
    return Redirect("/system", "It takes nothing more, and ends.")


async def revoke_key(visit: Visit) -> Answer:
    """End a key."""
    await visit.api.post(f"/keys/{quote(visit.params['id'], safe='')}/revoke")
    return Redirect("/system#api-keys", "Revoked: it opens nothing any more.")


def _is_limit(name: str) -> bool:
    return name.startswith(_RATES) or name.endswith(_SHARES)


def _is_read(line: dict[str, Any]) -> bool:
    """Tell whether a line says that a page like this one was looked at."""
    return line["outcome"] == "allowed" and line["act"].endswith((".list", ".read"))
