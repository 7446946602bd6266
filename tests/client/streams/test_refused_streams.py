"""Peers that cannot stream, refuse a credential, are busy, or whose answers are lost."""

import msgspec
import pytest

from dragoman.client.client import Client
from dragoman.client.credentials.credentials import Attached, Bearer, Credential, Scheme
from dragoman.client.credentials.origins import Origins
from dragoman.client.http import Http
from dragoman.client.streams import stream as module
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    Overloaded,
    Unauthenticated,
)
from dragoman.model.card import JSONRPC, AgentCard, AgentInterface
from dragoman.model.message import Role
from dragoman.testing.scripted.agent import ScriptedAgent
from tests.client.streams.reading import (
    ASKS,
    DONE,
    NO_METHOD,
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
    said,
    status,
    stream,
    task,
)

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

    monkeypatch.setattr("dragoman.client.agent_connection.asyncio.sleep", sleep)
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
