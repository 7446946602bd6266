"""What needs attention on the overview: each with its name, and with the way to mend it.

Each kind is asked for apart, and a server that does not know one of them shows the others.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dragoman.console import markup
from dragoman.console.api import ApiFailed
from dragoman.console.pages import tasks
from dragoman.console.rendering import read_instant, seconds
from dragoman.console.visit import Visit, link

# Lines of one kind that are shown by name; the others are counted.
_NAMED = 5
# For how long a refusal is told, and a card that changed.
_TOLD_FOR = timedelta(minutes=15)
_MOST_AGENTS = 100


class Attention(msgspec.Struct):
    """Something that is not as it should be."""

    tone: str
    shape: str
    text: str
    # Where it is mended, and what one does there.
    to: str
    act: str


Found = list[Attention]


async def attention(visit: Visit, agents: list[dict[str, Any]], refused: float) -> Found:
    """Return everything, the worst first. `agents` and `refused` are of the last samples: what each
    agent did, and how many requests were refused."""
    kinds: list[Callable[[Visit], Awaitable[Found]]] = [_server, _store, _processes, _receivers]
    if visit.me.get("hasRegistry"):
        kinds.append(_registered)
    kinds.append(_quiet)
    if refused:
        kinds.append(_over_limits)
    kinds.append(_inbox)
    found: Found = []
    for kind in kinds:
        try:
            found += await kind(visit)
        except ApiFailed as error:
            if error.status not in (403, 404):
                raise
    found += _failing(agents)
    return sorted(found, key=lambda one: one.tone != "bad")


def _cut(found: Found, to: str, what: str) -> Found:
    """Return the first of a kind by name, and how many more there are."""
    rest = len(found) - _NAMED
    if rest <= 0:
        return found
    text = f"{rest} more {what}"
    return [*found[:_NAMED], Attention(found[-1].tone, found[-1].shape, text, to, "See all")]


async def _server(visit: Visit) -> Found:
    status = await visit.api.get("/status")
    found = [
        Attention("bad", "cross", f"{one['part']}: {one['reason']}", "/system", "See the system")
        for one in status["troubles"]
    ]
    if status["auditLinesLost"]:
        text = f"{status['auditLinesLost']} lines of the audit log could not be written"
        found.append(Attention("bad", "slash", text, "/system", "See the log"))
    return found


async def _store(visit: Visit) -> Found:
    store = await visit.api.get("/store")
    if not store["isAlmostFull"]:
        return []
    text = f"The store is almost full: {store['freeBytes'] / 1e6:,.0f} MB are free on its disk"
    return [Attention("bad", "bar", text, "/system", "Make room, or keep less")]


async def _processes(visit: Visit) -> Found:
    found: Found = []
    for process in (await visit.api.get("/processes"))["items"]:
        if process["state"] != "live":
            text = f"Process {process['number']} is {process['state']}"
            text += ": its tasks are taken over" if process["isDue"] else ""
            found.append(Attention("bad", "cross", text, "/system", "See processes"))
    return _cut(found, "/system", "processes are gone")


async def _receivers(visit: Visit) -> Found:
    failing = (await visit.api.get("/receivers", which="failing", limit=50))["items"]
    found: Found = []
    for one in failing:
        state = "does not take" if one["isOpen"] else "was given up, it did not take"
        text = f"{one['url']} {state} what is sent to it: {one['problem']}"
        found.append(Attention("bad", "cross", text, "/delivery", "Try it again"))
    found = _cut(found, "/delivery", "receivers fail")
    letters = (await visit.api.get("/dead-letters", limit=50))["items"]
    if letters:
        many = f"{len(letters)}{'+' if len(letters) == 50 else ''}"
        text = f"{many} posts were given up, the last to {letters[0]['url']}"
        found.append(Attention("bad", "slash", text, "/delivery", "Look at them"))
    return found


async def _registered(visit: Visit) -> Found:
    """Return what is wrong with agents of the registry: health, circuits, held cards."""
    found: Found = []
    for agent in (await visit.api.gateway("GET", "/agents", limit=_MOST_AGENTS))["agents"]:
        to, name = f"/agents/{agent['slug']}", agent["name"]
        if agent["status"] != "online":
            why = agent.get("status_reason") or "it does not answer"
            text = f"{name} is {agent['status']}: {why}"
            found.append(Attention("bad", "cross", text, to, "Probe or pause it"))
        for one in agent["circuits"][:1]:
            whose = "all callers" if one["caller"] is None else one["caller"]
            text = f"{name} is not called for {whose}: it failed too often"
            text += f"; tried again in {seconds(one['retry_in'])}" if one["retry_in"] else ""
            found.append(Attention("bad", "bar", text, to, "See the circuit"))
        if agent.get("pending_card"):
            text = f"{name} has a changed card: {agent['pending_reason']}"
            found.append(Attention("ask", "question", text, to, "Accept or refuse"))
        elif ago := _lately(agent.get("card_changed_at") or ""):
            text = (
                f"{name} changed its card {ago} ago: words and skills, its calls go where they went"
            )
            found.append(Attention("ask", "ring", text, to, "Look at it"))
        if agent["is_paused"]:
            found.append(Attention("ask", "bar", f"{name} is paused", to, "Have it go on"))
    return _cut(found, "/agents", "of agents")


def _lately(text: str) -> str:
    """Return how long ago something was; empty: it is too long ago to be told."""
    at = read_instant(text)
    passed = None if at is None else datetime.now(UTC) - at
    return "" if passed is None or passed > _TOLD_FOR else seconds(passed.total_seconds())


async def _quiet(visit: Visit) -> Found:
    """Return agents that may hang: what they do shows nothing."""
    items = (await visit.api.get("/quiet-tasks"))["items"]
    shown = await tasks.rows(visit, [one["task"] for one in items])
    groups: dict[tuple[str, bool], list[tuple[dict[str, Any], str, str]]] = {}
    for one, task in zip(items, shown, strict=True):
        name = task["to"] or task["agent"]
        groups.setdefault((name, one["isUnanswered"]), []).append(
            (task, one["since"], one["task"]["to"])
        )
    found: Found = []
    for (name, is_unanswered), ones in groups.items():
        task, since, agent = ones[0]
        many = "a task" if len(ones) == 1 else f"{len(ones)} tasks"
        began = read_instant(since)
        age = seconds((datetime.now(UTC) - began).total_seconds()) if began else "some time"
        if is_unanswered:
            text = f"{name} hangs: it has not answered {many} for {age}"
            found.append(Attention("bad", "bar", text, f"/agents/{name}", "Probe or pause it"))
        else:
            text = f"{name} shows nothing of {many} for {age}: “{task['words'][:60]}”"
            to = link("/tasks", agent=agent or task["agent"], state=task["state"])
            found.append(Attention("ask", "bar", text, to, "Look, or cancel"))
    return _cut(found, "/tasks", "agents may hang")


def _failing(agents: list[dict[str, Any]]) -> Found:
    found: Found = []
    for one in agents:
        if one["failed"] and one["failed"] * 5 >= one["ended"]:
            text = f"{one['name']} failed {one['failed']:g} of {one['ended']:g} tasks"
            # One behind the gateway is known by its id there.
            agent = one["id"] or one["name"]
            to = link("/tasks", agent=agent, state="TASK_STATE_FAILED")
            found.append(Attention("bad", "cross", text, to, "See why"))
    return _cut(found, "/tasks?state=TASK_STATE_FAILED", "agents fail")


async def _over_limits(visit: Visit) -> Found:
    """Return who was refused lately for asking too much."""
    since = (datetime.now(UTC) - _TOLD_FOR).isoformat()
    lines = (await visit.api.get("/audit", act="rate.limited", since=since, limit=100))["items"]
    refusals: dict[str, int] = {}
    for line in lines:
        name = str(line["who"] or line["address"] or "unknown")
        refusals[name] = refusals.get(name, 0) + line["count"]
    found = [
        Attention(
            "ask",
            "bar",
            f"{name} is over its limit: refused {_times(count)} in 15 min",
            link("/system", act="rate.limited", who=name) + "#limits",
            "See what it asks for, and the limits",
        )
        for name, count in refusals.items()
    ]
    return _cut(found, "/system?act=rate.limited", "callers are over their limits")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


async def _inbox(visit: Visit) -> Found:
    items = (await visit.api.get("/inbox"))["items"]
    if not items:
        return []
    many, which = "A question waits", ""
    if len(items) > 1:
        many, which = f"{len(items)} questions wait", ", the longest"
    text = f"{many} for people{which}: {markup.line(items[0]['prompt'])[:80]}"
    return [Attention("ask", "question", text, "/inbox", "Answer")]
