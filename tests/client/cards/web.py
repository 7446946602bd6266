"""A network of pages without sockets, and what tests of cards ask of it."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dragoman.client.cards.cards import Cards, Fetched
from dragoman.client.cards.references import parse

HOME = "https://a.example"
KNOWN = f"{HOME}/.well-known/agent-card.json"
OLDER = f"{HOME}/.well-known/agent.json"
CARD: dict[str, Any] = {
    "name": "Weather",
    "description": "",
    "version": "1",
    "supportedInterfaces": [
        {"url": f"{HOME}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {},
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "skills": [],
}


@dataclass
class Page:
    """What a site says at one URL."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: Exception | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        # In pieces, as a socket would have it.
        for start in range(0, len(self.body), 65536):
            yield self.body[start : start + 65536]


@dataclass
class Asked:
    url: str
    headers: dict[str, str]


class Web:
    """A network of pages without sockets; it keeps what it was asked."""

    identity = ""

    def __init__(self, pages: Mapping[str, Page | Callable[[Asked], Page]] | None = None) -> None:
        self.pages = dict(pages or {})
        self.asked: list[Asked] = []

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AsyncIterator[Page]:
        assert method == "GET"
        asked = Asked(url, dict(headers))
        self.asked.append(asked)
        page = self.pages.get(url, Page(404))
        page = page(asked) if callable(page) else page
        if page.failure is not None:
            raise page.failure
        yield page

    async def close(self) -> None:
        pass

    @property
    def urls(self) -> list[str]:
        return [asked.url for asked in self.asked]


def page(value: Any = CARD, status: int = 200, **headers: str) -> Page:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Page(status, named, json.dumps(value).encode())


def moved(location: str, status: int = 302) -> Page:
    return Page(status, {"location": location})


def cached(etag: str = '"1"', body: Any = CARD, **headers: str) -> Callable[[Asked], Page]:
    """Return a page that answers 304 to whoever has it already."""

    def answer(asked: Asked) -> Page:
        given = {"etag": etag, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if asked.headers.get("if-none-match") == etag:
            return Page(304, given)
        return Page(200, given, json.dumps(body).encode())

    return answer


async def fetch(web: Web, ref: str = HOME, cards: Cards | None = None, **more: Any) -> Fetched:
    return await (cards or Cards()).fetch(web, parse(ref), **more)
