"""What our own commands share: options with `DRAGOMAN_` variables, a budget of time, pages.

A variable of ours comes from the environment, else from the configuration files, and is read like
the flag of its name.
"""

import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from dragoman.cli.failures import TIMEOUT, Failure, Interrupted, usage
from dragoman.cli.grammar import given_options
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import Option
from dragoman.cli.sources import settle
from dragoman.model.duration import duration

if TYPE_CHECKING:
    from dragoman.cli.terminal.table import Column

    # Heavy: loaded when a command runs.
    from dragoman.config import Settings

PREFIX = "DRAGOMAN_"
# Something we read or write that is neither the caller's mistake nor an agent's.
STORE = "DRAGOMAN_ERR_STORE"
NOT_DELIVERED = "DRAGOMAN_ERR_NOT_DELIVERED"

_VALUES = "dragoman.own"
F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """Seconds, as `500ms`, `2s` or `1m30s`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a text."""
        if isinstance(value, float | int):
            return float(value)
        try:
            return duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OwnOption(Option):
    """An option of one of our commands; its variable is `DRAGOMAN_` and its flag."""

    def __init__(self, *arguments: Any, in_environment: bool = True, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        flag = next(flag for flag in self.opts if flag.startswith("--"))
        self.variable = PREFIX + flag[2:].upper().replace("-", "_") if in_environment else ""
        if self.variable and self.help:
            self.help += f" ${self.variable}."

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return what the environment says, or a file."""
        return _values(ctx).get(self.variable) or None if self.variable else None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return where a value that makes no sense stands."""
        source = ctx.get_parameter_source(self.name) if ctx and self.name else None
        if source is click.core.ParameterSource.ENVIRONMENT:
            return self.variable
        return super().get_error_hint(ctx)


def _values(ctx: click.Context) -> dict[str, str]:
    if _VALUES not in ctx.meta:
        run = ctx.ensure_object(Invocation)
        # What is wrong with the files is said when the options are settled.
        settings = settle(given_options(ctx), run.environment, run.folder, tolerant=True)
        ctx.meta[_VALUES] = dict(settings.environment)
    return ctx.meta[_VALUES]


def own(*flags: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option that has a variable."""
    return click.option(*flags, cls=OwnOption, **attributes)


def typed_option(*flags: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option that has no variable: it is typed each time."""
    return own(*flags, in_environment=False, **attributes)


def added(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Add options, shown in this order."""

    def add(function: F) -> F:
        for one in reversed(options):
            function = one(function)
        return function

    return add


STORE_OPTION = own(
    "--store",
    metavar="<url>",
    help="Where the tasks are: a SQLite file, or postgresql:// (in your data folder).",
)
YES = typed_option("--yes", switch=True, help="Do not ask for confirmation.")
LIMIT = own(
    "--limit", type=click.IntRange(1, 1000), default=50, metavar="<1..1000>", help="Page size."
)
PAGE_TOKEN = typed_option(
    "--page-token",
    default="",
    metavar="<token>",
    help="The page to show, as the previous page names it.",
)


def settings_of(run: Invocation, **values: Any) -> "Settings":
    """Return the settings of a server: what was given, else the environment and the files."""
    from dragoman.config import ADDRESSES, load_settings

    for name in ADDRESSES:
        # Also of an address that is refused.
        address = values.get(name) or run.environment.get(PREFIX + name.upper()) or ""
        run.redactor.add(address.partition("://")[2].rpartition("@")[0].partition(":")[2])
    # An agent's module may set variables of its own when it is loaded.
    return load_settings({**run.settings.environment, **run.environment}, **values)


def kept_by(run: Invocation, store: str | None) -> "Settings":
    """Return settings whose tasks others can look at: in a file, or in a database."""
    from dragoman.errors import ConfigError

    settings = settings_of(run, store=store)
    if settings.stores.location == "memory:":
        raise ConfigError(
            "memory: has no file, so only its own server knows; name one by --store",
            remedy="--store tasks.db",
        )
    return settings


class _Late(KeyboardInterrupt):
    """The time is over. Like an interrupt, it gets through an event loop at once."""


@contextmanager
def budget(run: Invocation) -> Generator[None]:
    """Let a command run no longer than `--timeout` says. Within another budget, that one holds."""
    seconds = run.settings.timeout
    if not seconds or sys.platform == "win32" or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late:
        from dragoman.cli.hints import again

        raise Failure(
            TIMEOUT,
            f"{seconds:g} s are over",
            hint=again(run, "--timeout", f"{2 * seconds:g}s", without=("--timeout",)),
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def ending_in_order() -> Generator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what is half done is undone on the way out.

    So does SIGINT also where a shell had it ignored, as of what it starts in the background.
    """
    ending = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, _interrupt) for number in ending]
    try:
        yield
    except _Late:
        # Of a budget around this one.
        raise
    except KeyboardInterrupt as interrupt:
        # Raised by a signal of ours with its number, by Python without.
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        raise Interrupted(number) from None
    finally:
        for number, handler in zip(ending, before, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


def offset_of(page_token: str) -> int:
    """Return where a page begins."""
    if page_token and not (page_token.isdecimal() and page_token.isascii()):
        raise wrong_token()
    return int(page_token or 0)


def wrong_token() -> Exception:
    """Return what to raise for a `--page-token` that no page of the command ended with."""
    command = click.get_current_context().command_path
    return usage(f"--page-token is not one of `{command}`", command)


def page_after(
    items: Sequence[dict[str, Any]], page_token: str, limit: int
) -> tuple[Sequence[dict[str, Any]], str]:
    """Return the items after the one whose id is the token, and the token of the next page."""
    ids = [item["id"] for item in items]
    if page_token and page_token not in ids:
        command = click.get_current_context().command_path
        raise usage("--page-token names nothing that is still listed; begin without it", command)
    first = ids.index(page_token) + 1 if page_token else 0
    page = items[first : first + limit]
    return page, page[-1]["id"] if first + limit < len(items) else ""


def show_page(
    run: Invocation,
    items: Sequence[dict[str, Any]],
    next_page: str,
    record: Callable[[dict[str, Any]], None] | None = None,
    *,
    columns: "Sequence[Column]" = (),
    empty: str = "",
) -> None:
    """Write a page of a list: one document, a line for each, a table, or a record for each, which
    has the fields of an item unless told. `empty` is said of a table without a row."""
    if run.out.is_table and columns:
        show_table(run, items, next_page, columns, empty)
    elif not run.out.is_json:
        for item in items:
            (record or run.out.fields)(item)
        run.out.field("Next-Page", next_page)
    elif run.out.is_stream:
        for item in items:
            run.out.json(item)
    else:
        run.out.json({"items": list(items), "nextPageToken": next_page})


def show_table(
    run: Invocation,
    items: Sequence[Mapping[str, Any]],
    next_page: str,
    columns: "Sequence[Column]",
    empty: str = "",
) -> None:
    """Write a page of a list as a table; on stderr how to see the next, or that there is none."""
    from dragoman.cli.hints import again

    if items:
        run.out.table(items, columns)
    elif empty:
        run.out.note("Note", empty)
    if next_page:
        more = again(run, "--page-token", next_page, without=("--page-token",))
        run.out.note("Next-Page", more or next_page)


def instant(milliseconds: int) -> str:
    """Return a time for people and programs; empty: never."""
    if not milliseconds:
        return ""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
