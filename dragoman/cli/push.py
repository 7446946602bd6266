"""`dragoman push`: who is told of events, who is not, and another chance for what was given up.

`list` and `secret` only read the file, also while servers work on it. `replay` posts dead letters
from here, each once and with its first id, so that a receiver knows a repetition; a letter that is
taken is gone, any other stays. Its event is posted after later ones, which is what a gap means. A
receiver that was given up is opened again by naming it; a running server then goes on with it from
its cursor, within seconds.
"""

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    import apsw

    from dragoman.config import Settings
    from dragoman.push.token import Tokens
    from dragoman.security.egress import Egress
    from dragoman.stores.interface import Push
    from dragoman.stores.sqlite import SQLiteStore

T = TypeVar("T")

# The file as an operator sees it. The store's own queries are about one task or one worker, and
# need a worker to ask them.
_RECEIVERS = """
SELECT pushes.number, pushes.task, agent, tenant, owner, config, cursor, last_seq, is_open,
    tries, due_at, failing_since, problem
FROM pushes JOIN tasks ON tasks.number = pushes.task JOIN scopes ON scopes.number = tasks.scope
ORDER BY pushes.number
"""
_LETTERS = "SELECT push, seq, tries, at, problem FROM dead_letters ORDER BY push, seq"
_SECRET = "SELECT value FROM facts WHERE name = 'secret'"
_FORGET = "DELETE FROM dead_letters WHERE push = ? AND seq = ?"
_REOPEN = """
UPDATE pushes SET is_open = 1, tries = 0, due_at = 0, failing_since = 0, problem = '', holder = 0
WHERE number = ? AND is_open = 0
"""

_store_option = click.option(
    "--store", metavar="FILE", help="SQLite file of the tasks (in your data folder)."
)


class Letter:
    """A dead letter and the receiver that never took it."""

    def __init__(self, push: "Push", seq: int, tries: int, at: int, problem: str) -> None:
        from dragoman.push.request import webhook_id

        self.push = push
        self.seq = seq
        self.tries = tries
        self.at = at
        self.problem = problem
        self.id = webhook_id(push.scope, push.config, seq)


class Books:
    """What the file says about receivers and letters."""

    def __init__(self, connection: "apsw.Connection") -> None:
        import msgspec

        from dragoman.model.identity import Scope
        from dragoman.model.push import PushConfig
        from dragoman.stores.interface import Push
        from dragoman.stores.sqlite.schema import run

        self.pushes: dict[int, Push] = {}
        self.last: dict[int, int] = {}
        for row in run(connection, _RECEIVERS):
            number, task, agent, tenant, owner, body, cursor, last, is_open, *rest = row
            tries, due_at, failing_since, problem = rest
            config = msgspec.json.decode(body, type=PushConfig)
            self.pushes[number] = Push(
                number,
                task,
                Scope(agent, tenant, owner),
                config,
                cursor,
                tries,
                due_at,
                failing_since,
                bool(is_open),
                problem,
            )
            self.last[number] = last
        self.letters = [
            Letter(self.pushes[push], *row)
            for push, *row in run(connection, _LETTERS)
            if push in self.pushes
        ]

    def state(self, push: "Push") -> str:
        """Return how a receiver is; empty: it got all there was."""
        if push.is_open:
            return "failing" if push.failing_since else "open"
        return "disabled" if push.failing_since and push.cursor < self.last[push.number] else ""


@click.group()
def push() -> None:
    """Look at webhooks, and give failed ones another chance."""


@push.command("list")
@_store_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_(store: str | None, as_json: bool) -> None:
    """List receivers that wait, fail or were given up, and dead letters."""
    import msgspec

    from dragoman.push.request import origin

    books = _read(store, Books)
    lines: list[dict[str, Any]] = []
    for one in books.pushes.values():
        if state := books.state(one):
            lines.append(
                {
                    "state": state,
                    "id": f"{one.config.task_id}/{one.config.id}",
                    # A path may be a secret as well: many services have nothing else.
                    "receiver": origin(one.config.url),
                    "behind": books.last[one.number] - one.cursor,
                    "tries": one.tries,
                    "nextAt": _time(one.due_at),
                    "since": _time(one.failing_since),
                    "problem": one.problem,
                }
            )
    for letter in books.letters:
        config = letter.push.config
        lines.append(
            {
                "state": "dead",
                "id": letter.id,
                "receiver": origin(config.url),
                "task": config.task_id,
                "config": config.id,
                "event": letter.seq,
                "tries": letter.tries,
                "at": _time(letter.at),
                "problem": letter.problem,
            }
        )
    for line in lines:
        if as_json:
            click.echo(msgspec.json.encode(line))
        else:
            click.echo(_sentence(line))
    if not lines and not as_json:
        click.echo("Nobody waits for a webhook, and none was given up.")
    if not _settings(store).push:
        click.echo("Push is off (DRAGOMAN_PUSH): a server with this setting posts none.", err=True)


def _sentence(line: dict[str, Any]) -> str:
    words = f"{line['state']:<8}  {line['id']}  {line['receiver']}"
    if line["state"] == "dead":
        words += f"  event {line['event']}, {line['tries']} tries, {line['at']}"
        return f"{words}: {line['problem']}"
    words += f"  {line['behind']} behind"
    if line["problem"]:
        words += f", since {line['since']}: {line['problem']}"
    return words + (f"; next try {line['nextAt']}" if line["nextAt"] else "")


@push.command()
@_store_option
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter and receiver given up.")
@click.option("--allow-private", is_flag=True, help="Post to private addresses too.")
def replay(store: str | None, ids: tuple[str, ...], everything: bool, allow_private: bool) -> None:
    """Post dead letters once more, and open receivers again that were given up.

    ID is what `dragoman push list` shows: msg_... of a letter, TASK/CONFIG of a receiver.
    """
    if not ids and not everything:
        raise click.UsageError("name what to replay, or say --all")
    books = _read(store, Books)
    letters = [letter for letter in books.letters if everything or letter.id in ids]
    closed = [
        one
        for one in books.pushes.values()
        if books.state(one) == "disabled"
        and (everything or f"{one.config.task_id}/{one.config.id}" in ids)
    ]
    known = {letter.id for letter in letters}
    known |= {f"{one.config.task_id}/{one.config.id}" for one in closed}
    if unknown := [id for id in ids if id not in known]:
        raise click.UsageError(f"{unknown[0]}: no dead letter and no receiver that was given up")
    if not letters and not closed:
        click.echo("There is no dead letter, and no receiver was given up.")
        return
    settings = _settings(store)
    if asyncio.run(_replay(settings, letters, closed, allow_private)):
        sys.exit(1)


async def _replay(
    settings: "Settings", letters: list[Letter], closed: "list[Push]", allow_private: bool
) -> int:
    """Do it; return how many letters were not taken."""
    from dragoman.security.egress import Egress
    from dragoman.server.push import allowed, tokens_of
    from dragoman.stores.sqlite import SQLiteStore
    from dragoman.stores.sqlite.schema import connect, run

    store, failed = SQLiteStore(settings.store_path()), 0
    await store.open()
    connection = connect(str(settings.store_path()))
    try:
        tokens = tokens_of(settings, store.secret)
        async with Egress(
            allow=allowed(settings), allow_private=allow_private or settings.allow_private
        ) as egress:
            for letter in letters:
                if problem := await _post(settings, store, egress, tokens, letter):
                    failed += 1
                    click.echo(f"{letter.id}: {problem}", err=True)
                else:
                    run(connection, _FORGET, (letter.push.number, letter.seq))
                    click.echo(f"{letter.id}: delivered")
        for one in closed:
            run(connection, _REOPEN, (one.number,))
            click.echo(f"{one.config.task_id}/{one.config.id}: open again")
    finally:
        connection.close()
        await store.close()
    return failed


async def _post(
    settings: "Settings",
    store: "SQLiteStore",
    egress: "Egress",
    tokens: "Tokens | None",
    letter: Letter,
) -> str:
    """Post a letter; return what was wrong."""
    from dragoman.dialects.dialect import Dialect
    from dragoman.dialects.v0_2 import V0_2
    from dragoman.dialects.v0_3 import V0_3
    from dragoman.dialects.v1_0 import V1_0
    from dragoman.engine.log import read_task
    from dragoman.model.clock import SystemClock
    from dragoman.push.request import headers
    from dragoman.push.signature import secrets_of
    from dragoman.security.egress import EgressError

    dialects: dict[str, Dialect] = {"1.0": V1_0, "0.3": V0_3, "0.2": V0_2}
    one = letter.push
    dialect = dialects[one.config.version]
    events = await store.read(one.task, after=letter.seq - 1, limit=1)
    reading = await read_task(store, one.task, upto=letter.seq) if events else None
    if reading is None:
        return "its task is gone"
    body = dialect.encode_push(events[0], reading.task)
    sent = headers(
        one.config,
        body,
        id=letter.id,
        seq=letter.seq,
        content_type=dialect.push_content_type,
        now=SystemClock().now(),
        secrets=secrets_of(settings.push_secret, store.secret),
        tokens=tokens,
    )
    try:
        answer = await egress.post(one.config.url, body, sent, timeout=settings.push_timeout)
    except EgressError as error:
        return error.reason
    return "" if 200 <= answer.status < 300 else f"answered {answer.status}"


@push.command()
@_store_option
def secret(store: str | None) -> None:
    """Print the secrets that receivers check signatures with, one a line: any of them will do."""
    from dragoman.push.signature import encode_secret, secrets_of
    from dragoman.stores.sqlite.schema import run

    stored = bytes(_read(store, lambda connection: run(connection, _SECRET)[0][0]))
    for one in secrets_of(_settings(store).push_secret, stored):
        click.echo(encode_secret(one))


def _settings(store: str | None) -> "Settings":
    import os

    from dragoman.config import load

    return load(os.environ, store=store)


def _read(store: str | None, read: "Callable[[apsw.Connection], T]") -> T:
    """Read a store's file without becoming one of its workers."""
    from dragoman.errors import ConfigError
    from dragoman.stores.sqlite.inspection import open_to_read

    settings = _settings(store)
    if settings.store == "memory:":
        raise ConfigError("memory: has no file, so only its own server knows; name one by --store")
    connection = open_to_read(settings.store_path())
    try:
        return read(connection)
    finally:
        connection.close()


def _time(milliseconds: int) -> str:
    """Return a time for people and programs; empty: never."""
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds // 1000, UTC).isoformat().replace("+00:00", "Z")
