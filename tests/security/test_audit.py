"""The audit log: whatever is done to its file is found, and nothing is done to a request by it."""

import ast
import errno
import fcntl
import hashlib
import inspect
import io
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clock import Clock
from harness.waiting import wait_until

from dragoman.errors import ConfigError
from dragoman.security.audit import file
from dragoman.security.audit.chain import (
    LONGEST_LINE,
    NOTHING,
    AuditEntry,
    ChainReport,
    Walk,
    encode,
)
from dragoman.security.audit.file import AuditFile
from dragoman.security.audit.log import MOST_HELD, MOST_OF_ONE, AuditLog, NoAudit
from dragoman.security.audit.reading import latest_first, numbered, verify

WAIT = 60.0
MEMBERS = (
    *("seq", "time", "act", "outcome", "who", "object"),
    *("reason", "address", "trace", "count", "prev", "hash"),
)


def entry(number: int = 0, act: str = "key.created") -> AuditEntry:
    return AuditEntry(
        "2026-01-31T12:00:00.000Z",
        act,
        "ok",
        f"token:{number}",
        f"key-{number}",
        "asked for",
        "192.0.2.1",
        "4bf92f3577b34da6a3ce929d0e0e4736",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def nine(path: Path) -> Path:
    """A log of nine lines."""
    AuditFile(path).append([entry(number) for number in range(9)])
    assert verify(path).problem is None
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def broken_at(report: ChainReport) -> int | None:
    return report.problem.line if report.problem else None


# The chain


def test_a_line_has_all_members_and_its_hash_is_that_of_its_bytes_without_it(nine: Path) -> None:
    before = NOTHING
    for number, raw in enumerate(nine.read_bytes().splitlines(), 1):
        row = json.loads(raw)
        assert tuple(row) == MEMBERS
        assert row["seq"] == number and row["prev"] == before
        body = raw.partition(b',"hash":')[0] + b"}"
        assert row["hash"] == hashlib.sha256(body).hexdigest()
        before = row["hash"]
    report = verify(nine)
    assert (report.lines, report.first_seq, report.head) == (9, 1, before)


@pytest.mark.parametrize("number", [0, 4, 8])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_byte_that_is_changed_in_any_member_is_found_at_its_line(
    nine: Path, member: str, number: int
) -> None:
    lines = nine.read_bytes().splitlines(keepends=True)
    good = lines[number]
    value = json.dumps(json.loads(good)[member]).encode()
    at = good.index(b'"%b":' % member.encode()) + len(member) + 3
    assert good[at : at + len(value)] == value
    # The last byte of the value, inside its quotes, and the first byte of its name.
    for place in (at + len(value) - (2 if value.startswith(b'"') else 1), at - len(member) - 2):
        for other in (b"7", b"\0", b'"', b"\n"):
            changed = good[:place] + other + good[place + 1 :]
            if changed == good:
                continue
            nine.write_bytes(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
            assert broken_at(verify(nine)) == number + 1, (place, other)


def test_any_single_byte_of_a_log_that_is_changed_is_found(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    content = path.read_bytes()
    line = 1
    for at, byte in enumerate(content):
        changed = io.BytesIO(content[:at] + bytes([byte ^ 1]) + content[at + 1 :])
        report = Walk().along([(path, changed, len(content))])
        assert broken_at(report) == line, (at, report)
        line += byte == ord("\n")


def drop(lines: list[bytes]) -> list[bytes]:
    return lines[:4] + lines[5:]


def swap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[5], lines[4], *lines[6:]]


def double(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[3], *lines[4:]]


def insert(lines: list[bytes]) -> list[bytes]:
    before = json.loads(lines[3])
    made, _ = encode(before["seq"] + 1, before["hash"], entry(77))
    return [*lines[:4], made, *lines[4:]]


def replace(lines: list[bytes]) -> list[bytes]:
    before = json.loads(lines[3])
    made, _ = encode(before["seq"] + 1, before["hash"], entry(77))
    return [*lines[:4], made, *lines[5:]]


def put_empty_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b"\n", *lines[4:]]


def put_zeros(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b"\0" * len(lines[4]), b"\0" * 5000 + b"\n", *lines[5:]]


def put_much(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], b"x" * 3 * LONGEST_LINE + b"\n", *lines[4:]]


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (drop, 5),
        (swap, 5),
        (double, 5),
        (insert, 6),
        (replace, 6),
        (put_empty_line, 5),
        (put_zeros, 5),
        (put_much, 5),
    ],
)
def test_lines_that_are_dropped_moved_doubled_or_put_in_are_found(
    nine: Path, edit: Callable[[list[bytes]], list[bytes]], line: int
) -> None:
    lines = nine.read_bytes().splitlines(keepends=True)
    nine.write_bytes(b"".join(edit(lines)))
    report = verify(nine)
    assert broken_at(report) == line, report
    # Nor is it hidden by what is written afterwards.
    AuditFile(nine).append([entry()])
    assert broken_at(verify(nine)) == line


def test_lines_missing_at_the_start_are_told_by_the_first_number(nine: Path) -> None:
    lines = nine.read_bytes().splitlines(keepends=True)
    nine.write_bytes(b"".join(lines[1:]))
    report = verify(nine)
    assert report.problem is None and report.first_seq == 2
    assert report.prev == json.loads(lines[0])["hash"]
    # What claims to be the first of all is.
    made, _ = encode(1, "1" * 64, entry())
    nine.write_bytes(made)
    assert broken_at(verify(nine)) == 1


def test_an_end_that_was_cut_off_is_found_by_the_head_that_was_noted_down(nine: Path) -> None:
    head = verify(nine).head
    AuditFile(nine).append([entry(9)])
    # The log has gone on, and what was noted is still in it.
    assert verify(nine, head).problem is None
    lines = nine.read_bytes().splitlines(keepends=True)
    nine.write_bytes(b"".join(lines[:8]))
    assert verify(nine).problem is None
    problem = verify(nine, head).problem
    assert problem is not None and "expected hash" in problem.what
    # As is one that was written anew from the start.
    nine.unlink()
    AuditFile(nine).append([entry(number) for number in range(100, 120)])
    assert verify(nine).problem is None and verify(nine, head).problem is not None


def test_a_writer_that_is_running_tells_of_an_end_that_was_cut_off(path: Path) -> None:
    log = AuditFile(path)
    log.append([entry(1), entry(2), entry(3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    log.append([entry(4)])
    assert [row["act"] for row in rows(path)[2:]] == ["audit.damaged", "key.created"]
    path.unlink()
    log.append([entry(5)])
    first = rows(path)[0]
    assert (first["seq"], first["act"]) == (5, "audit.damaged") and first["prev"] != NOTHING


# Tears


def test_a_line_cut_anywhere_is_torn_and_the_next_one_tells_of_it(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for cut in [*range(second + 1, len(whole) - 1, 29), len(whole) - 2]:
        path.write_bytes(whole[:cut])
        report = verify(path)
        assert report.problem is None and report.lines == 1, cut
        assert [(one.line, one.what) for one in report.torn] == [(2, "is not finished")]
        AuditFile(path).append([entry(3)])
        report = verify(path)
        assert report.problem is None and report.lines == 3, (cut, report)
        assert [(one.line, one.what) for one in report.torn] == [(2, "was never finished")]
        told = json.loads(path.read_bytes().splitlines()[2])
        assert (told["act"], told["seq"]) == ("audit.torn", 2)


def test_a_line_without_its_newline_is_finished_by_the_next_one(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    path.write_bytes(path.read_bytes()[:-1])
    report = verify(path)
    assert report.problem is None and [one.line for one in report.torn] == [2]
    AuditFile(path).append([entry(3)])
    report = verify(path)
    assert report.problem is None and report.lines == 3 and not report.torn


def test_the_remains_of_a_tear_are_held_by_the_chain_too(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    path.write_bytes(path.read_bytes()[:-40])
    AuditFile(path).append([entry(3), entry(4)])
    lines = path.read_bytes().splitlines(keepends=True)
    assert verify(path).problem is None
    for edited in (
        [lines[0], lines[1].replace(b"token:2", b"token:9"), *lines[2:]],
        [lines[0], *lines[2:]],
        [lines[0], lines[1], lines[1], *lines[2:]],
    ):
        path.write_bytes(b"".join(edited))
        assert broken_at(verify(path)) == 2


def test_blocks_that_a_power_cut_left_empty_are_a_tear(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    whole = path.read_bytes()
    for rest in (b"\0" * 4096, b'{"seq":3,' + b"\0" * 4096 + b'more"}\n'):
        path.write_bytes(whole + rest)
        report = verify(path)
        assert report.problem is None and len(report.torn) == 1
        AuditFile(path).append([entry(3)])
        report = verify(path)
        assert report.problem is None and (report.lines, len(report.torn)) == (4, 1)


def test_a_tear_in_a_file_that_is_full_is_told_of_before_the_next_one_begins(path: Path) -> None:
    AuditFile(path).append([entry(1), entry(2)])
    path.write_bytes(path.read_bytes()[:-40])
    log = AuditFile(path, max_bytes=100)
    log.append([entry(3)])
    assert not numbered(path)
    log.append([entry(4)])
    report = verify(path)
    assert report.problem is None and (report.lines, len(report.torn)) == (4, 1)
    assert len(numbered(path)) == 1


def test_whoever_verifies_waits_for_a_line_that_is_being_written(nine: Path) -> None:
    whole = nine.read_bytes()
    found: list[ChainReport] = []
    reader = threading.Thread(target=lambda: found.append(verify(nine)))
    with nine.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        nine.write_bytes(whole[:-100])
        reader.start()
        # Long enough for one that does not wait.
        reader.join(0.2)
        nine.write_bytes(whole)
    reader.join(WAIT)
    assert found[0].problem is None and not found[0].torn


def test_a_file_of_rubbish_is_not_read_to_its_end(path: Path) -> None:
    content = io.BytesIO((b"x" * 999 + b"\n") * 4000)
    report = Walk().along([(path, content, 4_000_000)])
    assert broken_at(report) == 1 and content.tell() < 2_000_000


def test_a_tear_in_the_first_line_of_a_file_keeps_the_chain_of_the_one_before(path: Path) -> None:
    log = AuditFile(path, max_bytes=1)
    log.append([entry(1)])
    log.append([entry(2)])
    path.write_bytes(path.read_bytes()[:30])
    AuditFile(path).append([entry(3)])
    report = verify(path)
    assert report.problem is None and report.lines == 3 and len(report.torn) == 1


NURSERY = """
import json, os, sys
from pathlib import Path
from dragoman.security.audit.chain import AuditEntry
from dragoman.security.audit.file import AuditFile

def write(path, name, batches, max_bytes):
    log = AuditFile(Path(path), max_bytes=max_bytes)
    number = 0
    while batches < 0 or number < batches:
        number += 1
        at = "2026-01-31T12:00:00.000Z"
        log.append([AuditEntry(at, "x", "ok", name, f"{number}.{n}") for n in range(5)])

for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        print(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        write(*asked)
        os._exit(0)
"""


class Nursery:
    """Processes that write to a log, each begun in an instant."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", NURSERY]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, value: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def writer(self, path: Path, name: str, batches: int, max_bytes: int = 1 << 30) -> int:
        return self._ask([str(path), name, batches, max_bytes])

    def exit_of(self, pid: int) -> int:
        return self._ask(pid)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=WAIT)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


def test_four_processes_write_one_chain_while_files_change_their_names(
    path: Path, nursery: Nursery
) -> None:
    children = [nursery.writer(path, f"w{number}", 100, 100_000) for number in range(4)]
    # Whoever verifies meanwhile never sees half a line.

    def is_half_done() -> bool:
        report = verify(path)
        assert report.problem is None and not report.torn, report
        return report.lines >= 1000

    wait_until(path.exists)
    wait_until(is_half_done)
    assert [nursery.exit_of(child) for child in children] == [0, 0, 0, 0]
    report = verify(path)
    assert report.problem is None and (report.lines, report.first_seq) == (2000, 1)
    assert len(numbered(path)) >= 4
    by_writer: dict[str, list[str]] = {}
    for line in latest_first(path):
        by_writer.setdefault(line.who, []).insert(0, line.object)
    wanted = [f"{number}.{n}" for number in range(1, 101) for n in range(5)]
    assert by_writer == {f"w{number}": wanted for number in range(4)}


def test_a_writer_that_is_killed_at_any_moment_leaves_a_chain_or_a_tear(
    path: Path, nursery: Nursery
) -> None:
    grown = 0
    for attempt in range(20):
        child = nursery.writer(path, f"w{attempt}", -1)
        # Different moments, without a clock: after so many bytes.
        wanted = grown + 1500 * (attempt % 5 + 1)
        try:
            wait_until(path.exists)
            wait_until(lambda wanted=wanted: path.stat().st_size >= wanted)
        finally:
            os.kill(child, signal.SIGKILL)
        assert nursery.exit_of(child) == -signal.SIGKILL
        report = verify(path)
        assert report.problem is None, (attempt, report.problem)
        grown = path.stat().st_size
    AuditFile(path).append([entry()])
    report = verify(path)
    assert report.problem is None and report.lines > 100


# Files


def test_full_files_are_numbered_and_what_was_dropped_shows_as_the_first_prev(path: Path) -> None:
    log = AuditFile(path, max_bytes=1000, keep=3)
    for number in range(40):
        log.append([entry(number)])
    assert [one.name for one in numbered(path)] == [f"audit.jsonl.{n}" for n in (1, 2, 3)]
    report = verify(path)
    assert report.problem is None
    assert report.first_seq > 1 and report.prev != NOTHING
    assert report.lines == 40 - report.first_seq + 1
    assert [line.seq for line in latest_first(path)] == list(range(40, report.first_seq - 1, -1))
    # A break in an earlier file is told by its name.
    second = path.with_name("audit.jsonl.2")
    second.write_bytes(second.read_bytes().replace(b"asked for", b"asked fox", 1))
    problem = verify(path).problem
    assert problem is not None and (problem.file, problem.line) == (str(second), 1)
    second.unlink()
    assert broken_at(verify(path)) == 1


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    with AuditLog(path) as log:
        log.record("key.created", outcome="ok")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_that_cannot_be_written_is_a_mistake_of_the_operator(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit: .* cannot be written \(.*name another file"):
        AuditLog(tmp_path).start()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="audit: "):
        AuditLog(tmp_path / "file" / "audit.jsonl").start()


# Recording


def test_equal_refusals_of_a_second_are_one_line_with_their_number(path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    log = AuditLog(path, now=clock)
    log.start()
    for _ in range(1000):
        log.record("auth.denied", outcome="denied", reason="expired", address="::1", who="w")
    log.record("auth.denied", outcome="denied", reason="expired", address="::1", who="v")
    log.record("auth.denied", outcome="denied", reason="expired", address="::2")
    log.record("auth.denied", outcome="denied", reason="unknown", address="::1")
    log.record("access.denied", outcome="denied", reason="expired", address="::1")
    clock.now += 1.1
    log.record("auth.denied", outcome="denied", reason="expired", address="::1", who="later")
    for _ in range(2):
        log.record("key.created", outcome="ok", who="token:a")
    log.stop()
    found = [(row["act"], row["address"], row["count"], row["who"]) for row in rows(path)]
    assert sorted(found) == [
        ("access.denied", "::1", 1, ""),
        ("auth.denied", "::1", 1, ""),
        ("auth.denied", "::1", 1, "later"),
        ("auth.denied", "::1", 1, "v"),
        ("auth.denied", "::1", 1000, "w"),
        ("auth.denied", "::2", 1, ""),
        ("key.created", "", 1, "token:a"),
        ("key.created", "", 1, "token:a"),
    ]


def test_refusals_from_endless_addresses_do_not_fill_the_disk(path: Path) -> None:
    log = AuditLog(path, now=Clock(1_800_000_000.0))
    log.start()
    for number in range(5000):
        log.record("auth.denied", outcome="denied", reason="none", address=f"2001:db8::{number:x}")
    log.stop()
    found = rows(path)
    assert len(found) == MOST_HELD + 1
    assert sum(row["count"] for row in found) == 5000
    assert log.lost == 0


def test_refusals_of_endless_kinds_from_one_address_hide_no_others(path: Path) -> None:
    """Whoever makes up names is told by its address, and others have lines of their own."""
    log = AuditLog(path, now=Clock(1_800_000_000.0))
    log.start()
    for number in range(1000):
        log.record(
            "auth.denied", outcome="denied", reason="expired", address="::6", who=f"w{number}"
        )
    for address in ("::6", "::7"):
        for who in ("key:mallory", "key:trent"):
            log.record("access.denied", outcome="denied", who=who, address=address)
    log.record("auth.denied", outcome="denied", reason="expired", address="::7", who="v")
    log.stop()
    found = rows(path)
    made_up = [row for row in found if (row["act"], row["address"]) == ("auth.denied", "::6")]
    assert len(made_up) == MOST_OF_ONE + 1
    assert (made_up[-1]["count"], made_up[-1]["who"]) == (1000 - MOST_OF_ONE, "")
    assert [(row["who"], row["address"]) for row in found if row not in made_up] == [
        ("key:mallory", "::6"),
        ("key:trent", "::6"),
        ("key:mallory", "::7"),
        ("key:trent", "::7"),
        ("v", "::7"),
    ]


def test_a_reason_never_has_words_of_the_caller() -> None:
    """Refusals would be of as many kinds as it likes. What is filled in is ours or the
    operator's: the name of a claim, of a header, of a part."""
    ours = {"name", "name!r", "what", "claim", "expected.tenant_claim", "MOST_ENTRIES"}
    named = {"problem", "refused.reason"}
    folder = Path(inspect.getfile(AuditLog)).parents[1]
    odd: list[str] = []
    count = 0
    for module in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "CredentialRefused":
                continue
            count += 1
            reason = node.args[0]
            if isinstance(reason, ast.JoinedStr):
                parts = [ast.unparse(ast.JoinedStr([one])) for one in reason.values]
                filled = {part[3:-2] for part in parts if part.startswith(("f'{", 'f"{'))}
                odd += [f"{module.name}: {one}" for one in filled - ours]
            elif not isinstance(reason, ast.Constant) and ast.unparse(reason) not in named:
                odd.append(f"{module.name}: {ast.unparse(reason)}")
    assert odd == [] and count > 40


def test_a_refusal_is_written_when_its_second_is_over_without_being_asked(path: Path) -> None:
    log = AuditLog(path)
    log.start()
    log.record("auth.denied", outcome="denied", reason="expired", address="::1")
    wait_until(lambda: path.stat().st_size > 0)
    assert rows(path)[0]["act"] == "auth.denied"
    log.stop()


def test_a_queue_that_is_full_drops_counts_and_tells(path: Path) -> None:
    log = AuditLog(path, most_waiting=10)
    for number in range(25):
        log.record("key.created", outcome="ok", object=f"k{number}")
    assert log.lost == 15
    log.start()
    log.stop()
    found = rows(path)
    assert [row["object"] for row in found[:10]] == [f"k{number}" for number in range(10)]
    (told,) = found[10:]
    assert (told["act"], told["count"]) == ("audit.lost", 15)
    assert verify(path).problem is None


def test_a_full_disk_breaks_nothing_and_what_waited_is_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.security.audit.log._TRY_AGAIN_AFTER", 0.01)
    failures = 0
    failed = threading.Event()

    def full(descriptor: int, content: Any) -> int:
        nonlocal failures
        if failures < 5:
            failures += 1
            if failures == 2:
                failed.set()
            if failures % 2:
                return written(descriptor, bytes(content)[:50])
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, content)

    written = os.write
    log = AuditLog(path)
    log.start()
    monkeypatch.setattr(file.os, "write", full)
    with caplog.at_level(logging.ERROR, "dragoman"):
        log.record("key.created", outcome="ok", object="k1")
        assert failed.wait(WAIT)
        log.record("key.revoked", outcome="ok", object="k1")
        log.stop(WAIT)
    assert [row["act"] for row in rows(path)] == ["key.created", "key.revoked"]
    assert verify(path).problem is None and not verify(path).torn
    # Told once, not for every try.
    assert [one.message for one in caplog.records if "No space left" in one.message] != []
    assert len(caplog.records) == 1


def test_a_lock_that_nobody_gives_back_holds_up_neither_a_request_nor_the_end(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(path, most_waiting=5)
    log.start()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(20):
            log.record("key.created", outcome="ok")
        assert log.lost >= 10
        began = time.monotonic()
        log.stop(timeout=0.05)
        assert time.monotonic() - began < WAIT / 2
        assert "were not written" in caplog.text


def test_whatever_the_texts_are_a_line_is_one_line_of_ascii(path: Path) -> None:
    nasty = 'a\nb\x1b[2J\u202e\u2028\ud800\0"\\😀' + "😀" * 5000
    with AuditLog(path) as log:
        log.record(*[nasty], outcome=nasty, who=nasty, object=nasty, reason=nasty, address=nasty)
        log.record("x", outcome="ok", who=None)  # type: ignore[arg-type]  # what it must survive
    (line,) = path.read_bytes().splitlines()
    assert line.isascii() and len(line) < LONGEST_LINE and b"\x1b" not in line
    assert verify(path).problem is None and log.lost == 1


def test_a_start_looks_into_no_file_that_is_full(path: Path) -> None:
    for _ in range(3):
        with AuditLog(path, max_bytes=300) as log:
            log.card("weather", "sha256:1")
    assert path.with_name("audit.jsonl.2").exists()
    assert [line.reason for line in latest_first(path)] == ["sha256:1"] * 3


def test_a_card_is_recorded_when_it_differs_from_the_one_before(path: Path) -> None:
    for digest in ("sha256:1", "sha256:1", "sha256:2", "sha256:1"):
        with AuditLog(path) as log:
            log.card("weather", digest)
            log.card("other", "sha256:0")
    found = [(line.object, line.reason) for line in latest_first(path) if line.act]
    assert [reason for agent, reason in reversed(found) if agent == "weather"] == [
        "sha256:1",
        "sha256:2",
        "sha256:1",
    ]
    assert [agent for agent, _ in found].count("other") == 1


def test_no_audit_takes_everything_and_keeps_nothing() -> None:
    log = NoAudit()
    log.start()
    log.record("x", outcome="ok", who="a", object="b", reason="c", address="d", trace="e", count=2)
    log.card("a", "b")
    log.stop()
    assert log.lost == 0


def test_a_log_can_be_started_again(path: Path) -> None:
    log = AuditLog(path)
    for act in ("server.started", "server.stopped"):
        log.start()
        log.record(act, outcome="ok")
        log.stop()
    assert [row["act"] for row in rows(path)] == ["server.started", "server.stopped"]
