"""Escrow at a served gateway: what its REST API and the commands on its file say and do."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.clock import SkippingClock
from harness.commands import invoke

from dragoman.gateway.app import gateway_of
from tests.gateway.api.api_site import GatewaySite, headers_of, owners

NOBODY = "01a1e487-0000-7000-8000-000000000000"
HOURS = 72 * 3600
Market = tuple[GatewaySite, dict[str, str], dict[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
async def market(folder: Path) -> AsyncIterator[Market]:
    """A gateway that keeps ten credits of a buyer for three days after a seller's agent is done."""
    async with owners(folder, price=10, escrow=HOURS) as found:
        yield found


@pytest.fixture
async def clock(market: Market) -> AsyncIterator[SkippingClock]:
    """What the gateway takes for the time, where it pays and where disputes come in."""
    site, _, _ = market
    gateway = gateway_of(site.app)
    clock = SkippingClock()
    before = gateway.ledger._now, gateway.trust._now
    gateway.ledger._now = gateway.trust._now = clock
    yield clock
    gateway.ledger._now, gateway.trust._now = before
    assert (await gateway.ledger.store.verify()).differences == []
    await gateway.trust.digest()
    assert (await gateway.trust.verify()).problem == ""


async def done(market: Market, **more: Any) -> dict[str, Any]:
    """Have a task of the buyer's done."""
    site, _, buyer = market
    body = {"assignedAgentId": site.agent, "title": "a task", **more}
    made = await site.ask("POST", "/tasks", body, status=202, headers=buyer)
    return (await site.events(made["id"], **buyer))[-1].data


async def read(market: Market, task_id: str) -> tuple[str, float | None]:
    """Return where a task's price is, and what it cost."""
    site, _, buyer = market
    found = await site.ask("GET", f"/tasks/{task_id}", headers=buyer)
    assert found["status"] == "completed"
    assert ("escrow_release_at" in found) == (found["escrow"] == "delivered")
    return found["escrow"], found["actual_cost_credits"]


async def moved(market: Market, before: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return what changed: what the buyer has, and has reserved, and what the seller has."""
    now = await both(market)
    return (
        now[0]["balance"] - before[0]["balance"],
        now[0]["held"] - before[0]["held"],
        now[1]["balance"] - before[1]["balance"],
    )


async def both(market: Market) -> list[dict[str, Any]]:
    site, seller, buyer = market
    return [await site.ask("GET", "/billing/balance", headers=who) for who in (buyer, seller)]


async def test_a_task_is_delivered_and_paid_three_days_later(
    market: Market, clock: SkippingClock
) -> None:
    site, _, buyer = market
    before = await both(market)
    task = await done(market)
    assert task["escrow"] == "delivered" and task["actual_cost_credits"] is None
    assert task["escrow_release_at"] > task["completed_at"]
    assert await moved(market, before) == (0, 10, 0)
    early = await site.ask("GET", f"/tasks/{task['id']}/receipt", status=400, headers=buyer)
    assert "escrow" in early["message"]
    clock.passed = HOURS - 60
    await gateway_of(site.app).ledger.sweep()
    assert await read(market, task["id"]) == ("delivered", None)
    clock.passed = HOURS + 1
    await gateway_of(site.app).ledger.sweep()
    assert await read(market, task["id"]) == ("released", 10)
    assert await moved(market, before) == (-10, 0, 9.5)
    await site.ask("GET", f"/tasks/{task['id']}/receipt", headers=buyer)
    lines = await site.ask("GET", "/billing/transactions?type=task_debit", headers=buyer)
    latest = lines["transactions"][0]
    assert (latest["reference_id"], latest["escrow"]) == (task["id"], "released")
    assert "not disputed in time" in latest["description"]


async def test_its_requester_accepts_it_and_nobody_else(
    market: Market, clock: SkippingClock
) -> None:
    site, seller, buyer = market
    before = await both(market)
    task = await done(market)
    path = f"/tasks/{task['id']}/accept"
    for who in (seller, headers_of("operator")):
        error = await site.ask("POST", path, status=404, headers=who)
        assert error == {"code": "TASK_NOT_FOUND", "message": "Task not found"}
    await site.ask("POST", f"/tasks/{NOBODY}/accept", status=404, headers=buyer)
    assert await moved(market, before) == (0, 10, 0)
    for _ in range(2):
        paid = await site.ask("POST", path, headers=buyer)
        assert paid == {"taskId": task["id"], "amount": 10, "escrow": "released"}
    assert await moved(market, before) == (-10, 0, 9.5)


async def test_what_failed_is_given_back_at_once_and_a_rating_moves_no_money(
    market: Market, clock: SkippingClock
) -> None:
    site, _, buyer = market
    before = await both(market)
    failed = await done(market, input={"do": "fail"})
    assert (failed["escrow"], failed["actual_cost_credits"]) == ("refunded", 0)
    await site.ask("POST", f"/tasks/{failed['id']}/accept", status=400, headers=buyer)
    assert await moved(market, before) == (0, 0, 0)
    task = await done(market)
    body = {"taskId": task["id"], "rating": 5}
    await site.ask("POST", f"/trust/{site.agent}/rate", body, status=201, headers=buyer)
    assert await read(market, task["id"]) == ("delivered", None)
    assert await moved(market, before) == (0, 10, 0)
    await site.ask("POST", f"/tasks/{task['id']}/accept", headers=buyer)


@pytest.mark.parametrize(
    ("outcome", "state", "cost", "change"),
    [("upheld", "refunded", 0, (0, 0, 0)), ("rejected", "resolved", 10, (-10, 0, 9.5))],
)
async def test_an_operator_decides_on_the_file_and_the_money_moves(
    market: Market,
    clock: SkippingClock,
    folder: Path,
    outcome: str,
    state: str,
    cost: float,
    change: tuple[float, float, float],
) -> None:
    site, seller, buyer = market
    before = await both(market)
    task = await done(market)
    body = {"taskId": task["id"], "reason": "It did nothing."}
    await site.ask("POST", f"/trust/{site.agent}/dispute", body, status=201, headers=buyer)
    clock.passed = HOURS + 1
    await gateway_of(site.app).ledger.sweep()
    assert await read(market, task["id"]) == ("disputed", None)
    refused = await site.ask("POST", f"/tasks/{task['id']}/accept", status=400, headers=buyer)
    assert "disputed" in refused["message"]
    assert await moved(market, before) == (0, 10, 0)
    store = folder / "gateway.db"
    assert invoke("ledger", "verify", "--store", store).exit_code == 0
    decided = invoke("trust", "resolve", task["id"], outcome, "--store", store, "--audit", "off")
    assert decided.exit_code == 0, decided.output
    assert await read(market, task["id"]) == (state, cost)
    assert await moved(market, before) == change
    told = invoke("ledger", "statement", "--owner", "token:buyer", "--holds", "--store", store)
    assert f"Escrow: {state}" in told.stdout
    for who in (seller, buyer):
        await site.ask("GET", f"/tasks/{task['id']}/receipt", headers=who)


async def test_who_did_it_gives_it_back_out_of_the_escrow(
    market: Market, clock: SkippingClock
) -> None:
    site, seller, buyer = market
    before = await both(market)
    task = await done(market)
    path = f"/tasks/{task['id']}/refund"
    await site.ask("POST", path, status=404, headers=buyer)
    for _ in range(2):
        given = await site.ask("POST", path, headers=seller)
        assert given == {"taskId": task["id"], "amount": 10}
    assert await read(market, task["id"]) == ("refunded", 0)
    assert await moved(market, before) == (0, 0, 0)


async def dispute(market: Market, task: dict[str, Any]) -> None:
    site, _, buyer = market
    body = {"taskId": task["id"], "reason": "It did nothing."}
    await site.ask("POST", f"/trust/{site.agent}/dispute", body, status=201, headers=buyer)


@pytest.mark.parametrize(
    ("outcome", "state", "change"),
    [("upheld", "refunded", (0, 0, 0)), ("rejected", "resolved", (-10, 0, 9.5))],
)
async def test_an_operator_decides_over_the_api_and_the_money_moves(
    market: Market,
    clock: SkippingClock,
    outcome: str,
    state: str,
    change: tuple[float, float, float],
) -> None:
    site, seller, buyer = market
    operator = headers_of("operator")
    before = await both(market)
    task = await done(market)
    await dispute(market, task)
    # The oldest first.
    open_ = (await site.ask("GET", "/disputes?limit=100", headers=operator))["disputes"][-1]
    assert (open_["taskId"], open_["taskNumber"]) == (task["id"], task["number"])
    assert (open_["agentName"], open_["reason"]) == ("echo", "It did nothing.")
    path, decision = f"/disputes/{task['id']}/resolve", {"outcome": outcome, "note": "looked at it"}
    for who in (seller, buyer):
        for verb, place, body in (("GET", "/disputes", None), ("POST", path, decision)):
            error = await site.ask(verb, place, body, status=403, headers=who)
            assert error["code"] == "FORBIDDEN"
    await site.ask("POST", path, {"outcome": "maybe"}, status=400, headers=operator)
    other = f"{path}?number={task['number'] + 1}"
    await site.ask("POST", other, decision, status=404, headers=operator)
    assert await read(market, task["id"]) == ("disputed", None)
    decided = await site.ask("POST", path, decision, headers=operator)
    assert decided == {
        "taskId": task["id"],
        "taskNumber": task["number"],
        "outcome": outcome,
        "escrow": state,
    }
    assert await moved(market, before) == change
    left = await site.ask("GET", "/disputes?limit=100", headers=operator)
    assert task["id"] not in [one["taskId"] for one in left["disputes"]]
    assert left["total"] == len(left["disputes"])
    again = await site.ask("POST", path, decision, status=404, headers=operator)
    assert again == {"code": "NOT_FOUND", "message": "No open dispute is about this task"}
    assert await moved(market, before) == change


async def test_both_sides_see_where_the_price_is(market: Market, clock: SkippingClock) -> None:
    site, seller, buyer = market
    operator = headers_of("operator")
    first, second = await done(market), await done(market)
    await dispute(market, second)
    for who, side in ((buyer, "requester"), (seller, "payee"), (operator, "operator")):
        found = await site.ask("GET", f"/tasks/{first['id']}/escrow", headers=who)
        assert found == {
            "taskId": first["id"],
            "taskNumber": first["number"],
            "agentId": site.agent,
            "side": side,
            "amount": 10,
            "escrow": "delivered",
            "endedAt": first["completed_at"],
            "releaseAt": first["escrow_release_at"],
        }
        listed = await site.ask("GET", "/billing/escrow", headers=who)
        # An operator has what is its own.
        kept = [(second["id"], "disputed"), (first["id"], "delivered")]
        expected = [] if side == "operator" else kept
        shown = [(one["taskId"], one["escrow"]) for one in listed["escrows"]]
        assert shown[:2] == expected and listed["total"] == len(shown)
    page = await site.ask("GET", "/billing/escrow?limit=1", headers=seller)
    assert [one["taskId"] for one in page["escrows"]] == [second["id"]] and page["total"] >= 2
    after = f"/billing/escrow?limit=1&after={page['next']}"
    page = await site.ask("GET", after, headers=seller)
    assert [one["taskId"] for one in page["escrows"]] == [first["id"]] and page["total"] >= 2
    await site.ask("POST", f"/tasks/{first['id']}/accept", headers=buyer)
    await site.ask("POST", f"/tasks/{second['id']}/refund", headers=seller)
    left = (await site.ask("GET", "/billing/escrow", headers=seller))["escrows"]
    assert not {first["id"], second["id"]} & {one["taskId"] for one in left}
    ended = await site.ask("GET", f"/tasks/{first['id']}/escrow", headers=seller)
    assert (ended["escrow"], ended["releaseAt"]) == ("released", None)
    await site.ask("GET", f"/tasks/{NOBODY}/escrow", status=404, headers=buyer)
