"""The files of `deploy/` name what exists: options, variables, images' commands."""

import re
from pathlib import Path
from typing import Any

import click
import yaml

from dragoman.cli.main import cli
from dragoman.config import load_settings

DEPLOY = Path(__file__).parent.parent / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
REPLICAS = [COMPOSE["services"][name] for name in ("replica-1", "replica-2")]


def test_replicas_differ_in_nothing_but_when_they_start() -> None:
    first, second = ({**one, "depends_on": None} for one in REPLICAS)
    assert first == second


def test_the_command_of_a_replica_is_one() -> None:
    name, *words = REPLICAS[0]["command"]
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    parsed = command.make_context(name, words, parent=context, resilient_parsing=True)
    assert parsed.params["listen"] == ("0.0.0.0:8000",)
    assert parsed.params["auth"] == ("api-key",)


def test_the_settings_of_a_replica_are_taken() -> None:
    environment = REPLICAS[0]["environment"]
    # As Compose fills them in.
    filled = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(value)) for name, value in environment.items()
    }
    settings = load_settings({k: v for k, v in filled.items() if k.startswith("DRAGOMAN_")})
    assert settings.is_postgres and not settings.stores.session_url
    drain = settings.server.drain
    assert float(REPLICAS[0]["stop_grace_period"].removesuffix("s")) > drain


def test_what_is_named_is_there() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in volumes
        assert set(service.get("depends_on", ())) <= services.keys()
    database = services["database"]
    store = load_settings({"DRAGOMAN_STORE": REPLICAS[0]["environment"]["DRAGOMAN_STORE"]})
    assert store.store_name == f"postgresql://database/{database['environment']['POSTGRES_DB']}"
    targets = [word for word in services["proxy"]["command"] if word.startswith("replica-")]
    assert [word.split(":")[0] for word in targets] == ["replica-1", "replica-2"]
    build = REPLICAS[0]["build"]
    top = (DEPLOY / build["context"]).resolve()
    recipe = (top / build["dockerfile"]).read_text()
    for line in re.findall(r"^COPY (.*)$", recipe, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (top / name).exists(), name
    extras = re.search(r"\[([a-z,]+)\]'", recipe)
    assert extras is not None
    project = (top / "pyproject.toml").read_text()
    assert all(
        re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras[1].split(",")
    )
