"""Tasks in one SQLite file: write-ahead log, `synchronous=FULL`, one writer thread."""

from dragoman.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
