"""Every id of the four house dialects is carried by a test here, or it is said where it is."""

import re
from pathlib import Path

HERE = Path(__file__).parent
SERIES = {"N": 21, "R": 31, "S": 26, "C": 19}
# What is no matter of the server's side, and the tests that carry it instead.
ELSEWHERE = {
    "N-17": "gateway/test_carrying.py",
    "N-18": "gateway/test_books.py",
    "N-19": "gateway/test_registry.py",
    "N-21": "gateway/test_retrying.py",
    "S-20": "cli/test_serve.py",
    "C-11": "client/test_kept_cards.py",
    "C-12": "client/test_cards.py",
}
# What only describes how one system is made inside, or a client that is not written.
NOBODY = {"C-10", "C-15", "C-18"}


def carried() -> set[str]:
    found: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for words in re.findall(r'"""(.*?)"""', path.read_text(), re.DOTALL):
            # The ids stand before the first colon.
            found.update(re.findall(r"\b[NRSC]-\d{1,2}\b", words.partition(":")[0]))
    return found


def test_every_id_has_a_test_and_no_test_names_an_id_nobody_knows() -> None:
    ids = {f"{letter}-{n}" for letter, count in SERIES.items() for n in range(1, count + 1)}
    assert sorted(ids - carried() - ELSEWHERE.keys() - NOBODY) == []
    assert sorted(carried() - ids) == []
    assert not carried() & (ELSEWHERE.keys() | NOBODY)


def test_what_is_carried_elsewhere_is_there() -> None:
    assert [path for path in ELSEWHERE.values() if not (HERE.parent / path).is_file()] == []
