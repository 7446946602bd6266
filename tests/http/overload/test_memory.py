"""What the requests of one caller hold, large bodies beside small ones, and a process that has no
memory left: whose request it is hears of it, and nobody else."""

import asyncio
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.processes import running

from dragoman import Agent, App, Settings
from dragoman.config import CardSettings, StoreSettings
from tests.http.wire import HOST, Answer, Peer, Place, call, get, guarding, message, post

MEGABYTE = 1024 * 1024
# The shapes of bodies that cost most to read for their length.
SIZE = 9_400_000
_numbers = itertools.count(1)


def _text(size: int) -> bytes:
    return json.dumps(call("SendMessage", message("a" * size))).encode()


def _token(token: str) -> bytes:
    return b"Authorization: Bearer " + token.encode()


async def _begin(peer: Peer, body: bytes, *fields: bytes) -> None:
    """Send a request but for its last byte."""
    await peer.send(post(body, *fields)[:-1])


async def _held(place: Place, size: int) -> None:
    limits = place.app.access._limits
    await place.until(lambda: sum(limits._bytes.values()) >= size)


async def test_a_caller_whose_requests_hold_enough_is_told_to_come_back(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    names = ("ada-ada-ada-ada-ada", "bob-bob-bob-bob-bob")
    file.write_text("".join(f'[{name[:3]}]\ntoken = "{name}"\n' for name in names))
    file.chmod(0o600)
    ada, bob = map(_token, names)
    settings = {"max_body_bytes": MEGABYTE, "max_bytes_per_caller": 2 * MEGABYTE}
    body = _text(700_000)
    async with guarding(auth="bearer", auth_tokens=str(file), **settings) as place:
        async with place.peer() as first:
            await _begin(first, body, ada)
            async with place.peer() as second:
                await _begin(second, body, ada)
                await _held(place, 2 * len(body))
                await _check_refusals(place, ada, bob)
            # The other one has left, and what it held with it.
            await place.until(lambda: sum(place.app.access._limits._bytes.values()) == len(body))
            await first.send(body[-1:])
            assert (await first.answer()).status == 200
        await place.until(lambda: not place.app.access._limits._bytes)
        assert (await place.exchange(post(_text(700_000), ada))).status == 200


async def _check_refusals(place: Place, ada: bytes, bob: bytes) -> None:
    refused = await place.exchange(post(_text(700_000), ada))
    assert refused.status == 429 and refused.headers["retry-after"] == "1"
    assert "bytes" in refused.value["error"]["message"]
    # Neither small requests of the same caller nor large ones of another are refused.
    assert (await place.exchange(post(_text(10), ada))).status == 200
    assert (await place.exchange(post(_text(700_000), bob))).status == 200


async def test_chunks_count_while_they_come(tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % HOST
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    settings = {"max_body_bytes": MEGABYTE, "max_bytes_per_caller": MEGABYTE}
    async with guarding(**settings) as place, place.peer() as first:
        await first.send(head + piece * 9)
        await _held(place, 9 * 65_536)
        async with place.peer() as second:
            await second.send(head + piece * 6)
            assert (await second.answer()).status == 429
    await place.until(lambda: not place.app.access._limits._bytes)


async def test_answers_that_nobody_takes_count_as_well() -> None:
    settings = {"max_body_bytes": MEGABYTE, "max_bytes_per_caller": MEGABYTE}
    async with guarding(buffer=4096, **settings) as place:
        made = await place.exchange(post(_text(900_000)))
        await place.until(lambda: not place.app.access._limits._bytes)
        read = post(call("GetTask", {"id": made.value["result"]["task"]["id"]}))
        async with place.peer(limit=1024) as first:
            await first.send(read)
            await _held(place, 900_000)
            assert (await place.exchange(read)).status == 429
            assert (await first.answer()).status == 200
        await place.until(lambda: not place.app.access._limits._bytes)
        assert (await place.exchange(read)).status == 200


async def test_a_request_there_is_no_memory_for_is_told_so_in_every_binding() -> None:
    hungry = Agent("Hungry", "Has skills that cannot be told.")

    def skills(caller: Any) -> Any:
        raise MemoryError

    hungry.extended_skills = skills
    settings = Settings(
        stores=StoreSettings(location="memory:"), cards=CardSettings(extended_public=True)
    )
    app = App(hungry, settings=settings)
    async with app.running(), guarding(app) as place:
        asked = {
            "rest": get(b"/extendedAgentCard", b"A2A-Version: 1.0"),
            "jsonrpc": post(call("GetExtendedAgentCard", {})),
            "0.2": get(b"/agent/authenticatedExtendedCard"),
        }
        for name, data in asked.items():
            answer = await place.exchange(data)
            assert answer.status == 503, (name, answer)
            assert answer.headers["retry-after"] == "1"
            assert b"memory" in answer.body and b"nternal" not in answer.body


AGENT = """
from dragoman import Agent, Message
agent = Agent("Large", "Takes large messages.")

@agent.skill(tags=["test"], default=True)
async def take(message: Message) -> str:
    return "taken"
"""


def _address(url: str) -> int:
    found = re.search(r":(\d+)", url.removeprefix("http://"))
    assert found is not None
    return int(found[1])


async def _exchange(port: int, data: bytes) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(reader, writer)
    try:
        sending = asyncio.ensure_future(peer.send(data))
        answer = await asyncio.wait_for(peer._answer(), 60)
        await sending
        return answer
    finally:
        writer.transport.abort()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of running processes are Linux's")
async def test_a_process_without_memory_refuses_what_is_too_large_and_serves_the_rest(
    tmp_path: Path,
) -> None:
    import resource

    (tmp_path / "large.py").write_text(AGENT)
    env = {"DRAGOMAN_MAX_BODY_BYTES": str(100 * MEGABYTE)}
    with running("serve", "large.py", "--listen", "127.0.0.1:0", cwd=tmp_path, env=env) as child:
        port = _address(child.ready())
        await _exchange(port, post(_text(MEGABYTE)))
        status = Path(f"/proc/{child.process.pid}/status").read_text()
        size = int(re.findall(r"VmSize:\s+(\d+)", status)[0]) * 1024
        for more in (20, 60, 120, 200):
            most = size + more * MEGABYTE
            resource.prlimit(child.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            answer = await _exchange(port, post(_text(40 * MEGABYTE)))
            assert answer.status == 503 and answer.headers["retry-after"] == "1", answer
            assert b"well-formed" not in answer.body
            small = await _exchange(port, post(_text(10)))
            assert small.value["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert child.process.poll() is None


# Large bodies beside small ones


def _shapes() -> dict[str, bytes]:
    parts = [{"text": "x" * 9_000}] * 1_000
    many = {"message": {"messageId": "M", "role": "ROLE_USER", "parts": parts}}
    return {
        "empty objects": b"[" + b",".join([b"{}"] * (SIZE // 3)) + b"]",
        "deep": b"[" * SIZE,
        "one text": _text(SIZE),
        "parts": json.dumps(call("SendMessage", many)).encode(),
    }


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


async def _probe(pid: int, port: int, stop: asyncio.Event) -> list[float]:
    """Return the seconds that the server worked before it answered each look at its health: they
    are not more on a busy machine."""
    took: list[float] = []
    while not stop.is_set():
        began = processor_seconds(pid)
        assert (await _exchange(port, get(b"/healthz"))).status == 200
        took.append(processor_seconds(pid) - began)
        await asyncio.sleep(0.005)
    return took


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("shape", ["empty objects", "deep", "one text", "parts"])
async def test_health_is_told_at_once_while_many_send_large_bodies(
    shape: str, tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text(AGENT)
    body = _shapes()[shape]
    with running("serve", "large.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        port = _address(child.ready())
        await _exchange(port, post(_text(10)))
        before, stop = _resident(child.process.pid), asyncio.Event()
        probing = asyncio.ensure_future(_probe(child.process.pid, port, stop))
        bodies = [body.replace(b'"M"', b'"m-%d"' % next(_numbers)) for _ in range(8)]
        answers = await asyncio.gather(*(_exchange(port, post(one)) for one in bodies))
        peak = _resident(child.process.pid) - before
        stop.set()
        took = sorted(await probing)
        is_refused = shape in ("empty objects", "deep")
        assert all(("error" in answer.value) is is_refused for answer in answers)
        assert took[len(took) // 2] < 0.25 and took[-1] < 2.0, took[-5:]
        assert peak < (150 if is_refused else 450) * MEGABYTE
