"""The registry of the a2a-cli specification, and which test carries which of its ids.

Markers are read from the source. A test that is skipped or expected to fail proves nothing and does
not count.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
REGISTRY: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "registry.toml").read_text())
NO_PROOF = {"skip", "skipif", "xfail"}


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
