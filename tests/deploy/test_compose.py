"""`deploy/compose.yaml` and the Dockerfile name what exists: options, variables, files, metrics.

No container is run here: there is no Docker. The recipe is linted, the commands are parsed by our
own command line, and two replicas and an agent are run as processes with the settings of the file,
on a database of the tests.
"""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from harness.databases import Databases
from harness.processes import run, running

from dragoman.cli.main import cli
from dragoman.config import load_settings
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.testing.processes import ServerProcess
from tests.deploy.tools import DEPLOY, checker, prepared, said

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
REPLICAS = [SERVICES[name] for name in ("replica-1", "replica-2")]
OURS = [name for name, one in SERVICES.items() if one.get("image") == "dragoman"]
PROXY = (DEPLOY / "haproxy.cfg").read_text()
RECIPE = (DEPLOY / "Dockerfile").read_text()


def test_replicas_differ_in_nothing_but_when_they_start() -> None:
    first, second = ({**one, "depends_on": None} for one in REPLICAS)
    assert first == second


@pytest.mark.parametrize("service", [name for name in OURS if "command" in SERVICES[name]])
def test_a_command_of_ours_is_one_and_its_settings_are_taken(service: str) -> None:
    name, *words = SERVICES[service]["command"]
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    parsed = command.make_context(name, words, parent=context, resilient_parsing=True)
    assert parsed.params["listen"] == ("0.0.0.0:8000",)
    # As Compose fills them in.
    filled = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(value))
        for name, value in SERVICES[service]["environment"].items()
    }
    load_settings({name: value for name, value in filled.items() if name.startswith("DRAGOMAN_")})


def test_a_replica_keeps_tasks_in_the_database_and_stops_in_time() -> None:
    environment = {name: str(value) for name, value in REPLICAS[0]["environment"].items()}
    environment["DRAGOMAN_PUBLIC_URL"] = "http://127.0.0.1:8000"
    ours = {name: value for name, value in environment.items() if name.startswith("DRAGOMAN_")}
    settings = load_settings(ours)
    assert settings.is_postgres and not settings.stores.session_url
    database = SERVICES["database"]["environment"]["POSTGRES_DB"]
    assert settings.store_name == f"postgresql://database/{database}"
    stops_after = float(REPLICAS[0]["stop_grace_period"].removesuffix("s"))
    assert stops_after > settings.server.drain


@pytest.mark.parametrize("service", OURS)
def test_a_container_of_ours_cannot_write_its_root_nor_gain_rights(service: str) -> None:
    one = SERVICES[service]
    assert one["read_only"] is True and one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert one.get("user") is None or service == "prepare", "all others are the image's own user"


def test_what_is_named_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
        assert set(service.get("depends_on", ())) <= SERVICES.keys()
        for word in service.get("command", []):
            if word.startswith("/agents/"):
                assert (DEPLOY.parent / "examples" / Path(word).name).exists()
    targets = re.findall(r"^    server (\S+) (\S+):8000$", PROXY, re.MULTILINE)
    assert targets == [("replica-1", "replica-1"), ("replica-2", "replica-2")]
    # By default a dead replica is sent requests for as long as it is named.
    assert "uri /readyz" in PROXY and "option redispatch" in PROXY


def test_the_image_is_made_of_files_that_exist_and_can_do_everything() -> None:
    build = REPLICAS[0]["build"]
    top = (DEPLOY / build["context"]).resolve()
    assert (top / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    for line in re.findall(r"^COPY (?!--from)(.*)$", RECIPE, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (top / name).exists(), name
    # A gateway without `join` or `schedules` refuses what its documentation shows.
    assert "'/src[all]'" in RECIPE


def test_the_recipe_of_the_image_has_nothing_to_mend() -> None:
    assert said(checker("hadolint"), DEPLOY / "Dockerfile") == ""
    stages = RECIPE.split("FROM ")[1:]
    assert "USER 10001" in stages[-1] and "HEALTHCHECK" in stages[-1]


async def test_the_tokens_that_compose_writes_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prepared(tmp_path, monkeypatch)
    assert tokens.stat().st_mode & 0o777 == 0o600
    for_prometheus = tmp_path / "token"
    assert for_prometheus.stat().st_mode & 0o777 == 0o444
    # The reader refuses a file that others can read, and one with a token that is too short.
    await BearerTokens(file=tokens).start()


def test_an_agent_is_registered_and_called_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: Databases
) -> None:
    """On two replicas, whose folder is that of the volume: what one registers the other calls."""
    page = (DEPLOY.parent / "docs" / "deploying.md").read_text(encoding="utf-8")
    register, send = re.findall(
        r"^dragoman (agents register http://weather.*|send .*)$", page, re.M
    )
    listen = ("--listen", "127.0.0.1:0")
    name, example, *_ = SERVICES["weather"]["command"]
    agent = (name, DEPLOY.parent / "examples" / Path(example).name, *listen, "--public")
    settings = {key: str(value) for key, value in REPLICAS[0]["environment"].items()} | {
        # In the place of the network of the containers.
        "DRAGOMAN_STORE": databases.make(),
        "DRAGOMAN_PROXIES": "127.0.0.0/8",
        "DRAGOMAN_ALLOW": "127.0.0.0/8",
        "DRAGOMAN_AUTH_TOKENS": str(prepared(tmp_path, monkeypatch)),
        "PGPASSWORD": "unused",
    }
    # That of the proxy, which is not there.
    del settings["DRAGOMAN_PUBLIC_URL"]
    command, *_ = REPLICAS[0]["command"]
    with (
        running(*agent, "--store", tmp_path / "agent.db", cwd=tmp_path) as weather,
        running(command, *listen, cwd=tmp_path, env=settings) as first,
    ):
        first.ready()
        with running(command, *listen, cwd=tmp_path, env=settings) as second:
            _register_and_send(register, send, tmp_path, weather, first, second)


def _register_and_send(
    register: str,
    send: str,
    folder: Path,
    weather: ServerProcess,
    first: ServerProcess,
    second: ServerProcess,
) -> None:
    places = {
        "http://weather:8000": weather.ready(),
        "localhost:8000": second.ready().removeprefix("http://"),
    }

    def typed(line: str, *more: str) -> str:
        for written, real in places.items():
            line = line.replace(written, real)
        done = run(*line.split(), *more, cwd=folder, env={"A2ACLI_BEARER": "o" * 32})
        assert done.returncode == 0, done.stderr
        return done.stdout

    typed(register, "--gateway", first.url)
    assert "Sunny in Oslo" in typed(send)
