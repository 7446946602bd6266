"""`dragoman config show`: what holds here, and where it comes from. Nothing is ever written."""

from typing import Any

from dragoman.cli.failures import similar
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.help import display_value
from dragoman.cli.invocation import Invocation
from dragoman.cli.options import PREFIX, ROWS, OptionRow
from dragoman.cli.redaction import HIDDEN, Redactor
from dragoman.cli.sources import CATALOG, DEFAULT, Origin, cache_folder, tokens_folder

# What single commands read.
_OTHERS = ("A2ACLI_CLIENT_ID", "A2ACLI_CLIENT_SECRET")

config = Group(
    "config",
    help="Show settings and their sources.",
    places={"show": CommandPlace("operating.config:show", "Show settings and their sources.")},
)


@command("show")
def show(run: Invocation) -> None:
    """Show every setting and where it comes from; secrets are not shown."""
    settings, out = run.settings, run.out
    found: list[dict[str, Any]] = []
    for row in ROWS:
        # Only ever a flag, so there is nothing to configure.
        if not row.in_environment:
            continue
        origin = settings.origins.get(row.name, DEFAULT)
        value = getattr(settings, row.field) if row.name in settings.origins else None
        found.append(_entry(row.name, row.variable, _value(row, value), origin))
        if not out.is_json:
            text = row.otherwise if value is None else display_value(row, value)
            out.field(row.name, f"{text or 'not set'} ({_source(origin)})")
    _variable(run, found, "catalog", CATALOG)
    _of_servers(run, found)
    for name, path in (
        ("token-store", tokens_folder(run.environment)),
        ("card-cache", cache_folder(run.environment) / "cards"),
    ):
        found.append(_entry(name, None, str(path), DEFAULT))
        if not out.is_json:
            out.field(name, f"{path} (default)")
    _warn(run)
    if out.is_json:
        out.json({"settings": found})


def _of_servers(run: Invocation, found: list[dict[str, Any]]) -> None:
    """Show what is set for servers, by the names of the variables; of a secret only that it is."""
    from dragoman import config

    files = [f"{name}_file" for name in config.IN_FILES]
    for name in dict.fromkeys([*config.FIELDS, *sorted(files)]):
        variable = config.PREFIX + name.upper()
        if run.settings.environment.get(variable):
            _variable(run, found, variable, variable, is_secret=name in config.SECRETS)


def _variable(
    run: Invocation, found: list[dict[str, Any]], name: str, variable: str, is_secret: bool = False
) -> None:
    """Show what has no flag that every command understands."""
    value = Redactor().text(run.settings.environment.get(variable, ""))
    if value and is_secret:
        value = HIDDEN
    origin = run.settings.from_files.get(variable, DEFAULT)
    if variable in run.environment:
        origin = Origin("env", 2)
    found.append(_entry(name, variable, value or None, origin))
    if not run.out.is_json:
        run.out.field(name, f"{value or 'not set'} ({_source(origin)})")


def _warn(run: Invocation) -> None:
    """Name what looks like a setting and is none."""
    known = [row.variable for row in ROWS if row.in_environment] + [*_OTHERS]
    for name in sorted(run.settings.environment):
        if name.startswith(PREFIX) and name not in known:
            near = similar(name, known)
            run.out.warn(f"{name} is no setting" + (f"; did you mean {near}?" if near else ""))


def _entry(name: str, variable: str | None, value: Any, origin: Origin) -> dict[str, Any]:
    entry = {"name": name, "env": variable, "value": value, "source": origin.kind}
    return entry | ({"path": origin.path} if origin.path else {})


def _value(row: OptionRow, value: Any) -> Any:
    """Return a value as a program reads it."""
    if row.is_secret:
        return HIDDEN if value else None
    return display_value(row, value) if isinstance(value, float) else Redactor().value(value)


def _source(origin: Origin) -> str:
    return f"{origin.kind} {origin.path}" if origin.path else origin.kind
