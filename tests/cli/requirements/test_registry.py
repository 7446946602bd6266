"""The registry of the a2a-cli specification and the markers of the tests say the same.

Markers are read from the source. A test that is skipped or expected to fail proves nothing and does
not count; only what needs gRPC may be open.
"""

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
REGISTRY: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "registry.toml").read_text())
NO_PROOF = {"skip", "skipif", "xfail"}
# Nothing but this waits for a binding that is not there.
MAY_BE_OPEN = {"A2ACLI_TX_005"}


def carried(source: str) -> Iterator[tuple[str, str]]:
    """Yield each test of a module with each id it carries."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = [one for one in function.decorator_list if "mark." in ast.unparse(one)]
        if any(_name(mark) in NO_PROOF for mark in marks) or _skips(function):
            continue
        for mark in marks:
            if _name(mark) == "cli":
                assert function.name.startswith("test_"), f"{function.name} is no test"
                assert isinstance(mark, ast.Call) and mark.args and not mark.keywords
                for argument in mark.args:
                    assert isinstance(argument, ast.Constant), ast.unparse(mark)
                    yield function.name, argument.value


def _name(mark: ast.expr) -> str:
    called = mark.func if isinstance(mark, ast.Call) else mark
    return called.attr if isinstance(called, ast.Attribute) else ""


def _skips(function: ast.AST) -> bool:
    """Tell whether a test may give itself up while it runs."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.skip", "pytest.xfail")
        for node in ast.walk(function)
    )


def all_carried() -> dict[str, list[str]]:
    """Return each id with the tests that carry it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("test_*.py")):
        for test, id in carried(path.read_text()):
            found[id].append(f"{path.name}::{test}")
    return found


CARRIED = all_carried()


def test_the_registry_has_the_ids_of_three_tiers() -> None:
    assert Counter(entry["tier"] for entry in REGISTRY.values()) == {1: 39, 2: 15, 3: 12}
    for id, entry in REGISTRY.items():
        assert id.startswith("A2ACLI_")
        assert {"tier", "area", "demand", "test"} <= entry.keys(), id
        assert entry.keys() <= {"tier", "area", "demand", "test", "open", "note"}, id


def test_every_id_is_carried_by_a_test_that_runs_or_is_open_for_a_reason() -> None:
    is_open = {id for id, entry in REGISTRY.items() if "open" in entry}
    assert is_open <= MAY_BE_OPEN
    assert sorted(REGISTRY.keys() - CARRIED.keys() - is_open) == []
    assert {id: CARRIED[id] for id in is_open & CARRIED.keys()} == {}


def test_no_test_names_an_id_nobody_knows() -> None:
    assert {id: tests for id, tests in CARRIED.items() if id not in REGISTRY} == {}


def test_a_marker_counts_only_where_a_test_runs() -> None:
    marked = '@pytest.mark.cli("A", "B")\n'
    plain = "def test_one(): ...\n"
    assert list(carried(marked + plain)) == [("test_one", "A"), ("test_one", "B")]
    assert list(carried("@pytest.mark.skip\n" + marked + plain)) == []
    assert list(carried('@pytest.mark.skipif(x, reason="y")\n' + marked + plain)) == []
    assert list(carried(marked + "def test_one():\n    pytest.skip('no')\n")) == []
    for wrong in (marked + "def helper(): ...", "@pytest.mark.cli(name)\n" + plain):
        with pytest.raises(AssertionError):
            list(carried(wrong))
