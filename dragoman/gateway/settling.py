"""How the two sides of a completed task settle it: its requester accepts it, who earned it gives it
back.

Every function is a deed on a connection inside one transaction, and doing it twice does nothing
more.
"""

import apsw

from dragoman.errors import InsufficientCredits, UnsupportedOperation
from dragoman.gateway import ratings
from dragoman.gateway.task_reference import TaskReference, errand_meant
from dragoman.model.identity import Principal
from dragoman.model.money import credits_text
from dragoman.model.task import TaskState
from dragoman.stores.sqlite import accounts, escrow, journal
from dragoman.stores.sqlite.books import Books
from dragoman.stores.sqlite.errands import ErrandRow, errand_of


def accept(
    connection: apsw.Connection, task: TaskReference, requester: Principal, at: int
) -> ErrandRow:
    """Pay for a completed task that is in escrow; where it is paid already, nothing changes."""
    meant = errand_meant(connection, task, lambda one: one.requester == requester)
    ratings.release(connection, meant.task, escrow.ACCEPTED, at)
    errand = errand_of(connection, meant.task)
    assert errand is not None, "errands stay"
    if errand.state is not TaskState.COMPLETED:
        raise UnsupportedOperation("The task is not completed, so there is nothing to accept")
    if errand.escrow == escrow.DISPUTED:
        raise UnsupportedOperation("The task is disputed; whoever runs the gateway decides")
    if errand.escrow == escrow.REFUNDED:
        raise UnsupportedOperation("The task was refunded, so there is nothing to pay")
    return errand


def refund(
    connection: apsw.Connection,
    books: Books,
    task: TaskReference,
    payee: Principal | None,
    memo: str,
    at: int,
) -> ErrandRow:
    """Give back what a task cost, or would have; None as payee: of any payee."""
    errand = errand_meant(connection, task, lambda one: payee in (None, one.payee))
    if errand.escrow == escrow.REFUNDED and errand.state is TaskState.COMPLETED:
        return errand
    if escrow.give_back(connection, errand.task, memo, at):
        return errand
    if not errand.charged:
        raise UnsupportedOperation("The task cost nothing, so there is nothing to give back")
    given = journal.task_transfer(errand.task, errand.task_id, "refund")
    if accounts.find(connection, given) is None:
        free = journal.free(connection, errand.payee.text)
        if free < errand.earning:
            raise InsufficientCredits(
                "Whoever did the task has spent what it brought in",
                balance=credits_text(free),
                needed=credits_text(errand.earning),
            )
        books.refund(connection, errand.task, memo, at)
    return errand
