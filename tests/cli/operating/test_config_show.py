"""`dragoman config show`: every setting with its source, no secret, nothing written."""

from pathlib import Path

from dragoman.cli.options import ROWS
from dragoman.config import SECRETS
from tests.cli.command import call, document


async def test_every_setting_is_shown_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("A2ACLI_TIMEOUT=90s\nA2ACLI_API_KEY=hunter22\n")
    path.chmod(0o600)
    env = {"A2ACLI_BEARER": "tok3n-of-mine", "A2ACLI_TRANSPORT": "rest,jsonrpc"}
    env |= {"A2ACLI_OUPUT": "json"}
    before = sorted(tmp_path.rglob("*"))
    text = await call("config", "show", "--verbose", cwd=tmp_path, env=env)
    assert text.returncode == 0
    lines = text.stdout.splitlines()
    assert "output: text (default)" in lines and "verbose: true (flag)" in lines
    assert "bearer: <redacted> (env)" in lines
    assert f"timeout: 90s (file {path})" in lines
    assert f"api-key: <redacted> (file {path})" in lines
    assert text.stderr == "Warning: A2ACLI_OUPUT is no setting; did you mean A2ACLI_OUTPUT?\n"
    assert "hunter22" not in text.stdout and "tok3n" not in text.stdout
    settings = document(await call("config", "show", "-o", "json", cwd=tmp_path, env=env))[
        "settings"
    ]
    by_name = {entry["name"]: entry for entry in settings}
    assert by_name["transport"]["value"] == ["HTTP+JSON", "JSONRPC"]
    assert by_name["timeout"]["path"] == str(path)
    assert by_name["output"] == {
        "name": "output",
        "env": "A2ACLI_OUTPUT",
        "value": "json",
        "source": "flag",
    }
    shown = {row.name for row in ROWS if row.in_environment}
    assert by_name.keys() == shown | {"catalog", "token-store", "card-cache"}
    assert sorted(tmp_path.rglob("*")) == before


async def test_of_a_servers_secrets_only_that_they_are_set_is_shown(tmp_path: Path) -> None:
    env = {f"DRAGOMAN_{name.upper()}": f"hunter22-{name}" for name in SECRETS}
    env |= {"DRAGOMAN_AUTH_TOKEN_FILE": "/run/token", "DRAGOMAN_AUTH": "bearer,jwt"}
    env |= {"DRAGOMAN_JWT_KEYS": "https://me:hunter22@keys.example/", "DRAGOMAN_CORS": ""}
    path = tmp_path / ".env"
    path.write_text(f"DRAGOMAN_STORE_KEY={env.pop('DRAGOMAN_STORE_KEY')}\n")
    path.chmod(0o600)
    text = await call("config", "show", cwd=tmp_path, env=env)
    lines = text.stdout.splitlines()
    for name in SECRETS - {"store_key"}:
        assert f"DRAGOMAN_{name.upper()}: <redacted> (env)" in lines
    assert f"DRAGOMAN_STORE_KEY: <redacted> (file {path})" in lines
    assert "DRAGOMAN_AUTH_TOKEN_FILE: /run/token (env)" in lines
    assert "DRAGOMAN_AUTH: bearer,jwt (env)" in lines
    assert not any(line.startswith("DRAGOMAN_CORS") for line in lines), "it is not set"
    ended = await call("config", "show", "-o", "json", "--debug", cwd=tmp_path, env=env)
    shown = {one["name"]: one["value"] for one in document(ended)["settings"]}
    assert shown["DRAGOMAN_PUSH_SECRET"] == "<redacted>"
    for stream in (text.stdout, text.stderr, ended.stdout, ended.stderr):
        assert "hunter22" not in stream


async def test_the_catalog_of_names_is_shown_and_a_name_without_one_says_so(tmp_path: Path) -> None:
    unset = await call("config", "show", cwd=tmp_path)
    assert "catalog: not set (default)" in unset.stdout.splitlines()
    missing = document(await call("send", "-a", "@demo", "hi", "-o", "json", cwd=tmp_path), 3)
    assert missing["error"]["code"] == "A2ACLI_ERR_CARD_NOT_FOUND"
    assert "DRAGOMAN_CATALOG" in missing["error"]["message"]
    assert missing["error"]["hint"] == "DRAGOMAN_CATALOG='<url>' dragoman card get -a @demo"
    path = tmp_path / ".env"
    path.write_text("DRAGOMAN_CATALOG=https://c.example/all.json\n")
    in_file = await call("config", "show", cwd=tmp_path)
    assert f"catalog: https://c.example/all.json (file {path})" in in_file.stdout.splitlines()
    env = {"DRAGOMAN_CATALOG": "https://key:hunter22@d.example/"}
    ended = await call("config", "show", "-o", "json", cwd=tmp_path, env=env)
    (entry,) = [one for one in document(ended)["settings"] if one["name"] == "catalog"]
    assert (entry["env"], entry["source"]) == ("DRAGOMAN_CATALOG", "env")
    assert "d.example" in entry["value"] and "hunter22" not in ended.stdout
    known = await call("doctor", "--check", "configuration", cwd=tmp_path, env=env)
    assert "no setting is called" not in known.stdout, known.stdout
    shown = await call("send", "--help", "--all", cwd=tmp_path)
    assert "$DRAGOMAN_CATALOG" in shown.stdout
