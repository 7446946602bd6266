"""The house as a newcomer sees it: small folders that say what they are for, one word for one
thing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dragoman"
MOST_BESIDE_EACH_OTHER = 20
# Names of other libraries that a parity layer has to have, and shapes of the REST API.
MOST_NAMES_OF_TWO = 20
# Each of them where it is the clearest word.
MOST_INDEFINITE = 30


def folders() -> Iterator[Path]:
    for top in (PACKAGE, ROOT / "proof", ROOT / "bench"):
        yield from (path.parent for path in sorted(top.rglob("__init__.py")))


@pytest.mark.parametrize("folder", list(folders()), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_is_small_and_says_what_it_is_for(folder: Path) -> None:
    files = sorted(path.name for path in folder.glob("*.py"))
    assert len(files) <= MOST_BESIDE_EACH_OTHER
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(about) > 60 and about.endswith("."), "what it is for, and where to begin reading"


def test_a_public_class_name_has_one_meaning() -> None:
    names: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[node.name] += 1
    twice = sorted(name for name, count in names.items() if count > 1)
    assert len(twice) <= MOST_NAMES_OF_TWO, twice


def test_sentences_name_their_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for top in (PACKAGE, ROOT / "docs", ROOT / "README.md")
        for path in ([top] if top.is_file() else sorted(top.rglob("*")))
        if path.suffix in (".py", ".md", ".sql", ".toml", ".tmpl")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b(whoever|nobody|somebody)\b", line, re.IGNORECASE)
    ]
    assert len(found) < MOST_INDEFINITE, found


@pytest.mark.parametrize(
    ("page", "rooms", "row"),
    [
        ("CONTRIBUTING.md", "dragoman/*/__init__.py", "`dragoman/{}"),
        ("tests/README.md", "tests/*/**/test_*.py", "`{}/`"),
    ],
)
def test_a_map_has_every_room(page: str, rooms: str, row: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {path.relative_to(ROOT).parts[1] for path in ROOT.glob(rooms)}
    assert len(names) > 20
    assert sorted(name for name in names if row.format(name) not in text) == []


def test_the_map_of_the_tests_has_what_they_share() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "tests" / "harness").glob("[a-z]*.py")}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_no_loop_outlives_the_tests_of_a_file() -> None:
    """An async fixture keeps its loop until it ends. The tests of every file that the process takes
    later would run on it, whichever kind of loop they ask for, and end with it."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.AsyncFunctionDef)
        and any(
            re.search(r"scope='(session|package)'", ast.unparse(one)) for one in node.decorator_list
        )
    ]
    assert found == []
