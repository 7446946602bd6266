"""`dragoman card get`: what an agent says of itself, and what is to be thought of it.

Signing a card and judging its signatures one by one is in `card_signatures.py`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import CARD_INVALID, Failure
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import again
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.dialects.reading import members

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.client.client import Client
    from dragoman.model.card import AgentCard
    from dragoman.security.card_signatures import SignatureVerdict

card = Group(
    "card",
    help="Show, sign and verify agent cards.",
    places={
        "get": CommandPlace("calling.card:get", "Show an agent's card."),
        "sign": CommandPlace("calling.card_signatures:sign", "Sign the card in a file."),
        "verify": CommandPlace("calling.card_signatures:verify", "Check a card's signatures."),
    },
)


@command("get")
@click.argument("ref", required=False)
@option("--validate", switch=True, help="Check the card by the letter, and list what is wrong.")
@option("--extended", switch=True, help="Show the card that only known callers see.")
@option("--require-signature", switch=True, help="Fail unless a trusted key signed the card.")
@option("--keys", metavar="<jwks|pem>", help="File of the keys that are trusted to sign it.")
@option("--no-cache", switch=True, help="Ask the agent, whatever an earlier run kept.")
def get(
    run: Invocation,
    ref: str | None,
    validate: bool,
    extended: bool,
    require_signature: bool,
    keys: str | None,
    no_cache: bool,
) -> None:
    """Show an agent's card: REF, or -a, is a host, URL or file."""
    run.take_reference(ref)
    from dragoman.cli.session import guarded, looking
    from dragoman.errors import CardInvalid

    async def work() -> None:
        async with looking(run) as agent:
            try:
                shown = await agent.look(fresh=no_cache)
            except CardInvalid as error:
                # One thing makes a card unusable; who validates wants to know of all.
                if validate and (listed := error.facts.get("findings")):
                    raise wrong(run, listed.split("; ")) from None
                raise
            if validate:
                check(run, agent.raw_card)
            verdict = await judge(run, agent, keys)
            if require_signature and verdict.kind != "verified":
                raise Failure(
                    CARD_INVALID,
                    f"the signature is {verdict_text(verdict)}",
                    hint=again(run, off=("--require-signature",)),
                )
            raw = None if extended else agent.raw_card
            if extended:
                shown = await _extended(run, agent)
        show(run, shown, raw, verdict, is_checked=validate)

    guarded(run, work)


def check(run: Invocation, raw: Any) -> None:
    """Raise all that is wrong with a card."""
    from dragoman.dialects.card_check import findings

    if found := findings(raw):
        raise wrong(run, [str(finding) for finding in found])


def wrong(run: Invocation, findings: Sequence[str]) -> Failure:
    """Return the failure of a card, after a line for each finding; a program gets one message."""
    message = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    if run.out.is_json:
        message += f": {'; '.join(findings)}"
    else:
        for finding in findings:
            run.out.note("Finding", finding)
    return Failure(CARD_INVALID, message, hint=again(run, off=("--validate",)))


async def judge(run: Invocation, agent: "Client", keys: str | None) -> "SignatureVerdict":
    """Return the verdict on a card's signatures, by the keys the user names."""
    from dragoman.cli.session import cards_of, dialling
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import verify

    trusted = KeySet.load(run.folder / keys) if keys else KeySet([])
    if origins := run.settings.trust_origin:
        async with dialling(run) as http:
            trusted |= await cards_of(run).keys(http, agent.raw_card, origins)
    return verify(agent.raw_card, trusted)


def verdict_text(verdict: "SignatureVerdict") -> str:
    """Return a verdict in one line."""
    reason = verdict.reason or (f"key {verdict.kid}" if verdict.kid else "")
    return f"{verdict.kind} ({reason})" if reason else verdict.kind


async def _extended(run: Invocation, agent: "Client") -> "AgentCard":
    """Return the card for known callers; it is never asked for without credentials."""
    from dragoman.cli.session import credentials_of
    from dragoman.client.cards.interfaces import address_of
    from dragoman.client.credentials.credentials import choose, schemes
    from dragoman.errors import CredentialsMissing

    public = agent.card
    if public.capabilities.extended_agent_card and not (
        choose(public, credentials_of(run), address_of(public)).attached
    ):
        raise CredentialsMissing(
            "The extended card is for known callers, and no scheme of the card has a credential",
            kinds=",".join(scheme.kind for scheme in schemes(public).values()),
        )
    return await agent.extended_card()


def show(
    run: Invocation,
    card: "AgentCard",
    raw: dict[str, Any] | None,
    verdict: "SignatureVerdict",
    *,
    is_checked: bool = False,
) -> None:
    """Show a card: as it is written where it is of 1.0, else as 1.0 has it."""
    out = run.out
    if out.is_json:
        from dragoman.dialects.cards import v1_0

        out.note("Signature", verdict_text(verdict))
        out.json(raw if raw is not None and "supportedInterfaces" in raw else v1_0(card))
        return
    out.field("Name", card.name)
    out.field("Description", card.description)
    out.field("Version", card.version)
    if card.provider is not None:
        out.field("Provider", f"{card.provider.organization} ({card.provider.url})")
    if card.documentation_url:
        out.field("Documentation", card.documentation_url)
    _show_abilities(run, card)
    for scheme, content in card.security_schemes.items():
        out.field("Scheme", f"{scheme} ({_kind(content)})")
    for requirement in card.security_requirements:
        out.field("Requires", " and ".join(_names(requirement)) or "nothing")
    for skill in card.skills:
        out.field("Skill", f"{skill.id} ({skill.name}): {skill.description}")
        if out.is_verbose:
            for example in skill.examples:
                out.field("Example", example)
    out.field("Selected", _selected(run, card, raw))
    out.field("Signature", verdict_text(verdict))
    if is_checked:
        out.field("Valid", "true")


def _show_abilities(run: Invocation, card: "AgentCard") -> None:
    out, able = run.out, card.capabilities
    for label, value in (
        ("Streaming", able.streaming),
        ("Push", able.push_notifications),
        ("Extended-Card", able.extended_agent_card),
    ):
        out.field(label, "true" if value else "false")
    for extension in able.extensions:
        out.field("Extension", extension.uri + (" (required)" if extension.required else ""))
    for one in card.supported_interfaces:
        tenant = f", tenant {one.tenant}" if one.tenant else ""
        out.field("Interface", f"{one.url} ({one.protocol_binding} {one.protocol_version}{tenant})")
    out.field("Input-Modes", ", ".join(card.default_input_modes))
    out.field("Output-Modes", ", ".join(card.default_output_modes))


def _selected(run: Invocation, card: "AgentCard", raw: dict[str, Any] | None) -> str:
    from dragoman.cli.session import selected
    from dragoman.errors import A2AError

    try:
        first = selected(run, card, raw)
    except A2AError as error:
        return f"none: {error.public}"
    return f"{first.interface.url} ({first.interface.protocol_binding} {first.dialect.version})"


def _kind(content: Any) -> str:
    """Return what a scheme is, as its card names it."""
    for name, inner in members(content).items():
        facts = members(inner)
        more = [str(facts[key]) for key in ("scheme", "location", "name") if facts.get(key)]
        return " ".join([name.removesuffix("SecurityScheme"), *more])
    return "unknown"


def _names(requirement: Any) -> list[str]:
    return list(members(members(requirement).get("schemes")))
