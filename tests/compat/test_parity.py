"""The tables of what other systems do, held to the tests they name, in both directions."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
_IDS = r"[NSPCRM]-\d{3}|X-\d{2}"
ROW = re.compile(rf"^\| ({_IDS}) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
ID = re.compile(rf"\b(?:{_IDS})\b")
DEVIATION = re.compile(rf"^\| ({_IDS}) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
DEVIATIONS = "## What differs, and why"
SERIES = {
    "N": [
        *(1, 2, 3, 4, 5, *range(10, 21), *range(30, 37), *range(40, 59), *range(63, 66)),
        *(*range(70, 77), *range(80, 88), 90, 91),
    ],
    "S": [
        *(*range(1, 7), *range(10, 15), *range(20, 28), *range(30, 38), *range(40, 55), 60),
        *(*range(70, 79), *range(80, 84)),
    ],
    "P": [*range(1, 17), *range(20, 23), *range(30, 44)],
    "C": [*range(1, 14), *range(20, 30)],
    "R": [
        *(*range(1, 11), *range(20, 25), 30, 31, 32, 33, *range(40, 47), *range(50, 54), 60),
        *(*range(70, 77), *range(80, 84)),
    ],
    "M": [5, *range(20, 25), *range(30, 33)],
}
WANTED = [f"{letter}-{n:03}" for letter, numbers in SERIES.items() for n in numbers]
WANTED += ["X-14", "X-15"]
# Shown by tests that were not written for these two systems.
ELSEWHERE = {"C-028", "C-029"}


@functools.cache
def shown_by(path: Path) -> dict[str, set[str]]:
    """Return the ids that each test of a file says it shows."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name: set(ID.findall(ast.get_docstring(node) or ""))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, functions) and node.name.startswith("test_")
    }


def rows() -> dict[str, list[str]]:
    found = ROW.findall(TABLE.partition(DEVIATIONS)[0])
    assert len(found) == len({id for id, _ in found}), "an id has two rows"
    return {id: re.findall(r"`([^`]+)`", tests) for id, tests in found}


def test_every_requirement_has_a_row() -> None:
    assert list(rows()) == WANTED


def test_what_differs_is_in_one_table_with_its_reason() -> None:
    before, _, after = TABLE.partition(DEVIATIONS)
    assert "differs on purpose:" not in before
    found = DEVIATION.findall(after)
    lines = [line for line in after.splitlines() if line.startswith("| ")][1:]
    assert len(found) == len(lines) > 0, "a line is no deviation, or has no reason"
    named = [id for id, _, _ in found]
    assert len({*named}) == len(named) and {*named} <= rows().keys()
    assert all(here.strip() and why.strip() for _, here, why in found)


def test_every_row_names_tests_that_show_it() -> None:
    wrong: list[str] = []
    for id, named in rows().items():
        assert named, f"{id} is shown by nothing"
        for test in named:
            file, _, name = test.partition("::")
            shown = shown_by(ROOT / file).get(name)
            # Of the other systems, tests of the part that does it need not name it.
            must_name = id[0] in "PC" and id not in ELSEWHERE
            if shown is None or (must_name and id not in shown):
                wrong.append(f"{id}: {test}")
    assert wrong == []


def test_every_test_of_these_packages_that_names_a_requirement_is_in_its_row() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for id, tests in rows().items():
        named[id] |= set(tests)
    missing = [
        f"{id}: {name}"
        for folder in ("agents", "compat")
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        for name, ids in shown_by(path).items()
        for id in ids
        if f"{path.relative_to(ROOT).as_posix()}::{name}" not in named[id]
    ]
    assert missing == []
