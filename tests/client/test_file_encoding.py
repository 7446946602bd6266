"""How a peer of 0.3 encodes files over REST: asked once, before the first, and remembered."""

import base64
from typing import Any

import msgspec
import pytest

from dragoman import Part
from dragoman.client.file_encoding import AS_TEXT, UNKNOWN, EncodingRefused, told_by
from dragoman.errors import Unreachable
from dragoman.model.card import HTTP_JSON, AgentCard, AgentInterface
from tests.client.stub import URL, Asked, Said, Stub, card, client

FILE = Part(raw=b"\x00\x01\xff", media_type="application/x-report")
BYTES = base64.b64encode(FILE.raw or b"").decode()
TEXT = base64.b64encode(BYTES.encode()).decode()
SDK = {"message": "Task not found"}
LAYER = {"error": {"code": 404, "status": "NOT_FOUND", "message": "Task not found"}}
PROTO = {"code": -32001, "message": "Task not found"}


def old(**more: Any) -> AgentCard:
    rest = AgentInterface(URL, HTTP_JSON, "0.3")
    return msgspec.structs.replace(card(**more), supported_interfaces=[rest])


def peer(refusal: Any, headers: dict[str, str] | None = None, given: str = "") -> Stub:
    """A peer that refuses what it is asked for in its way, and answers with a file."""
    parts = [
        {"file": {"fileWithBytes": given, "mimeType": "text/plain"}} if given else {"text": "x"}
    ]
    done = {
        "id": "t",
        "contextId": "c",
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": parts}],
    }

    def answer(asked: Asked) -> Said:
        kind = {"content-type": "application/json", **(headers or {})}
        if asked.verb == "GET":
            if refusal is None:
                return Said(is_lost=True, is_sent=False)
            return Said(404, kind, [msgspec.json.encode(refusal)])
        return Said(200, kind, [msgspec.json.encode({"task": done})])

    return Stub(answer)


def sent(stub: Stub) -> list[str]:
    bodies = [one.json for one in stub.requests if one.verb == "POST"]
    return [body["message"]["content"][-1]["file"]["fileWithBytes"] for body in bodies]


@pytest.mark.requirement("P-8")
@pytest.mark.parametrize(
    ("refusal", "headers", "wanted"),
    [
        (SDK, {}, True),
        (SDK | {"data": None}, {"server": "nginx"}, True),
        (LAYER, {}, True),
        (PROTO, {"server": "uvicorn"}, False),
        ({"detail": "Not Found"}, {"server": "uvicorn"}, True),
        ({"detail": "Not Found"}, {"server": "Werkzeug/3.1 Python/3.12"}, True),
        ("nothing", {"server": "hypercorn-h11"}, True),
        ({}, {"x-powered-by": "Express"}, False),
        ({}, {"server": "nginx"}, None),
        ([], {}, None),
    ],
)
def test_a_refusal_tells(refusal: Any, headers: dict[str, str], wanted: bool | None) -> None:
    assert told_by(EncodingRefused(headers, refusal)) is wanted


@pytest.mark.requirement("P-8")
@pytest.mark.parametrize(
    ("refusal", "wanted", "notes"),
    [(SDK, TEXT, [AS_TEXT]), (LAYER, TEXT, [AS_TEXT]), (PROTO, BYTES, []), ({}, BYTES, [UNKNOWN])],
)
async def test_files_go_as_the_peer_has_them_and_it_is_asked_once(
    refusal: Any, wanted: str, notes: list[str]
) -> None:
    stub = peer(refusal)
    agent = client(stub, old(streaming=False))
    for _ in range(3):
        await agent.send(["take this", FILE])
    assert sent(stub) == [wanted] * 3
    assert [one.verb for one in stub.requests] == ["GET", "POST", "POST", "POST"]
    assert agent._connection.leniencies == notes


@pytest.mark.requirement("P-8")
@pytest.mark.parametrize(("refusal", "raw"), [(SDK, b"hello"), (PROTO, b"aGVsbG8=")])
async def test_files_are_read_as_the_peer_has_them(refusal: Any, raw: bytes) -> None:
    # Base64 within base64: a file that was encoded twice, or one whose text is base64.
    stub = peer(refusal, given=base64.b64encode(b"aGVsbG8=").decode())
    agent = client(stub, old(streaming=False))
    for _ in range(2):
        assert [file.raw for file in (await agent.send("a file, please")).files] == [raw]
    assert [one.verb for one in stub.requests] == ["POST", "GET", "POST"]


async def test_nothing_is_asked_where_there_is_no_file() -> None:
    stub = peer(SDK)
    link = Part(url="https://a.example/file")
    await client(stub, old(streaming=False)).send(["see there", link])
    assert [one.verb for one in stub.requests] == ["POST"]


async def test_no_file_is_sent_to_who_does_not_answer_the_question() -> None:
    stub = peer(None)
    with pytest.raises(Unreachable):
        await client(stub, old(streaming=False), backoff=0.0).send(["take this", FILE])
    assert {one.verb for one in stub.requests} == {"GET"}


async def test_an_answer_is_read_although_the_question_gets_none() -> None:
    given = base64.b64encode(b"aGVsbG8=").decode()
    stub = peer(None, {"server": "uvicorn"}, given)
    answer = await client(stub, old(streaming=False)).send("a file, please")
    assert [file.raw for file in answer.files] == [b"hello"]
