"""The overview: how it goes, and what needs attention, each with the way to mend it."""

from typing import Any

import msgspec

from dragoman.console.api import ApiFailed
from dragoman.console.charts import Chart, chart
from dragoman.console.pages import tasks
from dragoman.console.rendering import read_instant
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link

# Seconds between two samples.
_EVERY = 5.0
# Lines of one kind that are shown by name; the others are counted.
_NAMED = 5


class Attention(msgspec.Struct):
    """Something that is not as it should be."""

    tone: str
    shape: str
    text: str
    to: str
    act: str


async def show(visit: Visit) -> Answer:
    """Draw the overview; callers that are no operators begin with their tasks."""
    if not visit.is_operator:
        return Redirect("/tasks")
    samples = (await visit.api.get("/samples"))["items"]
    inbox = (await visit.api.get("/inbox"))["items"]
    latest = await visit.api.get("/tasks", limit=8)
    context: dict[str, Any] = {
        "charts": _charts(samples, len(inbox)),
        "agents": _agents(samples),
        "attention": await _attention(visit, samples, inbox),
        "tasks": await tasks.rows(visit, latest["items"]),
        "filters": {},
        "first": "",
        "next": "",
        "origin": visit.origin,
    }
    return DrawnPage("overview.html", "Overview", context, live=["overview"], every=_EVERY)


def _charts(samples: list[dict[str, Any]], waiting: int) -> list[Chart]:
    last = samples[-1] if samples else {}
    started = [one["started"] / _EVERY for one in samples]
    failed = [one["failed"] / _EVERY for one in samples]
    p99 = [one["p99"] or 0.0 for one in samples]
    recent = [one for one in p99[-12:] if one]
    ended, bad = sum(one["ended"] for one in samples), sum(one["failed"] for one in samples)
    share = f"{100 * bad / ended:.1f}" if ended else "0"
    return [
        chart("Tasks", f"{started[-1] if started else 0:.1f}", "per second", started, failed),
        chart("Running", f"{last.get('running', 0):,}", "now", [one["running"] for one in samples]),
        chart(
            "Waiting for people",
            f"{waiting}{'+' if waiting >= 50 else ''}",
            "questions",
            [one["waiting"] for one in samples],
        ),
        chart("Failed", share, "% of 15 min", failed),
        chart("Send", f"{max(recent, default=0):.0f}", "ms (p99, last minute)", p99),
        chart(
            "Streams", f"{last.get('streams', 0):,}", "open", [one["streams"] for one in samples]
        ),
    ]


def _agents(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each agent did in the time of the samples."""
    found: dict[str, dict[str, Any]] = {}
    for sample in samples:
        for name, one in sample.get("agents", {}).items():
            into = found.setdefault(
                name, {"name": name, "started": 0, "ended": 0, "failed": 0, "p50": 0, "p99": 0}
            )
            for figure in ("started", "ended", "failed"):
                into[figure] += one[figure]
            into["p50"] = one["p50"] or into["p50"]
            into["p99"] = max(into["p99"], one["p99"] or 0)
    return sorted(found.values(), key=lambda one: (-one["failed"], -one["started"], one["name"]))


async def _attention(
    visit: Visit, samples: list[dict[str, Any]], inbox: list[dict[str, Any]]
) -> list[Attention]:
    found: list[Attention] = []
    for process in (await visit.api.get("/processes"))["items"]:
        if process["state"] != "live":
            text = f"Process {process['number']} is {process['state']}"
            text += ": its tasks are taken over" if process["isDue"] else ""
            found.append(Attention("bad", "cross", text, "/system", "See processes"))
    receivers = (await visit.api.get("/receivers"))["items"]
    failing = [one for one in receivers if one.get("failingSince")]
    for one in failing[:_NAMED]:
        text = f"{one['url']} does not take what is sent to it: {one['problem']}"
        found.append(Attention("bad", "cross", text, "/delivery", "Mend or drop"))
    letters = (await visit.api.get("/dead-letters", limit=50))["items"]
    if letters:
        text = f"{len(letters)} posts were given up"
        found.append(Attention("bad", "slash", text, "/delivery", "Look at them"))
    if visit.me.get("hasRegistry"):
        found += await _of_agents(visit)
    for one in _agents(samples):
        if one["failed"] and one["failed"] * 5 >= one["ended"]:
            text = f"{one['name']} failed {one['failed']} of {one['ended']} tasks"
            to = link("/tasks", agent=one["name"], state="TASK_STATE_FAILED")
            found.append(Attention("bad", "cross", text, to, "See why"))
    if any(one["refused"] for one in samples):
        found += await _limited(visit)
    if inbox:
        text = f"{len(inbox)} questions wait for people, the longest: {inbox[0]['prompt'][:80]}"
        found.append(Attention("ask", "question", text, "/inbox", "Answer"))
    return found


async def _of_agents(visit: Visit) -> list[Attention]:
    found: list[Attention] = []
    for agent in (await visit.api.gateway("GET", "/agents", limit=100))["agents"]:
        to = f"/agents/{agent['slug']}"
        if agent.get("pending_card"):
            text = f"{agent['name']} has a new card: {agent['pending_reason']}"
            found.append(Attention("ask", "question", text, to, "Accept or refuse"))
        if agent["status"] != "online":
            text = f"{agent['name']} is {agent['status']}: {agent.get('status_reason') or '?'}"
            found.append(Attention("bad", "cross", text, to, "Probe"))
    return found


async def _limited(visit: Visit) -> list[Attention]:
    """Return who was refused lately for asking too much."""
    try:
        lines = (await visit.api.get("/audit", act="rate.limited", limit=20))["items"]
    except ApiFailed:
        return []
    names: dict[str, int] = {}
    newest = max((at for one in lines if (at := read_instant(_at(one)))), default=None)
    for one in lines:
        at = read_instant(_at(one))
        if at and newest and (newest - at).total_seconds() < 900:
            name = str(one.get("who") or one.get("address") or "unknown")
            names[name] = names.get(name, 0) + 1
    return [
        Attention("ask", "bar", f"{name} is over its limit", "/system", "See who is refused")
        for name in list(names)[:_NAMED]
    ]


def _at(line: dict[str, Any]) -> str:
    return str(line.get("at") or line.get("time") or "")
