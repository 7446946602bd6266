"""The bench measures a real server and reports what it saw; nothing here asserts a speed."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from bench import console, gateway, postgres, readme, wakeups, wire
from bench.__main__ import README
from bench.calls import Calls, call
from bench.measures import Bench, Plan, running, seed
from bench.report import document, errors, ratios, table
from bench.servers import OURS, PEER_KINDS, new_server
from proof.results import workplace

TINY = Plan(0.05, 1, 1, 20.0, 4, 1.0, 0, 20, (40, 80), 1, 1, 1.0, 0.0, float("inf"))
LIMIT = 120


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One run of the measures that take no minutes, without peers but with the limits."""
    limits = [kind for kind in PEER_KINDS if kind.is_limit]
    run = Bench(TINY, limits, tmp_path_factory.mktemp("bench"))
    measures = ["get", "list", "message", "send", "one", "streams", "cold", "idle", "growth"]
    asyncio.run(asyncio.wait_for(run.run(measures), LIMIT))
    return run


def test_every_call_of_the_bench_is_answered_rightly(bench: Bench) -> None:
    assert errors(bench.figures) == []
    for operation in ("get", "list", "message", "send"):
        assert bench.figures[operation]["dragoman"]["replies"] >= 16
    for operation in ("get", "message", "send", "one"):
        assert set(bench.figures[operation]) == {"dragoman", "bare-asgi", "bare-durable"}
    streams = bench.figures["streams"]["dragoman"]
    assert streams["ended"] and streams["per_second"] > 0


def test_figures_without_a_rate_are_measured_too(bench: Bench) -> None:
    assert bench.figures["idle"]["dragoman"]["subscribers"] == 20
    assert bench.figures["cold"]["dragoman"]["rss_mb"] > 1
    assert bench.figures["growth"]["80"]["stored_at_end"] == 80 + 2 * 400


def test_the_document_has_the_promised_shape(bench: Bench) -> None:
    peer = {"per_second": bench.figures["send"]["dragoman"]["per_second"] / 4, "errors": 0}
    peer["cpu_us"] = bench.figures["send"]["dragoman"]["cpu_us"] * 3
    ours = bench.figures["send"]["dragoman"]
    figures = {**bench.figures, "send": {"dragoman": ours, "a2a-sdk-memory": peer}}
    written = document(figures, bench.notes)
    assert set(written) == {"ratios", "cost_ratios", "figures", "versions"}
    assert written["cost_ratios"]["send"] == {"a2a-sdk-memory": 3.0}
    assert written["ratios"]["send"] == {"a2a-sdk-memory": 4.0}
    assert set(written["ratios"]) == {"send", "one", "message", "get", "streams"}
    assert written["versions"]["a2a-sdk"] == "1.3.0"
    assert "blocking echo send" in table(bench.figures, bench.notes)


def test_the_table_of_the_readme_is_made_of_the_figures(tmp_path: Path) -> None:
    figures = {
        "send": {
            "dragoman": {"cpu_us": 250.0, "cpu_spread": 0.1},
            "a2a-sdk-memory": {"cpu_us": 3500.0},
            "bare-asgi": {"cpu_us": 80.0},
        }
    }
    file = tmp_path / "README.md"
    shutil.copy(README, file)
    before = file.read_text()
    readme.update(file, figures)
    text = file.read_text()
    assert "| blocking send of an echo, 64 connections | 250 µs ± 5% | 14 | 0.32 |" in text
    assert text.partition(readme.BEGIN)[0] == before.partition(readme.BEGIN)[0]
    assert text.partition(readme.END)[2] == before.partition(readme.END)[2]
    file.write_text("no place")
    with pytest.raises(readme.NoTable):
        readme.update(file, figures)


def test_an_operation_that_only_one_side_did_has_no_ratio() -> None:
    assert ratios({"send": {"fasta2a-memory": {"per_second": 5.0}}}) == {}
    assert ratios({"send": {"dragoman": {"per_second": 5.0}}}) == {"send": {}}


def test_an_error_is_never_counted_as_a_reply(tmp_path: Path) -> None:
    async def ask_for_what_is_not_there() -> None:
        server = new_server(OURS, tmp_path)
        async with running(server):
            await seed(server)
            requests = wire.gets(wire.V1, [b"no-such-task"])
            outcome = await call(server.port, Calls(requests, wire.V1.completed, count=100))
        assert (outcome.replies, outcome.errors) == (0, 100)
        assert outcome.error

    asyncio.run(asyncio.wait_for(ask_for_what_is_not_there(), LIMIT))


def test_a_gateway_is_measured_beside_the_agent_behind_it(tmp_path: Path) -> None:
    sends = asyncio.run(asyncio.wait_for(gateway.forwarded(tmp_path, 1, 0.05), LIMIT))
    assert {name.split()[0] for name in sends} == {"direct", "durable", "gateway", gateway.MANY}
    assert all(one["per_second"] > 0 and one["processor_us"] >= 0 for one in sends.values())
    figures = gateway.document(sends, {"a skill": gateway.CHOOSE_MS + 1})
    assert "added with 16 connections" in gateway.table(figures)
    # One that takes too long to choose is said to, however fast the machine is.
    assert [text for text in gateway.missed(figures) if "a skill" in text]


async def test_a_call_on_postgresql_is_measured_with_what_postgresql_uses() -> None:
    # Not under pytest's folder: PostgreSQL may run as another user, who has to get there.
    with workplace() as folder:
        bench = postgres.PostgresBench(folder, rounds=1, window=0.3, limit=30.0)
        await asyncio.to_thread(bench.postgres.start)
        try:
            await bench.stored(100, 300)
        finally:
            await asyncio.to_thread(bench.postgres.kill)
    stored = bench.figures["stored"]
    assert (stored["few"], stored["many"]) == (100, 300)
    for name in ("send", "get"):
        assert stored[name]["few_us"] > 0 and stored[name]["ratio"] > 0


def test_medians_of_rounds_on_postgresql_keep_every_error() -> None:
    rounds = [
        {"per_second": rate, "errors": errors, "error": error, "ended": True}
        for rate, errors, error in ((3.0, 0, ""), (1.0, 2, "no"), (2.0, 1, "never"))
    ]
    assert postgres.medians(rounds) == {
        "per_second": 2.0, "errors": 3, "error": "no", "ended": True
    }  # fmt: skip


def test_ratios_on_postgresql_are_ours_over_theirs() -> None:
    row = {"per_second": 10.0, "whole_us": 300.0}
    figures = {"send": {"dragoman": {"per_second": 40.0, "whole_us": 100.0}, "peer": row}}
    assert postgres.ratios(figures) == {"send/peer": 4.0, "send/peer/work": 3.0}


def test_a_reader_of_ticks_counts_what_was_made_after_it_subscribed() -> None:
    reader = wakeups.Latecomer(b"")
    early, late = time.time_ns() - 10**9, time.time_ns() + 10**15
    reader.on_body(b'data: {"task": {"text": "%d"}}\n\ndata: {"te' % early)
    # Said before, and shown once more.
    reader.on_body(b'xt": "%d"}\n\n' % early)
    reader.on_body(b'data: {"text": "%d"}\r\n\r\n' % late)
    reader.on_body(b'data: {"state": "TASK_STATE_COMPLETED"}\n\n')
    assert reader.seen == {b"%d" % early, b"%d" % late}
    assert len(reader.delays) == 1 and reader.completed


def test_the_table_of_wake_ups_has_both_kinds_of_readers_and_what_was_missed() -> None:
    found = wakeups.Figures("notify", [1.0, 2.0], [1.0], missed=3, per_second=499.6, load=0.5)
    page = wakeups.table([found])
    assert "| notify | at another replica | 2 | 1.0 ms | 2.0 ms | 2.0 ms | 2.0 ms |" in page
    assert "notify: 500 events/s, 3 missed, load 0.5" in page
    assert found.document()["elsewhere"]["p99"] == 2.0


def test_a_promise_of_the_console_that_is_missed_fails_its_bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = console.PageAsked("/console")
    assert page.missed(100.0, 60.0) == []
    assert page.missed(101.0, 60.0) == ["101 ms, at most 100"]
    assert console.PageAsked("/file", "", 0).missed(1000.0, 20_000.0) == []

    async def free(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(console, "consoles", free)
    monkeypatch.setattr(console, "_MOST_KB", 0)
    assert console.main(["--tasks", "20", "--events", "20"]) == 1
    assert "MISSED: overview: 2 KB, at most 0" in capsys.readouterr().out
