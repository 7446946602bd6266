"""Counters, histograms and gauges, and their Prometheus text format.

One implementation serves both readers: the page in Prometheus' text format and the OTLP exporter.
An addition is a dictionary look-up and a sum, without a lock: each series is written by one thread
at a time, that of the event loop or of the store.
"""

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar
from weakref import WeakMethod

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds; from a fast read to a long task.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Series of one name; further ones are counted as one, so that no caller can fill the memory.
MAX_SERIES = 1000
_OTHER = "other"

Labels = tuple[str, ...]


class BucketCounts(msgspec.Struct, gc=False):
    """Counts of observations by size."""

    counts: list[int]
    sum: float = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class Family(msgspec.Struct, kw_only=True):
    """All series of one name, as read at one moment."""

    name: str
    kind: str
    help: str
    labels: Labels
    bounds: tuple[float, ...] = ()
    values: list[tuple[Labels, float]] = []
    buckets: list[tuple[Labels, BucketCounts]] = []
    # Name and factor in OpenTelemetry.
    otel: str = ""
    scale: float = 1.0


class _Instrument:
    """One name and its series."""

    kind: str
    every: ClassVar[list["_Instrument"]] = []

    def __init__(
        self, name: str, help: str, *labels: str, otel: str = "", scale: float = 1.0
    ) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.otel = otel or name.replace("_", ".")
        self.scale = scale
        self.every.append(self)

    def read(self) -> Family:
        """Return the series as they are."""
        raise NotImplementedError

    def _family(self) -> Family:
        return Family(
            name=self.name,
            kind=self.kind,
            help=self.help,
            labels=self.labels,
            otel=self.otel,
            scale=self.scale,
        )


class Counter(_Instrument):
    """A count that only grows."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str, otel: str = "") -> None:
        super().__init__(name, help, *labels, otel=otel)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, *labels: str, by: float = 1) -> None:
        """Add to a series."""
        try:
            self._values[labels] += by
        except KeyError:
            values = self._values
            key = labels if len(values) < MAX_SERIES else (_OTHER,) * len(labels)
            values[key] = values.get(key, 0) + by

    def value(self, *labels: str) -> float:
        """Return a count."""
        return self._values.get(labels, 0)

    def read(self) -> Family:
        """Return the series as they are."""
        family = self._family()
        family.values = sorted(self._values.copy().items())
        return family


# Observations of one series that are sorted into buckets together, which costs a fraction.
_SORTED_TOGETHER = 256


class _Series(msgspec.Struct, frozen=True):
    """The buckets of a series and the observations that are not in them yet. It is replaced as a
    whole: a reader in another thread sees each observation once."""

    buckets: BucketCounts
    latest: list[float]

    def sorted(self, bounds: tuple[float, ...]) -> BucketCounts:
        """Return the buckets with all observations in them."""
        latest = sorted(self.latest)
        ends = [0, *[bisect_right(latest, bound) for bound in bounds], len(latest)]
        more = [end - begin for begin, end in pairwise(ends)]
        counts = [a + b for a, b in zip(self.buckets.counts, more, strict=True)]
        return BucketCounts(counts, self.buckets.sum + sum(latest))


class Histogram(_Instrument):
    """A distribution of sizes."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help: str,
        *labels: str,
        bounds: Sequence[float] = SECONDS,
        otel: str = "",
        scale: float = 1.0,
    ) -> None:
        super().__init__(name, help, *labels, otel=otel, scale=scale)
        self._bounds = tuple(bounds)
        self._series: dict[Labels, _Series] = {}
        if not labels:
            self._series[()] = self._empty()

    def _empty(self) -> _Series:
        return _Series(BucketCounts([0] * (len(self._bounds) + 1)), [])

    def add(self, size: float, *labels: str) -> None:
        """Add an observation."""
        try:
            latest = self._series[labels].latest
        except KeyError:
            if len(self._series) >= MAX_SERIES:
                labels = (_OTHER,) * len(labels)
            latest = self._series.setdefault(labels, self._empty()).latest
        latest.append(size)
        if len(latest) >= _SORTED_TOGETHER:
            self._series[labels] = _Series(self._series[labels].sorted(self._bounds), [])

    def read(self) -> Family:
        """Return the series as they are."""
        family = self._family()
        family.bounds = self._bounds
        family.buckets = [
            (labels, series.sorted(self._bounds))
            for labels, series in sorted(self._series.copy().items(), key=lambda item: item[0])
        ]
        return family


Reading = Callable[[], float]
# By labels, or by the one label there is.
Table = Mapping[str, float] | Mapping[Labels, float]


class Gauge(_Instrument):
    """A value that rises and falls, read when the page is made. Readings with the same labels add
    up."""

    def __init__(
        self, name: str, help: str, *labels: str, otel: str = "", kind: str = "gauge"
    ) -> None:
        super().__init__(name, help, *labels, otel=otel)
        self.kind = kind
        self._readings: list[tuple[Labels, Callable[[], Reading | None]]] = []
        self._tables: list[Callable[[], Table]] = []

    def watch(self, reading: Reading, *labels: str) -> Callable[[], None]:
        """Register a function that returns the value; return a function that removes it."""
        # Weak: a method that is never removed does not keep its object alive.
        reference = WeakMethod(reading) if inspect.ismethod(reading) else lambda: reading
        watched = (labels, reference)
        self._readings.append(watched)

        def remove() -> None:
            if watched in self._readings:
                self._readings.remove(watched)

        return remove

    def watch_each(self, table: Callable[[], Table]) -> None:
        """Register a function that returns the values of all series by their labels."""
        self._tables.append(table)

    def read(self) -> Family:
        """Return the series as they are."""
        family = self._family()
        sums: dict[Labels, float] = {}
        for table in self._tables:
            for key, value in dict(table()).items():
                labels = (key,) if isinstance(key, str) else key
                sums[labels] = sums.get(labels, 0) + value
        for watched in list(self._readings):
            labels, reading = watched[0], watched[1]()
            if reading is not None:
                sums[labels] = sums.get(labels, 0) + reading()
            elif watched in self._readings:
                self._readings.remove(watched)
        family.values = sorted(sums.items())
        return family


def collect() -> list[Family]:
    """Return all metrics of this process."""
    return [instrument.read() for instrument in _Instrument.every]


def merged(reports: Iterable[Sequence[Family]]) -> list[Family]:
    """Return the sum of the metrics of several processes."""
    found: dict[str, Family] = {}
    for report in reports:
        for family in report:
            known = found.get(family.name)
            if known is None:
                found[family.name] = family
                continue
            sums = dict(known.values)
            for labels, value in family.values:
                sums[labels] = sums.get(labels, 0) + value
            known.values = sorted(sums.items())
            _merge_buckets(known, family)
    return list(found.values())


def _merge_buckets(known: Family, family: Family) -> None:
    by_labels = dict(known.buckets)
    for labels, buckets in family.buckets:
        total = by_labels.get(labels)
        if total is None:
            by_labels[labels] = buckets
        else:
            total.counts = [a + b for a, b in zip(total.counts, buckets.counts, strict=True)]
            total.sum += buckets.sum
    known.buckets = sorted(by_labels.items(), key=lambda item: item[0])


def text(families: Iterable[Family]) -> bytes:
    """Return the page."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.values:
            lines.append(f"{family.name}{_labels(family.labels, labels)} {_number(value)}")
        for labels, buckets in family.buckets:
            lines += _bucket_lines(family, labels, buckets)
    lines.append("")
    return "\n".join(lines).encode()


def _bucket_lines(family: Family, labels: Labels, buckets: BucketCounts) -> list[str]:
    lines: list[str] = []
    names = (*family.labels, "le")
    total = 0
    for bound, count in zip((*family.bounds, math.inf), buckets.counts, strict=True):
        total += count
        shown = "+Inf" if bound == math.inf else _number(bound)
        lines.append(f"{family.name}_bucket{_labels(names, (*labels, shown))} {total}")
    tail = _labels(family.labels, labels)
    lines.append(f"{family.name}_sum{tail} {_number(buckets.sum)}")
    lines.append(f"{family.name}_count{tail} {total}")
    return lines


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
