"""Tests on several processes: each runs once, and its report is as of one process."""

import json
import subprocess
import sys
from pathlib import Path

from harness.nursery import ROOT

SHARED = """
import os, pathlib, pytest

@pytest.fixture(scope="session")
def once(tmp_path_factory):
    yield tmp_path_factory.mktemp("once")
    with open(pathlib.Path(__file__).with_name("ended"), "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
MANY = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(20))
def test_one(number, once, tmp_path):
    print("said", number)
    with open(pathlib.Path(__file__).with_name("begun"), "a") as file:
        file.write(f"{os.getpid()} {__name__} {number}\\n")
"""
FAILS = """
def test_that_fails():
    print("before it failed")
    assert 1 == 2
"""
PRINTS = """
import pathlib, time

def test_that_prints_and_fails():
    here = pathlib.Path(__file__)
    here.with_suffix(".begun").touch()
    until = time.monotonic() + 30
    while len(list(here.parent.glob("*.begun"))) < 2:
        assert time.monotonic() < until
    for number in range(2000):
        print(here.stem, number)
    assert False
"""
DIES = """
import os, pytest

@pytest.mark.parametrize("number", range(4))
def test_of_a_file(number):
    if number == 1:
        os.abort()
"""


def ran(folder: Path, *words: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "conftest.py").write_text(SHARED)
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ("-p", "harness.spreading", "--processes", "3", "-p", "no:schemathesis")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_test_runs_once_and_a_file_in_one_process(tmp_path: Path) -> None:
    code, said = ran(tmp_path, **{f"file{number}": MANY for number in range(6)})
    assert code == 0, said
    assert "120 passed" in said
    begun = [line.split() for line in (tmp_path / "begun").read_text().splitlines()]
    assert len(begun) == len({(file, number) for _, file, number in begun}) == 120
    assert len({(process, file) for process, file, _ in begun}) == 6
    # What a session has was ended in each process, once.
    ended = (tmp_path / "ended").read_text().split()
    assert sorted(ended) == sorted({process for process, _, _ in begun})


def test_a_failure_is_shown_with_what_was_printed(tmp_path: Path) -> None:
    code, said = ran(tmp_path, many=MANY, fails=FAILS)
    assert code == 1
    assert "assert 1 == 2" in said and "before it failed" in said and "said 3" not in said
    assert "1 failed, 20 passed" in said
    # `./dev test` runs again what this names.
    cache = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    assert list(json.loads(cache.read_text())) == ["test_fails.py::test_that_fails"]


def test_what_two_print_at_once_is_not_mixed(tmp_path: Path) -> None:
    # A process takes the next file when it begins the last test of one.
    names = ("one", "two", "three", "four")
    _, said = ran(tmp_path, **dict.fromkeys(names, PRINTS))
    for name in names:
        assert "\n".join(f"test_{name} {number}" for number in range(2000)) in said


def test_the_first_failure_ends_a_run_that_asks_for_it(tmp_path: Path) -> None:
    code, said = ran(tmp_path, "-x", fails=FAILS)
    assert code == 1 and "stopping after 1 failures" in said


def test_a_process_that_dies_costs_one_test(tmp_path: Path) -> None:
    code, said = ran(tmp_path, dies=DIES, many=MANY)
    assert code == 1
    assert "the process of this test ended with -6" in said and "test_of_a_file[1]" in said
    assert "1 failed, 23 passed" in said
