"""Guards on who may do what: keys of agents and their offspring, principals, money by number."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman.config import EgressSettings, HttpSettings, SecuritySettings, Settings, StoreSettings
from dragoman.gateway import private_agents as private_agents_room
from dragoman.gateway.app import gateway_app
from dragoman.gateway.money import ledger as ledger_module
from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.gateway.money.task_reference import AmbiguousTask, TaskReference
from dragoman.gateway.registry.registered import Registered
from dragoman.model import operations as ops
from dragoman.model.identity import Caller, MessageId, Principal, Scope, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.money import MICRO
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.server.operator.viewing import Viewer
from dragoman.stores.interface import Survey
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from proof.access import tenancy_agent
from proof.access.bindings import BINDINGS, AppLine, request
from proof.access.callers import CALLERS, KEYS, OWNER, UNBOUND, write_keys
from proof.access.route_cells import RouteScene, gather
from proof.access.route_table import COLUMNS, RouteRow, of_app
from proof.access.route_things import GatewayThings, Things
from proof.money.spenders import AGENT, creation, ending, outcome, with_orders
from proof.sabotage.guards import agent_keys
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_SELLER = Caller("eve", True, tenant="acme")
_NOWHERE = "http://127.0.0.1:9"


async def _sold(store: SQLiteStore, buyer: Caller, task_id: str, price: int) -> None:
    """Have the seller do a task for a buyer, under an id of the buyer's choice."""
    order = Order(
        agent="a", requester=buyer.principal, payee=_SELLER.principal, price=price, held=price
    )
    scope = Scope(AGENT, buyer.tenant or "", buyer.owner)
    await outcome(store, replace(creation(task_id, "", order), scope=scope))
    head = await store.head(scope, TaskId(task_id))
    assert head is not None, "it was made a moment ago"
    await outcome(store, ending(head, TaskState.COMPLETED))


async def twins(trial: Trial) -> Finding:
    """Look into the account of an owner of the same name in another tenant."""
    ada, twin = Caller("ada", True, tenant="acme"), Caller("ada", True, tenant="globex")
    async with with_orders(trial.store) as store:
        await _sold(store, ada, "t", 5 * MICRO)
        ledger = Ledger(SQLiteAccounting(store), TaskOrderRules(), store)
        lines = (await ledger.statement(twin.principal)).lines
    spent = [line for line in lines if line.kind == "task_debit"]
    return Finding(not spent, f"{len(spent)} lines of another tenant shown")


async def one_id_twice(trial: Trial) -> Finding:
    """Refund a task whose id another requester chose too, for a lower price."""
    async with with_orders(trial.store) as store:
        await _sold(store, Caller("ada", True, tenant="acme"), "t", 9 * MICRO)
        await _sold(store, Caller("mallory", True, tenant="acme"), "t", MICRO)
        ledger, given = Ledger(SQLiteAccounting(store), TaskOrderRules(), store), 0
        try:
            refunded = await ledger.refund(TaskReference("t"), owner=_SELLER.principal)
            given = refunded.charged // MICRO
        except AmbiguousTask:
            pass
    return Finding(not given, f"{given} credits given back for an id of two tasks")


async def named_tenants(trial: Trial) -> Finding:
    """Name the tenant of an owner, by the same name's credential for no tenant."""
    app = _asked(trial.folder, functools.partial(App, tenancy_agent.agent))
    line, rpc = AppLine(app), BINDINGS[0]
    message = Message(
        MessageId(new_id()), Role.USER, [Part(text="x")], metadata={"skillId": "finished"}
    )
    async with app.running():
        made = await line.ask(request(rpc, ops.SendMessage(message=message), KEYS[OWNER]))
        task_id = TaskId(json.loads(made.body)["result"]["task"]["id"])
        asked = ops.GetTask(task_id=task_id, tenant=CALLERS[OWNER].tenant or "")
        found = [await line.ask(request(one, asked, KEYS[UNBOUND])) for one in BINDINGS[:2]]
    shown = sum(b'"status"' in one.body and b'"contextId"' in one.body for one in found)
    return Finding(not shown, f"{shown} of {len(found)} bindings show the task of a tenant's owner")


def _unbound(patches: Patches) -> None:
    """Take a caller that names a tenant for the owner of its name there."""

    def by_name(agent: str, tenant: str, caller: Caller) -> Scope:
        return Scope(agent, tenant, caller.owner)

    patches.put(Scope, "of", lambda _: by_name)


def _principal(patches: Patches) -> None:
    """Know callers by their owner alone."""
    patches.put(Caller, "principal", lambda _: property(lambda self: Principal("", self.owner)))


def _number(patches: Patches) -> None:
    """Take the latest task of an id for the one that is meant."""

    def latest(orders: Any, task: TaskReference, concerns: Any) -> Any:
        return next(one for one in orders if concerns(one))

    patches.put(ledger_module, "order_meant", lambda _: latest)


# The table of routes


def _asked(folder: Path, make: Callable[..., App], *, allow_private: bool = False) -> App:
    """Return an app that knows the callers of the table."""
    keys = write_keys(folder / f"{new_id()}.json")
    settings = Settings(
        stores=StoreSettings(location=str(folder / f"{new_id()}.db")),
        security=SecuritySettings(auth=["api-key"], api_keys=str(keys)),
        http=HttpSettings(rate_limit_failures="off"),
        egress=EgressSettings(allow_private=allow_private),
    )
    return make(settings=settings)


async def _differences(things: Things, rows: Sequence[RouteRow]) -> Finding:
    cells, wrong = await gather(RouteScene(things, rows))
    return Finding(not wrong, f"{len(wrong)} of {cells} cells are not what the table says")


async def tenants_of_admins(trial: Trial) -> Finding:
    """Look at a task of another tenant as the admin of one."""
    app = _asked(trial.folder, functools.partial(App, tenancy_agent.agent))
    rows = [row for row in of_app("server") if row.about == "other-task"]
    async with app.running():
        return await _differences(Things(AppLine(app)), rows)


async def private_agents(trial: Trial) -> Finding:
    """Look at the address of an agent that is for other callers."""
    app = _asked(trial.folder, gateway_app, allow_private=True)
    rows = [
        replace(row, cells={name: row.cells[name] for name in COLUMNS})
        for row in of_app("gateway")
        if row.template == "/a2a/{name}" and row.about == "private" and row.verb == "GET"
    ]
    async with app.running():
        # No agent is there: what is asked for is its card, which the gateway makes.
        return await _differences(GatewayThings(AppLine(app), _NOWHERE), rows)


def _admins(patches: Patches) -> None:
    """Let the admin of a tenant look into all."""

    def anywhere(viewer: Viewer, *, limit: int, tenant: str | None = None, **asked: Any) -> Survey:
        return Survey(limit=limit, tenant=tenant, principal=viewer.principal, **asked)

    patches.put(Viewer, "survey", lambda _: anywhere)


def _private(patches: Patches) -> None:
    """Take every caller for one that an agent is for."""

    def everybody(agent: Registered, caller: Caller) -> bool:
        return True

    patches.put(private_agents_room, "is_known", lambda _: everybody)


GUARDS: tuple[Guard, ...] = (
    *agent_keys.GUARDS,
    Guard("principal", "A3", "callers are known by their owner alone", twins, is_here=True),
    Guard("unbound", "A3", "a tenant and a name lead to a task", named_tenants, is_here=True),
    Guard("number", "L3", "money goes by an id of the caller's", one_id_twice, is_here=True),
    Guard("matrix admin", "A3", "admins see all tenants", tenants_of_admins, is_here=True),
    Guard("matrix private", "A3", "agents are shown to all callers", private_agents, is_here=True),
)
REMOVALS: dict[str, Removal] = {
    **agent_keys.REMOVALS,
    "principal": _principal,
    "unbound": _unbound,
    "number": _number,
    "matrix admin": _admins,
    "matrix private": _private,
}
