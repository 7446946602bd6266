"""The options that describe an agent, and the request that they make.

A token for the agent comes from a variable or a file, never from the command line.
"""

from pathlib import Path
from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import Duration, added, typed_option

DRY_RUN = typed_option("--dry-run", switch=True, help="Show what would be sent, and send nothing.")
OFFLINE = typed_option("--offline", switch=True, help="Register it even if it does not answer yet.")
# The options of `register` and `update`.
DESCRIPTION = added(
    [
        typed_option("--name", metavar="<name>", help="Its title (that of its card)."),
        typed_option("--description", metavar="<text>", help="What it does (as its card says)."),
        typed_option(
            "--tag", "tags", multiple=True, metavar="<tag>", help="A tag for search. Repeatable."
        ),
        typed_option("--price", metavar="<credits>", help="What a completed task costs (0)."),
        typed_option(
            "--replica",
            "replicas",
            multiple=True,
            metavar="<url>",
            help="Another address of the same agent. Repeatable.",
        ),
        typed_option(
            "--repeatable",
            type=click.BOOL,
            switch=True,
            default=None,
            help="A task may be done twice: it may fail over to another agent.",
        ),
        typed_option(
            "--repeatable-skill",
            "repeatable_skills",
            multiple=True,
            metavar="<skill>",
            help="A skill whose tasks may be done twice. Repeatable.",
        ),
        typed_option(
            "--keep-message-ids",
            type=click.BOOL,
            switch=True,
            default=None,
            help="Only one tenant uses it: it gets messages under their callers' own ids.",
        ),
        typed_option(
            "--default",
            "is_default",
            type=click.BOOL,
            switch=True,
            default=None,
            help="Gets tasks that match no other agent.",
        ),
        typed_option(
            "--paused",
            "is_paused",
            type=click.BOOL,
            switch=True,
            default=None,
            help="Gets no new tasks, but finishes those it has.",
        ),
        typed_option(
            "--dialect",
            type=click.Choice(["nexus", "corvid"]),
            help="What it speaks, if its card does not say.",
        ),
        typed_option(
            "--origin",
            "origins",
            multiple=True,
            metavar="<url>",
            help="Further origins that its card may send calls to. Repeatable.",
        ),
        typed_option(
            "--caller",
            "callers",
            multiple=True,
            metavar="<owner>",
            help="A caller that may use it besides its owner (all). Repeatable.",
        ),
        typed_option(
            "--refresh",
            type=Duration(),
            metavar="<duration>",
            help="How often its card is read (1h).",
        ),
        typed_option(
            "--token-env", metavar="<variable>", help="The variable with the token for it."
        ),
        typed_option("--token-file", metavar="<path>", help="The file with the token for it."),
        typed_option(
            "--token-as",
            default="bearer",
            metavar="<bearer|api-key|header>",
            help="How that token is sent: as a bearer token, as an API key where the card wants "
            "one, or in the header of this name.",
        ),
    ]
)


def agent_at(ref: str) -> dict[str, Any]:
    """Return what a reference says of an agent: its address, and what a card file says besides."""
    from dragoman.client.cards import cards
    from dragoman.client.cards.interfaces import address_of
    from dragoman.client.cards.references import parse
    from dragoman.errors import CardInvalid, ParseFailed
    from dragoman.transports import json_text

    found = parse(ref)
    if found.kind == "catalog":
        raise usage("an agent is registered by its host, its URL or the file of its card")
    if found.kind == "url":
        return {"endpoint": found.origin if found.is_host else found.url}
    assert found.path is not None, "a file has a path"
    try:
        content = found.path.read_bytes()[: cards.LARGEST_CATALOG]
        fetched = cards.read(json_text.parse(content))
    except (OSError, ParseFailed) as error:
        raise CardInvalid(f"{ref}: is no card that can be read ({error})") from None
    card = fetched.card
    texts = ("id", "name", "description", "tags", "examples")
    return {
        "endpoint": address_of(card),
        "card": fetched.raw,
        "name": card.name,
        "description": card.description,
        "skills": [{name: getattr(skill, name) for name in texts} for skill in card.skills],
    }


_PLAIN = {
    "name": "name",
    "description": "description",
    "repeatable": "repeatable",
    "keep_message_ids": "keepMessageIds",
    "is_default": "isDefault",
    "is_paused": "isPaused",
    "dialect": "dialect",
    "refresh": "refresh",
}


def body_of(run: Invocation, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options as the gateway takes them."""
    body = {member: given[name] for name, member in _PLAIN.items() if given[name] is not None}
    for name in ("tags", "replicas", "origins", "callers"):
        if given[name]:
            body[name] = list(given[name])
    if given["repeatable_skills"]:
        # An empty one says that there are none any more.
        body["repeatableSkills"] = [one for one in given["repeatable_skills"] if one]
    if given["price"] is not None:
        body["pricePerTask"] = _credits(given["price"])
    if (token := _token(run, given["token_env"], given["token_file"])) is not None:
        run.redactor.add(token)
        how = given["token_as"]
        kinds = {"bearer": "bearer", "api-key": "apiKey"}
        header = {} if how in kinds else {"header": how}
        body["credential"] = {"kind": kinds.get(how, "header"), "value": token, **header}
    return body


def _credits(text: str) -> float:
    from dragoman.model.money import MICRO, micro_credits

    try:
        return micro_credits(text) / MICRO
    except ValueError as error:
        raise usage(f"--price {error}") from None


def _token(run: Invocation, variable: str | None, file: str | None) -> str | None:
    if variable and file:
        raise usage("--token-env and --token-file cannot both be meant")
    if variable:
        found = run.environment.get(variable, "")
        if not found:
            raise usage(
                f"--token-env: {variable} is not set, or empty", f"export {variable}='<token>'"
            )
        return found
    if not file:
        return None
    try:
        found = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise usage(f"--token-file {file}: {reason}") from None
    if not found:
        raise usage(f"--token-file {file}: is empty")
    return found
