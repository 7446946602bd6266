"""What a stream decides: how long it goes on, and where a task rests."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.streams import breaks
from dragoman.client.streams import stream as module
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    Overloaded,
    TaskNotFound,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.message import Message
from tests.client.streams.reading import (
    ASKS,
    DONE,
    UNSUPPORTED,
    WORKING,
    answers,
    by_method,
    created,
    lost,
    shown,
    states,
    texts,
)
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

# Where a task rests


async def test_a_question_is_the_end() -> None:
    stub = Stub(lambda asked: stream(asked, task(), status(ASKS, "q"), hangs=True))
    assert states(await shown(client(stub, card()).stream("hi"))) == [WORKING, ASKS]
    assert stub.open_now == 0


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_that_asks_at_once_is_at_its_end(streaming: bool) -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, task(ASKS, "q"), hangs=True),
            SendMessage=lambda asked: created(asked, task(ASKS, "q")),
            GetTask=lambda asked: got(asked, task(ASKS, "q")),
        )
    )
    events = client(stub, card(streaming=streaming)).stream("hi", poll_interval=0.001)
    assert states(await shown(events)) == [ASKS]


async def test_a_task_that_still_waits_when_it_is_answered_is_not_at_its_end() -> None:
    stub = Stub(lambda asked: stream(asked, task(ASKS, "q"), status(), status(DONE)))
    events = client(stub, card()).stream("yes", task_id=T)
    assert states(await shown(events)) == [ASKS, WORKING, DONE]


async def test_a_task_that_asks_the_same_again_is_at_its_end_when_its_stream_ends() -> None:
    stub = Stub(lambda asked: stream(asked, task(ASKS, "q")))
    assert states(await shown(client(stub, card()).stream("yes", task_id=T))) == [ASKS]
    assert len(stub.requests) == 1


async def test_a_polled_task_that_waits_on_is_at_its_end_after_a_while() -> None:
    stub = Stub(
        by_method(
            SendMessage=lambda asked: created(asked, task(ASKS, "q")),
            GetTask=lambda asked: got(asked, task(ASKS, "q")),
        )
    )
    events = client(stub, card(streaming=False)).stream("yes", task_id=T, poll_interval=0.001)
    assert states(await shown(events)) == [ASKS]


async def test_until_terminal_goes_through_a_question() -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, task(), status(ASKS, "q")),
            GetTask=lambda asked: got(asked, task(ASKS, "q")),
            SubscribeToTask=lambda asked: stream(
                asked, task(ASKS, "q"), status(), chunk("x"), status(DONE)
            ),
        )
    )
    events = await shown(client(stub, card()).stream("hi", until="terminal"))
    assert states(events) == [WORKING, ASKS, WORKING, DONE] and texts(events) == "x"


# How long it goes on


async def test_only_the_first_of_several_breaks_is_taken_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[int] = []

    async def pause(_: AgentConnection, tries: int, error: A2AError) -> None:
        paused.append(tries)

    monkeypatch.setattr(AgentConnection, "pause", pause)
    stub = Stub(
        answers(
            lambda asked: stream(asked, (1, task()), is_cut=True),
            *[lambda asked: Said(is_lost=True)] * 2,
            lambda asked: stream(asked, (2, status(DONE))),
        )
    )
    events = await shown(client(stub, card(positions=True)).stream("hi"))
    assert states(events)[-1] is DONE and paused == [1, 2]


async def test_a_stream_that_was_quiet_for_long_is_taken_up_when_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    for one in (module, breaks):
        monkeypatch.setattr(one, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def quiet(asked: Asked) -> Said:
        now[0] += 10 * module.PATIENCE
        return stream(asked, (2, task()), is_cut=True)

    stub = Stub(
        answers(
            lambda asked: stream(asked, (1, task()), (2, chunk("a")), is_cut=True),
            *[quiet] * 5,
            lambda asked: stream(asked, (2, task()), (3, status(DONE))),
        )
    )
    events = await shown(client(stub, card(positions=True)).stream("hi"))
    assert texts(events) == "a" and states(events)[-1] is DONE


async def test_a_peer_that_is_gone_for_longer_than_our_patience_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    for one in (module, breaks):
        monkeypatch.setattr(one, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def gone(asked: Asked) -> Said:
        now[0] += module.PATIENCE / 3
        return Said(is_lost=True)

    stub = Stub(answers(lambda asked: stream(asked, (1, task()), is_cut=True), gone))
    with pytest.raises(Unreachable):
        await shown(client(stub, card(positions=True)).stream("hi"))
    assert 3 <= len(stub.requests) <= 6


async def test_an_error_the_peer_gives_is_not_tried_again() -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, (1, task()), is_cut=True),
            SubscribeToTask=lambda asked: error(asked, -32602),
        )
    )
    with pytest.raises(InvalidParams):
        await shown(client(stub, card(positions=True)).stream("hi"))
    assert len(stub.requests) == 2


@pytest.mark.parametrize("positions", [True, False])
async def test_a_task_that_is_not_there_to_be_followed_again_is_asked_for_once(
    positions: bool,
) -> None:
    """Some servers know a task that has ended only by `GetTask`."""
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(
                asked, (1, task()), (2, chunk("a")), is_cut=True
            ),
            SubscribeToTask=lambda asked: error(asked, -32001),
            GetTask=lambda asked: got(asked, task(DONE, artifacts=[artifact("a", "b")])),
        )
    )
    events = await shown(client(stub, card(positions=positions)).stream("hi"))
    assert texts(events) == "ab" and states(events)[-1] is DONE


async def test_a_task_that_is_not_there_by_either_way_is_lost() -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, (1, task()), is_cut=True),
            SubscribeToTask=lambda asked: error(asked, -32001),
            GetTask=lambda asked: error(asked, -32001),
        )
    )
    with pytest.raises(TaskNotFound):
        await shown(client(stub, card(positions=True)).stream("hi"))
    assert stub.count("SubscribeToTask") == stub.count("GetTask") == 1


async def test_a_task_that_cannot_be_followed_and_goes_on_is_asked_for_until_it_rests() -> None:
    stub = Stub(
        by_method(
            SubscribeToTask=lambda asked: error(asked, -32001),
            GetTask=answers(
                lambda asked: got(asked, task()),
                lambda asked: got(asked, task(DONE, artifacts=[artifact("a")])),
            ),
        )
    )
    answer = await client(stub, card(), backoff=0.001).wait(T)
    assert answer.text == "a" and stub.count("SubscribeToTask") == 1


async def test_subscribing_to_an_ended_task_is_the_peers_refusal() -> None:
    stub = Stub(lambda asked: error(asked, UNSUPPORTED))
    with pytest.raises(UnsupportedOperation):
        await shown(client(stub, card()).subscribe(T))


async def test_junk_in_a_stream_is_asked_for_again_only_so_often() -> None:
    def junk(asked: Asked) -> Said:
        return Said(headers=EVENTS, pieces=[b"data: {}\n\n"])

    stub = Stub(answers(lambda asked: stream(asked, (1, task()), is_cut=True), junk))
    with pytest.raises(InvalidAgentResponse):
        await shown(client(stub, card(positions=True)).stream("hi"))
    assert len(stub.requests) <= 6


async def test_a_message_where_a_task_is_under_way_is_refused() -> None:
    late = said("late")
    stub = Stub(lambda asked: stream(asked, (1, task()), (2, late)))
    with pytest.raises(InvalidAgentResponse):
        await shown(client(stub, card(positions=True)).stream("hi"))


async def test_a_message_is_the_whole_of_a_stream() -> None:
    stub = Stub(lambda asked: stream(asked, said("hello"), status()))
    events = client(stub, card()).stream("hi")
    found = await shown(events)
    assert [e.text for e in found if isinstance(e, Message)] == ["hello"] and len(found) == 1
    assert events.answer.message is not None and events.task is None


async def test_events_after_the_end_are_not_read() -> None:
    stub = Stub(
        lambda asked: stream(asked, task(), status(DONE, "done"), chunk("late"), hangs=True)
    )
    assert texts(await shown(client(stub, card()).stream("hi"))) == ""


@pytest.mark.parametrize("events", [[(1, task(DONE))], [(1, task()), (2, status(DONE))]])
async def test_another_task_than_was_asked_for_is_refused(events: Any) -> None:
    stub = Stub(lambda asked: stream(asked, *events))
    with pytest.raises(InvalidAgentResponse):
        await shown(client(stub, card()).subscribe("another"))


async def test_another_task_is_not_taken_for_ours_when_we_ask_how_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AFTER_FAILURE", 0.001)
    other = msgspec.structs.replace(task(DONE), id="t-2")
    stub = Stub(
        by_method(
            SendMessage=lambda asked: created(asked, task()),
            GetTask=lambda asked: got(asked, other),
        )
    )
    with pytest.raises(InvalidAgentResponse):
        await shown(client(stub, card(streaming=False)).stream("hi", poll_interval=0.0001))


async def test_whoever_stops_reading_has_hung_up() -> None:
    stub = Stub(lambda asked: stream(asked, task(), chunk("a"), hangs=True))
    events = client(stub, card()).stream("hi")
    async for _ in events:
        break
    assert stub.open_now == 1
    await events.aclose()
    assert stub.open_now == 0


async def test_the_wait_before_another_try_grows_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("dragoman.client.agent_connection.asyncio.sleep", sleep)
    connection: AgentConnection = client(Stub(lost), card(), backoff=0.2)._connection
    for tries in (1, 2, 3, 50):
        await connection.pause(tries, Unreachable())
    await connection.pause(1, Overloaded(retryAfter="99999"))
    assert waited[0] < waited[1] < waited[2] and waited[3:] == [30.0, 30.0]
