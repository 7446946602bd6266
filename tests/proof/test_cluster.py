"""The proof of replicas with small counts, what lies between replicas and PostgreSQL, and what the
proof calls wrong."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from dragoman.errors import ConfigError
from proof.cluster import cluster, neighbours, promises
from proof.cluster.cable import Cable, to_port
from proof.cluster.site import Site, attempts
from proof.crash.checker import Verdict
from proof.results import Spread, workplace

WITHIN = 120.0
GROUP = b"P\0\0\0\x20\0SELECT write_group()\0\0\0"
# BindComplete, a row, CommandComplete, ReadyForQuery.
COMMITTED = b"2\0\0\0\x04D\0\0\0\x06\0\0C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I"
REFUSED = b"2\0\0\0\x04E\0\0\0\x08SX\0\0Z\0\0\0\x05I"
RUNG = b"A\0\0\0\x09\0\0\0\x01\0"


class Answering:
    """A server that answers everything it reads with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.taken = b""
        self.port = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["Answering"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await asyncio.wait_for(self._idle.wait(), WITHIN)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self._idle.clear()
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(4096):
                    self.taken += data
                    writer.write(self.answer)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)
            self._open -= 1
            if not self._open:
                self._idle.set()


@contextlib.asynccontextmanager
async def asking(
    answer: bytes,
) -> AsyncGenerator[tuple[Cable, asyncio.StreamReader, asyncio.StreamWriter, Answering]]:
    async with Answering(answer).running() as server, asyncio.timeout(WITHIN):
        cable = Cable(to_port(server.port))
        await cable.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", cable.port)
        try:
            yield cable, reader, writer, server
        finally:
            writer.transport.abort()
            await cable.close()


async def test_a_cable_loses_the_reply_to_a_group_that_was_committed() -> None:
    async with asking(COMMITTED) as (cable, reader, writer, server):
        writer.write(GROUP)
        assert await reader.readexactly(len(COMMITTED)) == COMMITTED
        cable.to_lose = 1
        writer.write(b"B\0\0\0\x04")
        assert await reader.read() == b""
        assert (cable.lost, cable.to_lose) == (1, 0) and server.taken.endswith(b"B\0\0\0\x04")


async def test_a_reply_that_refuses_a_group_is_not_lost() -> None:
    async with asking(REFUSED) as (cable, reader, writer, _):
        cable.to_lose = 1
        writer.write(GROUP)
        assert await reader.readexactly(len(REFUSED)) == REFUSED
        assert cable.lost == 0


async def test_a_silent_cable_passes_what_it_kept_when_it_is_restored() -> None:
    async with asking(COMMITTED) as (cable, reader, writer, server):
        cable.silence()
        writer.write(GROUP)
        answer = asyncio.ensure_future(reader.readexactly(len(COMMITTED)))
        # A connection made meanwhile gets nowhere either.
        _, further = await asyncio.open_connection("127.0.0.1", cable.port)
        assert not answer.done() and server.taken == b""
        cable.restore()
        assert await answer == COMMITTED
        further.transport.abort()


@pytest.mark.parametrize(("said", "hears"), [(b'Q\0\0\0\x04LISTEN "x"\0', False),
                                             (b"Q\0\0\0\x04UNLISTEN *\0", True)])  # fmt: skip
async def test_a_deaf_cable_swallows_the_rings_of_those_that_listen(
    said: bytes, hears: bool
) -> None:
    async with asking(RUNG + COMMITTED) as (cable, reader, writer, _):
        cable.is_deaf = True
        writer.write(said)
        expected = RUNG + COMMITTED if hears else COMMITTED
        assert await reader.readexactly(len(expected)) == expected
        assert cable.swallowed == (not hears)


def test_sections_are_chosen_by_name_and_by_count() -> None:
    whole = {section.name: count for section, count in cluster.chosen({}, "", False)}
    assert whole["replies"] >= 300 and whole["kills"] == 200 and whole["cables"] == 20
    assert (whole["server-kills"], whole["restarts"], whole["failovers"]) == (30, 10, 5)
    some = cluster.chosen({"kills": 3, "replies": 0}, "kills, replies", False)
    assert [(section.name, count) for section, count in some] == [("kills", 3)]
    quick = cluster.chosen({}, "", True)
    assert len({section.stage for section, _ in quick}) == 1
    with pytest.raises(ConfigError, match="none of"):
        cluster.chosen({}, "no-such-section", False)


def test_the_highest_attempt_that_spoke_is_told() -> None:
    said = [{"parts": [{"text": "1.0 "}, {"text": "1.1 "}]}, {"parts": [{"text": "3.0 "}]}]
    assert attempts({"artifacts": said}) == 3
    assert attempts({}) == 0


def test_an_attempt_that_was_made_in_two_processes_is_one_too_many(tmp_path: Path) -> None:
    site = Site.__new__(Site)
    site.notes = tmp_path / "notes"
    site.notes.write_text("a 1 7\na 1 7\na 2 8\nb 1 7\nb 1 8\n")
    verdict = Verdict(findings=[])
    site.check_executions(verdict)
    assert verdict.doubled == 1 and "task b" in verdict.findings[0]


def result(**changed: object) -> cluster.ClusterResult:
    kept = cluster.ClusterResult(
        seed=1, acked=9, tasks=9, lost=0, doubled=0, hanging=0, gaps=0, changed=0, repeated=0,
        double_charges=0, unbalanced=0, charges=5, buried=0, promises=58, broken_promises=0,
        done={"restarts": 1}, spent={}, unknown=0, crowded={}, lags={"cut": Spread(1, 9, 9, 9)},
        takeovers={"killed": Spread(1, 900, 900, 900)},
    )  # fmt: skip
    return msgspec.structs.replace(kept, **changed)


def test_a_result_is_kept_only_if_nothing_is_wrong() -> None:
    assert result().kept
    for name in ("lost", "doubled", "hanging", "gaps", "changed", "repeated", "double_charges",
                 "unbalanced", "buried", "broken_promises"):  # fmt: skip
        assert not result(**{name: 1}).kept, name
    late = Spread(1, 1001, 1001, 1001)
    assert not result(takeovers={"killed": late}).kept
    # A machine that others use is given time, and not for ever.
    assert result(crowded={"killed": late}).kept
    assert not result(crowded={"killed": Spread(1, 60_001, 60_001, 60_001)}).kept
    assert not result(lags={"cut": Spread(1, 9, 9, 60_000)}).kept
    assert not result(unfinished={"kills": "CannotStart: it did not"}).kept


def test_what_this_process_and_those_below_it_use_is_not_that_of_others() -> None:
    began = neighbours.moment()
    busy = "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    now = neighbours.moment()
    ours = now.ours - began.ours
    assert ours > 0.02 and 0 <= neighbours.share_of_others(began) <= 1.05
    # All that was used since then, and none of it by us.
    theirs = neighbours.Moment(began.at, began.everybody, now.ours)
    assert neighbours.share_of_others(theirs) >= neighbours.share_of_others(began)


async def test_a_section_that_breaks_off_loses_no_figures_of_the_others(tmp_path: Path) -> None:
    async def fails(run: cluster.Run, sections: list[tuple[cluster.Section, int]]) -> None:
        async with run.section("kills", 1):
            raise OSError("no such server")
        async with run.section("freezes", 1):
            run.tally.done["freezes"] += 1
        raise RuntimeError("it cannot be closed")

    async def pays(run: cluster.Run, sections: list[tuple[cluster.Section, int]]) -> None:
        run.tally.charges += 7

    known = {section.name: section for section in cluster.SECTIONS}
    sections = [(known[name]._replace(stage=fails), 1) for name in ("kills", "freezes", "replies")]
    sections.append((known["spenders"]._replace(stage=pays), 1))
    found = await cluster.prove(sections, 1, folder=tmp_path)
    assert found.unfinished == {
        "kills": "OSError: no such server",
        "replies": "RuntimeError: it cannot be closed",
    }
    assert (found.done, found.charges, found.kept) == ({"freezes": 1}, 7, False)
    assert set(found.spent) == {"kills", "freezes"}


async def test_replies_that_are_lost_and_a_replica_that_is_frozen_lose_nothing() -> None:
    sections = cluster.chosen({"replies": 10, "freezes": 1}, "replies,freezes", False)
    # Not under pytest's folder: PostgreSQL may run as another user, who has to get there.
    with workplace() as folder:
        async with asyncio.timeout(WITHIN):
            found = await cluster.prove(sections, 4, folder=folder)
    wrong = [row for row in found.rows() if not row.kept and "go on" not in row.promise]
    assert found.findings == [] and wrong == [], found
    assert found.acked > 10 and found.done["replies"] >= 10 and found.done["freezes"] == 1
    shown = msgspec.json.decode(msgspec.json.encode(found))
    for key in ("acked", "lost", "doubled", "hanging", "gaps", "double_charges"):
        assert isinstance(shown[key], int), key


def test_promises_are_run_with_every_group_submitted_twice(tmp_path: Path) -> None:
    assert promises.keep(tmp_path, "test_a_transfer_is_made_once_and_covered") == (1, [])


def test_promises_that_could_not_be_run_are_broken_and_say_why(tmp_path: Path) -> None:
    ran, broken = promises.keep(tmp_path, "no promise has this name")

    assert (ran, len(broken)) == (1, 1)
    assert "Wrong expression" in broken[0]
