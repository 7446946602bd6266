"""Drives the client of PyPI a2a-sdk 1.x: calls every skill it is told to; prints one line each."""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict, ParseDict


async def main(url: str, asked: list[list[object]]) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        print(json.dumps([[skill.id, skill.name, list(skill.tags)] for skill in card.skills]))
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        for skill, arguments in asked:
            part = ParseDict({"data": arguments}, Part())
            message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[part])
            request = SendMessageRequest(message=message)
            request.metadata.update({"skillId": skill})
            last = None
            async for event in client.send_message(request):
                last = event
            print(json.dumps(MessageToDict(last)["task"]))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
