"""What is said of an agent on the command line, as a gateway takes it.

A token for the agent comes from a variable or a file, never from the command line.
"""

from pathlib import Path
from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import Duration, added, own


def said_of(*flags: str, **attributes: Any) -> Any:
    """Add an option that is only given by hand."""
    return own(*flags, in_environment=False, **attributes)


DRY_RUN = said_of("--dry-run", switch=True, help="Say what would be sent, and no more.")
OFFLINE = said_of("--offline", switch=True, help="Nobody has to answer at its address yet.")
# What is said of an agent when it is registered and when it is changed.
DESCRIPTION = added(
    [
        said_of("--name", metavar="<name>", help="What it is called (as its card says)."),
        said_of("--description", metavar="<text>", help="What it does (as its card says)."),
        said_of(
            "--tag", "tags", multiple=True, metavar="<tag>", help="What it is for. Repeatable."
        ),
        said_of("--price", metavar="<credits>", help="What a completed task costs (0)."),
        said_of(
            "--replica",
            "replicas",
            multiple=True,
            metavar="<url>",
            help="Where the same agent is once more. Repeatable.",
        ),
        said_of(
            "--repeatable",
            type=click.BOOL,
            switch=True,
            default=None,
            help="A task may be done twice: it may fail over to another agent.",
        ),
        said_of(
            "--keep-message-ids",
            type=click.BOOL,
            switch=True,
            default=None,
            help="Only one tenant uses it: it gets messages under their callers' own ids.",
        ),
        said_of(
            "--default",
            "is_default",
            type=click.BOOL,
            switch=True,
            default=None,
            help="It gets what nobody else is asked for.",
        ),
        said_of(
            "--dialect",
            type=click.Choice(["nexus", "corvid"]),
            metavar="<nexus|corvid>",
            help="What it speaks, if its card does not say.",
        ),
        said_of(
            "--origin",
            "origins",
            multiple=True,
            metavar="<url>",
            help="Where its card may send calls besides its own address. Repeatable.",
        ),
        said_of(
            "--caller",
            "callers",
            multiple=True,
            metavar="<owner>",
            help="Who else may have tasks done by it (everybody). Repeatable.",
        ),
        said_of(
            "--refresh",
            type=Duration(),
            metavar="<duration>",
            help="How often its card is looked at (1h).",
        ),
        said_of("--token-env", metavar="<variable>", help="Shows it the token in this variable."),
        said_of("--token-file", metavar="<path>", help="Shows it the token in this file."),
        said_of(
            "--token-as",
            default="bearer",
            metavar="<bearer|api-key|header>",
            help="How that token is shown: as a bearer token, as an API key where the card wants "
            "one, or in the header of this name.",
        ),
    ]
)


def agent_at(ref: str) -> dict[str, Any]:
    """Return what a reference says of an agent: where it is, and what a file says besides."""
    from dragoman.client import cards
    from dragoman.client.references import parse
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
        "endpoint": card.supported_interfaces[0].url,
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
    "dialect": "dialect",
    "refresh": "refresh",
}


def body_of(run: Invocation, said: dict[str, Any]) -> dict[str, Any]:
    """Return what was said of an agent, as the gateway takes it."""
    body = {member: said[name] for name, member in _PLAIN.items() if said[name] is not None}
    for name in ("tags", "replicas", "origins", "callers"):
        if said[name]:
            body[name] = list(said[name])
    if said["price"] is not None:
        body["pricePerTask"] = _credits(said["price"])
    if (token := _token(run, said["token_env"], said["token_file"])) is not None:
        run.redactor.add(token)
        how = said["token_as"]
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
            raise usage(f"--token-env: {variable} is not set, or empty")
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
