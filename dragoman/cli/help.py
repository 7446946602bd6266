"""Help texts: the commands, options and arguments of a command.

They show the values that hold here and where those come from, so the configuration is read first; a
file that cannot be read is mentioned and no more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.option import Option
from dragoman.cli.output import one_line
from dragoman.cli.redaction import HIDDEN, Redactor
from dragoman.cli.sources import CommandSettings

if TYPE_CHECKING:
    from dragoman.cli.options import OptionRow

# The global options that a short help names.
_EVERYDAY = ("agent-card", "output", "timeout", "debug")
# Global options that say what one command does; its short help explains them among its own.
_EXPLAINED = {
    "send": ("agent-card", "stream", "async", "task-id", "context-id"),
    "chat": ("agent-card", "task-id", "context-id"),
    "task get": ("agent-card", "wait"),
    "task list": ("agent-card", "context-id"),
}
# Of commands with more options than a person reads, those that a short help explains.
_SERVING = ("--listen", "--port", "--store", "--auth", "--public", "--quiet", "--help", "--version")
_REGISTERING = ("--name", "--tag", "--price", "--replica", "--repeatable", "--token-env")
_REGISTERED = ("--gateway", "--admin-token", "--help", "--version")
USUAL: Mapping[str, tuple[str, ...]] = {
    "serve": ("--exec", "--mcp", "--workers", "--reload", *_SERVING),
    "up": ("--data-dir", "--no-demo", *_SERVING),
    "gateway": ("--data-dir", "--workers", *_SERVING),
    "mcp": ("--agent-card", "--gateway", "--admin-token", *_SERVING),
    "demo-server": ("--scenario", "--latency", *_SERVING),
    "agents register": (*_REGISTERING, "--default", "--offline", *_REGISTERED),
    "agents update": (*_REGISTERING, "--url", "--accept", "--paused", *_REGISTERED),
}
# What stands on a command line without a flag, as its usage shows it.
_ARGUMENTS = {
    "[TEXT]": "What to say, in quotes.",
    "TASK_ID": "The id of the task, as the agent named it.",
    "CONFIG_ID": "The id of the push configuration.",
    "[REF]": "The agent, as -a names it.",
    "REF": "The agent: its host, its URL or the file of its card.",
    "[TARGET]...": "Files of Python, or modules and their agents (module:name).",
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


def write_help(
    subject: click.Command,
    ctx: click.Context,
    formatter: click.HelpFormatter,
    settings: CommandSettings,
    commands: Mapping[str, Sequence[tuple[str, str]]],
    *,
    is_full: bool,
) -> None:
    """Write the help of a command, with the settings that hold here; `commands` are those of a
    group, by their headings. What all commands share is one line unless it is to be full."""
    subject.format_usage(ctx, formatter)
    subject.format_help_text(ctx, formatter)
    own: list[tuple[str, str]] = []
    shared: list[Option] = []
    left_out = 0
    parameters = subject.get_params(ctx)
    path = ctx.command_path.partition(" ")[2]
    explained = () if is_full else _EXPLAINED.get(path, ())
    usual = None if is_full else USUAL.get(path)
    for parameter in parameters:
        if isinstance(parameter, Option) and parameter.hidden:
            continue
        if isinstance(parameter, Option) and parameter.row is not None:
            shared.append(parameter)
            if parameter.row.name in explained:
                own.append((parameter.shown, parameter.row.help))
        elif isinstance(parameter, Option) and usual and not set(usual) & set(parameter.opts):
            left_out += 1
        elif isinstance(parameter, Option):
            own.append((parameter.shown, _own_help(parameter, ctx, is_short=bool(usual))))
        elif record := parameter.get_help_record(ctx):
            name, about = record
            own.append((name, about or _ARGUMENTS.get(name, "")))
    for title, rows in commands.items():
        _section(formatter, title, rows)
    _section(formatter, "Options", own)
    if left_out:
        with formatter.section("More options"):
            formatter.write_text(f"{left_out} more: {ctx.command_path} --help --all")
    if is_full:
        rows = [(one.shown, _global_help(one, settings)) for one in shared]
        _section(formatter, "Global options", rows)
    elif shared:
        with formatter.section("Global options"):
            left = [one for one in shared if one.row and one.row.name not in explained]
            formatter.write_text(_in_one_line(left, ctx.command_path))
        in_force = [f"{one.opts[-1]} {text}" for one in shared if (text := _chosen(one, settings))]
        _section(formatter, "In force here", [(line, "") for line in in_force])
    if settings.problems:
        _section(formatter, "Not read", [("", problem) for problem in settings.problems])


def _section(formatter: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows := list(rows):
        with formatter.section(title):
            formatter.write_dl(rows, col_max=28)


def _in_one_line(shared: Sequence[Option], path: str) -> str:
    """Return those that everybody needs, and how to see the others."""
    named = [one.opts[0] for one in shared if one.row is not None and one.row.name in _EVERYDAY]
    more = f" and {len(shared) - len(named)} more" if len(shared) > len(named) else ""
    return f"{', '.join(named)}{more}: {path} --help --all"


def _chosen(parameter: Option, settings: CommandSettings) -> str:
    """Return the value of an option that is not the default here, and where it comes from."""
    assert parameter.row is not None
    return _effective(parameter.row, settings) if settings.is_set(parameter.row.name) else ""


def _own_help(parameter: Option, ctx: click.Context, *, is_short: bool) -> str:
    about = parameter.help or ""
    # The help of a credential also warns of the flag.
    if is_short and "--admin-token" not in parameter.opts:
        first, dot, _ = about.partition(". ")
        about = first + dot.rstrip()
    default = parameter.get_default(ctx)
    is_plain = isinstance(default, str | int | float) and default is not False and default != ""
    return f"{about} [default: {default}]" if is_plain else about


def _global_help(parameter: Option, settings: CommandSettings) -> str:
    row = parameter.row
    assert row is not None
    about = row.help
    # The help of a credential names it where it warns of the flag.
    if row.in_environment and row.variable not in about:
        about += f" ${row.variable}."
    if display_value := _effective(row, settings):
        about += f" [default: {display_value}]"
    return about


def _effective(row: "OptionRow", settings: CommandSettings) -> str:
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
    return one_line(display_value(row, getattr(settings, row.field)) + source)


def display_value(row: "OptionRow", value: Any) -> str:
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
