"""`dragoman audit`: who was refused and what operators did, and whether that record is whole.

Each line has the hash of the one before. So a line that is changed, missing, added or moved is
found; an end that is cut off, and a log that was written anew from the start, look like a log in
order. Against those, keep the head that `verify` prints somewhere else, and name it by `--expect`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.audit_trail import AUDIT_OPTION
from dragoman.cli.failures import Failure, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import (
    LIMIT,
    PAGE_TOKEN,
    STORE,
    STORE_OPTION,
    budget,
    offset_of,
    settings_of,
    show_page,
    typed_option,
)
from dragoman.cli.terminal.table import Column

if TYPE_CHECKING:
    # Heavy: loaded when a command runs.
    from dragoman.security.audit.chain import AuditLine, ChainReport

BROKEN = "DRAGOMAN_ERR_AUDIT_BROKEN"

audit = Group(
    "audit",
    help="Read the audit log, and verify that nothing in it was changed.",
    places={
        "list": CommandPlace("operating.audit:list_", "List what was recorded, the latest first."),
        "verify": CommandPlace("operating.audit:verify", "Check the chain of hashes."),
    },
)


@command("list")
@AUDIT_OPTION
@STORE_OPTION
@typed_option("--since", default="", metavar="<time>", help="Only what happened since (RFC 3339).")
@typed_option(
    "--act",
    default="",
    metavar="<act>",
    help="Only this act, such as auth.denied, or acts of a kind: key.",
)
@typed_option("--who", default="", metavar="<owner>", help="Only acts of this caller.")
@LIMIT
@PAGE_TOKEN
def list_(
    run: Invocation,
    audit: str | None,
    store: str | None,
    since: str,
    act: str,
    who: str,
    limit: int,
    page_token: str,
) -> None:
    """List what was recorded, the latest first.

    Equal refusals within a second are one line: with the caller of the first and the number of all.
    """
    from dragoman.cli.calling.task import instant
    from dragoman.security.audit.chain import timestamp
    from dragoman.security.audit.reading import latest_first

    before = offset_of(page_token) if page_token else None
    earliest = timestamp(instant(since).timestamp()) if since else ""
    path = _path(run, audit, store)
    found: list[AuditLine] = []
    with budget(run):
        try:
            for line in latest_first(path):
                if (
                    (before is None or line.seq < before)
                    and line.time >= earliest
                    and (not act or line.act == act or line.act.startswith(f"{act}."))
                    and who in ("", line.who)
                ):
                    found.append(line)
                    if len(found) > limit:
                        break
        except OSError as error:
            raise _unreadable(path, error) from None
    page = found[:limit]
    token = str(page[-1].seq) if len(found) > limit else ""
    items = [_item(line) for line in page]
    show_page(
        run, items, token, lambda item: _show(run, item), columns=_COLUMNS, empty="nothing fits"
    )


_COLUMNS = (
    Column("line", "seq", "number"),
    Column("age", "time", "age"),
    Column("act", "act", "id"),
    Column("outcome", "outcome"),
    Column("who", "who"),
    Column("object", "object"),
    Column("reason", "reason"),
    Column("count", "count", "number"),
)


def _item(line: "AuditLine") -> dict[str, Any]:
    from msgspec.structs import asdict

    # Half of a character, which a file of others may have, cannot be shown as JSON.
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for name, value in asdict(line).items()
    }


def _show(run: Invocation, item: dict[str, Any]) -> None:
    run.out.field("Line", str(item["seq"]))
    for name in ("time", "act", "outcome", "who", "object", "reason", "address", "trace"):
        if item[name]:
            run.out.field(name.capitalize(), item[name])
    if item["count"] != 1:
        run.out.field("Count", str(item["count"]))


@command("verify")
@AUDIT_OPTION
@STORE_OPTION
@typed_option(
    "--expect",
    default="",
    metavar="<hash>",
    help="A head noted down before: it has to be in the log.",
)
def verify(run: Invocation, audit: str | None, store: str | None, expect: str) -> None:
    """Check the chain of hashes through all files of the log, also while servers write to it.

    Finds lines that were changed, taken out, put in or moved. An end that was cut off, or a log
    written anew from the start, is in order by itself: note down the head that is printed here,
    where writers of the log may not, and name it by --expect the next time.
    """
    from dragoman.security.audit import reading

    if expect and (len(expect) != 64 or set(expect) - set("0123456789abcdef")):
        raise usage("--expect must be a head: 64 digits and letters from a to f")
    path = _path(run, audit, store)
    with budget(run):
        try:
            report = reading.verify(path, expect)
        except OSError as error:
            raise _unreadable(path, error) from None
    if (problem := report.problem) is not None:
        if not run.out.is_json:
            _summary(run, report)
        raise Failure(
            BROKEN,
            f"{problem.file}, line {problem.line}: {problem.what}",
            hint="dragoman audit list",
        )
    if run.out.is_json:
        run.out.json(_document(report))
    else:
        _summary(run, report)
        run.out.field("Result", _result(report))


def _document(report: "ChainReport") -> dict[str, Any]:
    return {
        "result": _result(report),
        "lines": report.lines,
        "firstLine": report.first_seq,
        "firstAt": report.first_at,
        "lastAt": report.last_at,
        "head": report.head,
        "torn": [{"file": one.file, "line": one.line, "what": one.what} for one in report.torn],
    }


def _result(report: "ChainReport") -> str:
    return "torn" if report.torn else "ok"


def _summary(run: Invocation, report: "ChainReport") -> None:
    out = run.out
    out.field("Lines", str(report.lines))
    if report.lines:
        out.field("First-Line", str(report.first_seq))
        out.field("First", report.first_at)
        out.field("Last", report.last_at)
        out.field("Head", report.head)
    for one in report.torn:
        out.field("Torn", f"{one.file}, line {one.line}: {one.what}, as a crash leaves it")


def _path(run: Invocation, audit: str | None, store: str | None) -> Path:
    from dragoman.errors import ConfigError

    path = settings_of(run, audit=audit, store=store).audit_path()
    if path is None:
        raise ConfigError(
            "the audit log is off here; name a file by --audit", remedy="--audit <path>"
        )
    return path


def _unreadable(path: Path, error: OSError) -> Failure:
    reason = error.strerror or str(error)
    return Failure(STORE, f"{error.filename or path}: {reason}", hint="dragoman audit --help")
