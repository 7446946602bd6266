"""Settings: what holds without any, where each comes from, and what is left on disk."""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing.scripted.demo import demo
from tests.cli.requirements.credentials import FolderAuthority
from tests.cli.requirements.desk import Desk, Ended, sitting, together

COMPLETED = "TASK_STATE_COMPLETED"


def settings(desk: Desk, **more: Any) -> dict[str, dict[str, Any]]:
    """Return what `config show` says, by name."""
    found = desk.json("config", "show", **more)["settings"]
    return {one["name"]: one for one in found}


def source(desk: Desk, name: str, **more: Any) -> tuple[Any, str]:
    """Return a value and where it comes from."""
    one = settings(desk, **more)[name]
    return one["value"], one["source"]


# The six defaults: each holds unless told, each by variable and by flag, and each can be undone


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_the_order_of_the_card_is_the_default_transport(desk: Desk) -> None:
    rest = {"A2ACLI_TRANSPORT": "rest"}

    def spoken(*flags: str, env: dict[str, str] | None = None) -> str:
        text = f"order {flags} {env}"
        desk.run("send", text, *flags, env=env)
        sent = [seen for seen in desk.seen() if seen.method.startswith("Send")]
        (found,) = (seen.binding for seen in sent if json.dumps(text).encode() in seen.body)
        return found

    assert together(
        lambda: spoken(),
        lambda: spoken("--transport", "rest"),
        lambda: spoken(env=rest),
        lambda: spoken("--transport", "jsonrpc", env=rest),
        lambda: source(desk, "transport"),
        lambda: source(desk, "transport", env=rest),
    ) == ["JSONRPC", "HTTP+JSON", "HTTP+JSON", "JSONRPC", (None, "default"), (["HTTP+JSON"], "env")]
    assert "transport: the card's order (default)" in desk.run("config", "show").out


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_send_waits_by_default(desk: Desk) -> None:
    at_once = {"A2ACLI_ASYNC": "true"}

    def state(*flags: str, env: dict[str, str] | None = None) -> str:
        return desk.json("send", "slow 1", *flags, env=env)["task"]["status"]["state"]

    found = together(
        lambda: state(),
        lambda: state("--async=false", env=at_once),
        lambda: state("--wait", env=at_once),
        lambda: state("--async"),
        lambda: state(env=at_once),
        lambda: state(env={"A2ACLI_WAIT": "false"}),
        lambda: source(desk, "async"),
        lambda: source(desk, "async", env=at_once),
    )
    assert found[:3] == [COMPLETED] * 3
    assert COMPLETED not in found[3:6]
    assert found[6:] == [(False, "default"), (True, "env")]
    assert about(desk.run("send", "--help", "--all", a="").out, "--wait").endswith(
        "[default: true]"
    )


def about(page: str, flag: str) -> str:
    """Return what a help page says of a flag, on one line."""
    found = re.search(rf"^  (?:-\w, )?{flag}\b(.*?)(?=^  -|\n\n)", page + "\n\n", re.M | re.S)
    assert found is not None, page
    return " ".join(found[1].split())


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_text_is_the_default_output(desk: Desk) -> None:
    wanted = {"A2ACLI_OUTPUT": "json"}
    text, flag, variable, undone, shown, page = together(
        lambda: desk.run("task", "list", "--limit", "1"),
        lambda: desk.run("task", "list", "--limit", "1", "-o", "json"),
        lambda: desk.run("task", "list", "--limit", "1", env=wanted),
        lambda: desk.run("task", "list", "--limit", "1", "-o", "text", env=wanted),
        lambda: desk.run("config", "show").out,
        lambda: desk.run("send", "--help", "--all", env=wanted, a="").out,
    )
    assert [is_json(one) for one in (text, flag, variable, undone)] == [False, True, True, False]
    assert "output: text (default)" in shown
    found = desk.run("config", "show", env=wanted).json["settings"]
    assert {"name": "output", "value": "json", "source": "env", "env": "A2ACLI_OUTPUT"} in found
    assert "[default: json (from A2ACLI_OUTPUT)]" in about(page, "--output")


def is_json(ended: Ended) -> bool:
    """Say whether stdout is one document."""
    try:
        return isinstance(ended.json, dict)
    except ValueError:
        return False


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_concise_is_the_default_amount(desk: Desk) -> None:
    task = desk.json("send", "echo hi")["task"]["id"]
    more = {"A2ACLI_VERBOSE": "true"}
    look = ("task", "get", task)
    plain, flag, variable, undone, first, second = together(
        lambda: desk.run(*look).out,
        lambda: desk.run(*look, "--verbose").out,
        lambda: desk.run(*look, env=more).out,
        lambda: desk.run(*look, "--verbose=false", env=more).out,
        lambda: source(desk, "verbose"),
        lambda: source(desk, "verbose", env=more),
    )
    # The message that was sent is in the history.
    is_there = ["ROLE_USER" in one for one in (plain, flag, variable, undone)]
    assert is_there == [False, True, True, False]
    assert (first, second) == ((False, "default"), (True, "env"))


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_the_highest_common_version_is_the_default(desk: Desk) -> None:
    old = {"A2ACLI_A2A_VERSION": "0.3"}

    def spoken(*flags: str, env: dict[str, str] | None = None) -> str:
        text = f"version {flags} {env}"
        desk.run("send", text, *flags, env=env)
        (seen,) = (one for one in desk.seen() if json.dumps(text).encode() in one.body)
        return seen.version

    assert together(
        lambda: spoken(),
        lambda: spoken("--a2a-version", "0.3"),
        lambda: spoken(env=old),
        lambda: spoken("--a2a-version", "1.0", env=old),
        lambda: source(desk, "a2a-version"),
        lambda: source(desk, "a2a-version", env=old),
    ) == ["1.0", "0.3", "0.3", "1.0", (None, "default"), ("0.3", "env")]
    shown = desk.run("config", "show").out
    assert "a2a-version: the highest common one; below 1.0 only where " in shown
    assert "strict-version: false (default)" in shown


@pytest.mark.cli("A2ACLI_DEFAULT_001")
def test_certificates_are_verified_by_default(folder: Path) -> None:
    trusting = {"A2ACLI_INSECURE": "true"}
    with FolderAuthority(folder).sitting(demo()) as desk:

        def exits(*flags: str, env: dict[str, str] | None = None) -> int:
            return desk.run("card", "get", "--no-cache", *flags, env=env, exit=None).exit

        assert together(
            lambda: exits(),
            lambda: exits("--insecure"),
            lambda: exits(env=trusting),
            lambda: exits("--insecure=false", env=trusting),
            lambda: source(desk, "insecure"),
            lambda: source(desk, "insecure", env=trusting),
        ) == [3, 0, 0, 3, (False, "default"), (True, "env")]


# What is on disk


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.cli("A2ACLI_CONFIG_001")
def test_what_is_left_on_disk_is_ours_alone_in_known_places_and_has_no_ids(folder: Path) -> None:
    with sitting(folder, auth="oauth2") as desk:
        env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": "demo-secret"}
        # Without these a home has its folders where they have always been.
        plain = {"XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
        desk.run("auth", "login", env=env | plain)
        sent = desk.run("send", "ask", "-o", "json", env=plain)
        task = sent.json["task"]
        done, listed = together(
            lambda: desk.run("send", "Rome", "--task-id", task["id"], env=plain),
            lambda: desk.run("config", "show", "-o", "json", env=plain),
            lambda: desk.run("task", "list", env=plain),
            lambda: desk.run("card", "get", env=plain),
        )[:2]
        assert COMPLETED in done.out
        files = desk.files()
        places = {str(path.relative_to(folder).parent) for path in files}
        # Cards of agents on this machine are asked for each time, and never left on disk.
        assert places == {".config/dragoman/tokens"}
        for path in files:
            assert mode(path) == 0o600
            assert mode(path.parent) == 0o700
            kept = path.read_text()
            assert task["id"] not in kept and task["contextId"] not in kept
            assert "demo-secret" not in kept
        shown = {one["name"]: one["value"] for one in listed.json["settings"]}
        assert shown["token-store"] == str(folder / ".config/dragoman/tokens")
        assert shown["card-cache"] == str(folder / ".cache/dragoman/cards")
        # All of it can go, and nothing is missed but the login.
        for path in files:
            path.unlink()
        gone = desk.run("send", "hi", "-o", "json", env=plain, exit=4)
        assert gone.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"


@pytest.mark.cli("A2ACLI_CONFIG_001")
def test_settings_can_be_looked_at_and_looking_writes_nothing(folder: Path) -> None:
    desk = Desk(folder, "127.0.0.1:9")
    place = folder / ".config" / "a2a-cli" / ".env"
    place.parent.mkdir(parents=True)
    place.write_text("A2ACLI_BEARER=hush-hush\nA2ACLI_TIMEOUT='90s'\n# A2ACLI_OUTPUT=json\n")
    place.chmod(0o644)
    plain = {"XDG_CONFIG_HOME": ""}
    text, found = together(
        lambda: desk.run("config", "show", env=plain),
        lambda: desk.run("config", "show", "-o", "json", "--verbose", "--debug", env=plain),
    )
    assert [*desk.files()] == [place]
    assert f"timeout: 90s (file {place})" in text.out
    assert f"bearer: <redacted> (file {place})" in text.out
    assert "output: text (default)" in text.out and "\nstream:" not in text.out
    listed = {one["name"]: one for one in found.json["settings"]}
    assert listed["bearer"] == {
        "name": "bearer",
        "env": "A2ACLI_BEARER",
        "value": "<redacted>",
        "source": "file",
        "path": str(place),
    }
    assert "path" not in listed["insecure"] and "stream" not in listed
    for ended in (text, found):
        assert "hush-hush" not in ended.out + ended.err
        assert re.search(f"^Warning: {place} holds a secret.*chmod 600", ended.err, re.M)
    place.chmod(0o600)
    assert "Warning" not in desk.run("config", "show", env=plain).err
    place.write_text("A2ACLI_CLIENT_SECRET=hush-hush\n")
    place.chmod(0o640)
    assert "holds a secret" in desk.run("config", "show", env=plain).err


# Where a value comes from


@pytest.fixture
def ranked(folder: Path) -> Iterator[tuple[Desk, Path]]:
    """A desk with one key on every rank, and the folder below it that is worked in."""
    within = folder / "project" / "deep"
    within.mkdir(parents=True)
    config = folder / "config" / "a2a-cli"
    (config / "agents").mkdir(parents=True)
    for path, seconds in (
        (folder / "project" / ".env", 3),
        (config / "agents" / "127.0.0.1.env", 4),
        (config / ".env", 5),
    ):
        path.write_text(f"A2ACLI_TIMEOUT={seconds}s\nexport A2ACLI_POLL_INTERVAL={seconds}s\n")
    yield Desk(folder, "http://127.0.0.1:9"), within


@pytest.mark.cli("A2ACLI_CONFIG_002")
def test_every_rank_gives_way_to_the_one_above_it(ranked: tuple[Desk, Path]) -> None:
    desk, within = ranked
    variable = {"A2ACLI_TIMEOUT": "2s"}
    files = [
        desk.folder / "project" / ".env",
        desk.folder / "config/a2a-cli/agents/127.0.0.1.env",
        desk.folder / "config/a2a-cli/.env",
    ]

    def found(*flags: str, env: dict[str, str] | None = None) -> tuple[str, str, str]:
        shown = desk.run("config", "show", "-o", "json", *flags, env=env, cwd=within).json
        (one,) = (one for one in shown["settings"] if one["name"] == "timeout")
        return one["value"], one["source"], one.get("path", "")

    assert together(
        lambda: found("--timeout", "1s", env=variable), lambda: found(env=variable)
    ) == [("1s", "flag", ""), ("2s", "env", "")]
    for rank, path in enumerate(files, 3):
        assert found() == (f"{rank}s", "file", str(path))
        path.unlink()
    assert found() == ("0", "default", "")


@pytest.mark.cli("A2ACLI_CONFIG_002")
def test_a_named_file_replaces_the_local_one_alone_and_the_agents_own_is_for_it_alone(
    ranked: tuple[Desk, Path],
) -> None:
    desk, within = ranked
    named = within / "named.env"
    named.write_text("A2ACLI_TIMEOUT=7s\n")
    host, world = ("config/a2a-cli/agents/127.0.0.1.env", "config/a2a-cli/.env")
    (desk.folder / "project" / ".env").write_text("A2ACLI_METADATA={}\nOTHER=1\n")

    def values(*flags: str, a: str | None = None, env: dict[str, str] | None = None) -> Any:
        shown = desk.run("config", "show", "-o", "json", *flags, a=a, env=env, cwd=within).json
        listed = {one["name"]: one for one in shown["settings"]}
        return [(listed[n]["value"], listed[n].get("path")) for n in ("timeout", "poll-interval")]

    places = {name: str(desk.folder / name) for name in (host, world)}
    by_host = ("4s", places[host])
    by_world = ("5s", places[world])
    assert together(
        lambda: values("--config", "named.env"),
        lambda: values(env={"A2ACLI_CONFIG": str(named)}),
        lambda: values(),
        lambda: values(a="https://other.example"),
        lambda: values(a="", env={"A2ACLI_AGENT_CARD": "127.0.0.1:1"}),
    ) == [
        [("7s", str(named)), by_host],
        [("7s", str(named)), by_host],
        [by_host, by_host],
        [by_world, by_world],
        [by_host, by_host],
    ]
    missing = desk.run("config", "show", "--config", "none.env", "-o", "json", exit=2)
    assert missing.error["code"] == "A2ACLI_ERR_USAGE"


@pytest.mark.cli("A2ACLI_CONFIG_002")
def test_the_file_of_an_agent_gives_its_credential_to_that_agent(folder: Path) -> None:
    own = folder / "config/a2a-cli/agents/127.0.0.1.env"
    own.parent.mkdir(parents=True)
    own.write_text("A2ACLI_BEARER=demo-secret\n")
    own.chmod(0o600)
    with sitting(folder, auth="bearer") as desk:
        sent, elsewhere = together(
            lambda: desk.run("send", "echo hi"),
            lambda: desk.run(
                *("send", "hi", "-o", "json"),
                a=desk.url.replace("127.0.0.1", "localhost"),
                exit=4,
            ),
        )
    assert COMPLETED in sent.out
    assert elsewhere.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
