"""Spans as OpenTelemetry makes them, behind the shape that `telemetry/tracing.py` asks for."""

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
# Of a name or a text: longer ones are nobody's id.
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
        """Let what the running code does from here on belong to it."""
        around = tracing.here.get() or Here()
        self._before = tracing.here.set(Here(self.trace, around.task_id, around.agent, self))
        # For libraries that know OpenTelemetry and not us.
        self._otel_before = context.attach(otel.set_span_in_context(self._span))

    def leave(self) -> None:
        """Undo `enter`."""
        if self._otel_before is not None:
            context.detach(self._otel_before)
        if self._before is not None:
            tracing.here.reset(self._before)
        self._before = self._otel_before = None

    def rename(self, name: str) -> None:
        """Call it by what it turned out to be."""
        self._span.update_name(name[:_MAX_TEXT])

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more about it."""
        for name, value in attributes.items():
            if value not in ("", None):
                self._span.set_attribute(name, _shown(name, value))

    def event(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Note that something happened meanwhile. Of very many the SDK keeps the last ones, and
        counts the others."""
        said = {key: _shown(key, value) for key, value in (attributes or {}).items()}
        self._span.add_event(name[:_MAX_TEXT], said)

    def link(self, trace: Trace) -> None:
        """Point to another trace."""
        if trace.trace_id != self.trace.trace_id:
            self._span.add_link(_context(trace))

    def fail(self, kind: str) -> None:
        """Note that it failed."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(_ERROR)

    def end(self) -> None:
        """It is done."""
        self._span.end()


class SdkTracer:
    """Makes spans."""

    def __init__(self, tracer: otel.Tracer) -> None:
        self._tracer = tracer

    def begin(
        self, name: str, kind: str, parent: Trace | None, attributes: Mapping[str, Any]
    ) -> SdkSpan:
        """Begin a span."""
        # Never the SDK's own idea of where we are: a request must not join what runs around it.
        around = context.Context()
        if parent is not None:
            around = otel.set_span_in_context(otel.NonRecordingSpan(_context(parent)), around)
        said = {
            key: _shown(key, value) for key, value in attributes.items() if value not in ("", None)
        }
        return SdkSpan(
            self._tracer.start_span(name[:_MAX_TEXT], around, _KINDS[kind], attributes=said)
        )


def _context(parent: Trace) -> SpanContext:
    return SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent.flags, 16)),
        trace_state=TraceState.from_header([parent.state]) if parent.state else None,
    )


def _shown(name: str, value: Any) -> Any:
    """Return what of an attribute leaves the process: no secret, and no text of any length."""
    if holds_secret(name, value):
        return _HIDDEN
    if not isinstance(value, str):
        return value
    return hidden_text(value, _HIDDEN)[:_MAX_TEXT]
