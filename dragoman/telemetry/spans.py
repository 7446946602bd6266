"""Spans of OpenTelemetry, behind the Protocols of `telemetry/tracing.py`."""

from collections.abc import Mapping
from contextvars import Token
from typing import Any

from opentelemetry import context
from opentelemetry import trace as otel
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from dragoman.security.secret_names import holds_secret
from dragoman.security.secret_text import hidden_text
from dragoman.telemetry import tracing
from dragoman.telemetry.tracing import Here, Trace

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_ERROR = Status(StatusCode.ERROR)
# Characters of a name or an attribute.
_MAX_TEXT = 256
_HIDDEN = "***"


class SdkSpan:
    """One span."""

    __slots__ = ("_before", "_otel_before", "_span", "trace")

    def __init__(self, span: otel.Span) -> None:
        self._span = span
        own = span.get_span_context()
        self.trace = Trace(
            f"{own.trace_id:032x}",
            f"{own.span_id:016x}",
            f"{own.trace_flags:02x}",
            own.trace_state.to_header(),
        )
        self._before: Token[Here | None] | None = None
        self._otel_before: Token[context.Context] | None = None

    def enter(self) -> None:
        """Make it the parent of what the running code does from now on."""
        around = tracing.here.get() or Here()
        self._before = tracing.here.set(Here(self.trace, around.task_id, around.agent, self))
        # For libraries that use OpenTelemetry directly.
        self._otel_before = context.attach(otel.set_span_in_context(self._span))

    def leave(self) -> None:
        """Undo `enter`."""
        if self._otel_before is not None:
            context.detach(self._otel_before)
        if self._before is not None:
            tracing.here.reset(self._before)
        self._before = self._otel_before = None

    def rename(self, name: str) -> None:
        """Change its name."""
        self._span.update_name(name[:_MAX_TEXT])

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        for name, value in attributes.items():
            if value not in ("", None):
                self._span.set_attribute(name, _exported_value(name, value))

    def event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Add an event. Of very many the SDK keeps the last ones, and counts the others."""
        shown = {key: _exported_value(key, value) for key, value in (attributes or {}).items()}
        self._span.add_event(name[:_MAX_TEXT], shown)

    def link(self, trace: Trace) -> None:
        """Link a related trace."""
        if trace.trace_id != self.trace.trace_id:
            self._span.add_link(_context(trace))

    def fail(self, kind: str) -> None:
        """Mark it as failed."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(_ERROR)

    def end(self) -> None:
        """End it."""
        self._span.end()


class SdkTracer:
    """Makes spans."""

    def __init__(self, tracer: otel.Tracer) -> None:
        self._tracer = tracer

    def begin(
        self, name: str, kind: str, parent: Trace | None, attributes: Mapping[str, Any]
    ) -> SdkSpan:
        """Begin a span."""
        # Not the SDK's current context: a request must not join the trace of code around it.
        around = context.Context()
        if parent is not None:
            around = otel.set_span_in_context(otel.NonRecordingSpan(_context(parent)), around)
        shown = {
            key: _exported_value(key, value)
            for key, value in attributes.items()
            if value not in ("", None)
        }
        return SdkSpan(
            self._tracer.start_span(name[:_MAX_TEXT], around, _KINDS[kind], attributes=shown)
        )


def _context(parent: Trace) -> SpanContext:
    return SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent.flags, 16)),
        trace_state=TraceState.from_header([parent.state]) if parent.state else None,
    )


def _exported_value(name: str, value: Any) -> Any:
    """Return an attribute as it may leave the process: no secret, and no long text."""
    if holds_secret(name, value):
        return _HIDDEN
    if not isinstance(value, str):
        return value
    return hidden_text(value, _HIDDEN)[:_MAX_TEXT]
