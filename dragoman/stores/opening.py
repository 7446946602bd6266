"""Which store the settings ask for: the one place that picks an implementation.

Each store is loaded only where it is asked for, and what a gateway keeps only for a gateway.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.stores.interface import Sealing, Store

if TYPE_CHECKING:
    from dragoman.stores.interface.effects import OrderRules
    from dragoman.stores.interface.gateway import GatewayStore
    from dragoman.stores.postgres import Addresses
    from dragoman.stores.sqlite import SQLiteStore
    from dragoman.stores.sqlite.store import TaskOrderWrites

T = TypeVar("T", bound="SQLiteStore")
# How the settings have secrets sealed.
SealingOf = Callable[[Settings], Sealing]


def store_of(settings: Settings, sealing_of: SealingOf) -> Store:
    """Return the store of agents, not open yet."""
    if settings.stores.location == "memory:":
        from dragoman.stores.memory import MemoryStore

        return MemoryStore()
    if settings.is_postgres:
        return _database(
            settings, sealing_of, settings.engine.lease, is_read_only=settings.stores.read_only
        )
    from dragoman.stores.sqlite import SQLiteStore

    return _file(SQLiteStore, settings, sealing_of)


def gateway_store_of(
    settings: Settings, sealing_of: SealingOf, rules: "OrderRules"
) -> "GatewayStore":
    """Return the store of a gateway, not open yet: tasks, registry and ledger in one file."""
    if settings.stores.location == "memory:":
        raise ConfigError("store: a gateway keeps agents and a ledger; name a file for them")
    if settings.is_postgres:
        addresses = addresses_of(settings)
        from dragoman.stores.postgres.gateway import PostgresGatewayStore

        return PostgresGatewayStore(
            addresses,
            rules,
            lease=settings.engine.lease,
            sealing=sealing_of(settings),
            makes_folder=settings.has_own_folder,
            bus=settings.stores.bus,
            is_read_only=settings.stores.read_only,
        )
    from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
    from dragoman.stores.sqlite.ledger.task_orders import TaskOrders

    return _file(SQLiteGatewayStore, settings, sealing_of, TaskOrders(rules))


def tool_store_of(settings: Settings, sealing_of: SealingOf) -> Store:
    """Return the store of a command that writes for a moment: it refuses a path without a file, and
    has the default lease."""
    if settings.is_postgres:
        return _database(settings, sealing_of)
    from dragoman.stores.sqlite import SQLiteStore
    from dragoman.stores.sqlite.files.opening import check_present

    check_present(settings.store_path())
    return SQLiteStore(settings.store_path(), sealing=sealing_of(settings))


def addresses_of(settings: Settings) -> "Addresses":
    """Return where the database is; raises `ConfigError` where its driver is not installed."""
    try:
        from dragoman.stores.postgres import Addresses
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(
            "store: PostgreSQL needs the extra: pip install 'dragoman[postgres]'",
            remedy="pip install 'dragoman[postgres]'",
        ) from None
    return Addresses(settings.stores.location, settings.stores.session_url)


def _database(
    settings: Settings, sealing_of: SealingOf, lease: float = 30.0, *, is_read_only: bool = False
) -> Store:
    addresses = addresses_of(settings)
    from dragoman.stores.postgres import PostgresStore

    return PostgresStore(
        addresses,
        lease=lease,
        sealing=sealing_of(settings),
        makes_folder=settings.has_own_folder,
        bus=settings.stores.bus,
        is_read_only=is_read_only,
    )


def _file(
    kind: "type[T]",
    settings: Settings,
    sealing_of: SealingOf,
    orders: "TaskOrderWrites | None" = None,
) -> T:
    return kind(
        settings.store_path(),
        lease=settings.engine.lease,
        synchronous=settings.stores.synchronous,
        sealing=sealing_of(settings),
        orders=orders,
        makes_folder=settings.has_own_folder,
        is_new=settings.stores.new_store,
        is_read_only=settings.stores.read_only,
    )
