"""Stores of a gateway on one database, as its replicas would open them."""

from collections.abc import Awaitable, Callable

from dragoman.stores.postgres.gateway import PostgresGatewayStore

Opening = Callable[[], Awaitable[PostgresGatewayStore]]
