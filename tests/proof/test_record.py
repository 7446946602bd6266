"""The command, the record it keeps and the page that is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.commands import invoke

from proof import __main__ as command
from proof.crash import idempotency
from proof.record import load
from proof.results import spread


def made(**figures: Any) -> idempotency.IdempotencyResult:
    sound = {
        "seed": 7,
        "seconds": 1.5,
        "bound": 0.01,
        "processes": 2,
        "sends": 100,
        "answers": 300,
        "messages": 3,
        "tasks": 3,
        "differing": 0,
        "differing_after_restart": 0,
        "doubled": 0,
    }
    return idempotency.IdempotencyResult(**(sound | figures))


def prove(*arguments: str) -> Any:
    """Run `python -m proof` here."""
    return invoke(*arguments, program=command.run)


def proved(monkeypatch: pytest.MonkeyPatch, result: Any, *arguments: str) -> Any:
    """Run the command with a proof that has this result."""
    given: dict[str, Any] = {}

    def play(**arguments: Any) -> Any:
        given.update(arguments)
        return result

    monkeypatch.setattr(idempotency, "run", play)
    ended = prove("idempotency", *arguments)
    return ended, given


def test_json_is_one_object_with_seed_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, given = proved(monkeypatch, made(), "-o", "json", "--seed", "7", "--sends", "9")
    assert ended.exit_code == 0
    said = json.loads(ended.stdout)
    assert said["seed"] == 7 and said["bound"] == 0.01 and said["tasks"] == 3
    assert given["seed"] == 7 and given["sends"] == 9


def test_a_broken_promise_is_exit_1_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, given = proved(monkeypatch, made(tasks=4, findings=["m is in two tasks"]))
    assert ended.exit_code == 1
    assert "\nBroken: " in ended.stdout and "m is in two tasks" in ended.stdout
    # Without one, a seed is chosen and passed on.
    assert isinstance(given["seed"], int)


def test_the_record_keeps_the_latest_run_and_the_page_shows_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    for result in (made(), made(differing=5)):
        proved(monkeypatch, result, "--record", str(file), "--seed", "7")
    entry = load(file).proofs["idempotency"]
    assert entry.result["differing"] == 5 and entry.seed == 7 and entry.commit
    assert entry.command == "python -m proof idempotency --sends 100 --processes 2 --seed 7"
    page = prove("page", "--record", str(file)).stdout
    assert "| **BROKEN: 5 of 300** |  |" in page and "< 1 %" in page and entry.command in page


@pytest.mark.parametrize("kind", ["no folder", "a file for a folder", "no record"])
def test_a_record_that_cannot_be_kept_is_said_before_the_run(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("nothing of ours")
    file = {"no folder": tmp_path / "none" / "p.json", "no record": taken}.get(kind, taken / "p")
    ended, given = proved(monkeypatch, made(), "--record", str(file))
    assert ended.exit_code != 0 and given == {}, "nothing was run"
    assert "Traceback" not in ended.output and taken.read_text() == "nothing of ours"


def test_what_was_found_is_shown_even_if_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "p.json.part").mkdir()
    ended, _ = proved(monkeypatch, made(), "--record", str(tmp_path / "p.json"), "-o", "json")
    assert ended.exit_code != 0 and json.loads(ended.stdout)["seed"] == 7


def test_every_proof_has_its_module_and_its_help() -> None:
    shown = prove("--help").stdout
    for name in command.PROOFS:
        assert name in shown
    ended = prove("crash", "--help")
    for option in ("--kills", "--processes", "--seed", "--record", "--compare"):
        assert option in ended.stdout


def test_a_spread_is_of_the_ordered_times() -> None:
    times = spread([5.0, 1.0, 3.0])
    assert (times.count, times.p50, times.p99, times.max) == (3, 3.0, 5.0, 5.0)
    assert spread([]).count == 0
