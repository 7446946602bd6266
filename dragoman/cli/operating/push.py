"""`dragoman push`: who is told of events, who is not, and another chance for what was given up.

`list` and `secret` only read the store, also while servers work on it. `replay` posts dead letters
from here, or with `--gateway` from there: each once and with its first id, so that a receiver knows
a repetition; a letter that is taken is gone, any other stays. Its event is posted after later ones,
which is what a gap means. A receiver that was given up is opened again by naming it; a running
server then goes on with it from its cursor, within seconds. `secret` has no `--gateway`: what
signatures are made with is not sent over a network.
"""

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway.store_place import (
    RemoteStore,
    StorePlace,
    health_of,
    looks_elsewhere,
)
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import (
    LIMIT,
    NOT_DELIVERED,
    PAGE_TOKEN,
    STORE_OPTION,
    budget,
    instant,
    kept_by,
    own,
    page_after,
    settings_of,
    show_page,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.config import Settings
    from dragoman.stores.interface import DeadLetter, Push

T = TypeVar("T")
_LABELS = {"nextAt": "Next-Try"}
_SHOWN = """
    state id receiver task event behind tries nextAt since at problem
    """.split()  # noqa: SIM905 - so many quoted words are harder to read

push = Group(
    "push",
    help="Show push notifications, and retry failed ones.",
    places={
        "list": CommandPlace("operating.push:list_", "List receivers and dead letters."),
        "replay": CommandPlace("operating.push:replay", "Post dead letters once more."),
        "secret": CommandPlace("operating.push:secret", "Print the secret for signatures."),
    },
)


class Letter:
    """A dead letter and the receiver that never took it."""

    def __init__(self, push: "Push", letter: "DeadLetter") -> None:
        from dragoman.push.request import webhook_id

        self.push = push
        self.seq = letter.seq
        self.tries = letter.tries
        self.at = letter.at
        self.problem = letter.problem
        self.id = webhook_id(push.scope, push.config, letter.seq)


class DeadLetterFile:
    """What the file says about receivers and letters."""

    def __init__(self, found: "list[tuple[Push, int]]", letters: "list[DeadLetter]") -> None:
        self.pushes = {push.number: push for push, _ in found}
        self.last = {push.number: last for push, last in found}
        self.letters = [
            Letter(self.pushes[letter.push], letter)
            for letter in letters
            if letter.push in self.pushes
        ]

    def state(self, push: "Push") -> str:
        """Return how a receiver is; empty: it got all there was."""
        if push.is_open:
            return "failing" if push.failing_since else "open"
        return "disabled" if push.failing_since and push.cursor < self.last[push.number] else ""


_COLUMNS = (
    Column("state", "state", "state"),
    Column("push", "id", "id"),
    Column("receiver", "receiver"),
    Column("behind", "behind", "number"),
    Column("tries", "tries", "number"),
    Column("next try", "nextAt", "age"),
    Column("age", "since|at", "age"),
    Column("problem", "problem"),
)


@command("list")
@looks_elsewhere
@LIMIT
@PAGE_TOKEN
def list_(run: Invocation, store: StorePlace, limit: int, page_token: str) -> None:
    """List receivers that wait, fail or were given up, and dead letters."""
    with budget(run):
        file = _file(run, store)
    items, next_page = page_after([*_receivers(file), *_dead(file)], page_token, limit)
    if run.out.is_table:
        # A receiver's own id is two long ones: nothing else would have room beside it.
        items = [item | {"id": item["task"]} if item["state"] != "dead" else item for item in items]
    show_page(
        run,
        items,
        next_page,
        lambda item: run.out.fields(item, {"nextAt": "Next-Try"}, _SHOWN),
        columns=_COLUMNS,
        empty="every receiver has what it should have; there is no dead letter",
    )
    if not isinstance(store, RemoteStore) and not settings_of(run, store=store).push.enabled:
        run.out.warn("push is off (DRAGOMAN_PUSH): a server with this setting posts none")


def _receivers(file: DeadLetterFile) -> list[dict[str, Any]]:
    from dragoman.push.request import origin

    return [
        {
            "state": state,
            "id": f"{one.config.task_id}/{one.config.id}",
            # A path may be a secret as well: many services have nothing else.
            "receiver": origin(one.config.url),
            "task": one.config.task_id,
            "config": one.config.id,
            "behind": file.last[one.number] - one.cursor,
            "tries": one.tries,
            "nextAt": instant(one.due_at),
            "since": instant(one.failing_since),
            "problem": one.problem,
        }
        for one in file.pushes.values()
        if (state := file.state(one))
    ]


def _dead(file: DeadLetterFile) -> list[dict[str, Any]]:
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
        for letter in file.letters
    ]


@command("replay")
@looks_elsewhere
@click.argument("ids", nargs=-1, metavar="[ID]...")
@typed_option("--all", "everything", switch=True, help="Every dead letter and receiver given up.")
@own("--allow-private", switch=True, help="Post to private addresses too.")
@typed_option("--dry-run", switch=True, help="Only print what would be done.")
def replay(
    run: Invocation,
    store: StorePlace,
    ids: tuple[str, ...],
    everything: bool,
    allow_private: bool,
    dry_run: bool,
) -> None:
    """Post dead letters once more, and open receivers again that were given up.

    ID is what `dragoman push list` shows: msg_... of a letter, TASK of the receivers of a task, or
    TASK/CONFIG of one.
    """
    if isinstance(store, RemoteStore) and allow_private:
        raise usage("--allow-private is for posts from here; a gateway has its own setting")
    if not ids and not everything:
        raise usage("name what to replay, or say --all", "dragoman push list")
    file = _file(run, store)
    letters = [letter for letter in file.letters if everything or letter.id in ids]
    closed = [
        one
        for one in file.pushes.values()
        if file.state(one) == "disabled"
        and (everything or _id(one) in ids or one.config.task_id in ids)
    ]
    known = {letter.id for letter in letters}
    known |= {id for one in closed for id in (_id(one), one.config.task_id)}
    if unknown := [id for id in ids if id not in known]:
        raise usage(
            f"{unknown[0]}: no dead letter and no receiver that was given up", "dragoman push list"
        )
    results: list[dict[str, Any]] = []
    if dry_run:
        results += [{"id": one.id, "result": "would be posted"} for one in letters]
        results += [{"id": _id(one), "result": "would be opened"} for one in closed]
    elif isinstance(store, RemoteStore):
        with budget(run):
            results = _replay_elsewhere(store, letters, closed)
    elif letters or closed:
        settings = settings_of(run, store=store, allow_private=allow_private or None)
        with budget(run):
            results = asyncio.run(_replay(settings, letters, closed))
    # What was posted is said also when something else was not.
    problems = [item for item in results if item["result"] == "failed"]
    if run.out.is_json and not problems:
        show_page(run, results, "", lambda item: None)
    elif not run.out.is_json:
        for item in results:
            run.out.fields(item)
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
    settings: "Settings", letters: list[Letter], closed: "list[Push]"
) -> list[dict[str, Any]]:
    """Do it from here; return what came of each."""
    from dragoman.security.vault import vault_of
    from dragoman.server.push_service import PushService
    from dragoman.stores.opening import tool_store_of

    store = tool_store_of(settings, vault_of)
    results: list[dict[str, Any]] = []
    await store.open()
    try:
        await store.prepare()
        service = PushService(store, settings, {})
        try:
            for letter in letters:
                problem = await service.replay(letter.push, letter.seq)
                results.append(_posted(letter, problem))
        finally:
            await service.stop()
        for one in closed:
            await store.reopen_push(one.number)
            results.append({"id": _id(one), "result": "open again"})
    finally:
        await store.close()
    return results


def _replay_elsewhere(
    store: RemoteStore, letters: list[Letter], closed: "list[Push]"
) -> list[dict[str, Any]]:
    """Have a gateway do it; return what came of each."""
    import msgspec

    results: list[dict[str, Any]] = []
    for letter in letters:
        asked = {"receiver": letter.push.number, "position": letter.seq}
        answer = msgspec.json.decode(store.api.operate("POST", "dead-letters/replay", asked))
        results.append(_posted(letter, answer["problem"]))
    for one in closed:
        store.api.operate("POST", f"receivers/{one.number}/retry")
        results.append({"id": _id(one), "result": "open again"})
    return results


def _posted(letter: Letter, problem: str) -> dict[str, Any]:
    if problem:
        return {"id": letter.id, "result": "failed", "problem": problem}
    return {"id": letter.id, "result": "delivered"}


@command("secret")
@STORE_OPTION
def secret(run: Invocation, store: str | None) -> None:
    """Print the secrets that receivers check signatures with, one a line: any of them will do."""
    from dragoman.push.signature import encode_secret, secrets_of
    from dragoman.security.vault import vault_of
    from dragoman.stores.tools import secret_of

    settings = kept_by(run, store)
    # Of a store whose secret is not used, any will do.
    stored = b"" if settings.push.secrets else secret_of(settings, vault_of(settings))
    found = [encode_secret(one) for one in secrets_of(settings.push.secrets, stored)]
    if run.out.is_json:
        run.out.json({"secrets": found})
        return
    # Bare, for `$(dragoman push secret)`.
    for one in found:
        run.out.write(one + "\n")


def _file(run: Invocation, store: StorePlace) -> DeadLetterFile:
    """Read a store without becoming one of its workers."""
    with health_of(run, store) as (inspection, wait):
        return DeadLetterFile(wait(inspection.pushes()), wait(inspection.letters()))
