"""The door: strangers pay for their own guesses, and everybody is counted as who they are."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from harness.serving import client, hosting

from dragoman import App
from dragoman.config import load_settings
from dragoman.http.admission import Admission
from dragoman.security.audit.log import NoAudit
from dragoman.security.bearer_tokens import BearerTokens
from tests.http.test_access_control import ALICE, TOKENS, bearer, house

CARD = "/.well-known/agent-card.json"
HERE = {"x-forwarded-for": "203.0.113.7"}
THERE = {"x-forwarded-for": "198.51.100.9"}


class Notes(NoAudit):
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def record(self, act: str, **facts: Any) -> None:
        self.lines.append({"act": act, **facts})


@asynccontextmanager
async def site(**settings: Any) -> AsyncGenerator[tuple[httpx.AsyncClient, Notes]]:
    chosen = load_settings({}, store="memory:", proxies="127.0.0.1", **settings)
    app = App(house(), settings=chosen, authenticators=[BearerTokens(tokens=TOKENS)])
    notes = app.site.audit = app.access._audit = Notes()
    async with hosting(app) as url, client(url) as http:
        yield http, notes


async def test_who_guesses_keeps_out_strangers_and_nobody_who_is_known() -> None:
    async with site(rate_limit_failures="3/60s") as (http, _):
        known = bearer(ALICE) | HERE
        assert (await http.get("/tasks", headers=known)).status_code == 200
        wrong = bearer("a-guess-of-someone-else") | HERE
        answers = [(await http.get("/tasks", headers=wrong)).status_code for _ in range(5)]
        assert answers == [401, 401, 401, 429, 429]
        assert (await http.get("/tasks", headers=known)).status_code == 200
        assert (await http.get("/tasks", headers=wrong | THERE)).status_code == 401


async def test_an_address_is_counted_also_where_everybody_may_read() -> None:
    async with site(rate_limit_address="2/60s") as (http, _):
        read = [(await http.get(CARD, headers=HERE)).status_code for _ in range(3)]
        assert read == [200, 200, 429]
        assert (await http.get(CARD, headers=THERE)).status_code == 200
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path, headers=HERE)).status_code == 200


async def test_who_is_turned_away_is_noted_by_where_they_are() -> None:
    async with site(rate_limit="1/60s") as (http, notes):
        await http.get("/tasks", headers=HERE)
        await http.get("/tasks", headers=bearer(ALICE) | THERE)
        await http.get("/tasks", headers=bearer(ALICE) | THERE)
        await http.post("/", json={}, headers=bearer(ALICE) | {"origin": "https://evil.test"})
        noted = [(line["act"], line.get("address")) for line in notes.lines]
        assert ("auth.denied", "203.0.113.7") in noted
        assert ("rate.limited", "198.51.100.9") in noted
        assert "a page of another origin" in [line.get("reason") for line in notes.lines]


async def test_many_connections_of_one_stranger_are_one_sharer() -> None:
    now = 0.0
    admission = Admission(lambda: now, lambda: now)
    admission.is_overloaded = True
    admission._is_watching = True
    admission.most = 16.0
    flood = [("192.0.2.1", port) for port in range(400)]
    let_in = [connection for connection in flood if admission.enter(connection)]
    assert len(let_in) <= 16
    # Someone else is not what makes the load.
    assert admission.enter(("192.0.2.2", 1))
