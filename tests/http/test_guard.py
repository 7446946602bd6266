"""The head of a request: our name, the page it comes from, and what browsers are told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from harness.serving import V1, client, hosting, message

from dragoman import Agent, App
from dragoman.config import HttpSettings, load_settings
from dragoman.errors import ConfigError

SITE = "https://app.example.com"


@asynccontextmanager
async def site(*, is_local: bool = False, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    agent = Agent("Echo", "echoes")

    @agent.skill
    def echo(text: str) -> str:
        """Say it again."""
        return text

    app = App(agent, settings=load_settings({}, store="memory:", **settings), is_local=is_local)
    async with hosting(app) as url, client(url) as http:
        yield http


async def send(http: httpx.AsyncClient, **headers: str) -> httpx.Response:
    body = {"message": message("x")}
    return await http.post("/message:send", json=body, headers={**V1, **headers})


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("agents.example.com", 200),
        ("evil.test", 421),
        ("localhost.evil.test", 421),
        ("127.0.0.1.evil.test", 421),
        ("[evil.test]", 421),
        ("[::1", 421),
        ("0.0.0.0", 421),
        ("localhost@evil.test", 421),
        ("", 421),
    ],
)
async def test_a_server_of_this_machine_goes_by_its_own_names(host: str, status: int) -> None:
    async with site(is_local=True, public_url="https://agents.example.com/a") as http:
        assert (await send(http, host=host)).status_code == status
        card = await http.get("/.well-known/agent-card.json", headers={"host": host})
        assert card.status_code == status


async def test_other_servers_go_by_any_name_unless_names_are_given() -> None:
    async with site() as http:
        assert (await send(http, host="whatever.test")).status_code == 200
    async with site(hosts="agents.test, other.test") as http:
        assert (await send(http, host="agents.test:8000")).status_code == 200
        assert (await send(http, host="localhost")).status_code == 421


async def test_pages_of_other_sites_change_nothing_here() -> None:
    async with site() as http:
        own = str(http.base_url).rstrip("/")
        assert (await send(http, origin=own)).status_code == 200
        for origin in (SITE, "null", "http://127.0.0.1:1", own.replace("http", "https"), ""):
            refused = await send(http, origin=origin)
            assert refused.status_code == 403, origin
            assert refused.headers["content-type"] == "application/problem+json"
            assert "access-control-allow-origin" not in refused.headers
        listed = await http.get("/tasks", headers=V1)
        assert listed.json()["totalSize"] == 1


async def test_two_origins_are_nobodys() -> None:
    async with site() as http:
        own = str(http.base_url).rstrip("/")
        headers = [("a2a-version", "1.0"), ("origin", SITE), ("origin", own)]
        body = {"message": message("x")}
        answer = await http.post("/message:send", json=body, headers=headers)
        assert answer.status_code == 403


async def test_pages_of_our_public_address_are_our_own() -> None:
    async with site(public_url="https://agents.example.com/a") as http:
        assert (await send(http, origin="https://agents.example.com")).status_code == 200
        assert (await send(http, origin="https://agents.example.com.evil.test")).status_code == 403


async def test_browsers_are_told_nothing_about_other_origins_by_default() -> None:
    asking = {"origin": SITE, "access-control-request-method": "POST"}
    async with site() as http:
        answer = await http.options("/message:send", headers=asking)
        assert answer.status_code >= 400
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_pages_of_a_named_origin_may_call() -> None:
    asking = {"origin": SITE, "access-control-request-method": "POST"}
    async with site(cors=f"{SITE}, http://localhost:3000") as http:
        may = await http.options("/message:send", headers=asking)
        assert may.status_code == 204
        assert may.headers["access-control-allow-origin"] == SITE
        assert "authorization" in may.headers["access-control-allow-headers"]
        sent = await send(http, origin=SITE)
        assert sent.status_code == 200
        assert sent.headers["access-control-allow-origin"] == SITE
        assert "Origin" in sent.headers.get_list("vary")
        assert "access-control-allow-credentials" not in sent.headers
        other = await send(http, origin="https://app.example.com.evil.test")
        assert other.status_code == 403


@pytest.mark.parametrize("origin", ["app.example.com", "https://a.test/path", "ftp://a.test", "x"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors"):
        HttpSettings(cors=[origin])


async def test_every_answer_keeps_browsers_from_making_more_of_it() -> None:
    async with site() as http:
        for answer in (
            await send(http),
            await http.get("/.well-known/agent-card.json"),
            await http.get("/nothing"),
            await http.get("/readyz"),
            await http.post("/", content=b"{"),
        ):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "strict-transport-security" not in answer.headers
        body = {"message": message("x")}
        async with http.stream("POST", "/message:stream", json=body, headers=V1) as stream:
            assert stream.headers["x-content-type-options"] == "nosniff"
