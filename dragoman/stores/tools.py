"""What commands open of the store that the settings name: for a moment, and as no worker of it.

Each function picks a file or a database. What is opened has asynchronous methods, and comes with
the `Wait` that runs them: of a file nothing is waited for, so that a command needs no event loop.
"""

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dragoman.config import Settings
from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.at_once import at_once
from dragoman.stores.consistency import Inconsistency
from dragoman.stores.interface import Sealing
from dragoman.stores.interface.effects import AccountingStore
from dragoman.stores.interface.inspection import HealthInspection, TaskInspection
from dragoman.stores.interface.sealing import Rotated
from dragoman.stores.opening import addresses_of

if TYPE_CHECKING:
    # Heavy: loaded when one is opened.
    from dragoman.stores.copying.copying import Copied, Progress
    from dragoman.stores.copying.sides import CopySource, CopyTarget
    from dragoman.stores.postgres.operating.health import DatabaseFacts

T = TypeVar("T")


class Wait(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, deed: Coroutine[Any, Any, T], /) -> T:
        """Return what it returns."""
        ...


# What is opened for as long as the context lasts, and how its methods are run.
Opened = AbstractContextManager[tuple[T, Wait]]


class ToolAccounting(AccountingStore, Protocol):
    """Ledger and trust, and what of the registry their commands show."""

    async def registered(self) -> dict[str, tuple[str, int]]:
        """Return name and time of registration of every agent, by id."""
        ...


def reading_tasks(settings: Settings) -> Opened[TaskInspection]:
    """Open the tasks of a store to read them, also while servers use it."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.reading import reading_tasks as of_database

        return _entered(of_database(addresses))
    from dragoman.stores.sqlite.reading import reading_tasks as of_file

    return _at_once(of_file(settings.store_path()))


def inspecting(settings: Settings) -> Opened[HealthInspection]:
    """Look into a store: workers, receivers, what is left undone."""
    lease = settings.engine.lease
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.inspection import inspecting as of_database

        return _entered(of_database(addresses, lease))
    from dragoman.stores.sqlite.inspection import inspecting as of_file

    return _at_once(of_file(settings.store_path(), lease))


def database_facts(settings: Settings) -> "DatabaseFacts":
    """Return how the database is; raises `ConfigError` where it cannot be reached."""
    addresses = addresses_of(settings)
    from dragoman.stores.postgres.operating.health import database_facts as facts_of

    return asyncio.run(facts_of(addresses))


def accounting_of(settings: Settings) -> Opened[ToolAccounting]:
    """Open ledger and trust to read them as of one moment, also while gateways use them; raises
    `ConfigError` where no gateway has used the store."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.bookkeeping import accounting_database

        return _entered(accounting_database(addresses))
    from dragoman.stores.sqlite.ledger.accounting import accounting_file

    return _at_once(accounting_file(settings.store_path()))


def writable_accounting_of(settings: Settings) -> Opened[ToolAccounting]:
    """Open ledger and trust to change them."""
    if settings.is_postgres:
        return accounting_of(settings)
    from dragoman.stores.sqlite.ledger.accounting import writable_accounting_file

    return _at_once(writable_accounting_file(settings.store_path()))


def agent_keys_in(settings: Settings) -> Sequence[AgentKeyRow]:
    """Return the keys of agents in a store, in the order they were made; none if it has none."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.bookkeeping import keys_in_database

        return asyncio.run(keys_in_database(addresses))
    from dragoman.stores.sqlite.registry.agent_keys import keys_in_file

    path = settings.store_path()
    if settings.stores.location == "memory:" or not path.is_file():
        return []
    return keys_in_file(path)


def revoke_agent_key(settings: Settings, id: str, now: int) -> None:
    """End a key of an agent, also while a gateway works on the store."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.bookkeeping import revoke_in_database

        return asyncio.run(revoke_in_database(addresses, id, now))
    from dragoman.stores.sqlite.registry.agent_keys import revoke_in_file

    revoke_in_file(settings.store_path(), id, now)


def sealed_with(settings: Settings) -> list[bytes]:
    """Return the keys a store is sealed with, the one to seal with first."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.rotation import sealed_with as of_database

        return asyncio.run(of_database(addresses))
    from dragoman.stores.sqlite.rotation import sealed_with as of_file

    return of_file(settings.store_path())


def rotate(settings: Settings, sealing: Sealing, key: bytes) -> Rotated:
    """Seal everything with a key, then take the others off the list."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.rotation import rotate as in_database

        return asyncio.run(in_database(addresses, sealing, key))
    from dragoman.stores.sqlite.rotation import rotate as in_file

    return in_file(settings.store_path(), sealing, key)


def secret_of(settings: Settings, sealing: Sealing) -> bytes:
    """Return the secret of a store, also while servers use it; raises `ConfigError`."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.bookkeeping import secret_of as of_database

        return asyncio.run(of_database(addresses, sealing))
    from dragoman.stores.sqlite.seals import secret_of as of_file

    return of_file(settings.store_path(), sealing)


def inconsistencies(settings: Settings) -> list[Inconsistency]:
    """Return what in a store should not be, as of one moment; also while servers use it."""
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.operating.consistency import inconsistencies_of

        return asyncio.run(inconsistencies_of(addresses))
    from dragoman.stores.sqlite.files.consistency import inconsistencies_in

    return inconsistencies_in(settings.store_path())


def copy(
    source: Settings, target: Settings, progress: "Progress", *, anew: bool = False
) -> "Copied":
    """Copy a store into another one; raises `ConfigError` and `StoreRefused`."""
    from dragoman.stores.copying.copying import copy as copy_store

    async def work() -> "Copied":
        async with _reader(source) as reader, _writer(target) as writer:
            return await copy_store(reader, writer, progress, anew=anew)

    return asyncio.run(work())


def _reader(settings: Settings) -> "AbstractAsyncContextManager[CopySource]":
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.copying.databases import database_reader

        return database_reader(addresses)
    from dragoman.stores.copying.files import file_reader

    return file_reader(settings.store_path())


def _writer(settings: Settings) -> "AbstractAsyncContextManager[CopyTarget]":
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.copying.databases import database_writer

        return database_writer(addresses)
    from dragoman.stores.copying.files import file_writer

    return file_writer(settings.store_path())


@contextmanager
def _at_once(opening: AbstractContextManager[T]) -> Generator[tuple[T, Wait]]:
    """Open a file, of which nothing is waited for."""
    with opening as file:
        yield file, at_once


@contextmanager
def _entered(opening: AbstractAsyncContextManager[T]) -> Generator[tuple[T, Wait]]:
    """Open something on an event loop of its own."""
    with asyncio.Runner() as runner:
        opened = runner.run(opening.__aenter__())
        try:
            yield opened, runner.run
        finally:
            runner.run(opening.__aexit__(None, None, None))
