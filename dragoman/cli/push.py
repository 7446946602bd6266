"""`dragoman push`: who is told of events, who is not, and another chance for what was given up.

`list` and `secret` only read the file, also while servers work on it. `replay` posts dead letters
from here, each once and with its first id, so that a receiver knows a repetition; a letter that is
taken is gone, any other stays. Its event is posted after later ones, which is what a gap means. A
receiver that was given up is opened again by naming it; a running server then goes on with it from
its cursor, within seconds.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import (
    LIMIT,
    NOT_DELIVERED,
    PAGE_TOKEN,
    STORE_OPTION,
    budget,
    file_of,
    instant,
    own,
    settings_of,
    show_page,
)

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
_FORGET = "DELETE FROM dead_letters WHERE push = ? AND seq = ?"
_REOPEN = """
UPDATE pushes SET is_open = 1, tries = 0, due_at = 0, failing_since = 0, problem = '', holder = 0
WHERE number = ? AND is_open = 0
"""

push = Group(
    "push",
    help="Look at webhooks, and give failed ones another chance.",
    places={
        "list": Place("dragoman.cli.push:list_", "List who waits or was given up, and the dead."),
        "replay": Place("dragoman.cli.push:replay", "Post dead letters once more."),
        "secret": Place("dragoman.cli.push:secret", "Print what signatures are checked with."),
    },
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


@command("list")
@STORE_OPTION
@LIMIT
@PAGE_TOKEN
def list_(run: Invocation, store: str | None, limit: int, page_token: str) -> None:
    """List receivers that wait, fail or were given up, and dead letters."""
    with budget(run):
        books = _read(run, store, Books)
    items = [*_receivers(books), *_dead(books)]
    ids = [item["id"] for item in items]
    if page_token and page_token not in ids:
        raise usage("--page-token names nothing that is still listed; begin without it")
    first = ids.index(page_token) + 1 if page_token else 0
    page = items[first : first + limit]
    more = first + limit < len(items)
    show_page(run, page, page[-1]["id"] if more else "", lambda item: _show(run, item))
    if not settings_of(run, store=store).push:
        run.out.warn("push is off (DRAGOMAN_PUSH): a server with this setting posts none")


def _receivers(books: Books) -> list[dict[str, Any]]:
    from dragoman.push.request import origin

    return [
        {
            "state": state,
            "id": f"{one.config.task_id}/{one.config.id}",
            # A path may be a secret as well: many services have nothing else.
            "receiver": origin(one.config.url),
            "behind": books.last[one.number] - one.cursor,
            "tries": one.tries,
            "nextAt": instant(one.due_at),
            "since": instant(one.failing_since),
            "problem": one.problem,
        }
        for one in books.pushes.values()
        if (state := books.state(one))
    ]


def _dead(books: Books) -> list[dict[str, Any]]:
    from dragoman.push.request import origin

    return [
        {
            "state": "dead",
            "id": letter.id,
            "receiver": origin(letter.push.config.url),
            "task": letter.push.config.task_id,
            "config": letter.push.config.id,
            "event": letter.seq,
            "tries": letter.tries,
            "at": instant(letter.at),
            "problem": letter.problem,
        }
        for letter in books.letters
    ]


_LABELS = {
    "id": "Id",
    "receiver": "Receiver",
    "task": "Task",
    "event": "Event",
    "behind": "Behind",
    "tries": "Tries",
    "nextAt": "Next-Try",
    "since": "Since",
    "at": "At",
    "problem": "Problem",
}


def _show(run: Invocation, item: dict[str, Any]) -> None:
    run.out.field("State", item["state"])
    for name, label in _LABELS.items():
        if item.get(name) not in (None, ""):
            run.out.field(label, str(item[name]))


@command("replay")
@STORE_OPTION
@click.argument("ids", nargs=-1, metavar="[ID]...")
@own(
    "--all",
    "everything",
    switch=True,
    in_environment=False,
    help="Every dead letter and receiver given up.",
)
@own("--allow-private", switch=True, help="Post to private addresses too.")
@own("--dry-run", switch=True, in_environment=False, help="Say what would be done, and no more.")
def replay(
    run: Invocation,
    store: str | None,
    ids: tuple[str, ...],
    everything: bool,
    allow_private: bool,
    dry_run: bool,
) -> None:
    """Post dead letters once more, and open receivers again that were given up.

    ID is what `dragoman push list` shows: msg_... of a letter, TASK/CONFIG of a receiver.
    """
    if not ids and not everything:
        raise usage("name what to replay, or say --all", "dragoman push list")
    books = _read(run, store, Books)
    letters = [letter for letter in books.letters if everything or letter.id in ids]
    closed = [
        one
        for one in books.pushes.values()
        if books.state(one) == "disabled" and (everything or _id(one) in ids)
    ]
    known = {*(letter.id for letter in letters), *map(_id, closed)}
    if unknown := [id for id in ids if id not in known]:
        raise usage(
            f"{unknown[0]}: no dead letter and no receiver that was given up", "dragoman push list"
        )
    results: list[dict[str, Any]] = []
    if dry_run:
        results += [{"id": one.id, "result": "would be posted"} for one in letters]
        results += [{"id": _id(one), "result": "would be opened"} for one in closed]
    elif letters or closed:
        settings = settings_of(run, store=store)
        with budget(run):
            results = asyncio.run(_replay(settings, letters, closed, allow_private))
    # What was posted is said also when something else was not.
    problems = [item for item in results if item["result"] == "failed"]
    if run.out.is_json and not problems:
        show_page(run, results, "", lambda item: None)
    elif not run.out.is_json:
        for item in results:
            run.out.field("Id", item["id"])
            run.out.field("Result", item["result"])
            if item.get("problem"):
                run.out.field("Problem", item["problem"])
        if not results:
            run.out.field("Result", "there is no dead letter, and no receiver was given up")
    if problems:
        first = problems[0]
        raise Failure(
            NOT_DELIVERED,
            f"{len(problems)} of {len(results)} not delivered; {first['id']}: {first['problem']}",
            hint="dragoman push list",
        )


def _id(push: "Push") -> str:
    return f"{push.config.task_id}/{push.config.id}"


async def _replay(
    settings: "Settings", letters: list[Letter], closed: "list[Push]", allow_private: bool
) -> list[dict[str, Any]]:
    """Do it; return what came of each."""
    from dragoman.security.egress import Egress
    from dragoman.security.vault import vault_of
    from dragoman.server.push import allowed, tokens_of
    from dragoman.stores.sqlite import SQLiteStore
    from dragoman.stores.sqlite.schema import connect, run

    store = SQLiteStore(settings.store_path(), sealing=vault_of(settings))
    results: list[dict[str, Any]] = []
    await store.open()
    connection = connect(str(settings.store_path()))
    try:
        tokens = tokens_of(settings, store.secret)
        async with Egress(
            allow=allowed(settings), allow_private=allow_private or settings.allow_private
        ) as egress:
            for letter in letters:
                if problem := await _post(settings, store, egress, tokens, letter):
                    results.append({"id": letter.id, "result": "failed", "problem": problem})
                else:
                    run(connection, _FORGET, (letter.push.number, letter.seq))
                    results.append({"id": letter.id, "result": "delivered"})
        for one in closed:
            run(connection, _REOPEN, (one.number,))
            results.append({"id": _id(one), "result": "open again"})
    finally:
        connection.close()
        await store.close()
    return results


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
    # As the file shows it, without its secrets, until it is posted.
    kept = {push.number: push for push in await store.pushes(letter.push.task)}
    one = kept.get(letter.push.number)
    if one is None:
        return "its receiver is gone"
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


@command("secret")
@STORE_OPTION
def secret(run: Invocation, store: str | None) -> None:
    """Print the secrets that receivers check signatures with, one a line: any of them will do."""
    from dragoman.push.signature import encode_secret, secrets_of
    from dragoman.security.vault import vault_of
    from dragoman.stores.sqlite.seals import secret_of

    settings = file_of(run, store)
    # Of a store whose secret is not used, any will do.
    stored = b"" if settings.push_secret else secret_of(settings.store_path(), vault_of(settings))
    found = [encode_secret(one) for one in secrets_of(settings.push_secret, stored)]
    if run.out.is_json:
        run.out.json({"secrets": found})
        return
    # Bare, for `$(dragoman push secret)`.
    for one in found:
        run.out.write(one + "\n")


def _read(run: Invocation, store: str | None, read: "Callable[[apsw.Connection], T]") -> T:
    """Read a store's file without becoming one of its workers."""
    from dragoman.stores.sqlite.inspection import open_to_read

    connection = open_to_read(file_of(run, store).store_path())
    try:
        return read(connection)
    finally:
        connection.close()
