"""The skill that teaches other agents this command: one, short, and true."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from harness.processes import ROOT

from dragoman.cli.main import cli

SKILL = ROOT / "dragoman" / "skills" / "dragoman" / "SKILL.md"
EXAMPLES = SKILL.parent / "references" / "examples.md"


def front_matter() -> dict[str, str]:
    """Return the members of the front matter; a folded one in one line."""
    _, head, _ = SKILL.read_text().split("---\n", 2)
    found: dict[str, str] = {}
    for line in head.splitlines():
        if line.startswith("  "):
            name = list(found)[-1]
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name, _, value = line.partition(":")
            found[name] = value.strip().removeprefix(">-").strip()
    return found


def test_the_front_matter_fits_what_readers_of_skills_take() -> None:
    found = front_matter()
    assert found.keys() == {"name", "description", "compatibility", "license"}
    assert found["name"] == SKILL.parent.name and len(found["name"]) <= 64
    assert 0 < len(found["description"]) <= 1024
    assert 0 < len(found["compatibility"]) <= 500
    assert "dragoman executable" in found["compatibility"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert found["license"] == project["license"]


def test_links_lead_to_files_beside_it() -> None:
    links = re.findall(r"\]\(([^)]+)\)", SKILL.read_text())
    assert links and all((SKILL.parent / link).is_file() for link in links)


def commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("path", [SKILL, EXAMPLES], ids=lambda path: path.name)
def test_every_flag_and_command_it_names_exists(path: Path) -> None:
    text = path.read_text()
    context = click.Context(cli)
    for words in commands(text):
        assert words[0] == "dragoman"
        command: click.Command = cli
        place = context
        rest = words[1:]
        while isinstance(command, click.Group):
            found = command.get_command(place, rest.pop(0))
            assert found is not None, words
            command = found
        flags = {flag for one in command.get_params(context) for flag in one.opts}
        assert {word for word in rest if word.startswith("-")} <= flags, words
    known = {flag for one in cli.get_params(context) for flag in one.opts} | {"--version"}
    for flag in re.findall(r"`(--?[a-z-]+)`", text):
        assert flag in known, flag


def test_it_says_where_the_command_is_to_be_had_today() -> None:
    text = SKILL.read_text()
    assert "pip install dragoman" not in text and "clone" in text and "wheel" in text
