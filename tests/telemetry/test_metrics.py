"""Counting: the page is what Prometheus reads, and no caller can make it grow."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.telemetry import metrics, page
from dragoman.telemetry.metrics import MAX_SERIES, Counter, Gauge, Histogram


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Instruments of a test are on no page but its own."""
    monkeypatch.setattr(metrics._Instrument, "every", [])
    yield


def read(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.mark.usefixtures("apart")
def test_the_page_says_what_was_counted() -> None:
    counter = Counter("things_total", "Things.", "kind", "size")
    counter.add("a", "s")
    counter.add("a", "s", by=2)
    counter.add('quote " back \\ line \n', "l")
    histogram = Histogram("wait_seconds", "Waits.", "kind", bounds=(0.1, 1.0))
    for size in (0.05, 0.1, 0.5, 7.0):
        histogram.add(size, "a")
    gauge = Gauge("open", "Open.")
    gauge.watch(lambda: 3)
    gauge.watch(lambda: 4)
    found = read(page.render())
    assert found["things_total", (("kind", "a"), ("size", "s"))] == 3
    assert found["things_total", (("kind", 'quote " back \\ line \n'), ("size", "l"))] == 1
    assert found["wait_seconds_bucket", (("kind", "a"), ("le", "0.1"))] == 2
    assert found["wait_seconds_bucket", (("kind", "a"), ("le", "1"))] == 3
    assert found["wait_seconds_bucket", (("kind", "a"), ("le", "+Inf"))] == 4
    assert found["wait_seconds_count", (("kind", "a"),)] == 4
    assert found["wait_seconds_sum", (("kind", "a"),)] == pytest.approx(7.65)
    assert found["open", ()] == 7


@pytest.mark.usefixtures("apart")
def test_a_thing_that_is_gone_is_not_watched_any_more() -> None:
    class Room:
        def people(self) -> float:
            return 5

    gauge = Gauge("people", "People.")
    room = Room()
    gauge.watch(room.people)
    forget = gauge.watch(lambda: 1)
    assert read(page.render())["people", ()] == 6
    forget()
    forget()
    assert read(page.render())["people", ()] == 5
    del room
    assert ("people", ()) not in read(page.render())


@pytest.mark.usefixtures("apart")
def test_series_are_bounded_whatever_callers_send() -> None:
    counter = Counter("things_total", "Things.", "kind")
    histogram = Histogram("wait_seconds", "Waits.", "kind")
    chance = random.Random(1)
    for _ in range(MAX_SERIES + 500):
        word = chance.randbytes(8).hex()
        counter.add(word)
        histogram.add(0.1, word)
    assert len(counter.read().values) <= MAX_SERIES + 1
    assert len(histogram.read().buckets) <= MAX_SERIES + 1
    assert sum(value for _, value in counter.read().values) == MAX_SERIES + 500


@pytest.mark.usefixtures("apart")
def test_workers_on_one_port_answer_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter("things_total", "Things.", "kind")
    histogram = Histogram("wait_seconds", "Waits.")
    counter.add("a", by=2)
    histogram.add(0.02)
    for sibling in ("111111", "222222"):
        page.write_counts(tmp_path / f"{sibling}.json")
    (tmp_path / "broken.json").write_text("{")
    counter.add("b")
    monkeypatch.setenv(page.FOLDER_VARIABLE, str(tmp_path))
    found = read(page.render())
    assert found["things_total", (("kind", "a"),)] == 6
    assert found["things_total", (("kind", "b"),)] == 1
    assert found["wait_seconds_count", ()] == 3


def test_the_real_page_has_every_figure_before_anything_happened() -> None:
    families = {family.name for family in text_string_to_metric_families(page.render().decode())}
    assert {"dragoman_build_info", "process_open_fds", "dragoman_push_delivered"} <= families
    assert read(page.render())["process_resident_memory_bytes", ()] > 1_000_000
