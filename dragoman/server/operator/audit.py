"""The audit log, and whether its chain holds."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.security.audit.chain import AuditLine, timestamp
from dragoman.security.audit.reading import latest_first, verify
from dragoman.server.operator.pages import Pages
from dragoman.server.operator.shapes import Instant, Name, PageQuery, Shape
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import milliseconds

ENDPOINTS = OperatorRows()
# Lines of the audit log that are looked at for one page.
_MOST_LINES = 100_000


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """Which lines are wanted, by how they begin."""

    act: Name = ""
    who: Name = ""
    # Not before this instant.
    since: Instant = ""


class AuditItem(Shape, frozen=True):
    """A line of the audit log."""

    seq: int
    at: str
    act: str
    outcome: str
    who: str
    object: str
    reason: str
    address: str
    count: int


class AuditItems(Shape, frozen=True):
    """A page of the audit log."""

    items: list[AuditItem]
    next_page_token: str


class ChainProblemItem(Shape, frozen=True):
    """Where the chain does not hold."""

    file: str
    line: int
    what: str


class AuditChain(Shape, frozen=True):
    """Whether the chain of the audit log holds."""

    is_valid: bool
    lines: int
    problems: list[ChainProblemItem]


@ENDPOINTS.add("GET", "/audit", query=AuditQuery, is_for_operators=True)
async def read_audit(ask: OperatorAsk) -> AuditItems:
    """Read the audit log, the latest first; none where there is no log."""
    query: AuditQuery = ask.query
    pages = Pages(ask, "audit")
    before, _ = await pages.start() or (0, 0)
    path = ask.site.settings.audit_path()
    since = milliseconds(query.since, "since")
    oldest = "" if since is None else timestamp(since / 1000)
    ask.record_read("console.audit.read")
    if path is None:
        return AuditItems(items=[], next_page_token="")

    def is_wanted(line: AuditLine) -> bool:
        return line.act.startswith(query.act) and line.who.startswith(query.who)

    shown, seq = await asyncio.to_thread(_lines, path, before, query.limit, oldest, is_wanted)
    token = pages.token((seq, 0)) if seq > 1 else ""
    return AuditItems(items=[_audit_item(line) for line in shown], next_page_token=token)


def _lines(
    path: Path, before: int, limit: int, oldest: str, is_wanted: Callable[[AuditLine], bool]
) -> tuple[list[AuditLine], int]:
    """Return lines before a number, and the number to go on before; 0: there are no more."""
    found: list[AuditLine] = []
    looked_at = 0
    try:
        for line in latest_first(path):
            if before and line.seq >= before:
                continue
            if len(found) == limit or looked_at == _MOST_LINES:
                return found, line.seq + 1
            if line.time < oldest:
                return found, 0
            looked_at += 1
            if is_wanted(line):
                found.append(line)
    except FileNotFoundError:
        # Nothing was recorded yet.
        return [], 0
    return found, 0


def _audit_item(line: AuditLine) -> AuditItem:
    # Half of a character, which a file of others may have, cannot be shown as JSON.
    def text(value: str) -> str:
        return value.encode("utf-8", "backslashreplace").decode()

    return AuditItem(
        seq=line.seq,
        at=text(line.time),
        act=text(line.act),
        outcome=text(line.outcome),
        who=text(line.who),
        object=text(line.object),
        reason=text(line.reason),
        address=text(line.address),
        count=line.count,
    )


@ENDPOINTS.add("GET", "/audit/chain", is_for_operators=True)
async def verify_audit(ask: OperatorAsk) -> AuditChain:
    """Check the chain of the audit log: whether a line was changed, removed or added."""
    path = ask.site.settings.audit_path()
    report: Any = None
    if path is not None:
        try:
            report = await asyncio.to_thread(verify, path)
        except FileNotFoundError:
            report = None
    if report is None:
        return AuditChain(is_valid=True, lines=0, problems=[])
    problems = [] if report.problem is None else [report.problem]
    return AuditChain(
        is_valid=report.problem is None,
        lines=report.lines,
        problems=[
            ChainProblemItem(file=Path(one.file).name, line=one.line, what=one.what)
            for one in problems
        ],
    )
