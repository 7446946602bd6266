"""A collector as the specification has it: takes OTLP over HTTP, decodes it, and keeps it.

It can also be a bad one: refuse everything with 500, or take requests and never answer.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from harness.stub_servers import Answer, answering
from harness.waiting import WAIT
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """A span that arrived."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    # The other traces it points to.
    links: list[str]
    failed: bool
    service: str


class Collector:
    """What arrived."""

    def __init__(self, status: int) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        # The status it answers with; 0: it never does.
        self.status = status
        self.over = threading.Event()
        self._changed = threading.Condition()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Keep what a request brought."""
        with self._changed:
            self.bodies.append(body)
            self.headers.append(headers)
            if path == "/v1/traces":
                self.spans += _spans(body)
            elif path == "/v1/metrics":
                self.metrics |= _metrics(body)
            self._changed.notify_all()

    def wait(self, holds: Callable[["Collector"], bool], seconds: float = WAIT) -> None:
        """Wait until something holds of what arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), seconds), sorted(
                (span.service, span.name) for span in self.spans
            )

    def named(self, name: str, service: str = "") -> list[Span]:
        return [span for span in self.spans if span.name == name and service in ("", span.service)]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def _said(attributes: Any) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in attributes}


def _spans(body: bytes) -> list[Span]:
    found: list[Span] = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        said = _said(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                found.append(
                    Span(
                        span.name,
                        span.kind,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _said(span.attributes),
                        [(event.name, _said(event.attributes)) for event in span.events],
                        [link.trace_id.hex() for link in span.links],
                        span.status.code == 2,
                        said.get("service.name", ""),
                    )
                )
    return found


def _metrics(body: bytes) -> dict[str, Any]:
    return {
        metric.name: metric
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@contextmanager
def collecting(status: int = 200) -> Generator[Collector]:
    """Have a collector for as long as the block lasts."""

    collector = Collector(status)

    def take(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        collector.take(path, body, headers)
        if not collector.status:
            collector.over.wait(WAIT)
            return None
        return collector.status, {}, b""

    with answering(take) as port:
        collector.url = f"http://127.0.0.1:{port}"
        try:
            yield collector
        finally:
            collector.over.set()
