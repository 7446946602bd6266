"""The W3C trace context, in and out, and where in a trace the running code is.

This part works without OpenTelemetry: what came in is passed on, and what began here has a trace of
its own. Spans exist while `on` is true, which `telemetry/exporting.py` sets; code on a hot path
asks that first and pays one look at it.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

MAX_STATE = 512
MAX_MEMBERS = 32
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
# What nearly all of them are; the rest takes the long way.
_USUAL = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
# Sampled, and random: the other bits have no meaning yet, so nobody may set them.
_KNOWN_FLAGS = 0x03
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,256}")


class Trace(msgspec.Struct, frozen=True, gc=False):
    """A place in a trace: the span that whatever comes next belongs to."""

    trace_id: str
    span_id: str
    # Sampled, unless told: who does not trace leaves the decision to those who do.
    flags: str = "01"
    state: str = ""

    @property
    def parent(self) -> str:
        """The `traceparent` that says so."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request that belongs here."""
        if self.state:
            return {"traceparent": self.parent, "tracestate": self.state}
        return {"traceparent": self.parent}


class Span(Protocol):
    """Something that is being done, while it is traced."""

    @property
    def trace(self) -> Trace:
        """Its place, for what belongs to it."""
        ...

    def enter(self) -> None:
        """Let what the running code does from here on belong to it."""
        ...

    def leave(self) -> None:
        """Undo `enter`."""
        ...

    def rename(self, name: str) -> None:
        """Call it by what it turned out to be."""
        ...

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more about it: never what was said in a message, never credentials."""
        ...

    def event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Note that something happened meanwhile: never what it said."""
        ...

    def link(self, trace: Trace) -> None:
        """Point to another trace that it has to do with."""
        ...

    def fail(self, kind: str) -> None:
        """Note that it failed. Only the kind: texts of exceptions quote what callers say."""
        ...

    def end(self) -> None:
        """It is done."""
        ...


class Tracer(Protocol):
    """What makes spans."""

    def begin(
        self, name: str, kind: str, parent: Trace | None, attributes: Mapping[str, Any]
    ) -> Span:
        """Begin a span."""
        ...


class Here:
    """Where the running code is: its trace, and whose task it works on."""

    __slots__ = ("agent", "span", "task_id", "trace")

    def __init__(
        self,
        trace: Trace | None = None,
        task_id: str = "",
        agent: str = "",
        span: Span | None = None,
    ) -> None:
        self.trace = trace
        self.task_id = task_id
        self.agent = agent
        self.span = span


# Whether spans are made. Read as `tracing.on`; written by `exporting` alone.
on = False
# Whether each event of a task has a span of its own, while spans are made.
per_event = False
tracer: Tracer | None = None
here: ContextVar[Here | None] = ContextVar("dragoman_here", default=None)


def parse(parent: str, state: str = "") -> Trace | None:
    """Return the place that a pair of headers names; None: they name none that may be joined."""
    if (usual := _USUAL.fullmatch(parent)) is not None:
        trace_id, span_id, flags = usual.groups()
        if trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        return Trace(trace_id, span_id, flags, _state(state) if state else "")
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # A later version may say more at the end; this one may not.
    if version == "ff" or (version == "00" and more is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Trace(trace_id, span_id, f"{int(flags, 16) & _KNOWN_FLAGS:02x}", _state(state))


def _state(text: str) -> str:
    """Return a `tracestate` that may be passed on, or nothing."""
    if not text or len(text) > MAX_STATE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    if len(members) > MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


def arrived(headers: Sequence[tuple[bytes, bytes]]) -> Trace | None:
    """Return the place that a request says it comes from."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        # Two of them say nothing, as does none.
        return None
    states = [value for name, value in headers if name == b"tracestate"]
    state = b",".join(states).decode("latin-1") if states else ""
    return parse(parents[0].decode("latin-1").strip(" \t"), state)


def fresh() -> Trace:
    """Return the beginning of a trace."""
    return Trace(secrets.token_hex(16), secrets.token_hex(8))


def of_task(task_id: str) -> Trace:
    """Return the trace of a task that came without one: always the same, so that nothing has to be
    kept for it. It does not tell the task's id."""
    digest = hashlib.blake2b(task_id.encode(), digest_size=24, person=b"dragoman-trace").hexdigest()
    return Trace(digest[:32], digest[32:])


def current() -> Trace | None:
    """Return where the running code is; None: in no trace."""
    found = here.get()
    if found is None:
        return None
    if found.trace is None and found.task_id:
        found.trace = of_task(found.task_id)
    return found.trace


def outgoing() -> dict[str, str]:
    """Return the headers of a request that the running code makes.

    What came in is passed on as it is: who makes no spans must not name any."""
    found = current()
    if found is not None:
        return found.headers
    return {} if on else fresh().headers


def begin(
    name: str,
    attributes: Mapping[str, Any],
    *,
    kind: str = "internal",
    parent: Trace | None = None,
) -> Span:
    """Begin a span, below the running code unless a parent is given. Only while `on` is true."""
    assert tracer is not None, "asked before: spans are made only while they are on"
    return tracer.begin(name, kind, parent or current(), attributes)


def mark_event(name: str, attributes: Mapping[str, Any], *, parent: Trace | None = None) -> None:
    """Have a span of its own for an event of a task, as short as the event. Only while `on` and
    `per_event` are true."""
    begin(name, attributes, parent=parent).end()


def note(attributes: Mapping[str, Any]) -> None:
    """Say more about the span that the running code is in, if it is in one."""
    found = here.get()
    if found is not None and found.span is not None:
        found.span.set(attributes)


def link(trace: Trace) -> None:
    """Have the span that the running code is in point to another trace it has to do with."""
    found = here.get()
    if found is not None and found.span is not None:
        found.span.link(trace)


def event_metadata(trace: Trace | None) -> dict[str, str]:
    """Return what a status event says about its trace to readers that want to know."""
    return {} if trace is None else {"traceId": trace.trace_id, "spanId": trace.span_id}
