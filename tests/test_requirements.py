"""The register of requirements and the markers of the tests say the same, in both directions.

Markers are read from the source, so a test counts that this run does not collect; a test that is
skipped or expected to fail proves nothing and does not count.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REGISTER: dict[str, dict[str, str]] = tomllib.loads((TESTS / "requirements.toml").read_text())
# How many ids each series of the protocol reference has.
SERIES = {"V": 14, "P": 9, "E": 3, "K": 6, "X": 12, "DC": 8, "T": 67}
NO_PROOF = {"skip", "skipif", "xfail"}


def mark_of(node: ast.AST) -> str:
    """Return the name of a `pytest.mark.*` expression; empty for any other."""
    match node:
        case ast.Attribute(value=ast.Attribute(attr="mark"), attr=name):
            return name
    return ""


def marks(node: ast.AST) -> set[str]:
    """Return the names of all marks in a tree."""
    return {mark_of(inner) for inner in ast.walk(node)} - {""}


def named(node: ast.AST) -> Iterator[str]:
    """Yield the ids that the requirement marks in a tree name."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and mark_of(inner.func) == "requirement":
            assert inner.args and not inner.keywords, ast.unparse(inner)
            for argument in inner.args:
                assert isinstance(argument, ast.Constant), f"not an id: {ast.unparse(inner)}"
                assert isinstance(argument.value, str)
                yield argument.value


def carried(source: str) -> Iterator[tuple[str, str]]:
    """Yield each test of a module with each id it carries."""
    tree = ast.parse(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    decorated = [node for node in ast.walk(tree) if isinstance(node, functions)]
    loose = set(named(tree))
    for function in decorated:
        names = {name for decorator in function.decorator_list for name in marks(decorator)}
        ids = {id for decorator in function.decorator_list for id in named(decorator)}
        loose -= ids
        if ids:
            assert function.name.startswith("test_"), f"{function.name} is no test"
        if not names & NO_PROOF:
            yield from ((function.name, id) for id in sorted(ids))
    assert not loose, f"markers that are not on a test: {sorted(loose)}"


def all_carried() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        if "requirement" in source:
            for test, id in carried(source):
                found[id].append(f"{path.relative_to(TESTS)}::{test}")
    return found


@pytest.fixture(scope="module")
def carriers() -> dict[str, list[str]]:
    # Not when this file is loaded: every process of a run loads it.
    return all_carried()


COVERED = {id for id, entry in REGISTER.items() if "gap" not in entry}


def test_every_covered_requirement_is_carried_by_a_test(carriers: dict[str, list[str]]) -> None:
    assert sorted(COVERED - carriers.keys()) == []


def test_no_test_names_a_requirement_nobody_knows(carriers: dict[str, list[str]]) -> None:
    assert {id: carriers[id] for id in carriers.keys() - REGISTER.keys()} == {}


def test_no_test_claims_what_the_register_calls_a_gap(carriers: dict[str, list[str]]) -> None:
    gaps = REGISTER.keys() - COVERED
    assert {id: carriers[id] for id in carriers.keys() & gaps} == {}


def test_the_register_has_every_id_and_says_what_it_means() -> None:
    ids = {f"{letter}-{n}" for letter, count in SERIES.items() for n in range(1, count + 1)}
    assert ids <= REGISTER.keys()
    # Every other id begins with the number of its section.
    assert all(id[0].isdigit() for id in REGISTER.keys() - ids)
    for id, entry in REGISTER.items():
        assert entry.keys() <= {"says", "gap"}, id
        assert entry["says"].endswith(".") and entry.get("gap", "reason").strip(), id


def test_a_marker_is_found_where_it_counts() -> None:
    marked = '@pytest.mark.requirement("A", "B")\n'
    plain = "async def test_one(): ...\n"
    assert list(carried(marked + plain)) == [("test_one", "A"), ("test_one", "B")]
    assert list(carried("@pytest.mark.skip\n" + marked + plain)) == []
    assert list(carried('@pytest.mark.xfail(reason="x")\n' + marked + plain)) == []
    assert list(carried(plain)) == []
    for wrong in (
        marked + "def helper(): ...",
        '@pytest.mark.requirement("A" + "B")\n' + plain,
        "@pytest.mark.requirement()\n" + plain,
        'pytestmark = pytest.mark.requirement("A")\n' + plain,
    ):
        with pytest.raises(AssertionError):
            list(carried(wrong))
