"""Workflows in the file: what was defined, by whom. Their runs are tasks like any other.

Every function works on a connection inside somebody else's transaction. What a definition says is
the gateway's affair.
"""

from collections.abc import Sequence
from typing import NamedTuple

import apsw

from dragoman.model.identity import Principal
from dragoman.stores.sqlite.schema import run

_COLUMNS = "id, made_at, definition"
_PUT = (
    "INSERT INTO workflows (id, tenant, owner, made_at, definition) "
    "SELECT ?1, ?2, ?3, ?4, ?5 WHERE ?6 > "
    "(SELECT count(*) FROM workflows WHERE tenant = ?2 AND owner = ?3) RETURNING number"
)
_ONE = f"SELECT {_COLUMNS} FROM workflows WHERE id = ? AND tenant = ? AND owner = ?"
_PAGE = (
    f"SELECT {_COLUMNS} FROM workflows WHERE tenant = ? AND owner = ? "
    "ORDER BY number DESC LIMIT ? OFFSET ?"
)
_TOTAL = "SELECT count(*) FROM workflows WHERE tenant = ? AND owner = ?"


class WorkflowRow(NamedTuple):
    """A workflow as the file has it."""

    id: str
    # Milliseconds since the epoch.
    made_at: int
    definition: bytes


def put(connection: apsw.Connection, owner: Principal, row: WorkflowRow, *, most: int) -> bool:
    """Keep a workflow; tell whether its owner had fewer than so many."""
    values = (row.id, owner.tenant, owner.owner, row.made_at, row.definition, most)
    return bool(run(connection, _PUT, values))


def one(connection: apsw.Connection, owner: Principal, id: str) -> WorkflowRow | None:
    """Return a workflow of an owner's."""
    found = run(connection, _ONE, (id, owner.tenant, owner.owner))
    return WorkflowRow(*found[0]) if found else None


def page(
    connection: apsw.Connection, owner: Principal, *, limit: int, offset: int
) -> tuple[Sequence[WorkflowRow], int]:
    """Return some of an owner's workflows, newest first, and how many there are."""
    rows = run(connection, _PAGE, (owner.tenant, owner.owner, limit, offset))
    ((total,),) = run(connection, _TOTAL, (owner.tenant, owner.owner))
    return [WorkflowRow(*row) for row in rows], total
