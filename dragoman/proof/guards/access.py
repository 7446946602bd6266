"""Guards on who may do what: keys of agents and their offspring, principals, money by number."""

from typing import Any

from msgspec.structs import replace

from dragoman.gateway import settling
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.task_reference import AmbiguousTask, TaskReference
from dragoman.model.errand import Errand
from dragoman.model.identity import Caller, Principal, Scope, TaskId
from dragoman.model.money import MICRO
from dragoman.model.task import TaskState
from dragoman.proof.patches import Patches, Removal
from dragoman.proof.spenders import AGENT, creation, ending, keeping_books, outcome
from dragoman.proof.trial import Finding, Guard, Trial
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.books import Books
from dragoman.stores.sqlite.errands import errands_of

_SELLER = Caller("eve", True, tenant="acme")


async def _sold(store: SQLiteStore, buyer: Caller, task_id: str, price: int) -> None:
    """Have the seller do a task for a buyer, under an id of the buyer's choice."""
    errand = Errand(
        agent="a", requester=buyer.principal, payee=_SELLER.principal, price=price, held=price
    )
    scope = Scope(AGENT, buyer.tenant or "", buyer.owner)
    await outcome(store, replace(creation(task_id, "", errand), scope=scope))
    head = await store.head(scope, TaskId(task_id))
    assert head is not None, "it was made a moment ago"
    await outcome(store, ending(head, TaskState.COMPLETED))


async def twins(trial: Trial) -> Finding:
    """Look into the account of an owner of the same name in another tenant."""
    ada, twin = Caller("ada", True, tenant="acme"), Caller("ada", True, tenant="globex")
    async with keeping_books(trial.store) as store:
        await _sold(store, ada, "t", 5 * MICRO)
        ledger = Ledger(store, Books())
        lines = (await ledger.statement(twin.principal)).lines
    spent = [line for line in lines if line.kind == "task_debit"]
    return Finding(not spent, f"{len(spent)} lines of another tenant shown")


async def one_id_twice(trial: Trial) -> Finding:
    """Refund a task whose id another requester chose too, for a lower price."""
    async with keeping_books(trial.store) as store:
        await _sold(store, Caller("ada", True, tenant="acme"), "t", 9 * MICRO)
        await _sold(store, Caller("mallory", True, tenant="acme"), "t", MICRO)
        ledger, given = Ledger(store, Books()), 0
        try:
            refunded = await ledger.refund(TaskReference("t"), owner=_SELLER.principal)
            given = refunded.charged // MICRO
        except AmbiguousTask:
            pass
    return Finding(not given, f"{given} credits given back for an id of two tasks")


def _principal(patches: Patches) -> None:
    """Know callers by their owner alone."""
    patches.put(Caller, "principal", lambda _: property(lambda self: Principal("", self.owner)))


def _number(patches: Patches) -> None:
    """Take the latest task of an id for the one that is meant."""

    def latest(connection: Any, task: TaskReference, concerns: Any) -> Any:
        return next(one for one in errands_of(connection, task.id) if concerns(one))

    patches.put(settling, "errand_meant", lambda _: latest)


GUARDS: tuple[Guard, ...] = (
    Guard("principal", "A3", "callers are known by their owner alone", twins, is_here=True),
    Guard("number", "L3", "money goes by an id of the caller's", one_id_twice, is_here=True),
)
REMOVALS: dict[str, Removal] = {
    "principal": _principal,
    "number": _number,
}
