"""Logins on disk: who may read them, and which are believed."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.waiting import within

from dragoman.client.credentials import token_files
from dragoman.client.credentials.logins import Login
from dragoman.client.credentials.oauth import AccessToken
from dragoman.client.credentials.token_files import TokenStore
from dragoman.errors import ConfigError

AGENT, ISSUER = "https://agent.example", "https://issuer.example"
KEY = (AGENT, "oauth", ISSUER)


def login(access: str = "access", **change: Any) -> Login:
    made = Login(
        origin=AGENT,
        scheme="oauth",
        issuer=ISSUER,
        client_id="client",
        token_url=f"{ISSUER}/token",
        grant="deviceCode",
        token=AccessToken(access, "refresh", 1_700_000_000_000),
        scopes=("read",),
        id="one",
    )
    return msgspec.structs.replace(made, **change)


class Warned(list[str]):
    """The warnings a store gave."""


@pytest.fixture
def warned() -> Warned:
    return Warned()


@pytest.fixture
def store(tmp_path: Path, warned: Warned) -> TokenStore:
    return TokenStore(tmp_path / "state" / "tokens", warn=warned.append)


def only_file(store: TokenStore) -> Path:
    [path] = store.folder.iterdir()
    return path


def test_a_login_comes_back_as_it_was(store: TokenStore, warned: Warned) -> None:
    assert store.load(*KEY) is None
    assert store.all() == []
    store.save(login())
    assert store.load(*KEY) == login()
    store.save(login("later"))
    assert store.load(*KEY) == login("later")
    assert store.all() == [login("later")]
    assert warned == []


def test_logins_are_told_apart_by_agent_scheme_and_issuer(store: TokenStore) -> None:
    ours = login()
    others = [
        login("a", origin="https://other.example"),
        login("b", scheme="other"),
        login("c", issuer="https://other.example"),
    ]
    for item in (ours, *others):
        store.save(item)
    assert store.load(*KEY) == ours
    assert store.all() == [ours, others[2], others[1], others[0]]


def test_only_the_owner_can_read_them(store: TokenStore) -> None:
    before = os.umask(0)
    try:
        store.save(login())
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(store).stat().st_mode) == 0o600


def test_a_folder_that_is_open_is_closed_when_a_login_is_kept(store: TokenStore) -> None:
    store.folder.mkdir(parents=True)
    store.folder.chmod(0o755)
    store.save(login())
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_file_that_others_can_open_is_not_used(
    store: TokenStore, warned: Warned, mode: int
) -> None:
    store.save(login())
    only_file(store).chmod(mode)
    assert store.load(*KEY) is None
    assert store.all() == []
    assert "others can read it" in warned[0]
    assert "access" not in warned[0]


def test_a_folder_that_others_can_write_to_is_not_used(store: TokenStore, warned: Warned) -> None:
    store.save(login())
    store.folder.chmod(0o770)
    assert store.load(*KEY) is None
    assert store.all() == []
    assert "others can write to it" in warned[0]


def test_a_file_that_somebody_else_owns_is_not_used(
    store: TokenStore, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(login())
    found = only_file(store).stat()
    assert token_files._distrust(found) == ""
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
    assert token_files._distrust(found) == "another user owns it"
    assert store.load(*KEY) is None
    assert warned


def test_a_link_or_a_pipe_in_its_place_is_not_followed(
    store: TokenStore, warned: Warned, tmp_path: Path
) -> None:
    store.save(login())
    path = only_file(store)
    real = tmp_path / "elsewhere.json"
    path.rename(real)
    path.symlink_to(real)
    assert store.load(*KEY) is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert store.load(*KEY) is None
    assert len(warned) == 2
    assert warned[1].endswith("it is no file")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"origin": 1}', b"\xff", b"[" * 100_000, b"x" * 300_000]
)
def test_a_file_that_is_no_login_is_not_used(
    store: TokenStore, warned: Warned, body: bytes
) -> None:
    store.save(login())
    only_file(store).write_bytes(body)
    assert store.load(*KEY) is None
    assert "no login of ours" in warned[0]


def test_a_copy_serves_no_other_agent(store: TokenStore, warned: Warned) -> None:
    store.save(login())
    ours = only_file(store)
    store.save(login("x", origin="https://other.example"))
    [other] = [path for path in store.folder.iterdir() if path != ours]
    other.write_bytes(ours.read_bytes())
    assert store.load("https://other.example", "oauth", ISSUER) is None
    assert "belongs to another agent" in warned[0]


def test_what_a_card_says_names_no_file_outside(store: TokenStore) -> None:
    store.save(login(scheme="../../../evil", origin="https://a.example/../.."))
    assert only_file(store).parent == store.folder


def test_a_write_that_fails_leaves_the_login_before_it(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(login())

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left") as caught:
        store.save(login("later"))
    assert "later" not in str(caught.value)
    assert store.load(*KEY) == login()
    only_file(store)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept"):
        TokenStore(tmp_path / "file" / "tokens").save(login())


async def test_one_process_at_a_time_renews_a_login(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(login())
    # A lock of `flock` belongs to an open file, so two stores are like two processes.
    second = TokenStore(store.folder)
    order: list[str] = []
    first_in, waiting, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lock = token_files._is_locked

    def seen(file: int) -> bool:
        is_ours = lock(file)
        if not is_ours:
            waiting.set()
        return is_ours

    monkeypatch.setattr(token_files, "_is_locked", seen)

    async def hold(which: TokenStore, name: str) -> None:
        async with which.locked(login()):
            order.append(f"{name} in")
            if name == "first":
                first_in.set()
                await leave.wait()
            order.append(f"{name} out")

    one = asyncio.create_task(hold(store, "first"))
    await within(first_in.wait())
    two = asyncio.create_task(hold(second, "second"))
    await within(waiting.wait())
    leave.set()
    await within(asyncio.gather(one, two))
    assert order == ["first in", "first out", "second in", "second out"]


async def test_a_lock_that_is_never_let_go_is_passed_in_the_end(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(login())
    monkeypatch.setattr(token_files, "HELD_AT_MOST", 0.1)
    passed: list[bool] = []
    other = TokenStore(store.folder)
    async with asyncio.timeout(60), store.locked(login()), other.locked(login()):
        passed.append(True)
    assert passed
    # Where there is no folder there is nothing to hold.
    async with TokenStore(store.folder / "none").locked(login()):
        passed.append(True)


_ELSEWHERE = """
import asyncio, os, pathlib, sys
# Loaded where these exist: what is tried is ours.
import dragoman.client.credentials.logins, concurrent.futures.thread, tempfile

sys.modules["fcntl"] = None
for name in ("geteuid", "getuid", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    delattr(os, name)
# All that modes say there is whether a file can be written to.
fstat = os.fstat

def stated(file):
    found = list(fstat(file))[:10]
    return os.stat_result([found[0] | 0o666, *found[1:4], 0, 0, *found[6:]])

os.fstat = stated

from dragoman.client.credentials.logins import Login
from dragoman.client.credentials.oauth import AccessToken
from dragoman.client.credentials.token_files import TokenStore

token = AccessToken("t", "r\\n")
login = Login("https://a", "s", "https://i", "c", "https://i/t", "deviceCode", token)
store = TokenStore(pathlib.Path(sys.argv[1]), warn=print)
store.save(login)
assert store.load("https://a", "s", "https://i") == login
assert store.all() == [login]

async def hold():
    async with store.locked(login), store.locked(login):
        pass

asyncio.run(asyncio.wait_for(hold(), 60))
"""


def test_logins_are_kept_on_systems_without_owners_and_locks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "tokens")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
