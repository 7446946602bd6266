"""Stores in memory: for tests, and for agents whose tasks need not outlive the process.

They keep the same promises as the stores on disk, as far as one process can. Imports the
interfaces, the model and the errors. Begin with `store.py`.
"""

from dragoman.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
