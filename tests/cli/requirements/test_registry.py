"""The registry of the a2a-cli specification and the markers of the tests say the same.

Nothing is open, and the published report says what the tests say.
"""

import importlib.util
from collections import Counter
from types import ModuleType

import pytest
from harness.processes import ROOT

from tests.cli.requirements.registry import CARRIED, REGISTRY, carried


def test_the_registry_has_the_ids_of_three_tiers() -> None:
    assert Counter(entry["tier"] for entry in REGISTRY.values()) == {1: 39, 2: 15, 3: 12}
    for id, entry in REGISTRY.items():
        assert id.startswith("A2ACLI_")
        assert {"tier", "area", "demand", "test"} <= entry.keys(), id
        assert entry.keys() <= {"tier", "area", "demand", "test", "open", "note"}, id


def test_every_id_is_carried_by_a_test_that_runs_or_is_open_for_a_reason() -> None:
    is_open = {id for id, entry in REGISTRY.items() if "open" in entry}
    assert is_open == set()
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


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "docs" / "cli_conformance.py"
    spec = importlib.util.spec_from_file_location("cli_conformance", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_published_report_is_not_stale(generator: ModuleType) -> None:
    for path, text in generator.documents().items():
        assert path.read_text(encoding="utf-8") == text, "run python docs/cli_conformance.py"


def test_the_report_is_yaml_and_has_what_readers_look_for(generator: ModuleType) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(generator.REPORT.read_text(encoding="utf-8"))
    assert found == generator.report()
    assert found["requirements"].keys() == REGISTRY.keys()
    statuses = {"pass", "partial", "fail", "not_measured", "na", "withdrawn"}
    for id, row in found["requirements"].items():
        assert row["status"] in statuses, id
        assert row["status"] == "pass" or row["note"], id
    assert len(found["default_001_breakdown"]) == 6 and len(found["error_codes"]) == 8


def test_a_tier_is_claimed_only_when_everything_below_it_passes(generator: ModuleType) -> None:
    rows = {id: {"tier": entry["tier"], "status": "pass"} for id, entry in REGISTRY.items()}
    assert generator.tier_of(rows) == 3
    for tier in (1, 2, 3):
        id = next(id for id, row in rows.items() if row["tier"] == tier)
        for status in ("fail", "partial", "not_measured", "unheard of"):
            assert generator.tier_of(rows | {id: {"tier": tier, "status": status}}) == tier - 1
        assert generator.tier_of(rows | {id: {"tier": tier, "status": "na"}}) == 3
