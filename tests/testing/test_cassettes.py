"""Recording a conversation, serving it again, and holding a live agent to it."""

import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.serving import client, message
from harness.waiting import within

from dragoman.client.cards.cards import Cards
from dragoman.client.cards.references import parse
from dragoman.client.client import Client
from dragoman.client.credentials.credentials import ApiKey
from dragoman.client.credentials.origins import Origins
from dragoman.egress.egress import Egress
from dragoman.egress.targets import Anywhere
from dragoman.errors import A2AError, ConfigError, TaskNotFound
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.task import TaskState
from dragoman.testing.agents import replayed
from dragoman.testing.cassettes.cassette import Blocks, Cassette, CassetteWriter, content, read
from dragoman.testing.cassettes.comparison import Comparison
from dragoman.testing.cassettes.recorder import Recorder
from dragoman.testing.cassettes.redaction import HIDDEN, CassetteRedaction
from dragoman.testing.cassettes.replayer import Replayer
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.serve import serving

SECRET = "s3cret-key-0001"
SCRIPT: dict[str, Any] = {
    "card": {"bindings": ["JSONRPC", "HTTP+JSON", "GRPC"]},
    "access": {"kind": "api-key", "secret": SECRET, "name": "X-Weird"},
    "rules": [
        {
            "when": {"equals": "ask"},
            "steps": [{"ask": "Which?"}, {"artifact": "a", "text": "{text}"}],
        },
        {"when": {"equals": "leak"}, "steps": [{"artifact": "a", "text": f"key {SECRET} seen"}]},
        {"when": {"equals": "slow"}, "steps": [{"say": "a"}, {"wait": 0.2}, {"say": "b"}]},
        {"when": {"equals": "cut"}, "steps": [{"say": "a"}, {"cut": True}]},
    ],
}


class Recording(NamedTuple):
    agent: ScriptedAgent
    upstream: str
    url: str
    path: Path


@asynccontextmanager
async def recording(path: Path, *redact: str, script: Any = None) -> AsyncGenerator[Recording]:
    agent = ScriptedAgent(script or SCRIPT)
    async with serving(agent) as upstream, Egress(policy=Anywhere()) as egress:
        fetched = await Cards().fetch(egress, parse(upstream))
        recorder = Recorder(
            fetched.card, fetched.raw, egress, CassetteRedaction(redact, fetched.raw), upstream
        )
        writer = recorder.sink = CassetteWriter(path, recorder.head)
        try:
            async with serving(recorder) as url:
                yield Recording(agent, upstream, url, path)
        finally:
            writer.close()


async def converse(url: str, key: str = SECRET, **options: Any) -> list[Any]:
    """Have the conversation of these tests; return what came of it."""
    async with Client(url, api_key=key, **options) as agent:
        asked = await within(agent.send("ask"))
        answer = await within(agent.send("Rome", task_id=asked.task_id))
        events = [event async for event in agent.stream("hello")]
        task = await within(agent.get(answer.task_id))
        return [asked.state, answer.text, len(events), task.status.state]


WANTED = [TaskState.INPUT_REQUIRED, "Rome", 4, TaskState.COMPLETED]


@pytest.mark.parametrize(
    "options",
    [
        {"bindings": ["JSONRPC"]},
        {"bindings": ["HTTP+JSON"]},
        {"version": "0.3"},
        {"version": "0.3", "bindings": ["HTTP+JSON"]},
        {"bindings": ["GRPC"]},
        {"version": "0.3", "bindings": ["GRPC"]},
    ],
)
async def test_a_conversation_is_recorded_and_plays_again_without_the_agent(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded:
        assert await converse(recorded.url, **options) == WANTED
        spoken = {one.binding for one in recorded.agent.requests if one.operation is not None}
        assert len(recorded.agent.requests) > 4
        assert spoken == {*options.get("bindings", spoken)}
    assert path.stat().st_mode & 0o777 == 0o600
    async with serving(replayed(path)) as url:
        # Twice: the last recording of each stays.
        assert await converse(url, key="another", **options) == WANTED
        assert await converse(url, key="another", **options) == WANTED


async def test_no_credential_is_ever_written(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    secrets = [SECRET, "push-token-77", "push-cred-88", "cookie-99", "bearer-55", "mine-66"]
    async with recording(path, "x-mine") as recorded:
        headers = {
            "cookie": "sid=cookie-99",
            "authorization": "Bearer bearer-55",
            "x-mine": "mine-66",
            # Nobody can tell what this is, so it is not written either.
            "x-session": "session-11",
        }
        async with Client(recorded.url, api_key=SECRET, headers=headers) as agent:
            auth = PushAuthentication("Bearer", "push-cred-88")
            push = PushConfig(url="https://u:pw-44@example.com/", token="push-token-77")
            push = PushConfig(url=push.url, token=push.token, authentication=auth)
            asked = await within(agent.send("ask", metadata={"x-mine": {"deep": "mine-66"}}))
            await within(agent.create_push(asked.task_id, push))
            assert [event async for event in agent.stream("leak")]
            assert (await within(agent.send("bearer-55 and mine-66"))).text
        async with client(recorded.url) as http:
            form = "grant_type=client_credentials&client_secret=form-33"
            kind = {"content-type": "application/x-www-form-urlencoded"}
            await http.post("/up/0?api_key=query-22&x=1", content=form, headers=kind)
        # They did go where they should.
        assert recorded.agent.calls("SendMessage")[0].headers["x-weird"] == SECRET
        assert b"push-cred-88" in b"".join(seen.body for seen in recorded.agent.requests)
    text = path.read_text()
    others = ["form-33", "query-22", "pw-44", "session-11"]
    assert not [secret for secret in [*secrets, *others] if secret in text]
    assert text.count(HIDDEN) >= 8
    assert "Which?" in text


async def test_a_secret_in_pieces_of_a_stream_is_hidden_too() -> None:
    redaction = CassetteRedaction(["mine"])
    blocks = Blocks(redaction)
    for piece in (b'data: {"token":"ab', b'cdef","x":"y"}\n', b'\ndata: {"mine":"zz', b"yy"):
        blocks.feed(piece, 0.1)
    text = "".join(block.text for block in blocks.finish(0.2))
    assert "abcdef" not in text
    assert "zzyy" not in text
    assert '"x":"y"' in text


@pytest.mark.parametrize(
    "name",
    [
        "auth_token",
        "authToken",
        "private_key",
        "session-token",
        "aws_secret_access_key",
        "x509.key",
        "dbPassword",
        "SERVICE_CREDENTIALS",
        "webhookSecret",
        "oauth2_token",
    ],
)
def test_a_secret_is_known_by_how_its_name_ends(name: str) -> None:
    redaction = CassetteRedaction()
    body = json.dumps({"data": {name: "open-sesame", "said": "it is open-sesame"}})
    assert "sesame" not in str(content(body.encode(), "application/json", redaction))
    # Known once, it is hidden where no name gives it away.
    assert redaction.text("so: open-sesame!") == f"so: {HIDDEN}!"
    assert "sesame" not in str(content(body[:-1].encode(), "text/plain", CassetteRedaction()))
    assert "sesame" not in CassetteRedaction().query(f"{name}=open-sesame")


def test_what_is_named_to_be_hidden_is_hidden_whatever_it_holds() -> None:
    value = {"profile": {"name": "Ada", "is_known": True}, "deep": [{"Profile": 7, "name": "b"}]}
    hidden = {"profile": HIDDEN, "deep": [{"Profile": HIDDEN, "name": "b"}]}
    assert CassetteRedaction(["profile"]).value(value) == hidden


def test_a_short_value_of_such_a_name_is_hidden_there_alone() -> None:
    redaction = CassetteRedaction()
    value = redaction.value({"doorKey": "blue", "said": "blue"})
    assert value == {"doorKey": HIDDEN, "said": "blue"}


def test_secrets_are_hidden_in_bytes_that_are_no_text() -> None:
    redaction = CassetteRedaction()
    redaction.see({"authorization": "Bearer bearer-55", "x-api-key": "g\u00e4heim-66"})
    body = (
        b"\xff\x00bearer-55\xfe"
        + "g\u00e4heim-66".encode()
        + b'{"authToken": "named-77", "a": "\xe9"}'
    )
    written = content(body, "application/octet-stream", redaction).raw
    hidden = HIDDEN.encode()
    assert written == (
        b"\xff\x00" + hidden + b"\xfe" + hidden + b'{"authToken": "' + hidden + b'", "a": "\xe9"}'
    )
    blocks = Blocks(redaction)
    blocks.feed(b'data: {"password":"named-88","a":"\xff bearer-55"}\n\n', 0.0)
    [block] = blocks.finish(0)
    assert block.raw == (b'data: {"password":"' + hidden + b'","a":"\xff ' + hidden + b'"}\n\n')


def test_what_is_no_secret_stays_as_it_is() -> None:
    redaction = CassetteRedaction()
    body = b'{"error":{"code":-32001,"message":"x"},"nextPageToken":"40","signature":"s"}'
    assert content(body, "application/json", redaction).json == json.loads(body)
    assert redaction.query("pageToken=40&publicKey=abc") == "pageToken=40&publicKey=abc"
    assert content(b"\xff\x00\n", "", redaction).raw == b"\xff\x00\n"
    blocks = Blocks(redaction)
    blocks.feed(b': keep-alive\n\nid: 3\ndata: {"a" :  1}\n\n', 0.0)
    assert "".join(block.text for block in blocks.finish(0)) == (
        ': keep-alive\n\nid: 3\ndata: {"a" :  1}\n\n'
    )


async def test_the_recorded_card_leads_to_the_proxy_and_has_no_signature(tmp_path: Path) -> None:
    script = SCRIPT | {"card": {"extra": {"signatures": [{"protected": "x", "signature": "y"}]}}}
    async with recording(tmp_path / "c", script=script) as recorded, client(recorded.url) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        urls = [entry["url"] for entry in card["supportedInterfaces"]]
        assert all(url.startswith(recorded.url + "/up/") for url in urls)
        assert "signatures" not in card
        assert recorded.upstream not in json.dumps(card)
        assert (await http.post("/up/99", json={})).status_code == 404
    assert recorded.upstream not in (tmp_path / "c").read_text()


async def test_an_agent_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    async with serving(ScriptedAgent()) as upstream, Egress(policy=Anywhere()) as egress:
        fetched = await Cards().fetch(egress, parse(upstream))
    async with Egress(policy=Anywhere()) as egress:
        recorder = Recorder(fetched.card, fetched.raw, egress, CassetteRedaction())
        async with serving(recorder) as url, client(url) as http:
            assert (await http.post("/up/0", json={})).status_code == 502
        assert recorder.count == 0


async def test_a_broken_stream_breaks_again_at_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded, client(recorded.url) as http:
        assert await broken(http, SECRET) == 2
    (exchange,) = read(path).exchanges
    assert exchange.response.cut
    async with serving(replayed(path)) as url, client(url) as http:
        assert await broken(http, "other") == 2


async def broken(http: Any, key: str) -> int:
    """Stream until it breaks; return how many events came."""
    import httpx

    body = {"message": message("cut", messageId="m")}
    headers = {"A2A-Version": "1.0", "X-Weird": key}
    got = b""
    with pytest.raises(httpx.RemoteProtocolError):
        async with http.stream("POST", "/up/1/message:stream", json=body, headers=headers) as reply:
            async for chunk in reply.aiter_raw():
                got += chunk
    return got.count(b"data:")


async def test_streams_play_at_the_speed_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded, Client(recorded.url, api_key=SECRET) as agent:
        assert [event async for event in agent.stream("slow")]
    # As if the agent had taken a hundred times as long: 20 s at its own speed.
    path.write_text(
        re.sub(r'(?<="at":)[0-9.e-]+', lambda at: f"{100 * float(at[0])}", path.read_text())
    )
    took: list[float] = []
    for speed in (100.0, 0.0):
        player = Replayer(read(path), speed=speed)
        async with serving(player) as url, Client(url, api_key="x") as agent:
            began = time.monotonic()
            assert len([event async for event in agent.stream("slow")]) == 4
            took.append(time.monotonic() - began)
    assert took[0] >= 0.2 and took[1] < 20


async def test_strictly_ids_count_and_each_recording_plays_once(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded, Client(recorded.url, api_key=SECRET) as agent:
        await within(agent.send("hello", message_id="m-1"))
    player = replayed(path, strict=True)
    async with serving(player) as url, Client(url, api_key="x") as agent:
        assert player.unused == 1
        with pytest.raises(A2AError, match="No recording fits"):
            await within(agent.send("hello", message_id="m-2"))
        assert (await within(agent.send("hello", message_id="m-1"))).text == "hello"
        with pytest.raises(A2AError, match="No recording fits"):
            await within(agent.send("hello", message_id="m-1"))
    assert (player.unused, len(player.missed)) == (0, 2)
    async with serving(replayed(path)) as url, Client(url, api_key="x") as agent:
        assert (await within(agent.send("hello", message_id="m-2"))).text == "hello"
        with pytest.raises(A2AError, match="No recording fits"):
            await within(agent.send("goodbye"))


async def differences(cassette: Cassette, script: Any) -> list[tuple[int, str, Any, Any]]:
    async with serving(ScriptedAgent(script)) as url, Egress(policy=Anywhere()) as egress:
        fetched = await Cards().fetch(egress, parse(url))
        comparison = Comparison(cassette, fetched.card, egress, [ApiKey(SECRET)], Origins([url]))
        found = [(d.number, d.at, d.recorded, d.live) async for d in comparison.run()]
        assert comparison.count == len(cassette.exchanges)
        return found


async def test_a_live_agent_is_held_to_rpcs_as_to_other_requests(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded:
        await converse(recorded.url, bindings=["GRPC"])
        with pytest.raises(TaskNotFound):
            async with Client(recorded.url, api_key=SECRET, bindings=["GRPC"]) as agent:
                await agent.get("none")
    assert SECRET not in path.read_text()
    assert await differences(read(path), SCRIPT) == []
    other = SCRIPT | {"rules": [{"steps": [{"ask": "Where to?"}, {"artifact": "a", "text": "no"}]}]}
    found = await differences(read(path), other)
    changed = [(old, new) for _, _, old, new in found]
    assert ("Which?", "Where to?") in changed and ("Rome", "no") in changed
    async with serving(replayed(path)) as url:
        with pytest.raises(TaskNotFound):
            async with Client(url, api_key=SECRET, bindings=["GRPC"]) as agent:
                await agent.get("none")


async def test_a_live_agent_is_asked_the_same_and_told_apart_by_what_it_says(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.jsonl"
    async with recording(path) as recorded:
        assert await converse(recorded.url) == WANTED
    cassette = read(path)
    assert await differences(cassette, SCRIPT) == []
    other = SCRIPT | {"rules": [{"steps": [{"ask": "Where to?"}, {"artifact": "a", "text": "no"}]}]}
    found = await differences(cassette, other)
    assert (1, "result.task.status.message.parts[0].text", "Which?", "Where to?") in found
    assert (2, "result.task.artifacts[0].parts[0].text", "Rome", "no") in found
    gone = await differences(
        cassette, {"rules": [{"steps": [{"drop": True}]}]} | {"access": SCRIPT["access"]}
    )
    assert gone[0][3].startswith("no answer")


def test_what_is_no_cassette_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    for text, said in (
        ("", "line 1"),
        ("nonsense\n", "line 1"),
        ('{"cassette":9,"recordedAt":"","card":{},"interfaces":[]}\n', "format 9"),
        ('{"cassette":1,"recordedAt":"","card":{},"interfaces":[]}\n{}\n', "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(path)
    with pytest.raises(ConfigError, match="exists"):
        CassetteWriter(path, None)  # type: ignore[arg-type]
