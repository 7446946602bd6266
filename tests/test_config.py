"""Settings: where they come from, what is refused, and where tasks are kept by default."""

import base64
import math
import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from dragoman.cli.main import cli
from dragoman.cli.own_options import OwnOption
from dragoman.config import (
    FIELDS,
    IN_FILES,
    OTHERS,
    PREFIX,
    SECRETS,
    CardSettings,
    DialectSettings,
    EgressSettings,
    EngineSettings,
    GatewaySettings,
    HttpSettings,
    PushSettings,
    SecuritySettings,
    Settings,
    StoreSettings,
    TelemetrySettings,
    check_names,
    data_folder,
    load_settings,
    value_of,
)
from dragoman.config.formats import JWT_ALGORITHMS, SHORTEST_JWT_SECRET
from dragoman.errors import ConfigError
from dragoman.security.jwt.verification_keys import ASYMMETRIC, SYMMETRIC
from dragoman.server.authenticators import unused

EXAMPLES: dict[str, tuple[str, Any]] = {
    "store": ("memory:", "memory:"),
    "listen": ("[::1]:0, 9000", ["[::1]:0", "9000"]),
    "public_url": ("https://x.example", "https://x.example"),
    "version_mode": ("strict", "strict"),
    "card_shape": ("0.3", "0.3"),
    "error_table": ("1.0.0", "1.0.0"),
    "idempotency": ("false", False),
    "client_task_ids": ("1", True),
    "extended_card_public": ("true", True),
    "transport": ("rest", ["rest"]),
    "a2a_version": ("1.0,0.3", ["1.0", "0.3"]),
    "card": ("card.toml", "card.toml"),
    "sign_key": ("key.pem", "key.pem"),
    "workers": ("4", 4),
    "keepalive": ("2.5", 2.5),
    "max_body_bytes": ("2048", 2048),
}


def test_the_defaults_are_settings() -> None:
    assert load_settings({}) == Settings()
    assert Settings().addresses() == [("127.0.0.1", 8000)]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_setting_is_read_from_its_variable(name: str) -> None:
    text, value = EXAMPLES[name]
    assert value_of(load_settings({PREFIX + name.upper(): text}), name) == value


def test_every_setting_has_a_variable_a_meaning_and_a_default() -> None:
    for name, field in FIELDS.items():
        assert field.meta.description, name
        value = value_of(Settings(), name)
        assert value == field.default
        text = ",".join(value) if isinstance(value, list) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        if text or name != "listen":
            assert load_settings({PREFIX + name.upper(): text}) == Settings()


def test_a_setting_is_in_one_group_and_its_flat_name_is_its_own() -> None:
    groups = msgspec.structs.fields(Settings)
    assert len(FIELDS) == sum(len(msgspec.structs.fields(group.type)) for group in groups)


@pytest.mark.parametrize(
    ("group", "given", "says"),
    [
        (
            *(EngineSettings, {"max_events": -5}),
            "max_events = -5: must be a whole number, from 10 to 1000000",
        ),
        (
            EngineSettings,
            {"lease": "long"},
            "lease = 'long': must be a number of seconds, at least",
        ),
        (EngineSettings, {"lease": math.inf}, "lease = inf: must be a number of seconds"),
        (HttpSettings, {"keepalive": math.nan}, "keepalive = nan: must be .* above 0"),
        (HttpSettings, {"hosts": "a,b"}, "hosts = 'a,b': must be a list of texts"),
        (HttpSettings, {"hosts": [1]}, r"hosts = \[1\]: must be a list of texts"),
        (CardSettings, {"shape": "2.0"}, "card_shape = '2.0': must be one of auto, 1.0, 0.3, 0.2"),
        (CardSettings, {"public": 1}, "card_public = 1: must be true or false"),
        (CardSettings, {"public_url": "agents.example"}, "public_url = .*: must be an address"),
        (HttpSettings, {"listen": ["", " "]}, "listen = .*: names no address"),
        (HttpSettings, {"listen": ["a:x"]}, "listen = .*: a:x is not an address"),
        (HttpSettings, {"rate_limit": "much"}, "rate_limit = 'much': much is not a rate; write 1"),
        (HttpSettings, {"rate_limit_agent": "1/0s"}, "rate_limit_agent = .* is not a rate"),
        (HttpSettings, {"rate_limit_address": "0/s"}, "rate_limit_address = .* is not a rate"),
        (HttpSettings, {"rate_limit_failures": "5"}, "rate_limit_failures = .* is not a rate"),
        (HttpSettings, {"quota": "1000/y"}, "quota = '1000/y': 1000/y is not a rate"),
        (HttpSettings, {"proxies": ["10.0.0.1/8"]}, "proxies = .* has host bits set; write 10"),
        (HttpSettings, {"proxy_cert_header": "a b"}, "proxy_cert_header = 'a b': .* is no header"),
        (HttpSettings, {"cors": ["app.example"]}, "cors = .*: app.example is no origin; write"),
        (SecuritySettings, {"api_key_header": ""}, "api_key_header = '': '' is no header"),
        (SecuritySettings, {"api_key_header": "Authorization"}, "is for tokens; write X-API-Key"),
        (SecuritySettings, {"jwt_algorithms": ["none"]}, "jwt_algorithms = .* choose among RS256"),
        (SecuritySettings, {"jwt_type": "JWT"}, "jwt_type = 'JWT': .*'at.jwt' or empty"),
        (SecuritySettings, {"jwt_owner_claim": ""}, "jwt_owner_claim = '': must name the claim"),
        (SecuritySettings, {"oauth_token_url": "x"}, "oauth_token_url = 'x': must be an address"),
        (EgressSettings, {"allow": ["10.0.0.0/33"]}, "allow = .*10.0.0.0/33.*; write agents.exam"),
        (EgressSettings, {"allow": ["a b"]}, "allow = .*the host is no name"),
        (DialectSettings, {"corvid_rate": "fast"}, "corvid_rate = 'fast': fast is not a rate"),
        (DialectSettings, {"houses": ["x"]}, "dialects = .*: x is not served; choose from none"),
        (GatewaySettings, {"platform_fee": "1.5"}, "platform_fee = '1.5': must be a share of the"),
        (GatewaySettings, {"initial_credits": "x"}, "initial_credits = 'x': must be an amount of"),
        (TelemetrySettings, {"otlp_endpoint": "x:1"}, "otlp_endpoint = 'x:1': must be an address"),
    ],
)
def test_what_is_not_allowed_is_refused_when_it_is_made(
    group: Any, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        group(**given)
    with pytest.raises(ConfigError, match=says):
        msgspec.structs.replace(group(), **given)


@pytest.mark.parametrize(
    ("group", "given", "says"),
    [
        (SecuritySettings, {"auth_token": b"s3cret"}, "auth_token = '***': must be a text"),
        (SecuritySettings, {"auth_token": "s3cret"}, "auth_token = '***': a token needs at least"),
        (SecuritySettings, {"auth_token": "s3cret" + 16 * " "}, "auth_token = '***': a token has"),
        (SecuritySettings, {"jwt_secret": "s3cret"}, "jwt_secret = '***': the shared secret must"),
        (PushSettings, {"secrets": ["s3cret"]}, "push_secret = ['***']: must have 24 to 64 bytes"),
        (PushSettings, {"secrets": ["whsec_s3cret?"]}, "push_secret = ['***']: must be whsec_ and"),
        (StoreSettings, {"sealing_keys": ["s3cret"]}, "store_key = ['***']: a key is 32 bytes in"),
    ],
)
def test_a_secret_that_is_not_allowed_is_not_shown(
    group: Any, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        group(**given)
    assert "s3cret" not in str(refused.value) and says in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"threads": "0"},
        {"keepalive": "0"},
        {"rate_limit": "much"},
        {"proxies": "10.0.0.1/8"},
        {"allow": "a b"},
        {"platform_fee": "1.5"},
        {"listen": "a:x"},
        {"auth": "guess"},
        {"card_shape": "2.0"},
        {"push_secret": "s3cret"},
    ],
)
def test_a_refusal_has_one_form_wherever_the_value_is_from(given: dict[str, str]) -> None:
    ((name, text),) = given.items()
    said: set[str] = set()
    for sources in ({PREFIX + name.upper(): text}, {}), ({}, given):
        with pytest.raises(ConfigError) as refused:
            load_settings(sources[0], **sources[1])
        said.add(str(refused.value))
    field = FIELDS[name]
    group = next(one.type for one in msgspec.structs.fields(Settings) if one.name == field.group)
    value: Any = text.split(",") if isinstance(field.default, list) else text
    if isinstance(field.default, int | float):
        value = type(field.default)(text)
    with pytest.raises(ConfigError) as refused:
        group(**{field.field: value})
    assert said == {str(refused.value)}
    assert str(refused.value).startswith(f"{name} = ")


def test_lists_are_cleaned_wherever_they_are_from() -> None:
    text = " a.example,, b.example , "
    found = [
        load_settings({"DRAGOMAN_HOSTS": text}).http.hosts,
        load_settings({}, hosts=text).http.hosts,
        load_settings({}, hosts=text.split(",")).http.hosts,
        HttpSettings(hosts=text.split(",")).hosts,
        msgspec.structs.replace(HttpSettings(), hosts=tuple(text.split(","))).hosts,
    ]
    assert found == 5 * [["a.example", "b.example"]]


def test_the_algorithms_of_the_setting_are_those_there_are() -> None:
    assert {*JWT_ALGORITHMS} == {*ASYMMETRIC, *SYMMETRIC}
    assert min(SYMMETRIC.values()) == SHORTEST_JWT_SECRET


def test_durations_in_the_environment_are_read_as_on_the_command_line() -> None:
    settings = load_settings(
        {"DRAGOMAN_ESCROW": "72h", "DRAGOMAN_DRAIN": "1m30s", "DRAGOMAN_LEASE": "20"}
    )
    found = (settings.gateway.escrow, settings.server.drain, settings.engine.lease)
    assert found == (259_200, 90, 20)
    with pytest.raises(ConfigError, match="drain"):
        load_settings({"DRAGOMAN_DRAIN": "soon"})


def test_what_is_given_wins_over_the_environment() -> None:
    environment = {"DRAGOMAN_THREADS": "1", "DRAGOMAN_LISTEN": "[::1]:5"}
    settings = load_settings(environment, threads=2, listen=None)
    assert (settings.server.threads, settings.http.listen) == (2, ["[::1]:5"])


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
    assert load_settings({}, listen=text).addresses() == found


@pytest.mark.parametrize("text", ["127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:-1", " , "])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="listen"):
        load_settings({}, listen=text)


def test_what_is_served_is_all_or_what_is_named() -> None:
    assert Settings().bindings() == ["JSONRPC", "HTTP+JSON", "GRPC"]
    assert Settings().versions() == ["1.0", "0.3", "0.2"]
    assert load_settings({}, transport=" REST ").bindings() == ["HTTP+JSON"]
    assert load_settings({}, a2a_version="0.2, 1.0").versions() == ["1.0", "0.2"]
    with pytest.raises(ConfigError, match=r"transport = \['rest', 'mqtt'\]: mqtt is not served"):
        Settings(dialects=DialectSettings(transport=["rest", "mqtt"]))
    with pytest.raises(ConfigError, match=r"a2a_version = .*: 2.0 is not served"):
        Settings(dialects=DialectSettings(a2a_version=["2.0"]))


def test_other_variables_are_none_of_ours() -> None:
    assert load_settings({"THREADS": "1", "dragoman_threads": "2"}) == Settings()


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
        load_settings({PREFIX + name.upper(): text})


def test_a_setting_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="prot"):
        load_settings({}, prot=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DRAGOMAN_AUHT", r"is not a setting \(did you mean DRAGOMAN_AUTH\?\); unset it"),
        ("DRAGOMAN_STORES_FILE", "did you mean DRAGOMAN_STORE_FILE"),
        ("DRAGOMAN_QQQ", "DRAGOMAN_QQQ is not a setting; unset it, or correct it"),
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
        found |= {
            parameter.variable for parameter in one.params if isinstance(parameter, OwnOption)
        }
    return found - {""}


def test_variables_of_ours_that_are_no_settings_and_those_of_kubernetes_are_left_alone() -> None:
    known = [*FIELDS, *(f"{name}_file" for name in IN_FILES), *OTHERS]
    service = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_80_TCP PORT_80_TCP_ADDR"
    known += [*service.split(), *(f"WEB_{word}" for word in service.split())]
    check_names({f"DRAGOMAN_{word.upper()}": "x" for word in known})
    # All that our commands read, and nothing besides but what workers and tests do.
    own = {name.removeprefix(PREFIX) for name in _variables(click.Context(cli))}
    settings = {name.upper() for name in FIELDS}
    assert own - settings == OTHERS - {"CATALOG", "INHERITED", "PEERS_DIR", "WORKER_METRICS"}


def test_a_way_in_that_nobody_knows_is_refused_with_those_there_are() -> None:
    said = (
        r"apikey is not served \(did you mean api-key\?\); choose from none, bearer, api-key, jwt"
    )
    with pytest.raises(ConfigError, match=rf"auth = \['apikey'\]: {said}, oidc, mtls"):
        Settings(security=SecuritySettings(auth=["apikey"]))
    with pytest.raises(ConfigError, match=r"auth = .*: none goes with no other"):
        Settings(security=SecuritySettings(auth=["bearer", "none"]))
    both = SecuritySettings(auth=["none"], auth_token="t" * 16)
    assert Settings(security=both).ways() == []


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
    found = unused(load_settings({}, **given))
    assert len(found) == len(said)
    assert all(re.search(*pair) for pair in zip(said, found, strict=True))


def test_tasks_are_kept_where_the_user_says_or_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(stores=StoreSettings(location="~/mine.db")).store_path() == tmp_path / "mine.db"
    assert Settings(stores=StoreSettings(location="here.db")).store_path() == Path("here.db")
    assert (
        Settings(stores=StoreSettings(location="sqlite:~/mine.db")).store_path()
        == tmp_path / "mine.db"
    )
    with pytest.raises(ConfigError, match="PostgreSQL"):
        Settings(stores=StoreSettings(location="postgres://there/tasks")).store_path()
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
    assert load_settings({"DRAGOMAN_CLIENT_TASK_IDS": word}).dialects.client_task_ids is means


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_is_never_shown_and_may_be_in_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    # 32 bytes in base64: a secret of every kind.
    secret = base64.b64encode(b"s3cret".ljust(32, b"-")).decode()
    file.write_text(f"{secret}\n")
    variable = PREFIX + name.upper()
    if f"{name}_file" in FIELDS:
        # A setting of its own, read where it is used.
        settings = load_settings({variable: f"{secret}\n", f"{variable}_FILE": str(file)})
    else:
        settings = load_settings({f"{variable}_FILE": str(file)})
    field = FIELDS[name]
    is_list = isinstance(field.default, list)
    assert value_of(settings, name) == ([secret] if is_list else secret)
    assert secret not in repr(settings)
    assert f"{field.field}=" + ("['***']" if is_list else "'***'") in repr(settings)
    assert f"{field.field}=" + ("[]" if is_list else "''") in repr(Settings())


def test_a_secret_that_is_given_twice_or_not_at_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    variable = "DRAGOMAN_AUTH_TOKEN_FILE"
    with pytest.raises(ConfigError, match=f"{variable}: .*cannot be read"):
        load_settings({variable: str(file)})
    file.write_text("\n")
    with pytest.raises(ConfigError, match=f"{variable}: .*is empty"):
        load_settings({variable: str(file)})
    file.write_text("from-the-file-with-16")
    with pytest.raises(ConfigError, match=r"auth_token = .*: given itself and as a file"):
        load_settings({variable: str(file), "DRAGOMAN_AUTH_TOKEN": "itself"})
    settings = load_settings({variable: str(file)}, auth_token="in-code-16-characters")
    assert settings.security.auth_token == "in-code-16-characters"
    # Only secrets and addresses: what others mean by such a name is theirs.
    assert load_settings({"DRAGOMAN_LISTEN_FILE": str(file)}) == Settings()


def test_an_address_with_a_password_is_shown_without_it_and_may_be_in_a_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "store"
    file.write_text("postgresql://ada:s3cret@db.example/tasks?sslmode=require&password=s3cret\n")
    given = {
        "DRAGOMAN_STORE_FILE": str(file),
        "DRAGOMAN_STORE_SESSION_URL": "postgres://ada:s3cret@direct.example:5433/tasks",
        "DRAGOMAN_BUS": "nats://ada:s3cret@nats.example:4222",
    }
    settings = load_settings(given)
    assert settings.is_postgres
    assert settings.stores.location == file.read_text().strip()
    assert "s3cret" not in repr(settings) and "ada" not in repr(settings)
    assert settings.store_name == "postgresql://db.example/tasks"
    with pytest.raises(ConfigError, match=r"store = .*: given itself and as a file"):
        load_settings({**given, "DRAGOMAN_STORE": "x.db"})
    # What is typed wins.
    assert load_settings({"DRAGOMAN_STORE_FILE": str(file)}, store="x.db").stores.location == "x.db"
    file.write_bytes(b"SQLite format 3\0")
    with pytest.raises(ConfigError, match=r"DRAGOMAN_STORE_FILE: .* no address of a database"):
        load_settings({"DRAGOMAN_STORE_FILE": str(file)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"store": "mysql://h/d"}, "mysql:// is no store; write postgresql://"),
        ({"store": "postgresql+asyncpg://h/d"}, "is no store; write postgresql://"),
        ({"store": "postgresql://ada:s3/cret@h/d"}, "in a password / is %2F"),
        ({"store": "postgresql://h:port/d"}, "write postgresql://user@host:5432/name"),
        ({"store": "postgresql://h:99999/d"}, "write postgresql://user@host:5432/name"),
        ({"store": "postgresql://[::1/d"}, "write postgresql://user@host:5432/name"),
        (
            {"store": "x.db", "bus": "nats://h"},
            "bus = 'nats://h': goes with a store on PostgreSQL alone",
        ),
        ({"store": "postgresql://h/d", "bus": "h:4222"}, "bus = 'h:4222': write nats://host:4222"),
        ({"store_session_url": "postgresql://h/d"}, "goes with a store on PostgreSQL alone"),
        (
            {"store": "postgresql://h/d", "store_session_url": "h"},
            "store_session_url = 'h': write postgresql://",
        ),
    ],
)
def test_a_store_and_what_goes_with_it_are_checked(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        load_settings({}, **given)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///tasks?host=/run/postgresql",
        "postgresql://ada:p%2Fw@a.example,b.example:5433/tasks?target_session_attrs=primary",
        "postgres://[::1]:5432/tasks",
    ],
)
def test_an_address_of_a_database_is_taken(url: str) -> None:
    assert load_settings({"DRAGOMAN_STORE": url}).is_postgres


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ada:x@db.example/tasks", "db.example-tasks"),
        ("postgres://bob@db.example:5432/tasks", "db.example-tasks"),
        ("postgresql://db.example:5433/tasks", "db.example_5433-tasks"),
        ("postgresql:///tasks?host=/run/postgresql", "localhost-tasks"),
        ("postgresql://db.example/..%2F..%2Ftasks", "db.example-.._.._tasks"),
        ("postgresql://db.example", "db.example-postgres"),
    ],
)
def test_files_of_a_database_are_in_the_data_folder_under_its_name(url: str, name: str) -> None:
    settings = Settings(stores=StoreSettings(location=url))
    assert settings.beside_store(".key") == data_folder() / f"{name}.key"
    assert settings.audit_path() == data_folder() / f"{name}.audit.jsonl"


@pytest.mark.parametrize("wrong", [None, 5, {"lease": 10}, HttpSettings()])
def test_a_group_is_of_its_own_type(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine = .*: must be EngineSettings"):
        Settings(engine=wrong)


def test_a_default_list_that_is_changed_is_no_default_of_others() -> None:
    Settings().egress.allow.append("10.0.0.0/8")
    assert Settings().egress.allow == []
