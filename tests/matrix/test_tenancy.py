"""The proof of tenancy runs to its end and counts what is there."""

from pathlib import Path

import pytest

from proof.access.bindings import BINDINGS, HOUSES
from proof.access.callers import ORDER
from proof.access.matrix import STATES
from proof.access.tenancy import Ratio, TenancyResult, prove

WIRES = (*BINDINGS, *HOUSES)


async def test_the_proof_finds_no_difference(tmp_path: Path) -> None:
    found = await prove(2, 1, folder=tmp_path, operations=["GetTask"])
    assert (found.differences, found.findings[: found.differences]) == (0, [])
    assert found.cells == len(WIRES) * len(ORDER) * len(STATES)
    measured = {(one.binding, one.state) for one in found.ratios}
    assert measured == {(b.name, state) for b in WIRES for state in ("working", "finished")}
    assert all(one.ratio > 0 and one.never > 0 for one in found.ratios)


@pytest.mark.parametrize(
    ("differences", "ratios", "kept"),
    [(0, [0.9, 1.1], True), (1, [1.0], False), (0, [0.89, 1.0], False), (0, [1.0, 1.11], False)],
)
def test_a_difference_or_a_time_that_tells_breaks_the_promise(
    differences: int, ratios: list[float], kept: bool
) -> None:
    times = [Ratio("GetTask", "REST 1.0", "working", ratio, 1.0) for ratio in ratios]
    result = TenancyResult(seed=1, cells=5, differences=differences, samples=1, ratios=times)
    assert result.kept is kept
