"""How the two sides of a completed task settle it: its requester accepts it, who earned it gives it
back.

Every function is a deed on a connection inside one transaction, and doing it twice does nothing
more.
"""

import apsw

from dragoman.errors import InsufficientCredits, TaskNotFound, UnsupportedOperation
from dragoman.gateway import ratings
from dragoman.model.money import credits_text
from dragoman.model.task import TaskState
from dragoman.stores.sqlite import accounts, escrow, journal
from dragoman.stores.sqlite.books import Books
from dragoman.stores.sqlite.errands import ErrandRow, errand_of, errands_of


def accept(connection: apsw.Connection, task_id: str, requester: str, at: int) -> ErrandRow:
    """Pay for a completed task that is in escrow; where it is paid already, nothing changes."""
    mine = [one for one in errands_of(connection, task_id) if one.requester == requester]
    if not mine:
        raise TaskNotFound(taskId=task_id)
    ratings.release(connection, mine[0].task, escrow.ACCEPTED, at)
    errand = errand_of(connection, mine[0].task)
    assert errand is not None, "errands stay"
    if errand.state is not TaskState.COMPLETED:
        raise UnsupportedOperation("The task is not completed, so there is nothing to accept")
    if errand.escrow == escrow.DISPUTED:
        raise UnsupportedOperation("The task is disputed; whoever runs the gateway decides")
    if errand.escrow == escrow.REFUNDED:
        raise UnsupportedOperation("The task was refunded, so there is nothing to pay")
    return errand


def refund(
    connection: apsw.Connection, books: Books, task_id: str, payee: str | None, memo: str, at: int
) -> ErrandRow:
    """Give back what a task cost, or would have; None as payee: whoever earned it."""
    mine = [one for one in errands_of(connection, task_id) if payee in (None, one.payee)]
    if not mine:
        raise TaskNotFound(taskId=task_id)
    errand = mine[0]
    if errand.escrow == escrow.REFUNDED and errand.state is TaskState.COMPLETED:
        return errand
    if escrow.give_back(connection, errand.task, memo, at):
        return errand
    if not errand.charged:
        raise UnsupportedOperation("The task cost nothing, so there is nothing to give back")
    given = journal.task_transfer(errand.task, errand.task_id, "refund")
    if accounts.find(connection, given) is None:
        free = journal.free(connection, errand.payee)
        if free < errand.earning:
            raise InsufficientCredits(
                "Whoever did the task has spent what it brought in",
                balance=credits_text(free),
                needed=credits_text(errand.earning),
            )
        books.refund(connection, errand.task, memo, at)
    return errand
