"""`dragoman credits`: what one has at a running gateway, what became of it, and how tasks are
settled with it.

`dragoman ledger` reads the file of a gateway, and has everybody's accounts; this asks a gateway
wherever it is, and has the account of whoever asks. Amounts are decimal text, in credits.
"""

from typing import Any

import click

from dragoman.cli.agent_said import DRY_RUN
from dragoman.cli.failures import usage
from dragoman.cli.gateway_api import GATEWAY_OPTIONS, NUMBER, GatewayApi, task_path
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import PAGE_TOKEN, own, show_page

LIMIT = own(
    "--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size (50)."
)
_KINDS = ("initial_grant", "purchase", "task_debit", "task_credit", "platform_fee", "refund")
_LABELS = {
    "balanceAfter": "Balance-After",
    "taskId": "Task",
    "taskNumber": "Number",
    "agentId": "Agent",
    "endedAt": "Ended",
    "releaseAt": "Release-At",
    "payAt": "Pay-At",
}
_NO_TASK = {"TASK_NOT_FOUND": "credits escrow"}

credits_ = Group(
    "credits",
    help="See, buy and settle credits at a gateway.",
    places={
        "balance": Place("dragoman.cli.credits:balance", "Show what you have."),
        "statement": Place("dragoman.cli.credits:statement", "Show what became of it."),
        "usage": Place("dragoman.cli.credits:usage_", "Show what was spent, day by day."),
        "packages": Place("dragoman.cli.credits:packages", "Show what is on offer."),
        "buy": Place("dragoman.cli.credits:buy", "Begin to buy a package."),
        "escrow": Place("dragoman.cli.credits:escrow", "Show which prices are in escrow."),
        "accept": Place("dragoman.cli.credits:accept", "Pay for a task that is in escrow."),
        "refund": Place("dragoman.cli.credits:refund", "Give back what a task brought in."),
        "receipt": Place("dragoman.cli.credits:receipt", "Show the signed receipt of a task."),
    },
)


def _amount(value: float) -> str:
    """Return credits as the rest of the command line writes them."""
    from dragoman.model.money import MICRO, credits_text

    return credits_text(round(value * MICRO))


def offset_of(page_token: str, command: str) -> int:
    """Return where a page begins."""
    if page_token and not (page_token.isdecimal() and page_token.isascii()):
        raise usage(f"--page-token is not one of `dragoman {command}`")
    return int(page_token or 0)


def next_token(offset: int, shown: int, total: int) -> str:
    """Return what names the next page; empty: there is none."""
    return str(offset + shown) if shown and offset + shown < total else ""


@command("balance")
@GATEWAY_OPTIONS
def balance(run: Invocation, gateway: str, admin_token: str) -> None:
    """Show what you have: free to spend, reserved for tasks, and in all."""
    found = GatewayApi(run, gateway, admin_token).ask("GET", "billing/balance")
    names = {"available": "available", "held": "held", "total": "balance"}
    _show(run, {ours: _amount(found[theirs]) for ours, theirs in names.items()})


@command("statement")
@own(
    "--kind",
    type=click.Choice(_KINDS),
    default=None,
    in_environment=False,
    metavar="<kind>",
    help=f"Only lines of this kind: {', '.join(_KINDS)}.",
)
@LIMIT
@PAGE_TOKEN
@GATEWAY_OPTIONS
def statement(
    run: Invocation, kind: str | None, limit: int, page_token: str, gateway: str, admin_token: str
) -> None:
    """Show what became of your credits, the latest first."""
    offset = offset_of(page_token, "credits statement")
    query = {"type": kind, "limit": limit, "offset": offset}
    api = GatewayApi(run, gateway, admin_token)
    found = api.ask("GET", "billing/transactions", query=query)
    items = [_line(one) for one in found["transactions"]]
    token = next_token(offset, len(items), found["total"])
    show_page(run, items, token, lambda item: _fields(run, item))


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
@own(
    "--period",
    type=click.Choice(["7d", "30d", "90d"]),
    default="30d",
    in_environment=False,
    metavar="<7d|30d|90d>",
    help="Of which days (30d).",
)
@GATEWAY_OPTIONS
def usage_(run: Invocation, period: str, gateway: str, admin_token: str) -> None:
    """Show what you spent and earned, day by day and in all."""
    api = GatewayApi(run, gateway, admin_token)
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
    _fields(run, total)


@command("packages")
@GATEWAY_OPTIONS
def packages(run: Invocation, gateway: str, admin_token: str) -> None:
    """Show what is on offer: so many credits for so many US dollars."""
    items = _packages(GatewayApi(run, gateway, admin_token))
    show_page(run, items, "", lambda item: _fields(run, item))


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
@GATEWAY_OPTIONS
def buy(run: Invocation, package: str, dry_run: bool, gateway: str, admin_token: str) -> None:
    """Begin to buy a package; you pay at the address that is printed, and nothing before.

    `dragoman credits packages` shows what there is.
    """
    api = GatewayApi(run, gateway, admin_token, {"VALIDATION_ERROR": "credits packages"})
    if dry_run:
        offers = {one["package"]: one for one in _packages(api)}
        if package not in offers:
            raise usage(f"{package} is not on offer: {', '.join(offers)}")
        _show(run, {"result": "would be bought", **offers[package]})
        return
    found = api.ask("POST", "billing/checkout", {"package": package})
    _show(run, {"package": package, "checkout": found["checkoutId"], "payAt": found["url"]})
    run.out.note("Hint", api.command("credits", "balance"))


# Of single tasks


@command("escrow")
@click.argument("task", metavar="[TASK]", required=False, help="The id of one task.")
@NUMBER
@LIMIT
@PAGE_TOKEN
@GATEWAY_OPTIONS
def escrow(
    run: Invocation,
    task: str | None,
    number: int | None,
    limit: int,
    page_token: str,
    gateway: str,
    admin_token: str,
) -> None:
    """Show completed tasks whose price is in escrow: those you asked for, and those your agents
    did. With TASK, where the price of that one is."""
    api = GatewayApi(run, gateway, admin_token, _NO_TASK)
    if task:
        _show(run, _kept(api.ask("GET", task_path(task, "escrow"), query={"number": number})))
        return
    offset = offset_of(page_token, "credits escrow")
    found = api.ask("GET", "billing/escrow", query={"limit": limit, "offset": offset})
    items = [_kept(one) for one in found["escrows"]]
    token = next_token(offset, len(items), found["total"])
    show_page(run, items, token, lambda item: _fields(run, item))


def _kept(one: dict[str, Any]) -> dict[str, Any]:
    item = {**one, "amount": _amount(one["amount"]), "escrow": one["escrow"] or "none"}
    return {name: value for name, value in item.items() if value is not None}


@command("accept")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@DRY_RUN
@GATEWAY_OPTIONS
def accept(
    run: Invocation, task: str, number: int | None, dry_run: bool, gateway: str, admin_token: str
) -> None:
    """Pay for a completed task of yours that is in escrow, before its time. Nobody takes it back:
    `dragoman trust dispute` is the other way. One that is paid stays as it is."""
    _settle(run, GatewayApi(run, gateway, admin_token, _NO_TASK), "accept", task, number, dry_run)


@command("refund")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@DRY_RUN
@GATEWAY_OPTIONS
def refund(
    run: Invocation, task: str, number: int | None, dry_run: bool, gateway: str, admin_token: str
) -> None:
    """Give back what a task brought in that an agent of yours did: out of the escrow, or of what
    you have. Once; done again, nothing changes."""
    _settle(run, GatewayApi(run, gateway, admin_token, _NO_TASK), "refund", task, number, dry_run)


_DONE = {"accept": ("paid", "would be paid"), "refund": ("given back", "would be given back")}


def _settle(
    run: Invocation, api: GatewayApi, verb: str, task: str, number: int | None, dry_run: bool
) -> None:
    done, would = _DONE[verb]
    query = {"number": number}
    if dry_run:
        kept = _kept(api.ask("GET", task_path(task, "escrow"), query=query))
        _show(run, {"result": would, **kept})
        return
    found = api.ask("POST", task_path(task, verb), query=query)
    item = {"result": done, "taskId": found["taskId"], "amount": _amount(found["amount"])}
    _show(run, item | ({"escrow": found["escrow"]} if found.get("escrow") else {}))


@command("receipt")
@click.argument("task", metavar="TASK", help="The id of the task.")
@NUMBER
@GATEWAY_OPTIONS
def receipt(run: Invocation, task: str, number: int | None, gateway: str, admin_token: str) -> None:
    """Show the signed receipt of a task that is settled: a JWS, whose key the gateway publishes at
    /.well-known/jwks.json."""
    api = GatewayApi(run, gateway, admin_token, _NO_TASK)
    _show(run, api.ask("GET", task_path(task, "receipt"), query={"number": number}))


def _show(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        _fields(run, item)


def _fields(run: Invocation, item: dict[str, Any]) -> None:
    for name, value in item.items():
        if value != "":
            run.out.field(_LABELS.get(name, name.capitalize()), str(value))
