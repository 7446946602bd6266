"""Money: what one has, what was spent and earned, what is in escrow, and disputes for operators."""

from typing import Any
from urllib.parse import quote

from dragoman.console.charts import chart
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link

_PAGE = 50


async def show(visit: Visit) -> Answer:
    """Draw the account of the visitor."""
    api = visit.api
    balance = await api.gateway("GET", "/billing/balance")
    usage = await api.gateway("GET", "/billing/usage", period="30d")
    offset = int(number) if (number := visit.query.get("from", "")).isdecimal() else 0
    lines = await api.gateway("GET", "/billing/transactions", limit=_PAGE, offset=offset)
    disputes: list[dict[str, Any]] = []
    if visit.is_operator:
        disputes = (await api.gateway("GET", "/disputes", limit=_PAGE))["disputes"]
    daily = usage["daily"]
    spent, earned = [day["spent"] for day in daily], [day["earned"] for day in daily]
    is_more = offset + _PAGE < lines["total"]
    context = {
        "balance": balance,
        "usage": chart(
            "Spent and earned", f"{usage['total_spent']:g}", "in 30 days", earned, spent
        ),
        "totals": usage,
        "lines": lines["transactions"],
        "next": link("/money", **{"from": offset + _PAGE}) if is_more else "",
        "disputes": disputes,
    }
    return DrawnPage("money.html", "Money", context, live=["money"])


async def refund(visit: Visit) -> Answer:
    """Give back what a task brought in."""
    await visit.api.gateway("POST", f"/tasks/{quote(visit.field('task'), safe='')}/refund")
    return Redirect("/money", "Given back.")


async def resolve(visit: Visit) -> Answer:
    """Decide a dispute."""
    task = quote(visit.field("task"), safe="")
    outcome = visit.field("outcome")
    await visit.api.gateway("POST", f"/disputes/{task}/resolve", {"outcome": outcome})
    return Redirect("/money", "Decided.")
