"""A disk that fills up or loses what it is given, when told so: a VFS over the real one.

`python faulty_disk.py FILE serve ...` runs the command on such a disk: it is full while FILE.full
exists and loses every sync while FILE.lost exists.
"""

import sys
from pathlib import Path

import apsw


class FaultyDisk(apsw.VFS):
    """Every SQLite file opened while it is the default."""

    def __init__(self, switch: Path) -> None:
        self.base = apsw.vfs_names()[0]
        self.full = Path(f"{switch}.full")
        self.lost = Path(f"{switch}.lost")
        super().__init__("faulty", base=self.base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]):
        super().__init__(disk.base, name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.full.exists():
            raise apsw.FullError("no space left on device")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.lost.exists():
            error = apsw.IOError("fsync failed")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)


if __name__ == "__main__":
    disk = FaultyDisk(Path(sys.argv[1]))
    apsw.set_default_vfs("faulty")
    sys.argv = ["dragoman", *sys.argv[2:]]
    from dragoman.cli.main import main

    main()
