"""The overview: how it goes, and what needs attention, each with the way to mend it."""

from typing import Any

from dragoman.console.charts import Chart, chart
from dragoman.console.pages import tasks
from dragoman.console.pages.attention import attention
from dragoman.console.rendering import seconds
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit

# Seconds between two samples, and between two drawings: a fault is told within ten.
_EVERY = 5.0
_DRAWN_EVERY = 3.0
# Samples that charts have room for at least: three minutes.
_SLOTS = 36
# Top lists by their titles, and their names in the API. That of agents has more to say, elsewhere.
_TOP = (
    ("Callers with most tasks", "callers"),
    ("Skills with most tasks", "skills"),
    ("Most frequent errors", "errors"),
)


async def show(visit: Visit) -> Answer:
    """Draw the overview; callers that are no operators begin with their tasks."""
    if not visit.is_operator:
        return Redirect("/tasks")
    samples = (await visit.api.get("/samples"))["items"]
    inbox = (await visit.api.get("/inbox"))["items"]
    latest = await visit.api.get("/tasks", limit=8, deliveries="hide")
    names = await tasks.agent_names(visit)
    agents = _agents(samples, names, visit.me["agents"])
    top = await visit.api.get("/top")
    context: dict[str, Any] = {
        "top": [(name, await top_rows(visit, top, kind)) for name, kind in _TOP],
        "counted": top,
        "charts": _charts(samples, len(inbox)),
        "minutes": round(max(_SLOTS, len(samples)) * _EVERY / 60),
        "agents": agents,
        "attention": await attention(visit, agents, sum(one["refused"] for one in samples)),
        "tasks": await tasks.rows(visit, latest["items"]),
        "filters": {},
        "first": "",
        "next": "",
        "origin": visit.origin,
        # What a new user may try first.
        "first_agents": [] if latest["items"] else await _agents_to_try(visit),
    }
    return DrawnPage("overview.html", "Overview", context, live=["overview"], every=_DRAWN_EVERY)


async def _agents_to_try(visit: Visit) -> list[tuple[str, str]]:
    """Return the names of some agents, in addresses and for people."""
    if not visit.me.get("hasRegistry"):
        return [(name, name) for name in visit.me["agents"][:3]]
    found = await visit.api.gateway("GET", "/agents", limit=3)
    return [(one["slug"], one["name"]) for one in found["agents"]]


async def top_rows(visit: Visit, top: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return a top list as it is drawn: agents behind a gateway by their names."""
    rows: list[dict[str, Any]] = top[kind]
    if kind != "agents":
        return rows
    names = await tasks.agent_names(visit)
    return [{**one, "name": names.get(one["name"], one["name"])} for one in rows]


def _charts(samples: list[dict[str, Any]], waiting: int) -> list[Chart]:
    last = samples[-1] if samples else {}
    started = [one["started"] / _EVERY for one in samples]
    failed = [one["failed"] / _EVERY for one in samples]
    p50, p99 = ([one[name] or 0.0 for one in samples] for name in ("p50", "p99"))
    slow, usual = (_duration(max(some[-12:], default=0.0)) for some in (p99, p50))
    ended, bad = sum(one["ended"] for one in samples), sum(one["failed"] for one in samples)
    share = f"{100 * bad / ended:.1f}" if ended else "0"

    sends = chart("Send", slow, f"p99 · {usual} p50", p99, slots=_SLOTS)
    sends.peak = _duration(max(p99, default=0.0))
    waits = chart(
        "Waiting for people",
        f"{waiting}{'+' if waiting >= 50 else ''}",
        "question" if waiting == 1 else "questions",
        [one["waiting"] for one in samples],
        slots=_SLOTS,
    )
    # Two tasks that wait for each other have one question.
    waits.peak += " tasks"

    def drawn(name: str, amount: str, unit: str, *lines: list[float]) -> Chart:
        return chart(name, amount, unit, *lines, slots=_SLOTS)

    return [
        drawn("Tasks", f"{started[-1] if started else 0:.1f}", "per second", started, failed),
        drawn("Running", f"{last.get('running', 0):,}", "now", [one["running"] for one in samples]),
        waits,
        drawn("Failed", share, "% of 15 min", failed),
        sends,
        drawn(
            "Streams", f"{last.get('streams', 0):,}", "open", [one["streams"] for one in samples]
        ),
    ]


def _duration(milliseconds: float) -> str:
    return seconds(milliseconds / 1000) if milliseconds else "–"


def _agents(
    samples: list[dict[str, Any]], names: dict[str, str], served: list[str]
) -> list[dict[str, Any]]:
    """Return what each agent did in the time of the samples. Those behind the gateway are in
    `names`, by their ids; one that this process serves too is told once, with all its tasks."""
    ids = {name: id for id, name in names.items() if name not in served}
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
    behind = set(names.values())
    for name, one in found.items():
        # What a gateway gives to an agent begins at the gateway, and ends as the agent's. What it
        # gives to one of its own server ends there once more, as the agent's own.
        one["tasks"] = max(one["started"], one["ended"])
        if name in behind and 0 < one["started"] < one["ended"] and name in served:
            twice = one["ended"] / one["started"]
            one["tasks"] = one["ended"] = one["started"]
            one["failed"] = round(one["failed"] / twice)
        one["id"] = ids.get(name, "")
    return sorted(found.values(), key=lambda one: (-one["failed"], -one["tasks"], one["name"]))
