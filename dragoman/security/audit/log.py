"""The audit log: who was refused, what operators did, which keys and cards changed.

It never holds up a request and never fails one: lines wait in a bounded queue for one thread that
writes them, and what did not fit is counted and told. Equal refusals within a second are one line
with their number, so that refused callers decide neither the size of the log nor its pace.
What the chain of hashes shows, and what it cannot, is in `chain.py`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.security.audit.chain import LONGEST_TEXT, AuditEntry, timestamp
from dragoman.security.audit.file import KEEP, MAX_BYTES, AuditFile
from dragoman.security.secret_text import hidden_text

logger = logging.getLogger("dragoman")

DENIED = "denied"
CARD_CHANGED = "card.changed"

# Seconds in which equal refusals are one line. How many different ones of one act, and of these
# from one address, have a line of their own in that time: the others of an address are counted
# together, and if there are too many addresses, all others.
TOGETHER = 1.0
MOST_HELD = 40
MOST_OF_ONE = 10
MOST_WAITING = 4096
_MANY_KINDS = "of many kinds"
_MANY_ADDRESSES = "of many kinds, from many addresses"
# What refusals have in common that are one line: act, who, reason and address.
_Kind = tuple[str, str, str, str]
_BATCH = 256
_STOP_WITHIN = 2.0
_TRY_AGAIN_AFTER = 1.0
_TELL_EVERY = 60.0


class Audit:
    """Where acts are recorded. This one forgets them, as `NoAudit` does."""

    # Lines that could not be kept, since the start.
    lost: int = 0

    def record(
        self,
        act: str,
        *,
        outcome: str,
        who: str = "",
        object: str = "",
        reason: str = "",
        address: str = "",
        trace: str = "",
        count: int = 1,
    ) -> None:
        """Record an act. Neither waits nor raises. No text may hold a credential or what a
        message says."""

    def card(self, agent: str, digest: str) -> None:
        """Record the card of an agent, unless it is the one that was last recorded."""

    def start(self) -> None:
        """Begin to write; raises `ConfigError` for a file that cannot be written."""

    def stop(self, timeout: float = _STOP_WITHIN) -> None:
        """Write what waits, for so many seconds at most."""


class NoAudit(Audit):
    """Records nothing."""


class AuditLog(Audit):
    """Records acts in a file, which other processes may write to as well."""

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        most_waiting: int = MOST_WAITING,
        now: Callable[[], float] = time.time,
    ) -> None:
        # Whole: the code of an agent may change the current folder.
        self.path = Path(path).expanduser().absolute()
        self.lost = 0
        self._file = AuditFile(self.path, max_bytes=max_bytes, keep=keep)
        self._most_waiting = most_waiting
        self._now = now
        # Held for as long as it takes to move a line, never while one is written.
        self._lock = threading.Lock()
        self._waiting: deque[AuditEntry] = deque()
        self._cards: dict[str, AuditEntry] = {}
        # Refusals that may have equals, with the time of the first.
        self._held_refusals: dict[_Kind, tuple[float, AuditEntry]] = {}
        self._untold = 0
        self._told_at = float("-inf")
        self._wake = threading.Event()
        self._is_stopping = False
        self._gave_up = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "AuditLog":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def record(
        self,
        act: str,
        *,
        outcome: str,
        who: str = "",
        object: str = "",
        reason: str = "",
        address: str = "",
        trace: str = "",
        count: int = 1,
    ) -> None:
        """Record an act. Neither waits nor raises. No text may hold a credential or what a
        message says.

        Refusals (outcome `denied`) of one act, `who`, reason and address within a second are one
        line: with the `object` and `trace` of the first, and the number of all.
        """
        try:
            now = self._now()
            if outcome == DENIED and self._is_equal((act, who, reason, address), now, count):
                return
            shown_texts = [hidden_text(text, "***") for text in (who, object, reason)]
            texts = [_cut(text) for text in (act, outcome, *shown_texts, address, trace)]
            entry = AuditEntry(timestamp(now), *texts, count=count)
            with self._lock:
                if outcome == DENIED:
                    is_more = self._hold(entry, now)
                else:
                    is_more = self._queue(entry)
            if is_more:
                self._wake.set()
        except Exception:
            # Any error: a log must not decide who is let in.
            self.lost += 1
            self._tell("an act could not be recorded", exc_info=True)

    def card(self, agent: str, digest: str) -> None:
        """Record the card of an agent, unless it is the one that was last recorded."""
        entry = AuditEntry(
            timestamp(self._now()), CARD_CHANGED, "served", "", _cut(agent), _cut(digest)
        )
        with self._lock:
            self._cards[entry.object] = entry
        self._wake.set()

    def start(self) -> None:
        """Begin to write; raises `ConfigError` for a file that cannot be written."""
        try:
            # Leaves a word of what a crash left unfinished, if it did.
            self._file.append([])
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no such path"
            raise ConfigError(
                f"audit: {self.path} cannot be written ({reason}); name another file, or off"
            ) from None
        self._is_stopping = False
        self._gave_up.clear()
        self._thread = threading.Thread(target=self._work, name="dragoman-audit", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = _STOP_WITHIN) -> None:
        """Write what waits, for so many seconds at most; blocks for as long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_stopping = True
        self._wake.set()
        thread.join(timeout)
        self._gave_up.set()
        if thread.is_alive():
            waiting = len(self._waiting) + len(self._held_refusals)
            logger.error("audit: %d lines or more were not written to %s", waiting, self.path)

    def _is_equal(self, key: _Kind, now: float, count: int) -> bool:
        """Count a refusal that is like one of this second: what a flood of them costs."""
        with self._lock:
            found = self._held_refusals.get(key)
            if found is None or not 0 <= now - found[0] < TOGETHER:
                return False
            found[1].count += count
            return True

    # Under the lock

    def _hold(self, entry: AuditEntry, now: float) -> bool:
        key = (entry.act, entry.who, entry.reason, entry.address)
        if key not in self._held_refusals:
            # By act: callers without a name can invent many, and must not crowd out known ones.
            of_act = [held for held in self._held_refusals if held[0] == entry.act]
            of_one = sum(held[3] == entry.address for held in of_act)
            if of_one >= MOST_OF_ONE or len(of_act) >= MOST_HELD:
                entry.who = entry.object = entry.trace = ""
                entry.reason = _MANY_KINDS
                key = (entry.act, "", _MANY_KINDS, entry.address)
            if key not in self._held_refusals and len(of_act) >= MOST_HELD:
                entry.reason, entry.address = _MANY_ADDRESSES, ""
                key = (entry.act, "", _MANY_ADDRESSES, "")
        found = self._held_refusals.get(key)
        if found is not None:
            since, first = found
            if 0 <= now - since < TOGETHER:
                first.count += entry.count
                return False
            self._queue(first)
        self._held_refusals[key] = (now, entry)
        return True

    def _queue(self, entry: AuditEntry) -> bool:
        if len(self._waiting) >= self._most_waiting:
            self.lost += entry.count
            self._untold += entry.count
            return False
        self._waiting.append(entry)
        return True

    # In the thread

    def _work(self) -> None:
        while True:
            self._wake.wait(TOGETHER if self._held_refusals else None)
            self._wake.clear()
            while batch := self._next():
                entries, cards, untold = batch
                if not self._write(entries, cards, untold):
                    # What comes meanwhile waits, as far as there is room.
                    self._gave_up.wait(0.05 if self._is_stopping else _TRY_AGAIN_AFTER)
                if self._gave_up.is_set():
                    return
            if self._is_stopping:
                return

    def _next(self) -> tuple[list[AuditEntry], list[AuditEntry], int] | None:
        """Return what is to be written; it stays where it is until it is."""
        with self._lock:
            now = self._now()
            for key, (since, entry) in list(self._held_refusals.items()):
                if self._is_stopping or not 0 <= now - since < TOGETHER:
                    del self._held_refusals[key]
                    self._queue(entry)
            entries = [entry for entry, _ in zip(self._waiting, range(_BATCH), strict=False)]
            cards, untold = list(self._cards.values()), self._untold
        return (entries, cards, untold) if entries or cards or untold else None

    def _write(self, entries: list[AuditEntry], cards: list[AuditEntry], untold: int) -> bool:
        lines = list(entries)
        if untold:
            reason = "more acts at once than could be written"
            at = timestamp(self._now())
            lines.append(AuditEntry(at, "audit.lost", "lost", reason=reason, count=untold))
        try:
            self._file.append(lines, cards)
        except Exception as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            self._tell(f"{self.path} cannot be written ({reason}); {len(self._waiting)} lines wait")
            return False
        with self._lock:
            for _ in entries:
                self._waiting.popleft()
            for entry in cards:
                if self._cards.get(entry.object) is entry:
                    del self._cards[entry.object]
            self._untold -= untold
        return True

    def _tell(self, problem: str, *, exc_info: bool = False) -> None:
        if time.monotonic() - self._told_at >= _TELL_EVERY:
            self._told_at = time.monotonic()
            logger.error("audit: %s", problem, exc_info=exc_info)


def _cut(text: str) -> str:
    """Return a text that a line can hold; half a character is no text."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= LONGEST_TEXT else whole[: LONGEST_TEXT - 1] + "…"
