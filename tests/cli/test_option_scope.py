"""Global options on commands of our own: what has no effect is not shown, and refused if typed."""

import re
from pathlib import Path

import click
import pytest

from dragoman.cli.invocation import Invocation
from dragoman.cli.main import COMMANDS, cli
from dragoman.cli.options import BY_NAME
from tests.cli.command import inside

ALWAYS = {"output", "config", "verbose", "debug"}
TLS = {"insecure", "client-cert", "client-key", "ca-cert"}
GATEWAY = TLS | {"bearer", "api-key"}
ASKS = TLS | {"bearer", "api-key", "trust-origin", "a2a-version", "strict-version"}
SHOWN = {
    "serve": ALWAYS | {"transport", "a2a-version"},
    "up": ALWAYS,
    "init": ALWAYS | {"timeout"},
    "push list": ALWAYS | GATEWAY | {"timeout", "stream"},
    "push replay": ALWAYS | GATEWAY | {"timeout"},
    "push secret": ALWAYS | {"timeout"},
    "tasks": ALWAYS | GATEWAY | {"timeout", "stream", "context-id", "task-id"},
    "tasks tail": ALWAYS | GATEWAY | {"timeout", "stream", "context-id", "task-id"},
    "tasks show": ALWAYS | GATEWAY | {"timeout"},
    "keys create": ALWAYS | GATEWAY | {"timeout"},
    "keys list": ALWAYS | GATEWAY | {"timeout", "stream"},
    "ledger verify": ALWAYS | GATEWAY | {"timeout"},
    "trust export": ALWAYS | GATEWAY | {"timeout"},
    "vault show": ALWAYS | {"timeout"},
    "backup": ALWAYS | {"timeout"},
    "card sign": ALWAYS | {"timeout"},
    "card verify": ALWAYS | ASKS | {"timeout", "agent-card"},
    "audit list": ALWAYS | {"timeout", "stream"},
    "audit verify": ALWAYS | {"timeout"},
    "mock": ALWAYS | {"transport"},
    "demo-server": ALWAYS | {"transport"},
    "record": ALWAYS | ASKS | {"agent-card"},
    "replay": ALWAYS | ASKS | {"timeout", "stream"},
    "doctor": ALWAYS | ASKS | {"timeout", "stream", "agent-card", "transport"},
    "bench": ALWAYS | ASKS | {"timeout", "agent-card", "transport", "svc-param", "extension"},
    "send": set(BY_NAME),
    "task get": set(BY_NAME),
    "conformance": set(BY_NAME),
}


@pytest.mark.parametrize("words", SHOWN)
def test_help_shows_the_options_that_do_something(tmp_path: Path, words: str) -> None:
    shown = inside(*words.split(), "--help", "--all", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    flags = {*re.findall(r"^  (?:-\w, )?--([\w-]+)", shown.stdout, re.MULTILINE)}
    assert flags & {*BY_NAME} == SHOWN[words]


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "a.py", "--bearer", "s3cret"),
        ("--bearer=s3cret", "serve", "a.py"),
        ("up", "--wait"),
        ("gateway", "--bearer", "s3cret"),
        ("join", "127.0.0.1:1", "a.py", "--insecure"),
        ("triggers", "list", "-a", "127.0.0.1:1"),
        ("store", "status", "--api-key", "s3cret"),
        ("up", "--transport", "rest"),
        ("serve", "a.py", "--timeout", "5s"),
        ("tasks", "list", "--watch"),
        ("audit", "--api-key", "s3cret", "list"),
        ("backup", "x.db", "--insecure=false"),
        ("bench", "127.0.0.1:1", "--metadata", "{}"),
        ("mock", "script.yaml", "--a2a-version", "0.3"),
    ],
)
def test_what_has_no_effect_is_refused_where_it_is_typed(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    ended = inside(*words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    command = " ".join(word for word in words if word in ("tasks", "list", "status", *COMMANDS))
    assert f"without effect on dragoman {command}: --" in ended.stderr
    assert f"Hint: dragoman {command} --help" in ended.stderr
    assert "s3cret" not in ended.stderr


def test_what_has_no_effect_is_nobodys_business_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A2ACLI_METADATA=nonsense\nA2ACLI_WAIT=true\n")
    env = {"A2ACLI_BEARER": "s3cret", "A2ACLI_POLL_INTERVAL": "never"}
    ended = inside("init", "--dry-run", cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    refused = inside("send", "-a", "127.0.0.1:1", "x", cwd=tmp_path, env=env)
    assert refused.returncode == 2 and "A2ACLI_POLL_INTERVAL" in refused.stderr


def test_lines_may_be_asked_for_everywhere(tmp_path: Path) -> None:
    ended = inside("init", "--dry-run", "-o", "json", "--stream", cwd=tmp_path)
    assert ended.returncode == 0 and ended.stdout.count("\n") == 1


def test_help_comes_before_what_is_wrong_beside_it(tmp_path: Path) -> None:
    shown = inside("--bearer", "x", "serve", "--help", "--all", cwd=tmp_path)
    assert shown.returncode == 0 and "--listen" in shown.stdout


def test_completion_offers_what_help_shows(tmp_path: Path) -> None:
    script = inside("completion", "bash", cwd=tmp_path).stdout
    words = dict(re.findall(r'^ +"([\w -]*)"\) words="([^"]*)"', script, re.MULTILINE))
    assert "--bearer" in words["send"].split() and "--listen" in words["serve"].split()
    assert not {"--bearer", "--wait", "--timeout", "--stream"} & {*words["up"].split()}
    assert {"--stream", "--task-id"} <= {*words["tasks list"].split()}


# Those of the specification take all options; `inbox` calls agents as they do.
CALLS = {
    "auth",
    "card",
    "chat",
    "completion",
    "config",
    "conformance",
    "help",
    "inbox",
    "send",
    "task",
}


def test_every_command_of_our_own_says_which_options_have_an_effect() -> None:
    from dragoman.cli.option_scope import _REACH

    root = click.Context(cli, obj=Invocation((), {}))
    assert {*cli.list_commands(root)} - CALLS == {
        words.partition(" ")[0] for words in _REACH
    } - CALLS


def test_every_command_of_the_table_exists() -> None:
    from dragoman.cli.option_scope import _REACH

    root = click.Context(cli, obj=Invocation((), {}))
    for words in _REACH:
        place: click.Command | None = cli
        for word in words.split():
            assert isinstance(place, click.Group)
            place = place.get_command(root, word)
        assert place is not None, words
