"""What `dragoman doctor <ref>` finds out about an agent: is it there, and could one talk to it?

Nothing is sent that an agent would work on: its card is read, and its addresses are asked for
whether anybody answers.
"""

import asyncio
import shlex
from typing import TYPE_CHECKING

from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.checks.findings import CheckResult, Finding, count, ok, problem, warning

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.client.client import Client
    from dragoman.egress.egress import Egress
    from dragoman.model.card import AgentInterface

NAMES = [
    "agent-card",
    "agent-valid",
    "agent-version",
    "agent-interfaces",
    "agent-signature",
    "agent-credentials",
    "agent-answers",
]
_SHOWN = 3
_ANSWER_WITHIN = 10.0


def examine(run: Invocation, names: set[str]) -> list[Finding]:
    """Run the named checks on the agent of the run."""
    from dragoman.cli.session import guarded

    found: list[Finding] = []

    async def work() -> None:
        found.extend(await _examine(run, names))

    guarded(run, work)
    return found


async def _examine(run: Invocation, names: set[str]) -> list[Finding]:
    from dragoman.cli.session import dialling, looking
    from dragoman.errors import A2AError

    ref = shlex.quote(run.redactor.text(run.settings.agent_card))
    found: list[Finding] = []

    def note(name: str, verdict: CheckResult) -> None:
        if name in names:
            found.append(Finding(name, *verdict))

    async with looking(run) as agent:
        try:
            card = await agent.look(fresh=True)
        except A2AError as error:
            # The other checks have nothing to look at.
            verdict = problem(error.public, f"dragoman card get -a {ref} --no-cache --debug")
            return [Finding("agent-card", *verdict)]
        note("agent-card", ok(f"{card.name} {card.version}, {count(len(card.skills), 'skill')}"))
        note("agent-valid", _valid(agent, ref))
        note("agent-version", _version(run, agent))
        if "agent-interfaces" in names:
            async with dialling(run) as http:
                note("agent-interfaces", await _interfaces(http, card.supported_interfaces))
        if "agent-signature" in names:
            note("agent-signature", await _signature(run, agent))
        note("agent-credentials", _credentials(run, agent, ref))
        if "agent-answers" in names:
            note("agent-answers", await _answers(agent))
    return found


def _valid(agent: "Client", ref: str) -> CheckResult:
    from dragoman.dialects.card_check import findings

    wrong = findings(agent.raw_card)
    if not wrong:
        return ok("the card is valid by the letter of its version")
    listed = "; ".join(str(one) for one in wrong[:_SHOWN])
    return warning(
        f"{count(len(wrong), 'thing')} wrong with the card: {listed}",
        f"tell its author; dragoman card get -a {ref} --validate lists all",
    )


def _version(run: Invocation, agent: "Client") -> CheckResult:
    from dragoman.cli.session import is_older, selected
    from dragoman.errors import A2AError

    try:
        first = selected(run, agent.card, agent.raw_card)
    except A2AError as error:
        offered = error.facts.get("supportedVersions", "").partition(",")[0] or "0.3"
        return problem(error.public, f"--a2a-version {offered}")
    how = f"{first.dialect.version} over {first.interface.protocol_binding}"
    only = ", and nothing newer" if is_older(first.dialect.version) else ""
    return ok(f"{how} at {run.redactor.text(first.interface.url)}{only}")


async def _interfaces(http: "Egress", interfaces: "list[AgentInterface]") -> CheckResult:
    interfaces = [one for one in interfaces if one.protocol_binding.upper() != "GRPC"]
    answers = await asyncio.gather(*(_reach(http, one) for one in interfaces))
    dead = [
        f"{one.protocol_binding} at {one.url}: {reason}"
        for one, reason in zip(interfaces, answers, strict=True)
        if reason
    ]
    if not dead:
        return ok(f"{count(len(interfaces), 'interface')}, each accepts connections")
    say = problem if len(dead) == len(interfaces) else warning
    return say(
        f"no answer from {count(len(dead), 'interface')}: {'; '.join(dead[:_SHOWN])}",
        "is it running, and is its public address right? a server of ours has --public-url",
    )


async def _reach(http: "Egress", interface: "AgentInterface") -> str:
    """Return why an address cannot be reached; empty: a connection is accepted.

    Interfaces of gRPC are not asked: at their addresses there may be no HTTP/1.1.
    """
    from dragoman.egress.errors import EgressError

    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            async with http.open("GET", interface.url, headers={"a2a-version": "1.0"}):
                return ""
    except EgressError as error:
        return error.reason
    except TimeoutError:
        return f"no answer within {_ANSWER_WITHIN:g} s"


async def _signature(run: Invocation, agent: "Client") -> CheckResult:
    from dragoman.cli.calling.card import judge, verdict_text
    from dragoman.errors import A2AError

    try:
        verdict = await judge(run, agent, None)
    except ModuleNotFoundError:
        return ok("not checked: signatures take the extra dragoman[jwt]")
    except A2AError as error:
        return warning(error.public, "dragoman card get --keys names the keys you trust")
    if verdict.kind == "unverifiable":
        return warning(verdict_text(verdict), "dragoman card get --keys names the keys you trust")
    return ok(verdict_text(verdict))


async def _answers(agent: "Client") -> CheckResult:
    """Ask for a task that does not exist: does the agent speak A2A, and as its version has it?"""
    from dragoman.client.pending_request import NotServed
    from dragoman.errors import A2AError

    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            read = await agent.examine()
    except NotServed as error:
        return problem(f"{error.public}", "is the address in its card the one it listens at?")
    except TimeoutError:
        return problem(f"no answer within {_ANSWER_WITHIN:g} s", "does it hang?")
    except A2AError as error:
        return warning(f"not known: {error.public}", "the other checks say more")
    if not read:
        return ok("as its version has it, as far as that is seen without giving it work")
    return warning(
        f"read leniently: {'; '.join(read)}",
        "it works; tell its author, other clients may not understand it",
    )


def _credentials(run: Invocation, agent: "Client", ref: str) -> CheckResult:
    from dragoman.cli.session import credentials_of
    from dragoman.client.credentials.credentials import choose, schemes
    from dragoman.errors import CredentialsMissing

    try:
        chosen = choose(agent.card, credentials_of(run))
    except CredentialsMissing as error:
        names = ", ".join(schemes(agent.card))
        return problem(
            f"{error.public} (schemes: {names})",
            f"set A2ACLI_BEARER or A2ACLI_API_KEY, or: dragoman auth login -a {ref}",
        )
    if chosen.attached:
        return ok("given for " + ", ".join(scheme.name for scheme, _ in chosen.attached))
    return ok("none are needed")
