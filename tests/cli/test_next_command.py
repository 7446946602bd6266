"""Whatever is refused says what to type next, and what it says can be typed.

`command.py` holds every failure of every test to the first; here are the places that raise one.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from harness.processes import running

from dragoman import errors
from dragoman.cli.failures import Failure, explain
from dragoman.cli.hints import advise, next_after
from dragoman.cli.invocation import Invocation
from dragoman.cli.main import cli
from dragoman.cli.options import ROWS
from dragoman.cli.sources import CommandSettings
from dragoman.errors import A2AError, ConfigError
from tests.cli.command import fields, inside

PACKAGE = Path(__file__).parent.parent.parent / "dragoman"
# What is typed besides ours.
OTHERS = ("pip", "ls", "mkdir", "df", "unset", "export", "openssl")
TYPED = ("send", "-a", "host:1", "hi")
HELP = "dragoman send --help"
AGENT = """
from dragoman import Agent

agent = Agent("Hello", "Says hello.")


@agent.skill
def hello(name: str) -> str:
    return name
"""


def calls(*names: str, under: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield the places in the source where one of these is made."""
    for path in sorted((PACKAGE / under).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in names:
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node
                case _:
                    pass


def check_command(line: str) -> None:
    """Refuse what a shell or we would not take: each word and option has to exist."""
    words = shlex.split(line)
    if words[1:] and re.fullmatch("[A-Z0-9_]+=.*", words[0]):
        words.pop(0)
    if words.pop(0) != "dragoman":
        assert line.split()[0] in OTHERS, line
        return
    place: click.Command = cli
    context = click.Context(cli, info_name="dragoman")
    while isinstance(place, click.Group) and words and not words[0].startswith("-"):
        found = place.get_command(context, words.pop(0))
        assert found is not None, line
        place = found
    known = {flag for one in place.get_params(context) for flag in getattr(one, "opts", ())}
    known |= {row.flag for row in ROWS} | {"-a", "-o", "--follow", "--help", "--all"}
    flags = [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
    assert {*flags} <= known, line


def test_every_failure_that_is_no_misuse_has_a_hint_where_it_is_raised() -> None:
    bare = [
        place
        for place, node in calls("Failure", under="cli")
        if not {"hint", "remedy"} & {one.arg for one in node.keywords}
        # Here errors of every kind become failures; `next_after` has what follows them.
        and not place.startswith("cli/failures.py")
    ]
    assert bare == []


def test_every_command_that_the_source_tells_a_user_to_type_exists() -> None:
    lines: list[str] = []
    for place, node in calls("Failure", "usage", "ConfigError", "refusal"):
        given = [one.value for one in node.keywords if one.arg in ("hint", "remedy")]
        if place.startswith("cli/") and getattr(node.func, "id", "") == "usage":
            given += node.args[1:2]
        texts = [one.value for one in given if isinstance(one, ast.Constant)]
        lines += [text for text in texts if isinstance(text, str) and re.match("[a-z]", text)]
    assert len(lines) > 40
    for line in lines:
        check_command(line)


def test_an_extra_that_is_missing_is_a_command_away() -> None:
    named = [
        place
        for place, node in calls("ConfigError")
        if "pip install" in ast.unparse(node.args[0]) and not node.keywords
    ]
    assert named == []


def kinds(tree: type[A2AError]) -> Iterator[type[A2AError]]:
    if tree.__module__ == errors.__name__:
        yield tree
    for kind in tree.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("debug", [False, True])
def test_every_error_of_the_tree_and_of_the_machine_is_followed_by_a_command(debug: bool) -> None:
    run = Invocation(TYPED, {})
    run.settle(CommandSettings(agent_card="host:1", debug=debug, timeout=2))
    others = [
        *(ConfigError("wrong"), KeyboardInterrupt(), ZeroDivisionError(), OSError(28, "full")),
        *(PermissionError(13, "no", "/x"), click.UsageError("no"), click.ClickException("no")),
        *(Failure("A2ACLI_ERR_TIMEOUT", "late"), Failure("DRAGOMAN_ERR_STORE", "ours")),
        ExceptionGroup("several", [ValueError("one")]),
    ]
    for error in [*(kind() for kind in kinds(A2AError)), *others]:
        failure = explain(error)
        if isinstance(error, A2AError):
            advise(error, failure, run)
        check_command(failure.hint or next_after(run, error, failure, HELP))


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("serv agent.py", "dragoman serve agent.py"),
        ("task lst -a x", "dragoman task list -a x"),
        ("serve agent.py --stor=x", "dragoman serve agent.py --store=x"),
        ("serve agnt.py --port 0", "dragoman serve agent.py --port 0"),
        ("serve other.py", "ls ."),
        ("ledger list", "dragoman ledger statement"),
        ("serve plain.py:helo --port 0", "dragoman serve plain.py:hello --port 0"),
        ("serve plain.py", "dragoman serve plain.py:hello"),
        ("serve wrong.py", "dragoman serve wrong.py --debug"),
        (
            "serve agent.py --port 0 --store .",
            "dragoman serve agent.py --port 0 --store {folder}/tasks.db",
        ),
        ("serve agent.py --port 0 --store /no/x.db", "mkdir -p /no"),
        ("serve agent.py --listen nowhere", "dragoman serve agent.py --listen 127.0.0.1:8000"),
        ("serve agent.py --port 99999", "dragoman serve agent.py --port '<port>'"),
        ("serve agent.py --workers=x", "dragoman serve agent.py --workers '<n>'"),
        (
            "serve agent.py --auth oidc --port 0",
            "dragoman serve agent.py --auth oidc --port 0 --jwt-issuer '<url>'",
        ),
        ("run agent.py", "dragoman serve agent.py"),
        ("version", "dragoman --version"),
        ("agents ls", "dragoman agents list"),
        ("keys delete x", "dragoman keys revoke x"),
        ("triggers create --cron x", "dragoman triggers add --cron x"),
        ("send -a x --token secret hi", "dragoman send -a x --bearer '<token>' hi"),
        ("send --url x hi", "dragoman send --agent-card x hi"),
        ("send localhost:1 hi", "dragoman send hi -a localhost:1"),
        ("send agent.example.com/a hi", "dragoman send hi -a agent.example.com/a"),
        ("send -a x --data {to:5}", 'dragoman send -a x --data \'{{"name": "value"}}\''),
        ("send -a x hi -o yaml", "dragoman send -a x hi --output json"),
        ("send -a x hi --timeout 5x", "dragoman send -a x hi --timeout 30s"),
        ("send -a no-such-host hi", "dragoman send -a localhost:8000/a2a/no-such-host hi"),
        ("task list -a x --status complete", "dragoman task list -a x --status completed"),
        ("store migrate --store gone.db", "dragoman up"),
        ("keys create", "dragoman keys create --owner '<name>'"),
        ("agents register", "dragoman agents register '<ref>'"),
        ("rollouts start one", "dragoman rollouts start one '<candidate>'"),
        ("mcp", "dragoman mcp --gateway http://127.0.0.1:8000"),
        ("agents list --gateway 127.0.0.1:1", "dragoman up --port 1"),
        ("agents list --gateway [", "dragoman agents list --gateway http://127.0.0.1:8000"),
        (
            "serve agent.py --host 0.0.0.0 --port 8001",
            "dragoman serve agent.py --listen 127.0.0.1:8001",
        ),
        (
            "serve agent.py --auth bearer",
            "DRAGOMAN_AUTH_TOKEN='<token>' dragoman serve agent.py --auth bearer",
        ),
        ("send hi", "dragoman send hi -a localhost:8000"),
        ("send -a x", "dragoman send -a x hello"),
        ("send -a x two words", "dragoman send -a x 'two words'"),
        ("send -a x hi --async --wait", "dragoman send -a x hi --async"),
        ("send -a x --file gone", "ls -la {folder}"),
        ("send -a 127.0.0.1:1 hi", "dragoman serve '<file>' --port 1"),
        ("task list --store x", "dragoman tasks list --help"),
        ("tasks list --store gone.db", "dragoman up"),
        ("backup agent.py --store agent.py", "dragoman backup --help"),
        ("keys revoke gone --yes", "dragoman keys list"),
        ("inbox answer", "dragoman inbox list"),
        ("task get -a x", "dragoman task list -a x"),
        ("agents remove --gateway http://x", "dragoman agents list --gateway http://x"),
        ("backup", "dragoman backup '<target>'"),
        ("init agent.py", "dragoman init my_agent"),
        ("init --template none x", "dragoman init x --template agent"),
        ("init --template aproval x", "dragoman init x --template approval"),
        ("mock gone.json", "ls -la ."),
        ("doctor one --agent two", "dragoman doctor --help"),
    ],
)
def test_what_was_typed_wrong_is_followed_by_what_is_right(
    tmp_path: Path, typed: str, line: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "plain.py").write_text("def hello(name: str) -> str:\n    return name\n")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    # Any port: a server of someone else may have the usual one.
    ended = inside(*typed.split(), cwd=tmp_path, env={"DRAGOMAN_LISTEN": "127.0.0.1:0"})
    assert ended.returncode and fields(ended.stderr)["Hint"] == line.format(folder=tmp_path)
    check_command(fields(ended.stderr)["Hint"])


def test_a_file_that_is_too_large_is_sent_by_its_address(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(8 * 1024 * 1024 + 1))
    (tmp_path / "agent.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "memory:")
    with running("serve", "agent.py", *options, cwd=tmp_path) as server:
        words = ("send", "-a", server.ready(), "--file", "large.bin", "look")
        ended = inside(*words, cwd=tmp_path)
    assert ended.returncode == 1 and "body is too large" in ended.stderr
    hint = fields(ended.stderr)["Hint"]
    assert hint.endswith("look --file '<url>'") and "large.bin" not in hint


def test_a_variable_that_is_wrong_is_unset_unless_a_flag_was_typed(tmp_path: Path) -> None:
    env = {"DRAGOMAN_WORKERS": "many"}
    assert fields(inside("up", cwd=tmp_path, env=env).stderr)["Hint"] == "unset DRAGOMAN_WORKERS"
    ended = inside("up", cwd=tmp_path, env={"DRAGOMAN_WORKRS": "2"})
    assert fields(ended.stderr)["Hint"] == "unset DRAGOMAN_WORKRS"
