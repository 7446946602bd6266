"""`dragoman vault`: the keys that secrets in the store are sealed with.

Nothing here ever shows a key: keys go by their ids.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.audit_trail import AUDIT_OPTION, record, recording
from dragoman.cli.failures import Failure
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import STORE, STORE_OPTION, budget, ending_in_order, kept_by

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.config import Settings
    from dragoman.security.vault import Vault

vault = Group(
    "vault",
    help="Manage the keys that encrypt secrets in the store.",
    places={
        "show": CommandPlace("operating.vault:show", "Show the ids of the keys."),
        "rotate": CommandPlace("operating.vault:rotate", "Change the key, even while servers run."),
    },
)


@command("show")
@STORE_OPTION
def show(run: Invocation, store: str | None) -> None:
    """Show which keys the store is sealed with and which are at hand, by their ids."""
    from dragoman.security.vault import old_key_files, vault_of
    from dragoman.stores.tools import sealed_with

    settings = kept_by(run, store)
    with budget(run):
        used = sealed_with(settings)
        ours = vault_of(settings)
        ours.reload()
    keys = [
        {
            "id": id.hex(),
            "state": "current" if id in used[:1] else "old" if id in used else "unused",
            "atHand": id in ours.ids,
        }
        for id in dict.fromkeys([*used, *ours.ids])
    ]
    old = old_key_files(ours.file) if ours.file is not None else {}
    source = str(ours.file) if ours.file is not None else "DRAGOMAN_STORE_KEY"
    if run.out.is_json:
        aside = [{"id": id, "file": str(file)} for id, file in old.items()]
        run.out.json({"source": source, "keys": keys, "setAside": aside})
        return
    run.out.field("Keys-In", source)
    for key in keys:
        missing = "" if key["atHand"] else " (missing)"
        run.out.field("Key", f"{key['id']} {key['state']}{missing}")
    for file in old.values():
        run.out.field("Set-Aside", f"{file}, needed for backups made before")


@command("rotate")
@STORE_OPTION
@AUDIT_OPTION
def rotate(run: Invocation, store: str | None, audit: str | None) -> None:
    """Seal everything in the store with another key, also while servers run.

    A key file gets a new key, which servers find by themselves; the old one is set aside in a file
    of its own, for backups. With keys in DRAGOMAN_STORE_KEY, or with servers on several machines,
    give every server the new one before the old one (NEW,OLD), then run this with the same.
    What is cut off is finished by running it again.
    """
    from dragoman.security.vault import vault_of
    from dragoman.stores import tools

    settings = kept_by(run, store)
    name, own_file = settings.store_name, settings.beside_store(".key")
    if not tools.sealed_with(settings):
        raise Failure(STORE, f"{name}: is not sealed", hint="dragoman serve --store <url>")
    with ending_in_order(), budget(run), _alone(own_file), recording(run, audit, store) as log:
        used = tools.sealed_with(settings)
        ours = vault_of(settings)
        ours.ready(used)
        # A file that was named may be the key of other stores too.
        is_own = ours.file == own_file
        if settings.is_postgres:
            _check_other_machines(settings, ours, used)
        key = _next(ours, used, is_own=is_own)
        done = tools.rotate(settings, ours, key)
        if done.damaged:
            raise Failure(
                STORE,
                f"{done.damaged} values cannot be opened and are left as they are; the old key is "
                "kept. Restore them from a backup, or remove the receivers they belong to",
                hint="dragoman doctor",
            )
        aside = ours.set_aside_others(key) if is_own else []
        record(log, "vault.rotate", key.hex())
    where = (
        "dead rows, until VACUUM, and in the server's log and its backups"
        if settings.is_postgres
        else f"{name}-wal, until every server was stopped once"
    )
    found: dict[str, Any] = {
        "key": key.hex(),
        "values": done.values,
        "oldKeysKept": not is_own,
        "setAside": [str(file) for file in aside],
        "logCleared": done.is_cleared,
    }
    if run.out.is_json:
        run.out.json(found)
    else:
        _show_rotation(run, found, where)


def _show_rotation(run: Invocation, found: dict[str, Any], where: str) -> None:
    """Write what was sealed anew; `where` values under old keys are until the log is cleared."""
    run.out.field("Key", found["key"])
    run.out.field("Sealed-Anew", str(found["values"]))
    if not found["logCleared"]:
        run.out.field("Left-Over", f"values under old keys in {where}")
    for file in found["setAside"]:
        run.out.field("Set-Aside", f"{file}, needed for backups made before")
    if found["oldKeysKept"]:
        run.out.field("Old-Keys", "kept; remove them where no other store and no backup needs them")


def _check_other_machines(settings: "Settings", ours: "Vault", used: list[bytes]) -> None:
    """Refuse to make a key that servers on other machines would not have."""
    from dragoman.stores.tools import inspecting

    if ours.file is None or ours.ids[0] != used[0] or len(used) > 1:
        return
    with inspecting(settings) as (look, wait):
        is_served = any(worker.state != "dead" for worker in wait(look.workers()))
    if is_served:
        raise Failure(
            STORE,
            "servers run on this database, maybe on other machines, and need the new key first: "
            "put it as the first line into the key file on each of them (openssl rand -base64 "
            f"32), here {ours.file}, then say this again",
            hint="openssl rand -base64 32",
        )


def _next(ours: "Vault", used: list[bytes], *, is_own: bool) -> bytes:
    """Return the key to seal with: a new one, or that of a change that was cut off."""
    first = ours.ids[0]
    if ours.file is None or first != used[0] or len(used) > 1:
        return first
    # All that was missing is to drop what nothing is sealed with any more.
    is_left_over = is_own and len(ours.ids) > 1
    return first if is_left_over else ours.add()


@contextmanager
def _alone(key_file: Path) -> Generator[None]:
    """Let no other change of this store's key be under way."""
    from dragoman.security import private_files

    with open(private_files.open_private(Path(f"{key_file}.lock")), "ab") as file:
        if not private_files.lock(file.fileno(), wait=False):
            raise Failure(
                STORE, "another `vault rotate` is at work on this store", hint="dragoman vault show"
            )
        yield
