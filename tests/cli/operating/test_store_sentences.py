"""Every command that opens a store says the same of one that cannot be opened."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from dragoman.stores.sqlite import SQLiteStore
from tests.cli.command import Ended, inside

AGENT = """
from dragoman import Agent
agent = Agent("Echo", "Says it again.")

@agent.skill(default=True)
async def echo(text: str) -> str:
    return text
"""
COMMANDS = (
    ("serve", "agent.py", "--listen", "127.0.0.1:0"),
    ("serve", "agent.py", "--listen", "127.0.0.1:0", "--workers", "2"),
    ("up", "--listen", "127.0.0.1:0"),
    ("gateway", "--listen", "127.0.0.1:0"),
    ("tasks", "list"),
    ("tasks", "tail"),
    ("ledger", "balance"),
    ("ledger", "verify"),
    ("trust", "list"),
    ("trust", "disputes"),
    ("vault", "show"),
    ("vault", "rotate"),
    ("push", "list"),
    ("inbox", "list"),
    ("backup", "target.db"),
)


def made(path: Path) -> Path:
    async def make() -> None:
        store = SQLiteStore(path)
        await store.open()
        await store.close()

    asyncio.run(make())
    return path


def a_folder(folder: Path) -> Path:
    (folder / "folder").mkdir()
    return folder / "folder"


def in_no_folder(folder: Path) -> Path:
    return folder / "no" / "such" / "tasks.db"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def a_text(folder: Path) -> Path:
    (folder / "text").write_text("Dear diary, " * 500)
    return folder / "text"


def a_long_name(folder: Path) -> Path:
    return folder / ("x" * 300)


def a_link_to_nothing(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "nothing")
    return folder / "link"


def of_a_later_release(folder: Path) -> Path:
    path = made(folder / "later.db")
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 9999)
    connection.close()
    return path


def gone(folder: Path) -> Path:
    path = made(folder / "gone.db")
    path.unlink()
    return path


def emptied(folder: Path) -> Path:
    path = made(folder / "empty.db")
    path.write_bytes(b"")
    return path


def with_the_log_of_another(folder: Path) -> Path:
    path, other = folder / "mixed.db", made(folder / "other.db")

    async def make() -> None:
        store = SQLiteStore(path)
        await store.open()
        await store.renew()
        shutil.copy(f"{path}-wal", folder / "log")
        await store.close()

    asyncio.run(make())
    shutil.copy(other, path)
    shutil.copy(folder / "log", f"{path}-wal")
    return path


SENTENCES: dict[Callable[[Path], Path], str] = {
    a_folder: "is a folder; name a file in it",
    in_no_folder: "there is no folder",
    a_pipe: "is a pipe",
    a_text: "is not a SQLite database",
    a_long_name: "the name is too long",
    a_link_to_nothing: "which is not there",
    of_a_later_release: "was written by a later release",
    gone: "is gone, but a store was here",
    emptied: "is empty, but a store was here",
    with_the_log_of_another: "was written for another file",
}


def said(ended: Ended) -> str:
    """Return the one sentence of a failure."""
    assert ended.returncode == 2, ended.stderr
    assert not ended.stdout and "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("Message: ")]
    return line.removeprefix("Message: ")


@pytest.mark.parametrize("make", SENTENCES, ids=lambda make: make.__name__)
def test_a_store_that_cannot_be_opened_is_told_alike_by_every_command(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    path = make(tmp_path)
    sentences = {said(inside(*words, "--store", path, cwd=tmp_path)) for words in COMMANDS}
    assert len(sentences) == 1, sentences
    (sentence,) = sentences
    assert sentence.startswith(f"{path}: ") and SENTENCES[make] in sentence
    assert not (tmp_path / "no").exists() and not (tmp_path / "target.db").exists()


def test_the_doctor_tells_it_as_a_problem(tmp_path: Path) -> None:
    for make, sentence in SENTENCES.items():
        folder = tmp_path / make.__name__
        folder.mkdir()
        path = make(folder)
        ended = inside("doctor", "--check", "store", "--store", path, cwd=tmp_path)
        assert ended.returncode == 0 and "Level: problem" in ended.stdout
        assert sentence in ended.stdout


def test_a_folder_is_not_made_for_the_audit_log_of_a_command_either(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    for words in (("--store", missing / "tasks.db"), ("--audit", missing / "audit.jsonl")):
        ended = inside("keys", "create", "--owner", "ada", *words, cwd=tmp_path)
        assert ended.returncode == 2 and "No such file or directory" in ended.stderr
    assert not (tmp_path / "no").exists()
