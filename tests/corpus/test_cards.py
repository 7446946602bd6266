"""Category 12 over real connections: every hostile card is refused with a reason of ours or held
unchanged, in bounded time and memory, and the next good card is read as if nothing had been."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.stub_servers import listening
from joserfc.jwk import ECKey

from dragoman.client.cards.cards import Cards
from dragoman.client.cards.references import parse
from dragoman.dialects.card_check import findings
from dragoman.egress.egress import Egress
from dragoman.egress.targets import Anywhere, read_target
from dragoman.errors import A2AError
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.security.card_keys import KeySet
from dragoman.security.card_signatures import verify
from dragoman.testing.clock import ManualClock
from tests.corpus.cards import NEWER, Hostile, cases, document

GOOD_EVERY = 100
SLOWEST = 30.0
MOST_GROWTH = 50 * 1024 * 1024


class Site:
    """Serves each case at a path of its own, and a good card at every other."""

    def __init__(self, hostile: list[Hostile]) -> None:
        self._hostile = hostile
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].split(b"?")[0].split(b"/")[-1].decode()
        case = self._hostile[int(path)] if path.isdigit() else None
        answer = document(NEWER) if case is None else case.answer
        if case is not None and case.kind in ("loop", "astray"):
            known = {b"{port}": str(self.port).encode(), b"{path}": b"/" + path.encode()}
            for name, value in known.items():
                answer = answer.replace(name, value)
        writer.write(answer)
        await writer.drain()
        while case is not None and case.ending == "endless":
            chunk = b" " * 65536
            framed = b"10000\r\n" + chunk + b"\r\n"
            writer.write(framed if b"chunked" in answer[:100] else chunk)
            await writer.drain()
        if case is not None and case.ending == "silent":
            await reader.read()


@asynccontextmanager
async def serving(hostile: list[Hostile]) -> AsyncIterator[Site]:
    site = Site(hostile)
    async with listening(site.talk) as site.port:
        yield site


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def problem(case: Hostile, url: str, http: Egress, cards: Cards, keys: KeySet) -> str:
    """Return what is wrong with how a case was met; "" if nothing is."""
    try:
        fetched = await cards.fetch(http, parse(url))
    except A2AError as error:
        if type(error) not in case.errors:
            return f"{type(error).__name__}: {error}"
        if not str(error).isprintable() or len(str(error)) > 600:
            return "shows what it was sent"
        return ""
    except Exception as error:
        return f"not ours: {type(error).__name__}: {error}"
    if not case.may_hold:
        return "held"
    for interface in fetched.card.supported_interfaces:
        if interface.protocol_binding in (JSONRPC, HTTP_JSON):
            read_target(interface.url)
    if case.kind in ("wrong type", "text", "signature", "address"):
        sent = json.loads(case.answer.partition(b"\r\n\r\n")[2])
        if fetched.raw != sent:
            return "changed"
    if verify(fetched.raw, keys).kind == "verified":
        return "verified"
    findings(fetched.raw)
    return ""


async def test_hostile_cards_are_refused_with_a_reason_or_held() -> None:
    hostile = cases()
    key = ECKey.generate_key("P-256", {"kid": "k1"})
    keys = KeySet.decode({"keys": [key.as_dict(private=False)]})
    problems: list[str] = []
    slowest = (0.0, "")
    async with serving(hostile) as site, Egress(policy=Anywhere()) as http:
        home = f"http://127.0.0.1:{site.port}"
        # Nothing is kept for longer than it takes, so that each case is met by a cache in use.
        cards = Cards(timeout=20.0, clock=ManualClock())
        impatient = Cards(timeout=0.05)
        await cards.fetch(http, parse(f"{home}/good"))
        before = resident()
        for index, case in enumerate(hostile):
            started = time.perf_counter()
            used = impatient if case.ending == "silent" else cards
            async with asyncio.timeout(SLOWEST):
                found = await problem(case, f"{home}/{index}", http, used, keys)
            slowest = max(slowest, (time.perf_counter() - started, case.name))
            if found:
                problems.append(f"{case.name}: {found}")
            if index % GOOD_EVERY == 0:
                good = await cards.fetch(http, parse(f"{home}/good"), fresh=True)
                assert good.raw == NEWER
        grown = resident() - before
    assert not problems, f"{len(problems)} of {len(hostile)}:\n" + "\n".join(problems[:40])
    assert slowest[0] < SLOWEST, slowest
    assert grown < MOST_GROWTH, f"{grown:,} bytes"


def test_the_cards_are_many_and_different() -> None:
    hostile = cases()
    spread = Counter(case.kind for case in hostile)
    assert len({case.name for case in hostile}) == len(hostile)
    assert len({case.answer for case in hostile}) >= 1_300, spread
    assert len(spread) >= 15, spread
    assert [case.name for case in cases()] == [case.name for case in hostile]
