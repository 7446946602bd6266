"""What tools read of a store that another machine has: the same Protocols, asked for by name.

A server reads its own store for them as a tool beside it would: as no worker of it, and from a
connection of its own. Each read is a method of a Protocol of `stores.interface`; its arguments and
its result travel as JSON in the shapes of that Protocol. Both ends are of one release, or of two
in which these are the same.
"""

import inspect
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from dragoman.config import Settings
from dragoman.errors import InvalidParams
from dragoman.model.record import Recorded, TaskReading
from dragoman.stores.interface.inspection import HealthInspection, TaskInspection
from dragoman.stores.interface.ledger import LedgerStore
from dragoman.stores.interface.trust import TrustStore
from dragoman.stores.tools import ToolAccounting, Wait, accounting_of, inspecting, reading_tasks

# Returns the JSON of a result, for the name of a read and the JSON of its arguments.
Ask = Callable[[str, msgspec.Raw], bytes | msgspec.Raw]
# Seconds.
_LOOK_EVERY = 0.5
# Nothing here writes, and no secret of a receiver is in what is read.
_PARTS: dict[str, tuple[type, str]] = {
    "tasks": (TaskInspection, "page find here follow read snapshot"),
    "health": (HealthInspection, "pushes letters"),
    "ledger": (LedgerStore, "balance balances statement transfer transfers facts verify"),
    "trust": (TrustStore, "figures totals history disputes contents"),
    "registry": (ToolAccounting, "registered"),
}


class SentEvent(msgspec.Struct, array_like=True):
    """An event of a log on its way: as it is stored, for all its other forms are made of that."""

    seq: int
    body: bytes


class SentTask(msgspec.Struct, array_like=True):
    """A task of a log on its way."""

    seq: int
    body: bytes


# What makes a form of a position and its bytes.
_Make = Callable[[int, bytes], Any]
_SENT: dict[type, _Make] = {Recorded: SentEvent, TaskReading: SentTask}
_RECEIVED: dict[type, _Make] = {
    SentEvent: Recorded.of_body,
    SentTask: lambda seq, body: TaskReading(seq, body=body),
}


def _exchanged(value: Any, forms: dict[type, _Make]) -> Any:
    """Return a value with each event and task in it in its other form."""
    for kind, make in forms.items():
        if isinstance(value, kind):
            return make(value.seq, value.body)
    # Not those that only are of the kind: a position is a tuple with names.
    if type(value) in (list, tuple):
        inner = [_exchanged(one, forms) for one in cast("Iterable[Any]", value)]
        return tuple(inner) if isinstance(value, tuple) else inner
    return value


def _sent_type(hint: Any) -> Any:
    """Return the type of a result on its way."""
    inner = tuple(_sent_type(one) for one in get_args(hint))
    if not inner:
        return _SENT.get(hint, hint)
    # `A | B` has an origin that takes no arguments.
    origin: Any = Union if isinstance(hint, UnionType) else get_origin(hint)
    return origin[inner]


class StoreRead(NamedTuple):
    """The parameters of a read, its arguments as one value, and the type of its result."""

    signature: inspect.Signature
    arguments: type[msgspec.Struct]
    result: Any


def _read_of(protocol: type, method: str) -> StoreRead:
    function = getattr(protocol, method)
    signature, hints = inspect.signature(function), get_type_hints(function)
    fields: list[Any] = []
    for name, one in signature.parameters.items():
        if name != "self":
            default = () if one.default is one.empty else (one.default,)
            fields.append((name, hints[name], *default))
    arguments = msgspec.defstruct(method, fields, kw_only=True, forbid_unknown_fields=True)
    return StoreRead(signature, arguments, _sent_type(hints["return"]))


READS = {
    f"{part}.{method}": _read_of(protocol, method)
    for part, (protocol, methods) in _PARTS.items()
    for method in methods.split()
}


# The server's side


def read(settings: Settings, name: str, arguments: dict[str, Any]) -> Any:
    """Read the store that the settings name; blocks. Raises `InvalidParams`, and
    `ConfigError` where the store has no such part."""
    asked = READS.get(name)
    if asked is None:
        raise InvalidParams("is no read of this release", field="read")
    try:
        given = msgspec.convert(arguments, asked.arguments, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidParams(str(error), field="arguments") from None
    part, _, method = name.partition(".")
    with _opened(settings, part) as (opened, wait):
        found = wait(getattr(opened, method)(**msgspec.structs.asdict(given)))
        return _exchanged(found, _SENT)


@contextmanager
def _opened(settings: Settings, part: str) -> Generator[tuple[Any, Wait]]:
    if part == "tasks":
        with reading_tasks(settings) as opened:
            yield opened
    elif part == "health":
        with inspecting(settings) as opened:
            yield opened
    else:
        with accounting_of(settings) as (accounting, wait):
            yield accounting if part == "registry" else getattr(accounting, part), wait


# The tool's side


class RemotePart:
    """A part of a store elsewhere. Its methods are those of the part's Protocol, and wait for
    nothing that an event loop has to bring: asking blocks."""

    def __init__(self, part: str, ask: Ask) -> None:
        self._part = part
        self._ask = ask

    def __getattr__(self, method: str) -> Any:
        name = f"{self._part}.{method}"
        if (known := READS.get(name)) is None:
            raise AttributeError(name)

        async def asked(*values: Any, **more: Any) -> Any:
            given = dict(known.signature.bind(self, *values, **more).arguments)
            del given["self"]
            result = self._ask(name, msgspec.Raw(encode(given)))
            return _exchanged(msgspec.json.decode(result, type=known.result), _RECEIVED)

        return asked


class RemoteTasks(RemotePart):
    """The tasks of a store elsewhere."""

    def __init__(self, ask: Ask) -> None:
        super().__init__("tasks", ask)
        self._looks = 0

    async def version(self) -> int:
        """Return another number after a while: a server tells no tool that something was written,
        so it is looked at again."""
        if self._looks:
            # The tool's side has no event loop: asking blocks too.
            time.sleep(_LOOK_EVERY)  # noqa: ASYNC251
        self._looks += 1
        return self._looks


class RemoteAccounting:
    """Ledger and trust of a store elsewhere, to read."""

    def __init__(self, ask: Ask) -> None:
        self.ledger = cast(LedgerStore, RemotePart("ledger", ask))
        self.trust = cast(TrustStore, RemotePart("trust", ask))
        self.registered = RemotePart("registry", ask).registered


# As JSON


def _plain(value: Any) -> Any:
    """Return as plain values what JSON has no form for."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, Collection):
        return list(cast("Collection[Any]", value))
    raise NotImplementedError(type(value).__name__)


encode = msgspec.json.Encoder(enc_hook=_plain).encode
