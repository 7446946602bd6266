"""Tasks in PostgreSQL, for any number of processes on any machines.

It imports the interface, the waist and asyncpg, never another store. Begin with `store.py`; what
the server does by itself is in `migrations/`: `0002_write_group.sql` is the heart.
"""

from dragoman.stores.postgres.connections import Addresses
from dragoman.stores.postgres.store import PostgresStore

__all__ = ["Addresses", "PostgresStore"]
