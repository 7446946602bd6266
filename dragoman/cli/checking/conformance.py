"""`dragoman conformance`: does a running agent keep to the protocol?"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import INTERNAL, Failure, usage
from dragoman.cli.grammar import command
from dragoman.cli.hints import look_at
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import own, typed_option

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.checking.checked_agent import CheckAccess
    from dragoman.cli.checking.conformance_checks import Check
    from dragoman.client.client import Client
    from dragoman.egress.egress import Egress

_STATUSES = ("pass", "fail", "skip")
_CATEGORIES = ("card", "interface", "wait", "capability", "task", "error", "paging")


@command("conformance")
@click.argument("ref", required=False)
@typed_option(
    "--suite",
    type=click.Choice(["smoke", "tck"]),
    default="smoke",
    help="The checks built in, or an external kit.",
)
@own("--tck", default="", metavar="<command>", help="The kit that --suite tck runs.")
@typed_option(
    "--category",
    multiple=True,
    metavar="<name>",
    help=f"Only these checks: {', '.join(_CATEGORIES)}; or the kit's. Repeatable.",
)
@own(
    "--message",
    default="hello",
    metavar="<s>",
    help="The message to send; best one that the agent completes at once.",
)
@typed_option("--report", default="", metavar="<path>", help="Write a report too.")
@own("--strict", switch=True, help="Exit with 1 if a check fails.")
def conformance(
    run: Invocation,
    ref: str | None,
    suite: str,
    tck: str,
    category: tuple[str, ...],
    message: str,
    report: str,
    strict: bool,
) -> None:
    """Check that a running agent follows the protocol.

    This sends real messages to the agent, several over each interface of its card; the tasks they
    make stay there. --transport and --a2a-version choose among the interfaces. The exit code says
    that the checks ran, not how they went.
    """
    if ref:
        run.settings.agent_card = ref
    if tck and suite != "tck":
        raise usage("--tck goes with --suite tck", remedy="--suite tck")
    if suite == "tck":
        failed = _kit(run, tck, category, report)
    else:
        failed = _smoke(run, category, message, report)
    if failed and strict:
        sys.exit(1)


def _smoke(run: Invocation, category: tuple[str, ...], message: str, report: str) -> int:
    from dragoman.cli.session import guarded

    for name in category:
        if name not in _CATEGORIES:
            raise usage(f"--category must be one of {', '.join(_CATEGORIES)}")
    agent: dict[str, Any] = {}
    checks: list[Check] = []

    async def work() -> None:
        with run.out.waiting_for("checking the card"):
            async for check in _checked(run, agent, category or _CATEGORIES, message):
                checks.append(check)
                _show(run, check)
                bad = sum(one.status == "fail" for one in checks)
                run.out.progress(
                    f"{len(checks)} checks, {bad} failed  {check.category}.{check.name}"
                )

    guarded(run, work)
    counts = {name: sum(one.status == name for one in checks) for name in _STATUSES}
    found = {
        "suite": "smoke",
        "agent": agent,
        "checks": [one._asdict() for one in checks],
        "summary": counts,
    }
    if run.out.is_json and not run.out.is_stream:
        run.out.json(found)
    elif not run.out.is_json:
        for label, name in (("Passed", "pass"), ("Failed", "fail"), ("Skipped", "skip")):
            run.out.field(label, str(counts[name]))
    if report:
        _write(run.folder / Path(report).expanduser(), found)
    if counts["fail"]:
        run.out.warn(f"{counts['fail']} of {len(checks)} checks failed")
    return counts["fail"]


async def _checked(
    run: Invocation, agent: dict[str, Any], categories: tuple[str, ...], message: str
) -> "AsyncGenerator[Check]":
    from dragoman.cli.checking.conformance_checks import Check, smoke
    from dragoman.cli.session import dialling, looking
    from dragoman.errors import CardInvalid

    # Each request on a connection of its own: one that went stale is no fault of the agent's.
    async with looking(run) as client, dialling(run) as http:
        try:
            card = await client.look(fresh=True)
        except CardInvalid as error:
            # It was read, and that is what came of it; nothing else can be looked at.
            findings = error.facts.get("findings") or error.public
            yield Check("schema", "card", "", "fail", findings)
            return
        agent.update(name=card.name, version=card.version)
        access = _access(run, client, http)
        async for check in smoke(
            card,
            client.raw_card,
            access,
            text=message,
            categories=categories,
            version=run.settings.a2a_version,
            bindings=run.settings.transport,
        ):
            yield check


def _access(run: Invocation, agent: "Client", http: "Egress") -> "CheckAccess":
    """Return how the agent is called, by the same rules as in every other command."""
    from dragoman.cli.checking.checked_agent import CheckAccess
    from dragoman.cli.session import credentials_of, observing
    from dragoman.client.credentials.credentials import choose

    settings = run.settings
    return CheckAccess(
        http=http,
        chosen=choose(agent.card, credentials_of(run)),
        origins=agent.origins,
        headers={name.lower(): value for name, value in settings.svc_param},
        extensions=settings.extension,
        **observing(run),
    )


def _show(run: Invocation, check: "Check") -> None:
    if run.out.is_json:
        if run.out.is_stream:
            run.out.json(check._asdict())
        return
    run.out.field("Check", f"{check.category}.{check.name}")
    if check.interface:
        run.out.field("Interface", check.interface)
    run.out.field("Status", check.status)
    run.out.field("Finding", run.redactor.text(check.message))


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# The external kit


def _kit(run: Invocation, tck: str, category: tuple[str, ...], report: str) -> int:
    """Run the kit; what it says goes to stderr, because stdout is for what came of it."""
    from dragoman.cli.own_options import budget, ending_in_order

    if not tck:
        raise usage("--suite tck needs the kit: --tck <command>", remedy="--tck <command>")
    if not run.settings.agent_card:
        raise usage("which agent? -a <ref> names it", remedy="-a localhost:8000")
    words = [*shlex.split(tck), "--sut-url", _base(run)]
    for name in category:
        words += ["--category", name]
    if report:
        words += ["--compliance-report", str(run.folder / Path(report).expanduser())]
    if shutil.which(words[0]) is None:
        raise usage(f"{words[0]} is not there; --tck names the command of the kit")
    run.out.debug(f"kit: {shlex.join(words)}")
    try:
        with budget(run), ending_in_order():
            code = subprocess.run(words, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise Failure(INTERNAL, f"{words[0]}: {error.strerror}", hint=look_at(words[0])) from None
    found: dict[str, Any] = {"suite": "tck", "command": words, "exit": code}
    if report:
        found["report"] = report
    if run.out.is_json:
        run.out.json(found)
    else:
        run.out.field("Suite", "tck")
        run.out.field("Exit", str(code))
        if report:
            run.out.field("Report", report)
    if code:
        run.out.warn(f"the kit ended with {code}")
    return code


def _base(run: Invocation) -> str:
    """Return the address that kits want: where the agent is, without the path of its card."""
    from dragoman.client.cards.references import CARD_PATH, parse

    reference = parse(run.settings.agent_card)
    if not reference.url or reference.kind != "url":
        raise usage("a kit is given an address: -a takes a host or a URL here")
    return reference.url.removesuffix(CARD_PATH)
