"""Secrets at rest: what is sealed opens with its key in its place, and with nothing else."""

import base64
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.config import Settings, StoreSettings, load_settings
from dragoman.config.formats import read_sealing_keys
from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.security.vault import (
    Vault,
    key_file_of,
    key_id,
    make_key_file,
    new_key,
    read_key_file,
    vault_of,
    write_key_file,
)

OLD, NEW = new_key(), new_key()
TEXTS = [base64.b64encode(key).decode() for key in (NEW, OLD)]


def test_what_is_sealed_opens_in_its_context_only() -> None:
    vault = Vault([NEW])
    sealed = vault.seal(b"hush", b"push 1", key_id(NEW))
    assert vault.open(sealed, b"push 1") == b"hush"
    assert b"hush" not in sealed
    with pytest.raises(StoreUnavailable):
        vault.open(sealed, b"push 2")


def test_the_same_value_is_never_sealed_alike() -> None:
    vault = Vault([NEW])
    sealed = {vault.seal(b"hush", b"", key_id(NEW)) for _ in range(100)}
    assert len(sealed) == 100


def test_a_change_of_any_byte_is_found() -> None:
    vault = Vault([NEW, OLD])
    sealed = vault.seal(b"hush", b"", key_id(NEW))
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(StoreUnavailable):
            vault.open(bytes(changed), b"")
    for length in range(len(sealed)):
        with pytest.raises(StoreUnavailable):
            vault.open(sealed[:length], b"")


def test_older_keys_open_and_the_first_one_is_to_seal_with() -> None:
    sealed = Vault([OLD]).seal(b"hush", b"", key_id(OLD))
    vault = Vault([NEW, OLD])
    assert vault.open(sealed, b"") == b"hush"
    assert vault.ready([key_id(OLD)]) == key_id(NEW)


def test_a_missing_key_is_named_by_its_id_and_said_how_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key_id(OLD).hex()}.*DRAGOMAN_STORE_KEY"):
        Vault([NEW]).ready([key_id(OLD)])
    file = tmp_path / "tasks.db.key"
    with pytest.raises(ConfigError, match="put the key file of this store there"):
        Vault(file=file).ready([key_id(OLD)])
    assert not file.exists()


def test_a_store_that_was_never_sealed_gets_a_key_file_of_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db.key"
    assert Vault(file=file).ready([]) == key_id(read_key_file(file)[0])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_folder_of_a_key_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        Vault(file=tmp_path / "deep" / "tasks.db.key").ready([])
    assert not (tmp_path / "deep").exists()


def test_a_key_that_went_from_its_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db.key"
    vault = Vault(file=file)
    used = [vault.ready([])]
    assert not vault.trouble(used) and not vault.trouble([])
    body = file.read_bytes()
    for harm in (file.unlink, lambda: file.write_bytes(b""), lambda: write_key_file(file, [OLD])):
        harm()
        assert str(file) in vault.trouble(used)
    file.write_bytes(body)
    assert not vault.trouble(used)
    assert not Vault([OLD]).trouble([key_id(OLD)])


def test_processes_that_make_a_key_file_at_once_have_the_same_key(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db.key"
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: make_key_file(file), range(64)))
    assert len(read_key_file(file)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_key_that_another_process_put_in_the_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "k"
    write_key_file(file, [OLD])
    vault = Vault(file=file)
    vault.ready([])
    write_key_file(file, [NEW, OLD])
    assert vault.open(Vault([NEW]).seal(b"x", b"", key_id(NEW)), b"") == b"x"
    assert vault.ids == [key_id(NEW), key_id(OLD)]
    # What was dropped meanwhile still opens what was read before.
    sealed = vault.seal(b"y", b"", key_id(OLD))
    write_key_file(file, [NEW])
    vault.reload()
    assert vault.open(sealed, b"") == b"y"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can give files away")
def test_a_key_file_that_root_writes_stays_that_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "k"
    write_key_file(file, [OLD])
    os.chown(file, 12345, 12345)
    write_key_file(file, [NEW, OLD])
    assert (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) == (12345, 0o600)
    vault = Vault(file=file)
    vault.reload()
    (aside,) = vault.set_aside_others(key_id(NEW))
    assert read_key_file(aside) == [OLD] and read_key_file(file) == [NEW]


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "k"
    write_key_file(file, [OLD])
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Vault(file=file).ready([])


@pytest.mark.parametrize("text", ["short", "!" * 44, base64.b64encode(b"x" * 31).decode(), "é"])
def test_what_is_no_key_is_refused_without_being_said(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        StoreSettings(sealing_keys=[TEXTS[0], text])
    assert text not in str(refused.value) and "openssl rand -base64 32" in str(refused.value)


def test_an_empty_key_file_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    file = tmp_path / "k"
    file.touch(0o600)
    with pytest.raises(ConfigError, match="has no key"):
        Vault(file=file).ready([])
    assert file.read_bytes() == b""


def test_keys_come_from_the_environment_or_a_named_file_or_beside_the_store(
    tmp_path: Path,
) -> None:
    given = load_settings(
        {"DRAGOMAN_STORE_KEY": ",".join(TEXTS), "DRAGOMAN_STORE": str(tmp_path / "t")}
    )
    assert vault_of(given).ids == [key_id(NEW), key_id(OLD)]
    file = tmp_path / "k"
    file.write_text("\n".join(TEXTS) + "\n")
    file.chmod(0o600)
    named = vault_of(load_settings({"DRAGOMAN_STORE_KEY_FILE": str(file)}))
    assert named.ready([]) == key_id(NEW)
    beside = vault_of(Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db"))))
    assert beside.file == key_file_of(tmp_path / "tasks.db") == tmp_path / "tasks.db.key"
    with pytest.raises(ConfigError, match="unset one of them"):
        vault_of(
            Settings(stores=StoreSettings(sealing_keys=[TEXTS[0]], sealing_key_file=str(file)))
        )


def test_no_key_is_printed() -> None:
    vault = Vault([NEW, OLD])
    settings = Settings(stores=StoreSettings(sealing_keys=[TEXTS[0]]))
    for shown in (repr(vault), str(vault), repr(settings)):
        assert not any(text in shown for text in TEXTS) and repr(NEW) not in shown


def test_the_cipher_is_loaded_only_for_what_is_sealed_or_opened(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from dragoman import Agent, App
from dragoman.config import Settings, StoreSettings
from dragoman.console.part import ConsolePart

agent = Agent("A", "Is started.")

@agent.skill
async def work(text: str) -> str:
    return text

async def main(store):
    settings = Settings(stores=StoreSettings(location=store))
    app = App(agent, settings=settings, parts=[ConsolePart()], is_local=True)
    async with app.running():
        assert not any(name.startswith("cryptography") for name in sys.modules)

asyncio.run(main(sys.argv[1]))
"""
    store = tmp_path / "tasks.db"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", code, str(store)],
            check=True,
            timeout=60,
            env=os.environ | {"DRAGOMAN_STORE_KEY": ""},
        )
    assert key_file_of(store).exists()


def test_a_file_system_without_links_gets_its_key_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "k"
    make_key_file(file)
    made = file.read_bytes()
    make_key_file(file)
    assert file.read_bytes() == made and list(tmp_path.iterdir()) == [file]


def test_keys_may_be_lines_of_a_key_file() -> None:
    first, second = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
    assert read_sealing_keys([f"{first}\n{second}"]) == [bytes([1]) * 32, bytes([2]) * 32]


LITTLE_MEMORY = """
import resource, threading
from pathlib import Path
from dragoman.security.vault import Vault, key_id, new_key
# What a server has loaded: a module read within the limit would fail in its own way.
import cryptography.hazmat.primitives.ciphers.aead
import dragoman.service

key = new_key()
outcomes = []

def seal():
    try:
        outcomes.append(Vault([key]).seal(b"hush", b"here", key_id(key)))
    except MemoryError:
        outcomes.append(None)

def in_a_thread(limit):
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    thread = threading.Thread(target=seal)
    thread.start()
    thread.join()
    return outcomes.pop()

size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
# A stack is 8 MiB, the first cipher 12.
threading.stack_size(8 << 20)
assert in_a_thread(size + (16 << 20)) is None
assert Vault([key]).open(in_a_thread(resource.RLIM_INFINITY), b"here") == b"hush"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_the_first_cipher_is_refused_where_openssl_would_end_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", LITTLE_MEMORY], timeout=60, check=False)
    assert ended.returncode == 0
