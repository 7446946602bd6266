"""Where a stream goes on that was cut, with positions and without."""

import asyncio

import pytest

from dragoman.client.streams import stream as module
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.model import operations as ops
from dragoman.model.events import StatusUpdate
from tests.client.streams.reading import DONE, UNSUPPORTED, answers, by_method, shown, states, texts
from tests.client.stub import (
    EVENTS,
    Asked,
    Said,
    Stub,
    T,
    artifact,
    card,
    chunk,
    client,
    error,
    got,
    said,
    status,
    stream,
    task,
)

# Positions


async def test_the_cursor_is_that_of_the_last_event_shown_even_within_one_piece() -> None:
    piece = [(1, task()), (2, chunk("a")), (3, chunk("b")), (4, status(DONE))]
    stub = Stub(lambda asked: stream(asked, *piece))
    async with client(stub, card(positions=True)).stream("hi") as events:
        seen = []
        async for _ in events:
            assert events.task is not None
            seen.append((events.cursor, [len(a.parts) for a in events.task.artifacts]))
    assert seen == [(1, []), (2, [1]), (3, [2]), (4, [2])]


async def test_events_before_a_broken_one_are_shown_and_the_broken_one_is_asked_for_again() -> None:
    stub = Stub(
        answers(
            lambda asked: stream(
                asked, (1, task()), (2, chunk("a")), (3, status(id="t-2")), (4, chunk("c"))
            ),
            lambda asked: stream(asked, (2, task()), (3, chunk("b")), (4, status(DONE))),
        )
    )
    events = await shown(client(stub, card(positions=True)).stream("hi"))
    assert texts(events) == "ab"
    assert stub.requests[1].headers["last-event-id"] == "2"


async def test_positions_that_repeat_or_go_back_are_shown_once() -> None:
    piece = [(1, task()), (2, chunk("a")), (2, chunk("a")), (1, task()), (3, chunk("b"))]
    again = [(2, chunk("a")), (3, chunk("b"))]
    stub = Stub(lambda asked: stream(asked, *piece, *again, (4, status(DONE))))
    assert texts(await shown(client(stub, card(positions=True)).stream("hi"))) == "ab"


async def test_a_task_as_of_a_later_position_than_asked_for_makes_up_for_what_lies_between() -> (
    None
):
    later = task(artifacts=[artifact("a", "b", "c")])
    stub = Stub(
        answers(
            lambda asked: stream(asked, (1, task()), (2, chunk("a")), is_cut=True),
            # Something between us dropped the header.
            lambda asked: stream(asked, (4, later), (5, chunk("d")), (6, status(DONE))),
        )
    )
    assert texts(await shown(client(stub, card(positions=True)).stream("hi"))) == "abcd"


async def test_a_task_as_of_our_position_is_not_shown_again() -> None:
    known = task(artifacts=[artifact("a")])
    stub = Stub(
        answers(
            lambda asked: stream(asked, (1, task()), (2, chunk("a")), is_cut=True),
            lambda asked: stream(asked, (2, known), (3, chunk("b")), (4, status(DONE))),
        )
    )
    events = await shown(client(stub, card(positions=True)).stream("hi"))
    assert texts(events) == "ab" and len(events) == 4


async def test_a_peer_that_resets_a_position_is_taken_for_what_it_says() -> None:
    anew = task(artifacts=[artifact("a", "b")])

    def reset(asked: Asked) -> Said:
        answer = stream(asked, (1, anew), (2, status(DONE)))
        answer.headers = EVENTS | {"x-dragoman-resume": "reset"}
        return answer

    stub = Stub(
        answers(lambda asked: stream(asked, (1, task()), (9, chunk("a")), is_cut=True), reset)
    )
    events = await shown(client(stub, card(positions=True)).stream("hi"))
    assert texts(events) == "ab" and states(events)[-1] is DONE


async def test_a_peer_that_refuses_our_position_is_asked_how_the_task_stands() -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, (1, task()), is_cut=True),
            SubscribeToTask=lambda asked: error(asked, UNSUPPORTED),
            GetTask=lambda asked: got(asked, task(DONE, artifacts=[artifact("all")])),
        )
    )
    assert texts(await shown(client(stub, card(positions=True)).stream("hi"))) == "all"


# Peers without positions


async def test_what_a_cut_swallowed_is_told_from_the_task_the_stream_comes_back_with() -> None:
    known = task(message="m2", artifacts=[artifact("a", "b")], history=[said("m1")])
    stub = Stub(
        answers(
            lambda asked: stream(asked, task(), status(message="m1"), chunk("a"), is_cut=True),
            lambda asked: stream(asked, known, chunk("c"), status(DONE)),
        )
    )
    events = await shown(client(stub, card()).stream("hi"))
    assert texts(events) == "abc"
    spoken = [e.status.message.message_id for e in events if _speaks(e)]  # type: ignore[union-attr]
    assert spoken == ["m1", "m2"]


def _speaks(event: Shown) -> bool:
    return isinstance(event, StatusUpdate) and event.status.message is not None


async def test_a_task_that_ended_while_we_were_away_is_read() -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, task(), chunk("a"), is_cut=True),
            SubscribeToTask=lambda asked: error(asked, UNSUPPORTED),
            GetTask=lambda asked: got(asked, task(DONE, artifacts=[artifact("a", "b")])),
        )
    )
    events = await shown(client(stub, card()).stream("hi"))
    assert texts(events) == "ab" and states(events)[-1] is DONE


@pytest.mark.parametrize("positions", [False, True])
async def test_a_task_that_ended_while_its_agent_was_away_for_long_is_read(positions: bool) -> None:
    left, is_back = [None] * (module.TRIES + 1), asyncio.Event()

    def subscribed(asked: Asked) -> Said:
        if left:
            left.pop()
            return Said(is_lost=True, is_sent=False)
        is_back.set()
        return error(asked, UNSUPPORTED)

    def told(asked: Asked) -> Said:
        # It comes back when it is asked for the stream, and not before.
        if not is_back.is_set():
            return Said(is_lost=True, is_sent=False)
        return got(asked, task(DONE, artifacts=[artifact("a", "b")]))

    stub = Stub(by_method(SubscribeToTask=subscribed, GetTask=told))
    connection = client(stub, card(positions=positions))._connection
    known = task(artifacts=[artifact("a")])
    events = await shown(Stream(connection, ops.SubscribeToTask(task_id=T), begun=known))
    assert texts(events) == "b" and states(events) == [DONE]


async def test_an_old_peer_that_comes_back_without_a_task_has_each_chunk_shown_once() -> None:
    def resumed(asked: Asked) -> Said:
        # In two pieces: what is asked after the first is ahead of the second.
        answer = stream(asked, chunk("d"))
        rest = stream(asked, chunk("e"), status(message="m2"), status(DONE))
        answer.pieces = [*answer.pieces, *rest.pieces]
        return answer

    stub = Stub(
        by_method(
            message_stream=lambda asked: stream(asked, task(), chunk("a"), is_cut=True),
            tasks_resubscribe=resumed,
            tasks_get=answers(
                lambda asked: got(asked, task(artifacts=[artifact("a", "b")])),
                lambda asked: got(
                    asked, task(message="m2", artifacts=[artifact("a", "b", "c", "d", "e")])
                ),
                lambda asked: got(
                    asked,
                    task(DONE, artifacts=[artifact("a", "b", "c", "d", "e")], history=[said("m2")]),
                ),
            ),
        )
    )
    events = await shown(client(stub, card(version="0.3")).stream("hi"))
    assert texts(events) == "abcde" and states(events)[-1] is DONE
    spoken = [e.status.message.message_id for e in events if _speaks(e)]  # type: ignore[union-attr]
    assert spoken == ["m2"]
