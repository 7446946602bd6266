"""The time that all workers of a store have in common, however wrong the clock of a machine is."""

from dragoman.model.clock import SystemClock
from dragoman.stores.interface import Leases


class StoreClock(SystemClock):
    """The time of this machine, set right by the store's."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return super().now() + self._leases.clock_offset

    def seconds(self) -> float:
        """Return seconds since the epoch."""
        return self.now() / 1000
