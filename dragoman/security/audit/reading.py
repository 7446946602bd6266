"""What is in the files of the audit log: read, searched and verified while others write them."""

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dragoman.security.audit.chain import (
    LONGEST_LINE,
    AuditLine,
    ChainBroken,
    ChainReport,
    Walk,
    decode,
)
from dragoman.security.private_files import lock

# How often a file may change its name under us before something is wrong with it.
MOST_TRIES = 100
_BLOCK = 1024 * 1024


def verify(path: Path, expect: str = "") -> ChainReport:
    """Walk all files of a log; `expect` is a hash that has to be in it."""
    with opened(path) as files:
        return Walk(expect).along(files)


def latest_first(path: Path) -> Iterator[AuditLine]:
    """Yield the lines of all files from the end, and skip what is none."""
    with opened(path) as files:
        for _, file, size in reversed(files):
            for raw in _backwards(file, size):
                with suppress(ChainBroken):
                    yield decode(raw)


@contextmanager
def opened(path: Path) -> Generator[Sequence[tuple[Path, BinaryIO, int]]]:
    """Open all files as they are at one moment, the oldest first, each with its size.

    Raises `FileNotFoundError` if there is none.
    """
    with ExitStack() as stack:
        for _ in range(MOST_TRIES):
            with ExitStack() as held, suppress(FileNotFoundError):
                if path.exists():
                    # No process is in the middle of a line, and no file gets another name.
                    current = held.enter_context(path.open("rb"))
                    lock(current.fileno(), shared=True)
                    if not is_at(current.fileno(), path):
                        continue
                paths = [*reversed(numbered(path)), *([path] if path.exists() else [])]
                files = [(one, stack.enter_context(one.open("rb"))) for one in paths]
                found = [(one, file, os.fstat(file.fileno()).st_size) for one, file in files]
                break
        else:
            raise OSError(f"{path} is replaced again and again")
        if not found:
            raise FileNotFoundError(2, "there is no audit log", str(path))
        yield found


def numbered(path: Path) -> list[Path]:
    """Return the files that are full, the latest first."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,3})")
    found = [
        (int(match[1]), one)
        for one in path.parent.glob(f"{_literal(path.name)}.*")
        if (match := pattern.fullmatch(one.name))
    ]
    return [one for _, one in sorted(found)]


def latest(path: Path, act: str, object: str) -> AuditLine | None:
    """Return the last line of an act on an object in the current file; for who has the lock.

    Others wait for it, so what is in files that are full is not looked for.
    """
    needle = f',"act":{json.dumps(act)},'.encode()
    with path.open("rb") as file:
        for raw in _backwards(file, os.fstat(file.fileno()).st_size, needle):
            with suppress(ChainBroken):
                if needle in raw and (line := decode(raw)).object == object and line.act == act:
                    return line
    return None


def _backwards(file: BinaryIO, at: int, needle: bytes = b"") -> Iterator[bytes]:
    """Yield the lines of a file from a place back to its start, a block at a time.

    Blocks without the needle are passed over, which is most of a large file.
    """
    rest = b""
    while at:
        size = min(at, _BLOCK)
        at -= size
        file.seek(at)
        content = file.read(size) + rest
        first, _, lines = content.partition(b"\n")
        if needle in lines:
            yield from reversed(lines.split(b"\n"))
        rest = first if len(first) <= LONGEST_LINE else b""
    yield rest


def is_at(descriptor: int, path: Path) -> bool:
    """Tell whether a file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
