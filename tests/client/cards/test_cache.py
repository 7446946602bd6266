"""How long cards are kept, in memory and on disk."""

import asyncio
import json
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from dragoman.client.cards import cache
from dragoman.client.cards.cache import Cache, CachedDocument, CacheKey
from dragoman.client.cards.cards import Cards
from dragoman.errors import (
    CardInvalid,
    CardNotFound,
    Unreachable,
)
from dragoman.testing.clock import ManualClock
from tests.client.cards.web import CARD, HOME, KNOWN, Asked, Page, Web, cached, fetch, moved, page


async def again(
    headers: dict[str, str], after: float, *, ttl: float = 300.0, now: int | None = None
) -> int:
    """Return how many requests two fetches make that are so many seconds apart."""
    clock = ManualClock() if now is None else ManualClock(now)
    web = Web({KNOWN: Page(200, headers, json.dumps(CARD).encode())})
    cards = Cards(clock=clock, ttl=ttl)
    await fetch(web, cards=cards)
    clock.move_to(clock.now() + int(after * 1000))
    await fetch(web, cards=cards)
    return len(web.asked)


START = 1_700_000_000


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 300),
        ({"cache-control": "max-age=60"}, 60),
        ({"cache-control": "public, Max-Age=60"}, 60),
        ({"cache-control": 'max-age="60"'}, 60),
        ({"cache-control": "max-age=60, max-age=90"}, 60),
        ({"cache-control": "max-age=90, max-age=60"}, 60),
        ({"cache-control": "private, s-maxage=5"}, 300),
        ({"cache-control": "max-age=60", "age": "20"}, 40),
        ({"cache-control": "max-age=60", "age": "x"}, 60),
        ({"cache-control": "max-age=60", "expires": formatdate(START + 5, usegmt=True)}, 60),
        ({"expires": formatdate(START + 50, usegmt=True)}, 50),
        (
            {
                "expires": formatdate(START + 50, usegmt=True),
                "date": formatdate(START + 20, usegmt=True),
            },
            30,
        ),
        ({"cache-control": "max-age=9999999999999"}, 24 * 3600),
    ],
)
async def test_a_card_is_kept_exactly_as_long_as_its_headers_say(
    headers: dict[str, str], seconds: int
) -> None:
    assert await again(headers, seconds - 0.001, now=START * 1000) == 1
    assert await again(headers, seconds, now=START * 1000) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"cache-control": "no-store"},
        {"cache-control": "no-cache"},
        {"cache-control": "max-age=60, no-cache"},
        {"cache-control": "max-age=0"},
        {"cache-control": "max-age=-5"},
        {"cache-control": "max-age=soon"},
        {"cache-control": "max-age=60", "age": "60"},
        {"expires": "0"},
        {"expires": formatdate(START, usegmt=True)},
        {"vary": "*"},
    ],
)
async def test_a_card_that_may_not_be_used_again_is_asked_for_again(
    headers: dict[str, str],
) -> None:
    assert await again(headers, 0, now=START * 1000) == 2


async def test_the_default_time_is_the_callers() -> None:
    assert await again({}, 9.9, ttl=10) == 1
    assert await again({}, 10, ttl=10) == 2


async def test_a_clock_that_was_set_back_proves_nothing() -> None:
    web, clock = Web({KNOWN: page()}), ManualClock()
    cards = Cards(clock=clock)
    await fetch(web, cards=cards)
    clock._now -= 3_600_000
    await fetch(web, cards=cards)
    assert len(web.asked) == 2


@pytest.mark.requirement("DC-4")
async def test_a_stale_card_is_asked_for_with_its_validators() -> None:
    web, clock = Web({KNOWN: cached(cache_control="max-age=10")}), ManualClock()
    cards = Cards(clock=clock)
    for _ in range(3):
        assert (await fetch(web, cards=cards)).raw == CARD
        clock.move_to(clock.now() + 10_000)
    assert [asked.headers.get("if-none-match") for asked in web.asked] == [None, '"1"', '"1"']
    web.pages[KNOWN] = cached('"2"', {**CARD, "name": "Other"})
    assert (await fetch(web, cards=cards)).card.name == "Other"


async def test_a_304_says_anew_how_long_the_card_is_good() -> None:
    clock = ManualClock()
    web = Web({KNOWN: page(CARD, etag='"1"', cache_control="max-age=10")})
    cards = Cards(clock=clock)
    await fetch(web, cards=cards)
    clock.move_to(clock.now() + 10_000)
    web.pages[KNOWN] = Page(304, {"cache-control": "max-age=100"})
    await fetch(web, cards=cards)
    clock.move_to(clock.now() + 99_000)
    await fetch(web, cards=cards)
    assert len(web.asked) == 2
    # One that says nothing leaves it at that.
    clock.move_to(clock.now() + 1_000)
    web.pages[KNOWN] = Page(304)
    await fetch(web, cards=cards)
    clock.move_to(clock.now() + 99_000)
    await fetch(web, cards=cards)
    assert len(web.asked) == 3
    assert web.asked[-1].headers["if-none-match"] == '"1"'
    web.pages[KNOWN] = Page(304, {"cache-control": "no-store"})
    await fetch(web, cards=cards, fresh=True)
    web.pages[KNOWN] = page()
    await fetch(web, cards=cards)
    assert "if-none-match" not in web.asked[-1].headers


async def test_the_date_of_the_last_change_is_a_validator_too() -> None:
    date = formatdate(START, usegmt=True)
    web = Web({KNOWN: page(CARD, last_modified=date)})
    cards = Cards()
    await fetch(web, cards=cards)
    await fetch(web, cards=cards, fresh=True)
    assert web.asked[-1].headers["if-modified-since"] == date
    assert web.asked[-1].headers["cache-control"] == "no-cache"


async def test_validators_go_to_the_url_that_gave_them_alone() -> None:
    other = "https://b.example/card"
    web = Web({KNOWN: moved(other), other: cached()})
    cards = Cards()
    await fetch(web, cards=cards)
    await fetch(web, cards=cards, fresh=True)
    assert ["if-none-match" in asked.headers for asked in web.asked] == [False, False, False, True]
    web.pages[KNOWN] = page({**CARD, "name": "Here"})
    assert (await fetch(web, cards=cards, fresh=True)).card.name == "Here"


async def test_a_stale_card_is_not_used_because_the_peer_is_away() -> None:
    web, clock = Web({KNOWN: cached()}), ManualClock()
    cards = Cards(clock=clock)
    await fetch(web, cards=cards)
    clock.move_to(clock.now() + 300_000)
    web.pages[KNOWN] = Page(503)
    with pytest.raises(Unreachable):
        await fetch(web, cards=cards)
    # Yet it need not be sent again once the peer is back.
    web.pages[KNOWN] = cached()
    await fetch(web, cards=cards)
    assert web.asked[-1].headers["if-none-match"] == '"1"'
    web.pages[KNOWN] = Page(404)
    with pytest.raises(CardNotFound):
        await fetch(web, cards=cards, fresh=True)
    web.pages[KNOWN] = cached()
    await fetch(web, cards=cards)
    assert "if-none-match" not in web.asked[-1].headers


async def test_versions_and_identities_share_nothing() -> None:
    def shown(asked: Asked) -> Page:
        name = asked.headers.get("authorization", "nobody") + asked.headers["a2a-version"]
        return page({**CARD, "name": name}, etag='"1"')

    web = Web({KNOWN: shown})
    cards = Cards()
    calls = [
        {"identity": "ann", "headers": {"authorization": "ann"}},
        {"identity": "bob", "headers": {"authorization": "bob"}},
        {},
        {"version": "0.3"},
    ]
    for _ in range(2):
        names = [(await fetch(web, cards=cards, **call)).card.name for call in calls]
        assert names == ["ann1.0", "bob1.0", "nobody1.0", "nobody0.3"]
    assert len(web.asked) == 4
    assert not any("if-none-match" in asked.headers for asked in web.asked)


async def test_a_card_that_is_no_good_is_not_kept() -> None:
    web = Web({KNOWN: page({"name": "x"})})
    cards = Cards()
    for bad in (page({"name": "x"}), Page(200, {}, b"{"), page([])):
        web.pages[KNOWN] = bad
        with pytest.raises(CardInvalid):
            await fetch(web, cards=cards)
    web.pages[KNOWN] = page()
    await fetch(web, cards=cards)
    assert len(web.asked) == 4


async def test_what_a_caller_does_to_a_card_is_not_seen_by_the_next() -> None:
    web, cards = Web({KNOWN: page()}), Cards()
    (await fetch(web, cards=cards)).raw["name"] = "changed"
    assert (await fetch(web, cards=cards)).raw == CARD


async def test_only_so_many_are_kept() -> None:
    urls = [f"{HOME}/{n}" for n in range(cache.MOST_KEPT + 1)]
    web = Web({url: page() for url in urls})
    cards = Cards()
    for url in urls:
        await fetch(web, url, cards)
    await fetch(web, urls[1], cards)
    assert len(web.asked) == len(urls)
    await fetch(web, urls[0], cards)
    assert len(web.asked) == len(urls) + 1


# On disk


async def test_a_card_is_kept_from_run_to_run_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "x" / "cards"
    web, clock = Web({KNOWN: cached()}), ManualClock()
    await fetch(web, cards=Cards(folder=folder, clock=clock))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "a.example" not in file.name
    fetched = await fetch(web, cards=Cards(folder=folder, clock=clock))
    assert (fetched.raw, fetched.url, len(web.asked)) == (CARD, KNOWN, 1)
    clock.move_to(clock.now() + 300_000)
    await fetch(web, cards=Cards(folder=folder, clock=clock))
    assert web.asked[-1].headers["if-none-match"] == '"1"'


async def test_nothing_personal_and_nothing_forbidden_comes_to_the_disk(tmp_path: Path) -> None:
    web = Web({KNOWN: page()})
    await fetch(web, cards=Cards(folder=tmp_path), identity="me")
    await fetch(web, cards=Cards(folder=tmp_path), headers={"x-key": "s"})
    web.pages[KNOWN] = page(CARD, cache_control="no-store")
    await fetch(web, cards=Cards(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: b"",
        lambda kept: b"{",
        lambda kept: b"\xff",
        lambda kept: b"[" * 100_000,
        lambda kept: json.dumps({**kept, "asked": "https://b.example/"}).encode(),
        lambda kept: json.dumps({**kept, "url": "nonsense"}).encode(),
        lambda kept: json.dumps({**kept, "etag": "a\r\nX-Evil: 1"}).encode(),
        lambda kept: json.dumps({**kept, "body": 5}).encode(),
        lambda kept: json.dumps({**kept, "body": "A" * 400_000}).encode(),
        lambda kept: json.dumps({**kept, "stored_at": "x"}).encode(),
    ],
)
async def test_a_damaged_file_is_as_good_as_none(
    tmp_path: Path, change: Callable[[Any], bytes]
) -> None:
    web = Web({KNOWN: cached()})
    await fetch(web, cards=Cards(folder=tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_bytes(change(json.loads(file.read_bytes())))
    assert (await fetch(web, cards=Cards(folder=tmp_path))).raw == CARD
    assert "if-none-match" not in web.asked[-1].headers
    # And is a good one again.
    await fetch(web, cards=Cards(folder=tmp_path))
    assert len(web.asked) == 2


async def test_a_folder_that_others_write_to_is_not_trusted(tmp_path: Path) -> None:
    web = Web({KNOWN: page()})
    await fetch(web, cards=Cards(folder=tmp_path))
    tmp_path.chmod(0o777)
    await fetch(web, cards=Cards(folder=tmp_path))
    assert len(web.asked) == 2
    tmp_path.chmod(0o700)
    await fetch(web, cards=Cards(folder=tmp_path))
    assert len(web.asked) == 2
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o770)
    await fetch(web, cards=Cards(folder=open_to_all))
    assert list(open_to_all.iterdir()) == []


async def test_a_disk_that_will_not_have_it_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    web = Web({KNOWN: page()})
    cards = Cards(folder=tmp_path / "file" / "cards")
    assert (await fetch(web, cards=cards)).raw == CARD


async def test_only_so_many_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 3)
    web = Web({f"{HOME}/{n}": page() for n in range(5)})
    cards = Cards(folder=tmp_path)
    for n in range(5):
        await fetch(web, f"{HOME}/{n}", cards)
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (n, n))
    assert len(list(tmp_path.iterdir())) == 3


def test_one_cache_serves_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(OrderedDict[CacheKey, CachedDocument]):
        """Lets another thread in where one could come in between."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            if threading.current_thread() is first and found:
                looked.set()
                # As long as the first has the cache the second cannot; without end it does not.
                changed.wait(0.2)
            return found

    looked, changed = threading.Event(), threading.Event()
    kept = Cache()
    monkeypatch.setattr(kept, "_documents", Interrupted())
    key, document = CacheKey(KNOWN, "1.0"), CachedDocument(KNOWN, "1.0", KNOWN, b"{}", 300.0)
    asyncio.run(kept.save(key, document))
    found: list[CachedDocument | None] = []
    first = threading.Thread(target=lambda: found.append(asyncio.run(kept.load(key, 100))))
    first.start()
    assert looked.wait(60)

    def drop() -> None:
        asyncio.run(kept.drop(key))
        changed.set()

    second = threading.Thread(target=drop)
    second.start()
    for thread in (first, second):
        thread.join(60)
        assert not thread.is_alive()
    assert found == [document]
    assert asyncio.run(kept.load(key, 100)) is None
