"""Sends a text with the client of PyPI a2a-sdk 1.x, and prints the answer."""

import asyncio
import sys
from uuid import uuid4

import httpx
from a2a.client import ClientConfig, create_client
from a2a.types import Message, Part, Role, SendMessageRequest


async def main(address: str, token: str, text: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        client = await create_client(address, ClientConfig(streaming=False, httpx_client=http))
        said = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])
        async for event in client.send_message(SendMessageRequest(message=said)):
            print("".join(part.text for one in event.task.artifacts for part in one.parts))


asyncio.run(main(*sys.argv[1:4]))
