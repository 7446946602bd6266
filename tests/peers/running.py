"""The servers of peers that a run needs, each started once, and a script against one of them."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from dragoman import Client
from dragoman.testing.processes import CannotStart
from proof.environments import EnvironmentFailed
from tests.peers.hosts import hosting
from tests.peers.scripts import SCRIPTS, Connect
from tests.peers.sides import Side, gap_of

# Some take seconds of a processor to import themselves.
STARTING_AT_ONCE = 4
# A script that hangs is a failure of its own, not of the whole run.
SCRIPT_WITHIN = 60.0


class Hosts:
    """The servers of this run, started side by side: some take seconds to import themselves."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder, self.pool = folder, pool
        self.running = ExitStack()
        self.starting: dict[str, Future[str]] = {}

    def start(self, name: str) -> None:
        if name not in self.starting:
            self.starting[name] = self.pool.submit(self.started, name)

    def started(self, name: str) -> str:
        folder = self.folder / name
        folder.mkdir()
        return self.running.enter_context(hosting(name, folder))

    def address(self, name: str) -> str:
        self.start(name)
        try:
            return self.starting[name].result()
        except (CannotStart, EnvironmentFailed) as error:
            pytest.fail(str(error), pytrace=False)


@contextmanager
def running(folder: Path, names: Iterable[str]) -> Iterator[Hosts]:
    """Start the named servers, a few side by side; others start when they are asked for."""
    with ThreadPoolExecutor(STARTING_AT_ONCE) as pool:
        hosts = Hosts(folder, pool)
        for name in names:
            hosts.start(name)
        yield hosts
    # All that were started are up or have failed by now.
    hosts.running.close()


def wanted(request: pytest.FixtureRequest, sides: Iterable[Side]) -> list[str]:
    """Return the servers that the selected cases of a file need, in order."""
    params = [
        getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items
    ]
    asked = {one.host for each in params if isinstance(one := each.get("side"), Side)}
    return [name for name in dict.fromkeys(side.host for side in sides) if name in asked]


def client(side: Side, ref: str | Path, **more: Any) -> Client:
    """Return a client that speaks as the side says."""
    given: dict[str, Any] = {"version": side.version, "bindings": [side.binding]}
    return Client(ref, **(given | more))


async def played(side: Side, script: str, connect: Connect) -> None:
    """Run a script; where the side has a gap, our client says what stands there."""
    gap = gap_of(side, script)
    with anyio.fail_after(SCRIPT_WITHIN):
        if gap is None:
            await SCRIPTS[script](connect)
        else:
            assert gap.raises
            with pytest.raises(gap.raises):
                await SCRIPTS[script](connect)
