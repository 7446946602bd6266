"""Finding agents by what a user types; what is wrong is said in a sentence."""

import sys
from pathlib import Path

import pytest

from dragoman.authoring.loading import load_agents
from dragoman.errors import ConfigError

AGENT = "from dragoman import Agent\nagent = Agent({name!r}, 'Is found.')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def names(*targets: str) -> list[str]:
    return [agent.title for agent in load_agents(targets)]


def test_a_file_is_found_by_its_path(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "my-agent.py").write_text(AGENT.format(name="One"))
    assert names("sub/my-agent.py") == ["One"]
    assert names("sub/my-agent.py:agent") == ["One"]
    assert names(str(here / "sub" / "my-agent.py")) == ["One"]


def test_a_module_is_found_from_the_folder_one_stands_in(here: Path) -> None:
    (here / "modone.py").write_text(AGENT.format(name="One"))
    (here / "package").mkdir()
    (here / "package" / "__init__.py").touch()
    (here / "package" / "inner.py").write_text(AGENT.format(name="Two"))
    assert names("modone:agent", "package.inner:agent") == ["One", "Two"]
    assert names("modone") == ["One"]


def test_a_file_with_neighbours_and_two_agents(here: Path) -> None:
    (here / "neighbour.py").write_text("NAME = 'Two'\n")
    (here / "both.py").write_text(
        "from neighbour import NAME\n"
        + AGENT.format(name="One")
        + "other = Agent(NAME, 'Is second.')\nsame = agent\n"
    )
    assert names("both.py") == ["One", "Two"]
    assert names("both.py:other") == ["Two"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing.py", "nothing.py: no such file"),
        ("nothing", "add .py"),
        ("nothing:agent", "no module nothing"),
        ("empty.py", "write `agent = Agent"),
        ("empty:agent", "agent is not an Agent"),
        ("empty.py:agent", "agent is not an Agent"),
        ("folder", "write `agent = Agent"),
        (".", "neither a file nor a module"),
        ("./folder", "neither a file nor a module"),
        ("", "neither a file nor a module"),
        (":agent", "neither a file nor a module"),
        ("needs_more.py", "needs_more.py, line 1: it imports nobody_has_this"),
        ("needs_more", "no module named nobody_has_this"),
        ("broken.py", "broken.py, line 2"),
    ],
)
def test_what_is_not_there_is_said(here: Path, target: str, says: str) -> None:
    (here / "empty.py").touch()
    (here / "folder").mkdir()
    (here / "needs_more.py").write_text("import nobody_has_this\n")
    (here / "broken.py").write_text("x = 1\nfor\n")
    with pytest.raises(ConfigError) as error:
        load_agents([target])
    assert says in str(error.value)


def test_a_mistake_in_the_authors_code_is_told_with_its_line_and_keeps_its_cause(
    here: Path,
) -> None:
    (here / "wrong.py").write_text("\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"wrong\.py, line 2: ZeroDivisionError") as error:
        load_agents(["wrong.py"])
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_skill_that_no_message_can_fill_is_told_with_the_line_of_the_authors_code(
    here: Path,
) -> None:
    source = """
from dragoman import Agent
agent = Agent("A", "A.")
def greet(*names: str) -> str:
    return ""
agent.skill(greet)
"""
    (here / "wrong.py").write_text(source)
    with pytest.raises(ConfigError, match=r"wrong\.py, line 6: .*skill greet: \*names cannot"):
        load_agents(["wrong.py"])


def test_an_async_function_that_wants_the_turn_of_plain_ones_is_refused(here: Path) -> None:
    source = """
from dragoman import Agent, SyncTurn
agent = Agent("A", "A.")
@agent.skill
async def greet(turn: SyncTurn) -> str:
    return ""
"""
    (here / "wrong.py").write_text(source)
    with pytest.raises(ConfigError, match="an async function gets a Turn"):
        load_agents(["wrong.py"])
