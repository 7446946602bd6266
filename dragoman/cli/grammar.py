"""One grammar for all commands, on top of click.

Global options stand before or after the command. A switch is an option with a value whose bare flag
means true, so that `--wait=false` undoes what a file says. Nothing is abbreviated and nothing is
guessed; commands are loaded when they are called.
"""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import click

from dragoman.cli import option_scope
from dragoman.cli.failures import meant, usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import Option
from dragoman.cli.options import BY_NAME, FORMATS, ROWS, OptionRow
from dragoman.cli.sources import settle

F = TypeVar("F", bound=Callable[..., Any])
_GIVEN = "dragoman.given"
_HELP = ("-h", "--help")
_FULL = "--all"
_SAID = "dragoman.said"
# Fixed, so that the bytes do not depend on who looks.
WIDTH = 80
# How options that take a file or a folder are shown.
PATHS = frozenset({"<path>", "<file>", "<dir>", "<jwks|pem>", "<path|->", "<path|url>"})
# A path is whatever bytes the system has for it; the name of a file that is sent is a text.
_BYTES = (PATHS - {"<path|url>"}) | {
    *("<ref>", "[REF]", "[DIR]", "[TARGET]...", "TARGET", "FILE"),
    *("SCRIPT", "CASSETTE", "<cassette>"),
}


class GivenOption(NamedTuple):
    """One thing on the command line: an option's name and value, or a positional (name empty)."""

    name: str
    value: str


@functools.cache
def _global(row: OptionRow, *, hidden: bool) -> Option:
    """Return a global option. All are known on every command, so that what has no effect on one is
    refused with a reason; those are hidden in its help."""
    flags = [row.flag] if not row.short else [row.short, row.flag]
    return Option(
        [*flags, f"global_{row.field}"],
        aliases=row.aliases,
        switch=row.is_switch,
        row=row,
        type=str,
        default=None,
        multiple=bool(row.apart),
        expose_value=False,
        metavar=row.metavar,
        help=row.help,
        hidden=hidden,
    )


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from dragoman import __version__
        from dragoman.telemetry.commit import commit

        ctx.ensure_object(Invocation).out.write(f"dragoman {__version__} (commit {commit()})\n")
        ctx.exit()


_VERSION = click.Option(
    ["-v", "--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)


class _Grammar(click.Command):
    """What commands and groups share."""

    # What a command has as a default where the table has none.
    defaults: Mapping[str, str]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own options and the global ones it does not have itself."""
        own = {flag for parameter in self.params for flag in parameter.opts}
        shown = option_scope.shown_options(ctx)
        found = [_global(row, hidden=shown is not None and row.name not in shown) for row in ROWS]
        more = [parameter for parameter in found if not own & {*parameter.opts}]
        helping = self.get_help_option(ctx)
        return [*self.params, *more, *([helping] if helping else []), _VERSION]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell everything out, remember its order, and let click do the rest."""
        options = {
            flag: parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for flag in parameter.opts
        }
        if _FULL in args and _FULL not in options and not {*args}.isdisjoint(_HELP):
            # It belongs to the help; a command of that name for something else keeps it.
            args = [word for word in args if word != _FULL]
        words, command_words = spelled_out(args, options, ctx.allow_interspersed_args)
        given_options: dict[str, list[str]] = ctx.meta.setdefault(_GIVEN, {})
        rows = {one.name: one.row for one in options.values() if isinstance(one, Option)}
        for one in command_words:
            if row := rows.get(one.name):
                given_options.setdefault(row.name, []).append(one.value)
        ctx.meta[_SAID] = command_words
        rest = super().parse_args(ctx, words)
        self._check_texts(ctx, command_words, options)
        return rest

    def _check_texts(
        self,
        ctx: click.Context,
        command_words: Sequence[GivenOption],
        options: Mapping[str, click.Option],
    ) -> None:
        """Refuse what no message can carry, before anything else is done with it."""
        named = {one.name: one for one in options.values()}
        for one in command_words:
            parameter = named.get(one.name)
            if parameter is not None and parameter.metavar not in _BYTES:
                _check_text(ctx, one.value, parameter.opts[-1])
        for parameter in self.params:
            metavar = parameter.make_metavar(ctx)
            if isinstance(parameter, click.Argument) and metavar not in _BYTES:
                value: Any = ctx.params.get(parameter.name or "")
                texts = cast("tuple[Any, ...]", value if isinstance(value, tuple) else (value,))
                for text in texts:
                    _check_text(ctx, text, metavar)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, with the values that hold here and where they come from."""
        run = ctx.ensure_object(Invocation)
        settings = settle(
            given_options(ctx), run.environment, run.folder, defaults=self.defaults, tolerant=True
        )
        is_full = is_help_full(ctx)
        from dragoman.cli.help import write_help

        write_help(self, ctx, formatter, settings, self.sections(ctx), is_full=is_full)

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return its commands and what each does, by their headings."""
        return {}


def is_help_full(ctx: click.Context) -> bool:
    """Tell whether everything is to be explained: `--help --all`."""
    return _FULL in ctx.ensure_object(Invocation).argv


def _check_text(ctx: click.Context, value: Any, name: str) -> None:
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{name} is not UTF-8", ctx) from None


class Command(_Grammar):
    """A command; its function gets the run first and then its own options."""

    def __init__(
        self, *arguments: Any, defaults: Mapping[str, str] | None = None, **attributes: Any
    ) -> None:
        attributes["context_settings"] = _CONTEXT | attributes.get("context_settings", {})
        super().__init__(*arguments, **attributes)
        self.defaults = defaults or {}

    def invoke(self, ctx: click.Context) -> Any:
        """Settle the options and call the function."""
        run = ctx.ensure_object(Invocation)
        accepted = option_scope.accepted_options(ctx)
        names = [row.name for row in ROWS if accepted is None or row.name in accepted]
        if idle := given_options(ctx).keys() - {*names}:
            flags = ", ".join(sorted(BY_NAME[name].flag for name in idle))
            words = ctx.command_path.split(" ")
            if words[1] == "tasks" and "agent-card" in idle:
                from dragoman.cli.hints import again

                raise usage(f"-a names an agent; {_NOUNS}", again(run, instead=("tasks", "task")))
            raise usage(
                f"without effect on {ctx.command_path}: {flags}", f"{ctx.command_path} --help"
            )
        run.settle(
            settle(
                given_options(ctx), run.environment, run.folder, defaults=self.defaults, names=names
            )
        )
        assert self.callback is not None
        return ctx.invoke(self.callback, run, **ctx.params)


class CommandPlace(NamedTuple):
    """Where a command is, and what it does: help shows the latter without loading it."""

    # A module of this folder and a name in it.
    target: str
    about: str
    # Under which heading; groups without headings have one list.
    section: str = "Commands"


class Group(_Grammar, click.Group):
    """Commands under one name, loaded by need."""

    def __init__(
        self,
        *arguments: Any,
        places: Mapping[str, CommandPlace] | None = None,
        calls_agents: bool = True,
        elsewhere: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        attributes["context_settings"] = _CONTEXT | attributes.get("context_settings", {})
        super().__init__(*arguments, **attributes)
        self.places = dict(places or {})
        # Otherwise the options about calls are not among those of its commands.
        self.calls_agents = calls_agents
        # Commands that are looked for here and are another group's, by their names.
        self.elsewhere = elsewhere or {}
        self.defaults = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return [*self.places, *(name for name in self.commands if name not in self.places)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        if found := self.commands.get(cmd_name):
            return found
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].target.partition(":")
        found = cast(
            click.Command, getattr(importlib.import_module(f"dragoman.cli.{module}"), name)
        )
        self.add_command(found, cmd_name)
        return found

    def about(self, name: str) -> str:
        """Return what a command does, in a line."""
        if place := self.places.get(name):
            return place.about
        return self.commands[name].get_short_help_str(WIDTH)

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return its commands and what each does, by their headings."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            place = self.places.get(name)
            title = place.section if place else "Commands"
            found.setdefault(title, []).append((name, self.about(name)))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was named; a near one is suggested and never taken."""
        if (command := self.get_command(ctx, args[0])) is None:
            if group := self.elsewhere.get(args[0]):
                right = f"dragoman {group} {' '.join(args)}"
                raise usage(f"{ctx.command_path} has no {args[0]}; {_NOUNS}", right)
            _unknown(ctx, args[0], self.list_commands(ctx))
        return args[0], command, args[1:]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take its options; without a command there is help, however many options there are."""
        rest = super().parse_args(ctx, args)
        if all(one.name for one in command_words(ctx)):
            raise click.exceptions.NoArgsIsHelpError(ctx)
        return rest


# What two nouns that are mistaken for each other stand for.
_NOUNS = "`task` asks an agent (-a), `tasks` looks into the store of this machine"


def _unknown(ctx: click.Context, name: str, known: list[str]) -> NoReturn:
    message = f"No such command: {name}"
    if near := meant(name, [*known, *([] if ctx.parent else ["--version"])]):
        from dragoman.cli.hints import again

        right = again(ctx.find_root().ensure_object(Invocation), instead=(name, near))
        raise usage(f"{message}; did you mean {near}?", right)
    raise click.UsageError(message, ctx)


_CONTEXT: dict[str, Any] = {
    "help_option_names": [*_HELP],
    "terminal_width": WIDTH,
    "max_content_width": WIDTH,
}


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command of this grammar."""
    return click.command(name, cls=Command, **attributes)


def given_options(ctx: click.Context) -> Mapping[str, Sequence[str]]:
    """Return the global options as they were written, before and after the command."""
    return ctx.meta.get(_GIVEN, {})


def command_words(ctx: click.Context | None = None) -> list[GivenOption]:
    """Return what the command line of the innermost command says, in its order."""
    return (ctx or click.get_current_context()).meta.get(_SAID, [])


def spelled_out(
    args: Sequence[str], options: Mapping[str, click.Option], interspersed: bool
) -> tuple[list[str], list[GivenOption]]:
    """Return the words with each value apart from its flag, and what they say in their order.

    Unknown flags stay as they are: click refuses them.
    """
    words: list[str] = []
    found: list[GivenOption] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found += [GivenOption("", value) for value in rest]
            words += [word, *rest]
            break
        if word[:1] != "-" or word == "-":
            found.append(GivenOption("", word))
            words.append(word)
            if not interspersed:
                words += rest
                break
            continue
        flag, equals, value = word.partition("=")
        if flag not in options and not word.startswith("--"):
            flag, equals, value = word[:2], word[2:], word[2:].removeprefix("=")
        parameter = options.get(flag)
        if parameter is None or parameter.is_flag:
            words.append(word)
            continue
        if not equals:
            if isinstance(parameter, Option) and parameter.is_switch:
                value = "true"
            elif not rest:
                words.append(word)
                continue
            else:
                value = rest.pop(0)
        if isinstance(parameter, Option) and parameter.row is BY_NAME["output"]:
            file = next((one for one in options.values() if _takes_output(one)), None)
            if file is not None and value not in FORMATS:
                parameter, flag = file, file.opts[0]
        words += [flag, value]
        found.append(GivenOption(parameter.name or flag, value))
    return words, found


def _takes_output(parameter: click.Option) -> bool:
    return isinstance(parameter, Option) and parameter.takes_output
