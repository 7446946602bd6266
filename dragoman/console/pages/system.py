"""The system: processes, the audit log and whether its chain holds, and what is served."""

from typing import Any

from dragoman.console.visit import Answer, DrawnPage, Visit, link


async def show(visit: Visit) -> Answer:
    """Draw processes and the audit log."""
    filters = visit.filters("act", "who")
    processes = (await visit.api.get("/processes"))["items"]
    page = visit.query.get("page", "")
    audit = await visit.api.get("/audit", **filters, pageToken=page)
    token = audit.get("nextPageToken", "")
    samples = (await visit.api.get("/samples"))["items"]
    context = {
        "processes": processes,
        "lines": [line for line in audit["items"] if "reads" in visit.query or not _is_read(line)],
        "has_reads": "reads" in visit.query,
        "filters": filters,
        "next": link("/system", **filters, page=token) if token else "",
        "memory": samples[-1]["memory"] if samples else 0,
        # Reading the whole log takes a while, so it is read when one asks for it.
        "chain": await visit.api.get("/audit/chain") if "verify" in visit.query else None,
    }
    live = ["system"] if context["chain"] is None else []
    return DrawnPage("system.html", "System", context, live=live, every=5.0)


def _is_read(line: dict[str, Any]) -> bool:
    """Tell whether a line says that a page like this one was looked at."""
    return line["outcome"] == "allowed" and line["act"].endswith((".list", ".read"))
