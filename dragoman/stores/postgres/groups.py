"""Writes as the arrays that `write_group` takes, and why a group was not committed. Pure: no
connection, no clock."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from dragoman.errors import HoldRefused, StoreConflict, StoreRefused, StoreUnavailable
from dragoman.model.identity import Scope
from dragoman.model.push import PushConfig
from dragoman.stores.columns import STATE_NUMBERS, packed
from dragoman.stores.interface import Append, Create, KeepReply, LeaveNote, Write

# How many parameters each part of the function has.
_KEYS, _CREATES, _APPENDS, _EVENTS, _SNAPSHOTS = 5, 8, 10, 5, 4


class GroupSeals(Protocol):
    """Seals what of a write is secret."""

    @property
    def key(self) -> bytes | None:
        """The id of the key it seals with; None: it seals nothing."""
        ...

    def note(self, task: int, body: bytes) -> bytes:
        """Return a note as it is kept."""
        ...

    def answer(self, task: int, seq: int, body: bytes) -> bytes:
        """Return what is withheld from a log as it is kept."""
        ...

    def push(self, task: int, config: PushConfig) -> tuple[bytes, bytes | None]:
        """Return a receiver in two pieces: what may be read, and its secrets if it has any."""
        ...


class CannotSeal(Exception):
    """What is secret of a write cannot be sealed; the others of its group can go without it."""

    def __init__(self, place: int, reason: StoreUnavailable) -> None:
        super().__init__(str(reason))
        self.place = place
        self.reason = reason


class NotSent(Exception):
    """There was no connection to send a group by: nothing is in doubt."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class GroupRefused(StoreRefused):
    """Some writes of a group lost to others; none of it was written."""

    def __init__(self, places: set[int], reason: StoreRefused | None = None) -> None:
        super().__init__("refused")
        self.places = places
        self.reason = reason or StoreConflict("the log moved on, or the id or the key exists")

    def reason_of(self, place: int) -> StoreRefused:
        """Return why one of the writes was refused."""
        return self.reason


class PoorPayers(GroupRefused):
    """Some writes of a group would hold more than there is; none of it was written."""

    def __init__(self, found: Sequence[tuple[int, int, int]]) -> None:
        """`found` has the place of each, what its payer has, and what was needed."""
        self._holds = {place: HoldRefused(balance, needed) for place, balance, needed in found}
        super().__init__(set(self._holds))

    def reason_of(self, place: int) -> StoreRefused:
        """Return the payer's balance and what was needed."""
        return self._holds[place]


def touched(write: Write) -> list[Any]:
    """Return what no other write of the same group may concern."""
    scope = write.scope
    if isinstance(write, KeepReply):
        return [(scope, write.key)]
    keys: list[Any] = [(scope, key) for key in write.keys]
    keys.append((scope, write.task_id) if isinstance(write, Create) else write.number)
    return keys


def size_of(write: Write) -> int:
    """Return about how many bytes a write brings."""
    return write.size if isinstance(write, Create | Append) else len(write.body)


def arguments(
    writes: Sequence[Write],
    numbers: Sequence[int],
    scopes: dict[Scope, int],
    seals: GroupSeals,
    effects: Sequence[Any] = (),
) -> list[Any]:
    """Return the arguments of `write_group` after the worker and the group; raises `CannotSeal`."""
    keys: list[tuple[Any, ...]] = []
    creates: list[tuple[Any, ...]] = []
    appends: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    snapshots: list[tuple[Any, ...]] = []
    rest: dict[str, list[Any]] = {}
    for place, (write, number) in enumerate(zip(writes, numbers, strict=True)):
        scope = scopes[write.scope]
        if isinstance(write, KeepReply):
            keys.append((place, scope, write.key, None, write.body))
            continue
        for key in write.keys:
            keys.append((place, scope, key, number, None))
        try:
            _rest_of(write, place, number, seals, rest)
        except StoreUnavailable as error:
            raise CannotSeal(place, error) from None
        if isinstance(write, LeaveNote):
            continue
        standing = write.standing
        state = STATE_NUMBERS[standing.state]
        place_in_log = (state, standing.status_at, standing.last_seq)
        if isinstance(write, Create):
            creates.append((place, number, write.task_id, scope, write.context_id, *place_in_log))
        else:
            before = write.before
            fences = (write.fence, write.next_fence, STATE_NUMBERS[before.state])
            appends.append((place, number, before.last_seq, *fences, scope, *place_in_log))
        events.append((number, *packed(write.events)))
        if (snapshot := write.snapshot) is not None:
            snapshots.append((number, snapshot.seq, snapshot.head, snapshot.artifacts))
    if effects:
        rest["effects"] = list(effects)
    return [
        *_columns(keys, _KEYS),
        *_columns(creates, _CREATES),
        *_columns(appends, _APPENDS),
        *_columns(events, _EVENTS),
        *_columns(snapshots, _SNAPSHOTS),
        _json(rest, seals) if rest else None,
    ]


def _rest_of(
    write: Create | Append | LeaveNote,
    place: int,
    number: int,
    seals: GroupSeals,
    rest: dict[str, list[Any]],
) -> None:
    """Add what few writes bring."""
    if isinstance(write, LeaveNote):
        body = seals.note(number, write.body)
        rest.setdefault("notes", []).append((place, number, _text(body)))
        return
    if isinstance(write, Create):
        for config in write.pushes:
            shown, sealed = seals.push(number, config)
            row = (number, config.id, _text(shown), None if sealed is None else _text(sealed))
            rest.setdefault("pushes", []).append(row)
        if write.deadline and not write.standing.state.is_terminal:
            rest.setdefault("deadlines", []).append((number, write.deadline))
        return
    if write.notes:
        rest.setdefault("dealt", []).extend(write.notes)
    for seq, body in write.withheld:
        row = (number, seq, _text(seals.answer(number, seq, body)))
        rest.setdefault("withheld", []).append(row)
    if write.forgets:
        rest.setdefault("forgotten", []).append(number)
    if write.deadline is not None:
        rest.setdefault("deadlines", []).append((number, write.deadline))


def _json(rest: dict[str, Any], seals: GroupSeals) -> str:
    if (key := seals.key) is not None and not rest.keys().isdisjoint(
        ("notes", "pushes", "withheld")
    ):
        rest["key"] = _text(key)
    return msgspec.json.encode(rest).decode()


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Any]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _text(body: bytes) -> str:
    return b64encode(body).decode()
