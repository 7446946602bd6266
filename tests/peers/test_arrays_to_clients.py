"""Data that is an array, read by clients of public libraries that know objects alone."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from dragoman.testing.processes import CannotStart
from tests.peers.hosts import hosting
from tests.peers.libraries import python_of

WITHIN = 60.0
V0_3 = """
import asyncio, json, sys
import httpx
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.types import DataPart, Message, MessageSendParams, Part, TaskQueryParams, TextPart

async def main():
    async with httpx.AsyncClient() as http:
        agent = JsonRpcTransport(http, url=sys.argv[1])
        text = Message(message_id="m-0-3", role="user", parts=[Part(TextPart(text="array"))])
        sent = await agent.send_message(MessageSendParams(message=text))
        read = await agent.get_task(TaskQueryParams(id=sent.id))
        text.message_id = "m-0-3-stream"
        async for _ in agent.send_message_streaming(MessageSendParams(message=text)):
            pass
        for task in (sent, read):
            print(json.dumps(task.artifacts[0].parts[0].root.data))

asyncio.run(main())
"""
V1_COMPAT = """
import asyncio, json, sys
import httpx
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.types import GetTaskRequest, Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict

async def main():
    async with httpx.AsyncClient() as http:
        agent = CompatJsonRpcTransport(http, None, sys.argv[1])
        text = Message(message_id="m-1", role=Role.ROLE_USER, parts=[Part(text="array")])
        sent = (await agent.send_message(SendMessageRequest(message=text))).task
        read = await agent.get_task(GetTaskRequest(id=sent.id))
        text.message_id = "m-1-stream"
        async for _ in agent.send_message_streaming(SendMessageRequest(message=text)):
            pass
        for task in (sent, read):
            print(json.dumps(MessageToDict(task.artifacts[0].parts[0].data)))

asyncio.run(main())
"""
ARRAY = ["Graz", {"tags": ["a"]}]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with hosting("dragoman", tmp_path_factory.mktemp("host")) as address:
            yield address
    except CannotStart as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("library", "script", "seen"),
    [
        ("a2a-sdk==0.3.26", V0_3, {"value": ARRAY}),
        ("a2a-sdk==1.3.0", V1_COMPAT, ARRAY),
    ],
    ids=["0.3.26", "1.3.0"],
)
def test_the_official_python_library_reads_it(
    library: str, script: str, seen: object, address: str
) -> None:
    done = subprocess.run(
        [str(python_of(library)), "-c", script, f"{address}/a2a"],
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [seen, seen]
