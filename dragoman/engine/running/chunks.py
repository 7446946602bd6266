"""Holds back the latest chunk of an artifact, so that the last one says itself that it is the last.

Some readers look at the last chunk alone, and an empty one tells them nothing. A chunk waits for
the next one, for the end of its artifact, or for `HOLD_FOR`, whichever comes first: then nothing
about it can be changed any more. What is held is not recorded; code that runs again makes it again.
"""

import asyncio
from collections.abc import Callable

import msgspec

from dragoman.model.events import ArtifactUpdate

# Seconds that a reader waits at most for a chunk that may be the last one.
HOLD_FOR = 0.05
# Artifacts that code writes at once with a chunk held back for each.
MAX_HELD = 8


class HeldChunks:
    """The latest chunks of the artifacts that a task's code is writing."""

    def __init__(
        self,
        record: Callable[[ArtifactUpdate], object],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` gets what recording raised in a timer, where no author code can catch it."""
        self._record = record
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        # By artifact: the chunk, and when it has waited long enough by the clock of the loop.
        self._held_chunks: dict[str, tuple[ArtifactUpdate, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # How much of the code waits for its turn: what it held back is part of what it does then.
        self._waiting = 0

    def put(self, chunk: ArtifactUpdate) -> None:
        """Hold a chunk back in place of the one before it."""
        artifact_id = chunk.artifact.artifact_id
        held = self._held_chunks
        if len(held) == 1 and artifact_id in held:
            # Most artifacts are written alone. Their timer is set, or the code waits for its turn.
            self._record(held.pop(artifact_id)[0])
            held[artifact_id] = chunk, self._loop.time() + HOLD_FOR
            return
        if held:
            self.release(artifact_id)
            if len(held) >= MAX_HELD:
                self._release_one(next(iter(held)))
        due = self._loop.time() + HOLD_FOR
        held[artifact_id] = chunk, due
        # One timer for many chunks: it looks again for those that came after it was set.
        if self._timer is None and not self._waiting:
            self._timer = self._loop.call_at(due, self._time_is_over)

    def pause(self) -> None:
        """Stop the time: the code waits for the disk, or for its turn beside others."""
        self._waiting += 1
        self._stop_timer()

    def resume(self) -> None:
        """Let the time begin anew."""
        self._waiting -= 1
        if self._held_chunks and self._timer is None and not self._waiting:
            due = self._loop.time() + HOLD_FOR
            for name, (chunk, _) in self._held_chunks.items():
                self._held_chunks[name] = chunk, due
            self._timer = self._loop.call_at(due, self._time_is_over)

    def close(self, artifact_id: str) -> bool:
        """Record the chunk that is held as the artifact's last; False: it is out already."""
        found = self._held_chunks.pop(artifact_id, None)
        if found is None:
            return False
        self._rest()
        self._record(msgspec.structs.replace(found[0], last_chunk=True))
        return True

    def release(self, artifact_id: str = "") -> None:
        """Record what is held, in its order: something comes that is shown after it. Beside another
        artifact only what begins one has to be out, which keeps the artifacts in their order."""
        for name, (chunk, _) in list(self._held_chunks.items()):
            if not artifact_id or name == artifact_id or not chunk.append:
                self._release_one(name)
        self._rest()

    def drop(self) -> None:
        """Let go of what is held: nothing more is recorded here."""
        self._held_chunks.clear()
        self._rest()

    def _release_one(self, name: str) -> None:
        found = self._held_chunks.pop(name, None)
        if found is not None:
            self._record(found[0])

    def _rest(self) -> None:
        if not self._held_chunks:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            for name, (_, due) in list(self._held_chunks.items()):
                if due <= now:
                    self._release_one(name)
        except BaseException as error:
            # Called by the event loop, where no caller would see it: the task fails by it.
            self.drop()
            self._fail(error)
        if self._held_chunks:
            next_due = min(due for _, due in self._held_chunks.values())
            self._timer = self._loop.call_at(next_due, self._time_is_over)
