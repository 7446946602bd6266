"""`dragoman credits`: the caller's account at a running gateway, and how tasks are settled.

`dragoman ledger` reads the file of a gateway, with all accounts; this asks a gateway, for the
account of the caller. Amounts are decimal text, in credits.
"""

from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.gateway.agent_options import DRY_RUN
from dragoman.cli.gateway.gateway_api import (
    LIMIT,
    NUMBER,
    GatewayApi,
    asks_gateway,
    task_path,
)
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.ledger import STATEMENT
from dragoman.cli.own_options import PAGE_TOKEN, show_page, typed_option

_KINDS = ("initial_grant", "purchase", "task_debit", "task_credit", "platform_fee", "refund")
_LABELS = {"taskId": "Task", "taskNumber": "Number", "agentId": "Agent", "endedAt": "Ended"}
_NO_TASK = {"TASK_NOT_FOUND": "credits escrow"}

credits_ = Group(
    "credits",
    help="Show, buy and settle credits at a gateway.",
    places={
        "balance": CommandPlace("gateway.credits:balance", "Show your balance."),
        "statement": CommandPlace("gateway.credits:statement", "Show the entries of your account."),
        "usage": CommandPlace("gateway.credits:usage_", "Show what was spent, day by day."),
        "packages": CommandPlace("gateway.credits:packages", "Show the packages on offer."),
        "buy": CommandPlace("gateway.credits:buy", "Buy a package."),
        "escrow": CommandPlace("gateway.credits:escrow", "Show which prices are in escrow."),
        "accept": CommandPlace("gateway.credits:accept", "Pay for a task that is in escrow."),
        "refund": CommandPlace("gateway.credits:refund", "Give back the price of a task."),
        "receipt": CommandPlace("gateway.credits:receipt", "Show the signed receipt of a task."),
    },
)


def _amount(value: float) -> str:
    """Return credits as the rest of the command line writes them."""
    from dragoman.model.money import MICRO, credits_text

    return credits_text(round(value * MICRO))


@command("balance")
@asks_gateway()
def balance(run: Invocation, api: GatewayApi) -> None:
    """Show your balance: available, held for tasks, and in all."""
    found = api.ask("GET", "billing/balance")
    names = {"available": "available", "held": "held", "total": "balance"}
    run.out.item({ours: _amount(found[theirs]) for ours, theirs in names.items()})


@command("statement")
@typed_option(
    "--kind",
    type=click.Choice(_KINDS),
    default=None,
    metavar="<kind>",
    help=f"Only lines of this kind: {', '.join(_KINDS)}.",
)
@LIMIT
@PAGE_TOKEN
@asks_gateway()
def statement(
    run: Invocation, api: GatewayApi, kind: str | None, limit: int, page_token: str
) -> None:
    """Show the entries of your account, the latest first."""
    path = "billing/transactions"
    found, token = api.page(
        path, "transactions", page_token, {"type": kind, "limit": limit}, cursor="before"
    )
    show_page(
        run,
        [_line(one) for one in found],
        token,
        lambda item: run.out.fields(item, _LABELS),
        columns=STATEMENT,
        empty="nothing was paid, earned or bought by your account",
    )


def _line(one: dict[str, Any]) -> dict[str, Any]:
    item = {
        "time": one["created_at"],
        "kind": one["type"],
        "amount": _amount(one["amount"]),
        "balanceAfter": _amount(one["balance_after"]),
        "reference": one["reference_id"],
        "taskNumber": one.get("task_number"),
        "memo": one["description"],
        "escrow": one.get("escrow"),
    }
    return {name: value for name, value in item.items() if value is not None}


@command("usage")
@typed_option(
    "--period", type=click.Choice(["7d", "30d", "90d"]), default="30d", help="Of which days (30d)."
)
@asks_gateway()
def usage_(run: Invocation, api: GatewayApi, period: str) -> None:
    """Show what you spent and earned, day by day and in all."""
    found = api.ask("GET", "billing/usage", query={"period": period})
    days = [
        {"date": day["date"], "spent": _amount(day["spent"]), "earned": _amount(day["earned"])}
        for day in found["daily"]
    ]
    total = {"spent": _amount(found["total_spent"]), "earned": _amount(found["total_earned"])}
    if run.out.is_json:
        run.out.json({"period": period, "days": days, **total})
        return
    for day in days:
        run.out.field("Day", f"{day['date']}: spent {day['spent']}, earned {day['earned']}")
    run.out.fields(total)


@command("packages")
@asks_gateway()
def packages(run: Invocation, api: GatewayApi) -> None:
    """Show the packages on offer: credits and their price in US dollars."""
    show_page(run, _packages(api), "")


def _packages(api: GatewayApi) -> list[dict[str, Any]]:
    return [
        {
            "package": one["id"],
            "credits": _amount(one["credits"]),
            "price": f"{one['price_cents'] / 100:.2f} USD",
        }
        for one in api.ask("GET", "billing/packages")["packages"]
    ]


@command("buy")
@click.argument("package", metavar="PACKAGE", help="As `dragoman credits packages` names it.")
@DRY_RUN
@asks_gateway({"VALIDATION_ERROR": "credits packages"})
def buy(run: Invocation, api: GatewayApi, package: str, dry_run: bool) -> None:
    """Buy a package. You pay at the address that is printed, not before.

    `dragoman credits packages` shows what there is.
    """
    if dry_run:
        offers = {one["package"]: one for one in _packages(api)}
        if package not in offers:
            raise usage(f"{package} is not on offer: {', '.join(offers)}")
        run.out.item({"result": "would be bought", **offers[package]})
        return
    found = api.ask("POST", "billing/checkout", {"package": package})
    run.out.item({"package": package, "checkout": found["checkoutId"], "payAt": found["url"]})
    run.out.note("Hint", api.command("credits", "balance"))


# Of single tasks


@command("escrow")
@click.argument("task", metavar="[TASK]", required=False, help="The id of one task.")
@NUMBER
@LIMIT
@PAGE_TOKEN
@asks_gateway(_NO_TASK)
def escrow(
    run: Invocation,
    api: GatewayApi,
    task: str | None,
    number: int | None,
    limit: int,
    page_token: str,
) -> None:
    """Show completed tasks whose price is in escrow: those you asked for, and those your agents
    did. With TASK, where the price of that one is."""
    if task:
        found = api.ask("GET", task_path(task, "escrow"), query={"number": number})
        run.out.item(_escrow_item(found), _LABELS)
        return
    listed, token = api.page("billing/escrow", "escrows", page_token, {"limit": limit})
    items = [_escrow_item(one) for one in listed]
    show_page(run, items, token, lambda item: run.out.fields(item, _LABELS))


def _escrow_item(one: dict[str, Any]) -> dict[str, Any]:
    item = {**one, "amount": _amount(one["amount"]), "escrow": one["escrow"] or "none"}
    return {name: value for name, value in item.items() if value is not None}


@command("accept")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@DRY_RUN
@asks_gateway(_NO_TASK)
def accept(run: Invocation, api: GatewayApi, task: str, number: int | None, dry_run: bool) -> None:
    """Pay for a completed task of yours that is in escrow, before its time. This cannot be undone;
    `dragoman trust dispute` is the alternative. A task that is paid stays as it is."""
    _settle(run, api, "accept", task, number, dry_run)


@command("refund")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@DRY_RUN
@asks_gateway(_NO_TASK)
def refund(run: Invocation, api: GatewayApi, task: str, number: int | None, dry_run: bool) -> None:
    """Give back the price of a task that an agent of yours did, from escrow or from your balance.
    Repeating it changes nothing."""
    _settle(run, api, "refund", task, number, dry_run)


_DONE = {"accept": ("paid", "would be paid"), "refund": ("given back", "would be given back")}


def _settle(
    run: Invocation, api: GatewayApi, verb: str, task: str, number: int | None, dry_run: bool
) -> None:
    done, would = _DONE[verb]
    query = {"number": number}
    if dry_run:
        item = _escrow_item(api.ask("GET", task_path(task, "escrow"), query=query))
        run.out.item({"result": would, **item}, _LABELS)
        return
    found = api.ask("POST", task_path(task, verb), query=query)
    item = {"result": done, "taskId": found["taskId"], "amount": _amount(found["amount"])}
    run.out.item(item | ({"escrow": found["escrow"]} if found.get("escrow") else {}), _LABELS)


@command("receipt")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@asks_gateway(_NO_TASK)
def receipt(run: Invocation, api: GatewayApi, task: str, number: int | None) -> None:
    """Show the signed receipt of a task that is settled: a JWS, whose key the gateway publishes at
    /.well-known/jwks.json."""
    run.out.item(api.ask("GET", task_path(task, "receipt"), query={"number": number}), _LABELS)
