"""Every operation, binding, caller and state of a task, held against the table of `matrix.toml`."""

import time
from pathlib import Path

import pytest

from dragoman.dialects.operations import ROWS
from dragoman.model.identity import Scope
from proof.access.bindings import BINDINGS, HOUSES, Answer
from proof.access.callers import ORDER, RUNNER
from proof.access.matrix import STATES, Scene, Thing, gather, operation, table
from tests.matrix.conftest import scene_in
from tests.matrix.sites import gateway_in

OUTCOMES = {"yes", "over", "end", "none", "401"}


def test_every_operation_has_a_table_for_every_caller_and_state() -> None:
    found = table()
    assert list(found) == [row.v1 for row in ROWS]
    for name, callers in found.items():
        assert set(callers) == set(ORDER), name
        for caller, outcomes in callers.items():
            assert len(outcomes) == len(STATES) and set(outcomes) <= OUTCOMES, (name, caller)


def test_every_operation_can_be_asked_about_a_task() -> None:
    for row in ROWS:
        assert type(operation(row, Thing.imagined())) is row.operation


def test_no_role_sees_what_is_another_s() -> None:
    for name, callers in table().items():
        for caller in set(ORDER) - {"anonymous", "owner"}:
            allowed = "yes" if name == "GetExtendedAgentCard" else "none"
            assert set(callers[caller]) == {allowed}, (name, caller)


def test_what_answers_are_compared_by_leaves_out_the_date_and_what_was_asked_about() -> None:
    head = b"HTTP/1.1 200 OK\r\ndate: %d\r\nserver: x\r\nlink: %d"
    one = Answer(200, head % (1, 7), b"of 7", 0.1).without("7", "")
    two = Answer(200, head % (2, 8), b"of 8", 0.2).without("8", "")
    assert one == two == b"HTTP/1.1 200 OK\r\nserver: x\r\nlink: <id>\r\n\r\nof <id>"
    assert Answer(200, head % (2, 9), b"of 8", 0.2).without("8", "") != one


@pytest.mark.requirement("T-48", "T-49", "T-50", "T-51")
async def test_every_cell_is_answered_as_the_table_says(scene: Scene) -> None:
    cells, wrong = await gather(scene)
    wires = (*BINDINGS, *HOUSES)
    without = sum(1 for row in ROWS for binding in wires if not binding.offers(row))
    assert cells == (len(ROWS) * len(wires) - without) * len(ORDER) * len(STATES)
    assert wrong == []


async def test_a_server_that_forgets_whose_a_task_is_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everybody(*_: object) -> Scope:
        return Scope("Tenancy", "acme", "everybody")

    monkeypatch.setattr(Scope, "of", everybody)
    async with scene_in(tmp_path, "GetTask", "DeleteTaskPushNotificationConfig") as (scene, _):
        _, wrong = await gather(scene)
    assert any("GetTask over REST 0.3 by stranger, finished" in one for one in wrong)
    assert any("a task is not what it was" in one for one in wrong)
    assert not any("by owner, finished" in one and "GetTask " in one for one in wrong)


async def test_every_cell_of_a_gateway_is_answered_as_the_table_says(tmp_path: Path) -> None:
    """The same operations, of tasks that another agent does."""
    async with gateway_in(tmp_path) as (things, app):
        await things.register(RUNNER, "Default", isDefault=True)
        # It says all of itself in its public card.
        names = [row.v1 for row in ROWS if row.v1 != "GetExtendedAgentCard"]
        scene = Scene(things.wire.port, names)
        await scene.make("deleted")
        await app.store.prune(ended_before=int(time.time() * 1000) + 1, keep=0)
        await scene.make("working", "waiting", "finished")
        _, wrong = await gather(scene)
        scene.wire.close()
    assert wrong == []
