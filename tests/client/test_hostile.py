"""Peers that say anything: what comes out of the client is one class of our errors or the right
end, in bounded time and memory, and nothing else."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from dragoman.client import remote
from dragoman.client.agent_connection import AgentConnection
from dragoman.client.client import Client
from dragoman.client.streams.stream import Stream
from dragoman.dialects.v0_3 import V0_3
from dragoman.errors import A2AError, InvalidAgentResponse, TimedOut
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentCard
from dragoman.model.task import TaskState
from tests.client.hostile import answers, streams
from tests.client.hostile.streams import frames, peer, whole
from tests.client.stub import EVENTS, Asked, Said, Stub, card, client, listed, stream, task

# Each case; a hang is a failure and not a wait.
WITHIN = 60.0
ENDED = TaskState.COMPLETED
counted: dict[str, int] = {}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second tries come at once, whatever a peer asks for."""

    async def pause(self: AgentConnection, tries: int, error: A2AError) -> None:
        # What is not a number fails here as it would there.
        float(error.facts.get("retryAfter", "0"))
        await asyncio.sleep(0)

    monkeypatch.setattr(AgentConnection, "pause", pause)
    monkeypatch.setattr("dragoman.client.streams.stream.POLL_EVERY", 0.0001)
    monkeypatch.setattr("dragoman.client.streams.stream.LONGEST_WAIT", 0.001)


async def outcome(deed: Awaitable[Any]) -> Any:
    """Return what came of it, or our own error; anything else is raised."""
    try:
        async with asyncio.timeout(WITHIN):
            return await deed
    except A2AError as error:
        str(error)
        assert all(isinstance(fact, str) for fact in error.facts.values())
        return error


async def followed(ours: Client) -> Stream:
    events = ours.stream("hi")
    async with events:
        async for _ in events:
            pass
    return events


def problem_of(case: streams.Case, found: Any) -> str:
    """Return what is wrong about an outcome, or nothing."""
    if isinstance(found, A2AError):
        return f"{type(found).__name__}: {found}" if case.is_good else ""
    answer = found.answer
    if case.is_good and (answer.state is not ENDED or answer.text != "ab"):
        return f"{answer.state} {answer.text!r}"
    if found.task is not None and not found.task.status.state.is_resting:
        return f"ended at {found.task.status.state}"
    return ""


async def run_streams(cases: Iterable[streams.Case], agent: AgentCard) -> int:
    problems: list[str] = []
    count = 0
    for case in cases:
        count += 1
        stub = Stub(peer(case))
        try:
            found = await outcome(followed(client(stub, agent)))
            problem = problem_of(case, found)
        except Exception as error:
            problem = repr(error)
        if stub.open_now:
            problem += " and a connection is left open"
        if len(stub.requests) > 40:
            problem += f" after {len(stub.requests)} requests"
        if problem:
            problems.append(f"{case.name}: {problem}")
    assert problems == [], f"{len(problems)} of {count}"
    return count


def probe(agent: AgentCard) -> Asked:
    """A request as this agent would get it."""
    version = agent.supported_interfaces[0].protocol_version
    body = (
        b'{"id":"x","method":"m"}'
        if agent.supported_interfaces[0].protocol_binding == JSONRPC
        else b""
    )
    return Asked("POST", "", {"a2a-version": version}, body)


AGENTS = {
    "jsonrpc with positions": card(positions=True, once=True),
    "rest with positions": card(binding=HTTP_JSON, positions=True, once=True),
    "jsonrpc": card(once=True),
    "rest": card(binding=HTTP_JSON, once=True),
    "0.3": card(version="0.3", once=True),
}


# Event streams


@pytest.mark.parametrize("name", ["jsonrpc with positions", "rest", "0.3"])
async def test_a_good_stream_that_is_cut_at_any_byte_comes_to_its_end(name: str) -> None:
    agent = AGENTS[name]
    length = len(b"".join(frames(probe(agent))))
    assert length > 500
    counted[f"cuts {name}"] = await run_streams(streams.cuts(length), agent)


@pytest.mark.parametrize("name", AGENTS)
async def test_a_good_stream_is_read_in_every_spelling(name: str) -> None:
    counted[f"spellings {name}"] = await run_streams(streams.spellings(), AGENTS[name])


@pytest.mark.parametrize("name", AGENTS)
async def test_a_stream_of_junk_ends_with_an_error_of_ours_or_well(name: str) -> None:
    counted[f"junk {name}"] = await run_streams(streams.junk(), AGENTS[name])


@pytest.mark.parametrize("name", ["jsonrpc with positions", "rest", "0.3"])
async def test_wrong_types_in_any_place_of_any_event_end_with_an_error_of_ours_or_well(
    name: str,
) -> None:
    agent = AGENTS[name]
    binding = agent.supported_interfaces[0].protocol_binding
    cases = streams.wrong_events(binding, probe(agent))
    counted[f"events {name}"] = await run_streams(cases, agent)


# Single answers


async def run_answers(
    cases: Iterable[answers.Case],
    agent: AgentCard,
    make: Callable[[Client], Awaitable[Any]],
) -> int:
    problems: list[str] = []
    count = 0
    for case in cases:
        count += 1
        left = islice(_for_ever(case.answer), 60)
        stub = Stub(lambda asked, left=left: next(left, _give_up)(asked))
        try:
            found = await outcome(make(client(stub, agent)))
            problem = repr(found) if case.is_good and isinstance(found, A2AError) else ""
        except Exception as error:
            problem = repr(error)
        if stub.open_now or len(stub.requests) >= 60:
            problem += f" {stub.open_now} left open, {len(stub.requests)} requests"
        if problem:
            problems.append(f"{case.name}: {problem}")
    assert problems == [], f"{len(problems)} of {count}"
    return count


def _for_ever(answer: Callable[[Asked], Said]) -> Iterator[Callable[[Asked], Said]]:
    while True:
        yield answer


def _give_up(asked: Asked) -> Said:
    raise AssertionError("it asks without end")


SERVED = list(enumerate(answers.SERVED))


@pytest.mark.parametrize("number", range(len(answers.SERVED)))
@pytest.mark.parametrize("call", answers.CALLS, ids=lambda call: call.name)
async def test_a_wrong_answer_to_any_call_is_an_error_of_ours_or_read(
    call: answers.Call, number: int
) -> None:
    agent, dialect = answers.SERVED[number]
    if dialect is V0_3 and call.name in ("list", "card"):
        pytest.skip("0.3 has no such call")
    count = await run_answers(answers.wrong_values(call, dialect, 3), agent, call.make)
    if call.name in ("send", "list"):
        count += await run_answers(answers.envelopes(call, dialect), agent, call.make)
    counted[f"answers {call.name} {number}"] = count


@pytest.mark.parametrize("binding", [JSONRPC, HTTP_JSON])
@pytest.mark.parametrize("name", ["send", "get", "stream", "subscribe"])
async def test_every_status_and_every_error_is_one_of_ours(name: str, binding: str) -> None:
    by_name = {call.name: call.make for call in answers.CALLS} | answers.STREAMS
    agent = card(binding=binding)
    count = await run_answers(answers.statuses(), agent, by_name[name])
    count += await run_answers(answers.refusals(), agent, by_name[name])
    counted[f"statuses {name} {binding}"] = count


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize(("name", "events"), list(answers.sequences()))
async def test_events_that_do_not_belong_together_end(
    name: str, events: list[Any], positions: bool
) -> None:
    stub = Stub(lambda asked: stream(asked, *events, (90, streams.GOOD[-1])))
    found = await outcome(followed(client(stub, card(positions=positions))))
    assert isinstance(found, A2AError) or found.answer.message or found.answer.state is ENDED
    if name in ("another task", "message after the task"):
        assert isinstance(found, InvalidAgentResponse)


async def test_pages_that_go_round_in_a_circle_are_left() -> None:
    tokens = iter(["a", "b", "a", "b", "a"])

    def paged(asked: Asked) -> Said:
        answer = listed(asked, task())
        body = answer.pieces[0].replace(b'"nextPageToken":""', b'"nextPageToken":"%b"')
        answer.pieces = [body % next(tokens).encode()]
        return answer

    stub = Stub(paged)
    with pytest.raises(InvalidAgentResponse):
        [one async for one in client(stub, card()).list()]
    assert len(stub.requests) == 3


@pytest.mark.parametrize("binding", [JSONRPC, HTTP_JSON])
async def test_configurations_in_pages_without_end_are_left(binding: str) -> None:
    call = next(call for call in answers.CALLS if call.name == "pushes")
    value = answers.good(call) | {"nextPageToken": "again"}
    stub = Stub(lambda asked: answers.spoken(asked, answers.enveloped(asked, value)))
    found = await outcome(client(stub, card(binding=binding)).list_push("t"))
    assert isinstance(found, InvalidAgentResponse) and len(stub.requests) < 10


# Time and memory


async def test_an_answer_without_end_is_left_when_it_is_too_large() -> None:
    piece = b"x" * (1 << 16)
    endless = [piece] * (100 * 1024 * 1024 // len(piece))
    for headers in ({"content-type": "application/json"}, EVENTS):
        stub = Stub(lambda asked, headers=headers: Said(headers=headers, pieces=endless))
        tracemalloc.start()
        try:
            found = await outcome(followed(client(stub, card())))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(found, InvalidAgentResponse)
        assert peak < 4 * remote.MAX_ANSWER


async def test_comments_without_end_cost_no_memory() -> None:
    comments = [b": junk\n" * 100] * 3000
    stub = Stub(lambda asked: whole(*comments, *frames(asked)))
    tracemalloc.start()
    try:
        found = await outcome(followed(client(stub, card())))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.answer.text == "ab" and peak < 1 << 20


async def test_a_call_that_is_not_answered_ends_when_its_time_is_up() -> None:
    stub = Stub(lambda asked: Said(hangs=True))
    found = await outcome(client(stub, card(), timeout=0.01).get("t"))
    assert isinstance(found, TimedOut) and stub.open_now == 0


def test_there_are_as_many_cases_as_promised(request: pytest.FixtureRequest) -> None:
    if request.session.testscollected < 60:
        pytest.skip("only some of the cases ran")
    sse = sum(n for name, n in counted.items() if name.split()[0] in STREAM_KINDS)
    assert sse >= 1500
    assert sum(counted.values()) - sse >= 1500


STREAM_KINDS = ("cuts", "spellings", "junk", "events")
