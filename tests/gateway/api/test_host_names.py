"""Whether a host of our network exists is nothing that callers find out: by no answer, and by no
number of attempts."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.app import gateway_of
from tests.gateway.api.api_site import GatewaySite, owners

HOSTS = {"vault.corp.example": ["10.1.2.3"], "mail.corp.example": ["127.0.0.1", "203.0.113.9"]}
MISSING = "absent.corp.example"


class Resolver:
    """Knows the names of a private network, and counts who is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host not in HOSTS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return HOSTS[host]


async def tried(site: GatewaySite, headers: dict[str, str], host: str) -> tuple[str, str, str]:
    """Return what is said where an agent is at a host: registered by its card, by a name, and
    given a task."""
    endpoint = {"endpoint": f"https://{host}/agent"}
    bare = await site.raw("POST", "/agents", endpoint, headers=headers)
    body = endpoint | {"name": "Probe", "repeatable": True}
    made = await site.ask("POST", "/agents", body, status=201, headers=headers)
    beat = await site.ask("POST", f"/agents/{made['id']}/heartbeat", headers=headers)
    assert beat["status"] == "online"
    sent = {
        "message": {
            "messageId": "m-1",
            "role": "ROLE_USER",
            "parts": [{"text": "hello"}],
            "metadata": {"agentId": made["id"]},
        }
    }
    answer = await site.http.post(
        "/message:send", json=sent, headers=headers | {"A2A-Version": "1.0"}, timeout=60
    )
    task = answer.json()["task"]
    probed = await site.raw("POST", f"/agents/{made['id']}/probe", headers=headers)
    await site.ask("DELETE", f"/agents/{made['id']}", status=204, headers=headers)
    said: dict[str, Any] = {
        "state": task["status"]["state"],
        "text": task["status"]["message"]["parts"],
    }
    return bare.text, str(said).replace(host, "HOST"), probed.json()["data"]["status"]


async def test_a_private_name_and_a_missing_one_are_tried_alike_and_answered_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver()
    settings = {"allow_private": False, "allow": "127.0.0.1", "forward_attempts": 2}
    async with owners(tmp_path, **settings) as (site, seller, _):
        http = gateway_of(site.app)._http  # pyright: ignore[reportPrivateUsage]  # its resolver
        monkeypatch.setattr(http, "_resolve", resolver)
        monkeypatch.setattr(http, "_connect_timeout", 0.05)
        seen: list[tuple[Any, int]] = []
        for host in (MISSING, *HOSTS):
            resolver.asked.clear()
            async with asyncio.timeout(60):
                said = await tried(site, seller, host)
            seen.append((said, resolver.asked.count(host)))
    assert seen[0] == seen[1] == seen[2]
