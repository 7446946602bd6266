"""`dragoman trust`: how far a gateway trusts its agents, and whether that follows from its log.

It looks into the store, read only and also while a gateway works on it, or with `--gateway` into
that of a gateway elsewhere. What is shown is
computed from the store's own sums; `verify` computes it once more, from the log alone.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from dragoman.cli.failures import Failure
from dragoman.cli.gateway.gateway_api import ELSEWHERE_OPTIONS, elsewhere
from dragoman.cli.gateway.store_place import (
    RemoteStore,
    StorePlace,
    accounting_in,
    looks_elsewhere,
)
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import look_at
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    STORE,
    STORE_OPTION,
    budget,
    ending_in_order,
    kept_by,
    offset_of,
    show_page,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.gateway.trust.export import TrustReport
    from dragoman.gateway.trust.reputation import Reputation
    from dragoman.gateway.trust.scores import TrustRules
    from dragoman.stores.interface.trust import TrustStore
    from dragoman.stores.tools import Wait

BROKEN = "DRAGOMAN_ERR_TRUST_BROKEN"
NOT_FOUND = "DRAGOMAN_ERR_AGENT_NOT_FOUND"

trust = Group(
    "trust",
    help="Show and verify the trust in a gateway's agents.",
    places={
        "list": CommandPlace("operating.trust:list_", "List agents, the most trusted first."),
        "show": CommandPlace("operating.trust:show", "Show the reputation of an agent."),
        "explain": CommandPlace("operating.trust:explain", "Explain a score."),
        "rate": CommandPlace("gateway.trust_feedback:rate", "Rate a task of yours at a gateway."),
        "dispute": CommandPlace("gateway.trust_feedback:dispute", "Dispute a task."),
        "disputes": CommandPlace("operating.trust_disputes:disputes", "List disputes."),
        "resolve": CommandPlace("operating.trust_disputes:resolve", "Decide on a dispute."),
        "verify": CommandPlace("operating.trust:verify", "Compute all scores again from the log."),
        "export": CommandPlace("operating.trust:export", "Write the log and the scores to a file."),
    },
)


class TrustFile(NamedTuple):
    """Trust in a store at one moment."""

    store: "TrustStore"
    wait: "Wait"
    rules: "TrustRules"
    # Name and time of registration, by id.
    agents: dict[str, tuple[str, int]]
    at: int

    def created(self) -> dict[str, int]:
        return {id: created_at for id, (_, created_at) in self.agents.items()}

    async def reputation(self, id: str) -> "Reputation":
        from dragoman.gateway.trust.reputation import reputation_of

        name, created_at = self.agents[id]
        return await reputation_of(self.store, id, name, created_at, self.rules, self.at)

    async def page(self, first: int, limit: int) -> "tuple[list[Reputation], bool]":
        """Return agents, the most trusted first, and whether there are more."""
        from dragoman.gateway.trust.reputation import facts_in
        from dragoman.gateway.trust.scores import score

        facts = await facts_in(self.store, self.created(), self.rules.cap, self.at)
        scores = {id: score(one, self.rules.policy).value for id, one in facts.items()}
        order = sorted(self.agents, key=lambda id: (-scores[id], self.agents[id][0]))
        page = [await self.reputation(id) for id in order[first : first + limit]]
        return page, len(order) > first + limit

    def find(self, ref: str) -> "Reputation":
        found = [id for id, (name, _) in self.agents.items() if ref in (id, name)]
        if not found:
            raise Failure(
                NOT_FOUND,
                f"{ref}: there is no such agent in this store",
                hint="dragoman trust list",
            )
        return self.wait(self.reputation(found[0]))


@contextmanager
def reading(run: Invocation, store: StorePlace) -> "Generator[TrustFile]":
    """Open trust in a store: all that a command shows of a file is of one moment."""
    with ending_in_order(), budget(run), accounting_in(run, store) as (file, wait):
        rules = _rules(run, store)
        agents = wait(file.registered())
        yield TrustFile(file.trust, wait, rules, agents, int(time.time() * 1000))


def _rules(run: Invocation, store: StorePlace) -> "TrustRules":
    """Return how scores are made: as a gateway of the same settings does it, or the one asked."""
    from dragoman.gateway.trust.scores import TrustRules

    if isinstance(store, RemoteStore):
        import msgspec

        return TrustRules(**msgspec.json.decode(store.api.operate("GET", "trust-rules")))
    gateway = kept_by(run, store).gateway
    return TrustRules(gateway.trust_policy, gateway.trust_cap)


@command("list")
@looks_elsewhere
@LIMIT
@PAGE_TOKEN
def list_(run: Invocation, store: StorePlace, limit: int, page_token: str) -> None:
    """List agents, the most trusted first."""
    first = offset_of(page_token)
    with reading(run, store) as file:
        page, has_more = file.wait(file.page(first, limit))
    items = [one.document() for one in page]
    token = str(first + limit) if has_more else ""
    show_page(
        run,
        items,
        token,
        lambda item: _record(run, item),
        columns=_COLUMNS,
        empty="no agent is registered; `dragoman agents register <url>` registers one",
    )


_COLUMNS = (
    Column("agent", "agentName", "id"),
    Column("trust", "trustScore", "number"),
    Column("badge", "badge"),
    Column("completed", "taskStats/completed", "number"),
    Column("failed", "taskStats/failed", "number"),
    Column("rating", "ratingStats/avgRating", "number"),
    Column("ratings", "ratingStats/count", "number"),
)


@command("show")
@click.argument("agent", metavar="AGENT")
@STORE_OPTION
@ELSEWHERE_OPTIONS
def show(run: Invocation, agent: str, store: str | None, gateway: str, admin_token: str) -> None:
    """Show the reputation of an agent, by its id or its name: in a store's file, or with --gateway
    at a running gateway."""
    if gateway:
        document = _from_gateway(run, agent, gateway, admin_token)
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
        document = _from_gateway(run, agent, gateway, admin_token)
    else:
        with reading(run, store) as file:
            found = file.find(agent)
        document = found.document() | {"explanation": found.sentences()}
    if run.out.is_json:
        run.out.json(document)
    else:
        for sentence in document["explanation"]:
            run.out.field("Because", sentence)


def _from_gateway(run: Invocation, agent: str, gateway: str, token: str) -> dict[str, Any]:
    api = elsewhere(run, gateway, token)
    return api.ask("GET", f"trust/{quote(agent.removeprefix('@'), safe='')}")


@command("verify")
@click.argument("path", metavar="[EXPORT]", required=False)
@looks_elsewhere
def verify(run: Invocation, path: str | None, store: StorePlace) -> None:
    """Compute all scores again from the log: of the store, or of a file that `export` wrote.

    Finds events that were changed, taken out, put in or moved; scores and sums that are not what
    the events give; and, in a store, events that tell something else than the tasks did. As with
    every chain, an end that was cut off looks in order: note down the head that is printed.
    """
    from dragoman.gateway.trust.export import verify_contents, verify_file

    if path is not None:
        with ending_in_order(), budget(run):
            try:
                report = verify_file(Path(path))
            except OSError as error:
                raise Failure(
                    STORE, f"{path}: {error.strerror or error}", hint=look_at(path)
                ) from None
        _report(run, report, path)
        return
    with reading(run, store) as file:
        contents = file.wait(file.store.contents())
        report = verify_contents(contents, file.created(), file.rules, file.at)
    where = store.api.url if isinstance(store, RemoteStore) else kept_by(run, store).store_name
    _report(run, report, where)


@command("export")
@looks_elsewhere
@typed_option(
    "--save",
    required=True,
    metavar="<path>",
    help="The file to write: lines of JSON, for its owner's eyes alone.",
)
def export(run: Invocation, store: StorePlace, save: str) -> None:
    """Write the log and what was computed of it; `dragoman trust verify` checks it anywhere.

    It names requesters.
    """
    from dragoman.gateway.trust.export import export as write

    with reading(run, store) as file:
        contents = file.wait(file.store.contents())
        try:
            report = write(contents, Path(save), file.created(), file.rules, file.at)
        except OSError as error:
            raise Failure(STORE, f"{save}: {error.strerror or error}", hint=look_at(save)) from None
    _report(run, report, save)


def _report(run: Invocation, report: "TrustReport", where: str) -> None:
    if report.problem:
        raise Failure(BROKEN, f"{where}: {report.problem}", hint="dragoman ledger verify")
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
