"""`dragoman trust`: how far a gateway trusts its agents, and whether that follows from its log.

It looks into the store's file, read only and also while a gateway works on it. What is shown is
computed from the file's own sums; `verify` computes it once more, from the log alone.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway_api import ELSEWHERE_OPTIONS, elsewhere
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import (
    LIMIT,
    PAGE_TOKEN,
    STORE,
    STORE_OPTION,
    budget,
    ending_in_order,
    file_of,
    own,
    show_page,
)

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    import apsw

    from dragoman.gateway.standing import Rules, TrustStanding
    from dragoman.gateway.trust_export import Report

BROKEN = "DRAGOMAN_ERR_TRUST_BROKEN"
NOT_FOUND = "DRAGOMAN_ERR_AGENT_NOT_FOUND"
# The first schema whose disputes can be decided on as they are here.
_SCHEMA = 9

trust = Group(
    "trust",
    help="Look at how far a gateway's agents are trusted, and verify that.",
    places={
        "list": Place("dragoman.cli.trust:list_", "List agents, the most trusted first."),
        "show": Place("dragoman.cli.trust:show", "Show how an agent stands."),
        "explain": Place("dragoman.cli.trust:explain", "Say how a score came about."),
        "rate": Place("dragoman.cli.trust_words:rate", "Rate a task of yours at a gateway."),
        "dispute": Place("dragoman.cli.trust_words:dispute", "Say that a task was not done."),
        "disputes": Place("dragoman.cli.trust_disputes:disputes", "List what is disputed."),
        "resolve": Place("dragoman.cli.trust_disputes:resolve", "Decide on a dispute."),
        "verify": Place("dragoman.cli.trust:verify", "Compute all scores again from the log."),
        "export": Place("dragoman.cli.trust:export", "Write the log and the scores to a file."),
    },
)


class TrustFile(NamedTuple):
    """A store's file at one moment."""

    connection: "apsw.Connection"
    rules: "Rules"
    # Name and time of registration, by id.
    agents: dict[str, tuple[str, int]]
    at: int

    def created(self) -> dict[str, int]:
        return {id: created_at for id, (_, created_at) in self.agents.items()}

    def standing(self, id: str) -> "TrustStanding":
        from dragoman.gateway.standing import standing_of

        name, created_at = self.agents[id]
        return standing_of(self.connection, id, name, created_at, self.rules, self.at)

    def find(self, ref: str) -> "TrustStanding":
        found = [id for id, (name, _) in self.agents.items() if ref in (id, name)]
        if not found:
            raise Failure(
                NOT_FOUND,
                f"{ref}: there is no such agent in this store",
                hint="dragoman trust list",
            )
        return self.standing(found[0])


@contextmanager
def reading(run: Invocation, store: str | None) -> "Generator[TrustFile]":
    from dragoman.errors import ConfigError
    from dragoman.gateway.standing import Rules
    from dragoman.gateway.trust_export import created_of
    from dragoman.stores.sqlite.inspection import open_to_read
    from dragoman.stores.sqlite.schema import run as ask

    settings = file_of(run, store)
    path = settings.store_path()
    connection = open_to_read(path)
    try:
        ((schema,),) = ask(connection, "PRAGMA user_version")
        if schema < _SCHEMA:
            raise ConfigError(f"{path}: no gateway of this release has used it; start one on it")
        with ending_in_order(), budget(run):
            # All that a command tells is of one moment.
            ask(connection, "BEGIN")
            rules = Rules(settings.trust_policy, settings.trust_cap)
            yield TrustFile(connection, rules, created_of(connection), int(time.time() * 1000))
    finally:
        connection.close()


@command("list")
@STORE_OPTION
@LIMIT
@PAGE_TOKEN
def list_(run: Invocation, store: str | None, limit: int, page_token: str) -> None:
    """List agents, the most trusted first."""
    from dragoman.gateway.scores import score
    from dragoman.gateway.standing import facts_in

    if page_token and not page_token.isdecimal():
        raise usage("--page-token is not one of `dragoman trust list`")
    first = int(page_token or 0)
    with reading(run, store) as file:
        facts = facts_in(file.connection, file.created(), file.rules.cap, file.at)
        scores = {id: score(one, file.rules.policy).value for id, one in facts.items()}
        order = sorted(file.agents, key=lambda id: (-scores[id], file.agents[id][0]))
        page = [file.standing(id).document() for id in order[first : first + limit]]
    token = str(first + limit) if len(order) > first + limit else ""
    show_page(run, page, token, lambda item: _record(run, item))


@command("show")
@click.argument("agent", metavar="AGENT")
@STORE_OPTION
@ELSEWHERE_OPTIONS
def show(run: Invocation, agent: str, store: str | None, gateway: str, admin_token: str) -> None:
    """Show how an agent stands, by its id or its name: in a store's file, or with --gateway at a
    running gateway."""
    if gateway:
        document = _asked(run, agent, gateway, admin_token)
        del document["explanation"]
    else:
        with reading(run, store) as file:
            document = file.find(agent).document()
    if run.out.is_json:
        run.out.json(document)
    else:
        _record(run, document)


def _record(run: Invocation, item: dict[str, Any]) -> None:
    run.out.field("Agent", item["agentName"])
    run.out.field("Id", item["agentId"])
    run.out.field("Trust", f"{item['trustScore']} ({item['badge']})")
    parts = ", ".join(f"{name} {value:g}" for name, value in item["components"].items())
    run.out.field("Components", parts)
    tasks, ratings = item["taskStats"], item["ratingStats"]
    run.out.field("Tasks", f"{tasks['completed']} completed, {tasks['failed']} failed")
    if ratings["count"]:
        run.out.field("Ratings", f"{ratings['avgRating']:g} of 5 by {ratings['count']}")


@command("explain")
@click.argument("agent", metavar="AGENT")
@STORE_OPTION
@ELSEWHERE_OPTIONS
def explain(run: Invocation, agent: str, store: str | None, gateway: str, admin_token: str) -> None:
    """Say in sentences and numbers how an agent's score came about."""
    if gateway:
        document = _asked(run, agent, gateway, admin_token)
    else:
        with reading(run, store) as file:
            found = file.find(agent)
        document = found.document() | {"explanation": found.sentences()}
    if run.out.is_json:
        run.out.json(document)
    else:
        for sentence in document["explanation"]:
            run.out.field("Because", sentence)


def _asked(run: Invocation, agent: str, gateway: str, token: str) -> dict[str, Any]:
    api = elsewhere(run, gateway, token)
    return api.ask("GET", f"trust/{quote(agent.removeprefix('@'), safe='')}")


@command("verify")
@click.argument("path", metavar="[EXPORT]", required=False)
@STORE_OPTION
def verify(run: Invocation, path: str | None, store: str | None) -> None:
    """Compute all scores again from the log: of the store, or of a file that `export` wrote.

    Finds events that were changed, taken out, put in or moved; scores and sums that are not what
    the events give; and, in a store, events that tell something else than the tasks did. As with
    every chain, an end that was cut off looks in order: note down the head that is printed.
    """
    from dragoman.gateway.trust_export import verify_file, verify_store

    if path is not None:
        with ending_in_order(), budget(run):
            try:
                report = verify_file(Path(path))
            except OSError as error:
                raise Failure(STORE, f"{path}: {error.strerror or error}") from None
        _tell(run, report, path)
        return
    with reading(run, store) as file:
        rules = file.rules._asdict()
        report = verify_store(file.connection, file.created(), **rules, at=file.at)
    _tell(run, report, str(file_of(run, store).store_path()))


@command("export")
@STORE_OPTION
@own(
    "--save",
    required=True,
    in_environment=False,
    metavar="<path>",
    help="The file to write: lines of JSON, for its owner's eyes alone.",
)
def export(run: Invocation, store: str | None, save: str) -> None:
    """Write the log and what was computed of it; `dragoman trust verify` checks it anywhere.

    It names requesters.
    """
    from dragoman.gateway.trust_export import export as write

    with reading(run, store) as file:
        rules = file.rules._asdict()
        try:
            report = write(file.connection, Path(save), file.created(), **rules, at=file.at)
        except OSError as error:
            raise Failure(STORE, f"{save}: {error.strerror or error}") from None
    _tell(run, report, save)


def _tell(run: Invocation, report: "Report", where: str) -> None:
    if report.problem:
        raise Failure(BROKEN, f"{where}: {report.problem}")
    if run.out.is_json:
        run.out.json(
            {
                "result": "ok",
                "events": report.events,
                "head": report.head,
                "waiting": report.waiting,
                "scores": report.scores,
            }
        )
        return
    run.out.field("Events", str(report.events))
    run.out.field("Head", report.head)
    if report.waiting:
        run.out.field("Waiting", str(report.waiting))
    for agent, value in report.scores.items():
        run.out.field("Score", f"{value} {agent}")
    run.out.field("Result", "ok")
