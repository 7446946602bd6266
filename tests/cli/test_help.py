"""The command itself: help, version, and how little it loads before there is something to do."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from harness.processes import run

from dragoman.cli.help import USUAL
from dragoman.cli.main import COMMANDS, cli
from dragoman.cli.options import ROWS
from tests.cli.command import inside


def test_help_names_the_commands_and_their_options(tmp_path: Path) -> None:
    for flag in ("--help", "-h"):
        shown = run(flag, cwd=tmp_path)
        assert shown.returncode == 0
        assert "serve" in shown.stdout and "up" in shown.stdout
    serve = inside("serve", "--help", cwd=tmp_path).stdout
    for option in ("--listen", "--store", "--reload", "--public"):
        assert option in serve


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert version("dragoman") in run("--version", cwd=tmp_path).stdout


def test_a_command_nobody_knows_is_exit_2(tmp_path: Path) -> None:
    ended = run("sevre", cwd=tmp_path)
    assert ended.returncode == 2 and "sevre" in ended.stderr and "did you mean" in ended.stderr


def test_help_of_a_command_is_its_own_help(tmp_path: Path) -> None:
    asked = inside("help", "task", "push-config", "create", cwd=tmp_path)
    own = inside("task", "push-config", "create", "--help", cwd=tmp_path)
    assert asked.returncode == own.returncode == 0
    assert asked.stdout == own.stdout
    unknown = inside("help", "task", "gte", cwd=tmp_path)
    assert unknown.returncode == 2 and "did you mean get?" in unknown.stderr


def test_help_shows_the_values_that_hold_and_their_source(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A2ACLI_TIMEOUT=90s\n")
    shown = inside("send", "--help", "--all", cwd=tmp_path, env={"A2ACLI_OUTPUT": "json"}).stdout
    text = " ".join(shown.split())
    assert "[default: json (from A2ACLI_OUTPUT)]" in text
    assert f"[default: 90s (from {tmp_path / '.env'})]".replace(" ", "") in text.replace(" ", "")
    assert "Wait until the task ends or asks something. $A2ACLI_WAIT. [default: true]" in text
    other = " ".join(inside("task", "get", "--help", "--all", cwd=tmp_path).stdout.split())
    assert "Wait until the task ends or asks something. $A2ACLI_WAIT. [default: false]" in other


def test_short_help_explains_the_global_options_that_say_what_a_command_does(
    tmp_path: Path,
) -> None:
    own, _, shared = inside("send", "--help", cwd=tmp_path).stdout.partition("Global options")
    for option in ("-a, --agent-card", "--stream", "--async", "--task-id", "--context-id"):
        assert f"  {option} " in own and option not in shared
    whole = inside("send", "--help", "--all", cwd=tmp_path).stdout.partition("Global options")[2]
    assert "--stream" in whole, "all of them stand together there"
    assert "--wait" in inside("task", "get", "--help", cwd=tmp_path).stdout
    here = inside("send", "--help", cwd=tmp_path, env={"A2ACLI_AGENT_CARD": "localhost:7"}).stdout
    assert "--agent-card localhost:7" in here.partition("In force here")[2]


def test_help_survives_a_broken_file_and_shows_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A2ACLI_OUTPUT=nonsense\nA2ACLI_BEARER=hunter22\n")
    shown = inside("send", "--help", cwd=tmp_path)
    # Where the line is wrapped depends on the length of the folder's name.
    said = " ".join(shown.stdout.split())
    assert shown.returncode == 0 and "A2ACLI_OUTPUT must be text" in said
    assert "hunter22" not in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    "heavy", ["uvicorn", "uvloop", "httptools", "apsw", "ssl", "asyncio", "msgspec"]
)
def test_help_loads_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys\n"
        "from dragoman.cli.main import cli\n"
        "try:\n"
        "    cli(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        f"sys.exit({heavy!r} in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, f"{heavy} was loaded for a help text"


def _arguments(place: click.Context) -> Iterator[tuple[click.Context, click.Argument]]:
    for parameter in place.command.get_params(place):
        if isinstance(parameter, click.Argument):
            yield place, parameter
    if isinstance(place.command, click.Group):
        for name in place.command.list_commands(place):
            found = place.command.get_command(place, name)
            assert found is not None
            inner = found.context_class(found, info_name=name, parent=place)
            yield from _arguments(inner)


def test_every_argument_is_described(tmp_path: Path) -> None:
    found = list(_arguments(click.Context(cli, info_name="dragoman")))
    assert len(found) > 20
    for place, parameter in found:
        words = place.command_path.split()[1:]
        # Behind the text, which may begin a line with the same word.
        shown = inside(*words, "--help", cwd=tmp_path).stdout.partition("\nOptions:\n")[2]
        row = [line for line in shown.splitlines() if line.startswith("  ")]
        title = parameter.make_metavar(place)
        about = [line.strip().removeprefix(title) for line in row if line.strip().startswith(title)]
        following = row[row.index(next(one for one in row if one.strip().startswith(title))) + 1]
        assert any(about) or following.startswith("     "), (words, title)


def test_all_options_are_explained_when_asked_for_and_a_command_keeps_its_own_all(
    tmp_path: Path,
) -> None:
    for words in (
        ("send", "--help", "--all"),
        ("--all", "send", "--help"),
        ("help", "send", "--all"),
    ):
        assert "--trust-origin" in inside(*words, cwd=tmp_path).stdout
    listed = inside("task", "list", "--help", cwd=tmp_path).stdout
    assert "Show all pages" in listed and "--trust-origin" not in listed
    assert inside("send", "--all", "x", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("tasks get t-1", "dragoman task get t-1"),
        ("task tail", "dragoman tasks tail"),
        ("tasks list -a localhost:1", "dragoman task list -a localhost:1"),
        ("task list --store x", "dragoman tasks list --help"),
    ],
)
def test_the_noun_that_was_meant_is_suggested(tmp_path: Path, words: str, hint: str) -> None:
    ended = inside(*words.split(), cwd=tmp_path)
    assert ended.returncode == 2 and f"Hint: {hint}\n" in ended.stderr
    assert "`task` asks an agent" in ended.stderr and "`tasks` looks into the store" in ended.stderr


def test_help_names_the_variable_of_every_option_that_has_one(tmp_path: Path) -> None:
    text = " ".join(inside("send", "--help", "--all", cwd=tmp_path).stdout.split())
    for row in ROWS:
        assert not row.in_environment or row.variable in text, row.name


def test_help_fits_80_columns_and_is_short_where_options_are_many(tmp_path: Path) -> None:
    commands = [name.split() for name in (*COMMANDS, "agents register", "agents update")]
    for words in commands:
        lines = inside(*words, "--help", cwd=tmp_path).stdout.splitlines()
        assert max(map(len, lines)) <= 80, words
        assert len(lines) <= 45, words
    serve = inside("serve", "--help", cwd=tmp_path).stdout
    full = inside("serve", "--help", "--all", cwd=tmp_path).stdout
    assert " more: dragoman serve --help --all\n" in serve.partition("More options:")[2]
    assert "--jwt-issuer" not in serve and "--openai" not in serve
    assert "$DRAGOMAN_JWT_ISSUER" in full and "More options" not in full


def test_a_short_help_explains_what_the_command_is_about(tmp_path: Path) -> None:
    for name, options in USUAL.items():
        shown = inside(*name.split(), "--help", cwd=tmp_path).stdout
        missing = [one for one in options if not re.search(rf"{one}\b", shown)]
        # Some of what servers share is not for each of them.
        assert set(missing) <= {"--store", "--quiet"}, name
    demo = inside("demo-server", "--help", "--all", cwd=tmp_path).stdout
    assert "submitted, working, hang" in demo and "  no-card " in demo
