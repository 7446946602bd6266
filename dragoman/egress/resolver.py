"""From a name to its addresses, in threads of their own.

The system's resolver blocks, for as long as the name server likes. So look-ups share no thread with
other work, requests for one name share one look-up, and names that were found last time have
threads that no other name can hold.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

THREADS = 64
# A quarter is for names that were found last time.
_RESERVED = THREADS // 4
# How many names are remembered; a forgotten one waits with the unknown once more.
_MAX_KNOWN = 10_000


class _Search:
    """A look-up and how many wait for it."""

    def __init__(self, found: asyncio.Future[Sequence[str]]) -> None:
        self.found = found
        self.waiting = 0


class Names:
    """Looks names up as the system does."""

    def __init__(self, look_up: Callable[[str], Sequence[str]] | None = None) -> None:
        self._look_up = look_up or addresses_of
        self._for_known: ThreadPoolExecutor | None = None
        self._for_others: ThreadPoolExecutor | None = None
        self._known_hosts: dict[str, None] = {}
        self._searches: dict[str, _Search] = {}

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a name. Nothing is kept: the next one to ask asks anew."""
        search = self._searches.get(host)
        if search is None:
            search = self._searches[host] = self._begin(host)
        search.waiting += 1
        try:
            found = await asyncio.shield(search.found)
        except BaseException:
            # Also for lack of time: a slow name does not keep its privilege.
            self._known_hosts.pop(host, None)
            raise
        finally:
            search.waiting -= 1
            if not search.waiting:
                # No request waits any more; a look-up that still queues for a thread is dropped.
                search.found.cancel()
                if self._searches.get(host) is search:
                    del self._searches[host]
        self._known_hosts[host] = None
        if len(self._known_hosts) > _MAX_KNOWN:
            del self._known_hosts[next(iter(self._known_hosts))]
        return found

    def close(self) -> None:
        """Let the threads go, without waiting for names that are slow; a later look-up opens
        anew."""
        for pool in (self._for_known, self._for_others):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self._for_known = self._for_others = None

    def _begin(self, host: str) -> _Search:
        if self._for_known is None or self._for_others is None:
            self._for_known = ThreadPoolExecutor(_RESERVED, "known-names")
            self._for_others = ThreadPoolExecutor(THREADS - _RESERVED, "names")
        pool = self._for_known if host in self._known_hosts else self._for_others
        return _Search(asyncio.get_running_loop().run_in_executor(pool, self._look_up, host))


def addresses_of(host: str) -> list[str]:
    """Return the addresses of a name; blocks."""
    found = socket.getaddrinfo(
        host, None, type=socket.SOCK_STREAM, flags=socket.AddressInfo.AI_ADDRCONFIG
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
