"""The limits of one service that its replicas count together."""

from dragoman.config.formats import Rate
from dragoman.http.rates import Bucketing, Rates
from dragoman.http.sharing.drawing import Drawer
from dragoman.http.sharing.shared_buckets import SharedBuckets
from dragoman.http.sharing.shared_seats import SharedSeats
from dragoman.stores.interface.limits import SharedLimits


class SharedRates(Rates):
    """Makes buckets of which all replicas take."""

    is_shared = True

    def __init__(self, limits: SharedLimits, service: str) -> None:
        """Other services of the same store have other limits."""
        self._drawer = Drawer(limits)
        self._service = service
        self._made: list[SharedBuckets | SharedSeats] = []

    def buckets(self, name: str, rate: Rate) -> Bucketing:
        """Return the buckets of a limit."""
        made = SharedBuckets(f"{self._service}: {name}", rate, self._drawer)
        self._made.append(made)
        return made

    def seats(self, name: str, most: int) -> SharedSeats:
        """Return the counts of something of which a caller may have so many at once."""
        made = SharedSeats(f"{self._service}: {name}", most, self._drawer)
        self._made.append(made)
        return made

    async def close(self) -> None:
        """Give back what is not used; another replica may need it."""
        for made in self._made:
            made.close()
        await self._drawer.close()
