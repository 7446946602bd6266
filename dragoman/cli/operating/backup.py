"""`dragoman backup`: a copy of the store to start from, made while servers use it."""

import time
from pathlib import Path

import click

from dragoman.cli.failures import Failure
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.output import Output
from dragoman.cli.own_options import (
    STORE,
    STORE_OPTION,
    budget,
    ending_in_order,
    settings_of,
    typed_option,
)

# Seconds between two lines of progress.
_OFTEN = 2.0


@command("backup")
@click.argument("target", type=click.Path(path_type=Path))
@STORE_OPTION
@typed_option("--force", switch=True, help="Replace TARGET if it exists.")
def backup(run: Invocation, target: Path, store: str | None, force: bool) -> None:
    """Copy the store to TARGET, even while servers use it.

    To restore, stop every server on the old file and serve with --store TARGET: unfinished tasks
    go on from where they were at the time of the copy. Secrets in the copy are sealed, and the key
    is not in it: keep the key file apart, and put it beside the restored copy as TARGET.key.
    """
    from dragoman.errors import ConfigError, StoreRefused
    from dragoman.security.vault import vault_of
    from dragoman.stores.sqlite.files.backup import back_up

    settings = settings_of(run, store=store)
    if settings.stores.location == "memory:":
        raise ConfigError("memory: keeps nothing that could be copied")
    if settings.is_postgres:
        raise ConfigError(
            "a database is backed up by PostgreSQL's own tools (pg_dump, or a base backup and its "
            "log); `dragoman store copy` makes a file of it",
            remedy="dragoman store copy --help",
        )
    progress = Progress(run.out)
    # What is half done is removed on the way out, whatever ends us.
    with run.out.waiting_for("copying the store"), ending_in_order(), budget(run):
        try:
            copy = back_up(
                settings.store_path(), target.expanduser(), force=force, progress=progress.show
            )
        except StoreRefused as error:
            raise Failure(STORE, str(error), hint="dragoman doctor") from None
    key_file = vault_of(settings).file
    needed = str(key_file) if key_file is not None and key_file.exists() else ""
    if run.out.is_json:
        run.out.json(copy._asdict() | {"path": str(copy.path), "keyFile": needed})
        return
    run.out.field("File", str(copy.path))
    run.out.field("Bytes", str(copy.size))
    run.out.field("Tasks", str(copy.tasks))
    run.out.field("Unfinished", str(copy.unfinished))
    if needed:
        run.out.field("Key-File", f"{needed} (not in the copy)")


class Progress:
    """A word on stderr now and then, once it takes long."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._shown_at = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Say how far it is."""
        if self._out.is_live:
            self._out.progress(f"copying the store  {100 * done // max(total, 1)} %")
            return
        if time.monotonic() - self._shown_at > _OFTEN:
            self._shown_at = time.monotonic()
            self._out.note("Progress", f"{100 * done // max(total, 1)} %")
