"""While the server restarts, every read waits for it and goes on; none fails because it is of one
moment or of a gateway."""

import asyncio
import inspect
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.waiting import within

from dragoman.model.identity import Principal, TaskId
from dragoman.stores.interface import Query, Survey
from dragoman.stores.interface.agents import AgentAddress
from dragoman.stores.interface.inspection import TailFilter, TailPosition, TaskFilter
from dragoman.stores.interface.leases import Duty
from dragoman.stores.interface.orders import OrderQuery
from dragoman.stores.interface.trust import SumWindow
from dragoman.stores.postgres import Addresses, connections
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.stores.postgres.operating.inspection import DatabaseInspection, inspecting
from dragoman.stores.postgres.operating.reading import DatabaseReading, reading_tasks
from dragoman.testing.promises import SampleRules
from dragoman.testing.promises.samples import HERE, creation, head_of, write
from dragoman.testing.servers import PostgresServer

Reads = dict[str, Callable[[], Awaitable[Any]]]
WHO = Principal("", "alice")
# What changes something, waits for something else, or tells how the server does.
_NO_READS = {
    "PostgresGatewayStore": "broken close drop_letter drop_push index_words open prune "
    "put_push renew reopen_push settle troubles vanish",
    "PostgresAgents": "put put_circuits put_health remove",
    "PostgresAgentKeys": "put revoke revoke_all stop tell",
    "PostgresRollouts": "change put",
    "PostgresTriggers": "change put remove",
    "PostgresWorkflows": "put",
}


def of_store(store: PostgresGatewayStore, number: int) -> Reads:
    return {
        "at_rest": lambda: store.at_rest(HERE, TaskId("t")),
        "claim": lambda: store.claim(HERE.agent, 9),
        "claim_pushes": lambda: store.claim_pushes(9),
        "counts": store.counts,
        "dead_letters": lambda: store.dead_letters(9),
        "head": lambda: store.head(HERE, TaskId("t")),
        "is_live": lambda: store.is_live(store.worker),
        "known": lambda: store.known(HERE, b"k"),
        "last_seqs": lambda: store.last_seqs([number]),
        "lead": lambda: store.lead(Duty.SEAL),
        "letters_of": lambda: store.letters_of(number),
        "noted": lambda: store.noted(HERE.agent),
        "notes": lambda: store.notes(number),
        "overdue": lambda: store.overdue(HERE.agent, 1),
        "page": lambda: store.page(Query(HERE, 9)),
        "prepare": store.prepare,
        "pushes": lambda: store.pushes(number),
        "read": lambda: store.read(number, after=0, limit=9),
        "read_many": lambda: store.read_many([(number, 0)], limit=9),
        "receivers": lambda: store.receivers(limit=9),
        "search": lambda: store.search(Survey(limit=9), ["word"]),
        "size": store.size,
        "snapshot": lambda: store.snapshot(number),
        "stored": lambda: store.stored(WHO),
        "survey": lambda: store.survey(Survey(limit=9)),
        "unindexed": lambda: store.unindexed(9),
        "withheld": lambda: store.withheld(number),
        "workers": store.workers,
    }


def of_gateway(store: PostgresGatewayStore) -> dict[Any, Reads]:
    agents, keys, flows = store.agents, store.agent_keys, store.workflows
    triggers, rollouts = store.triggers, store.rollouts
    ledger, trust = store.accounting.ledger, store.accounting.trust
    return {
        agents: {
            # Two reads: the second only if the version is another one.
            "changes": lambda: agents.changes(-1),
            "credential": lambda: agents.credential("a"),
            "find": lambda: agents.find("a"),
            "former": lambda: agents.former(AgentAddress("http://a.example", "", "")),
        },
        keys: {"of_agent": lambda: keys.of_agent("a"), "refresh": keys.refresh},
        flows: {
            "one": lambda: flows.one(WHO, "w"),
            "page": lambda: flows.page(WHO, limit=9),
        },
        triggers: {
            "due": lambda: triggers.due(1, 9),
            "one": lambda: triggers.one("t"),
            "page": lambda: triggers.page(WHO, limit=9),
        },
        rollouts: {
            "one": lambda: rollouts.one("r"),
            "page": lambda: rollouts.page(WHO, "", limit=9),
            "running": rollouts.running,
        },
        ledger: {
            "balance": lambda: ledger.balance("alice"),
            "balances": lambda: ledger.balances(9, 0),
            "checkout": lambda: ledger.checkout("c"),
            "days": lambda: ledger.days("alice", 0),
            "due": lambda: ledger.due(1, 9),
            "facts": lambda: ledger.facts("t"),
            "in_escrow": lambda: ledger.in_escrow(WHO, limit=9),
            "is_payment_recorded": lambda: ledger.is_payment_recorded("e"),
            "order": lambda: ledger.order(1),
            "order_in": lambda: ledger.order_in(HERE, "t"),
            "orders": lambda: ledger.orders(HERE, OrderQuery(), limit=9, offset=0),
            "stale": ledger.stale,
            "statement": lambda: ledger.statement("alice", ["user"], limit=9),
            "transfer": lambda: ledger.transfer(b"t"),
            "transfers": lambda: ledger.transfers(0, 9),
            "verify": ledger.verify,
        },
        trust: {
            "after": lambda: trust.after(0, 9),
            "agents_of": lambda: trust.agents_of("alice"),
            "contents": trust.contents,
            "disputes": lambda: trust.disputes(limit=9),
            "figures": lambda: trust.figures(None, SumWindow(0, 1, 1)),
            "history": lambda: trust.history("a", limit=9, offset=0),
            "last_number": trust.last_number,
            "totals": lambda: trust.totals("a"),
            "unobserved": lambda: trust.unobserved(9),
        },
    }


def of_tools(look: DatabaseInspection, tasks: DatabaseReading, number: int) -> dict[Any, Reads]:
    return {
        look: {
            "dead_letters": look.dead_letters,
            "letters": look.letters,
            "newest": look.newest,
            "notes": look.notes,
            "orphans": look.orphans,
            "overdue": look.overdue,
            "pushes": look.pushes,
            "receivers": look.receivers,
            "stuck": lambda: look.stuck(1),
            "tasks": look.tasks,
            "workers": look.workers,
        },
        tasks: {
            "find": lambda: tasks.find("t"),
            "follow": lambda: tasks.follow(TailPosition(0, {}, {}), TailFilter(), 9),
            "here": tasks.here,
            "page": lambda: tasks.page(TaskFilter(), 9),
            "read": lambda: tasks.read(number, after=0, limit=9),
            "snapshot": lambda: tasks.snapshot(number),
            "version": tasks.version,
        },
    }


def public(thing: Any) -> set[str]:
    """Return the names of what may be awaited of a thing and only reads."""
    kind = type(thing)
    asked = {
        name
        for name, deed in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(deed) or inspect.isasyncgenfunction(deed))
    }
    return asked - set(_NO_READS.get(kind.__name__, "").split())


async def test_every_read_waits_for_a_server_that_restarts(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the machine takes.
    monkeypatch.setattr(connections, "READ_WITHIN", 120.0)
    addresses = Addresses(await asyncio.to_thread(server.make_database))
    store = PostgresGatewayStore(addresses, SampleRules())
    await store.open()
    try:
        await write(store, creation("t"))
        number = (await head_of(store, "t")).number
        async with inspecting(addresses) as look, reading_tasks(addresses) as tasks:
            reads = {store: of_store(store, number), **of_gateway(store)}
            reads |= of_tools(look, tasks, number)
            for thing, named in reads.items():
                assert set(named) == public(thing)
            # Each by itself, on connections that are about to break.
            await within(gathered(reads))
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            asked = asyncio.ensure_future(gathered(reads))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.start)
            await within(asked, 120)
    finally:
        await within(store.close())


async def gathered(reads: dict[Any, Reads]) -> None:
    """Ask for everything at once; raises what any of them raises, by its name."""
    names = [(type(thing).__name__, name) for thing, named in reads.items() for name in named]
    asked = [deed() for named in reads.values() for deed in named.values()]
    found = await asyncio.gather(*asked, return_exceptions=True)
    failed = {name: one for name, one in zip(names, found, strict=True) if is_error(one)}
    assert not failed


def is_error(found: object) -> bool:
    return isinstance(found, BaseException)
