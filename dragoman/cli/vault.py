"""`dragoman vault`: the keys that secrets in the store are sealed with.

Nothing here ever shows a key: keys go by their ids.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.failures import Failure
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import STORE, STORE_OPTION, budget, ending_in_order, file_of
from dragoman.cli.recording import AUDIT_OPTION, record, recording

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.security.vault import Vault

vault = Group(
    "vault",
    help="Look after the keys that secrets in the store are sealed with.",
    places={
        "show": Place("dragoman.cli.vault:show", "Show which keys there are, by their ids."),
        "rotate": Place("dragoman.cli.vault:rotate", "Change the key, also while servers run."),
    },
)


@command("show")
@STORE_OPTION
def show(run: Invocation, store: str | None) -> None:
    """Show which keys the store is sealed with and which are at hand, by their ids."""
    from dragoman.security.vault import old_key_files, vault_of
    from dragoman.stores.sqlite.rotation import sealed_with

    settings = file_of(run, store)
    with budget(run):
        used = sealed_with(settings.store_path())
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
    of its own, for backups. With keys in DRAGOMAN_STORE_KEY,
    give every server the new one before the old one (NEW,OLD), then run this with the same.
    What is cut off is finished by running it again.
    """
    from dragoman.security.vault import key_file_of, vault_of
    from dragoman.stores.sqlite import rotation

    settings = file_of(run, store)
    path = settings.store_path()
    if not rotation.sealed_with(path):
        raise Failure(STORE, f"{path}: is not sealed", hint="dragoman serve --store <url>")
    with ending_in_order(), budget(run), _alone(path), recording(run, audit, store) as log:
        used = rotation.sealed_with(path)
        ours = vault_of(settings)
        ours.ready(used)
        # A file that was named may be the key of other stores too.
        is_own = ours.file == key_file_of(path)
        key = _next(ours, used, is_own=is_own)
        done = rotation.rotate(path, ours, key)
        if done.damaged:
            raise Failure(
                STORE,
                f"{done.damaged} values cannot be opened and are left as they are; the old key is "
                "kept. Restore them from a backup, or remove the receivers they belong to",
                hint="dragoman doctor",
            )
        aside = ours.set_aside_others(key) if is_own else []
        record(log, "vault.rotate", key.hex())
    found: dict[str, Any] = {
        "key": key.hex(),
        "values": done.values,
        "oldKeysKept": not is_own,
        "setAside": [str(file) for file in aside],
        "logCleared": done.is_cleared,
    }
    if run.out.is_json:
        run.out.json(found)
        return
    run.out.field("Key", key.hex())
    run.out.field("Sealed-Anew", str(done.values))
    if not done.is_cleared:
        run.out.field(
            "Left-Over", f"values under old keys in {path}-wal, until every server was stopped once"
        )
    for file in aside:
        run.out.field("Set-Aside", f"{file}, needed for backups made before")
    if not is_own:
        run.out.field("Old-Keys", "kept; remove them where no other store and no backup needs them")


def _next(ours: "Vault", used: list[bytes], *, is_own: bool) -> bytes:
    """Return the key to seal with: a new one, or that of a change that was cut off."""
    first = ours.ids[0]
    if ours.file is None or first != used[0] or len(used) > 1:
        return first
    # All that was missing is to drop what nothing is sealed with any more.
    is_left_over = is_own and len(ours.ids) > 1
    return first if is_left_over else ours.add()


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Let no other change of this store's key be under way."""
    from dragoman.security import files

    with open(files.open_private(Path(f"{path}.key.lock")), "ab") as file:
        if not files.lock(file.fileno(), wait=False):
            raise Failure(STORE, "another `vault rotate` is at work on this store")
        yield
