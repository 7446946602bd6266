"""What a doctor says of keys, of the audit log, and of settings that leave a door open."""

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.commands import invoke

from dragoman.cli.operating.doctor import NAMES
from dragoman.config import Settings, StoreSettings
from dragoman.security.audit.chain import NOTHING, AuditEntry, encode
from dragoman.security.keys import key_file
from dragoman.security.vault import key_file_of, new_key, vault_of, write_key_file
from dragoman.stores.sqlite import SQLiteStore

MINE = ("exposure", "api-keys", "audit", "store-key")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DRAGOMAN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that is sealed, with its key file beside it."""
    path = tmp_path / "tasks.db"

    async def fill() -> None:
        store = SQLiteStore(
            path, sealing=vault_of(Settings(stores=StoreSettings(location=str(path))))
        )
        await store.open()
        await store.close()

    asyncio.run(fill())
    return path


def found(check: str, store: Path) -> tuple[str, str]:
    """Return the level of a finding, and all that is said with it."""
    ended = invoke("doctor", "--store", store, "--check", check, "-o", "json")
    assert ended.exit_code == 0, ended.output
    (finding,) = json.loads(ended.stdout)["findings"]
    assert finding["check"] == check
    assert (finding["hint"] is None) == (finding["level"] == "ok")
    return finding["level"], f"{finding['message']} {finding['hint'] or ''}"


def test_a_server_in_order_is_told_so_and_nothing_is_written(store: Path, tmp_path: Path) -> None:
    def files() -> dict[Path, bytes]:
        # Readers of a database leave files of their own for its writers.
        kept = (path for path in tmp_path.rglob("*") if not path.name.endswith(("-shm", "-wal")))
        return {path: path.read_bytes() for path in kept if path.is_file()}

    before = files()
    assert set(MINE) < set(NAMES)
    for check in MINE:
        assert found(check, store)[0] == "ok"
    assert files() == before


def test_settings_that_make_no_sense_are_not_judged(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_LEASE", "long")
    for check in MINE:
        level, said = found(check, store)
        assert level == "warning" and "not checked" in said


# The store's key


def test_a_sealed_store_without_its_key_file_is_a_problem(store: Path) -> None:
    key_file_of(store).unlink()
    level, said = found("store-key", store)
    assert level == "problem" and "restore the key file" in said
    assert not key_file_of(store).exists(), "none is made in its place"


def test_the_key_of_another_store_is_a_problem(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key_file(key_file_of(store), [new_key()])
    assert found("store-key", store)[0] == "problem"
    monkeypatch.setenv("DRAGOMAN_STORE_KEY", "hush-hush-hush")
    level, said = found("configuration", store)
    assert level == "problem" and "32 bytes" in said and "hush" not in said


def test_a_key_file_that_others_may_read_is_a_problem(store: Path) -> None:
    key_file_of(store).chmod(0o644)
    level, said = found("store-key", store)
    assert level == "problem" and "chmod 600" in said


def test_a_store_that_seals_nothing_needs_no_key(tmp_path: Path) -> None:
    async def fill() -> None:
        store = SQLiteStore(tmp_path / "plain.db")
        await store.open()
        await store.close()

    asyncio.run(fill())
    assert found("store-key", tmp_path / "plain.db") == ("ok", "nothing is sealed ")


# The audit log


def recorded(store: Path) -> Path:
    path = Settings(stores=StoreSettings(location=str(store))).audit_path()
    assert path is not None
    head, lines = NOTHING, b""
    for number in range(1, 4):
        line, head = encode(
            number, head, AuditEntry("2026-01-01T00:00:00Z", "auth.denied", "denied")
        )
        lines += line
    path.write_bytes(lines)
    path.chmod(0o600)
    return path


def test_an_audit_log_that_was_changed_is_a_problem(store: Path) -> None:
    path = recorded(store)
    level, said = found("audit", store)
    assert level == "ok" and "3 lines" in said
    path.write_bytes(path.read_bytes().replace(b'"denied"', b'"passed"', 1))
    level, said = found("audit", store)
    assert level == "problem" and "line 1" in said and "dragoman audit verify" in said


def test_no_audit_log_is_no_problem(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_AUDIT", "off")
    assert found("audit", store)[0] == "ok"


# API keys


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.json"
    monkeypatch.setenv("DRAGOMAN_KEYS", str(path))
    monkeypatch.setenv("DRAGOMAN_AUTH", "api-key")
    return path


def made(path: Path, days: float | None) -> str:
    lifetime = None if days is None else timedelta(days=days)
    key, _ = key_file.create(path, "ann", scopes=[], tenant=None, lifetime=lifetime)
    return key.id


def test_keys_that_are_asked_for_and_not_there_are_a_problem(store: Path, keys: Path) -> None:
    level, said = found("api-keys", store)
    assert level == "problem" and "dragoman keys create" in said


@pytest.mark.parametrize(
    ("damage", "why"),
    [(lambda path: path.chmod(0o666), "chmod 600"), (lambda path: path.write_text("{"), "no key")],
)
def test_a_key_file_that_lets_nobody_in_is_a_problem_where_it_is_used(
    store: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, why: str
) -> None:
    made(keys, None)
    damage(keys)
    level, said = found("api-keys", store)
    assert level == "problem" and why in said
    monkeypatch.setenv("DRAGOMAN_AUTH", "none")
    assert found("api-keys", store)[0] == "warning"


def test_keys_that_end_or_have_ended_are_named_in_time(store: Path, keys: Path) -> None:
    made(keys, None), made(keys, 30)
    assert found("api-keys", store) == ("ok", "2 keys in use ")
    ending = made(keys, 7)
    level, said = found("api-keys", store)
    assert level == "warning" and "1 key will within 14 days" in said and ending in said
    over = made(keys, -1)
    level, said = found("api-keys", store)
    assert level == "warning" and "1 key expired, 1 key will" in said and over in said
    key_file.revoke(keys, over)
    key_file.revoke(keys, ending)
    key_file.rotate(keys, made(keys, 90), overlap=timedelta(days=1), lifetime=None)
    assert found("api-keys", store)[0] == "ok", "they end as they should"


# Settings


def test_a_server_that_others_reach_and_that_asks_nobody_is_a_problem(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listen in ("0.0.0.0:8000", "127.0.0.1:1,[::]:2", "agents.example"):
        monkeypatch.setenv("DRAGOMAN_LISTEN", listen)
        level, said = found("exposure", store)
        assert level == "problem" and "DRAGOMAN_AUTH" in said
    monkeypatch.setenv("DRAGOMAN_AUTH_TOKEN", "hush-hush-hush-hush")
    level, said = found("exposure", store)
    assert level == "ok" and "bearer" in said and "hush" not in said
    monkeypatch.delenv("DRAGOMAN_AUTH_TOKEN")
    for listen in ("localhost:1", "127.0.0.2:1,[::1]:2"):
        monkeypatch.setenv("DRAGOMAN_LISTEN", listen)
        assert found("exposure", store)[0] == "ok"


def test_pushes_to_any_private_address_are_a_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_ALLOW_PRIVATE", "on")
    level, said = found("exposure", store)
    assert level == "warning" and "DRAGOMAN_ALLOW_PRIVATE" in said


def test_the_file_of_a_secret_is_a_setting(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hush-hush-hush-hush\n")
    monkeypatch.setenv("DRAGOMAN_AUTH_TOKEN_FILE", str(tmp_path / "token"))
    assert found("configuration", store)[0] == "ok"
