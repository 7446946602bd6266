"""The table of what selectools and corvid do, held to the tests it names, in both directions."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([PC]-\d{3}) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
ID = re.compile(r"\b[PC]-\d{3}\b")
SERIES = {
    "P": [*range(1, 17), *range(20, 23), *range(30, 44)],
    "C": [*range(1, 14), *range(20, 30)],
}
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
    found = ROW.findall(TABLE)
    assert len(found) == len({id for id, _ in found}), "an id has two rows"
    return {id: re.findall(r"`([^`]+)`", tests) for id, tests in found}


def test_every_requirement_has_a_row() -> None:
    wanted = [f"{letter}-{n:03}" for letter, numbers in SERIES.items() for n in numbers]
    assert list(rows()) == wanted


def test_every_row_names_tests_that_show_it() -> None:
    wrong: list[str] = []
    for id, named in rows().items():
        assert named, f"{id} is shown by nothing"
        for test in named:
            file, _, name = test.partition("::")
            shown = shown_by(ROOT / file).get(name)
            if shown is None or (id not in shown and id not in ELSEWHERE):
                wrong.append(f"{id}: {test}")
    assert wrong == []


def test_every_test_of_these_packages_that_names_a_requirement_is_in_its_row() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for id, tests in rows().items():
        named[id] |= set(tests)
    missing = [
        f"{id}: {name}"
        for path in sorted(Path(__file__).parent.glob("test_*.py"))
        for name, ids in shown_by(path).items()
        for id in ids
        if f"{path.relative_to(ROOT).as_posix()}::{name}" not in named[id]
    ]
    assert missing == []
