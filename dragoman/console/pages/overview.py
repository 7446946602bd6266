"""The overview: how it goes, and what needs attention, each with the way to mend it."""

from typing import Any

from dragoman.console.charts import Chart, chart
from dragoman.console.pages import tasks
from dragoman.console.pages.attention import attention
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit

# Seconds between two samples, and between two drawings: a fault is told within ten.
_EVERY = 5.0
_DRAWN_EVERY = 3.0


async def show(visit: Visit) -> Answer:
    """Draw the overview; callers that are no operators begin with their tasks."""
    if not visit.is_operator:
        return Redirect("/tasks")
    samples = (await visit.api.get("/samples"))["items"]
    inbox = (await visit.api.get("/inbox"))["items"]
    latest = await visit.api.get("/tasks", limit=8)
    agents = _agents(samples)
    context: dict[str, Any] = {
        "charts": _charts(samples, len(inbox)),
        "agents": agents,
        "attention": await attention(visit, agents, sum(one["refused"] for one in samples)),
        "tasks": await tasks.rows(visit, latest["items"]),
        "filters": {},
        "first": "",
        "next": "",
        "origin": visit.origin,
    }
    return DrawnPage("overview.html", "Overview", context, live=["overview"], every=_DRAWN_EVERY)


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
