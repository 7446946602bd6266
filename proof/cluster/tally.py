"""What all sections of the proof found, together."""

import time
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from proof.cluster.neighbours import Moment, share_of_others
from proof.crash.checker import History, Verdict
from proof.results import Row

_TOLD = 20
# Characters of a reason that are told.
_REASON = 200
# The share of all processors that others use, above which times say little about us.
_CROWD = 0.2


class Moved(msgspec.Struct):
    """What became of a file, and what a caller noticed."""

    tasks: int
    rows: int
    copy_seconds: float
    # What the replicas told otherwise than the file did.
    differences: int
    # How often the reader of the stream connected again, for how long it saw nothing, and how many
    # events it missed or had twice.
    reconnects: int
    silence: float
    torn: int
    # Questions that waited, and those whose answer did not end their task as it should.
    questions: int
    unanswered: int

    def row(self) -> Row:
        """Return the promise."""
        figure = (
            f"{self.tasks:,} tasks ({self.rows:,} rows) copied in {self.copy_seconds:.1f} s, "
            f"{self.differences} differences; {self.reconnects} reconnect after "
            f"{self.silence:.0f} ms, {self.torn} events missing or doubled; {self.unanswered} of "
            f"{self.questions} questions not answered"
        )
        return Row(
            "A file moved to three replicas, one killed: callers notice but a reconnect",
            figure,
            not (self.differences or self.torn or self.unanswered) and self.reconnects == 1,
        )


class Tally:
    """Counts over all sections."""

    def __init__(self) -> None:
        self.acked = self.tasks = self.unknown = 0
        self.lost = self.doubled = self.hanging = self.gaps = self.changed = self.repeated = 0
        self.double_charges = self.unbalanced = self.charges = 0
        # How often each section did what it does, and for how long.
        self.done: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        # Milliseconds until another replica went on, by what was done to the first; and those seen
        # while other programs used the machine.
        self.takeovers: defaultdict[str, list[float]] = defaultdict(list)
        self.crowded: defaultdict[str, list[float]] = defaultdict(list)
        # Milliseconds of the longest silence a reader saw, by what was done to the listeners.
        self.lags: defaultdict[str, list[float]] = defaultdict(list)
        self.buried = 0
        self.promises = self.broken_promises = 0
        self.moved: Moved | None = None
        self.findings: list[str] = []
        # Why sections were not run to their end.
        self.unfinished: dict[str, str] = {}

    def find(self, fact: str) -> None:
        """Keep the facts of a violation, if they are among the first."""
        if len(self.findings) < _TOLD:
            self.findings.append(fact)

    def took_over(self, kind: str, taken: float, since: Moment) -> None:
        """Note how long a takeover took that began at a moment."""
        is_crowded = share_of_others(since) > _CROWD
        (self.crowded if is_crowded else self.takeovers)[kind].append(taken)

    def broke_off(self, section: str, error: BaseException) -> None:
        """Note that a section was not run to its end."""
        self.unfinished.setdefault(section, f"{type(error).__name__}: {error}"[:_REASON])

    def summary(self) -> str:
        """Return the counts as one line."""
        return (
            f"{self.acked:,} acknowledged, {self.lost} lost, {self.doubled} doubled, "
            f"{self.hanging} hanging, {self.gaps} gaps, {self.double_charges} double charges"
        )

    @contextmanager
    def timed(self, section: str) -> Generator[None]:
        """Count the time of a section."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[section] = round(self.seconds[section] + time.monotonic() - began, 1)

    def add(self, history: History, verdict: Verdict) -> None:
        """Add what the tasks of a database show."""
        self.acked += len(history.acked)
        self.tasks += verdict.tasks
        self.lost += verdict.lost
        self.doubled += verdict.doubled
        self.hanging += verdict.hanging
        self.changed += verdict.changed
        self.repeated += verdict.repeated
        self.gaps += verdict.gaps + verdict.torn
        for fact in verdict.findings:
            self.find(fact)
