"""What a target means: which object of a module is served, and what is said of the others."""

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman import Agent

# Loaded here, so that no test has to load it again.
from dragoman.agents.adapters.chat_url import chat_agent
from dragoman.agents.adapters.detect import FRAMEWORKS, adapt, agent_in, framework_of
from dragoman.authoring.loading import load_agents
from dragoman.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def load(here: Path, source: str, target: str = "it.py") -> Agent:
    (here / "it.py").write_text(source)
    (agent,) = load_agents([target], agent_in)
    return agent


def refusal(here: Path, source: str, target: str = "it.py") -> str:
    with pytest.raises(ConfigError) as error:
        load(here, source, target)
    return str(error.value)


def stand_in(*members: str) -> Any:
    return SimpleNamespace(**dict.fromkeys(members, "anything"))


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.function)
def test_each_framework_is_known_by_its_own_members_alone(framework: Any) -> None:
    assert framework_of(stand_in(*framework.members)) is framework
    for member in framework.members:
        fewer = stand_in(*(set(framework.members) - {member}))
        assert framework_of(fewer) is not framework


def test_an_object_that_answers_to_every_name_is_of_no_framework() -> None:
    class Anything:
        def __getattr__(self, name: str) -> str:
            return name

    assert framework_of(Anything()) is None


def test_looking_at_an_object_runs_none_of_its_code() -> None:
    class Trap:
        @property
        def astream(self) -> None:
            raise AssertionError("somebody looked")

    assert framework_of(Trap()) is None


def test_an_agent_of_ours_comes_before_whatever_else_a_module_has(here: Path) -> None:
    source = "from dragoman import Agent\nmine = Agent('Mine', 'Is found.')\ndef agent(x: str): ..."
    assert load(here, source).title == "Mine"


def test_what_is_called_agent_is_served_whatever_it_is(here: Path) -> None:
    agent = load(here, "def agent(text: str) -> str:\n    'Echoes.'\n    return text\n")
    assert (agent.title, agent.description) == ("It", "Echoes.")


def test_functions_and_classes_are_served_only_by_name(here: Path) -> None:
    source = "from json import loads\ndef one(): ...\nclass Two: ...\ndef _three(): ...\n"
    said = refusal(here, source)
    assert "no Agent in it" in said and "serve one of one, Two, as in it.py:one" in said
    assert list(load(here, source, "it.py:one").skills) == ["one"]


def test_the_only_object_of_a_framework_is_found(here: Path) -> None:
    source = (
        "from types import SimpleNamespace as S\n"
        "class Parrot:\n"
        "    def clone_for_isolation(self): return self\n"
        "    def run(self, messages): return messages[0]\n"
        "polly = Parrot()\nsame = polly\n"
    )
    assert load(here, source).title == "Polly"
    assert "there are polly, same, other in it" in refusal(here, source + "other = Parrot()\n")
    assert load(here, source + "other = Parrot()\ncrew = Parrot()\n").title == "It"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("agent = None", "agent is None; what can be served is an Agent, a function"),
        ("agent = 5", "agent is of the type int"),
        ("import json as agent", "agent is of the type module"),
        ("agent = object()", "agent is of the type object"),
        ("class A: ...\nagent = A()", "agent is of the class it.A"),
        ("class A: ...\nagent = A", "agent is of the class it.A"),
        ("class A:\n def __init__(self, x): ...\nagent = A", "serve an instance of it"),
        ("agent = (n for n in ())", "serve the function itself"),
        ("def agent(*words): 'Hears.'", "cannot be a skill: skill it: *words"),
        ("class A:\n def add_node(): ...\n def compile(): ...\nagent = A()", "graph.compile()"),
        ("import threading\nclass A:\n 'A.'\n def __init__(self): self.x = threading.Lock()\n"
         " def hold(self): 'Holds.'\nagent = A()", "give it a method clone_for_isolation()"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said_with_what_can(here: Path, source: str, says: str) -> None:
    said = refusal(here, source)
    assert says.replace("agent is", "it is") in said
    assert said.startswith("it.py: ")


def test_a_name_that_is_not_there_is_answered_with_those_that_are(here: Path) -> None:
    said = refusal(here, "def one(): ...\n", "it.py:two")
    assert said == "it.py:two: two is not an Agent: there is no two in it, but one"


def test_objects_that_can_be_called_are_functions() -> None:
    class Doubler:
        def __call__(self, number: int) -> int:
            """Doubles."""
            return 2 * number

    assert list(adapt(Doubler(), "double").skills) == ["double"]
    with pytest.raises(ConfigError, match="largest cannot be a skill"):
        adapt(functools.partial(max, 3), "largest")


@pytest.mark.parametrize("address", ["http://h/v1", "http://#m", "https://me:secret@h/v1#m"])
def test_an_address_needs_a_model_and_takes_no_credentials(address: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_agents([address], reach=chat_agent)
    assert "http://127.0.0.1:11434/v1#llama3" in str(error.value)
    assert "secret" not in str(error.value)
