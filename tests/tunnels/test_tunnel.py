"""Streams of a tunnel are connections: they carry, wait, close and break as sockets do."""

import asyncio
import random
import struct
from typing import Any

import pytest

from dragoman.tunnels.frames import LARGEST, WINDOW, Kind, encode, encode_credit
from dragoman.tunnels.tunnel import MOST_STREAMS, NoStream
from tests.tunnels.pair import Pair, Recorder

pytestmark = pytest.mark.anyio


async def test_what_is_written_at_one_end_is_read_at_the_other() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    mine.transport.write(b"question")
    theirs.transport.writelines([b"ans", b"wer"])
    await pair.carry()
    assert theirs.data == b"question" and mine.data == b"answer"


async def test_streams_do_not_mix() -> None:
    pair = Pair()
    streams = [await pair.stream() for _ in range(20)]
    for number, (mine, theirs) in enumerate(streams):
        mine.transport.write(b"%d" % number)
        theirs.transport.write(b"-%d" % number)
    await pair.carry()
    assert [bytes(theirs.data) for _, theirs in streams] == [b"%d" % n for n in range(20)]
    assert [bytes(mine.data) for mine, _ in streams] == [b"-%d" % n for n in range(20)]


async def test_much_is_carried_in_pieces_and_whole() -> None:
    pair, content = Pair(), random.Random(1).randbytes(5 * WINDOW + 12_345)
    mine, theirs = await pair.stream()
    mine.transport.write(content)
    await pair.carry()
    assert theirs.data == content and mine.transport.get_write_buffer_size() == 0
    assert mine.waits == [True, False]


async def test_a_reader_that_waits_holds_its_writer_up_at_a_window() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    theirs.transport.pause_reading()
    mine.transport.write(b"x" * (3 * WINDOW))
    await pair.carry()
    assert not theirs.data and mine.transport.get_write_buffer_size() == 2 * WINDOW
    assert mine.waits == [True]
    theirs.transport.resume_reading()
    await pair.carry()
    assert len(theirs.data) == 3 * WINDOW and mine.waits == [True, False]


async def test_one_stream_that_waits_does_not_hold_up_another() -> None:
    pair = Pair()
    slow, fast = await pair.stream(), await pair.stream()
    slow[1].transport.pause_reading()
    slow[0].transport.write(b"x" * (2 * WINDOW))
    fast[0].transport.write(b"quick")
    await pair.carry()
    assert fast[1].data == b"quick" and not slow[1].data


async def test_a_full_wire_holds_writers_up_until_it_takes_more() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    pair.gateway.set_full(True)
    mine.transport.write(b"x" * (2 * LARGEST))
    await pair.carry()
    assert not theirs.data and mine.waits == [True]
    pair.gateway.set_full(False)
    await pair.carry()
    assert len(theirs.data) == 2 * LARGEST and mine.waits == [True, False]


async def test_closing_sends_what_was_written_and_ends_both() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    mine.transport.write(b"x" * (WINDOW + 10))
    mine.transport.close()
    await pair.carry()
    assert len(theirs.data) == WINDOW + 10
    assert mine.lost == theirs.lost == [None]
    assert len(pair.gateway) == len(pair.agent) == 0


async def test_what_came_before_a_close_is_read_although_the_reader_had_paused() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    theirs.transport.pause_reading()
    mine.transport.write(b"last words")
    mine.transport.close()
    await pair.carry()
    assert theirs.data == b"last words" and theirs.lost == [None]


async def test_what_came_before_a_close_is_read_by_a_reader_that_pauses_again() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    theirs.pauses = True
    for _ in range(4):
        mine.transport.write(b"last words")
    mine.transport.close()
    await pair.carry()
    assert theirs.data == 4 * b"last words" and theirs.lost == [None]


async def test_what_waits_is_given_as_one_piece_however_it_was_cut() -> None:
    pair = Pair()
    mine, _ = await pair.stream()
    mine.transport.pause_reading()
    for _ in range(1000):
        pair.gateway.received(encode(Kind.DATA, 1, b"x"))
    mine.transport.resume_reading()
    await pair.carry()
    assert mine.data == b"x" * 1000 and mine.pieces == 1


async def test_data_of_no_bytes_is_neither_sent_nor_kept() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    theirs.transport.write(b"")
    assert not pair.wires[1].waiting
    pair.gateway.received(encode(Kind.DATA, 1))
    mine.transport.pause_reading()
    for _ in range(1000):
        pair.gateway.received(encode(Kind.DATA, 1))
    mine.transport.resume_reading()
    await pair.carry()
    assert mine.pieces == 0 and not mine.lost


async def test_aborting_drops_what_was_not_sent() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    mine.transport.write(b"x" * (2 * WINDOW))
    mine.transport.abort()
    mine.transport.abort()
    await pair.carry()
    assert len(theirs.data) == WINDOW and mine.lost == theirs.lost == [None]


async def test_a_lost_tunnel_breaks_every_stream_and_takes_no_more() -> None:
    pair = Pair()
    streams = [await pair.stream() for _ in range(3)]
    pair.gateway.lost()
    await pair.carry()
    assert all(isinstance(mine.lost[0], ConnectionResetError) for mine, _ in streams)
    streams[0][0].transport.write(b"too late")
    with pytest.raises(NoStream):
        pair.gateway.open(Recorder())


async def test_one_that_leaves_takes_no_new_streams_and_ends_the_old() -> None:
    pair = Pair()
    mine, theirs = await pair.stream()
    pair.agent.leave()
    await pair.carry()
    with pytest.raises(NoStream):
        pair.gateway.open(Recorder())
    theirs.transport.write(b"the rest")
    await pair.carry()
    assert mine.data == b"the rest"


async def test_streams_are_limited_at_both_ends() -> None:
    pair = Pair()
    for _ in range(MOST_STREAMS):
        pair.gateway.open(Recorder())
    with pytest.raises(NoStream):
        pair.gateway.open(Recorder())
    await pair.carry()
    # One that does not keep to it has the stream closed, and the tunnel goes on.
    pair.agent.received(encode(Kind.OPEN, MOST_STREAMS + 1))
    assert len(pair.agent) == MOST_STREAMS
    assert pair.wires[1].waiting[-1] == encode(Kind.CLOSE, MOST_STREAMS + 1)


async def test_a_protocol_that_fails_ends_its_stream_alone() -> None:
    pair = Pair()
    (_, theirs), other = await pair.stream(), await pair.stream()
    theirs.fails = True
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    pair.agent.received(encode(Kind.DATA, 1, b"x"))
    other[0].transport.write(b"fine")
    await pair.carry()
    assert theirs.lost == [None] and other[1].data == b"fine"
    assert [type(one["exception"]) for one in told] == [ValueError]


REFUSED_BY_AGENT = {
    "a stream out of its order": [encode(Kind.OPEN, 5)],
    "a stream twice": [encode(Kind.OPEN, 2), encode(Kind.OPEN, 2)],
    "data of a stream that never was": [encode(Kind.DATA, 9, b"x")],
    "a close of a stream that never was": [encode(Kind.CLOSE, 9)],
    "more than a window": [encode(Kind.DATA, 1, b"x" * LARGEST)] * (WINDOW // LARGEST + 1),
    "credit for what was not sent": [encode_credit(1, 1)],
    "no credit": [encode(Kind.CREDIT, 1, struct.pack("!I", 0))],
    "no kind": [b"\x63\0\0\0\1"],
    "nothing": [b""],
}


@pytest.mark.parametrize("name", REFUSED_BY_AGENT)
async def test_a_hostile_gateway_is_closed_with_a_reason(name: str) -> None:
    pair = Pair()
    _, theirs = await pair.stream()
    theirs.transport.pause_reading()
    for message in REFUSED_BY_AGENT[name]:
        pair.agent.received(message)
    assert pair.wires[1].closed, name


async def test_only_the_gateway_opens_streams() -> None:
    pair = Pair()
    pair.gateway.received(encode(Kind.OPEN, 1))
    assert pair.wires[0].closed == "only a gateway opens streams"


async def test_two_hundred_random_messages_end_in_a_reason_or_in_nothing() -> None:
    chance = random.Random(20261117)
    for _ in range(200):
        pair = Pair()
        mine, _ = await pair.stream()
        for _ in range(chance.randint(1, 20)):
            kind = chance.choice([*range(10), 255])
            stream = chance.choice([0, 1, 2, 3, 2**32 - 1])
            content = chance.randbytes(chance.choice([0, 1, 4, 5, 100, LARGEST, LARGEST + 1]))
            pair.agent.received(struct.pack("!BI", kind, stream) + content)
            pair.gateway.received(struct.pack("!BI", kind, stream) + content)
        await pair.carry()
        assert len(pair.agent) <= 3 and mine.transport.get_write_buffer_size() == 0
