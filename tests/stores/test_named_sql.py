"""Statements about tables are in .sql files, where they are read and compared as SQL."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import stores

PACKAGE = Path(stores.__file__).parent
STATEMENT = re.compile(
    r"\s*(SELECT\b.*\bFROM|INSERT\b.*\bINTO|UPDATE \S+ SET|DELETE FROM|TRUNCATE"
    r"|(CREATE|DROP|ALTER)\b.*\b(TABLE|INDEX|TRIGGER|VIEW|FUNCTION))\b",
    re.DOTALL,
)


def statements(tree: ast.AST) -> Iterator[int]:
    """Give the lines of the texts that are statements about tables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(value.value) if isinstance(value, ast.Constant) else "x"
                for value in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if STATEMENT.match(text):
            yield node.lineno


def test_python_has_no_statement_about_tables() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in statements(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'run("SELECT version FROM agents_watch")',
        'run(f"DELETE FROM {table}")',
        'run("DROP TABLE copying")',
        'run("""\n    INSERT OR IGNORE INTO facts VALUES (?)""")',
    ],
)
def test_a_statement_is_found(source: str) -> None:
    assert len(list(statements(ast.parse(source)))) >= 1
