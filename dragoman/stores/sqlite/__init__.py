"""Everything in one SQLite file: write-ahead log, `synchronous=FULL`, one writer thread.

`store.py` joins the parts; `files/` looks after the files themselves, `ledger/` and `registry/`
hold what the gateway keeps. Imports the interfaces and the waist. Begin with
`store.py`, then `writer.py`.
"""

from dragoman.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
