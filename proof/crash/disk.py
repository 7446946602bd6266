"""A disk that remembers: what SQLite did to its files, and what a power cut would leave of it.

`Recorder` is a VFS over the real one that writes every operation on a tape. `Medium` plays a tape:
what was synced is there for good, and of what was not, any part may be found after the cut, in any
order, torn at sectors. The shared-memory index is not recorded, since memory is lost anyway.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Generator
from enum import StrEnum
from pathlib import Path

import apsw
import msgspec

SECTOR = 512
SYNCED_WITH_FOLDER = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


class Write(msgspec.Struct, frozen=True, gc=False):
    """Bytes at a place in a file."""

    file: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """A file's end."""

    file: int
    size: int


class Sync(msgspec.Struct, frozen=True, gc=False):
    """What was on the tape when it began is on the disk; the folder's entries too, if told so."""

    file: int
    began: int
    with_folder: bool


class Link(msgspec.Struct, frozen=True, gc=False):
    """A name for a file in the folder, or none any more."""

    name: str
    file: int | None
    is_synced: bool = False


Operation = Write | Truncate | Sync | Link


class Recorder(apsw.VFS):
    """Records what happens to the files of one folder; others pass unseen."""

    def __init__(self, folder: Path) -> None:
        # The first name is the default's.
        self._base = apsw.vfs_names()[0]
        self._folder = folder.resolve()
        super().__init__(f"dragoman-recorder-{id(self)}", base=self._base)
        self.name = f"dragoman-recorder-{id(self)}"
        self.tape: list[Operation] = []
        # The files at the beginning, by name and by number.
        self.found: dict[str, bytes] = {
            path.name: path.read_bytes() for path in sorted(self._folder.iterdir())
        }
        self._links: dict[str, int] = {name: file for file, name in enumerate(self.found)}
        self._files = len(self.found)

    @contextlib.contextmanager
    def recording(self) -> Generator[None]:
        """Be the VFS of every connection that is opened meanwhile."""
        apsw.set_default_vfs(self.name)
        try:
            yield
        finally:
            apsw.set_default_vfs(self._base)
            self.unregister()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file, with a tape if it is one of the folder's."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or Path(path).parent != self._folder:
            return apsw.VFSFile(self._base, name, flags)
        short = Path(path).name
        # SQLite syncs the folder with the first sync of a journal or log it may have created.
        asked = flags[0]
        with_folder = bool(asked & apsw.SQLITE_OPEN_CREATE and asked & SYNCED_WITH_FOLDER)
        if short not in self._links:
            self._links[short] = self._files
            self._files += 1
            self.tape.append(Link(short, self._links[short]))
        return _File(self._base, name, flags, self.tape, self._links[short], with_folder)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Delete a file."""
        super().xDelete(filename, syncdir)
        path = Path(filename)
        if path.parent == self._folder and self._links.pop(path.name, None) is not None:
            self.tape.append(Link(path.name, None, syncdir))


class _File(apsw.VFSFile):
    """Whatever is done to it is first done and then on the tape, so that a sync that runs at the
    same time is never credited with it."""

    def __init__(
        self,
        base: str,
        name: str | apsw.URIFilename | None,
        flags: list[int],
        tape: list[Operation],
        file: int,
        with_folder: bool,
    ) -> None:
        super().__init__(base, name, flags)
        self._tape = tape
        self._file = file
        self._with_folder = with_folder

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]  # Buffer is of 3.12
        self._tape.append(Write(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._tape.append(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:
        began = len(self._tape)
        super().xSync(flags)
        self._tape.append(Sync(self._file, began, self._with_folder))
        self._with_folder = False


class Variant(StrEnum):
    """What a power cut leaves of the operations that no sync covers."""

    NONE = "none"
    ALL = "all"
    # The first few of them, the last of these torn.
    PREFIX = "prefix"
    # Some of them whole, in order.
    SOME = "some"
    # Some of their sectors, in order.
    TORN = "torn"
    # Some of their sectors in any order, and space that was given to a file but never written.
    SHUFFLED = "shuffled"


Pending = list[tuple[int, Write | Truncate]]


class Medium:
    """The files as they are on the disk, and what is on its way there."""

    def __init__(self, found: dict[str, bytes], *, writeback: int = 0) -> None:
        # How many operations may be on their way at most; 0: until a sync, however many.
        self._writeback = writeback
        self._files = {file: bytearray(data) for file, data in enumerate(found.values())}
        self._links: dict[str, int] = {name: file for file, name in enumerate(found)}
        self._pending: dict[int, Pending] = {}
        self._entries: list[Link] = []

    def play(self, place: int, operation: Operation, *, is_sync_lost: bool = False) -> None:
        """Do what stands at a place of the tape."""
        match operation:
            case Sync(file, began, with_folder):
                if not is_sync_lost:
                    self._settle(file, began)
                    if with_folder:
                        self._settle_entries()
            case Link():
                self._entries.append(operation)
                if operation.is_synced and not is_sync_lost:
                    self._settle_entries()
            case _:
                self._pending.setdefault(operation.file, []).append((place, operation))
                if self._writeback:
                    self._settle(operation.file, place - self._writeback)
                    if place > self._writeback:
                        self._settle_entries()

    def image(self, variant: Variant, chance: random.Random) -> dict[str, bytearray]:
        """Return the files that are found after a cut here."""
        entries = self._entries
        if variant is Variant.NONE:
            entries = []
        elif variant is not Variant.ALL:
            # Journaling file systems keep the order of entries, so a first part of them survives.
            entries = entries[: chance.randint(0, len(entries))]
        links = dict(self._links)
        for entry in entries:
            _enter(links, entry)
        return {name: self._found(file, variant, chance) for name, file in links.items()}

    def _settle(self, file: int, before: int) -> None:
        left: Pending = []
        content = self._files.setdefault(file, bytearray())
        for place, operation in self._pending.get(file, []):
            if place < before:
                _apply(content, operation)
            else:
                left.append((place, operation))
        self._pending[file] = left

    def _settle_entries(self) -> None:
        for entry in self._entries:
            _enter(self._links, entry)
        self._entries.clear()

    def _found(self, file: int, variant: Variant, chance: random.Random) -> bytearray:
        content = bytearray(self._files.get(file, b""))
        pending = [operation for _, operation in self._pending.get(file, [])]
        for operation in _CHOICES[variant](pending, chance):
            _apply(content, operation)
        if variant is Variant.SHUFFLED and pending and chance.random() < 0.5:
            _extend(content, pending, chance)
        return content


Choice = Callable[[list[Write | Truncate], random.Random], list[Write | Truncate]]


def _prefix(pending: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    kept = pending[: chance.randint(0, len(pending))]
    if kept and isinstance(last := kept[-1], Write):
        sectors = _sectors(last)
        kept[-1:] = sectors[: chance.randint(0, len(sectors))]
    return kept


def _some(pending: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    share = chance.random()
    return [operation for operation in pending if chance.random() < share]


def _torn(pending: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    sectors: list[Write | Truncate] = []
    for operation in pending:
        sectors += _sectors(operation) if isinstance(operation, Write) else [operation]
    return _some(sectors, chance)


def _shuffled(pending: list[Write | Truncate], chance: random.Random) -> list[Write | Truncate]:
    kept = _torn(pending, chance)
    chance.shuffle(kept)
    return kept


_CHOICES: dict[Variant, Choice] = {
    Variant.NONE: lambda pending, chance: [],
    Variant.ALL: lambda pending, chance: pending,
    Variant.PREFIX: _prefix,
    Variant.SOME: _some,
    Variant.TORN: _torn,
    Variant.SHUFFLED: _shuffled,
}


def _sectors(write: Write) -> list[Write]:
    """Cut a write where the disk may tear it: at multiples of a sector of the file."""
    end = write.offset + len(write.data)
    cuts = [write.offset, *range(write.offset // SECTOR * SECTOR + SECTOR, end, SECTOR), end]
    return [
        Write(write.file, start, write.data[start - write.offset : stop - write.offset])
        for start, stop in itertools.pairwise(cuts)
    ]


def _extend(content: bytearray, pending: list[Write | Truncate], chance: random.Random) -> None:
    """Give the file the size it was to have; what it holds there is zeros or anything."""
    ends = [
        operation.offset + len(operation.data) if isinstance(operation, Write) else operation.size
        for operation in pending
    ]
    missing = max(ends) - len(content)
    if missing > 0:
        content += bytes(missing) if chance.random() < 0.5 else chance.randbytes(missing)


def _apply(content: bytearray, operation: Write | Truncate) -> None:
    end = operation.size if isinstance(operation, Truncate) else operation.offset
    if len(content) < end:
        content += bytes(end - len(content))
    if isinstance(operation, Truncate):
        del content[operation.size :]
    else:
        content[operation.offset : operation.offset + len(operation.data)] = operation.data


def _enter(links: dict[str, int], entry: Link) -> None:
    if entry.file is None:
        links.pop(entry.name, None)
    else:
        links[entry.name] = entry.file
