"""One grammar: where options may stand, what is refused, and in which words."""

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from dragoman.cli.failures import Failure, explain
from dragoman.cli.grammar import Command, CommandPlace, Group, Invocation, command, command_words
from dragoman.cli.option import option
from tests.cli.command import document, inside


@command("show", defaults={"wait": "true"})
@click.argument("words", nargs=-1)
@option("--part", aliases=("--piece",), multiple=True)
@option("--loud", switch=True)
@option("--size", type=int, default=1)
def show(run: Invocation, **given: Any) -> Any:
    """Show what was said."""
    return run, given, command_words()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    inner = Group("inner", commands={"show": show})
    return Group("root", commands={"show": show, "inner": inner})


def parse(root: Group, *words: str) -> tuple[Invocation, dict[str, Any], list[Any]]:
    return root.main(list(words), standalone_mode=False, obj=Invocation(words, {}))


def refusal(root: Group, *words: str) -> str:
    with pytest.raises((click.UsageError, Failure)) as caught:
        parse(root, *words)
    failure = explain(caught.value)
    assert failure.exit == 2
    return failure.message


def test_global_options_stand_before_and_after_the_command(root: Group) -> None:
    for words in (
        ("-a", "x", "-o", "json", "inner", "show"),
        ("inner", "show", "-a", "x", "-o", "json"),
        ("-a", "x", "inner", "-o", "json", "show"),
        ("inner", "show", "--agent-card=x", "--output=json"),
        ("-ax", "inner", "show", "-ojson"),
    ):
        run, *_ = parse(root, *words)
        assert (run.settings.agent_card, run.settings.output) == ("x", "json")


def test_the_later_of_two_wins_and_lists_grow(root: Group) -> None:
    words = ("-a", "x", "--transport", "rest", "show", "-a", "y", "--transport", "grpc")
    run, *_ = parse(root, *words)
    assert run.settings.agent_card == "y"
    assert run.settings.transport == ["HTTP+JSON", "GRPC"]


def test_every_switch_takes_a_value_but_needs_none(root: Group) -> None:
    run, given, _ = parse(root, "show", "--loud", "--stream", "--wait=false")
    assert given["loud"] and run.settings.stream and not run.settings.wait
    run, given, _ = parse(root, "show", "--loud=false", "--stream=false")
    assert not given["loud"] and not run.settings.stream and run.settings.wait


def test_a_switch_does_not_eat_the_next_word(root: Group) -> None:
    _, given, _ = parse(root, "show", "--loud", "--verbose", "word")
    assert given["words"] == ("word",)


@pytest.mark.parametrize(
    ("alias", "field"),
    [
        ("--watch", "wait"),
        ("--no-wait", "at_once"),
        ("--return-immediately", "at_once"),
        ("--follow", "stream"),
    ],
)
def test_aliases_work_and_are_not_shown(root: Group, alias: str, field: str) -> None:
    run, *_ = parse(root, "show", alias)
    assert getattr(run.settings, field) is True
    assert alias not in show.get_help(click.Context(show, obj=Invocation((), {})))


def test_what_was_said_keeps_its_order(root: Group) -> None:
    _, _, found = parse(root, "show", "--part", "a", "b", "--piece=c", "--loud", "d")
    assert [(one.name, one.value) for one in found] == [
        ("part", "a"),
        ("", "b"),
        ("part", "c"),
        ("loud", "true"),
        ("", "d"),
    ]


def test_two_dashes_end_the_options(root: Group) -> None:
    _, given, found = parse(root, "show", "--", "--loud", "-x")
    assert given["words"] == ("--loud", "-x") and not given["loud"]
    assert [one.value for one in found] == ["--loud", "-x"]


def test_a_value_may_look_like_an_option(root: Group) -> None:
    _, given, _ = parse(root, "show", "--part", "--loud=false", "--part", "-")
    assert given["part"] == ("--loud=false", "-") and not given["loud"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shwo",), "No such command: shwo; did you mean show?"),
        (("inner", "sow"), "did you mean show?"),
        (("show", "--strem"), "No such option: --strem; did you mean --stream?"),
        (("show", "--verb"), "No such option: --verb"),
        (("show", "-x"), "No such option: -x"),
        (("show", "--size"), "requires an argument"),
        (("show", "--size", "x"), "not a valid integer"),
        (("show", "--loud=perhaps"), "not a valid boolean"),
    ],
)
def test_what_nobody_knows_is_refused_and_never_guessed(
    root: Group, words: tuple[str, ...], says: str
) -> None:
    assert says in refusal(root, *words)


def test_an_option_of_a_command_stands_for_the_global_one_of_its_name(root: Group) -> None:
    @command("own")
    @option("--timeout", default="x")
    def own(run: Invocation, timeout: str) -> Any:
        return run, {"timeout": timeout}, []

    root.add_command(own)
    run, given, _ = parse(root, "own", "--timeout", "soon")
    assert given["timeout"] == "soon" and run.settings.timeout == 0


def test_commands_are_loaded_when_they_are_called() -> None:
    group = Group("lazy", places={"gone": CommandPlace("no_such_module:x", "Is not there.")})
    text = group.get_help(click.Context(group, obj=Invocation((), {})))
    assert "Is not there." in text
    with pytest.raises(ModuleNotFoundError):
        group.get_command(click.Context(group), "gone")


def test_a_command_gets_the_run_first() -> None:
    assert isinstance(show, Command)


def test_no_command_is_help_on_stderr_and_exit_2(tmp_path: Path) -> None:
    for words in ((), ("--verbose",), ("task",), ("task", "-a", "x")):
        ended = inside(*words, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("Usage: dragoman")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("-o", "json", "snd"), {}),
        (("snd", "--output=json"), {}),
        (("send", "--nonsense"), {"A2ACLI_OUTPUT": "json"}),
        (("-o", "json"), {}),
    ],
)
def test_a_usage_error_is_told_in_the_format_that_was_asked_for(
    tmp_path: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    ended = inside(*words, cwd=tmp_path, env=env)
    assert ended.returncode == 2
    error = json.loads(ended.stdout)["error"]
    assert set(error) == {"code", "message", "hint", "a2aCode"}
    assert error["code"] == "A2ACLI_ERR_USAGE"


@pytest.mark.parametrize(
    "words",
    [
        ("send", "-a", "localhost:1", "\udcff"),
        ("send", "-a", "localhost:1", "--text", "\udcff"),
        ("send", "-a", "localhost:1", "--file", "\udcff.txt"),
        ("task", "get", "-a", "localhost:1", "\udcff"),
        ("send", "-a", "localhost:1", "--context-id", "\udcff", "x"),
    ],
)
def test_what_is_no_text_is_refused_before_anything_is_sent(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    error = document(inside(*words, "-o", "json", cwd=tmp_path), 2)["error"]
    assert error["code"] == "A2ACLI_ERR_USAGE" and "UTF-8" in error["message"]


def test_a_path_may_have_bytes_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.env")
    (tmp_path / name).write_text("A2ACLI_TIMEOUT=7s\n")
    ended = inside("config", "show", "--config", name, cwd=tmp_path)
    assert ended.returncode == 0 and "timeout: 7s" in ended.stdout
