"""The table of guards, and the removals that take no time; all of them are a run of their own."""

import asyncio
import inspect
import logging
from pathlib import Path

import msgspec
import pytest

from dragoman.push import receiver
from dragoman.stores.sqlite import store
from dragoman.testing.processes import CannotStart
from proof.__main__ import PROOFS
from proof.client import CallRefused
from proof.sabotage import sabotage
from proof.sabotage.patches import Patches
from proof.sabotage.sabotage import GUARDS
from proof.sabotage.saboteur import REMOVALS, without
from proof.sabotage.trial import Finding, Guard, Trial

WITHIN = 240.0
HERE = [guard for guard in GUARDS if guard.is_here]
# One that takes processes; the others need a few seconds each.
QUICK = "tenant"


def named(name: str) -> Guard:
    (guard,) = [guard for guard in GUARDS if guard.name == name]
    return guard


def test_every_guard_has_a_removal_and_a_check_and_every_removal_is_used() -> None:
    names = [guard.name for guard in GUARDS]
    assert len(names) == len(set(names)) >= 12
    assert set(names) == set(REMOVALS)
    for guard in GUARDS:
        assert inspect.iscoroutinefunction(guard.check) and inspect.getdoc(guard.check), guard
        assert guard.protects and guard.removed and guard.check_name
    assert {"fencing", "sabotage"} <= set(PROOFS)


@pytest.mark.parametrize("name", REMOVALS)
def test_what_is_to_be_removed_is_there_and_is_put_back(name: str) -> None:
    before = store.queries(), receiver.TOLERANCE, store.connect
    with without(name):
        pass
    assert (store.queries(), receiver.TOLERANCE, store.connect) == before


def test_a_guard_that_is_not_where_it_was_is_an_error() -> None:
    with pytest.raises(KeyError):
        Patches().put(receiver, "NO_SUCH_GUARD", lambda _: None)
    with pytest.raises(KeyError), without("no such guard"):
        pass


@pytest.mark.parametrize("guard", [*HERE, named(QUICK)], ids=lambda guard: guard.name)
async def test_a_check_is_green_with_its_guard_and_red_without(
    guard: Guard, tmp_path: Path
) -> None:
    if guard.name == "stop-iteration" and _futures_take_stop_iteration():
        pytest.skip("futures of this Python take StopIteration: without the guard nothing hangs")
    # As the command has it.
    logging.getLogger("dragoman").setLevel(logging.CRITICAL)
    async with asyncio.timeout(WITHIN):
        result = await sabotage.prove(4, folder=tmp_path, guards=[guard])
    assert result.kept and result.red == result.guards == 1, result


def _futures_take_stop_iteration() -> bool:
    """Tell whether a future makes another exception of it, as since 3.11.8, 3.12.2 and 3.13."""
    future = asyncio.get_running_loop().create_future()
    try:
        future.set_exception(StopIteration())
    except TypeError:
        return False
    return future.exception() is not None


async def test_a_removal_that_nobody_notices_is_not_kept(tmp_path: Path) -> None:
    async def blind(trial: Trial) -> Finding:
        return Finding(True, "all is well")

    async def cross(trial: Trial) -> Finding:
        return Finding(False, "nothing is well")

    guards = [Guard("fence", "X1", "x", blind, True), Guard("claim", "X1", "x", cross, True)]
    result = await sabotage.prove(4, folder=tmp_path, guards=guards)
    # Blind to the removal, and red before anything was removed.
    assert not result.kept and result.red == 0
    assert result.findings == ["fence: blind did not notice"]
    shown = msgspec.json.decode(msgspec.json.encode(result))
    assert (shown["guards"], shown["red"]) == (2, 0)
    assert [(row["guard"], row["green"], row["red"]) for row in shown["rows"]] == [
        ("fence", True, False),
        ("claim", False, True),
    ]


async def test_a_check_that_hangs_without_its_guard_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def patient(trial: Trial) -> Finding:
        if trial.guard:
            await asyncio.Event().wait()
        return Finding(True, "done")

    monkeypatch.setattr(sabotage, "WITHIN", 0.05)
    guards = [Guard("fence", "X1", "x", patient, True)]
    result = await sabotage.prove(4, folder=tmp_path, guards=guards)
    assert result.kept and "no end" in result.table[0].figure_without


async def test_whatever_a_check_meets_without_its_guard_is_red_and_the_others_have_their_turn(
    tmp_path: Path,
) -> None:
    async def grouped(trial: Trial) -> Finding:
        if trial.guard:
            async with asyncio.TaskGroup() as group:
                group.create_task(refused())
        return Finding(True, "done")

    async def refused() -> None:
        raise CallRefused({"message": "Internal error"})

    async def stillborn(trial: Trial) -> Finding:
        if trial.guard:
            raise CannotStart("the server did not become ready:\nno port")
        return Finding(True, "done")

    guards = [Guard("fence", "X1", "x", grouped, True), Guard("claim", "X1", "x", stillborn, True)]
    result = await sabotage.prove(4, folder=tmp_path, guards=guards)
    assert [line.red for line in result.table] == [True, False]
    assert "Refused: Internal error" in result.table[0].figure_without
    assert "did not start" in result.table[1].figure_without
