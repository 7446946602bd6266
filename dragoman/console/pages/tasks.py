"""Tasks: the list that changes while it is looked at. Filters and position are in the address."""

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from dragoman.console.api import ApiFailed
from dragoman.console.rendering import STATES, read_instant
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link

_FILTERS = ("state", "agent", "context", "owner", "tenant", "since", "until", "text", "deliveries")
# Those that most people look for; all of them are in the form.
_CHIPS = (
    "TASK_STATE_WORKING",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_FAILED",
    "TASK_STATE_COMPLETED",
)
_MOST_AT_ONCE = 200
# Agents of a registry that lists name; a task of another one is of the gateway.
_MOST_NAMED = 100


async def show(visit: Visit) -> Answer:
    """Draw one page of the list."""
    filters = visit.filters(*_FILTERS)
    names = await agent_names(visit)
    # A position of the list stands still; only its beginning grows.
    position = visit.query.get("page", "")
    found: dict[str, Any] = {"items": [], "isPartial": False, "nextPageToken": ""}
    problem = ""
    try:
        found = await visit.api.get("/tasks", **_api_filters(visit, filters), pageToken=position)
    except ApiFailed as error:
        if error.status != 400:
            raise
        # What was typed stays, to be mended.
        problem = error.message
    return DrawnPage(
        "tasks.html",
        "Tasks",
        {
            "tasks": _rows_with_agents(found["items"], names),
            "filters": filters,
            "behind": sorted(names.items(), key=itemgetter(1)),
            "problem": problem,
            "is_partial": found["isPartial"],
            "chips": [
                (link("/tasks", **{**filters, "state": name}), name, word)
                for name, word in (("", "all"), *((one, STATES[one].word) for one in _CHIPS))
            ],
            "first": link("/tasks", **filters) if position else "",
            "next": link("/tasks", **filters, page=found["nextPageToken"])
            if found["nextPageToken"]
            else "",
            "origin": visit.origin,
        },
        live=[] if problem else ["tasks"],
        status=400 if problem else 200,
    )


def _api_filters(visit: Visit, filters: dict[str, str]) -> dict[str, str]:
    """Return filters as the API takes them. Instants are typed as pages show them, or as a day; of
    the last day all is meant. Without a zone they are in UTC, as on every page."""
    given = dict(filters)
    if visit.me.get("hasRegistry") and given.get("agent", "") not in ("", *visit.me["agents"]):
        # One of the registry, by its id: its tasks are the gateway's.
        given["to"] = given.pop("agent")
    elif not given.get("agent"):
        # What the gateway gives to an agent of this server is the same work: listed once.
        given.setdefault("deliveries", "hide")
    for name in ("since", "until"):
        text = given.get(name, "").removesuffix(" UTC")
        try:
            at = datetime.fromisoformat(text)
            if name == "until" and len(text) <= len("2026-01-31"):
                at += timedelta(days=1)
        except (ValueError, OverflowError):
            continue
        given[name] = (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
    return given


async def rows(visit: Visit, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tasks as lists show them: those that a gateway gave to an agent name it."""
    names = await agent_names(visit) if any(item["to"] for item in items) else {}
    return _rows_with_agents(items, names)


def _rows_with_agents(items: list[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    return [{**row(item), "to": names.get(item["to"], "")} for item in items]


async def agent_names(visit: Visit) -> dict[str, str]:
    """Return the names of the agents of the registry, by their ids; none where there is none."""
    if not visit.me.get("hasRegistry"):
        return {}
    found = await visit.api.gateway("GET", "/agents", limit=_MOST_NAMED)
    return {agent["id"]: agent["slug"] for agent in found["agents"]}


def row(item: dict[str, Any]) -> dict[str, Any]:
    """Return a task as lists show it."""
    made, last = read_instant(item["madeAt"]), read_instant(item["statusAt"])
    took = (last - made).total_seconds() if made and last else None
    is_over = STATES.get(item["state"], STATES["TASK_STATE_WORKING"]).tone not in ("active", "ask")
    return {**item, "took": took if is_over and item["state"] != "TASK_STATE_SUBMITTED" else None}


async def cancel_several(visit: Visit) -> Answer:
    """Cancel the tasks that were selected, and say what became of it."""
    canceled, problem = 0, ""
    for id in (visit.form or {}).get("id", [])[:_MOST_AT_ONCE]:
        try:
            await visit.api.post(f"/tasks/{id}/cancel")
            canceled += 1
        except ApiFailed as error:
            problem = error.message
    notice = f"{canceled} canceled." + (f" Not all: {problem}" if problem else "")
    return Redirect(link("/tasks", **visit.filters(*_FILTERS, "page")), notice)
