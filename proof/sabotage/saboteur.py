"""Takes one guard out of the product as it runs: `python -m proof.sabotage.saboteur GUARD serve …`.

The product has no switch for any of this. Each removal replaces one function or one piece of SQL
in memory, and fails if what it is to remove is not there, so that a guard that moved is noticed.
"""

import asyncio
import contextlib
import runpy
import socket
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

from msgspec.structs import replace

from dragoman.egress import dial, egress
from dragoman.egress.dial import Dial
from dragoman.egress.targets import read_address
from dragoman.engine import lifecycle
from dragoman.engine.following import Following, LogPosition
from dragoman.engine.log import TaskLog
from dragoman.engine.recovery import Recovery
from dragoman.engine.running.replay import Replay
from dragoman.http.exchange import Flow
from dragoman.model.task import TaskState
from dragoman.push import receiver
from dragoman.push.posting import Posting
from dragoman.stores.sqlite import SQLiteStore, schema, store, writer
from dragoman.stores.sqlite.ledger import effects, task_orders
from dragoman.stores.sqlite.writer import Writer
from proof.sabotage.guards import (
    access,
    authors,
    disclosure,
    forwarding,
    intake,
    postgres,
    shares,
    store_files,
    suspects,
    upstreams,
)
from proof.sabotage.patches import Patches, Removal, edited

# What a disk takes for a commit when it is slow; the answer does not wait for it.
_SLOW_DISK = 0.05
_IN_SCOPE = "AND scope = ?"
_IS_COVERED = """,
    CHECK (held >= 0),
    CHECK (balance >= held OR kind IN ('issued', 'sold'))"""


@contextlib.contextmanager
def without(guard: str) -> Generator[None]:
    """Do without a guard in this process for a while; an empty name removes nothing."""
    patches = Patches()
    try:
        if guard:
            REMOVALS[guard](patches)
        yield
    finally:
        patches.take_back()


def _edit_query(patches: Patches, name: str, old: str, new: str) -> None:
    """Change one of the store's statements."""

    def make(queries: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
        changed = {name: edited(queries()[name], old, new)}
        return lambda: queries() | changed

    for module in (store, writer):
        patches.put(module, "queries", make)


def _sync(patches: Patches) -> None:
    def make(connect: Any) -> Any:
        def unsafe(*given: Any) -> Any:
            connection = connect(*given)
            schema.run(connection, "PRAGMA synchronous = off")
            return connection

        return unsafe

    patches.put(store, "connect", make)


def _acknowledgement(patches: Patches) -> None:
    """Tell that a write is durable, then make it so."""

    def make(commit: Any) -> Any:
        def early(self: Any, outcomes: list[Any]) -> Any:
            for done, error, number in outcomes:
                self._loop.call_soon_threadsafe(done, error, number)
            time.sleep(_SLOW_DISK)
            return [(_told, error, n) for _, error, n in commit(self, outcomes)]

        return early

    patches.put(Writer, "_committed", make)
    # The loop would tell nobody before its own commit is done.
    patches.put(Writer, "_may_commit_here", lambda _: _never)


def _never(*_: object) -> bool:
    return False


def _told(error: Exception | None, number: int) -> None:
    """The caller was answered before."""


def _fence(patches: Patches) -> None:
    _edit_query(patches, "append", "AND tasks.fence = j.value ->> 2", "")


def _place(patches: Patches) -> None:
    """Let a write go wherever its writer thinks the log ends, whatever is there."""
    _fence(patches)
    _edit_query(patches, "append", "AND tasks.last_seq = j.value ->> 1", "")
    _edit_query(patches, "insert_events", "INSERT", "INSERT OR REPLACE")


def _claim(patches: Patches) -> None:
    _edit_query(patches, "claim", "fence = fence + 1", "fence = fence")


def _takeover(patches: Patches) -> None:
    async def nothing(self: Any, agent: str, limit: int) -> list[Any]:
        return []

    patches.put(SQLiteStore, "claim", lambda _: nothing)


def _attempts(patches: Patches) -> None:
    def uncounted(self: Any, log: Any, replay: Any, held_by: int) -> None:
        return None

    patches.put(Recovery, "_count_attempt", lambda _: uncounted)


def _steps(patches: Patches) -> None:
    def make(recall: Any) -> Any:
        def forget(self: Any, kind: Any, name: str, place: int | None = None) -> Any:
            return recall(self, kind, name, place)[0], None

        return forget

    patches.put(Replay, "recall", make)


def _ends(patches: Patches) -> None:
    def make(apply: Any) -> Any:
        def go_on(self: lifecycle.Draft, event: Any) -> None:
            if self.state.is_terminal:
                self.state = TaskState.WORKING
            apply(self, event)

        return go_on

    patches.put(lifecycle.Draft, "apply", make)


def _edit_schema(patches: Patches, number: int, old: str, new: str) -> None:
    """Change what a migration makes."""

    def make(migrations: Any) -> Any:
        scripts = dict(migrations())
        scripts[number] = edited(scripts[number], old, new)
        return lambda: list(scripts.items())

    patches.put(schema, "migrations", make)


def _unique_keys(patches: Patches) -> None:
    _edit_schema(patches, 16, "UNIQUE INDEX keys_by_key", "INDEX keys_by_key")


def _edit_statement(patches: Patches, name: str, old: str, new: str = "") -> None:
    """Change a statement of the ledger."""
    for module in (effects, task_orders):
        patches.put(module, "LEDGER", lambda sql: sql | {name: edited(sql[name], old, new)})


def _hold(patches: Patches) -> None:
    """Reserve whatever is asked for; the file has no say in it either."""
    covered = "AND balance - held >= ?1"
    _edit_statement(patches, "reserve", covered)
    _edit_schema(patches, 4, _IS_COVERED, "")


def _settlement(patches: Patches) -> None:
    """Settle a task each time it ends: neither its order nor the file remembers that it did."""
    _edit_statement(patches, "open_order", "AND ended_at = 0")
    _edit_statement(patches, "set_order", "held = ?7,", "held = max(held, ?7),")
    _edit_schema(patches, 4, _IS_COVERED, "")
    _edit_schema(patches, 4, "UNIQUE INDEX transfers_by_id", "INDEX transfers_by_id")


def _kept_keys(patches: Patches) -> None:
    def unused(self: Any, key: bytes) -> None:
        return None

    patches.put(TaskLog, "use_key", lambda _: unused)


def _position(patches: Patches) -> None:
    """Go on with the event a reader has seen, and not with the one after it."""

    def make(stream: Any) -> Any:
        def again(self: Any, position: LogPosition, call: Any, log: Any) -> Any:
            earlier = replace(position, after=position.after - 1)
            return stream(self, earlier, call, log)

        return again

    patches.put(Following, "stream", make)


def _tenant(patches: Patches) -> None:
    _edit_query(patches, "head", _IN_SCOPE, "AND ? IS NOT NULL")
    _edit_query(patches, "at_rest", _IN_SCOPE, "AND ? IS NOT NULL")


def _cursor(patches: Patches) -> None:
    """Say that an event is dealt with before it is posted."""

    def make(attempt: Any) -> Any:
        async def settle_first(self: Any, recorded: Any) -> Any:
            await self._settle(replace(self.push, cursor=recorded.seq))
            return await attempt(self, recorded)

        return settle_first

    patches.put(Posting, "_try", make)


def _timestamp(patches: Patches) -> None:
    patches.put(receiver, "TOLERANCE", lambda _: float("inf"))


def _redirects(patches: Patches) -> None:
    def make(ask: Any) -> Any:
        async def follow(self: Any, method: str, target: Any, *more: Any) -> Any:
            answer = await ask(self, method, target, *more)
            if answer.status in egress.REDIRECTS:
                target = self._following(target, answer.headers["location"])
                answer = await ask(self, method, target, *more)
            return answer

        return follow

    patches.put(egress.Egress, "_ask", make)


def _addresses(patches: Patches) -> None:
    def unchecked(self: Any, address: Any) -> None:
        return None

    patches.put(Dial, "check", lambda _: unchecked)


def _pinning(patches: Patches) -> None:
    """Ask for the addresses once more after they were checked, and dial what comes then."""

    def make(addresses: Any) -> Any:
        async def twice(self: Any, resolve: Any) -> Any:
            await addresses(self, resolve)
            return [read_address(text) for text in await resolve(self.target.host)]

        return twice

    def unchecked(self: Any, address: Any) -> socket.socket:
        place = (str(address), self.target.port)
        return dial.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", place))

    patches.put(Dial, "addresses", make)
    patches.put(Dial, "socket_to", lambda _: unchecked)


def _flow(patches: Patches) -> None:
    async def drain(self: Any) -> None:
        await asyncio.sleep(0)

    patches.put(Flow, "drain", lambda _: drain)


def _pace(patches: Patches) -> None:
    patches.put(TaskLog, "is_full", lambda _: property(lambda self: False))


REMOVALS: dict[str, Removal] = {
    "sync": _sync,
    "acknowledgement": _acknowledgement,
    "fence": _fence,
    "place": _place,
    "claim": _claim,
    "takeover": _takeover,
    "attempts": _attempts,
    "steps": _steps,
    "ends": _ends,
    "unique keys": _unique_keys,
    "kept keys": _kept_keys,
    "position": _position,
    "tenant": _tenant,
    "cursor": _cursor,
    "timestamp": _timestamp,
    "redirects": _redirects,
    "addresses": _addresses,
    "pinning": _pinning,
    "flow": _flow,
    "pace": _pace,
    "hold": _hold,
    "settlement": _settlement,
    **access.REMOVALS,
    **intake.REMOVALS,
    **shares.REMOVALS,
    **disclosure.REMOVALS,
    **authors.REMOVALS,
    **suspects.REMOVALS,
    **upstreams.REMOVALS,
    **forwarding.REMOVALS,
    **store_files.REMOVALS,
    **postgres.REMOVALS,
}


def main() -> None:
    """Remove a guard, then run the ordinary command."""
    guard, *words = sys.argv[1:]
    REMOVALS[guard](Patches())
    sys.argv = ["dragoman", *words]
    runpy.run_module("dragoman", run_name="__main__")


if __name__ == "__main__":
    main()
