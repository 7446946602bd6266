"""What keeps the server going: processes, receivers of events, and the audit log."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.errors import TaskNotFound, UnsupportedOperation
from dragoman.push.request import origin
from dragoman.security.audit.chain import AuditLine, timestamp
from dragoman.security.audit.reading import latest_first, verify
from dragoman.server.operator.pages import Pages
from dragoman.server.operator.shapes import (
    AuditChain,
    AuditItem,
    AuditItems,
    AuditQuery,
    ChainProblemItem,
    Done,
    DroppedLetter,
    LetterItem,
    LetterItems,
    LetterReplay,
    PageQuery,
    ProcessItem,
    ProcessItems,
    QuietItem,
    QuietItems,
    ReceiverItem,
    ReceiverItems,
    ReceiverQuery,
    ServerStatus,
    TroubleItem,
    instant,
)
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import milliseconds
from dragoman.server.operator.tasks.items import items_of
from dragoman.server.store_marks import drained_processes
from dragoman.stores.interface import DeadLetter, Push

ENDPOINTS = OperatorRows()
# Bits of an event's position beside the number of a receiver, in a token.
_SEQ_BITS = 31
# Lines of the audit log that are looked at for one page.
_MOST_LINES = 100_000
_DIGITS = 15


@ENDPOINTS.add("GET", "/status", is_for_operators=True)
async def read_status(ask: OperatorAsk) -> ServerStatus:
    """Read how the server is, and how many tasks are in which state."""
    status, counts = ask.site.status(), await ask.store.counts()
    troubles = await ask.store.troubles()
    return ServerStatus(
        version=status["version"],
        state=status["state"],
        agents=status["agents"],
        authentication=status["authentication"],
        worker=status["worker"],
        is_alone=status["isAlone"],
        running_tasks=status["runningTasks"],
        open_streams=status["openStreams"],
        audit_lines_lost=status["auditLinesLost"],
        troubles=[TroubleItem(part=one.part, reason=one.reason) for one in troubles],
        tasks={state.value: count for state, count in counts.items()},
    )


@ENDPOINTS.add("GET", "/processes", is_for_operators=True)
async def list_processes(ask: OperatorAsk) -> ProcessItems:
    """List the processes that use the store."""
    found = await ask.store.workers()
    return ProcessItems(
        items=[
            ProcessItem(
                number=one.number,
                state=one.state,
                is_this=one.number == ask.store.worker,
                is_due=one.is_due,
                tasks=one.tasks,
            )
            for one in found
        ]
    )


@ENDPOINTS.add("POST", "/processes/{id}/drain", is_for_operators=True, scope="tasks:write")
async def drain_process(ask: OperatorAsk) -> Done:
    """Have a process end in good order, and leave its tasks to others.

    It takes nothing more, and answers what it has begun. Whatever started it may start another one:
    a supervisor of the system, or the parent of several workers, which does."""
    name = ask.path["id"]
    living = {str(one.number) for one in await ask.store.workers() if one.state == "live"}
    if name not in living:
        raise TaskNotFound(f"There is no live process {name}")
    if name == str(ask.store.worker):
        if ask.site.end_process is None:
            raise UnsupportedOperation("this process is not the server's to end")
        ask.record("console.process.drain", name)
        ask.site.end_process()
        return Done(result="ends")
    ask.record("console.process.drain", name)
    await drained_processes(ask.store).add(name)
    return Done(result="asked")


@ENDPOINTS.add("GET", "/quiet-tasks", is_for_operators=True)
async def list_quiet_tasks(ask: OperatorAsk) -> QuietItems:
    """List tasks under way that show nothing, the longest first: their agents may hang."""
    found = await ask.live.quiet_tasks([agent.name for agent in ask.site.agents])
    items = await items_of(ask.store, [head for head, _ in found])
    return QuietItems(
        items=[
            QuietItem(task=item, since=instant(sign.at), is_unanswered=sign.is_unanswered)
            for item, (_, sign) in zip(items, found, strict=True)
        ]
    )


# Receivers


@ENDPOINTS.add("GET", "/receivers", query=ReceiverQuery, is_for_operators=True)
async def list_receivers(ask: OperatorAsk) -> ReceiverItems:
    """List receivers of tasks' events, the latest first: all, or those that fail."""
    query: ReceiverQuery = ask.query
    pages = Pages(ask, "receivers")
    before, _ = await pages.start() or (0, 0)
    found = await ask.store.receivers(
        limit=query.limit + 1, before=before, failing=query.which == "failing"
    )
    shown, rest = found[: query.limit], found[query.limit :]
    token = pages.token((shown[-1][0].number, 0)) if rest else ""
    items = [_receiver(push, last) for push, last in shown]
    return ReceiverItems(items=items, next_page_token=token)


def _receiver(push: Push, last: int) -> ReceiverItem:
    return ReceiverItem(
        number=push.number,
        # A path or a query may be a secret.
        url=origin(push.config.url),
        task_id=push.config.task_id,
        agent=push.scope.agent,
        tenant=push.scope.tenant,
        owner=push.scope.owner,
        position=push.cursor,
        last=last,
        tries=push.tries,
        due_at=instant(push.due_at),
        failing_since=instant(push.failing_since),
        is_open=push.is_open,
        problem=push.problem,
    )


@ENDPOINTS.add("POST", "/receivers/{id}/retry", is_for_operators=True, scope="tasks:write")
async def retry_receiver(ask: OperatorAsk) -> Done:
    """Have a receiver that fails or was given up tried at once.

    `waits`: another process delivers to it, and tries it when that is due."""
    name = ask.path["id"]
    if not (name.isascii() and name.isdecimal() and len(name) <= _DIGITS):
        raise TaskNotFound(f"There is no receiver {name}")
    push, service = await _known_receiver(ask, int(name)), ask.site.push
    ask.record("console.receiver.retry", name)
    if push.is_open:
        is_tried = service is not None and service.hurry(push)
        return Done(result="retried" if is_tried else "waits")
    await ask.store.reopen_push(push.number)
    if service is not None:
        await service.claim()
    return Done(result="retried")


async def _known_receiver(ask: OperatorAsk, number: int) -> Push:
    """Return a receiver, without its secrets."""
    found = await ask.store.receivers(limit=1, before=number + 1)
    if not found or found[0][0].number != number:
        raise TaskNotFound(f"There is no receiver {number}")
    return found[0][0]


@ENDPOINTS.add("GET", "/dead-letters", query=PageQuery, is_for_operators=True)
async def list_dead_letters(ask: OperatorAsk) -> LetterItems:
    """List events that receivers never took, the latest first."""
    query: PageQuery = ask.query
    pages = Pages(ask, "letters")
    place = await pages.start()
    before = None
    if place is not None:
        before = place[0], place[1] >> _SEQ_BITS, place[1] & ((1 << _SEQ_BITS) - 1)
    found = await ask.store.dead_letters(query.limit + 1, before=before)
    shown, rest = found[: query.limit], found[query.limit :]
    token = ""
    if rest:
        last = shown[-1]
        token = pages.token((last.at, last.push << _SEQ_BITS | last.seq))
    return LetterItems(items=[_letter(one) for one in shown], next_page_token=token)


@ENDPOINTS.add(
    "POST",
    "/dead-letters/drop",
    body=DroppedLetter,
    is_for_operators=True,
    scope="tasks:write",
)
async def drop_dead_letter(ask: OperatorAsk) -> Done:
    """Forget an event that a receiver never took."""
    body: DroppedLetter = ask.body
    ask.record("console.letter.drop", f"{body.receiver} {body.position}")
    await ask.store.drop_letter(body.receiver, body.position)
    return Done(result="dropped")


@ENDPOINTS.add(
    "POST",
    "/dead-letters/replay",
    body=DroppedLetter,
    is_for_operators=True,
    scope="tasks:write",
    may_be_missing=True,
)
async def replay_dead_letter(ask: OperatorAsk) -> LetterReplay:
    """Post an event that a receiver never took once more, from here and now."""
    body: DroppedLetter = ask.body
    push = await _known_receiver(ask, body.receiver)
    if ask.site.push is None:
        raise UnsupportedOperation("push is off at this server")
    ask.record("console.letter.replay", f"{body.receiver} {body.position}")
    problem = await ask.site.push.replay(push, body.position)
    return LetterReplay(result="failed" if problem else "delivered", problem=problem)


def _letter(one: DeadLetter) -> LetterItem:
    return LetterItem(
        receiver=one.push,
        task_id=one.task_id,
        url=origin(one.url),
        position=one.seq,
        tries=one.tries,
        at=instant(one.at),
        problem=one.problem,
    )


# The audit log


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
