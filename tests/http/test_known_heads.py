"""Requests whose head a connection has read before: they skip the parser and the judgement of their
head, and nothing else. What can change is judged each time."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.passes import RevocableWay

from dragoman import App
from dragoman.config import load_settings
from dragoman.http.known_heads import (
    MAX_ALL_HEADS,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_HEADS,
    whole_request,
)
from dragoman.http.protocol import HttpProtocol
from tests.corpus import envelope, params
from tests.corpus.agent import agent
from tests.corpus.run import SEED
from tests.http.wire import Answer, Peer, Place, call, get, guarding, message, post

UNKNOWN = call("GetTask", {"id": "none"})


def connection(place: Place) -> HttpProtocol:
    """Return the one connection that is open."""
    (one,) = place.connections._open
    assert isinstance(one, HttpProtocol)
    return one


async def ask(peer: Peer, data: bytes) -> Answer:
    await peer.send(data)
    return await peer.answer()


async def become_known(place: Place, peer: Peer, *fields: bytes) -> None:
    """Have the head of a plain request known on a connection."""
    assert (await ask(peer, post(UNKNOWN, *fields))).status == 200
    assert len(connection(place)._heads) == 1


# What counts as one whole request


def test_a_head_is_known_by_its_bytes_without_the_digits_of_its_length() -> None:
    short, long = whole_request(post(b"1")), whole_request(post(b"12345678901"))
    assert short is not None and long is not None
    assert (short.body, long.body) == (b"1", b"12345678901")
    assert short.key == long.key and b"Content-Length: \r\n" in short.key
    other = whole_request(post(b"1", b"X-Other: 1"))
    assert other is not None and other.key != short.key


@pytest.mark.parametrize(
    "data",
    [
        post(b"12") + b"3",
        post(b"12")[:-1],
        post(b"1") + post(b"2"),
        get() + get(),
        get()[:-1],
        b"",
        get(b"/", b"X-Long: " + b"x" * MAX_HEAD_BYTES),
        post(b"12").replace(b"Content-Length: 2", b"Content-Length:2"),
        post(b"12").replace(b"Content-Length: 2", b"Content-Length: 2 "),
        post(b"12").replace(b"Content-Length: 2", b"Content-Length: 000002"),
    ],
)
def test_what_is_not_exactly_one_whole_small_request_is_read_by_the_parser(data: bytes) -> None:
    assert whole_request(data) is None


# The same answers on both ways


def _without_ids(answer: Answer) -> tuple[int, list[tuple[str, str]], Any]:
    value = json.loads(answer.body) if answer.body else None
    task = (value or {}).get("result", {}).get("task") if isinstance(value, dict) else None
    if task:
        parts = [artifact["parts"] for artifact in task["artifacts"]]
        value["result"]["task"] = parts, task["status"]["state"]
        return answer.status, [*{**answer.headers, "content-length": ""}.items()], value
    return answer.status, [*answer.headers.items()], value


async def _answers(place: Place) -> list[Any]:
    """Return the answers to a day's requests on one connection, heads repeated."""
    found: list[Any] = []
    async with place.peer() as peer:
        for number in range(3):
            for data in (
                post(call("SendMessage", message("x" * 10**number), id=number)),
                post(UNKNOWN),
                post(b"{" * (number + 1)),
                post({"jsonrpc": "2.0", "method": "No/Such", "id": "a" * number}),
                post(UNKNOWN, b"A2A-Extensions: urn:none"),
                post(UNKNOWN, b"Content-Type: text/html"),
                post(b"{}", path=b"/message:send"),
                get(b"/tasks/none", b"A2A-Version: 1.0"),
                get(b"/tasks/none?A2A-Version=9.9"),
                get(b"/nowhere"),
                get(),
            ):
                found.append(_without_ids(await ask(peer, data)))
        stream = post(call("SendStreamingMessage", message("streamed")))
        for _ in range(2):
            answer = await ask(peer, stream)
            assert b"TASK_STATE_COMPLETED" in answer.body
            found.append((answer.status, [*answer.headers.items()]))
    return found


async def test_answers_are_the_same_whether_a_head_is_known_or_not() -> None:
    async with guarding() as place:
        place.connections.keeps_heads = False
        parsed = await _answers(place)
        place.connections.keeps_heads = True
        assert await _answers(place) == parsed


def _corpus() -> list[bytes]:
    """Return calls of the corpus as bytes: most repeat the head of one before."""
    cases = [case for case in params.cases(300, SEED) if case.binding == "jsonrpc"][:500]
    cases += [case for case in envelope.cases(300, SEED) if case.binding == "jsonrpc"][:300]
    found: list[bytes] = []
    for case in cases:
        fields = [f"{name}: {value}".encode("latin-1") for name, value in case.headers]
        length = b"Content-Length: %d" % len(case.body)
        target = f"{case.path}?{case.query}" if case.query else case.path
        line = f"{case.method} {target} HTTP/1.1".encode()
        lines = [line, b"Host: 127.0.0.1", *fields, length, b"", case.body]
        found.append(b"\r\n".join(lines))
    return found


async def test_the_corpus_gets_the_same_answers_whether_heads_are_known_or_not() -> None:
    found = _corpus()
    answers: list[list[Any]] = []
    async with guarding() as place:
        for keeps_heads in (False, True):
            place.connections.keeps_heads = keeps_heads
            async with place.peer() as peer:
                given = [await ask(peer, data) for data in found]
                assert bool(connection(place)._heads) is keeps_heads
            await place.until(lambda: not len(place.connections))
            # What was accepted has ids and times of its own.
            answers.append([a if b'"result"' not in a.body else a.status for a in given])
    assert len(found) > 500
    assert answers[0] == answers[1]


async def test_a_request_in_pieces_behind_a_known_head_waits_for_all_of_them() -> None:
    async with guarding() as place, place.peer() as peer:
        await become_known(place, peer)
        data = post(call("SendMessage", message("in pieces")))
        for cut in (1, 20, data.index(b"\r\n\r\n") + 4, len(data) - 1):
            await peer.send(data[:cut])
            await place.until(lambda: connection(place)._phase != 0)
            assert (await ask(peer, data[cut:])).status == 200


async def test_a_head_that_says_its_length_in_another_way_is_not_taken_for_a_whole_request() -> (
    None
):
    data = post(b"12345").replace(b"Content-Length: 5", b"Content-Length:5")
    head, body = data[:-5], data[-5:]
    async with guarding() as place, place.peer() as peer:
        for _ in range(2):
            await peer.send(head)
            await place.until(lambda: connection(place)._phase != 0)
            answer = await ask(peer, body)
            # Not an empty text: the whole body was waited for.
            assert answer.value["error"]["code"] == -32600


async def test_a_head_with_an_empty_length_is_refused_although_one_with_a_length_is_known() -> None:
    known = post(UNKNOWN)
    head = known[: -len(known.partition(b"\r\n\r\n")[2])]
    number = b"Content-Length: %d" % (len(known) - len(head))
    async with guarding() as place, place.peer() as peer:
        await become_known(place, peer)
        assert (await ask(peer, head.replace(number, b"Content-Length: "))).status == 400


async def test_requests_behind_each_other_are_answered_in_their_order() -> None:
    async with guarding() as place, place.peer() as peer:
        await become_known(place, peer)
        many = [post(call("SendMessage", message("x"), id=number)) for number in range(4)]
        await peer.send(many[0])
        await peer.send(many[1] + many[2])
        await peer.send(many[3])
        assert [(await peer.answer()).value["id"] for _ in many] == [0, 1, 2, 3]


async def test_a_connection_knows_a_bounded_number_of_small_heads() -> None:
    async with guarding() as place, place.peer() as peer:
        for number in range(MAX_HEADS + 3):
            assert (await ask(peer, post(UNKNOWN, b"X-N: %d" % number))).status == 200
        assert len(connection(place)._heads) == MAX_HEADS
        await ask(peer, post(UNKNOWN, b"X-Long: " + b"x" * MAX_HEAD_BYTES))
        await ask(peer, post(UNKNOWN, b"traceparent: 00-%b-%b-01" % (b"1" * 32, b"2" * 16)))
        await ask(peer, post(UNKNOWN, *[b"X-%d:" % number for number in range(MAX_FIELDS)]))
        await ask(peer, get())
        latest = list(connection(place)._heads._known)[-1]
        assert b"X-N: %d\r\n" % (MAX_HEADS + 2) in latest


async def test_connections_that_know_many_heads_together_know_one_each() -> None:
    async with guarding() as place:
        total = place.connections.known_heads
        async with place.peer() as peer:
            await become_known(place, peer)
            await ask(peer, post(UNKNOWN, b"X-N: 1"))
            assert total.count == len(connection(place)._heads) == 2
            total.count += MAX_ALL_HEADS
            await ask(peer, post(UNKNOWN, b"X-N: 2"))
            assert len(connection(place)._heads) == 2
        await place.until(lambda: total.count == MAX_ALL_HEADS)
        async with place.peer() as peer:
            for number in range(3):
                await ask(peer, post(UNKNOWN, b"X-N: %d" % number))
                assert len(connection(place)._heads) == 1


async def test_a_caller_that_leaves_during_a_send_leaves_its_task_running() -> None:
    async with guarding() as place:
        async with place.peer() as peer:
            await become_known(place, peer)
            await peer.send(post(call("SendMessage", message("left alone"))))
        await place.until(lambda: not len(place.connections))
        async with place.peer() as peer:
            await place.until(lambda: len(place.connections))
            listed = await ask(peer, post(call("ListTasks", {})))
            assert listed.status == 200


async def test_a_server_that_stops_answers_what_is_under_way_and_closes() -> None:
    async with guarding() as place, place.peer() as peer:
        await become_known(place, peer)
        one = connection(place)
        # As its transport does: the request has just come, and the server stops.
        one.data_received(post(call("SendMessage", message("last"))))
        assert not one.is_waiting
        one.shutdown()
        answer = await peer.answer()
        assert answer.status == 200 and answer.headers["connection"] == "close"
        assert await peer.rest() == b""


# What is judged each time


@asynccontextmanager
async def authenticating(
    way: RevocableWay, **settings: Any
) -> AsyncGenerator[tuple[Place, list[float]]]:
    """Serve an app whose callers are authenticated by a clock of the test's."""
    chosen = load_settings({}, store="memory:", **settings)
    app = App(agent, settings=chosen, authenticators=[way])
    clock = [0.0]
    assert app.site.gatekeeper is not None
    app.site.gatekeeper._now = lambda: clock[0]
    async with app.running(), guarding(app) as place:
        yield place, clock


AS_ALICE = b"Authorization: Bearer alice"


async def test_a_revoked_credential_is_refused_on_a_connection_that_knows_its_head() -> None:
    way = RevocableWay()
    async with authenticating(way) as (place, _), place.peer() as peer:
        await become_known(place, peer, AS_ALICE)
        assert (await ask(peer, post(UNKNOWN, AS_ALICE))).status == 200
        assert way.asked == 1
        way.is_revoked = True
        refused = await ask(peer, post(UNKNOWN, AS_ALICE))
        assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"


async def test_an_expired_credential_is_refused_on_a_connection_that_knows_its_head() -> None:
    way = RevocableWay()
    async with authenticating(way) as (place, clock), place.peer() as peer:
        await become_known(place, peer, AS_ALICE)
        clock[0] = 999.0
        assert (await ask(peer, post(UNKNOWN, AS_ALICE))).status == 200
        clock[0], way.until = 1_000.0, 1_000.0
        assert (await ask(peer, post(UNKNOWN, AS_ALICE))).status == 401


async def test_a_head_that_was_denied_is_not_let_in_when_it_comes_again() -> None:
    way = RevocableWay()
    way.is_revoked = True
    async with authenticating(way) as (place, _), place.peer() as peer:
        for _ in range(3):
            assert (await ask(peer, post(UNKNOWN, AS_ALICE))).status == 401
        assert not connection(place)._heads


async def test_each_request_with_a_known_head_counts_for_its_caller() -> None:
    async with authenticating(RevocableWay(), rate_limit="3/h") as (place, _), place.peer() as peer:
        answers = [await ask(peer, post(UNKNOWN, AS_ALICE)) for _ in range(5)]
        assert [one.status for one in answers] == [200, 200, 200, 429, 429]
        left = [one.headers["x-ratelimit-remaining"] for one in answers]
        assert left == ["2", "1", "0", "0", "0"]
        assert "retry-after" in answers[-1].headers


async def test_a_mount_that_is_gone_is_not_reached_by_a_known_head() -> None:
    async with guarding() as place, place.peer() as peer:
        path = f"/agents/{agent.name}/".encode()
        sent = [post(call("SendMessage", message("x")), path=path) for _ in range(3)]
        for data in sent[:2]:
            assert "result" in (await ask(peer, data)).value
        # The path is then another part's, as after a deregistration at a gateway.
        mount = place.app.site.mounts.pop(agent.name)
        place.app.site.mounts["other"] = mount
        try:
            assert (await ask(peer, sent[2])).status == 404
        finally:
            place.app.site.mounts.pop("other")
            place.app.site.mounts[agent.name] = mount
