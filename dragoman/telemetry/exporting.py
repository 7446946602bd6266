"""Exports spans and metrics to a collector, over OTLP/HTTP with the OpenTelemetry SDK.

The SDK is loaded only if a collector is configured. A collector that is dead, slow or broken costs
spans and one log line a minute: nothing waits for it, not even the end of the process.

The exporter does not dial through `egress/egress.py`: the operator configures the address of the
collector, and no caller influences it.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.telemetry import figures, tracing

logger = logging.getLogger("dragoman")

QUEUE = 1000
BATCH = 512
DELAY_MS = 1000
# Seconds a collector has for a batch, and for the rest at the end.
TIMEOUT = 5.0
CLOSE_WITHIN = 2.0
COMPLAIN_EVERY = 60.0
# Between two exports of metrics, unless the SDK's variable is set; at most a day.
EVERY_MS = 60_000
_LONGEST_MS = 86_400_000
_EVERY = "OTEL_METRIC_EXPORT_INTERVAL"
_SIGNALS = ("/v1/traces", "/v1/metrics")
_MISSING = "a collector is configured, but the exporter is not: pip install 'dragoman[telemetry]'"


class _Complaint(logging.Handler):
    """Logs failed exports once a minute, however often the SDK reports them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one line of many."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + COMPLAIN_EVERY
            logger.warning("traces or metrics were not delivered: %s", record.getMessage())


class Exporting:
    """The exporters, while spans are made."""

    def __init__(self, base: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from dragoman.telemetry.spans import SdkTracer

        self._quieten()
        self.resource = Resource.create(_resource_attributes())
        # Without a configured address the SDK reads its own variables.
        traces, metrics = (base + signal if base else None for signal in _SIGNALS)
        self._provider = TracerProvider(resource=self.resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=traces, timeout=TIMEOUT),
                max_queue_size=QUEUE,
                max_export_batch_size=BATCH,
                schedule_delay_millis=DELAY_MS,
            )
        )
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            # Spans of libraries that an agent uses become children of ours.
            trace.set_tracer_provider(self._provider)
        self.tracer = SdkTracer(self._provider.get_tracer("dragoman", figures.release()))
        exporter: Any = OTLPMetricExporter(endpoint=metrics, timeout=TIMEOUT)
        # Any: its methods take keyword arguments without types.
        self._metrics = exporter
        self._is_ending = threading.Event()
        # The SDK restarts its thread after a fork. This one need not: workers are spawned.
        self._pump = threading.Thread(target=self._send_metrics, name="dragoman-otlp", daemon=True)
        self._pump.start()

    @staticmethod
    def _quieten() -> None:
        sdk = logging.getLogger("opentelemetry")
        if not any(isinstance(handler, _Complaint) for handler in sdk.handlers):
            sdk.addHandler(_Complaint())
        sdk.propagate = False

    def _send_metrics(self) -> None:
        from dragoman.telemetry.points import metrics_data

        every = _interval(os.environ) / 1000
        while True:
            is_last = self._is_ending.wait(every)
            try:
                self._metrics.export(metrics_data(self.resource))
            except Exception as error:
                # A collector that is away must not end the thread: the next round tries again.
                logging.getLogger("opentelemetry").error("metrics: %s", error)
            if is_last:
                return

    def shut_down(self) -> None:
        """Send the rest, and end. Takes as long as the collector takes."""
        self._is_ending.set()
        self._provider.shutdown()
        self._pump.join()
        self._metrics.shutdown()


def _interval(environment: Mapping[str, str]) -> int:
    """Return the milliseconds between two exports of metrics."""
    text = environment.get(_EVERY, "").strip()
    if not text:
        return EVERY_MS
    if text.isascii() and text.isdecimal() and 0 < int(text) <= _LONGEST_MS:
        return int(text)
    logger.warning("%s is no number of milliseconds; metrics go out every %d", _EVERY, EVERY_MS)
    return EVERY_MS


def _resource_attributes() -> dict[str, str]:
    """Return the resource attributes that the SDK's own variables do not set."""
    found: dict[str, str] = {"service.version": figures.release(), "process.pid": str(os.getpid())}
    named = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in named:
        found["service.name"] = "dragoman"
    if stage := os.environ.get("STAGE"):
        found["deployment.environment.name"] = stage
    return found


class ExportTarget(NamedTuple):
    """Whether anything is exported, and where to; empty: as the SDK's variables say."""

    is_on: bool
    base: str


def endpoint(settings: Settings, environment: Mapping[str, str]) -> ExportTarget:
    """Return where traces and metrics are sent."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ExportTarget(False, "")
    if settings.telemetry.otlp_endpoint:
        base = settings.telemetry.otlp_endpoint.rstrip("/")
        for signal in _SIGNALS:
            base = base.removesuffix(signal)
        return ExportTarget(True, base)
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return ExportTarget(any(environment.get(name) for name in names), "")


# One for the whole process, however many apps it has; the last one closes it.
_open: Exporting | None = None
_users = 0


def open(settings: Settings) -> None:
    """Make spans from now on, if a collector is configured. Every `open` needs its `close`."""
    global _open, _users
    _users += 1
    if _open is not None:
        tracing.per_event = tracing.per_event or settings.telemetry.trace_events
        return
    is_on, base = endpoint(settings, os.environ)
    if not is_on:
        return
    try:
        _open = Exporting(base)
    except ImportError:
        if settings.telemetry.otlp_endpoint:
            raise ConfigError(f"otlp_endpoint: {_MISSING}") from None
        logger.warning(_MISSING)
        return
    tracing.tracer, tracing.on = _open.tracer, True
    tracing.per_event = settings.telemetry.trace_events


async def close() -> None:
    """Undo one `open`; the last makes no more spans."""
    global _users
    _users = max(0, _users - 1)
    if not _users:
        await end()


async def end() -> None:
    """Make no more spans, however many apps are open; existing ones have a moment to be sent."""
    global _open
    if _open is None:
        return
    ending, _open = _open, None
    tracing.on = tracing.per_event = False
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def shut_down() -> None:
        ending.shut_down()
        # The loop may be closed: then nothing waits for this.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    # A daemon thread: the collector may never answer.
    threading.Thread(target=shut_down, name="dragoman-otlp-end", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), CLOSE_WITHIN)
    except TimeoutError:
        logger.warning("the collector did not accept the last spans in %g s", CLOSE_WITHIN)
