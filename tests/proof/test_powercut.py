"""The power-cut proof: the product passes it, and every way to break the promise fails it."""

import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from dragoman.stores.interface import Append, Done
from dragoman.stores.interface import Write as StoreWrite
from proof.crash import powercut
from proof.crash.disk import Link, Medium, Recorder, Sync, Truncate, Variant, Write
from proof.crash.powercut import Checker, Promise, Recording, Truth

IMAGES = 400
# So few suffice to see a broken promise.
FEW = 120
SECTOR = 512


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def recording(home: Path) -> Recording:
    """A run in which some task is left waiting; which ones are depends on how fast things go."""
    found = powercut.record(home, seed=1, steps=5)
    for seed in range(2, 6):
        if any(state == 6 for _, state, _ in found.truth.tasks.values()):
            break
        for path in home.iterdir():
            path.unlink()
        found = powercut.record(home, seed=seed, steps=5)
    return found


def test_no_power_cut_loses_or_damages_what_was_promised() -> None:
    seen: list[tuple[int, int]] = []
    result = powercut.run(IMAGES, seed=7, progress=lambda done, of: seen.append((done, of)))
    assert (result.lost, result.corrupt) == (0, 0), result.findings
    assert result.images == IMAGES == sum(result.variants.values())
    assert min(result.variants.values()) > 0
    assert result.acked > 500 and result.tasks > 50 and result.commits > 50
    assert result.opened > 0
    assert result.bound == 3 / IMAGES
    assert seen[-1] == (IMAGES, IMAGES)


def test_a_disk_that_never_syncs_is_found_out() -> None:
    result = powercut.run(FEW, seed=7, synchronous="off")
    assert result.lost > FEW // 10
    assert result.corrupt > FEW // 10


def test_commits_that_are_not_synced_are_found_out() -> None:
    result = powercut.run(FEW, seed=7, synchronous="normal")
    assert result.lost > FEW // 10
    assert result.corrupt == 0, result.findings


def test_a_store_that_calls_a_write_durable_too_early_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    witness = powercut.Witness

    def submit(self: powercut.Witness, write: StoreWrite, done: Done) -> None:
        if isinstance(write, Append):
            self.note(write, 0)
        super(witness, self).submit(write, done)

    monkeypatch.setattr(witness, "submit", submit)
    result = powercut.run(FEW, seed=7)
    assert result.lost > 0
    assert result.corrupt == 0, result.findings


def test_what_callers_were_shown_counts_without_the_word_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(powercut.Witness, "note", lambda *_: None)
    result = powercut.run(FEW, seed=7, synchronous="normal")
    assert result.acked > 100
    assert result.lost > FEW // 20


def test_the_tape_played_to_its_end_is_the_file_on_the_disk(
    recording: Recording, home: Path
) -> None:
    medium = Medium(recording.found)
    for place, operation in enumerate(recording.tape):
        medium.play(place, operation)
    (image,) = medium.image(Variant.ALL, random.Random(1)).items()
    # Not in one assertion: pytest would look for hours where two files of some MB differ.
    is_same = image == (powercut.STORE, (home / powercut.STORE).read_bytes())
    assert is_same


def test_a_recording_has_all_that_a_store_can_be_asked_for(recording: Recording) -> None:
    assert not recording.broken
    states = {state for _, state, _ in recording.truth.tasks.values()}
    assert {3, 4, 6} <= states
    assert any(promise.key for promise in recording.promises)
    kinds = {type(operation) for operation in recording.tape}
    assert kinds == {Write, Truncate, Sync, Link}
    # The log was deleted at a stop and begun again at a start.
    assert sum(isinstance(o, Link) and o.file is None for o in recording.tape) >= 3
    # The folder goes with the first sync of a log through each connection, not with every one.
    logs = powercut.files_named(recording, f"{powercut.STORE}-wal")
    syncs = [o.with_folder for o in recording.tape if isinstance(o, Sync) and o.file in logs]
    assert syncs[0] and not syncs[1]


def _execute(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


Damage = tuple[str, str]
LAST = "(SELECT max(number) FROM tasks)"
DAMAGES: dict[str, tuple[str, Callable[[Damage], bool]]] = {
    "an event is missing": (
        f"DELETE FROM events WHERE position = (SELECT max(position) FROM events "
        f"WHERE position >> 20 = {LAST})",
        lambda found: bool(found[0]) and bool(found[1]),
    ),
    "the middle of a log is missing": (
        # A log of several rows: how many a group of events takes depends on how fast things go.
        "DELETE FROM events WHERE position = (SELECT min(position) FROM events "
        "GROUP BY position >> 20 HAVING count(*) > 1 LIMIT 1)",
        lambda found: "gap" in found[1],
    ),
    "an event is not what was written": (
        f"UPDATE events SET bodies = bodies || 'x' WHERE position >> 20 = {LAST}",
        lambda found: "never written so" in found[1],
    ),
    "an ended task has another end": (
        "UPDATE tasks SET state = CASE state WHEN 3 THEN 4 ELSE 3 END "
        "WHERE number = (SELECT max(number) FROM tasks WHERE state IN (3, 4, 5, 7))",
        lambda found: "has state" in found[1],
    ),
    "a task is missing": (
        f"DELETE FROM events WHERE position >> 20 = {LAST}; "
        f"DELETE FROM tasks WHERE number = {LAST}",
        lambda found: "0 of" in found[0] and not found[1],
    ),
    "a task without a log": (
        f"DELETE FROM events WHERE position >> 20 = {LAST}",
        lambda found: "logs" in found[1],
    ),
    "a task says more than its log": (
        "UPDATE tasks SET last_seq = last_seq + 1 "
        "WHERE number = (SELECT min(number) FROM tasks WHERE state = 6)",
        lambda found: "its log ends at" in found[1],
    ),
    "a key is missing": (
        "DELETE FROM keys WHERE key = (SELECT max(key) FROM keys)",
        lambda found: found == ("1 keys", ""),
    ),
    "everything is missing": (
        "DROP TABLE tasks",
        lambda found: found == ("the whole store", ""),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checker_sees_that(
    damage: str, recording: Recording, home: Path, tmp_path: Path
) -> None:
    path = tmp_path / powercut.STORE
    path.write_bytes((home / powercut.STORE).read_bytes())
    checker = Checker(recording.truth)
    for promise in recording.promises:
        checker.expect(promise)
    assert checker.check(path) == ("", "")
    statements, is_seen = DAMAGES[damage]
    _execute(path, *statements.split("; "))
    found = checker.check(path)
    assert is_seen(found), found


def test_the_checker_sees_a_damaged_page(recording: Recording, home: Path, tmp_path: Path) -> None:
    path = tmp_path / powercut.STORE
    content = bytearray((home / powercut.STORE).read_bytes())
    # The root pages of tables and indexes stand near the beginning.
    content[5 * 4096 : 7 * 4096] = bytes(2 * 4096)
    path.write_bytes(content)
    _, corrupt = Checker(recording.truth).check(path)
    assert corrupt


def test_the_checker_asks_nothing_of_an_image_before_the_first_promise(tmp_path: Path) -> None:
    empty = Truth({}, {})
    assert Checker(empty).check(tmp_path / "none.db") == ("", "")
    checker = Checker(empty)
    checker.expect(Promise(0, 1, 1))
    assert checker.check(tmp_path / "none.db") == ("the whole store", "")


def _written(sizes: list[int]) -> Medium:
    """A file of zeros that is synced, and writes of ones on their way."""
    medium = Medium({"a": bytes(4 * SECTOR)})
    for place, size in enumerate(sizes):
        medium.play(place, Write(0, 4 * SECTOR * place, b"\1" * size))
    return medium


@pytest.mark.parametrize("variant", Variant)
def test_what_was_synced_is_in_every_image(variant: Variant) -> None:
    medium = _written([SECTOR, SECTOR])
    medium.play(2, Sync(0, 2, with_folder=False))
    medium.play(3, Write(0, 0, b"\2" * 8))
    for seed in range(20):
        content = medium.image(variant, random.Random(seed))["a"]
        assert content[8:SECTOR] == b"\1" * (SECTOR - 8)
        assert content[4 * SECTOR : 5 * SECTOR] == b"\1" * SECTOR


def test_a_write_that_came_while_a_sync_ran_is_not_covered_by_it() -> None:
    medium = _written([SECTOR, SECTOR])
    medium.play(2, Sync(0, 1, with_folder=False))
    content = medium.image(Variant.NONE, random.Random(1))["a"]
    assert content == b"\1" * SECTOR + bytes(3 * SECTOR)


def test_unsynced_writes_are_dropped_kept_torn_and_reordered() -> None:
    medium = _written([4 * SECTOR, 4 * SECTOR])
    chance = random.Random(1)
    whole = b"\1" * 8 * SECTOR
    assert medium.image(Variant.NONE, chance)["a"] == bytes(4 * SECTOR)
    assert medium.image(Variant.ALL, chance)["a"] == whole
    for variant in (Variant.PREFIX, Variant.TORN, Variant.SHUFFLED):
        images = {bytes(medium.image(variant, chance)["a"]) for _ in range(200)}
        assert len(images) > 5
        for image in images:
            # Torn at sectors, never within one.
            for start in range(0, min(len(image), 4 * SECTOR), SECTOR):
                assert len(set(image[start : start + SECTOR])) == 1
    later = {bytes(medium.image(Variant.SOME, chance)["a"]) for _ in range(50)}
    assert bytes(4 * SECTOR) + b"\1" * 4 * SECTOR in later


def test_an_earlier_write_may_arrive_last() -> None:
    medium = Medium({"a": b""})
    medium.play(0, Write(0, 0, b"1" * 8))
    medium.play(1, Write(0, 4, b"2" * 8))
    chance = random.Random(1)
    images = {bytes(medium.image(Variant.SHUFFLED, chance)["a"]) for _ in range(100)}
    assert {b"111122222222", b"111111112222"} <= images


def test_unsynced_truncations_may_or_may_not_have_happened() -> None:
    medium = Medium({"a": bytes(10)})
    medium.play(0, Truncate(0, 3))
    chance = random.Random(1)
    sizes = {len(medium.image(Variant.SOME, chance)["a"]) for _ in range(50)}
    assert sizes == {3, 10}
    medium.play(1, Sync(0, 1, with_folder=False))
    assert {len(medium.image(variant, chance)["a"]) for variant in Variant} == {3}


def test_a_deleted_file_may_come_back_until_the_folder_is_synced() -> None:
    medium = Medium({"a": b"old"})
    medium.play(0, Link("a", None))
    medium.play(1, Link("a", 1))
    medium.play(2, Write(1, 0, b"new"))
    chance = random.Random(1)
    found = {bytes(medium.image(Variant.SOME, chance).get("a", b"gone")) for _ in range(100)}
    assert found == {b"old", b"gone", b"", b"new"}
    medium.play(3, Sync(1, 3, with_folder=True))
    assert {bytes(medium.image(variant, chance)["a"]) for variant in Variant} == {b"new"}


def test_only_the_folder_that_is_watched_is_recorded(tmp_path: Path) -> None:
    watched, other = tmp_path / "watched", tmp_path / "other"
    watched.mkdir()
    other.mkdir()
    default = apsw.vfs_names()[0]
    recorder = Recorder(watched)
    with recorder.recording():
        _execute(other / "a.db", "CREATE TABLE t (a)")
        assert not recorder.tape
        _execute(watched / "a.db", "CREATE TABLE t (a)")
        assert recorder.tape
    assert apsw.vfs_names()[0] == default
    assert recorder.name not in apsw.vfs_names()
