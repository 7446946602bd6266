"""`dragoman backup`: a copy of the store to start from, made while servers use it."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

# Seconds after which whoever waits wants to know how far it is.
_LONG = 1.0


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--store", metavar="FILE", help="SQLite file of the tasks (in your data folder).")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def backup(target: Path, store: str | None, force: bool, as_json: bool) -> None:
    """Copy the store to TARGET, also while servers use it.

    To restore, stop every server on the old file and serve with --store TARGET: unfinished tasks
    go on from where they were at the time of the copy.
    """
    import os

    import msgspec

    from dragoman.config import load
    from dragoman.errors import ConfigError, StoreRefused
    from dragoman.stores.sqlite.backup import back_up

    settings = load(os.environ, store=store)
    if settings.store == "memory:":
        raise ConfigError("memory: keeps nothing that could be copied")
    # What is half done is removed on the way out, whatever ends us.
    signal.signal(signal.SIGTERM, _interrupt)
    progress = ProgressLine()
    try:
        copy = back_up(
            settings.store_path(), target.expanduser(), force=force, progress=progress.show
        )
    except StoreRefused as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        progress.end()
    if as_json:
        click.echo(msgspec.json.encode(copy._asdict() | {"path": str(copy.path)}))
    else:
        click.echo(
            f"{copy.path}: {copy.size:,} bytes, {copy.tasks:,} tasks, "
            f"{copy.unfinished:,} of them unfinished"
        )


class ProgressLine:
    """A line on the terminal, once it takes long."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        """Say how far it is."""
        if sys.stderr.isatty() and time.monotonic() - self._began_at > _LONG:
            self._is_shown = True
            click.echo(f"\r\033[KCopied {100 * done // max(total, 1)} %", nl=False, err=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if self._is_shown:
            click.echo("\r\033[K", nl=False, err=True)


def _interrupt(number: int, frame: Any) -> None:
    signal.raise_signal(signal.SIGINT)
