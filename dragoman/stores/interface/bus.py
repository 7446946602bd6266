"""Wake-ups between workers. A lost one costs latency, never an event."""

from collections.abc import Callable
from typing import Protocol

import msgspec


class Rung(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What another worker wrote, as far as the store can tell. An earlier release passes over a
    field that a later one adds."""

    # Numbers of tasks whose logs grew, and of tasks for whose holders a note was left.
    tasks: tuple[int, ...] = ()
    noted: tuple[int, ...] = ()
    # Whether tasks may be there that no living worker holds.
    freed: bool = False
    # The latest version of the registry, of the keys of agents and of what is known of trust, each
    # if it changed.
    agents: int = 0
    agent_keys: int = 0
    trust: int = 0
    # Addresses for posts of remote agents that had a post, as a gateway names them.
    posted: tuple[str, ...] = ()


Heard = Callable[[Rung | None], None]


class Bus(Protocol):
    """Tells a worker that another one wrote."""

    def listen(self, heard: Heard) -> None:
        """Have a function called whenever another worker may have written; None: the store cannot
        tell what, so the listener looks at everything it follows. A ring may be late by a fraction
        of a second. `Rung.freed` is told to the worker that found it out, too."""
        ...

    def ring(self, rung: Rung) -> None:
        """Tell the other workers; call it after the commit. Rings of one moment go together."""
        ...
