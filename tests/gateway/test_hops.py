"""What the gateway says to an agent and hears from it, kept for those who try the agent."""

import base64
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.waiting import eventually

from dragoman.client.pending_request import Exchanged, Observer
from dragoman.gateway import hops
from dragoman.gateway.hops import HopLog
from dragoman.gateway.registry.registration import Secret
from dragoman.model.identity import Scope
from tests.gateway.guarded_site import (
    ALICE,
    BOB,
    OPERATOR,
    ask,
    guarded,
    known,
    reply,
    seen,
    send,
    settled,
)
from tests.gateway.malformed.script import dumped, task
from tests.gateway.raw_peer import Answer, Asked, http, raw_peer

OWN = "credential-of-the-agent-1"
SCOPE = Scope("gateway", "", "bob")


def says_what_it_was_shown(name: str, asked: Asked) -> Answer:
    """Answer with the credential in every place that is shown."""
    if asked.operation != "send":
        return reply(asked, name)
    metadata = {"heard": f"it is {OWN}", OWN: 1, "password": "hunter22222"}
    made = task("COMPLETED", id="t-1") | {"metadata": metadata}
    body = dumped({"jsonrpc": "2.0", "id": asked.id, "result": {"task": made}})
    return [http(body, "200 OK", "application/json", f"server: {OWN}", f"x-own: {OWN}")]


def breaks_off(name: str, asked: Asked) -> Answer:
    return ["reset"]


async def recorded(
    folder: Path, sender: str, reader: str, **metadata: Any
) -> tuple[int, dict[str, Any], str]:
    """Send a task to Bob's agent; return status and body of what is read of its hops, and what the
    agent was asked."""
    async with raw_peer(says_what_it_was_shown) as peer, guarded(folder) as site:
        agent = await known(site, peer, "mimic", credential=Secret(kind="bearer", value=OWN))
        sent = await send(site, sender, f"/a2a/{agent.name}", metadata=metadata)
        await settled(site, sender, sent["id"])
        answer = await ask(site, "GET", f"/api/v1/tasks/{sent['id']}/hops", reader)
        assert OWN in seen(peer).decode(), "the agent was shown its credential"
        return answer.status_code, answer.json(), seen(peer).decode()


@pytest.mark.parametrize("who", [BOB, OPERATOR], ids=["owner", "operator"])
async def test_the_exchange_with_the_agent_is_read_without_secrets(
    tmp_path: Path, who: str
) -> None:
    status, body, heard = await recorded(tmp_path, who, who, recordHops=True)
    assert status == 200
    found = body["data"]
    assert found["isHere"] and not found["isCut"]
    hop = found["hops"][-1]
    assert (hop["method"], hop["status"]) == ("POST", 200)
    assert "hello" in json.dumps(hop["request"])
    assert "COMPLETED" in json.dumps(hop["answers"])
    assert hop["requestHeaders"]["authorization"] == "<redacted>"
    assert hop["requestHeaders"]["content-type"] == "application/json"
    assert OWN not in json.dumps(body) and "hunter" not in json.dumps(body)
    # It is a wish to the gateway, and none of the agent's business.
    assert "recordHops" not in heard


@pytest.mark.parametrize(
    ("sender", "metadata"),
    [(ALICE, {"recordHops": True}), (BOB, {}), (BOB, {"recordHops": False})],
    ids=["caller", "unasked", "refused"],
)
async def test_nothing_is_kept_of_others_and_unasked(
    tmp_path: Path, sender: str, metadata: dict[str, Any]
) -> None:
    status, body, _ = await recorded(tmp_path, sender, sender, **metadata)
    assert (status, body["data"]) == (200, {"hops": [], "isHere": False, "isCut": False})


async def test_the_hops_of_another_callers_task_are_not_found(tmp_path: Path) -> None:
    status, body, _ = await recorded(tmp_path, BOB, ALICE, recordHops=True)
    assert (status, body["error"]["code"]) == (404, "TASK_NOT_FOUND")


async def test_an_agent_that_breaks_off_is_shown_as_that(tmp_path: Path) -> None:
    async with raw_peer(breaks_off) as peer, guarded(tmp_path, forward_attempts=1) as site:
        agent = await known(site, peer, "mimic")
        sent = await send(site, BOB, f"/a2a/{agent.name}", metadata={"recordHops": True})

        async def failure() -> str:
            answer = await ask(site, "GET", f"/api/v1/tasks/{sent['id']}/hops", BOB)
            return "".join(one["failure"] for one in answer.json()["data"]["hops"])

        assert await eventually(failure)


# The log itself


def request(body: bytes = b"", number: int = 1, **headers: str) -> Exchanged:
    url = "http://agent.example/a2a?key=of-the-address"
    return Exchanged("request", "POST", url, headers=headers, body=body, request=number)


def event(body: bytes, number: int = 1) -> Exchanged:
    return Exchanged("event", "POST", "", body=body, request=number)


def shown(log: HopLog, task_id: str = "t") -> list[dict[str, Any]]:
    """Return what is read of a task's hops."""
    return msgspec.json.decode(msgspec.json.encode(log.of(SCOPE, task_id).hops))


def test_answers_go_with_their_requests() -> None:
    log = HopLog()
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request(b'{"n":1}', 1))
    keep(request(b'{"n":2}', 2))
    keep(event(b'{"of":1}', 1))
    keep(event(b'{"of":2}', 2))
    keep(event(b'{"of":1}', 1))
    first, second = shown(log)
    assert (first["request"], first["answers"]) == ({"n": 1}, [{"of": 1}, {"of": 1}])
    assert (second["request"], second["answers"]) == ({"n": 2}, [{"of": 2}])
    assert first["url"] == "http://agent.example/a2a"


def test_the_answer_to_a_request_that_is_not_kept_goes_to_no_other() -> None:
    log = HopLog()
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request(b"1", 1))
    keep(request(b"2", 2, server="x" * 1000))
    while not log.of(SCOPE, "t").is_cut:
        keep(event(b'"%s"' % (b"x" * 1000), 2))
    # The number of a request that is over.
    keep(request(b"3", 1, server="x" * 1000))
    keep(Exchanged("answer", "POST", "", status=500, request=1))
    assert [one["status"] for one in shown(log)] == [0, 0]


def test_what_was_hidden_of_a_request_is_hidden_of_its_answer() -> None:
    log = HopLog()
    keep = log.observer(SCOPE, "t", "a", ["in/the address"])
    pair = base64.b64encode(b"me:opensesame").decode()
    keep(request(authorization=f"Basic {pair}", cookie="a=crumbs-1; b=crumbs-2"))
    said = {"x-session": "of the agent", "content-type": "application/json"}
    keep(Exchanged("answer", "POST", "", status=200, headers=said, request=1))
    for text in (pair, "opensesame", "crumbs-2", "in/the address", "in%2Fthe%20address"):
        keep(event(json.dumps({"said": f"<{text}>", text: [text]}).encode()))
        keep(event(f"plain {text}".encode()))
    (hop,) = shown(log)
    assert hop["headers"] == {"x-session": "<redacted>", "content-type": "application/json"}
    assert len(hop["answers"]) == 10
    for text in ("opensesame", "crumbs", "the address", "the%20address", pair):
        assert text not in json.dumps(hop["answers"])


def test_what_is_not_text_is_told_by_its_size() -> None:
    log = HopLog()
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request(b"\x0a\x05token"))
    keep(event(b"\xff\xfe"))
    keep(event(b"x" * (hops.LARGEST + 1)))
    (hop,) = shown(log)
    assert hop["request"] == "7 bytes: not text"
    assert hop["answers"] == ["2 bytes: not text", "32,769 bytes: too long to be kept"]


def test_it_is_bounded_in_tasks_in_bytes_and_in_time() -> None:
    now = 0.0
    log = HopLog(lambda: now)
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request())
    for _ in range(2 * hops.MOST // 1000):
        keep(event(b'"%s"' % (b"x" * 1000)))
    assert log.of(SCOPE, "t").is_cut
    assert len(json.dumps(shown(log)[0]["answers"])) <= hops.MOST + 1000
    for number in range(hops.MOST_TASKS):
        log.observer(SCOPE, f"t{number}", "a", ())
    assert not log.of(SCOPE, "t").is_here
    assert log.of(SCOPE, "t0").is_here
    now = hops.KEPT + 1
    assert not log.of(SCOPE, "t0").is_here


def memory_of(keep: Observer, pieces: Iterable[Exchanged]) -> int:
    """Return the bytes that are held after all pieces were seen."""
    tracemalloc.start()
    for piece in pieces:
        keep(piece)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


@pytest.mark.parametrize(
    "body", [b"x" * (hops.LARGEST + 1), b"[" + b"[]," * 10_000 + b"1]"], ids=["long", "many values"]
)
def test_an_agent_cannot_have_more_kept_than_the_bound(body: bytes) -> None:
    log = HopLog()
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request())
    held = memory_of(keep, (event(body) for _ in range(hops.MOST // 100)))
    assert log.of(SCOPE, "t").is_cut
    assert held < 2 * hops.MOST


@pytest.mark.parametrize("reason", ["others", "age"])
def test_what_was_forgotten_does_not_grow(reason: str) -> None:
    now = 0.0
    log = HopLog(lambda: now)
    keep = log.observer(SCOPE, "t", "a", ())
    keep(request())
    if reason == "age":
        now = hops.KEPT + 1
    else:
        for number in range(hops.MOST_TASKS):
            log.observer(SCOPE, f"t{number}", "a", ())
    assert not log.of(SCOPE, "t").is_here
    assert memory_of(keep, (event(b'"%s"' % (b"x" * 1000)) for _ in range(100))) < 10_000


def test_an_agent_of_another_owner_is_left_out() -> None:
    log = HopLog()
    log.observer(SCOPE, "t", "mine", ())(request(b"1"))
    log.observer(SCOPE, "t", "theirs", ())(request(b"2"))
    assert [one.agent for one in log.of(SCOPE, "t", lambda agent: agent == "mine").hops] == ["mine"]
