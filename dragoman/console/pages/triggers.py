"""Triggers: what begins tasks by itself, when it does so next, and what came of it."""

from typing import Any
from urllib.parse import quote

from dragoman.console.api import ApiFailed
from dragoman.console.pages.tasks import agent_names
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link

_PAGE = 50
# What a form says of a new trigger, kept if it is refused.
_PLAN = ("cron", "zone", "missed")
_FIELDS = ("name", "agent", "text", *_PLAN)


async def show(visit: Visit) -> Answer:
    """Draw the list, and the form for a new one, or for one that is to be changed."""
    if id := visit.query.get("change"):
        found = await visit.api.gateway("GET", _path(id))
        return await _drawn(visit, changing=found, said=found | found.get("schedule", {}))
    return await _drawn(visit)


async def _drawn(visit: Visit, status: int = 200, **more: Any) -> DrawnPage:
    after = visit.query.get("after", "")
    found = await visit.api.gateway("GET", "/triggers", limit=_PAGE, after=after)
    context: dict[str, Any] = {
        "triggers": [_row(visit, one) for one in found["triggers"]],
        "next": link("/triggers", after=found["next"]) if found.get("next") else "",
        "origin": visit.origin,
        "agents": sorted((await agent_names(visit)).values()),
        "said": {},
        **more,
    }
    return DrawnPage(
        "triggers.html", "Triggers", context, live=["triggers"], every=5.0, status=status
    )


def _row(visit: Visit, record: dict[str, Any]) -> dict[str, Any]:
    """Return a trigger as it is drawn."""
    plan = record.get("schedule")
    when = f"{plan['cron']} ({plan.get('zone', 'UTC')})" if plan else ""
    webhook = record.get("webhook")
    runs = record.get("recentRuns", [])
    return record | {
        "when": when,
        "address": f"{visit.origin}{webhook}" if webhook else "",
        "last": runs[0] if runs else None,
        "earlier": runs[1:],
    }


async def create(visit: Visit) -> Answer:
    """Make a trigger: by the clock, or by posts."""
    said = {name: visit.field(name).strip() for name in _FIELDS}
    body: dict[str, Any] = {name: said[name] for name in ("name", "text")}
    body["agentId"] = said["agent"]
    if visit.field("by") == "post":
        body["webhook"] = True
    else:
        plan = {name: said[name] for name in _PLAN if said[name]}
        body["schedule"] = {"cron": "", **plan}
    try:
        made = await visit.api.gateway("POST", "/triggers", body)
    except ApiFailed as error:
        return await _drawn(visit, 422, problem=error.message, said=said)
    if made.get("secret"):
        # Shown here and nowhere else.
        return await _drawn(visit, made=_row(visit, made))
    return Redirect("/triggers", "Added.")


async def change(visit: Visit) -> Answer:
    """Change what it is called, what it says and when; its agent stays."""
    path = _path(visit.params["id"])
    found = await visit.api.gateway("GET", path)
    said = {name: visit.field(name).strip() for name in _FIELDS}
    body: dict[str, Any] = {name: said[name] for name in ("name", "text")}
    if plan := found.get("schedule"):
        body["schedule"] = plan | {name: said[name] for name in _PLAN if said[name]}
    try:
        await visit.api.gateway("PATCH", path, body)
    except ApiFailed as error:
        return await _drawn(visit, 422, problem=error.message, changing=found, said=said)
    return Redirect("/triggers", "Changed.")


async def replace_secret(visit: Visit) -> Answer:
    """Give a webhook another secret, and show it."""
    made = await visit.api.gateway("POST", f"{_path(visit.params['id'])}/secret")
    return await _drawn(visit, made=_row(visit, made))


async def pause(visit: Visit) -> Answer:
    """Have it begin no tasks."""
    await visit.api.gateway("PATCH", _path(visit.params["id"]), {"enabled": False})
    return Redirect("/triggers", "Paused: it begins no tasks.")


async def resume(visit: Visit) -> Answer:
    """Have it begin tasks again."""
    await visit.api.gateway("PATCH", _path(visit.params["id"]), {"enabled": True})
    return Redirect("/triggers", "It begins tasks again.")


async def run(visit: Visit) -> Answer:
    """Begin a task now, and go there."""
    begun = await visit.api.gateway("POST", f"{_path(visit.params['id'])}/run")
    return Redirect(f"/tasks/{quote(begun['taskId'], safe='')}")


async def remove(visit: Visit) -> Answer:
    """Remove it; its tasks stay."""
    await visit.api.gateway("DELETE", _path(visit.params["id"]))
    return Redirect("/triggers", "Removed. The tasks that it began stay.")


def _path(id: str) -> str:
    return f"/triggers/{quote(id, safe='')}"
