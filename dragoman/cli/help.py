"""Help texts: `dragoman help task get` is `dragoman task get --help`.

They show the values that hold here and where those come from, so they read the configuration first;
a file that cannot be read is mentioned and no more.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.grammar import Command, Group, Option, command, given
from dragoman.cli.invocation import Invocation
from dragoman.cli.output import one_line
from dragoman.cli.redaction import HIDDEN, Redactor
from dragoman.cli.sources import Settings, settle

if TYPE_CHECKING:
    from dragoman.cli.options import Row

_Rows = list[tuple[str, str]]
# What stands on a command line without a flag, as its usage shows it.
_ARGUMENTS = {
    "[TEXT]": "What to say, in quotes.",
    "TASK_ID": "The id of the task, as the agent named it.",
    "CONFIG_ID": "The id of the push configuration.",
    "[REF]": "The agent, as -a names it.",
    "REF": "The agent: its host, its URL or the file of its card.",
    "[TARGET]...": "Modules and their agents (module:name), or files of Python.",
    "[DIR]": "The folder of the project, made if need be.",
    "SCRIPT": "The file that says what the agent does (YAML).",
    "CASSETTE": "The file of a recorded dialogue.",
    "[ID]...": "The ids of failed pushes.",
    "TARGET": "The file to write.",
    "AGENT": "A registered agent, by its id or name.",
    "[EXPORT]": "A file that `dragoman trust export` wrote.",
    "KEY_ID": "The id of a key, as `dragoman keys list` shows it.",
    "FILE": "The file of the card (JSON).",
    "{bash|zsh|fish|powershell}": "The shell it is for.",
    "[COMMAND]...": "The words of the command.",
}


@command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(ctx: click.Context, run: Invocation, words: tuple[str, ...]) -> None:
    """Show the help of a command."""
    place = ctx.find_root()
    for word in words:
        if not isinstance(place.command, click.Group):
            raise click.UsageError(f"{place.command_path} has no commands", place)
        _, found, _ = place.command.resolve_command(place, [word])
        assert found is not None
        place = found.context_class(found, info_name=word, parent=place, **found.context_settings)
    run.out.write(place.get_help() + "\n")


def write(subject: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the help of a command."""
    subject.format_usage(ctx, formatter)
    subject.format_help_text(ctx, formatter)
    own: _Rows = []
    shared: list[Option] = []
    for parameter in subject.get_params(ctx):
        if isinstance(parameter, Option) and parameter.hidden:
            continue
        if isinstance(parameter, Option) and parameter.row is not None:
            shared.append(parameter)
        elif isinstance(parameter, Option):
            own.append((parameter.shown, _own_help(parameter, ctx)))
        elif record := parameter.get_help_record(ctx):
            name, about = record
            own.append((name, about or _ARGUMENTS.get(name, "")))
    if isinstance(subject, Group):
        _write_commands(subject, ctx, formatter)
    _section(formatter, "Options", own)
    defaults = dict(subject.defaults) if isinstance(subject, Command | Group) else None
    run = ctx.ensure_object(Invocation)
    settings = settle(given(ctx), run.environment, run.folder, defaults=defaults, tolerant=True)
    _section(
        formatter, "Global options", [(one.shown, _global_help(one, settings)) for one in shared]
    )
    if settings.problems:
        _section(formatter, "Not read", [("", problem) for problem in settings.problems])


def _section(formatter: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows := list(rows):
        with formatter.section(title):
            formatter.write_dl(rows, col_max=28)


def _write_commands(group: Group, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    sections: dict[str, _Rows] = {}
    for name in group.list_commands(ctx):
        place = group.places.get(name)
        title = place.section if place else "Commands"
        sections.setdefault(title, []).append((name, group.about(name)))
    for title, rows in sections.items():
        _section(formatter, title, rows)


def _own_help(parameter: Option, ctx: click.Context) -> str:
    about = parameter.help or ""
    default = parameter.get_default(ctx)
    is_plain = isinstance(default, str | int | float) and default is not False and default != ""
    return f"{about} [default: {default}]" if is_plain else about


def _global_help(parameter: Option, settings: Settings) -> str:
    row = parameter.row
    assert row is not None
    about = row.help
    # The help of a credential names it where it warns of the flag.
    if row.in_environment and row.variable not in about:
        about += f" ${row.variable}."
    if shown := _effective(row, settings):
        about += f" [default: {shown}]"
    return about


def _effective(row: "Row", settings: Settings) -> str:
    origin = settings.origins.get(row.name)
    if origin is None:
        return row.otherwise
    source = ""
    if origin.kind == "env":
        source = f" (from {row.variable})"
    elif origin.kind == "file":
        source = f" (from {origin.path})"
    elif origin.kind == "flag":
        source = " (from the command line)"
    # A file that was found may say anything.
    return one_line(shown(row, getattr(settings, row.field)) + source)


def shown(row: "Row", value: Any) -> str:
    """Return a value as people write it; secrets are not shown."""
    if row.is_secret:
        return HIDDEN if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}s" if value else "0"
    if isinstance(value, dict):
        import json

        return json.dumps(Redactor().value(value))
    if isinstance(value, list):
        return ", ".join(Redactor().text(str(one)) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # its elements are what rows read
    # An address may have a user or a key in it.
    return Redactor().text(str(value))
