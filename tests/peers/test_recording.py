"""The record of the peers, which a page is made of, says what the tests demand."""

from tests.peers import recording, rows
from tests.peers.scripts import SCRIPTS
from tests.peers.test_interop import SCENARIOS


def test_the_record_is_in_step_with_the_tests() -> None:
    told, wanted = recording.read(), rows.rows()
    missing = [row for row in wanted if row not in told]
    stale = [row for row in told if row not in wanted]
    assert (missing, stale) == ([], []), "run .venv/bin/python tests/peers/recording.py"
    assert told == wanted


def test_every_row_names_one_test() -> None:
    tests = [row.test for row in rows.rows() if row.test]
    assert len(set(tests)) == len(tests)


def test_every_script_and_scenario_is_about_an_operation() -> None:
    for what in (*SCRIPTS, *SCENARIOS):
        assert rows.operation_of(what)


def test_a_test_that_no_longer_fails_as_told_changes_the_record() -> None:
    recorder = recording.Recorder()
    for outcome, is_marked in (("passed", False), ("skipped", True), ("failed", True)):
        report = _Report(outcome, is_marked)
        recorder.pytest_runtest_logreport(report)  # type: ignore[arg-type]  # as much as is read
    assert recorder.outcomes == {
        "test_it[passed]": "passed",
        "test_it[skipped]": "owed",
        "test_it[failed]": "failed",
    }


class _Report:
    when = "call"

    def __init__(self, outcome: str, is_marked: bool) -> None:
        self.outcome = outcome
        self.nodeid = f"tests/peers/test_x.py::test_it[{outcome}]"
        if is_marked:
            self.wasxfail = "reason"
