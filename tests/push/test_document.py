"""The page about push, as a reader sees it."""

from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "push.md"


def test_a_heading_is_a_heading_and_a_table_stands_below_it() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert len(headings) >= 5
    for line in headings:
        assert len(line) <= 60 and "|" not in line, line
    for above, line in pairwise(lines):
        if line.startswith("|---"):
            assert above.count("|") == line.count("|"), above
