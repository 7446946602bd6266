"""Writes what the tests of the peers found: `python tests/peers/recording.py [pytest's arguments]`.

A run writes how each row of `rows.py` went to `docs/interop.json`, from which `docs/generate.py`
makes the table of `docs/compatibility.md`. Rows of tests that were not selected stay as they were.
There is nothing of a single run in it, such as times, so a second run writes the same.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.peers.rows import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = ROOT / "docs" / "interop.json"
FILES = [
    "test_interop.py",
    "test_client_against_peers.py",
    "test_frameworks_as_agents.py",
    "test_frameworks_as_clients.py",
]


class Recorder:
    """Notes how each test went."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome == "failed":
            is_owed = hasattr(report, "wasxfail") and report.outcome == "skipped"
            self.outcomes[report.nodeid.rpartition("::")[2]] = "owed" if is_owed else report.outcome


def read() -> "list[Row]":
    """Return the record."""
    from tests.peers.rows import Row

    return [Row(**fields) for fields in json.loads(RECORD.read_text())] if RECORD.exists() else []


def main(arguments: list[str]) -> int:
    """Run the tests and write how they went; what failed is not written."""
    recorder = Recorder()
    files = [str(HERE / name) for name in FILES]
    code = pytest.main([*files, "-q", "--rootdir", str(ROOT), *arguments], plugins=[recorder])
    # Not before: pytest rewrites the assertions of what it imports itself.
    from tests.peers.rows import rows

    before = {row.test: row for row in read() if row.test}
    told = []
    for row in rows():
        outcome = recorder.outcomes.get(row.test) if row.test else row.outcome
        if row.outcome == "missing" and outcome == "passed":
            # Our client said what it says of what is missing.
            outcome = "missing"
        if outcome in ("passed", "owed", "missing"):
            told.append(replace(row, outcome=outcome))
        elif row.test in before:
            told.append(replace(row, outcome=before[row.test].outcome))
    lines = ",\n".join(json.dumps(asdict(row)) for row in told)
    RECORD.write_text(f"[\n{lines}\n]\n")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
