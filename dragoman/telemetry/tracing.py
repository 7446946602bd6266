"""The W3C trace context, in and out, and the trace of the running code.

This part works without OpenTelemetry: an incoming trace is passed on, and a request without one
begins a trace. Spans exist while `on` is true, which `telemetry/exporting.py` sets; code on a hot
path checks that first.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from dragoman.model.patterns import late_pattern

MAX_STATE = 512
MAX_MEMBERS = 32
_PARENT = late_pattern(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
# The common form; others take the slow path.
_USUAL = late_pattern(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
# Sampled, and random: the specification reserves the other bits.
_KNOWN_FLAGS = 0x03
_MEMBER = late_pattern(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,256}")


class Trace(msgspec.Struct, frozen=True, gc=False):
    """A position in a trace: the parent of the spans that follow."""

    trace_id: str
    span_id: str
    # Sampled by default: a process without spans leaves the decision to the others.
    flags: str = "01"
    state: str = ""

    @property
    def parent(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request in this trace."""
        if self.state:
            return {"traceparent": self.parent, "tracestate": self.state}
        return {"traceparent": self.parent}


class Span(Protocol):
    """A traced piece of work."""

    @property
    def trace(self) -> Trace:
        """Its position, as a parent of others."""
        ...

    def enter(self) -> None:
        """Make it the parent of what the running code does from now on."""
        ...

    def leave(self) -> None:
        """Undo `enter`."""
        ...

    def rename(self, name: str) -> None:
        """Change its name."""
        ...

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: never contents of messages, never credentials."""
        ...

    def event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Add an event: never contents."""
        ...

    def link(self, trace: Trace) -> None:
        """Link a related trace."""
        ...

    def fail(self, kind: str) -> None:
        """Mark it as failed. Only the kind: texts of exceptions quote callers."""
        ...

    def end(self) -> None:
        """End it."""
        ...


class Tracer(Protocol):
    """Makes spans."""

    def begin(
        self, name: str, kind: str, parent: Trace | None, attributes: Mapping[str, Any]
    ) -> Span:
        """Begin a span."""
        ...


class Here(msgspec.Struct):
    """The context of the running code: its trace, its task and its agent."""

    trace: Trace | None = None
    task_id: str = ""
    agent: str = ""
    span: Span | None = None


# Whether spans are made. Read as `tracing.on`; written by `exporting` only.
on = False
# Whether each event of a task gets a span too.
per_event = False
tracer: Tracer | None = None
here: ContextVar[Here | None] = ContextVar("dragoman_here", default=None)


def parse(parent: str, state: str = "") -> Trace | None:
    """Return the trace that a pair of headers names; None: there is no valid one."""
    if (usual := _USUAL.fullmatch(parent)) is not None:
        trace_id, span_id, flags = usual.groups()
        if trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        return Trace(trace_id, span_id, flags, _state(state) if state else "")
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # Only later versions may have more members.
    if version == "ff" or (version == "00" and more is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Trace(trace_id, span_id, f"{int(flags, 16) & _KNOWN_FLAGS:02x}", _state(state))


def _state(text: str) -> str:
    """Return a `tracestate` that may be passed on; empty: it is invalid."""
    if not text or len(text) > MAX_STATE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    if len(members) > MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


def arrived(headers: Sequence[tuple[bytes, bytes]]) -> Trace | None:
    """Return the trace in the headers of a request."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        # Several are as invalid as none.
        return None
    states = [value for name, value in headers if name == b"tracestate"]
    state = b",".join(states).decode("latin-1") if states else ""
    return parse(parents[0].decode("latin-1").strip(" \t"), state)


def fresh() -> Trace:
    """Return a new trace."""
    return Trace(os.urandom(16).hex(), os.urandom(8).hex())


def of_task(task_id: str) -> Trace:
    """Return the trace of a task that came without one. It is derived from the task's id, so it
    need not be stored, and does not reveal the id."""
    digest = hashlib.blake2b(task_id.encode(), digest_size=24, person=b"dragoman-trace").hexdigest()
    return Trace(digest[:32], digest[32:])


def current() -> Trace | None:
    """Return the trace of the running code; None: it has none."""
    found = here.get()
    if found is None:
        return None
    if found.trace is None and found.task_id:
        found.trace = of_task(found.task_id)
    return found.trace


def outgoing() -> dict[str, str]:
    """Return the trace headers of a request that the running code makes.

    An incoming trace is passed on unchanged if this process makes no spans."""
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
    assert tracer is not None, "only called while tracing is on"
    return tracer.begin(name, kind, parent or current(), attributes)


def mark_event(name: str, attributes: Mapping[str, Any], *, parent: Trace | None = None) -> None:
    """Make a span for an event of a task. Only while `on` and `per_event` are true."""
    begin(name, attributes, parent=parent).end()


def note(attributes: Mapping[str, Any]) -> None:
    """Add attributes to the span of the running code, if there is one."""
    found = here.get()
    if found is not None and found.span is not None:
        found.span.set(attributes)


def link(trace: Trace) -> None:
    """Link a related trace to the span of the running code."""
    found = here.get()
    if found is not None and found.span is not None:
        found.span.link(trace)


def event_metadata(trace: Trace | None) -> dict[str, str]:
    """Return the metadata of a status event that names its trace."""
    return {} if trace is None else {"traceId": trace.trace_id, "spanId": trace.span_id}
