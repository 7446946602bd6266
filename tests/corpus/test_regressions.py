"""Replays every case that ever failed, and proves that the loader reads what it wrote."""

from __future__ import annotations

from pathlib import Path

from tests.corpus import regressions
from tests.corpus.run import generated, run
from tests.corpus.server import in_process


async def test_regressions_stay_fixed() -> None:
    async with in_process() as server:
        report = await run(server, regressions.load())
    assert report.clean, str(report)


def test_regressions_are_read_as_they_were_written(tmp_path: Path) -> None:
    for category in (1, 3, 16):
        for case in generated(category)[::197]:
            path = regressions.save(tmp_path, case)
            assert regressions.load(tmp_path) == [case]
            path.unlink()
