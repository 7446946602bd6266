"""The proofs with small counts: on the product they find nothing, on a product without its guards
they do."""

import asyncio
from pathlib import Path

import pytest

from proof.crash import crash, drain, idempotency
from proof.wire import resume, slow_reader

WITHIN = 60.0


async def test_nothing_acknowledged_is_lost_when_servers_are_killed(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN):
        result = await crash.prove(2, 4, folder=tmp_path, processes=2, check_every=2)
    # How soon a task goes on is for a machine that does nothing else to say.
    broken = [row for row in result.rows() if not row.kept and "resumed" not in row.promise]
    assert result.findings == [] and broken == [], result
    assert result.kills == 2 and result.acked > 50 and result.tasks >= result.acked
    assert result.bound == 3 / result.acked
    # There was something to lose, and something to send again.
    assert result.unknown > 0


@pytest.mark.usefixtures("one_loop")
@pytest.mark.parametrize("transport", ["jsonrpc", "grpc"])
async def test_no_event_is_missed_or_seen_twice_by_readers_that_come_back(
    tmp_path: Path, transport: str
) -> None:
    async with asyncio.timeout(WITHIN):
        result = await resume.prove(80, 4, folder=tmp_path, transport=transport)
    assert result.findings == [] and result.kept, result
    assert result.disconnects >= 80 and result.kills == 1 and result.events > 100


async def test_a_message_sent_many_times_is_one_task(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN):
        result = await idempotency.prove(12, 4, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.tasks == result.messages == 5 and result.answers == 12 * 9


async def test_a_server_that_forgets_messages_breaks_the_promise_of_one_task(
    tmp_path: Path,
) -> None:
    forgetful = {"DRAGOMAN_IDEMPOTENCY": "false"}
    async with asyncio.timeout(WITHIN):
        result = await idempotency.prove(3, 4, folder=tmp_path, processes=1, environment=forgetful)
    assert not result.kept
    assert result.tasks > result.messages and result.doubled > 0 and result.findings


async def test_stopping_servers_under_load_loses_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN):
        result = await drain.prove(2, 4, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.acked > 50 and result.exit_ms.count == 2


async def test_readers_that_never_read_cost_little_memory(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN):
        result = await slow_reader.prove(40, 4, folder=tmp_path, chunks=300, turns=1)
    memory = result.rows()[1]
    assert memory.kept, memory
    # Times on a machine that does other things say little; a reader that is waited for would
    # keep the task for ever.
    assert result.seconds_with > 0 and result.ratio < 10
