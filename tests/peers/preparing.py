"""Makes the environments of all peers, one after the other, in a process beside the tests.

In a fresh clone that takes minutes, most of them spent waiting for an installer; whoever needs an
environment before it is made waits for its lock, or makes it.
"""

import tempfile
from contextlib import suppress
from pathlib import Path

from proof.environments import EnvironmentFailed, node_with, python_with
from tests.peers.hosts import HOSTS
from tests.peers.libraries import CHAT_PROGRAM, PYTHON_DRIVERS, python_of

DRIVERS = Path(__file__).parent / "drivers"


def prepare() -> None:
    """Make what there is not. A failure is told by the test that needs the environment."""
    for library in PYTHON_DRIVERS:
        with suppress(EnvironmentFailed):
            python_of(library)
    with suppress(EnvironmentFailed):
        python_with(*CHAT_PROGRAM)
    with suppress(EnvironmentFailed):
        node_with(DRIVERS / "a2a_js" / "package.json")
    with tempfile.TemporaryDirectory() as folder:
        for start in HOSTS.values():
            with suppress(EnvironmentFailed):
                start(Path(folder))


if __name__ == "__main__":
    prepare()
