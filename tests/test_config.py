"""Settings: where they come from, what is refused, and where tasks are kept by default."""

import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import pytest

from dragoman import Settings
from dragoman.cli.main import cli
from dragoman.cli.own import Own
from dragoman.config import OTHERS, PREFIX, SECRETS, check_names, load
from dragoman.errors import ConfigError
from dragoman.server.authenticators import unused

EXAMPLES: dict[str, tuple[str, Any]] = {
    "store": ("memory:", "memory:"),
    "listen": ("[::1]:0", "[::1]:0"),
    "public_url": ("https://x.example", "https://x.example"),
    "version_mode": ("strict", "strict"),
    "card_shape": ("0.3", "0.3"),
    "error_table": ("1.0.0", "1.0.0"),
    "idempotency": ("false", False),
    "client_task_ids": ("1", True),
    "extended_card_public": ("true", True),
    "transport": ("rest", "rest"),
    "a2a_version": ("1.0,0.3", "1.0,0.3"),
    "card": ("card.toml", "card.toml"),
    "sign_key": ("key.pem", "key.pem"),
    "workers": ("4", 4),
    "keepalive": ("2.5", 2.5),
    "max_body_bytes": ("2048", 2048),
}


def test_the_defaults_are_settings() -> None:
    assert load({}) == Settings()
    assert Settings().addresses() == [("127.0.0.1", 8000)]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_setting_is_read_from_its_variable(name: str) -> None:
    text, value = EXAMPLES[name]
    assert getattr(load({PREFIX + name.upper(): text}), name) == value


def test_every_setting_has_a_variable_a_meaning_and_a_default() -> None:
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        assert field.default is not msgspec.NODEFAULT
        assert hints[field.name].__metadata__[0].description, field.name
        value = getattr(Settings(), field.name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        assert load({PREFIX + field.name.upper(): text}) == Settings()


def test_durations_in_the_environment_are_read_as_on_the_command_line() -> None:
    settings = load({"DRAGOMAN_ESCROW": "72h", "DRAGOMAN_DRAIN": "1m30s", "DRAGOMAN_LEASE": "20"})
    assert (settings.escrow, settings.drain, settings.lease) == (259_200, 90, 20)
    with pytest.raises(ConfigError, match="drain"):
        load({"DRAGOMAN_DRAIN": "soon"})


def test_what_is_given_wins_over_the_environment() -> None:
    environment = {"DRAGOMAN_THREADS": "1", "DRAGOMAN_LISTEN": "[::1]:5"}
    settings = load(environment, threads=2, listen=None)
    assert (settings.threads, settings.listen) == (2, "[::1]:5")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:0", [("127.0.0.1", 0)]),
        ("9000", [("127.0.0.1", 9000)]),
        (":9000", [("127.0.0.1", 9000)]),
        ("localhost", [("localhost", 8000)]),
        ("[::1]:9000", [("::1", 9000)]),
        ("[::1]", [("::1", 8000)]),
        ("::1", [("::1", 8000)]),
        ("127.0.0.1:1, [::1]:2", [("127.0.0.1", 1), ("::1", 2)]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, found: list[tuple[str, int]]) -> None:
    assert Settings(listen=text).addresses() == found


@pytest.mark.parametrize("text", ["127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:-1", " , "])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="listen"):
        Settings(listen=text).addresses()


def test_what_is_served_is_all_or_what_is_named() -> None:
    assert Settings().bindings() == ["JSONRPC", "HTTP+JSON"]
    assert Settings().versions() == ["1.0", "0.3", "0.2"]
    assert Settings(transport=" REST ").bindings() == ["HTTP+JSON"]
    assert Settings(a2a_version="0.2, 1.0").versions() == ["1.0", "0.2"]
    with pytest.raises(ConfigError, match="transport: grpc is not served"):
        Settings(transport="rest,grpc").bindings()
    with pytest.raises(ConfigError, match="a2a_version: 2"):
        Settings(a2a_version="2.0").versions()


def test_other_variables_are_none_of_ours() -> None:
    assert load({"THREADS": "1", "dragoman_threads": "2"}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("threads", "x"),
        ("idempotency", "perhaps"),
        ("card_shape", "2.0"),
        ("keepalive", "0"),
        ("max_body_bytes", "1"),
        ("retain_seconds", "60"),
        ("threads", "0"),
        ("cancel_grace", "-1"),
        ("workers", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load({PREFIX + name.upper(): text})


def test_a_setting_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="prot"):
        load({}, prot=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DRAGOMAN_AUHT", "is no setting, perhaps DRAGOMAN_AUTH was meant; unset it"),
        ("DRAGOMAN_STORE_FILE", "perhaps DRAGOMAN_STORE_KEY_FILE was meant"),
        ("DRAGOMAN_QQQ", "DRAGOMAN_QQQ is no setting; unset it, or correct it"),
    ],
)
def test_a_variable_that_looks_like_a_setting_and_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_names({"PATH": "/bin", name: "bearer"})


def _variables(ctx: click.Context) -> set[str]:
    """Return the variables of all our commands."""
    found: set[str] = set()
    waiting: list[tuple[click.Context, click.Command]] = [(ctx, ctx.find_root().command)]
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, click.Group):
            inner = (one.get_command(place, name) for name in one.list_commands(place))
            waiting += [(place, command) for command in inner if command is not None]
        found |= {parameter.variable for parameter in one.params if isinstance(parameter, Own)}
    return found - {""}


def test_variables_of_ours_that_are_no_settings_and_those_of_kubernetes_are_left_alone() -> None:
    known = [*Settings.__struct_fields__, *(f"{name}_file" for name in SECRETS), *OTHERS]
    service = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_80_TCP PORT_80_TCP_ADDR"
    known += [*service.split(), *(f"WEB_{word}" for word in service.split())]
    check_names({f"DRAGOMAN_{word.upper()}": "x" for word in known})
    # All that our commands read, and nothing besides but what workers and tests do.
    own = {name.removeprefix(PREFIX) for name in _variables(click.Context(cli))}
    settings = {name.upper() for name in Settings.__struct_fields__}
    assert own - settings == OTHERS - {"CATALOG", "INHERITED", "PEERS_DIR", "WORKER_METRICS"}


def test_a_way_in_that_nobody_knows_is_refused_with_those_there_are() -> None:
    said = "apikey is not served, perhaps api-key was meant; choose of none, bearer, api-key, jwt"
    with pytest.raises(ConfigError, match=f"auth: {said}, oidc, mtls"):
        Settings(auth="apikey").ways()
    with pytest.raises(ConfigError, match="auth: none goes with no other"):
        Settings(auth="bearer,none").ways()
    assert Settings(auth="none", auth_token="t" * 16).ways() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"auth_token": "t" * 16, "auth": "api-key"}, ["auth_token is set.*not name bearer"]),
        ({"auth_tokens": "t.toml", "auth": "none"}, ["auth_tokens is set.*not name bearer"]),
        ({"keys": "k.json"}, ["keys is set.*not name api-key"]),
        ({"jwt_issuer": "i", "auth": "mtls"}, ["jwt_issuer is set.*not name jwt or oidc"]),
        ({"jwt_issuer": "i", "auth": "oidc"}, []),
        ({"auth_token": "t" * 16}, []),
        ({"auth_token": "t" * 16, "auth": "jwt,bearer"}, []),
        ({}, []),
    ],
)
def test_what_lets_nobody_in_although_it_is_set_is_told(
    given: dict[str, str], said: list[str]
) -> None:
    found = unused(Settings(**given))
    assert len(found) == len(said)
    assert all(re.search(*pair) for pair in zip(said, found, strict=True))


def test_tasks_are_kept_where_the_user_says_or_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(store="~/mine.db").store_path() == tmp_path / "mine.db"
    assert Settings(store="here.db").store_path() == Path("here.db")
    assert Settings(store="sqlite:~/mine.db").store_path() == tmp_path / "mine.db"
    with pytest.raises(ConfigError, match="PostgreSQL"):
        Settings(store="postgres://there/tasks").store_path()
    for platform, variable, folder in (
        ("linux", "XDG_DATA_HOME", tmp_path / "xdg" / "dragoman"),
        ("linux", "", tmp_path / ".local" / "share" / "dragoman"),
        ("darwin", "", tmp_path / "Library" / "Application Support" / "dragoman"),
        ("win32", "LOCALAPPDATA", tmp_path / "xdg" / "dragoman"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        if variable:
            monkeypatch.setenv(variable, str(tmp_path / "xdg"))
        assert Settings().store_path() == folder / "tasks.db"


@pytest.mark.parametrize(("word", "means"), [("on", True), ("Yes", True), ("off", False)])
def test_a_switch_may_be_written_as_people_do(word: str, means: bool) -> None:
    assert load({"DRAGOMAN_CLIENT_TASK_IDS": word}).client_task_ids is means


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_is_never_shown_and_may_be_in_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n\n")
    variable = PREFIX + name.upper()
    if f"{name}_file" in Settings.__struct_fields__:
        # A setting of its own, read by whoever needs it.
        settings = load({variable: "s3cret\n", f"{variable}_FILE": str(file)})
    else:
        settings = load({f"{variable}_FILE": str(file)})
    assert getattr(settings, name) == "s3cret\n"
    assert "s3cret" not in repr(settings) and f"{name}='***'" in repr(settings)
    assert f"{name}=''" in repr(Settings())


def test_a_secret_that_is_given_twice_or_not_at_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    variable = "DRAGOMAN_AUTH_TOKEN_FILE"
    with pytest.raises(ConfigError, match=f"{variable}: .*cannot be read"):
        load({variable: str(file)})
    file.write_text("\n")
    with pytest.raises(ConfigError, match=f"{variable}: .*is empty"):
        load({variable: str(file)})
    file.write_text("from-the-file")
    with pytest.raises(ConfigError, match="auth_token: given itself and as a file"):
        load({variable: str(file), "DRAGOMAN_AUTH_TOKEN": "itself"})
    assert load({variable: str(file)}, auth_token="in code").auth_token == "in code"
    # Only secrets: what others mean by such a name is theirs.
    assert load({"DRAGOMAN_STORE_FILE": str(file)}) == Settings()
