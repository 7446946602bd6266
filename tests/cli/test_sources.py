"""Where options come from: five ranks, files that are only read, help that survives them."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.cli.failures import Failure
from dragoman.cli.sources import CommandSettings, host_of, parse, settle

REF = "agent.example:8000"


class Place:
    """A home, a project in it, and a run from a folder of the project."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.folder = self.project / "deep" / "down"
        self.folder.mkdir(parents=True)
        self.config = home / "config" / "a2a-cli"
        (self.config / "agents").mkdir(parents=True)

    def settle(
        self, given: Mapping[str, list[str]] | None = None, tolerant: bool = False, **env: str
    ) -> CommandSettings:
        environment = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config")} | env
        return settle(given or {}, environment, self.folder, tolerant=tolerant)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_five_ranks_and_the_agents_own_file_from_the_top_down(place: Place) -> None:
    (place.project / ".env").write_text("A2ACLI_TIMEOUT=3s\n")
    (place.config / "agents" / "agent.example.env").write_text("A2ACLI_TIMEOUT=4s\n")
    (place.config / ".env").write_text(f"A2ACLI_TIMEOUT=5s\nA2ACLI_AGENT_CARD={REF}\n")
    seen: list[tuple[float, str]] = []

    def look(given: Mapping[str, list[str]] | None = None, **env: str) -> None:
        settings = place.settle(given, **env)
        seen.append((settings.timeout, settings.origins["timeout"].kind))

    look({"timeout": ["1s"]}, A2ACLI_TIMEOUT="2s")
    look(A2ACLI_TIMEOUT="2s")
    look()
    (place.project / ".env").unlink()
    look()
    (place.config / "agents" / "agent.example.env").unlink()
    look()
    (place.config / ".env").unlink()
    look()
    kinds = ["flag", "env", "file", "file", "file", "default"]
    assert seen == list(zip([1, 2, 3, 4, 5, 0], kinds, strict=True))


def test_a_named_file_replaces_only_the_local_one(place: Place) -> None:
    (place.project / ".env").write_text("A2ACLI_TIMEOUT=3s\nA2ACLI_OUTPUT=json\n")
    (place.config / ".env").write_text("A2ACLI_VERBOSE=yes\n")
    other = place.home / "other"
    other.write_text("A2ACLI_TIMEOUT=7s\n")
    for settings in (
        place.settle({"config": [str(other)]}),
        place.settle(A2ACLI_CONFIG=str(other)),
    ):
        assert (settings.timeout, settings.output, settings.verbose) == (7, "text", True)
        assert settings.origins["timeout"].path == str(other)
    with pytest.raises(Failure) as caught:
        place.settle({"config": [str(place.home / "missing")]})
    assert caught.value.exit == 2


def test_what_only_flags_say_is_read_nowhere_else(place: Place) -> None:
    (place.project / ".env").write_text("A2ACLI_STREAM=1\nA2ACLI_CONFIG=/nowhere\nA2ACLI_HELP=1\n")
    settings = place.settle(A2ACLI_STREAM="true")
    assert not settings.stream and settings.config == ""


def test_the_format_of_a_file() -> None:
    text = "\n".join(
        [
            "# a comment",
            "export A2ACLI_OUTPUT=json",
            "A2ACLI_BEARER='it # is \"this\"'",
            'A2ACLI_API_KEY = "a=b"',
            "A2ACLI_CONTEXT_ID=$HOME",
            "DRAGOMAN_STORE=tasks.db",
            "SOMETHING_ELSE=1",
            "this is no assignment",
        ]
    )
    assert parse(text) == {
        "A2ACLI_OUTPUT": "json",
        "A2ACLI_BEARER": 'it # is "this"',
        "A2ACLI_API_KEY": "a=b",
        "A2ACLI_CONTEXT_ID": "$HOME",
        "DRAGOMAN_STORE": "tasks.db",
    }


def test_nothing_of_a_file_is_exported_and_the_environment_wins(place: Place) -> None:
    (place.project / ".env").write_text("DRAGOMAN_STORE=a\nDRAGOMAN_PORT=1\n")
    settings = place.settle(DRAGOMAN_STORE="b")
    assert settings.environment["DRAGOMAN_STORE"] == "b"
    assert settings.environment["DRAGOMAN_PORT"] == "1"
    assert "DRAGOMAN_PORT" not in os.environ


def test_an_empty_variable_is_one_that_is_not_there(place: Place) -> None:
    (place.project / ".env").write_text("A2ACLI_OUTPUT=json\n")
    assert place.settle(A2ACLI_OUTPUT="").output == "json"


def test_a_value_that_makes_no_sense_names_its_place(place: Place) -> None:
    path = place.project / ".env"
    path.write_text("A2ACLI_OUTPUT=xml\n")
    with pytest.raises(Failure) as caught:
        place.settle()
    assert str(path) in caught.value.message and caught.value.exit == 2
    tolerant = place.settle(tolerant=True)
    assert tolerant.output == "text" and str(path) in tolerant.problems[0]


def test_a_file_that_cannot_be_read_is_a_usage_error_and_help_survives_it(place: Place) -> None:
    (place.project / ".env").write_bytes(b"A2ACLI_OUTPUT=\xff\n")
    with pytest.raises(Failure):
        place.settle()
    assert "UTF-8" in place.settle(tolerant=True).problems[0]


def test_a_secret_that_others_can_read_is_warned_of(place: Place) -> None:
    path = place.project / ".env"
    path.write_text("A2ACLI_BEARER=hunter2\n")
    path.chmod(0o644)
    (warning,) = place.settle().warnings
    assert "chmod 600" in warning and "hunter2" not in warning
    path.chmod(0o600)
    assert place.settle().warnings == []


@pytest.mark.parametrize("name", ["STORE", "STORE_SESSION_URL", "BUS", "PUSH_SECRET"])
def test_a_file_of_a_server_s_secret_that_others_can_read_is_warned_of(
    place: Place, name: str
) -> None:
    path = place.project / "secret"
    path.write_text("postgresql://ada:hunter2@db.example/tasks\n")
    path.chmod(0o644)
    variable = f"DRAGOMAN_{name}_FILE"
    (warning,) = place.settle(**{variable: str(path)}).warnings
    assert f"chmod 600 {path}" in warning and "hunter2" not in warning
    # A file that is not there is a refusal, and of those who read it.
    assert place.settle(**{variable: str(path) + "s"}).warnings == []
    # Also if a file of settings names it.
    (place.project / ".env").write_text(f"{variable}={path}\n")
    assert place.settle().warnings == [warning]
    # A group may be meant: platforms give a container its secrets by one.
    path.chmod(0o640)
    assert place.settle(**{variable: str(path)}).warnings == []


def test_a_file_of_another_user_is_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.project / ".env").write_text("A2ACLI_OUTPUT=json\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    settings = place.settle()
    assert settings.output == "text" and "another user" in settings.warnings[0]


@pytest.mark.parametrize(
    ("reference", "host"),
    [
        ("Agent.Example", "agent.example"),
        ("agent.example:8000", "agent.example"),
        ("https://agent.example/card.json", "agent.example"),
        ("http://user@[::1]:80/", "::1"),
        ("./card.json", ""),
        ("file:///card.json", ""),
        ("@name", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_reference(reference: str, host: str) -> None:
    assert host_of(reference) == host


@pytest.mark.parametrize(
    ("given", "env", "waits"),
    [
        ({}, {}, True),
        ({"async": ["true"]}, {}, False),
        ({}, {"A2ACLI_ASYNC": "1"}, False),
        ({"wait": ["true"]}, {"A2ACLI_ASYNC": "1"}, True),
        ({"async": ["false"]}, {"A2ACLI_ASYNC": "1"}, True),
        ({"async": ["true"]}, {"A2ACLI_WAIT": "1"}, False),
        ({"wait": ["false"]}, {}, False),
    ],
)
def test_whoever_is_higher_decides_about_waiting(
    place: Place, given: dict[str, list[str]], env: dict[str, str], waits: bool
) -> None:
    environment = {"HOME": str(place.home)} | env
    settings = settle(given, environment, place.folder, defaults={"wait": "true"})
    assert settings.waits is waits


def test_a_list_in_a_variable_has_commas(place: Place) -> None:
    settings = place.settle(A2ACLI_TRANSPORT="rest, jsonrpc", A2ACLI_SVC_PARAM="a:1,b:2")
    assert settings.transport == ["HTTP+JSON", "JSONRPC"]
    assert settings.svc_param == [("a", "1"), ("b", "2")]


def test_a_named_file_is_nothing_at_all_or_says_why_it_is_not_read(place: Place) -> None:
    (place.project / ".env").write_text("A2ACLI_TIMEOUT=3s\n")
    empty = place.settle({"config": [os.devnull]})
    assert (empty.timeout, empty.warnings) == (0, [])
    os.mkfifo(place.home / "pipe")
    for name, reason in (
        ("missing", "there is no such"),
        ("project", "is a folder"),
        ("pipe", "is no regular file"),
    ):
        with pytest.raises(Failure, match=reason) as caught:
            place.settle({"config": [str(place.home / name)]})
        assert caught.value.exit == 2


def test_a_line_that_was_meant_for_us_and_assigns_nothing_is_warned_of(place: Place) -> None:
    path = place.project / ".env"
    path.write_text("# a comment\n\nOTHER tool's line\nexport A2ACLI_BEARER: hunter22\n")
    path.chmod(0o600)
    (warning,) = place.settle().warnings
    assert warning.startswith(f"{path}: line 4 ") and "hunter22" not in warning
    # In a file of ours every line is meant for us.
    path.unlink()
    ours = place.config / ".env"
    ours.write_text("A2ACLI_OUTPUT=json\noutput json\nagain\n")
    settings = place.settle()
    assert settings.output == "json"
    assert [one.partition(" is no")[0] for one in settings.warnings] == [f"{ours}: line 2, 3"]
