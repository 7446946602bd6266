"""`dragoman store`: what the store is, its schema, whether it is whole, and a copy into another.

Each works on a file and on a database. Nothing that callers said is shown, nor a password.
"""

from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.audit_trail import AUDIT_OPTION, record, recording
from dragoman.cli.failures import Failure, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.backup import Progress
from dragoman.cli.own_options import (
    STORE,
    STORE_OPTION,
    budget,
    ending_in_order,
    kept_by,
    settings_of,
    typed_option,
)

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.config import Settings

BROKEN = "DRAGOMAN_ERR_STORE_BROKEN"

store = Group(
    "store",
    help="Check, migrate and copy the store.",
    places={
        "status": CommandPlace("operating.store:status", "Show the store's state and its users."),
        "migrate": CommandPlace("operating.store:migrate", "Upgrade it to the current schema."),
        "check": CommandPlace("operating.store:check", "Check that the store is consistent."),
        "copy": CommandPlace("operating.store:copy", "Copy a file into a database, or back."),
    },
)


@command("status")
@STORE_OPTION
def status(run: Invocation, store: str | None) -> None:
    """Say what the store is, how large, and who uses it; `dragoman doctor` judges it."""
    settings = kept_by(run, store)
    with ending_in_order(), budget(run):
        found = _database(settings) if settings.is_postgres else _file(settings)
        found |= _contents(settings)
    if run.out.is_json:
        run.out.json(found)
        return
    for name, value in found.items():
        label = "-".join(word.capitalize() for word in _words(name))
        run.out.field(label, "hidden" if value is None else str(value))


def _words(name: str) -> list[str]:
    """Return the words of a name such as `bytesUsed`."""
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).split()


def _file(settings: "Settings") -> dict[str, Any]:
    return {
        "store": settings.store_name,
        "kind": "sqlite",
        "bytes": settings.store_path().stat().st_size if settings.store_path().exists() else 0,
    }


def _database(settings: "Settings") -> dict[str, Any]:
    from dragoman.stores.tools import database_facts

    facts = database_facts(settings)
    return {
        "store": settings.store_name,
        "kind": "postgresql",
        "bytes": facts.size,
        "version": facts.version,
        "schema": facts.schema,
        "connections": facts.connections,
        "connectionsAllowed": facts.most_connections,
        "standbys": len(facts.standbys),
        "standbyBytesBehind": facts.behind,
        "waitingCommits": facts.waiting_commits,
        "partitions": facts.partitions,
        "transfersUnsealed": facts.unsealed,
    }


def _contents(settings: "Settings") -> dict[str, Any]:
    from dragoman.stores.tools import inspecting

    with inspecting(settings) as (look, wait):
        workers = [worker.state for worker in wait(look.workers())]
        orphans = wait(look.orphans())
        receivers = wait(look.receivers())
        return {
            "tasks": wait(look.tasks()),
            "unfinished": orphans.unfinished,
            "orphaned": orphans.number,
            "overdue": wait(look.overdue()),
            "workersLive": workers.count("live"),
            "workersFrozen": workers.count("frozen"),
            "workersDead": workers.count("dead"),
            "receiversFailing": receivers.failing,
            "receiversGivenUp": receivers.given_up,
            "deadLetters": wait(look.dead_letters())[0],
        }


@command("migrate")
@STORE_OPTION
def migrate(run: Invocation, store: str | None) -> None:
    """Bring the store to the schema of this release, as the next server to start would.

    A database that older servers still use is refused if they could not go on; stop them first. An
    empty database is made ready.
    """
    import asyncio

    from dragoman.security.vault import vault_of
    from dragoman.stores.opening import tool_store_of

    settings = kept_by(run, store)

    async def work() -> None:
        opened = tool_store_of(settings, vault_of)
        await opened.open()
        await opened.close()

    with ending_in_order(), budget(run):
        asyncio.run(work())
    if run.out.is_json:
        run.out.json({"store": settings.store_name, "result": "ok"})
        return
    run.out.field("Store", settings.store_name)
    run.out.field("Result", "ok")


@command("check")
@STORE_OPTION
def check(run: Invocation, store: str | None) -> None:
    """Check that all of the store fits together: counters and rows, logs without gaps, snapshots
    and their logs, keys and tasks, the ledger's and the log of trust's chains.

    Also while servers work on it: what is checked is one moment. It reads all of the store.
    """
    from dragoman.stores.tools import inconsistencies

    settings = kept_by(run, store)
    with ending_in_order(), budget(run):
        problems = [str(one) for one in inconsistencies(settings)]
        problems += _of_the_gateway(settings)
    if problems:
        if not run.out.is_json:
            for text in problems:
                run.out.field("Problem", text)
        raise Failure(
            BROKEN,
            f"{settings.store_name}: {len(problems)} problems, the first: {problems[0]}",
            hint="dragoman doctor",
        )
    if run.out.is_json:
        run.out.json({"store": settings.store_name, "result": "ok"})
        return
    run.out.field("Store", settings.store_name)
    run.out.field("Result", "ok")


def _of_the_gateway(settings: "Settings") -> list[str]:
    """Return what is wrong with ledger and trust, if there are any."""
    import time

    from dragoman.gateway.trust.export import verify_contents
    from dragoman.gateway.trust.scores import TrustRules
    from dragoman.stores.tools import accounting_of

    with accounting_of(settings) as (accounting, wait):
        report = wait(accounting.ledger.verify(""))
        contents = wait(accounting.trust.contents())
        created = {id: at for id, (_, at) in wait(accounting.registered()).items()}
    rules = TrustRules(settings.gateway.trust_policy, settings.gateway.trust_cap)
    trust = verify_contents(contents, created, rules, int(time.time() * 1000))
    problems = [f"ledger: {text}" for text in report.differences]
    return problems + ([f"trust: {trust.problem}"] if trust.problem else [])


@command("copy")
@click.argument("source", metavar="FROM", help="The store to copy: a file, or postgresql://…")
@click.argument("target", metavar="TO", help="An empty database, or a file that does not exist.")
@typed_option(
    "--anew", switch=True, help="Delete what an earlier copy left in TO, and begin again."
)
@AUDIT_OPTION
def copy(run: Invocation, source: str, target: str, anew: bool, audit: str | None) -> None:
    """Copy everything: tasks with their logs, keys and receivers, agents, workflows, the ledger and
    the log of trust, with their numbers and hashes. Then read the copy and compare.

    Stop the servers of FROM first, or restart them with --read-only; it is only read. If the copy
    is interrupted, run the command again: it continues. No server starts on half a copy. Secrets
    stay encrypted with the same key: the key file of FROM is copied to where TO has its own, unless
    keys are in DRAGOMAN_STORE_KEY. Unfinished tasks continue when a server starts on TO.
    """
    from dragoman.errors import StoreRefused
    from dragoman.stores import tools

    ours, theirs = settings_of(run, store=source), settings_of(run, store=target)
    for settings in (ours, theirs):
        if settings.stores.location == "memory:":
            raise usage("memory: cannot be copied: it is in one process")
    if ours.store_name == theirs.store_name:
        raise usage("FROM and TO are the same")
    progress = Progress(run.out)
    with ending_in_order(), budget(run), recording(run, audit, target) as log:
        key_file = _hand_over_keys(ours, theirs)
        try:
            copied = tools.copy(ours, theirs, progress.show, anew=anew)
        except StoreRefused as error:
            raise Failure(STORE, str(error), hint="dragoman store copy --help") from None
        record(log, "store.copy", f"{ours.store_name} {theirs.store_name}")
    if copied.latecomers:
        run.out.warn(
            f"{copied.latecomers} process(es) began to serve from FROM meanwhile: what they did is "
            "not in the copy"
        )
    if run.out.is_json:
        run.out.json(
            {
                "store": theirs.store_name,
                "rows": copied.rows,
                "resumed": copied.is_resumed,
                "keyFile": key_file,
            }
        )
        return
    run.out.field("Store", theirs.store_name)
    run.out.field("Tasks", str(copied.rows["tasks"]))
    run.out.field("Rows", str(sum(copied.rows.values())))
    run.out.field("Verified", "counts and hashes of every table")
    if key_file:
        run.out.field("Key-File", f"{key_file} (every machine that serves needs it)")


def _hand_over_keys(source: "Settings", target: "Settings") -> str:
    """Put the keys that the source is sealed with where a server of the target looks for them;
    return the file, if keys are in files."""
    from dragoman.errors import ConfigError
    from dragoman.security.vault import vault_of, write_key_file
    from dragoman.stores.tools import sealed_with

    used = sealed_with(source)
    ours, theirs = vault_of(source), vault_of(target)
    if used:
        ours.ready(used)
    theirs.reload()
    if theirs.file is None or not used:
        return ""
    if missing := [one.hex() for one in used if one not in theirs.ids]:
        if theirs.ids or ours.file is None:
            raise ConfigError(
                f"{theirs.file}: has no key {missing[0]}, which the store is sealed with; name the "
                "right key file by DRAGOMAN_STORE_KEY_FILE, or move this one away"
            )
        target.make_own_folder()
        write_key_file(theirs.file, ours.keys)
    return str(theirs.file)
