"""The lines of the audit log: each names the hash of the one before, so that none can be changed,
taken out, put in or moved without the next one telling.

A line is one JSON object in ASCII. Its hash is the SHA-256 of its own bytes without the last
member, which is the hash itself. What a chain cannot show by itself is that its end was cut off,
or that all of it was written anew: for that, its last hash has to be kept somewhere else.
"""

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta

from dragoman.model.patterns import late_pattern

# What stands before the first line of all.
NOTHING = "0" * 64
# No text of a line is longer, so a line is not either, whatever it takes to escape it.
LONGEST_TEXT = 512
LONGEST_LINE = 64 * 1024
# Remains of a write that a power cut ended: no more than one write has.
LARGEST_REMAINS = 1024 * 1024
# A line whose object is the hash of the unfinished one before it.
TORN = "audit.torn"

_END = late_pattern(rb',"hash":"([0-9a-f]{64})"\}')
# Blocks that were never written read as zeros, and no line has any.
_HOLE = b"\0" * 512

Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class AuditEntry(msgspec.Struct):
    """What happened, before it has its place in the chain."""

    time: str
    act: str
    outcome: str
    who: str = ""
    object: str = ""
    reason: str = ""
    address: str = ""
    trace: str = ""
    count: int = 1


class AuditLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that happened, in its place."""

    seq: Annotated[int, Meta(ge=1)]
    time: str
    act: str
    outcome: str
    who: str
    object: str
    reason: str
    address: str
    trace: str
    count: int
    prev: Hash
    hash: Hash


class ChainProblem(msgspec.Struct, frozen=True):
    """Where a chain is broken, and how."""

    file: str
    line: int
    what: str


class ChainReport(msgspec.Struct):
    """What a walk along the chain found."""

    lines: int = 0
    first_seq: int = 0
    first_at: str = ""
    last_at: str = ""
    # The hash before the first line: not `NOTHING` where earlier files are gone.
    prev: str = ""
    # The hash to keep somewhere else.
    head: str = ""
    # Lines that a crash left unfinished.
    torn: list[ChainProblem] = msgspec.field(default_factory=list[ChainProblem])
    problem: ChainProblem | None = None


class ChainBroken(Exception):
    """A line is not one that we wrote here; says why."""


class EncodedLine(NamedTuple):
    """A line of the log, and its hash."""

    line: bytes
    digest: str


def encode(seq: int, prev: str, entry: AuditEntry) -> EncodedLine:
    """Return an entry as the line after another one."""
    members: dict[str, Any] = {"seq": seq, **msgspec.structs.asdict(entry), "prev": prev}
    body = json.dumps(members, separators=(",", ":")).encode("ascii")
    digest = hashlib.sha256(body).hexdigest()
    return EncodedLine(body[:-1] + b',"hash":"' + digest.encode() + b'"}\n', digest)


def decode(content: bytes) -> AuditLine:
    """Return a line without its newline; raises `ChainBroken`."""
    found = _END.search(content, max(len(content) - 80, 0))
    if found is None or found.end() != len(content):
        raise ChainBroken("is no line of an audit log")
    if hashlib.sha256(content[: found.start()] + b"}").hexdigest().encode() != found[1]:
        raise ChainBroken("was changed: its hash does not fit it")
    try:
        return msgspec.json.decode(content, type=AuditLine)
    except (msgspec.DecodeError, ValueError):
        raise ChainBroken("is no line of an audit log") from None


def starts_a_hole(content: bytes) -> int:
    """Return where blocks begin that were never written; -1 if there are none."""
    return content.find(_HOLE)


class Walk:
    """Goes along a chain, line by line, to its end or to where it is broken."""

    def __init__(self, expect: str = "") -> None:
        self.report = ChainReport()
        self._expect = expect
        self._is_met = not expect
        self._seq: int = 0
        # Lines that are none, which the next good one has to explain.
        self._remains: list[bytes] = []
        self._size = 0
        self._first_bad: ChainProblem | None = None

    def along(self, files: Iterable[tuple[Path, BinaryIO, int]]) -> ChainReport:
        """Walk the files, the oldest first, each as far as its size was."""
        report = self.report
        waiting = list(files)
        for place, (path, file, size) in enumerate(waiting):
            number, left = 0, size
            while left > 0 and report.problem is None:
                number += 1
                raw = file.readline(min(left, LONGEST_LINE))
                if not raw:
                    break
                left -= len(raw)
                is_end = left == 0 and place == len(waiting) - 1
                self._take(ChainProblem(str(path), number, ""), raw, is_end)
        if report.problem is None and self._first_bad is not None:
            self._end_with_remains(self._first_bad)
        if report.problem is None and not self._is_met:
            path = str(waiting[-1][0]) if waiting else ""
            what = (
                "no line has the expected hash: lines were cut off at the end, all was written "
                f"anew, or it is older than the first line that is kept ({report.first_seq})"
            )
            report.problem = ChainProblem(path, report.lines, what)
        return report

    def _take(self, place: ChainProblem, raw: bytes, is_end: bool) -> None:
        if not raw.endswith(b"\n") and is_end and not self._remains:
            self._end_with_fragment(place, raw)
            return
        try:
            line = decode(raw.removesuffix(b"\n"))
        except ChainBroken as error:
            if self._first_bad is None:
                self._first_bad = _with(place, str(error))
            self._remains.append(raw)
            self._size += len(raw)
            if self._size > LARGEST_REMAINS:
                self.report.problem = self._first_bad
            return
        self._follow(place, line)

    def _follow(self, place: ChainProblem, line: AuditLine) -> None:
        report = self.report
        if line.act == TORN:
            remains = b"".join(self._remains).removesuffix(b"\n")
            if self._first_bad is None or line.object != digest_of(remains):
                report.problem = self._first_bad or _with(
                    place, "tells of an unfinished line before it, and there is none"
                )
                return
            report.torn.append(_with(self._first_bad, "was never finished"))
            self._first_bad, self._remains, self._size = None, [], 0
        if self._first_bad is not None:
            report.problem = self._first_bad
            return
        if not report.lines:
            report.first_seq, report.first_at, report.prev = line.seq, line.time, line.prev
            if (line.seq == 1) != (line.prev == NOTHING):
                report.problem = _with(place, "is the first line and follows another one")
                return
            self._is_met |= line.prev == self._expect
        elif line.prev != report.head or line.seq != self._seq + 1:
            gap = f"line {line.seq} follows line {self._seq}"
            what = f"does not follow the line before it ({gap}): lines are missing, added or moved"
            report.problem = _with(place, what)
            return
        self._seq, report.head, report.last_at = line.seq, line.hash, line.time
        report.lines += 1
        self._is_met |= line.hash == self._expect

    def _end_with_fragment(self, place: ChainProblem, raw: bytes) -> None:
        """Tell a line that was being written when everything stopped from one that was cut."""
        start = b'{"seq":%d,' % (self._seq + 1)
        is_start = raw.startswith(start) or start.startswith(raw) or not self.report.lines
        if (found := _END.search(raw)) is not None:
            # A whole line without its newline; whatever is more than that was put there.
            is_start = is_start and found.end() == len(raw) and _is_line(raw)
        if is_start or starts_a_hole(raw) >= 0:
            self.report.torn.append(_with(place, "is not finished"))
        else:
            self.report.problem = _with(place, "is no line of an audit log")

    def _end_with_remains(self, first: ChainProblem) -> None:
        if starts_a_hole(b"".join(self._remains)) >= 0:
            self.report.torn.append(_with(first, "is not finished"))
        else:
            self.report.problem = first


def timestamp(seconds: float) -> str:
    """Return a time as lines have it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def digest_of(remains: bytes) -> str:
    """Return what a line about remains calls them by."""
    return hashlib.sha256(remains).hexdigest()


def _with(place: ChainProblem, what: str) -> ChainProblem:
    return msgspec.structs.replace(place, what=what)


def _is_line(content: bytes) -> bool:
    try:
        decode(content)
    except ChainBroken:
        return False
    return True


class ChainHead(NamedTuple):
    """The end of a chain: what the next line follows."""

    seq: int = 0
    hash: str = NOTHING
    # What is behind the last line and is none.
    remains: bytes = b""
    # What the next line has to tell of the end, besides.
    note: str = ""
    # Whether the file ends without a newline.
    is_open: bool = False
