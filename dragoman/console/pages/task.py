"""One task: what was said, when what happened, every event as stored and as each dialect has it,
what it gave to others, and how it was at any position."""

import shlex
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from dragoman.console import content, dialect_views, markup, timeline
from dragoman.console.api import OPERATOR_API, ApiFailed
from dragoman.console.forms import answer_forms, read_answer
from dragoman.console.pages.agents import card_of
from dragoman.console.pages.tasks import agent_names, row, rows
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link
from dragoman.model.identity import new_id

_WINDOW = 50
# A task with more events is long: it is told by its first and its last ones, not by all.
LONG = 5000
_LAST_EVENTS = 300
_TABS = ("Conversation", "Timeline", "Raw", "Tree", "Scrubber")


def path_of(task_id: str, view: str = "") -> str:
    """Return the path of a task's page."""
    path = f"/tasks/{quote(task_id, safe='')}"
    return path if view in ("", "Conversation") else f"{path}/{view.lower()}"


async def _begun(visit: Visit, view: str) -> dict[str, Any]:
    """Return what every view of a task has."""
    task = await view_of(visit)
    (shown,) = await rows(visit, [task])
    return {
        "task": shown,
        "at": path_of(task["id"]),
        "tabs": [(path_of(task["id"], name), name) for name in _TABS],
        "view": view,
        "origin": visit.origin,
        "forms": answer_forms(task["requests"]),
    }


async def view_of(visit: Visit) -> dict[str, Any]:
    """Return the task of the address: what lists show of it, and what its log says now."""
    found = await visit.api.get(f"/tasks/{quote(visit.params['id'], safe='')}")
    return {**found.pop("task"), **found}


async def state_of(visit: Visit, position: int | None = None) -> dict[str, Any]:
    """Return the task as of a position, or as it is."""
    task_id = quote(visit.params["id"], safe="")
    return await visit.api.get(f"/tasks/{task_id}/state", at=position)


async def conversation(visit: Visit) -> Answer:
    """Draw what was said and made."""
    context = await _begun(visit, "Conversation")
    found = await _shortened_task(visit, context["task"]["events"])
    said = content.conversation(found)
    first = content.first_message(found)
    context |= {
        "said": said[-content.MOST_SHOWN :],
        "earlier": max(0, len(said) - content.MOST_SHOWN),
        "words": content.text_of(first)[:20_000],
        "is_long": context["task"]["events"] > LONG,
    }
    return DrawnPage("task.html", _title(context), context, live=["task_head", "conversation"])


async def _shortened_task(visit: Visit, events: int) -> dict[str, Any]:
    """Return the task; of a long one what its first and its last events tell."""
    if events <= LONG:
        return (await state_of(visit))["task"]
    return content.from_events(content.keyed(await told_events(visit, events)))


async def told_events(visit: Visit, upto: int) -> list[dict[str, Any]]:
    """Return the first events of a long task, and the last ones up to a position."""
    path = f"/tasks/{quote(visit.params['id'], safe='')}/events"
    first = (await visit.api.get(path, limit=min(_WINDOW, upto)))["items"]
    after = max(first[-1]["position"] if first else 0, upto - _LAST_EVENTS)
    last = (await visit.api.get(path, after=after, limit=_LAST_EVENTS))["items"]
    return [*first, *(item for item in last if item["position"] <= upto)]


def _title(context: dict[str, Any]) -> str:
    return (context["task"]["words"] or context["task"]["id"])[:60]


async def timeline_view(visit: Visit) -> Answer:
    """Draw everything that happened on one axis of time."""
    context = await _begun(visit, "Timeline")
    found: list[dict[str, Any]] = []
    pushes: list[dict[str, Any]] = []
    after, is_cut = 0, False
    while len(found) < timeline.MOST_SHOWN:
        task_id = quote(visit.params["id"], safe="")
        page = await visit.api.get(f"/tasks/{task_id}/transitions", after=after)
        found += page["items"]
        pushes = page["pushes"]
        after = page.get("nextAfter", 0)
        if not after:
            break
    else:
        is_cut = True
    if context["task"]["hasProcessLeft"] and not is_cut:
        found.append(timeline.left(context["task"]))
    context |= {
        "drawing": timeline.draw(found, pushes, is_ended=context["task"]["isEnded"]),
        "transitions": timeline.transition_lines(found, await agent_names(visit)),
        "pushes": [{**one, "text": timeline.push_line(one)} for one in pushes],
        "cut_after": len(found) if is_cut else 0,
        "most_lines": timeline.MOST_LINES,
    }
    live = ["task_head", "timeline"]
    is_over = context["task"]["isEnded"] and not any(
        one["kind"] in timeline.PENDING for one in pushes
    )
    return DrawnPage(
        "task.html", _title(context), context, live=live, every=0.0 if is_over else 5.0
    )


async def raw(visit: Visit) -> Answer:
    """Draw a window of the events, as stored or as a dialect has them."""
    context = await _begun(visit, "Raw")
    shape = visit.query.get("as", "stored")
    views = await _views(visit, context["task"]["agent"])
    view = views.get(shape)
    after, before = _position(visit.query.get("after")), _position(visit.query.get("before"))
    task_id = quote(visit.params["id"], safe="")
    path = f"/tasks/{task_id}/events"
    window = {**({"before": before} if before else {"after": after or 0}), "limit": _WINDOW}
    page = await visit.api.get(path, **window)
    events, last = page["items"], context["task"]["events"]
    first_shown = events[0]["position"] if events else 0
    last_shown = events[-1]["position"] if events else 0
    here = path_of(context["task"]["id"], "Raw")
    context |= {
        "events": [
            dialect_views.shown_event(one, view)
            | {"line": content.line_of(one["event"]), "state": content.state_in(one["event"])}
            for one in events
        ],
        "shape": shape if view else "stored",
        "shapes": [
            ("stored", "as stored"),
            *((key, it.name) for key, it in views.items()),
        ],
        "curl": visit.command(
            view.curl(visit.origin, context["task"])
            if view
            else shlex.join(["curl", f"{visit.origin}{OPERATOR_API}{link(path, **window)}"])
        ),
        "whole": None,
        "newer": link(here, **{"as": shape, "after": last_shown}) if last_shown < last else "",
        "older": link(here, **{"as": shape, "before": first_shown}) if first_shown > 1 else "",
        "span": (first_shown, last_shown, last),
    }
    if view and last <= LONG:
        context["whole"] = view.task((await state_of(visit))["task"])
    live = ["task_head", "events"] if not before else ["task_head"]
    return DrawnPage("task.html", _title(context), context, live=live)


async def _views(visit: Visit, agent: str) -> dict[str, dialect_views.DialectView]:
    """Return the versions and bindings that a task's callers may use."""
    try:
        return dialect_views.views_of(await card_of(visit, agent))
    except ApiFailed:
        # No agent of this process: runs of workflows are such.
        return dialect_views.VIEWS


def _position(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 12 else None


async def tree(visit: Visit) -> Answer:
    """Draw the task among those that it gave to others."""
    context = await _begun(visit, "Tree")
    task_id = quote(visit.params["id"], safe="")
    found = await visit.api.get(f"/tasks/{task_id}/tree")
    context["node"], context["origin"] = _timed(found["top"]), found.get("origin")
    # Agents behind a gateway by their names.
    context["names"] = await agent_names(visit)
    return DrawnPage("task.html", _title(context), context, live=["task_head", "tree"])


def _timed(node: dict[str, Any]) -> dict[str, Any]:
    """Return a task of a tree, and those below it, with what each took and cost as far as it is
    known: of a call, or else of the task itself."""
    task: dict[str, Any] = node.get("task") or {}
    took = row(task)["took"] if task else None
    return {
        **node,
        "seconds": node.get("seconds") or took,
        "cost": node.get("cost") or task.get("cost"),
        "children": [_timed(child) for child in node.get("children", [])],
    }


async def scrubber(visit: Visit) -> Answer:
    """Draw the task as of a position, and what changed since another."""
    context = await _begun(visit, "Scrubber")
    last = max(1, context["task"]["events"])
    at = min(_position(visit.query.get("at")) or last, last)
    since = min(_position(visit.query.get("since")) or max(1, at - 1), last)
    is_long = last > LONG
    then, changed = await (_long_past if is_long else _past)(visit, since, at)
    context |= {
        "last": last,
        "position": at,
        "since": since,
        "then": then,
        "difference": changed,
        "is_long": is_long,
    }
    return DrawnPage("task.html", _title(context), context, live=["task_head"])


async def _past(visit: Visit, since: int, at: int) -> tuple[dict[str, Any], Markup]:
    """Return the task as of a position, and how it differs from another."""
    after, before = (await state_of(visit, at))["task"], (await state_of(visit, since))["task"]
    return after, markup.difference(before, after)


async def _long_past(visit: Visit, since: int, at: int) -> tuple[dict[str, Any], Markup]:
    """Return the same of a long task, as far as the events before it tell; what changed are the
    events between, the last of them."""
    events = await told_events(visit, at)
    states = [one["event"]["statusUpdate"]["status"] for one in events if one["kind"] == "status"]
    first: dict[str, Any] = events[0]["event"].get("task", {}) if events else {}
    then = content.from_events(events) | {"status": states[-1] if states else first["status"]}
    low, high = sorted((since, at))
    path = f"/tasks/{quote(visit.params['id'], safe='')}/events"
    low = max(low, high - _WINDOW)
    between = (await visit.api.get(path, after=low, limit=_WINDOW))["items"]
    shown = [one["event"] for one in between if one["position"] <= high]
    return then, markup.difference([], shown)


async def file(visit: Visit) -> Answer:
    """Give a file of the task to keep, or a picture to look at."""
    key, is_shown = visit.params["key"], "show" in visit.query
    if position := content.event_of(key):
        path = f"/tasks/{quote(visit.params['id'], safe='')}/events"
        items = (await visit.api.get(path, after=position - 1, limit=1))["items"]
        event: dict[str, Any] = {}
        if items and items[0]["position"] == position:
            event = items[0]["event"]
        return content.file(event, key, is_shown=is_shown)
    return content.file((await state_of(visit))["task"], key, is_shown=is_shown)


# What can be done


async def cancel(visit: Visit) -> Answer:
    """End the task."""
    await visit.api.post(f"/tasks/{quote(visit.params['id'], safe='')}/cancel")
    return Redirect(path_of(visit.params["id"]), "Canceled.")


async def answer(visit: Visit) -> Answer:
    """Answer one of the task's questions."""
    given = await read_answer(visit)
    if given.problem:
        drawn = await conversation(visit)
        assert isinstance(drawn, DrawnPage), "a task is drawn"
        drawn.context["forms"] = given.redrawn(drawn.context["forms"])
        drawn.status = 422
        return drawn
    return Redirect(path_of(visit.params["id"]), "Answered.")


async def send_again(visit: Visit) -> Answer:
    """Send the first message again with other words: a new task that refers to this one."""
    task_id = visit.params["id"]
    view = await view_of(visit)
    old = (await state_of(visit))["task"]
    first = content.first_message(old)
    message: dict[str, Any] = {
        "messageId": new_id(),
        "role": "ROLE_USER",
        "contextId": old["contextId"] if visit.field("same") else "",
        "parts": [{"text": visit.field("words")}],
        "metadata": first.get("metadata", {}),
        "referenceTaskIds": [task_id],
    }
    body: dict[str, Any] = {
        "message": {name: value for name, value in message.items() if value},
        "configuration": {"returnImmediately": True},
        "metadata": {
            name: value
            for name, value in old.get("metadata", {}).items()
            if name in ("agentId", "skillId")
        },
    }
    made = await dialect_views.send(visit, view["agent"], body)
    return Redirect(path_of(made), "Sent: this is the new task.")
