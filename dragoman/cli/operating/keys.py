"""`dragoman keys`: API keys for callers of our servers, made, looked at and ended.

The text of a key is shown once, when it is made, and kept nowhere. Servers see each change within
a second, without a restart, and each is in the audit log.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.audit_trail import AUDIT_OPTION, record, recording
from dragoman.cli.failures import usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.lifetime import Lifetime
from dragoman.cli.operating.key_items import COLUMNS, instant, item_of, show_fields, tell
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    STORE_OPTION,
    YES,
    added,
    budget,
    own,
    page_after,
    settings_of,
    show_page,
)

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.security.keys.api_keys import ApiKeyRecord

keys = Group(
    "keys",
    help="Create, list and revoke API keys.",
    places={
        "create": CommandPlace("operating.keys:create", "Create a key and show it once."),
        "list": CommandPlace("operating.keys:list_", "List keys with their owners and states."),
        "show": CommandPlace("operating.keys:show", "Show a key without its secret."),
        "rotate": CommandPlace("operating.keys:rotate", "Make the successor of a key."),
        "revoke": CommandPlace("operating.keys:revoke", "Revoke a key at once."),
    },
)


_FILE = own(
    "--keys",
    "file",
    metavar="<path>",
    help="The file of the keys (keys.json in your data folder).",
)
_LOG = added([AUDIT_OPTION, STORE_OPTION])
_DRY_RUN = own(
    "--dry-run", switch=True, in_environment=False, help="Only print what would be done."
)
_EXPIRES = own(
    "--expires",
    type=Lifetime(),
    in_environment=False,
    metavar="<duration>",
    help="How long the key is valid: 90d, 12h (until it is revoked).",
)
_RIGHTS = added(
    [
        own(
            "--owner",
            required=True,
            in_environment=False,
            metavar="<name>",
            help="The owner: all keys with the same owner share their tasks.",
        ),
        own(
            "--scope",
            "scopes",
            multiple=True,
            in_environment=False,
            metavar="<scope>",
            help="What it opens: scopes of skills, dragoman:admin, dragoman:operator. Repeatable.",
        ),
        own(
            "--tenant",
            in_environment=False,
            metavar="<name>",
            help="The only tenant it may act in (any).",
        ),
    ]
)


@command("create")
@_RIGHTS
@_EXPIRES
@_FILE
@_DRY_RUN
@_LOG
def create(
    run: Invocation,
    owner: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    expires: timedelta | None,
    file: str | None,
    dry_run: bool,
    audit: str | None,
    store: str | None,
) -> None:
    """Make an API key. It is shown this once; a lost key cannot be shown again."""
    from dragoman.security.keys import key_file

    _check_name("--owner", owner)
    for scope in scopes:
        _check_name("--scope", scope)
    _check_lifetime(expires)
    path = _path(run, file)
    if dry_run:
        key_file.read_keys(path)
        tell(
            run,
            {
                "result": "would be made",
                "owner": owner,
                "scopes": sorted(set(scopes)),
                "tenant": tenant,
                "file": str(path),
            },
        )
        return
    with budget(run), recording(run, audit, store) as log:
        key, text = key_file.create(
            path, owner, scopes=list(scopes), tenant=tenant, lifetime=expires
        )
        record(log, "key.create", _object(key), _grants(key))
    tell(run, {"key": text, **item_of(key), "file": str(path)})
    _only_now(run)


@command("list")
@_FILE
@STORE_OPTION
@LIMIT
@PAGE_TOKEN
def list_(
    run: Invocation, file: str | None, store: str | None, limit: int, page_token: str
) -> None:
    """List keys in the order they were made: those of the file, then the keys of agents that the
    gateway of the store made, each with what it was made by. Their secrets are kept nowhere."""
    show_page(
        run,
        *page_after(_items(run, file, store), page_token, limit),
        lambda item: show_fields(run, item),
        columns=COLUMNS,
        empty="no key was made; `dragoman keys create --owner <name>` makes one",
    )


@command("show")
@click.argument("id", metavar="KEY_ID")
@_FILE
@STORE_OPTION
def show(run: Invocation, id: str, file: str | None, store: str | None) -> None:
    """Show a key without its secret, which is kept nowhere."""
    tell(run, _item(run, file, store, _id(id)))


@command("revoke")
@click.argument("id", metavar="KEY_ID")
@_FILE
@YES
@_DRY_RUN
@_LOG
def revoke(
    run: Invocation,
    id: str,
    file: str | None,
    yes: bool,
    dry_run: bool,
    audit: str | None,
    store: str | None,
) -> None:
    """End a key: servers refuse it within seconds, and with it what was made by
    it. It is a key of the file, or one of an agent in a gateway's store."""
    id = _id(id)
    item = _item(run, file, store, id)
    if dry_run:
        tell(run, {"result": "would be revoked", **item})
        return
    if not yes:
        from dragoman.cli.hints import again

        raise usage(f"{id} cannot be brought back; --yes revokes it", again(run, "--yes"))
    with budget(run), recording(run, audit, store) as log:
        _revoke(run, file, store, item)
        made_by = " < ".join(item["madeBy"])
        whose = f"{item['agent']} {item['owner']}" if made_by else item["owner"]
        record(log, "key.revoke", f"{id} {whose}", f"made by {made_by}" if made_by else "")
    tell(run, {"result": "revoked", **_item(run, file, store, id)})


@command("rotate")
@click.argument("id", metavar="KEY_ID")
@own(
    "--overlap",
    type=Lifetime(),
    default="24h",
    in_environment=False,
    metavar="<duration>",
    help="How long the key before is still good (24h).",
)
@_EXPIRES
@_FILE
@_DRY_RUN
@_LOG
def rotate(
    run: Invocation,
    id: str,
    overlap: timedelta,
    expires: timedelta | None,
    file: str | None,
    dry_run: bool,
    audit: str | None,
    store: str | None,
) -> None:
    """Make a key with the owner and the rights of another, which ends after a while.

    The successor is shown this once. Without --expires it is good for as long as the key before
    was when it was made, and never for longer. What was made by the key before ends with it.
    """
    from dragoman.security.keys import key_file

    _check_lifetime(expires)
    path, id = _path(run, file), _id(id)
    if _item(run, file, store, id)["parent"] is not None:
        raise usage(
            f"{id} is the key of an agent, which the gateway made: have it make another by "
            "POST /api/v1/agents/ID/api-keys, then revoke this one"
        )
    if dry_run:
        before = key_file.find(path, id)
        key_file.check_rotation(before, expires)
        tell(run, {"result": "would be rotated", **item_of(before)})
        return
    with budget(run), recording(run, audit, store) as log:
        before, key, text = key_file.rotate(path, id, overlap=overlap, lifetime=expires)
        record(log, "key.rotate", _object(before), f"followed by {key.id}")
    tell(
        run,
        {
            "key": text,
            **item_of(key),
            "replaces": before.id,
            "replacedUntil": instant(before.expires_at),
            "file": str(path),
        },
    )
    _only_now(run)


def _items(run: Invocation, file: str | None, store: str | None) -> list[dict[str, Any]]:
    """Return all keys as they are shown: those of the file, and those of agents in the store."""
    from dragoman.cli.operating.stored_keys import items_of, stored_keys
    from dragoman.security.keys import key_file

    settings = settings_of(run, keys=file, store=store)
    found = [item_of(key) for key in key_file.read_keys(settings.keys_path())]
    return [*found, *items_of(stored_keys(settings), settings)]


def _item(run: Invocation, file: str | None, store: str | None, id: str) -> dict[str, Any]:
    """Return a key as it is shown; raises `ConfigError` if there is none. The file comes first:
    a store that cannot be read keeps no key of the file from being revoked."""
    from dragoman.cli.operating.stored_keys import items_of, stored_keys
    from dragoman.security.keys import key_file

    settings = settings_of(run, keys=file, store=store)
    of_file = [item_of(key) for key in key_file.read_keys(settings.keys_path()) if key.id == id]
    if of_file:
        return of_file[0]
    for item in items_of(stored_keys(settings), settings):
        if item["id"] == id:
            return item
    return item_of(key_file.find(settings.keys_path(), id))


def _revoke(run: Invocation, file: str | None, store: str | None, item: dict[str, Any]) -> None:
    """End a key where it is: in the store if a credential of a gateway's caller made it."""
    if item["parent"] is None:
        from dragoman.security.keys import key_file

        key_file.revoke(_path(run, file), item["id"])
        return
    from dragoman.cli.operating.stored_keys import revoke_stored

    revoke_stored(settings_of(run, store=store), item["id"])


def _object(key: "ApiKeyRecord") -> str:
    return f"{key.id} {key.owner}"


def _grants(key: "ApiKeyRecord") -> str:
    return " ".join([*key.scopes, *([f"tenant {key.tenant}"] if key.tenant is not None else [])])


def _path(run: Invocation, file: str | None) -> Path:
    return settings_of(run, keys=file).keys_path()


def _id(text: str) -> str:
    """Return the id that was named; a whole key has one too, but is nothing to type."""
    from dragoman.security.keys.api_keys import AGENT_PREFIX, PREFIX

    if text.startswith((f"{PREFIX}_", f"{AGENT_PREFIX}_")):
        raise usage(
            "name the id of the key, and not the key: it is in the history of your shell and in "
            "the list of processes; rotate it",
            "dragoman keys list",
        )
    return text


def _check_name(flag: str, text: str) -> None:
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", text, re.ASCII):
        raise usage(f"{flag} must be 1 to 200 visible ASCII characters without spaces")


def _check_lifetime(lifetime: timedelta | None) -> None:
    if lifetime is not None and lifetime < timedelta(seconds=1):
        raise usage("--expires must be at least 1s; without it the key is good until it is revoked")


def _only_now(run: Invocation) -> None:
    run.out.note("Note", "the key is shown this once; keep it, the server does not")
