"""`dragoman keys`: API keys for callers of our servers, made, looked at and ended.

The text of a key is shown once, when it is made, and kept nowhere. Servers see each change within
a second, without a restart, and each is in the audit log. With `--gateway` they are those of a
server elsewhere, for its operators.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman.cli.audit_trail import AUDIT_OPTION, record, recording
from dragoman.cli.failures import usage
from dragoman.cli.gateway.store_place import RemoteStore, StorePlace, looks_elsewhere
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.lifetime import Lifetime
from dragoman.cli.operating.key_items import COLUMNS, show_fields, tell
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    YES,
    added,
    budget,
    own,
    page_after,
    settings_of,
    show_page,
    typed_option,
)

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.server.server_keys import ServerKeys

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
    "--keys", "file", metavar="<path>", help="The file of the keys (keys.json in your data folder)."
)
_LOG = added([AUDIT_OPTION, looks_elsewhere])
_TYPED = click.core.ParameterSource.COMMANDLINE
_DRY_RUN = typed_option("--dry-run", switch=True, help="Only print what would be done.")
_EXPIRES = typed_option(
    "--expires",
    type=Lifetime(),
    metavar="<duration>",
    help="How long the key is valid: 90d, 12h (until it is revoked).",
)
_RIGHTS = added(
    [
        typed_option(
            "--owner",
            required=True,
            metavar="<name>",
            help="The owner: all keys with the same owner share their tasks.",
        ),
        typed_option(
            "--scope",
            "scopes",
            multiple=True,
            metavar="<scope>",
            help="What it opens: scopes of skills, dragoman:admin, dragoman:operator. Repeatable.",
        ),
        typed_option("--tenant", metavar="<name>", help="The only tenant it may act in (any)."),
    ]
)


class KeysElsewhere:
    """The keys of a server elsewhere, by its operator API."""

    def __init__(self, store: RemoteStore) -> None:
        self._api = store.api
        self.place = {"gateway": store.api.url}

    def items(self) -> list[dict[str, Any]]:
        """Return all keys."""
        return self._ask("GET", "keys")["items"]

    def item(self, id: str) -> dict[str, Any]:
        """Return a key."""
        return self._ask("GET", f"keys/{quote(id, safe='')}")

    def create(
        self, owner: str, scopes: Sequence[str], tenant: str | None, lifetime: timedelta | None
    ) -> dict[str, Any]:
        """Make a key."""
        asked = {"owner": owner, "scopes": list(scopes), "tenant": tenant}
        return self._ask("POST", "keys", asked | {"expiresSeconds": _seconds(lifetime)})

    def check_rotation(self, id: str, lifetime: timedelta | None) -> dict[str, Any]:
        """Return a key that may have a successor: the server judges when it is to make one."""
        return self.item(id)

    def rotate(self, id: str, overlap: timedelta, lifetime: timedelta | None) -> dict[str, Any]:
        """Make the successor of a key."""
        asked = {"overlapSeconds": _seconds(overlap), "expiresSeconds": _seconds(lifetime)}
        return self._ask("POST", f"keys/{quote(id, safe='')}/rotate", asked)

    def revoke(self, id: str) -> dict[str, Any]:
        """End a key."""
        self._ask("POST", f"keys/{quote(id, safe='')}/revoke")
        return self.item(id)

    def _ask(self, verb: str, path: str, body: Any = None) -> Any:
        import msgspec

        return msgspec.json.decode(self._api.operate(verb, path, body))


def _seconds(lifetime: timedelta | None) -> int | None:
    return None if lifetime is None else int(lifetime.total_seconds())


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
    store: StorePlace,
) -> None:
    """Make an API key. It is shown this once; a lost key cannot be shown again."""
    _check_name("--owner", owner)
    for scope in scopes:
        _check_name("--scope", scope)
    _check_lifetime(expires)
    ring = _ring(run, file, store)
    if dry_run:
        ring.items()
        asked = {"owner": owner, "scopes": sorted(set(scopes)), "tenant": tenant}
        tell(run, {"result": "would be made", **asked, **ring.place})
        return
    with _audited(run, audit, store, "key.create") as note:
        item = note(ring.create(owner, scopes, tenant, expires))
    tell(run, item | ring.place)
    _only_now(run)


@command("list")
@_FILE
@looks_elsewhere
@LIMIT
@PAGE_TOKEN
def list_(
    run: Invocation, file: str | None, store: StorePlace, limit: int, page_token: str
) -> None:
    """List keys in the order they were made: those of the file, then the keys of agents that the
    gateway of the store made, each with what it was made by. Their secrets are kept nowhere."""
    show_page(
        run,
        *page_after(_ring(run, file, store).items(), page_token, limit),
        lambda item: show_fields(run, item),
        columns=COLUMNS,
        empty="no key was made; `dragoman keys create --owner <name>` makes one",
    )


@command("show")
@click.argument("id", metavar="KEY_ID")
@_FILE
@looks_elsewhere
def show(run: Invocation, id: str, file: str | None, store: StorePlace) -> None:
    """Show a key without its secret, which is kept nowhere."""
    tell(run, _ring(run, file, store).item(_id(id)))


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
    store: StorePlace,
) -> None:
    """End a key: servers refuse it within seconds, and with it what was made by
    it. It is a key of the file, or one of an agent in a gateway's store."""
    id, ring = _id(id), _ring(run, file, store)
    item = ring.item(id)
    if dry_run:
        tell(run, {"result": "would be revoked", **item})
        return
    if not yes:
        from dragoman.cli.hints import again

        raise usage(f"{id} cannot be brought back; --yes revokes it", again(run, "--yes"))
    with _audited(run, audit, store, "key.revoke") as note:
        item = note(ring.revoke(id))
    tell(run, {"result": "revoked", **item})


@command("rotate")
@click.argument("id", metavar="KEY_ID")
@typed_option(
    "--overlap",
    type=Lifetime(),
    default="24h",
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
    store: StorePlace,
) -> None:
    """Make a key with the owner and the rights of another, which ends after a while.

    The successor is shown this once. Without --expires it is good for as long as the key before
    was when it was made, and never for longer. What was made by the key before ends with it.
    """
    _check_lifetime(expires)
    id, ring = _id(id), _ring(run, file, store)
    before = ring.check_rotation(id, expires)
    if dry_run:
        tell(run, {"result": "would be rotated", **before})
        return
    with _audited(run, audit, store, "key.rotate") as note:
        item = note(ring.rotate(id, overlap, expires))
    tell(run, item | ring.place)
    _only_now(run)


def _ring(run: Invocation, file: str | None, store: StorePlace) -> "ServerKeys | KeysElsewhere":
    if not isinstance(store, RemoteStore):
        from dragoman.server.server_keys import ServerKeys

        return ServerKeys(settings_of(run, keys=file, store=store))
    if file and click.get_current_context().get_parameter_source("file") is _TYPED:
        raise usage("--keys is about a file, and --gateway about a gateway: give one")
    return KeysElsewhere(store)


@contextmanager
def _audited(
    run: Invocation, audit: str | None, store: StorePlace, act: str
) -> Generator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Give what notes in the audit log what became of a key; a server elsewhere has its own log."""
    if isinstance(store, RemoteStore):
        yield lambda item: item
        return
    from dragoman.server.server_keys import audited

    with budget(run), recording(run, audit, store) as log:

        def note(item: dict[str, Any]) -> dict[str, Any]:
            record(log, act, *audited(item))
            return item

        yield note


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
