"""Cards by reference: where they are looked for, what they say, what goes to whom."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import app_of
from harness.stub_servers import listening

from dragoman import Agent, Client
from dragoman.client.cards.cards import Cards, read
from dragoman.client.cards.references import Reference, parse
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.egress.targets import Anywhere
from dragoman.errors import (
    A2AError,
    CardInvalid,
    CardNotFound,
    TimedOut,
    Unauthenticated,
    Unreachable,
)
from dragoman.model.card import AgentInterface
from dragoman.security.card_keys import KeySet
from tests.client.cards.web import CARD, HOME, KNOWN, OLDER, Asked, Page, Web, fetch, moved, page

# Where it is looked for


async def test_a_host_leads_to_the_well_known_path_and_says_which_version_it_speaks() -> None:
    web = Web({KNOWN: page()})
    fetched = await fetch(web)
    assert (fetched.url, fetched.origin, fetched.raw) == (KNOWN, HOME, CARD)
    assert fetched.card.name == "Weather"
    assert web.asked == [Asked(KNOWN, {"accept": "application/json", "a2a-version": "1.0"})]
    await fetch(web, version="0.3")
    await fetch(web, version="")
    assert [asked.headers["a2a-version"] for asked in web.asked] == ["1.0", "0.3", "1.0"]


@pytest.mark.parametrize("status", [404, 405, 410])
async def test_the_older_path_is_tried_where_there_is_no_newer_one(status: int) -> None:
    web = Web({KNOWN: Page(status), OLDER: page()})
    assert (await fetch(web)).url == OLDER
    assert web.urls == [KNOWN, OLDER]


@pytest.mark.parametrize("status", [400, 401, 403, 418, 429, 500, 502, 503, 504])
async def test_no_other_refusal_leads_to_the_older_path(status: int) -> None:
    web = Web({KNOWN: Page(status), OLDER: page()})
    with pytest.raises(A2AError):
        await fetch(web)
    assert web.urls == [KNOWN]


async def test_an_explicit_url_is_never_guessed_around() -> None:
    web = Web({OLDER: page()})
    for ref in (KNOWN, f"{HOME}/agents/7", f"{HOME}/?agent=7"):
        with pytest.raises(CardNotFound):
            await fetch(web, ref)
    assert web.urls == [KNOWN, f"{HOME}/agents/7", f"{HOME}/?agent=7"]


@pytest.mark.requirement("4.5-client")
async def test_two_missing_paths_are_one_missing_card() -> None:
    web = Web()
    with pytest.raises(CardNotFound) as caught:
        await fetch(web)
    assert (caught.value.code, caught.value.facts["url"]) == (404, KNOWN)
    assert web.urls == [KNOWN, OLDER]


async def test_a_card_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(CARD))
    web = Web()
    for ref in (str(file), file.as_uri()):
        fetched = await fetch(web, ref)
        assert (fetched.raw, fetched.url, fetched.origin) == (CARD, "", "")
    assert web.asked == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe{}", b"[]", b'{"name":1}', b" " * 300_000]
)
async def test_a_file_that_is_no_card_is_invalid(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(content)
    with pytest.raises(CardInvalid):
        await fetch(Web(), str(file))


async def test_a_file_that_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(CardNotFound):
            await Cards().fetch(Web(), Reference("file", path=path))
    with pytest.raises(CardNotFound):
        await Cards().fetch(Web(), Reference("file"))


# Catalogs

DOCUMENT = "https://c.example/all.json"


async def test_a_catalog_leads_to_the_card_it_has_or_names() -> None:
    entries = [
        {"name": "inline", "card": CARD},
        {"name": "linked", "url": f"{HOME}/cards/7"},
        {"name": "relative", "url": "cards/8"},
        {"name": "host", "url": HOME},
    ]
    web = Web(
        {
            DOCUMENT: page({"entries": entries}),
            f"{HOME}/cards/7": page(),
            "https://c.example/cards/8": page(),
            OLDER: page(),
        }
    )
    cards = Cards(catalog=DOCUMENT)
    found = {name: await fetch(web, f"@{name}", cards) for name in ("inline", "linked", "relative")}
    assert [fetched.url for fetched in found.values()] == [
        DOCUMENT,
        f"{HOME}/cards/7",
        "https://c.example/cards/8",
    ]
    assert {fetched.origin for fetched in found.values()} == {"https://c.example"}
    assert (await fetch(web, f"catalog+{DOCUMENT}#host")).url == OLDER
    assert web.urls.count(DOCUMENT) == 2


async def test_a_card_by_way_of_a_kept_catalog_is_a_kept_one() -> None:
    entries = [{"name": "inline", "card": CARD}, {"name": "linked", "url": f"{HOME}/7"}]
    web = Web({DOCUMENT: page({"entries": entries}), f"{HOME}/7": page()})
    cards = Cards(catalog=DOCUMENT)
    assert not (await fetch(web, "@inline", cards)).is_kept
    assert (await fetch(web, "@inline", cards)).is_kept
    assert (await fetch(web, "@linked", cards)).is_kept, "it may lead elsewhere by now"
    assert not (await fetch(web, "@linked", cards, fresh=True)).is_kept


async def test_neither_a_catalog_nor_what_it_names_elsewhere_gets_the_callers_headers() -> None:
    web = Web({DOCUMENT: page([{"name": "w", "url": f"{HOME}/7"}]), f"{HOME}/7": page()})
    secret = {"Authorization": "Bearer s"}
    await fetch(web, f"catalog+{DOCUMENT}#w", headers=secret, identity="me")
    assert not any("authorization" in asked.headers for asked in web.asked)
    web.pages[DOCUMENT] = page([{"name": "w", "url": "/7"}])
    web.pages["https://c.example/7"] = page()
    await fetch(web, f"catalog+{DOCUMENT}#w", headers=secret, identity="me")
    assert web.asked[-1].headers["authorization"] == "Bearer s"
    assert "authorization" not in web.asked[-2].headers


async def test_an_entry_that_was_added_since_is_found() -> None:
    web = Web({DOCUMENT: page([{"name": "a", "card": CARD}])})
    cards = Cards(catalog=DOCUMENT)
    await fetch(web, "@a", cards)
    web.pages[DOCUMENT] = page([{"name": "b", "card": CARD}])
    await fetch(web, "@b", cards)
    with pytest.raises(CardNotFound):
        await fetch(web, "@c", cards)


async def test_a_name_without_a_catalog_is_not_found_and_hints_at_one() -> None:
    with pytest.raises(CardNotFound) as caught:
        await fetch(Web(), "@weather")
    assert "catalog" in caught.value.facts["hint"]


@pytest.mark.parametrize(
    "entry", [{"name": "w"}, {"name": "w", "url": "ftp://x"}, {"name": "w", "url": "a b"}]
)
async def test_an_entry_of_no_use_is_invalid(entry: Any) -> None:
    with pytest.raises(CardInvalid):
        await fetch(Web({DOCUMENT: page([entry])}), f"catalog+{DOCUMENT}#w")


# Redirects


async def test_redirects_are_followed_three_times_and_no_more() -> None:
    chain = {f"{HOME}/{n}": moved(f"/{n + 1}") for n in range(5)}
    web = Web({**chain, f"{HOME}/3": page()})
    assert (await fetch(web, f"{HOME}/0")).url == f"{HOME}/3"
    web = Web({**chain, f"{HOME}/4": page()})
    with pytest.raises(Unreachable) as caught:
        await fetch(web, f"{HOME}/0")
    assert "redirects" in caught.value.facts["reason"]
    assert len(web.asked) == 4


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_takes_nothing_of_the_callers_along(status: int) -> None:
    other = "https://b.example/card"
    web = Web({KNOWN: moved(other, status), other: moved(f"{HOME}/back"), f"{HOME}/back": page()})
    fetched = await fetch(web, headers={"Authorization": "s", "X-Key": "s"}, identity="me")
    assert [sorted(asked.headers) for asked in web.asked] == [
        ["a2a-version", "accept", "authorization", "x-key"],
        ["a2a-version", "accept"],
        # The way back was another's choice.
        ["a2a-version", "accept"],
    ]
    assert (fetched.url, fetched.origin) == (f"{HOME}/back", HOME)


@pytest.mark.parametrize(
    "location",
    [
        "http://a.example/card",
        "//user@b.example/",
        "https://b.example\\@a.example/",
        "file:///etc/passwd",
        "ftp://a.example/",
        "https://[::1",
        "https://a.example/\tb",
        "https://0x7f.1/",
        "javascript:alert(1)",
        "https://a.example:0/",
    ],
)
async def test_a_redirect_that_leads_astray_is_not_followed(location: str) -> None:
    web = Web({KNOWN: moved(location)})
    with pytest.raises(Unreachable):
        await fetch(web)
    assert web.urls == [KNOWN]


async def test_a_redirect_from_http_to_https_is_followed() -> None:
    web = Web({"http://a.example/c": moved(f"{HOME}/c"), f"{HOME}/c": page()})
    assert (await fetch(web, "http://a.example/c")).url == f"{HOME}/c"


async def test_a_redirect_to_nowhere_is_no_card() -> None:
    with pytest.raises(Unreachable):
        await fetch(Web({KNOWN: Page(302)}))


# Failures


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Page(400), CardNotFound),
        (Page(401), Unauthenticated),
        (Page(403), Unauthenticated),
        (Page(429), Unreachable),
        (Page(500), Unreachable),
        (Page(502), Unreachable),
        (Page(599), Unreachable),
        (Page(304), CardInvalid),
        (Page(204), CardInvalid),
        (Page(200, {}, b"<html>"), CardInvalid),
        (Page(failure=EgressFailed("dns")), Unreachable),
        (Page(failure=EgressRefused("private")), Unreachable),
    ],
)
async def test_every_failure_is_of_our_own_kind(answer: Page, error: type[A2AError]) -> None:
    with pytest.raises(error) as caught:
        await fetch(Web({KNOWN: answer}))
    assert type(caught.value) is error


async def test_a_refusal_carries_the_challenge_and_the_failure_its_reason() -> None:
    challenge = 'Bearer realm="a"'
    with pytest.raises(Unauthenticated) as refused:
        await fetch(Web({KNOWN: Page(401, {"www-authenticate": challenge})}))
    assert refused.value.facts["wwwAuthenticate"] == challenge
    assert refused.value.code == 401
    with pytest.raises(Unreachable) as busy:
        await fetch(Web({KNOWN: Page(429, {"retry-after": "60"})}))
    assert busy.value.facts["retryAfter"] == "60"
    with pytest.raises(Unreachable) as failed:
        await fetch(Web({KNOWN: Page(failure=EgressFailed("ConnectionRefused"))}))
    assert failed.value.facts["reason"] == "ConnectionRefused"


@pytest.mark.parametrize(
    "url", [f"{HOME}/s3cret?key=s3cret", "https://u:s3cret@[::1/", "https://u:s3cret@h.example/"]
)
async def test_who_could_not_be_reached_is_said_without_what_may_be_secret(url: str) -> None:
    web = Web({url: Page(failure=EgressFailed("OSError: Connection refused"))})
    with pytest.raises(Unreachable) as failed:
        await Cards().fetch(web, Reference("url", url=url))
    assert str(failed.value).startswith("The agent card could not be fetched from ")
    assert "s3cret" not in str(failed.value)


async def test_a_peer_that_does_not_answer_in_time_is_given_up() -> None:
    class Silent(Web):
        @asynccontextmanager
        async def open(self, *_: Any, **__: Any) -> AsyncIterator[Page]:
            await asyncio.Event().wait()
            yield Page()

    async with asyncio.timeout(60):
        with pytest.raises(TimedOut):
            await fetch(Silent(), cards=Cards(timeout=0.05))


async def test_a_card_larger_than_any_is_refused_before_it_is_read() -> None:
    class Endless(Page):
        read = 0

        async def chunks(self) -> AsyncIterator[bytes]:
            while True:
                self.read += 1
                yield b" " * 65536

    endless = Endless()
    with pytest.raises(CardInvalid):
        await fetch(Web({KNOWN: endless}))
    assert endless.read <= 6
    whole = {**CARD, "description": "x" * 255_000}
    assert (await fetch(Web({KNOWN: page(whole)}))).raw == whole


# What it says


def interfaces(raw: dict[str, Any], url: str = KNOWN) -> list[str]:
    return [item.url for item in read(raw, url=url).card.supported_interfaces]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://b.example/rpc", "https://b.example/rpc"),
        ("https://B.example", "https://B.example"),
        ("/rpc", f"{HOME}/rpc"),
        ("rpc", f"{HOME}/.well-known/rpc"),
        ("../rpc", f"{HOME}/rpc"),
        ("//b.example/rpc", "https://b.example/rpc"),
        ("?x=1", f"{KNOWN}?x=1"),
        (" https://b.example/rpc ", "https://b.example/rpc"),
        ("https://b.example/rpc#x", "https://b.example/rpc"),
        ("", f"{HOME}/a2a"),
        ("  ", f"{HOME}/a2a"),
    ],
)
def test_an_address_is_made_absolute_and_the_card_stays_as_it_is(url: str, expected: str) -> None:
    raw = {"name": "x", "url": url}
    assert interfaces(raw) == [expected]
    assert raw == {"name": "x", "url": url}
    if url.strip():
        newer = {**CARD, "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC"}]}
        assert interfaces(newer) == [expected]


@pytest.mark.parametrize(
    "url",
    ["", "/rpc", "rpc", "ftp://x", "https://u@b.example", "https://[", "https://[x#y"],
)
def test_a_card_without_an_address_of_its_own_has_to_name_its_agents(url: str) -> None:
    with pytest.raises(CardInvalid) as caught:
        read({"name": "x", "url": url})
    assert caught.value.facts["field"] == "url"
    with pytest.raises(CardInvalid):
        read({**CARD, "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC"}]})


def test_interfaces_of_no_use_are_left_out_while_one_remains() -> None:
    entries = [
        {"url": "https://[", "protocolBinding": "JSONRPC"},
        {"url": "grpc.example:443", "protocolBinding": "GRPC"},
        {"url": "mailto:x", "protocolBinding": "urn:example:mail"},
        {"url": "/rest", "protocolBinding": "HTTP+JSON"},
        {"url": "javascript:x", "protocolBinding": "HTTP+JSON"},
    ]
    expected = ["grpc.example:443", "mailto:x", f"{HOME}/rest"]
    assert interfaces({**CARD, "supportedInterfaces": entries}) == expected
    older = {"name": "x", "url": "/rpc", "additionalInterfaces": [{"transport": "HTTP+JSON"}]}
    assert interfaces(older) == [f"{HOME}/rpc"]


def test_cards_of_houses_are_read_as_far_as_they_tell() -> None:
    nexus = {
        "name": "N",
        "description": "d",
        "url": "https://n.example/rpc",
        "authentication": {"schemes": ["Bearer"]},
    }
    card = read(nexus, url=OLDER).card
    assert card.supported_interfaces == [AgentInterface("https://n.example/rpc", "JSONRPC", "0.2")]
    assert card.security_schemes == {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    rx = {"name": "R", "url": "https://r.example/", "protocolVersion": "0.3.0"}
    assert read(rx).card.supported_interfaces[0].protocol_version == "0.3"
    sel = {"name": "S", "url": "", "protocolVersion": "0.2.6"}
    assert read(sel, url=OLDER).card.supported_interfaces == [
        AgentInterface(f"{HOME}/a2a", "JSONRPC", "0.2")
    ]


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "name"),
        ({"name": "x"}, "url"),
        ({"name": "x", "supportedInterfaces": []}, "version"),
        ({**CARD, "supportedInterfaces": []}, "supportedInterfaces"),
        ({**CARD, "name": 5}, "name"),
        ({**CARD, "skills": [{"tags": 5}]}, "skills[0].tags"),
    ],
)
def test_an_unusable_card_says_which_member_is_to_blame(raw: Any, field: str) -> None:
    with pytest.raises(CardInvalid) as caught:
        read(raw, url=KNOWN)
    assert caught.value.facts["field"] == field


def test_a_message_shows_nothing_that_would_not_be_seen() -> None:
    name = "\u202e\x1b[31m" + "x" * 5000
    with pytest.raises(CardInvalid) as caught:
        read({**CARD, "securitySchemes": {name: 5}})
    shown = str(caught.value) + caught.value.facts["field"]
    assert len(shown) < 600
    assert "\\u202e\\x1b" in shown
    assert shown.isprintable()


# Keys


async def test_keys_are_fetched_from_allowed_origins_alone() -> None:
    from joserfc.jwk import ECKey

    from dragoman.security.card_signatures import sign, verify

    key = ECKey.generate_key("P-256", {"kid": "k"})
    jwks = "https://keys.example/jwks.json"
    signed = sign(CARD, key, "k", jku=jwks)
    web = Web({jwks: page({"keys": [key.as_dict(private=False)]})})
    cards = Cards()
    nobody = await cards.keys(web, signed, ["https://a.example"])
    assert (len(nobody), web.asked) == (0, [])
    assert verify(signed, nobody).kind == "unverifiable"
    found = await cards.keys(web, signed, ["https://keys.example"])
    assert verify(signed, found).kind == "verified"
    for answer in (Page(404), Page(500), page([]), page({"keys": 5}), Page(200, {}, b"\xff")):
        web.pages[jwks] = answer
        assert len(await Cards().keys(web, signed, ["https://keys.example"])) == 0
    assert len(await cards.keys(web, signed, ["https://keys.example"])) == 1
    assert isinstance(found, KeySet)


# Whose it is


async def test_a_card_is_kept_for_whoever_http_shows_us_as(tmp_path: Path) -> None:
    cards = Cards(folder=tmp_path)
    anybody, ann, bob = (
        Web({KNOWN: page(CARD | {"name": name})}) for name in ("all", "ann", "bob")
    )
    ann.identity, bob.identity = "ann", "bob"
    for web, name in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
        assert (await fetch(web, cards=cards)).card.name == name
    assert (len(ann.asked), len(bob.asked)) == (1, 1)
    # What only some are shown is no file.
    assert list(tmp_path.iterdir()) == []
    assert (await fetch(anybody, cards=cards)).card.name == "all"
    assert len(list(tmp_path.iterdir())) == 1
    for web in (ann, bob):
        await fetch(web, cards=cards, identity="me", headers={"authorization": "s"})
    assert (len(ann.asked), len(bob.asked)) == (2, 2)


async def test_what_leads_to_a_card_is_kept_for_its_reader_too(tmp_path: Path) -> None:
    cards = Cards(folder=tmp_path)
    webs = [
        Web({DOCUMENT: page({"entries": [{"name": "w", "card": CARD | {"name": name}}]})})
        for name in ("ann", "bob")
    ]
    for web, name in zip(webs, ("ann", "bob"), strict=True):
        web.identity = name
        fetched = await fetch(web, f"catalog+{DOCUMENT}#w", cards=cards)
        assert fetched.card.name == name
    assert list(tmp_path.iterdir()) == []


async def test_two_apps_at_one_address_have_a_card_each() -> None:
    cards = Cards()
    for name in ("first", "second"):
        app = app_of(Agent(name, "It is."))
        async with asyncio.timeout(60), Client(app=app, cards=cards) as agent:
            assert agent.card.name == name


def test_only_a_context_of_its_own_tells_one_way_out_from_another() -> None:
    context = ssl.create_default_context()
    assert Egress().identity == ""
    assert len({Egress(tls=context).identity for _ in range(3)} - {""}) == 3


# Over a socket


async def test_a_card_comes_over_a_real_connection() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        body = json.dumps({"name": "S", "url": "", "protocolVersion": "0.2.6"}).encode()
        if b"agent-card.json" in head:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif b'if-none-match: "1"' in head.lower():
            writer.write(b'HTTP/1.1 304 Not Modified\r\netag: "1"\r\n\r\n')
        else:
            length = str(len(body)).encode()
            head = b'HTTP/1.1 200 OK\r\nETag: "1"\r\ncontent-length: ' + length + b"\r\n\r\n"
            writer.write(head + body)
        await writer.drain()

    cards = Cards()
    async with listening(talk) as port, Egress(policy=Anywhere()) as http:
        async with asyncio.timeout(60):
            first = await cards.fetch(http, parse(f"localhost:{port}"))
            second = await cards.fetch(http, parse(f"localhost:{port}"), fresh=True)
    assert first == second
    assert first.card.supported_interfaces[0].url == f"http://localhost:{port}/a2a"
    assert len(heads) == 4
    assert all(b"a2a-version: 1.0" in head.lower() for head in heads)


async def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with Egress(policy=Anywhere()) as http, asyncio.timeout(60):
        with pytest.raises(Unreachable) as failed:
            await Cards().fetch(http, parse(f"127.0.0.1:{port}"))
    assert str(failed.value) == (
        f"The agent card could not be fetched from 127.0.0.1:{port}: "
        "NotConnected: Connection refused"
    )
    async with Egress() as guarded, asyncio.timeout(60):
        with pytest.raises(Unreachable):
            await Cards().fetch(guarded, parse(f"127.0.0.1:{port}"))
