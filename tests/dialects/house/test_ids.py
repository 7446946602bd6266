"""Every id of the four house dialects is carried by a test here, or the tests that do are named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SERIES = {"N": 21, "R": 31, "S": 26, "C": 19}
ID = re.compile(r"\b[NRSC]-\d{1,2}\b")
CORVID, SELECTOOLS = "compat/test_corvid", "compat/test_selectools"
# What is no matter of a server's alone: the gateway's side, and the systems' own names on our
# engine, which keep what their agents and clients promise word for word.
ELSEWHERE = {
    "N-17": [
        "gateway/delivery/test_delivery.py::test_an_agent_that_stays_away_fails_the_task_with_a_reason"
    ],
    "N-18": [
        "gateway/money/test_orders.py::test_a_price_is_held_with_the_task_and_taken_when_it_is_completed",
        "gateway/trust/test_trust.py::test_an_outcome_moves_the_score_soon_after_its_task_ended",
    ],
    "N-19": [
        "gateway/registry/test_registry.py::test_an_agent_without_a_card_gets_one_made_of_what_was_said"
    ],
    "N-21": [
        "gateway/delivery/test_retries.py::test_three_attempts_have_delays_of_one_and_two_seconds"
    ],
    "S-2": [f"{SELECTOOLS}_server.py::test_the_card_names_the_agent_and_its_tools"],
    "S-16": [
        f"{SELECTOOLS}_server.py"
        "::test_an_agent_that_raises_is_a_failed_task_with_the_kind_of_it_alone"
    ],
    "S-17": [f"{SELECTOOLS}_server.py::test_the_oldest_tasks_are_forgotten"],
    "S-18": [f"{SELECTOOLS}_server.py::test_an_agent_reads_texts_and_data"],
    "S-20": [f"{SELECTOOLS}_server.py::test_a_public_address_without_a_token_is_warned_of"],
    "S-22": [f"{SELECTOOLS}_client.py::test_an_agent_is_discovered_and_works_on_texts"],
    "S-23": [
        f"{SELECTOOLS}_client.py::test_what_an_agent_could_not_do_is_a_task_and_no_error",
        f"{SELECTOOLS}_client.py::test_what_is_refused_is_an_error_with_its_code",
    ],
    "S-24": [f"{SELECTOOLS}_client.py::test_code_that_is_not_async_waits"],
    "C-5": [f"{CORVID}_tasks.py::test_of_a_thousand_tasks_the_oldest_that_ended_go"],
    "C-10": [f"{CORVID}_tasks.py::test_a_task_goes_on_as_its_session_does"],
    "C-11": [f"{CORVID}_remote.py::test_a_card_is_kept_for_five_minutes"],
    "C-12": [f"{CORVID}_remote.py::test_what_is_no_card_is_an_error_or_nothing"],
    "C-15": [
        f"{CORVID}_remote.py::test_what_is_not_taken_and_what_takes_too_long_are_no_success",
        f"{CORVID}_remote.py::test_a_task_that_failed_says_why",
    ],
    "C-16": [f"{CORVID}_tasks.py::test_a_card_has_every_registered_tool_as_a_skill"],
}
# A test that may be left out of a run proves nothing.
NO_PROOF = {"skip", "skipif", "xfail", "peer"}


def found_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield each test of a module that always runs, with what its docstring says."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            marks = {
                inner.attr
                for decorator in node.decorator_list
                for inner in ast.walk(decorator)
                if isinstance(inner, ast.Attribute)
            }
            if not marks & NO_PROOF:
                yield node.name, ast.get_docstring(node) or ""


def carried(source: str) -> set[str]:
    """Return the ids that tests of a module carry: they stand before the first colon."""
    return {id for _, words in found_in(source) for id in ID.findall(words.partition(":")[0])}


def test_every_id_has_a_test_and_no_test_names_an_id_nobody_knows() -> None:
    ids = {f"{letter}-{n}" for letter, count in SERIES.items() for n in range(1, count + 1)}
    here: set[str] = set().union(*(carried(path.read_text()) for path in HERE.glob("test_*.py")))
    assert sorted(ids - here - ELSEWHERE.keys()) == []
    assert sorted((here | ELSEWHERE.keys()) - ids) == []


def test_what_is_carried_elsewhere_is_there() -> None:
    missing: list[str] = []
    for place in (place for places in ELSEWHERE.values() for place in places):
        path, _, name = place.partition("::")
        file = HERE.parents[1] / path
        if not file.is_file() or name not in dict(found_in(file.read_text())):
            missing.append(place)
    assert missing == []


def test_an_id_is_found_where_it_counts() -> None:
    one = 'async def test_one():\n    """R-1, S-2: as R-3 is not."""\n'
    assert carried(one) == {"R-1", "S-2"}
    assert carried("@pytest.mark.peer\n" + one) == set()
    assert carried('@pytest.mark.skipif(True, reason="x")\n' + one) == set()
    assert carried(one.replace("test_one", "one")) == carried('"""R-1: a file."""') == set()
