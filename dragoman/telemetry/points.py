"""Our counts in the shape the SDK's metric exporter takes."""

import time
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from dragoman.telemetry.figures import release
from dragoman.telemetry.metrics import Family, Labels, collect

_SINCE = time.time_ns()
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(resource: Resource) -> MetricsData:
    """Return the metrics of this process. The collector adds up the workers."""
    now = time.time_ns()
    metrics = [
        Metric(_name(family), family.help, _unit(family), _data(family, now))
        for family in collect()
        if family.values or family.buckets
    ]
    scope = ScopeMetrics(InstrumentationScope("dragoman", release()), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _name(family: Family) -> str:
    return family.otel.removesuffix(".total")


def _unit(family: Family) -> str:
    if family.scale == 1000.0:
        return "ms"
    return "s" if family.name.endswith("_seconds") else "1"


def _data(family: Family, now: int) -> Sum | Gauge | Histogram:
    if family.kind == "histogram":
        return Histogram(_buckets(family, now), _CUMULATIVE)
    points = [
        NumberDataPoint(_attributes(family, labels), _SINCE, now, value)
        for labels, value in family.values
    ]
    if family.kind == "counter":
        return Sum(points, _CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _buckets(family: Family, now: int) -> Sequence[HistogramDataPoint]:
    bounds = [bound * family.scale for bound in family.bounds]
    return [
        HistogramDataPoint(
            _attributes(family, labels),
            _SINCE,
            now,
            buckets.count,
            buckets.sum * family.scale,
            buckets.counts,
            bounds,
            # Neither is known; the encoder leaves out what is None, though its types do not say so.
            min=None,  # pyright: ignore[reportArgumentType] - see above
            max=None,  # pyright: ignore[reportArgumentType] - see above
        )
        for labels, buckets in family.buckets
    ]


def _attributes(family: Family, labels: Labels) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))
