"""The proof of fencing with one pause, and what it calls a stale write that was accepted."""

import asyncio
from pathlib import Path

import msgspec

from proof.crash import fencing
from proof.crash.checker import Stored

WITHIN = 60.0


def log(*events: bytes) -> Stored:
    return Stored(1, "t", "TASK_STATE_COMPLETED", len(events), "", list(events))


def chunk(pid: int, attempt: int, n: int) -> bytes:
    text = f"~{pid}.{attempt}.{n}~"
    return b'{"artifactUpdate":{"artifact":{"parts":[{"text":"%b"}]}}}' % text.encode()


BEGUN = b'{"task":{}}'
SECOND = b'{"attemptStarted":{"attempt":2}}'


async def test_nothing_a_frozen_worker_tries_is_accepted(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN):
        result = await fencing.prove(1, 4, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.pauses == 1 and result.tried > 0 and result.accepted == 0
    assert result.takeovers >= result.takeover_ms.count > 0
    assert result.bound == 3 / result.tried


def test_a_log_of_one_attempt_after_the_other_is_in_order() -> None:
    task = log(BEGUN, chunk(7, 1, 0), chunk(7, 1, 1), SECOND, chunk(8, 2, 0), chunk(8, 2, 1))
    assert fencing.accepted(task) == []


def test_a_chunk_of_an_attempt_that_is_over_was_accepted() -> None:
    task = log(BEGUN, chunk(7, 1, 0), SECOND, chunk(8, 2, 0), chunk(7, 1, 1))
    (fact,) = fencing.accepted(task)
    assert "event 5" in fact and "attempt 1, in attempt 2" in fact


def test_two_processes_in_one_attempt_are_one_too_many() -> None:
    assert len(fencing.accepted(log(BEGUN, chunk(7, 1, 0), chunk(8, 1, 0)))) == 1


def test_a_run_in_which_no_frozen_worker_tried_anything_shows_nothing() -> None:
    quiet = fencing.FencingResult(
        seed=1,
        processes=3,
        lease=1.0,
        pauses=1,
        tried=0,
        accepted=0,
        takeovers=1,
        takeover_ms=fencing.Spread(1, 900, 900, 900),
        unfenced=0,
        tasks=1,
        lost=0,
        hanging=0,
        changed=0,
        gaps=0,
        in_commit=0,
    )
    assert not quiet.kept
    assert msgspec.structs.replace(quiet, tried=5).kept
    assert not msgspec.structs.replace(quiet, tried=5, accepted=1).kept
    assert not msgspec.structs.replace(quiet, tried=5, hanging=1).kept
    assert not msgspec.structs.replace(quiet, tried=5, unfenced=1).kept
    late = fencing.Spread(1, 900, 900, 6001)
    assert not msgspec.structs.replace(quiet, tried=5, takeover_ms=late).kept
