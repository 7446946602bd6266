"""Money: what one has, what was spent and earned, what is in escrow, receipts, and disputes."""

from typing import Any
from urllib.parse import quote

from dragoman.console.charts import chart
from dragoman.console.pages.overview import top_rows
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link
from dragoman.gateway.money.receipts import read_receipt

JWKS_PATH = "/.well-known/jwks.json"
_PAGE = 50
_ESCROWS = 10


async def show(visit: Visit) -> Answer:
    """Draw the account of the visitor."""
    api = visit.api
    balance = await api.gateway("GET", "/billing/balance")
    usage = await api.gateway("GET", "/billing/usage", period="30d")
    before = visit.query.get("before", "")
    before = before if before.isdecimal() else ""
    statement = await api.gateway("GET", "/billing/transactions", limit=_PAGE, before=before)
    escrows = await api.gateway("GET", "/billing/escrow", limit=_ESCROWS)
    disputes: list[dict[str, Any]] = []
    if visit.is_operator:
        disputes = (await api.gateway("GET", "/disputes", limit=_PAGE))["disputes"]
    top: list[tuple[str, list[dict[str, Any]]]] = []
    if visit.is_operator:
        found = await api.get("/top", minutes=24 * 60)
        for title, kind in (
            ("Agents that earn most", "agents"),
            ("Callers that spend most", "callers"),
        ):
            paid = [one for one in await top_rows(visit, found, kind) if one["cost"]]
            top.append((title, sorted(paid, key=lambda one: -one["cost"])))
    daily = usage["daily"]
    spent, earned = [day["spent"] for day in daily], [day["earned"] for day in daily]
    context = {
        "balance": balance,
        "usage": chart(
            "Spent and earned", f"{usage['total_spent']:g}", "in 30 days", earned, spent
        ),
        "totals": usage,
        "lines": statement["transactions"],
        "escrows": escrows["escrows"],
        "more_escrows": max(0, escrows["total"] - _ESCROWS),
        "next": link("/money", before=following) if (following := statement.get("next")) else "",
        "disputes": disputes,
        "top": top,
    }
    return DrawnPage("money.html", "Money", context, live=["money"])


async def receipt(visit: Visit) -> Answer:
    """Draw the receipt of a task, and say whether the key of this gateway signed it."""
    task = quote(visit.params["task"], safe="")
    found = await visit.api.gateway("GET", f"/tasks/{task}/receipt")
    answer = await visit.api.send("GET", JWKS_PATH)
    content, problem = None, ""
    try:
        content = read_receipt(found["receipt"], answer.object.get("keys", []))
    except ValueError as error:
        problem = str(error)
    context = {"receipt": found["receipt"], "content": content, "problem": problem, "task": task}
    return DrawnPage("receipt.html", "Receipt", context)


def _task(visit: Visit) -> tuple[str, dict[str, str]]:
    """Return the task of a form: its path, and its number, since several may have one id."""
    return f"/tasks/{quote(visit.field('task'), safe='')}", {"number": visit.field("number")}


async def accept(visit: Visit) -> Answer:
    """Pay for a task that is in escrow."""
    path, number = _task(visit)
    await visit.api.gateway("POST", f"{path}/accept", **number)
    return Redirect("/money", "Accepted and paid.")


async def refund(visit: Visit) -> Answer:
    """Give back what a task brought in."""
    path, number = _task(visit)
    await visit.api.gateway("POST", f"{path}/refund", **number)
    return Redirect("/money", "Given back.")


async def dispute(visit: Visit) -> Answer:
    """Dispute a task."""
    agent = quote(visit.field("agent"), safe="")
    body: dict[str, Any] = {"taskId": visit.field("task"), "reason": visit.field("reason")}
    if visit.field("number").isdecimal():
        body["taskNumber"] = int(visit.field("number"))
    await visit.api.gateway("POST", f"/trust/{agent}/dispute", body)
    return Redirect("/money", "Disputed: an operator decides.")


async def resolve(visit: Visit) -> Answer:
    """Decide a dispute."""
    task = quote(visit.field("task"), safe="")
    body = {"outcome": visit.field("outcome")}
    await visit.api.gateway("POST", f"/disputes/{task}/resolve", body, number=visit.field("number"))
    return Redirect("/money", "Decided.")
