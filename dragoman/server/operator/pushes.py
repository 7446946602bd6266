"""Receivers of tasks' events, and the events that they never took."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import TaskNotFound, UnsupportedOperation
from dragoman.push.request import origin
from dragoman.server.operator.pages import Pages
from dragoman.server.operator.shapes import Done, PageQuery, Shape, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.stores.interface import DeadLetter, Push

ENDPOINTS = OperatorRows()
# Bits of an event's position beside the number of a receiver, in a token.
_SEQ_BITS = 31
_DIGITS = 15


class ReceiverQuery(PageQuery, frozen=True, kw_only=True):
    """Which receivers are wanted."""

    which: Literal["all", "failing"] = "all"


class ReceiverItem(Shape, frozen=True):
    """A receiver of a task's events, and how far it is."""

    number: int
    url: str
    task_id: str
    agent: str
    tenant: str
    owner: str
    # The last event that is dealt with, and the last that there is.
    position: int
    last: int
    tries: int
    due_at: str
    failing_since: str
    is_open: bool
    problem: str


class ReceiverItems(Shape, frozen=True):
    """A page of receivers."""

    items: list[ReceiverItem]
    next_page_token: str


class DroppedLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dead letter that is to be forgotten: its receiver, and the position of its event."""

    receiver: Annotated[int, Meta(ge=1, lt=1 << 40)]
    position: Annotated[int, Meta(ge=1, lt=1 << 31)]


class LetterItem(Shape, frozen=True):
    """An event that a receiver never took."""

    receiver: int
    task_id: str
    url: str
    position: int
    tries: int
    at: str
    problem: str


class LetterReplay(Shape, frozen=True):
    """What became of an event that was posted once more."""

    result: Literal["delivered", "failed"]
    problem: str = ""


class LetterItems(Shape, frozen=True):
    """A page of dead letters."""

    items: list[LetterItem]
    next_page_token: str


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
