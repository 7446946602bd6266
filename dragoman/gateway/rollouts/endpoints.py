"""Rollouts: new versions of agents, tried beside the old ones."""

import contextlib
from collections.abc import Generator

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import UnsupportedOperation
from dragoman.gateway.api.asking import PagedById, is_operator, note, page_of, viewer_of
from dragoman.gateway.api.envelope import ApiRefused, Code
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.rollouts.definition import (
    Judged,
    Mode,
    NewRollout,
    RolloutChange,
    RolloutCounts,
    RolloutRule,
    State,
    VersionFigures,
)
from dragoman.gateway.rollouts.rollouts import read
from dragoman.model.clock import stamp
from dragoman.stores.interface.rollouts import RolloutRow

_ONE = "/api/v1/rollouts/{id}"
_BY_COMMAND = "by command"
_ENDING: tuple[Code, ...] = ("NOT_FOUND", "CONFLICT")
ENDPOINTS = EndpointTable()


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was seen of one of the two versions since the rollout began."""

    tasks: int
    failed: int
    # The mean of those that were done; null: none was.
    milliseconds: int | None


class RolloutFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was counted: each task once."""

    old: VersionRecord
    new: VersionRecord
    # Tasks by which the new version was judged. Those that did not agree, by the first thing that
    # was not the same.
    judged: int
    agreed: int
    structure_differs: int
    text_differs: int
    check_failed: int
    failed: int
    # The part that agrees, and the mean distance of what both say; null: there is none yet.
    agreement: float | None
    distance: float | None
    # Yet to be judged.
    open: int
    # Not copied: too many at a time; or not to be copied, such as a task that asked back.
    dropped: int
    skipped: int


class JudgedTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A task by which the new version was judged."""

    task_id: str
    result: str
    distance: float | None = None
    reason: str = ""


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A rollout, and what was seen so far."""

    id: str
    agent_id: str
    # The name of the agent, and of its new version; null: it is not registered any more.
    agent: str | None
    candidate_id: str
    candidate: str | None
    mode: Mode
    share: float
    max_distance: float
    check_agent_id: str | None
    timeout_seconds: int
    rule: RolloutRule | None
    state: State
    created_at: str
    ended_at: str | None
    # Why it ended.
    reason: str | None
    figures: RolloutFigures
    # The latest first.
    recent: list[JudgedTask]


class RolloutQuery(PagedById, frozen=True, kw_only=True, rename="camel"):
    """Which rollouts are wanted."""

    # Of one agent, by its id or name.
    agent_id: str = ""


class RolloutPage(msgspec.Struct, frozen=True):
    """A page of rollouts, newest first."""

    rollouts: list[RolloutRecord]
    total: int
    limit: int
    # What to send as `after` for the next page; left out: there is none.
    next: str | UnsetType = UNSET


@ENDPOINTS.add(
    "POST",
    "/api/v1/rollouts",
    status=201,
    body=NewRollout,
    errors=("AGENT_NOT_FOUND", "FORBIDDEN"),
)
async def start_rollout(ask: Ask) -> RolloutRecord:
    """Give a share of an agent's tasks to a new version of it, too or instead."""
    row = await ask.gateway.rollouts.create(ask.principal, ask.body, operator=is_operator(ask))
    note(ask, "rollout.start", row.id)
    return _record(ask, row)


@ENDPOINTS.add("GET", "/api/v1/rollouts", query=RolloutQuery)
async def list_rollouts(ask: Ask) -> RolloutPage:
    """Read the rollouts of your agents, newest first; operators read all."""
    query: RolloutQuery = ask.query
    agent = ask.gateway.registry.get(query.agent_id) if query.agent_id else None
    rows, total = await ask.gateway.rollouts.page(
        viewer_of(ask),
        agent.id if agent is not None else query.agent_id,
        limit=query.limit + 1,
        after=query.after,
    )
    shown, following = page_of(rows, query.limit, lambda row: row.id)
    return RolloutPage([_record(ask, row) for row in shown], total, query.limit, following)


@ENDPOINTS.add("GET", _ONE, errors=("NOT_FOUND",))
async def get_rollout(ask: Ask) -> RolloutRecord:
    """Read a rollout and its figures."""
    return _found(ask, await ask.gateway.rollouts.one(ask.path["id"], viewer_of(ask)))


@ENDPOINTS.add("PATCH", _ONE, body=RolloutChange, errors=_ENDING)
async def change_rollout(ask: Ask) -> RolloutRecord:
    """Give a rollout another mode, from shadow to canary or back, or another share."""
    with _still_running():
        row = await ask.gateway.rollouts.change(ask.path["id"], viewer_of(ask), ask.body)
    found = _found(ask, row)
    note(ask, "rollout.change", found.id, f"{found.mode}, {found.share:g} of the tasks")
    return found


@ENDPOINTS.add("POST", f"{_ONE}/promote", errors=_ENDING)
async def promote_rollout(ask: Ask) -> RolloutRecord:
    """Put the new version in the agent's place; the rollout ends."""
    with _still_running():
        row = await ask.gateway.rollouts.promote(ask.path["id"], viewer_of(ask), _BY_COMMAND)
    found = _found(ask, row)
    note(ask, "rollout.promote", found.id, _BY_COMMAND)
    return found


@ENDPOINTS.add("POST", f"{_ONE}/rollback", errors=_ENDING)
async def roll_back_rollout(ask: Ask) -> RolloutRecord:
    """Leave the old version in its place; the rollout ends."""
    with _still_running():
        row = await ask.gateway.rollouts.roll_back(ask.path["id"], viewer_of(ask), _BY_COMMAND)
    found = _found(ask, row)
    note(ask, "rollout.rollback", found.id, _BY_COMMAND)
    return found


@contextlib.contextmanager
def _still_running() -> Generator[None]:
    """Refuse what is too late."""
    try:
        yield
    except UnsupportedOperation as error:
        raise ApiRefused("CONFLICT", error.public) from None


def _found(ask: Ask, row: RolloutRow | None) -> RolloutRecord:
    if row is None:
        raise ApiRefused("NOT_FOUND", "Rollout not found")
    return _record(ask, row)


def _record(ask: Ask, row: RolloutRow) -> RolloutRecord:
    found = read(row)
    return RolloutRecord(
        id=row.id,
        agent_id=row.agent,
        agent=_name(ask, row.agent),
        candidate_id=found.candidate,
        candidate=_name(ask, found.candidate),
        mode=found.mode,
        share=found.share,
        max_distance=found.max_distance,
        check_agent_id=found.check_agent or None,
        timeout_seconds=found.timeout,
        rule=found.rule,
        state=found.state,
        created_at=stamp(row.made_at * 1000),
        ended_at=stamp(found.ended_at * 1000) if found.ended_at else None,
        reason=found.reason or None,
        figures=_figures(found.figures, len(found.open)),
        recent=[_judged(one) for one in found.recent],
    )


def _name(ask: Ask, id: str) -> str | None:
    agent = ask.gateway.registry.get(id)
    return None if agent is None else agent.name


def _figures(counted: RolloutCounts, open: int) -> RolloutFigures:
    judged, compared = counted.judged, counted.compared
    return RolloutFigures(
        old=_version(counted.old),
        new=_version(counted.new),
        judged=judged,
        agreed=counted.agreed,
        structure_differs=counted.structure,
        text_differs=counted.text,
        check_failed=counted.check,
        failed=counted.failed,
        agreement=round(counted.agreed / judged, 4) if judged else None,
        distance=round(counted.distance / compared, 4) if compared else None,
        open=open,
        dropped=counted.dropped,
        skipped=counted.skipped,
    )


def _version(counted: VersionFigures) -> VersionRecord:
    done = counted.tasks - counted.failed
    return VersionRecord(
        tasks=counted.tasks,
        failed=counted.failed,
        milliseconds=round(counted.ms / done) if done else None,
    )


def _judged(one: Judged) -> JudgedTask:
    return JudgedTask(
        task_id=one.task_id, result=one.result, distance=one.distance, reason=one.reason
    )
