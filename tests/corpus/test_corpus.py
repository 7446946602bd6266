"""The bad-input corpus against our server: more than 20,000 requests that must be refused.

No 5xx, no crash, no internals, nothing created, the documented code; the next good request works.
A failure prints the distribution of the cases and the smallest reproduction of each deviation.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.corpus import boundaries, cursors, unicode_ids
from tests.corpus.answer import Answer, judge
from tests.corpus.case import PARSE, Case, codes, distinct, rpc
from tests.corpus.cursors import Token
from tests.corpus.run import GENERATORS, SEED, Report, generated, run
from tests.corpus.server import Server, in_process, over_socket
from tests.corpus.strict_json import is_legal

# One case in so many also goes over a real socket.
SLICE = 17


@pytest.mark.parametrize("category", GENERATORS)
async def test_bad_requests_are_refused_and_leave_nothing_behind(category: int) -> None:
    async with in_process() as server:
        report = await run(server, generated(category))
    assert report.clean, str(report)


def test_the_corpus_has_twenty_thousand_different_requests() -> None:
    cases = [case for category in GENERATORS for case in generated(category)]
    spread = Counter(f"{case.category:02d}/{case.kind}" for case in cases)
    assert len({case.name for case in cases}) == len(cases), spread
    assert len({case.fingerprint for case in cases}) >= 20_000, spread
    assert len(spread) >= 100, spread


def test_the_corpus_is_the_same_in_every_run() -> None:
    for category in set(GENERATORS) - {8}:
        assert distinct(GENERATORS[category]()) == generated(category)
    for first, second in zip(boundaries.cases(), generated(8), strict=True):
        assert (first.name, len(first.body)) == (second.name, len(second.body))


def test_the_reference_for_json_text_knows_good_from_bad() -> None:
    good = [
        b"{}",
        b' [1, "\\ud83d\\ude00"] ',
        b"[" * 64 + b"]" * 64,
        b"1" * 64,
        b'"\xf0\x9f\x98\x80"',
    ]
    bad = [b"", b"[" * 65 + b"]" * 65, b"1" * 65, b'{"a":1,"\\u0061":2}', b'"\\ud83d"', b"NaN"]
    assert all(is_legal(body) for body in good)
    assert not any(is_legal(body) for body in bad)


def test_the_judge_sees_each_kind_of_wrong_answer() -> None:
    case = rpc(1, "probe", "", b"{", codes(PARSE, modern=True))
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "INVALID_REQUEST",
        "domain": "a2a-protocol.org",
    }
    error = {"code": PARSE, "message": "Invalid JSON payload", "data": [info]}
    good = {"jsonrpc": "2.0", "id": None, "error": error}

    def verdict(value: object, status: int = 200) -> str | None:
        headers = {"content-type": "application/json"}
        return judge(case, Answer(status, headers, json.dumps(value).encode()))

    assert verdict(good) is None
    assert verdict(good, 500) == "status 500"
    assert verdict(good, 400)
    assert verdict({**good, "id": 1})
    assert verdict({**good, "result": None})
    assert verdict({"jsonrpc": "2.0", "id": None, "result": {}}) == "accepted"
    assert verdict({**good, "error": {**error, "code": -32603}}) == "code -32603"
    assert verdict({**good, "error": {**error, "data": None}})
    assert verdict({**good, "error": {**error, "data": [{**info, "reason": "X"}]}}) == "reason X"
    leak = {**error, "message": "KeyError at /usr/lib/x.py"}
    assert str(verdict({**good, "error": leak})).startswith("internals")


async def test_characters_no_id_may_hold_are_kept_byte_exact_in_content() -> None:
    async with in_process() as server:
        for number, value in enumerate(unicode_ids.TEXTS):
            params = unicode_ids.kept(value)
            params["message"] |= {"messageId": f"kept-{number}", "contextId": "kept"}
            sent = params["message"]
            task = (await server.call("SendMessage", params))["task"]
            again = await server.call("GetTask", {"id": task["id"]})
            assert again == task, repr(value)[:60]
            stored = again["history"][0]
            assert stored["metadata"] == sent["metadata"], repr(value)[:60]
            # ProtoJSON leaves out an empty name, which is the same as none.
            parts = [{k: v for k, v in part.items() if v != ""} for part in sent["parts"]]
            found = [{k: v for k, v in part.items() if v != ""} for part in stored["parts"]]
            assert found == parts, repr(value)[:60]
            (artifact,) = again["artifacts"]
            assert "".join(part.get("text", "") for part in artifact["parts"]) == value


async def test_an_oversize_body_is_refused_before_it_is_read_whole() -> None:
    async with in_process() as server:
        for case in boundaries.cases():
            if case.kind.startswith("body") and len(case.body) > boundaries.BODY:
                answer = await server.send(case)
                assert answer.pulled <= boundaries.BODY + 2 * 65_536, case.name


async def test_forged_and_foreign_page_tokens_are_refused() -> None:
    async with in_process() as other:
        await _fill(other)
        foreign = await _tokens(other)
    async with in_process() as server:
        await _fill(server)
        tokens = await _tokens(server)
        cases = distinct(cursors.token_cases(tokens, foreign[:2], SEED))
        report = await run(server, cases)
        for token in tokens:
            params = {**token.filter, "pageSize": 2, "pageToken": token.value}
            page = await server.call("ListTasks", params)
            assert page["tasks"], token
    assert len(cases) > 300
    assert report.clean, str(report)


async def test_a_bad_cursor_on_an_active_task_is_as_none() -> None:
    report = Report()
    async with in_process() as server:
        immediate = {"returnImmediately": True}
        held = await server.start("x", metadata={"skillId": "hold"}, configuration=immediate)
        other = await server.start("x", metadata={"skillId": "hold"}, configuration=immediate)
        for task in (held, other):
            await _settled(server, task["id"])
        genuine = await _event_ids(server, other["id"])
        forged = [*cursors.LAST_EVENT_IDS, *(f"{one}x" for one in genuine)]
        forged += [f"{other['id']}:{one}" for one in genuine]
        fresh = [await server.send(c, blocks=1) for c in cursors.subscriptions(held["id"], None)]
        for value in forged:
            for case, plain in zip(cursors.subscriptions(held["id"], value), fresh, strict=True):
                report.sent[case.kind] += 1
                answer = await server.send(case, blocks=1)
                # The request id and the task are the same, so the first block is too.
                if answer.status != 200 or _first(answer) != _first(plain):
                    problem = f"opens with {_first(answer)[:80]!r} (status {answer.status})"
                    report.deviations.append((case, problem))
        for task in (held, other):
            await server.call("CancelTask", {"id": task["id"]})
    assert report.sent.total() > 150
    assert report.clean, str(report)


async def test_a_bad_cursor_on_a_finished_task_opens_no_stream() -> None:
    async with in_process() as server:
        task = await server.start("done")
        report = await run(server, cursors.finished(task["id"]))
    assert report.clean, str(report)


async def test_a_slice_of_the_corpus_holds_over_a_real_socket() -> None:
    with over_socket() as server:
        for category in GENERATORS:
            # Large bodies are few and cheap in process; a socket adds nothing to what they show.
            cases = [c for c in generated(category)[::SLICE] if len(c.body) < 1_000_000]
            cases = [case for case in cases if _sendable(case)]
            report = await run(server, cases)
            assert report.clean, str(report)


async def test_limits_of_the_http_guard_hold_over_a_real_socket() -> None:
    with over_socket() as server:
        report = Report()
        for case in boundaries.url_cases():
            answer = await server.send(case)
            expected = case.expect.statuses or {200}
            if answer.status not in expected:
                report.deviations.append((case, f"status {answer.status}"))
        large = [c for c in boundaries.cases() if c.kind in ("body", "body-rest")]
        report = await run(server, large, report)
    assert report.clean, str(report)


def _sendable(case: Case) -> bool:
    return all(value == value.strip() and value.isprintable() for _, value in case.headers)


def _first(answer: Answer) -> bytes:
    return answer.body.partition(b"\n\n")[0]


async def _fill(server: Server) -> None:
    for number in range(5):
        for context in ("corpus-a", "corpus-b"):
            await server.start(f"{context} {number}", contextId=context)


async def _tokens(server: Server) -> list[Token]:
    found = []
    for own in ({}, *cursors.OTHER_FILTERS):
        page = await server.call("ListTasks", {**own, "pageSize": 2})
        if page["nextPageToken"]:
            found.append(Token(page["nextPageToken"], own))
    assert len(found) >= 3
    return found


async def _settled(server: Server, task_id: str) -> None:
    """Wait until the task has said all it will say before it holds still."""
    task = None
    for _ in range(500):
        task = await server.call("GetTask", {"id": task_id})
        if "step 3" in json.dumps(task["status"].get("message", "")):
            return
    raise AssertionError(task)


async def _event_ids(server: Server, task_id: str) -> list[str]:
    case = next(cursors.subscriptions(task_id, None))
    answer = await server.send(case, blocks=1)
    lines = answer.body.decode().splitlines()
    ids = [line.removeprefix("id:").strip() for line in lines if line.startswith("id:")]
    assert ids, "a durable event carries an id"
    return ids
