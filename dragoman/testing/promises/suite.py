"""What the suites of one store share: how another worker comes to the same data."""

from dragoman.stores.interface import Store
from dragoman.stores.interface.gateway import GatewayStore


class StoreSuite:
    """Tests that take an open, empty store from a fixture `store`."""

    async def successor(self, store: Store) -> Store:
        """Return another open worker on the same data, for which the first one's lease has ended
        although it let nothing go. It may be the same object, under another number."""
        raise NotImplementedError


class GatewayStoreSuite:
    """Tests that take an open, empty store of a gateway from a fixture `store`."""

    async def successor(self, store: GatewayStore) -> GatewayStore:
        """Return another open worker on the same data; it may be the same object."""
        raise NotImplementedError
