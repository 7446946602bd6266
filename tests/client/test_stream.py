"""What a stream decides: when to come back, when to ask, when to poll, when to give up, and when
the task is where its caller wanted it."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from stub import (
    EVENTS,
    URL,
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
    listed,
    reply,
    said,
    status,
    stream,
    task,
)

from dragoman.client import stream as module
from dragoman.client.client import Client
from dragoman.client.credentials import Attached, Bearer, Credential, Scheme
from dragoman.client.http import Http
from dragoman.client.line import Line
from dragoman.client.origins import Origins
from dragoman.client.stream import Shown, Stream
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InvalidAgentResponse,
    InvalidParams,
    Overloaded,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.mock.agent import ScriptedAgent
from dragoman.model import operations as ops
from dragoman.model.card import JSONRPC, AgentCard, AgentInterface
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.message import Message, Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskState
from dragoman.service import TaskReply

WORKING, DONE, ASKS = TaskState.WORKING, TaskState.COMPLETED, TaskState.INPUT_REQUIRED
SEND = ops.SendMessage(message=said("m", Role.USER))
UNSUPPORTED, NO_METHOD = -32004, -32601


async def shown(events: Any) -> list[Shown]:
    async with asyncio.timeout(60), events:
        return [event async for event in events]


def states(events: list[Shown]) -> list[TaskState]:
    return [event.status.state for event in events if isinstance(event, Task | StatusUpdate)]


def texts(events: list[Shown]) -> str:
    found = ""
    for event in events:
        held = event.artifacts if isinstance(event, Task) else []
        if isinstance(event, ArtifactUpdate):
            held = [event.artifact]
        found += "".join(str(part.text) for one in held for part in one.parts)
    return found


def answers(*steps: Callable[[Asked], Said]) -> Callable[[Asked], Said]:
    """Answer each request with the next step; the last one goes on for ever."""
    left: Iterator[Callable[[Asked], Said]] = iter(steps[:-1])
    return lambda asked: next(left, steps[-1])(asked)


def by_method(**steps: Callable[[Asked], Said]) -> Callable[[Asked], Said]:
    return lambda asked: steps[asked.method.replace("/", "_")](asked)


def lost(asked: Asked) -> Said:
    return Said(is_lost=True)


def created(asked: Asked, value: Task) -> Said:
    return reply(asked, SEND, TaskReply(TaskReading(0, value)))


# Peers that cannot stream


async def test_a_peer_that_cannot_stream_is_sent_to_once_and_asked_until_it_rests() -> None:
    stub = Stub(
        by_method(
            SendMessage=lambda asked: created(asked, task()),
            GetTask=answers(
                lambda asked: got(asked, task()),
                lambda asked: got(asked, task(artifacts=[artifact("1 ")])),
                lambda asked: got(asked, task(DONE, artifacts=[artifact("1 ", "2")])),
            ),
        )
    )
    events = await shown(client(stub, card(streaming=False)).stream("hi", poll_interval=0.001))
    assert states(events) == [WORKING, DONE] and texts(events) == "1 2"
    assert stub.count("SendMessage") == 1 and stub.count("SendStreamingMessage") == 0
    assert stub.requests[0].json["params"]["configuration"]["returnImmediately"] is True


async def test_polls_that_fail_are_made_again_and_five_in_a_row_are_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AFTER_FAILURE", 0.001)
    fails = Stub(
        by_method(
            SendMessage=lambda asked: created(asked, task()),
            GetTask=answers(*[lambda asked: Said(503)] * 4, lambda asked: got(asked, task(DONE))),
        )
    )
    polled = client(fails, card(streaming=False)).stream("hi", poll_interval=0.0001)
    assert states(await shown(polled)) == [WORKING, DONE]
    never = Stub(
        by_method(SendMessage=lambda asked: created(asked, task()), GetTask=lambda asked: Said(500))
    )
    polled = client(never, card(streaming=False)).stream("hi", poll_interval=0.0001)
    with pytest.raises(A2AError) as lost:
        await shown(polled)
    assert never.count("GetTask") == module.FAILED_POLLS
    # Whoever catches it can come back to the task.
    assert lost.value.facts["taskId"] == task().id


@pytest.mark.parametrize("code", [UNSUPPORTED, NO_METHOD])
async def test_a_stream_that_is_refused_at_first_is_polled_and_its_message_sent_once_more(
    code: int,
) -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: error(asked, code),
            SendMessage=lambda asked: created(asked, task()),
            GetTask=lambda asked: got(asked, task(DONE)),
        )
    )
    events = await shown(client(stub, card()).stream("hi", message_id="m-7"))
    assert states(events) == [WORKING, DONE]
    assert [asked.method for asked in stub.requests[:3]] == [
        "SendStreamingMessage",
        "SendMessage",
        "GetTask",
    ]
    ids = {asked.json["params"]["message"]["messageId"] for asked in stub.requests[:2]}
    assert ids == {"m-7"}


async def test_an_agent_that_refuses_to_stream_has_one_task() -> None:
    agent = ScriptedAgent(
        {"rules": [{"when": {"method": "SendStreamingMessage"}, "steps": [{"error": UNSUPPORTED}]}]}
    )
    async with Client(app=agent) as ours:
        events = await shown(ours.stream("hi", poll_interval=0.001))
    assert states(events)[-1] is DONE and len(agent.tasks) == 1


async def test_a_peer_that_answers_a_stream_with_all_there_is_is_read() -> None:
    stub = Stub(lambda asked: created(asked, task(DONE, artifacts=[artifact("all")])))
    assert texts(await shown(client(stub, card()).stream("hi"))) == "all"


@pytest.mark.parametrize("positions", [True, False])
async def test_a_peer_that_ends_every_stream_at_once_is_polled_in_the_end(positions: bool) -> None:
    stub = Stub(
        by_method(
            SendStreamingMessage=lambda asked: stream(asked, (1, task())),
            SubscribeToTask=lambda asked: stream(asked, (1, task())),
            GetTask=lambda asked: got(asked, task(DONE if len(stub.requests) > 8 else WORKING)),
        )
    )
    ours = client(stub, card(positions=positions, once=positions))
    events = await shown(ours.stream("hi", poll_interval=0.001))
    assert states(events) == [WORKING, DONE]
    assert stub.count("SendStreamingMessage") == 1 and stub.count("SubscribeToTask") <= 4


# Credentials and busy servers


class Renewed(Credential):
    """A token that is old until it is refused."""

    def __init__(self) -> None:
        self.token = "old"

    def fits(self, scheme: Scheme) -> bool:
        return True

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        to.headers["authorization"] = f"Bearer {self.token}"

    def refused(self) -> bool:
        is_worth_it = self.token == "old"
        self.token = "new"
        return is_worth_it


def locked() -> AgentCard:
    scheme = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
    return msgspec.structs.replace(
        card(),
        security_schemes={"token": scheme},
        security_requirements=[{"schemes": {"token": {"list": []}}}],
    )


def guarded(asked: Asked) -> Said:
    if asked.headers.get("authorization") != "Bearer new":
        return Said(401, {"www-authenticate": "Bearer"})
    return stream(asked, task(DONE, "done"))


async def test_a_credential_that_is_refused_is_renewed_and_tried_once_more() -> None:
    stub = Stub(guarded)
    events = await shown(
        client(stub, locked(), credentials=[Renewed()], origins=[URL]).stream("hi")
    )
    assert states(events) == [DONE] and len(stub.requests) == 2


async def test_a_credential_that_cannot_be_renewed_is_not_tried_again() -> None:
    stub = Stub(guarded)
    with pytest.raises(Unauthenticated):
        await shown(
            client(stub, locked(), credentials=[Bearer("wrong")], origins=[URL]).stream("hi")
        )
    assert len(stub.requests) == 1


async def test_a_busy_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("dragoman.client.line.asyncio.sleep", sleep)
    stub = Stub(
        answers(
            lambda asked: Said(503, {"retry-after": "7"}), lambda asked: stream(asked, task(DONE))
        )
    )
    assert states(await shown(client(stub, card()).stream("hi"))) == [DONE]
    assert [seconds for seconds in waited if seconds] == [7.0]


async def test_a_busy_server_that_names_no_time_may_have_begun_and_gets_no_message_again() -> None:
    stub = Stub(lambda asked: Said(503))
    with pytest.raises(Overloaded):
        await shown(client(stub, card()).stream("hi"))
    assert len(stub.requests) == 1


# Answers that are lost


async def test_a_lost_answer_of_a_peer_that_promises_nothing_is_said_to_be_unknown() -> None:
    stub = Stub(
        by_method(SendStreamingMessage=lost, ListTasks=lambda asked: listed(asked, task(DONE)))
    )
    with pytest.raises(DeliveryUnknown):
        await shown(client(stub, card()).stream("hi"))
    assert stub.count("SendStreamingMessage") == 1


async def test_a_request_that_never_left_is_made_again() -> None:
    stub = Stub(
        answers(
            lambda asked: Said(is_lost=True, is_sent=False),
            lambda asked: stream(asked, task(DONE, "done")),
        )
    )
    assert states(await shown(client(stub, card()).stream("hi"))) == [DONE]
    assert len(stub.requests) == 2


async def test_a_host_where_nobody_is_is_not_asked_for_an_older_version() -> None:
    stub = Stub(
        answers(
            lambda asked: Said(is_lost=True, is_sent=False),
            lambda asked: created(asked, task(DONE, "done")),
        )
    )
    now = card(streaming=False)
    old = AgentInterface(f"{URL}/old", JSONRPC, "0.3")
    both = msgspec.structs.replace(now, supported_interfaces=[*now.supported_interfaces, old])
    await client(stub, both).send("hi")
    assert [asked.headers["a2a-version"] for asked in stub.requests] == ["1.0", "1.0"]


async def test_a_lost_message_is_sent_again_to_a_peer_that_works_once() -> None:
    stub = Stub(answers(lost, lost, lambda asked: stream(asked, (1, task()), (2, status(DONE)))))
    ours = client(stub, card(once=True, positions=True))
    events = await shown(ours.stream("hi", message_id="m-1"))
    assert states(events) == [WORKING, DONE]
    sent = [asked.json["params"]["message"]["messageId"] for asked in stub.requests]
    assert sent == ["m-1"] * 3
    # From the beginning: events that came while we were away are not to be missed.
    assert stub.requests[-1].headers["last-event-id"] == "0"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_lost_answer_is_found_among_the_latest_tasks(streaming: bool) -> None:
    mine = task(DONE, artifacts=[artifact("here")], history=[said("m-1", Role.USER)])
    stub = Stub(
        by_method(
            SendStreamingMessage=lost,
            SendMessage=lost,
            ListTasks=lambda asked: listed(asked, mine),
            # It has ended meanwhile.
            SubscribeToTask=lambda asked: error(asked, UNSUPPORTED),
            GetTask=lambda asked: got(asked, mine),
        )
    )
    found = client(stub, card(streaming=streaming)).stream("hi", message_id="m-1")
    assert texts(await shown(found)) == "here"
    assert stub.count("SendMessage") + stub.count("SendStreamingMessage") == 1


async def test_a_lost_answer_that_is_found_under_way_is_followed() -> None:
    mine = task(history=[said("m-1", Role.USER)])
    stub = Stub(
        by_method(
            SendStreamingMessage=lost,
            ListTasks=lambda asked: listed(asked, mine),
            SubscribeToTask=lambda asked: stream(asked, mine, chunk("x"), status(DONE)),
        )
    )
    assert texts(await shown(client(stub, card()).stream("hi", message_id="m-1"))) == "x"


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_lost_message_to_a_task_is_looked_for_in_its_history(arrived: bool) -> None:
    history = [said("m-2", Role.USER)] if arrived else []
    stub = Stub(
        by_method(
            SendStreamingMessage=lost,
            GetTask=lambda asked: got(asked, task(ASKS, "q", history=history)),
            SubscribeToTask=lambda asked: stream(asked, task(), status(DONE)),
        )
    )
    events = client(stub, card()).stream("yes", task_id=T, message_id="m-2")
    if arrived:
        assert states(await shown(events))[-1] is DONE
    else:
        with pytest.raises(DeliveryUnknown):
            await shown(events)


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
    line = client(stub, card(positions=positions))._line
    known = task(artifacts=[artifact("a")])
    events = await shown(Stream(line, ops.SubscribeToTask(task_id=T), begun=known))
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


# How long it goes on


async def test_a_stream_that_was_quiet_for_long_is_taken_up_when_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

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
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

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

    monkeypatch.setattr("dragoman.client.line.asyncio.sleep", sleep)
    line: Line = client(Stub(lost), card(), backoff=0.2)._line
    for tries in (1, 2, 3, 50):
        await line.pause(tries, Unreachable())
    await line.pause(1, Overloaded(retryAfter="99999"))
    assert waited[0] < waited[1] < waited[2] and waited[3:] == [30.0, 30.0]
