"""What the machine takes from a measurement: noted, and left out on both sides of a ratio."""

import asyncio
from pathlib import Path

import pytest

from proof.overload import machine
from proof.overload.machine import Interruptions, stolen
from proof.overload.volley import SendTally

STAT = """\
cpu  9 0 9 9 9 0 9 {both} 0 0
cpu0 9 0 9 9 9 0 9 {first} 0 0
cpu1 9 0 9 9 9 0 9 {second} 0 0
intr 5 0
"""


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "stat"
    file.write_text(STAT.format(both=30, first=10, second=20))
    monkeypatch.setattr(machine, "_STAT", file)
    monkeypatch.setattr(machine, "_BETWEEN", 0.001)
    return file


def test_what_was_taken_is_read_for_each_processor(stat: Path) -> None:
    assert stolen() == [0.1, 0.2]
    for unknown in ("", "cpu0 1 2 3\n", "cpu0 a b c d e f g h\n"):
        stat.write_text(unknown)
        assert stolen() == []
    stat.unlink()
    assert stolen() == []


def test_only_what_is_worth_it_is_noted_with_what_follows_it() -> None:
    found = Interruptions()
    found.note((1.0, 1.05), [0.0, 0.01])
    found.note((2.0, 2.05), [])
    assert found.quiet(0, 5) == [(0, 5)]
    found.note((3.0, 3.1), [0.1, 0.0])
    # It goes on before what followed the first is over.
    found.note((3.3, 3.4), [0.0, 0.1])
    found.note((7.0, 7.1), [0.0, 0.1])
    assert found.quiet(0, 5) == [(0, 3.0), (3.9, 5)]
    assert found.quiet(3.2, 3.5) == []
    assert found.quiet(3.2, 8) == [(3.9, 7.0), (7.6, 8)]
    assert found.quiet(3.9, 7.0) == [(3.9, 7.0)]


async def test_they_are_noted_while_it_is_watched(stat: Path) -> None:
    found = Interruptions()
    async with found.watched(), asyncio.timeout(60):
        stat.write_text(STAT.format(both=40, first=10, second=30))
        while not found._spans:  # noqa: ASYNC110  # it looks by itself
            await asyncio.sleep(0.001)
    assert len(found._spans) == 1


def test_what_was_answered_meanwhile_does_not_count() -> None:
    tally = SendTally(began=10.0, seconds=4.0)
    for at in (10.5, 11.5, 12.5, 13.5):
        tally.take(200, b'{"task":{"id":"x"', took=at / 100, at=at)
    quiet = tally.within([(10.0, 11.0), (12.5, 13.5)])
    assert quiet.accepted == [0.105, 0.125] and quiet.seconds == 2.0
    assert quiet.goodput == 1.0
