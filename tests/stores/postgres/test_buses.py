"""Workers ring each other, through the database or through NATS; after a gap they look again."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.stub_servers import listening
from harness.waiting import eventually

from dragoman.errors import ConfigError
from dragoman.model.task import TaskState
from dragoman.stores.interface import Rung
from dragoman.stores.nats_bus import NatsBus
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.rings import MOST_NUMBERS, Rings, decoded, encoded
from dragoman.testing.promises.samples import (
    addition,
    chunk,
    creation,
    head_of,
    note,
    submit,
    write,
)
from dragoman.testing.servers import NatsServer
from tests.stores.postgres.conftest import Opener

POST = Rung(posted=("0123456789abcdef" * 2,))


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture(params=["notify", "nats"])
async def pair(
    request: pytest.FixtureRequest, opener: Opener
) -> tuple[PostgresStore, PostgresStore]:
    """Two workers on either bus."""
    bus = "" if request.param == "notify" else request.getfixturevalue("nats").url
    one, other = await opener.open(bus=bus), await opener.open(bus=bus)
    # On a busy machine a store is open before its bus is, and such a ring may be lost.
    await eventually(lambda: not one._bus.trouble and not other._bus.trouble)
    return one, other


class Ear:
    """What a worker heard."""

    def __init__(self, store: PostgresStore) -> None:
        self.rungs: list[Rung | None] = []
        store.listen(self.rungs.append)

    async def hears(self, is_it: Callable[[Rung], bool]) -> None:
        await eventually(lambda: any(rung is not None and is_it(rung) for rung in self.rungs))

    async def hears_of_a_gap(self) -> None:
        await eventually(lambda: None in self.rungs)


async def test_what_one_commits_the_other_hears_of_by_number(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = pair
    ear, own = Ear(other), Ear(one)
    await write(one, creation("t", state=TaskState.WORKING))
    head = await head_of(one, "t")
    await ear.hears(lambda rung: head.number in rung.tasks)
    ear.rungs.clear()
    await write(one, addition(head, chunk("t", "x")))
    await ear.hears(lambda rung: head.number in rung.tasks)
    await write(one, note(head, b"{}"))
    await ear.hears(lambda rung: head.number in rung.noted)
    # Until the other has rung for it, too.
    own.rungs.clear()
    other.ring(Rung(agents=7))
    await own.hears(lambda rung: rung.agents == 7)
    assert not any(rung is not None and rung.tasks for rung in own.rungs)


async def test_whatever_is_rung_for_is_heard(pair: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = pair
    ear = Ear(other)
    for rung in (Rung(agents=3), Rung(agent_keys=4), Rung(trust=5), Rung(agents=2), POST):
        one.ring(rung)
    await ear.hears(lambda rung: rung.agents == 3)
    await ear.hears(lambda rung: rung.agent_keys == 4)
    await ear.hears(lambda rung: rung.trust == 5)
    await ear.hears(lambda rung: rung.posted == POST.posted)
    assert not any(rung is not None and rung.agents == 2 for rung in ear.rungs)


async def test_a_thousand_tasks_of_one_moment_are_all_rung_for(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = pair
    ear = Ear(other)
    await submit(one, *(creation(f"t{n}") for n in range(1000)))
    await eventually(
        lambda: len({n for rung in ear.rungs if rung is not None for n in rung.tasks}) == 1000
    )


async def test_the_dead_are_told_of_to_all_at_once(
    opener: Opener, pair: tuple[PostgresStore, PostgresStore]
) -> None:
    one, other = pair
    dead = await opener.open()
    ears = [Ear(one), Ear(other)]
    await dead._workers.vanish()
    for ear in ears:
        await ear.hears(lambda rung: rung.freed)


async def test_one_that_leaves_in_good_order_tells_so(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = pair
    ear = Ear(other)
    await one.close()
    await ear.hears(lambda rung: rung.freed)
    await one.open()


async def test_after_a_lost_session_everything_is_looked_at(opener: Opener) -> None:
    one, other = await opener.open(), await opener.open()
    ear = Ear(other)
    session = other._workers.session
    assert session is not None
    await one._connections.rows("SELECT pg_terminate_backend($1)", session.get_server_pid())
    await ear.hears_of_a_gap()
    ear.rungs.clear()
    one.ring(Rung(agents=1))
    await ear.hears(lambda rung: rung.agents == 1)


# NATS


async def test_nats_that_comes_back_is_heard_again_after_a_look_at_everything(
    opener: Opener, nats: NatsServer
) -> None:
    one, other = await opener.open(bus=nats.url), await opener.open(bus=nats.url)
    ear = Ear(other)
    await asyncio.to_thread(nats.kill)
    # Lost, and nobody minds.
    await write(one, creation("lost"))
    await eventually(lambda: other._bus.trouble)
    await asyncio.to_thread(nats.start)
    await ear.hears_of_a_gap()
    await eventually(lambda: not one._bus.trouble and not other._bus.trouble)
    await write(one, creation("t"))
    number = (await head_of(one, "t")).number
    await ear.hears(lambda rung: number in rung.tasks)


async def test_a_store_opens_without_its_nats_and_finds_it_later(
    opener: Opener, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path)
    one, other = await opener.open(bus=server.url), await opener.open(bus=server.url)
    assert other._bus.trouble
    await write(one, creation("t"))
    ear = Ear(other)
    await asyncio.to_thread(server.start)
    try:
        await ear.hears_of_a_gap()
        await eventually(lambda: not one._bus.trouble)
        one.ring(Rung(agents=1))
        await ear.hears(lambda rung: rung.agents == 1)
    finally:
        await asyncio.to_thread(server.stop)


async def test_databases_on_one_nats_do_not_hear_each_other(
    opener: Opener, nats: NatsServer, database: str
) -> None:
    one, other = [bus_on(nats, subject) for subject in ("one", "other")]
    twin = bus_on(nats, "other")
    heard: list[Rung | None] = []
    await connected(one, other, twin)
    twin.listen(heard.append)
    one.ring(Rung(agents=1))
    other.ring(Rung(agents=2))
    await eventually(lambda: Rung(agents=2) in heard)
    assert Rung(agents=1) not in heard
    for bus in (one, other, twin):
        await bus.close()


async def test_a_bus_is_open_once_the_server_knows_of_its_subscription() -> None:
    """What is rung for before that is lost, and no number tells of it."""
    lines: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 8000}\r\n')
        while line := (await reader.readline()).decode():
            lines.append(line.split()[0])
            if line.startswith("PING"):
                writer.write(b"PONG\r\n")

    async def named() -> str:
        return "s"

    async with listening(talk) as port:
        bus = NatsBus(f"nats://127.0.0.1:{port}", named, lambda: 1)
        await connected(bus)
        heard_of = list(lines)
        await bus.close()
    assert "PING" in heard_of[heard_of.index("SUB") :]


async def test_a_message_that_was_lost_on_the_way_is_noticed_by_the_next(nats: NatsServer) -> None:
    """NATS says nothing of what it threw away."""
    one, other = bus_on(nats, "s", worker=1), bus_on(nats, "s", worker=2)
    await connected(one, other)
    heard: list[Rung | None] = []
    other.listen(heard.append)
    one.ring(Rung(agents=1))
    await eventually(lambda: heard == [Rung(agents=1)])
    one._sent += 1
    one.ring(Rung(agents=2))
    await eventually(lambda: heard == [Rung(agents=1), None])
    one.ring(Rung(agents=3))
    await eventually(lambda: heard[2:] == [Rung(agents=3)])
    await one.close()
    await other.close()


async def connected(*buses: NatsBus) -> None:
    """Open them; on a busy machine the first try may be too late."""
    for bus in buses:
        await bus.open()
    await eventually(lambda: not any(bus.trouble for bus in buses))


def bus_on(nats: NatsServer, subject: str, worker: int = 1) -> NatsBus:
    async def named() -> str:
        return subject

    return NatsBus(nats.url, named, lambda: worker)


# Messages


async def test_rings_of_one_moment_are_one_message() -> None:
    sent: list[Rung] = []
    is_sent = asyncio.Event()

    async def send(rung: Rung) -> None:
        sent.append(rung)
        await is_sent.wait()

    rings = Rings(send)
    rings.add(Rung((1,)))
    await eventually(lambda: sent)
    for number in (2, 3, 2):
        rings.add(Rung((number,), (number,), agents=number))
    rings.add(Rung(freed=True))
    is_sent.set()
    await rings.flush()
    assert sent == [Rung((1,)), Rung((2, 3), (2, 3), freed=True, agents=3)]


async def test_a_message_never_has_more_than_fits() -> None:
    sent: list[Rung] = []

    async def send(rung: Rung) -> None:
        sent.append(rung)

    rings = Rings(send)
    first = 10**14
    numbers = tuple(range(first, first + 1000))
    posted = tuple(f"{number:032x}" for number in range(100))
    rings.add(Rung(numbers, numbers, posted=posted))
    await rings.flush()
    assert all(len(rung.tasks) + len(rung.noted) <= MOST_NUMBERS for rung in sent)
    assert all(len(encoded(1 << 31, 1 << 31, rung)) < 8000 for rung in sent)
    assert {number for rung in sent for number in rung.tasks} == set(numbers)
    assert {number for rung in sent for number in rung.noted} == set(numbers)
    assert [digest for rung in sent for digest in rung.posted] == list(posted)


def test_a_message_of_a_later_release_is_understood_as_far_as_it_goes() -> None:
    assert decoded(b'[3,4,{"agents":5,"moods":[1]}]') == (3, 4, Rung(agents=5))
    assert decoded(b'{"v":9}') == (0, 0, None)
    assert decoded(b"\xff") == (0, 0, None)


async def test_a_missing_library_is_said_in_words(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dragoman.stores.nats_bus", None)
    with pytest.raises(ConfigError, match=r"pip install 'dragoman\[nats\]'"):
        await opener.open(bus="nats://127.0.0.1:1")
