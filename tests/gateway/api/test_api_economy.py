"""Trust and credits over the gateway's REST API."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.gateway.app import gateway_of
from dragoman.gateway.money.payments import FakeProvider
from dragoman.stores.interface.ledger import Checkout
from tests.gateway.api.api_site import SECRET, GatewaySite, owners

NOBODY = "01a1e487-0000-7000-8000-000000000000"
Market = tuple[GatewaySite, dict[str, str], dict[str, str]]


@pytest.fixture(scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """A gateway where a seller's agent takes ten credits of a buyer for each task."""
    async with owners(tmp_path_factory.mktemp("gateway"), price=10) as found:
        yield found


async def done(market: Market, **more: Any) -> dict[str, Any]:
    """Have a task of the buyer's done."""
    site, _, buyer = market
    body = {"assignedAgentId": site.agent, "title": "a task", **more}
    made = await site.ask("POST", "/tasks", body, status=202, headers=buyer)
    return (await site.events(made["id"], **buyer))[-1].data


async def test_a_completed_task_is_paid_and_the_fee_is_kept(market: Market) -> None:
    site, seller, buyer = market
    before = await site.ask("GET", "/billing/balance", headers=buyer)
    earned = await site.ask("GET", "/billing/balance", headers=seller)
    task = await done(market)
    assert task["actual_cost_credits"] == 10
    after = await site.ask("GET", "/billing/balance", headers=buyer)
    assert before["balance"] - after["balance"] == 10 and after["held"] == 0
    assert after["available"] == after["balance"]
    now = await site.ask("GET", "/billing/balance", headers=seller)
    assert now["balance"] - earned["balance"] == 9.5
    listed = await site.ask("GET", "/billing/transactions?type=task_debit", headers=buyer)
    latest = listed["transactions"][0]
    assert (latest["type"], latest["amount"]) == ("task_debit", -10)
    assert latest["reference_id"] == task["id"]
    assert latest["balance_after"] == after["balance"]


async def test_a_failed_task_costs_nothing(market: Market) -> None:
    site, _, buyer = market
    before = await site.ask("GET", "/billing/balance", headers=buyer)
    task = await done(market, input={"do": "fail"})
    assert task["status"] == "failed" and task["actual_cost_credits"] == 0
    assert await site.ask("GET", "/billing/balance", headers=buyer) == before


async def test_a_statement_is_read_page_by_page_and_is_ones_own(market: Market) -> None:
    site, _, buyer = market
    await done(market)
    whole = await site.ask("GET", "/billing/transactions?limit=100", headers=buyer)
    page = await site.ask("GET", "/billing/transactions?limit=1&offset=1", headers=buyer)
    assert page["transactions"] == whole["transactions"][1:2]
    first = whole["transactions"][0]["id"]
    rest = await site.ask("GET", f"/billing/transactions?before={first}", headers=buyer)
    assert rest["transactions"] == whole["transactions"][1:] and rest["transactions"]
    assert page["total"] == whole["total"]
    assert {one["type"] for one in whole["transactions"]} == {"initial_grant", "task_debit"}
    for wrong in ("type=theft", "limit=101", "offset=-1"):
        error = await site.ask("GET", f"/billing/transactions?{wrong}", status=400, headers=buyer)
        assert error["code"] == "VALIDATION_ERROR"


async def test_usage_is_told_day_by_day(market: Market) -> None:
    site, seller, buyer = market
    await done(market)
    for period, days in (("7d", 7), ("30d", 30), ("90d", 90)):
        used = await site.ask("GET", f"/billing/usage?period={period}", headers=buyer)
        assert len(used["daily"]) == days and used["period"] == period
    assert used["total_spent"] == sum(day["spent"] for day in used["daily"]) >= 10
    assert (await site.ask("GET", "/billing/usage", headers=seller))["total_earned"] >= 9.5
    await site.ask("GET", "/billing/usage?period=1d", status=400, headers=buyer)


async def test_credits_are_bought_and_a_payment_counts_once(market: Market) -> None:
    site, _, buyer = market
    offered = (await site.ask("GET", "/billing/packages", headers=buyer))["packages"]
    assert [(one["id"], one["credits"], one["price_cents"]) for one in offered] == [
        ("starter", 1000, 1000),
        ("pro", 5000, 4000),
        ("enterprise", 25000, 15000),
    ]
    before = await site.ask("GET", "/billing/balance", headers=buyer)
    begun = await site.ask(
        "POST", "/billing/checkout", {"package": "pro"}, status=201, headers=buyer
    )
    assert begun["checkoutId"] in begun["url"]
    provider = FakeProvider(SECRET.encode())
    checkout = Checkout(begun["checkoutId"], "token:buyer", "pro", 5_000_000_000, 4000, 0)
    body, headers = provider.webhook(checkout, event="evt-1")
    for credited in (True, False):
        told = await site.http.post("/api/v1/billing/webhook", content=body, headers=headers)
        assert told.status_code == 200
        assert told.json()["data"] == {"received": True, "credited": credited}
    after = await site.ask("GET", "/billing/balance", headers=buyer)
    assert after["balance"] - before["balance"] == 5000
    # Whoever cannot sign has paid nothing.
    forged, signed = FakeProvider(b"another secret").webhook(checkout, event="evt-2")
    told = await site.http.post("/api/v1/billing/webhook", content=forged, headers=signed)
    assert told.status_code == 403 and told.json()["error"]["code"] == "FORBIDDEN"
    error = await site.ask(
        "POST", "/billing/checkout", {"package": "gold"}, status=400, headers=buyer
    )
    assert error["code"] == "VALIDATION_ERROR"


async def test_both_sides_of_a_task_get_its_receipt_and_nobody_else(market: Market) -> None:
    site, seller, buyer = market
    task = await done(market)
    for side in (seller, buyer):
        found = await site.ask("GET", f"/tasks/{task['id']}/receipt", headers=side)
        assert found["taskId"] == task["id"] and found["receipt"].count(".") == 2
    missing = await site.ask("GET", f"/tasks/{NOBODY}/receipt", status=404, headers=buyer)
    assert missing == {"code": "TASK_NOT_FOUND", "message": "Task not found"}


async def test_who_earned_it_gives_it_back_once(market: Market) -> None:
    site, seller, buyer = market
    task = await done(market)
    before = await site.ask("GET", "/billing/balance", headers=buyer)
    path = f"/tasks/{task['id']}/refund"
    assert (await site.ask("POST", path, status=404, headers=buyer))["code"] == "TASK_NOT_FOUND"
    for _ in range(2):
        given = await site.ask("POST", path, headers=seller)
        assert given == {"taskId": task["id"], "amount": 10}
    after = await site.ask("GET", "/billing/balance", headers=buyer)
    assert after["balance"] - before["balance"] == 10


async def test_how_an_agent_stands_is_told_and_explained(market: Market) -> None:
    site, _, buyer = market
    await done(market)
    await gateway_of(site.app).trust.digest()
    found = await site.ask("GET", f"/trust/{site.agent}", headers=buyer)
    assert found["agentId"] == site.agent
    assert found["badge"] in ("Verified Elite", "Trusted", "Established", "New")
    assert set(found["components"]) == {"reliability", "speed", "quality", "tenure"}
    stats = found["taskStats"]
    assert stats["total"] == stats["completed"] + stats["failed"] >= 1
    assert found["explanation"]
    history = await site.ask("GET", f"/trust/{site.agent}/history?limit=1", headers=buyer)
    assert history["limit"] == 1 and len(history["events"]) == 1 <= history["total"]
    event = history["events"][0]
    assert event["agentId"] == site.agent and event["createdAt"].endswith("Z")
    for path in (f"/trust/{NOBODY}", f"/trust/{NOBODY}/history"):
        error = await site.ask("GET", path, status=404, headers=buyer)
        assert error["code"] == "AGENT_NOT_FOUND"


async def test_only_the_requester_rates_a_completed_task_and_once(market: Market) -> None:
    site, seller, buyer = market
    task = await done(market)
    failed = await done(market, input={"do": "fail"})
    path = f"/trust/{site.agent}/rate"

    async def refused(task_id: str, who: dict[str, str], **more: Any) -> None:
        body = {"taskId": task_id, "rating": 5, **more}
        error = await site.ask("POST", path, body, status=400, headers=who)
        assert error["code"] == "VALIDATION_ERROR"

    await refused(task["id"], seller)
    await refused(NOBODY, buyer)
    await refused(failed["id"], buyer)
    await refused(task["id"], buyer, rating=6)
    await refused(task["id"], buyer, rating=4.5)
    await refused(task["id"], buyer, comment="x" * 1001)
    body = {"taskId": task["id"], "rating": 4, "comment": "good"}
    taken = await site.ask("POST", path, body, status=201, headers=buyer)
    assert taken["taskId"] == task["id"]
    await refused(task["id"], buyer)
    found = await site.ask("GET", f"/trust/{site.agent}", headers=buyer)
    assert found["ratingStats"]["count"] >= 1
    other = {"endpoint": site.agent_url, "name": "Another"}
    another = await site.ask("POST", "/agents", other, status=201, headers=seller)
    second = await done(market)
    body = {"taskId": second["id"], "rating": 5}
    error = await site.ask("POST", f"/trust/{another['id']}/rate", body, status=400, headers=buyer)
    assert error["code"] == "VALIDATION_ERROR"


async def test_a_task_that_was_not_done_is_disputed_by_its_requester(market: Market) -> None:
    site, seller, buyer = market
    task = await done(market)
    path = f"/trust/{site.agent}/dispute"
    body = {"taskId": task["id"], "reason": "It did nothing."}
    error = await site.ask("POST", path, body, status=400, headers=seller)
    assert error["code"] == "VALIDATION_ERROR"
    await site.ask("POST", path, body, status=201, headers=buyer)
    history = await site.ask("GET", f"/trust/{site.agent}/history", headers=buyer)
    assert history["events"][0]["eventType"] == "dispute_opened"
