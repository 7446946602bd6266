"""Agents of a gateway by their names alone."""

import asyncio
from pathlib import Path

from harness.processes import run
from harness.serving import serving

from tests.gateway.gateway_site import gateway, workshop


async def test_an_agent_is_called_by_its_name(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        await site.register(upstream.url)
        await site.register(upstream.url, name="secret", callers=["somebody"])
        catalog = (await site.http.get("/.well-known/ai-catalog.json")).json()
        assert [entry["name"] for entry in catalog["entries"]] == ["workshop"]
        words = ("send", "-a", "@workshop", "hello")
        ended = await asyncio.to_thread(
            run, *words, cwd=tmp_path, env={"DRAGOMAN_CATALOG": site.url}
        )
        assert ended.returncode == 0 and "echo: hello" in ended.stdout, ended.stderr
