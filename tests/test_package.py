"""What is built to be shipped: the same bytes twice, with its commit and with all it needs."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from harness.processes import ROOT

from dragoman.telemetry.commit import UNKNOWN, commit

COMMIT = "0123456789ab"
# Missing on Windows, or not part of Python.
POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop"}


def release(folder: Path) -> tuple[Path, Path]:
    """Return a wheel and the sdist that it was made of, as every front end makes them."""
    sdist = built(ROOT, folder, "sdist")
    with tarfile.open(sdist) as file:
        # Python 3.11.2 has no filters, and later ones warn of archives without one.
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(folder)
    return built(folder / sdist.name.removesuffix(".tar.gz"), folder, "wheel"), sdist


def built(source: Path, folder: Path, kind: str) -> Path:
    """Build in our own environment, which has the builder at its tested version."""
    into = folder / kind
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DRAGOMAN_COMMIT": COMMIT},
        check=True,
        capture_output=True,
        timeout=60,
    )
    (file,) = into.iterdir()
    return file


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return release(tmp_path_factory.mktemp("package"))


def test_two_builds_are_equal_byte_for_byte(package: tuple[Path, Path], tmp_path: Path) -> None:
    for first, second in zip(package, release(tmp_path), strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes(), first.name


def test_a_wheel_has_every_file_of_the_package_and_its_commit(package: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(package[0]) as wheel:
        names = set(wheel.namelist())
        assert wheel.read("dragoman/commit.txt").decode().strip() == COMMIT
    told = ["git", "ls-files", "dragoman"]
    listed = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "deploy/"))]


def test_the_commit_is_told_only_where_it_is_known(tmp_path: Path) -> None:
    package = tmp_path / "dragoman"
    package.mkdir()
    assert commit(package) == UNKNOWN
    (package / "commit.txt").write_text(f"{COMMIT}\n")
    assert commit(package) == COMMIT
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", commit())


def test_the_commit_of_a_project_around_us_is_not_taken_for_ours(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "dragoman").mkdir()
    assert commit(tmp_path / "dragoman") == UNKNOWN


def test_no_module_that_a_user_loads_needs_posix_to_be_imported() -> None:
    """No test runs on Windows; this keeps the imports from ruling it out."""

    def modules(statement: ast.stmt) -> set[str]:
        match statement:
            case ast.Import(names):
                return {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(name)):
                return {name.partition(".")[0]}
        return set()

    # It starts a PostgreSQL for tests, as a user who is not root.
    ours = set((ROOT / "dragoman").rglob("*.py")) - {ROOT / "dragoman/testing/servers.py"}
    found = {
        file.relative_to(ROOT).as_posix(): needed
        for file in ours
        for statement in ast.parse(file.read_text(encoding="utf-8")).body
        if (needed := modules(statement) & POSIX)
    }
    assert found == {}
