"""Forgets ended tasks in small transactions, so that no writer waits long for one of them."""

import apsw

from dragoman.stores.sqlite.message_keys import index_keys
from dragoman.stores.sqlite.schema import Row, run
from dragoman.stores.sqlite.transactions import FileTransactions
from dragoman.stores.sqlite.words import FileWords
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS

_STEP = 200
# What belongs to a task, by its number; the task's own row goes last.
_PARTS = (
    "forget_snapshot",
    "forget_notes",
    "forget_deadline",
    "forget_withheld",
    "forget_letters",
    "forget_pushes",
    "forget_task",
)


async def prune(
    store: FileTransactions, sql: dict[str, str], words: FileWords, ended_before: int, keep: int
) -> int:
    """Forget terminal tasks by age and number, then keys by age; return how many tasks."""
    forgotten = 0
    while step := await store.write_tx(lambda c: _forget_some(c, sql, words, ended_before, keep)):
        forgotten += step
    await words.drop_empty()
    await store.write_tx(lambda c: _forget_keys(c, sql, ended_before))
    await store.write_tx(lambda c: run(c, sql["forget_withheld_of_ended"]))
    return forgotten


def _forget_some(
    connection: apsw.Connection,
    sql: dict[str, str],
    words: FileWords,
    ended_before: int,
    keep: int,
) -> int:
    doomed = run(connection, sql["doomed_by_age"], (ended_before, _STEP))
    surplus = run(connection, sql["ended"])[0][0] - len(doomed) - keep
    if surplus > 0 and not doomed:
        doomed = run(connection, sql["doomed_by_number"], (min(surplus, _STEP),))
    if doomed:
        _retire_numbers(connection, sql)
        words.forget(connection, [number for number, _, _ in doomed])
    for row in doomed:
        _forget(connection, sql, row)
    return len(doomed)


def _forget_keys(connection: apsw.Connection, sql: dict[str, str], made_before: int) -> None:
    index_keys(connection, sql)
    run(connection, sql["forget_keys"], (made_before,))


def _retire_numbers(connection: apsw.Connection, sql: dict[str, str]) -> None:
    """Have numbers of forgotten tasks never given again: cursors and keys may still name them."""
    ((last,),) = run(connection, sql["last_number"])
    run(connection, sql["set_fact"], ("retired_number", last))


def _forget(connection: apsw.Connection, sql: dict[str, str], row: Row) -> None:
    number, scope, state = row
    first = number << SEQ_BITS
    run(connection, sql["forget_events"], (first, first | MAX_SEQ))
    for name in _PARTS:
        run(connection, sql[name], (number,))
    run(connection, sql["uncount"], (scope, state))
