"""Gateways that die at a named step of a trigger's run: `python -m proof.gateway.mortal_gateway`.

It is told on stdin what to run and forks a process for it, one after the other: loading everything
anew for each of hundreds would take most of a proof's time. The process is the ordinary
`dragoman gateway`, with its real store; only the clock of triggers is a fast one, and what triggers
use tells which step it is at.
"""

import asyncio
import importlib
import os
import random
import signal
import sys
import threading
import time
from typing import Any, Literal

import msgspec

from dragoman.gateway import app
from dragoman.gateway.triggers import triggers
from dragoman.gateway.triggers.triggers import Triggers
from dragoman.model.clock import SystemClock

# How much faster time passes for triggers: a minute, the shortest time of a schedule, is half a
# second. Faster, a busy machine would not keep up, and a step not be reached.
SPEED = 120
# Seconds in which a process dies that dies during a step.
_DURING = 0.004
Moment = Literal["before", "during", "after"]


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process: what is run, and where it dies."""

    words: list[str]
    environment: dict[str, str]
    # When the run began, in milliseconds since the epoch.
    epoch: int
    # What triggers ask of store and engine, at which moment, and at which time of asking; an empty
    # name: nowhere.
    asked: str = ""
    moment: Moment = "before"
    count: int = 1


class FastClock(SystemClock):
    """A clock that shows the same to all processes of a run, and runs fast."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return self._epoch + (super().now() - self._epoch) * SPEED

    async def wait_until(self, at: int) -> None:
        """Return when that time has come."""
        while (left := at - self.now()) > 0:  # noqa: ASYNC110 - as the system's clock does
            await asyncio.sleep(left / 1000 / SPEED)


class _Death:
    """Ends the process at a step."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._left = life.count

    def reach(self, asked: str, moment: Moment) -> None:
        """A step is reached."""
        if (asked, moment) != (self._life.asked, self._life.moment):
            return
        self._left -= 1
        if self._left:
            return
        if moment != "during":
            _die()
        # In a thread: the loop may wait for the store meanwhile, or not.
        threading.Thread(target=_die, args=(random.uniform(0, _DURING),), daemon=True).start()


def _die(after: float = 0.0) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


class _Stepped:
    """A part that triggers use, which tells of every step."""

    def __init__(self, part: Any, death: _Death, names: set[str]) -> None:
        self._part = part
        self._death = death
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name == "triggers":
            return _Stepped(found, self._death, self._names)
        if name not in self._names:
            return found

        async def step(*given: Any) -> Any:
            self._death.reach(name, "before")
            self._death.reach(name, "during")
            answer = await found(*given)
            self._death.reach(name, "after")
            return answer

        return step


def _live(life: Life) -> None:
    """Be a gateway until it dies."""
    from dragoman.cli.main import main

    death = _Death(life)

    def make(store: Any, find_agent: Any, service: Any, settings: Any, clock: Any) -> Triggers:
        stepped = _Stepped(store, death, {"lead", "due", "change"})
        asked: Any = _Stepped(service, death, {"answer"})
        given: Any = stepped
        return Triggers(given, find_agent, asked, settings, FastClock(life.epoch))

    setattr(app, "Triggers", make)  # noqa: B010 - the product has no switch for this
    triggers.TICK = 50 * SPEED
    os.environ.clear()
    os.environ.update(life.environment)
    random.seed()
    main(life.words)


def run() -> None:
    """Run what arrives on stdin, one after the other, until it ends."""
    for name in ("cli.serving.up", "stores.postgres.gateway", "stores.sqlite.gateway"):
        importlib.import_module(f"dragoman.{name}")
    decode = msgspec.json.Decoder(Life).decode
    for line in sys.stdin.buffer:
        life = decode(line)
        pid = os.fork()
        if not pid:
            try:
                _live(life)
            finally:
                os._exit(1)
        print(f"Began: {pid}", flush=True)
        _, status = os.waitpid(pid, 0)
        print(f"Ended: {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    run()
