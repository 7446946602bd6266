"""The way out of the process, with real servers on loopback and names resolved by the test.

A server here is reached by allowing its host and port; a socket opened at all is counted, so that
"refused" means that nothing was dialled.
"""

import asyncio
import contextlib
import gzip
import socket
import ssl
import time
import traceback
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

import pytest

from dragoman.errors import ConfigError
from dragoman.security import egress as module
from dragoman.security.addresses import Address
from dragoman.security.dialling import Dial
from dragoman.security.egress import (
    AddressInfo,
    Egress,
    EgressClosed,
    EgressError,
    EgressFailed,
    EgressRefused,
    Resolve,
)
from dragoman.security.targets import Anywhere, Policy, read_address, read_target
from tests.security.url_forms import METADATA, READ, RESOLVED

PUBLIC = "93.184.215.14"
SECRETS = {"Authorization": "Bearer s", "Cookie": "a=b", "X-Api-Key": "s", "Accept": "text/x"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Peer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A peer of few words: it keeps the heads and bodies it was sent and says what a test wants."""

    def __init__(self, answer: bytes | Peer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
                await writer.drain()
            else:
                await self.answer(head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def url(self, host: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(answer: bytes | Peer = OK) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def redirect(location: str, status: int = 302) -> bytes:
    head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    return head.encode("latin-1")


def answering(*addresses: str) -> Resolve:
    async def resolve(host: str) -> Sequence[str]:
        return addresses

    return resolve


async def silence(head: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def dials(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """Every address a socket was opened for; a test stays on this machine whatever it finds."""
    seen: list[tuple[object, ...]] = []
    honest = module.open_socket

    def counted(info: AddressInfo) -> socket.socket:
        seen.append(info[4][:2])
        if not str(info[4][0]).startswith("127."):
            raise OSError("a test does not leave the machine")
        return honest(info)

    monkeypatch.setattr(module, "open_socket", counted)
    yield seen


Dials = list[tuple[object, ...]]


async def surfaces(egress: Egress, url: str) -> list[type[EgressError] | None]:
    """Return how each way of dialling out ends."""
    outcomes: list[type[EgressError] | None] = []
    for attempt in (egress.post(url, b"{}", {}), egress.get(url), egress.get(url, redirects=3)):
        try:
            await asyncio.wait_for(attempt, 10)
            outcomes.append(None)
        except EgressError as error:
            outcomes.append(type(error))
    return outcomes


def test_the_corpus_has_the_forms_it_promises() -> None:
    assert len(set(READ)) == len(READ) >= 120
    assert len(RESOLVED) >= 20


@pytest.mark.requirement("T-45")
@pytest.mark.parametrize("url", READ, ids=ascii)
async def test_a_crooked_url_is_refused_everywhere_without_a_dial(url: str, dials: Dials) -> None:
    async with Egress(resolver=answering(PUBLIC)) as egress:
        with pytest.raises(EgressRefused):
            egress.check(url)
        assert await surfaces(egress, url) == [EgressRefused] * 3
    assert dials == []


@pytest.mark.requirement("T-45")
@pytest.mark.parametrize(("url", "addresses"), RESOLVED, ids=[url for url, _ in RESOLVED])
async def test_a_name_with_one_address_that_is_not_public_is_refused_without_a_dial(
    url: str, addresses: list[str], dials: Dials
) -> None:
    async with Egress(resolver=answering(*addresses), connect_timeout=0.02) as egress:
        egress.check(url)
        assert await surfaces(egress, url) == [EgressFailed] * 3
    assert dials == []


@pytest.mark.parametrize("url", METADATA, ids=ascii)
async def test_a_developer_does_not_reach_a_metadata_service(url: str, dials: Dials) -> None:
    async with Egress(allow_private=True, resolver=answering(PUBLIC)) as egress:
        assert await surfaces(egress, url) == [EgressRefused] * 3
    assert dials == []


@pytest.mark.parametrize(
    "url", [form for form in READ if not form.startswith("http://")], ids=ascii
)
async def test_a_redirect_is_no_way_around_the_reading(url: str, dials: Dials) -> None:
    """A form that is relative to the first hop, or harmless without its fragment, stays there."""
    location = url.encode("utf-8", "surrogatepass").replace(b"\r", b"").replace(b"\n", b"")
    answer = b"HTTP/1.1 302 F\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"
    async with serving(answer) as server:
        allow = [f"127.0.0.1:{server.port}"]
        async with Egress(allow=allow, resolver=answering(PUBLIC), connect_timeout=1) as egress:
            try:
                await egress.get(server.url(), redirects=1, timeout=5)
            except EgressError as error:
                assert error.public == EgressError.public
    assert {dial for dial in dials if dial != (PUBLIC, 443)} == {("127.0.0.1", server.port)}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_the_address_is_checked_at_dial_even_if_the_reading_of_the_url_failed(
    host: str, dials: Dials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policy, "refusal", lambda policy, target: "")
    async with serving() as server, Egress() as egress:
        assert await surfaces(egress, server.url(host)) == [EgressRefused] * 3
    assert (dials, server.heads) == ([], [])


async def test_a_socket_is_opened_only_to_an_address_that_was_resolved(
    dials: Dials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dials may be wrong about where to go; then it goes nowhere."""
    honest = Dial.addresses

    async def elsewhere(dial: Dial, resolve: Resolve) -> list[Address]:
        await honest(dial, resolve)
        return [read_address("127.0.0.2")]

    monkeypatch.setattr(Dial, "addresses", elsewhere)
    async with Egress(allow=["127.0.0.0/8"]) as egress:
        with pytest.raises(EgressRefused) as refused:
            await egress.get("https://127.0.0.1:8443/")
    assert "not what was resolved" in refused.value.reason
    assert dials == []


async def test_a_socket_is_opened_only_to_an_address_that_is_allowed(
    dials: Dials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unchecked(dial: Dial, resolve: Resolve) -> list[Address]:
        found = [read_address("127.0.0.1")]
        dial._resolved.update(found)  # type: ignore[reportPrivateUsage]  # as a mistake would
        return found

    monkeypatch.setattr(Dial, "addresses", unchecked)
    async with Egress() as egress:
        assert await surfaces(egress, "https://hooks.example.com/") == [EgressRefused] * 3
    assert dials == []


async def test_a_name_that_changes_its_address_is_dialled_at_the_one_that_was_checked(
    dials: Dials,
) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    async with serving() as server:
        allow = [f"hooks.example.com:{server.port}"]
        async with Egress(allow=allow, resolver=resolve) as egress:
            answer = await egress.post(server.url("hooks.example.com"), b"{}", {})
    assert (answer.status, asked) == (200, ["hooks.example.com"])
    assert dials == [("127.0.0.1", server.port)]
    assert f"Host: hooks.example.com:{server.port}".encode() in server.heads[0]


async def test_each_attempt_is_checked_anew_so_a_name_that_turns_private_is_refused(
    dials: Dials,
) -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    async def resolve(host: str) -> Sequence[str]:
        return next(answers)

    async with Egress(resolver=resolve, connect_timeout=0.2) as egress:
        with pytest.raises(EgressFailed):
            await egress.post("https://rebinding.example.com/", b"{}", {})
        with pytest.raises(EgressFailed, check=lambda error: "not public" in error.reason):
            await egress.post("https://rebinding.example.com/", b"{}", {})
    assert dials == [(PUBLIC, 443)]


async def test_no_connection_is_kept_for_a_later_attempt() -> None:
    async with serving() as server, Egress(allow_private=True) as egress:
        await egress.post(server.url(), b"{}", {})
    assert b"Connection: close" in server.heads[0]


async def test_tls_names_the_host_and_not_its_address(dials: Dials) -> None:
    named: asyncio.Queue[str | None] = asyncio.Queue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda tls, name, context: named.put_nowait(name)
    silent = Server(OK)
    listener = await asyncio.start_server(silent.talk, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    resolver = answering("127.0.0.1")
    async with Egress(allow=[f"hooks.example.com:{port}"], resolver=resolver) as egress:
        # The server has no certificate, so the greeting is all it hears.
        with pytest.raises(EgressFailed):
            await egress.get(f"https://hooks.example.com:{port}/")
    listener.close()
    assert await asyncio.wait_for(named.get(), 5) == "hooks.example.com"
    assert dials == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    "allow",
    [
        "127.0.0.1",
        "127.0.0.1:{port}",
        "127.0.0.0/8",
        "hooks.example.com",
        "HOOKS.example.com.:{port}",
    ],
)
async def test_an_allowed_private_target_is_reached(allow: str) -> None:
    async with serving() as server:
        entry = allow.format(port=server.port)
        host = "127.0.0.1" if allow[0] == "1" else "hooks.example.com"
        async with Egress(allow=[entry], resolver=answering("127.0.0.1")) as egress:
            answer = await egress.get(server.url(host))
    assert (answer.status, answer.body, answer.is_cut) == (200, b"ok", False)


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("127.0.0.1:8001", "https://127.0.0.1:8002/"),
        ("hooks.example.com:8001", "http://hooks.example.com:8002/"),
        ("127.0.0.1:8001", "https://other.example.com:8001/"),
        ("hooks.example.com", "https://sub.hooks.example.com/"),
        ("10.0.0.0/8", "https://127.0.0.1/"),
        ("64:ff9b::/96", "https://[64:ff9b::7f00:1]/"),
        ("2606:4700::/32", "https://[2606:4700::1111%1]/"),
    ],
)
async def test_what_is_allowed_allows_nothing_beside_it(allow: str, url: str, dials: Dials) -> None:
    resolver = answering("127.0.0.1")
    async with Egress(allow=[allow], resolver=resolver, connect_timeout=0.02) as egress:
        assert {*await surfaces(egress, url)} <= {EgressRefused, EgressFailed}
    assert dials == []


async def test_an_allowed_name_does_not_lead_to_a_metadata_service_but_its_address_does(
    dials: Dials,
) -> None:
    resolver = answering("169.254.169.254")
    allow = ["hooks.example.com"]
    async with Egress(allow=allow, resolver=resolver, connect_timeout=0.02) as egress:
        assert await surfaces(egress, "http://hooks.example.com/") == [EgressFailed] * 3
    assert dials == []
    async with Egress(allow=["169.254.169.254"], resolver=resolver) as egress:
        assert await surfaces(egress, "http://169.254.169.254/") == [EgressFailed] * 3
    assert dials == [("169.254.169.254", 80)] * 3


async def test_a_developer_reaches_private_addresses_and_names() -> None:
    async with (
        serving() as server,
        Egress(allow_private=True, resolver=answering("127.0.0.1")) as egress,
    ):
        for host in ("127.0.0.1", "localhost", "box", "agent.local", "hooks.example.com"):
            assert (await egress.get(server.url(host))).status == 200


@pytest.mark.parametrize(
    "entry", ["", "a b", "10.0.0.1/8", "http://a.example", "[::1", "a:b", "1.2"]
)
def test_an_allowed_target_that_makes_no_sense_is_said(entry: str) -> None:
    with pytest.raises(ConfigError):
        Egress(allow=[entry])


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com.:443/a/../b?q=1", "https://example.com/a/../b?q=1"),
        ("https://example.com:8443?q", "https://example.com:8443/?q"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("https://straße.example/%2F", "https://xn--strae-oqa.example/%2F"),
        ("https://[2606:4700:0::1111]:8443/", "https://[2606:4700::1111]:8443/"),
        ("https://a_b.example.com/@:x", "https://a_b.example.com/@:x"),
    ],
)
def test_a_good_url_has_one_form(url: str, canonical: str) -> None:
    Egress().check(url)
    assert read_target(url).url == canonical
    assert read_target(canonical).url == canonical


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://u:p@example.com/", "user information"),
        ("https://[fe80::1%1]/", "zone"),
        ("https://127.1/", "four decimal"),
        ("https://example.com:22/", "port 22"),
        ("https://db.internal/", "not a public name"),
        ("https://10.0.0.1/", "10.0.0.1, which is not public"),
    ],
)
def test_the_operator_learns_why_and_never_the_secret(url: str, reason: str) -> None:
    with pytest.raises(EgressRefused) as refused:
        Egress().check(url)
    assert reason in refused.value.reason
    assert "u:p" not in refused.value.reason


async def test_a_post_follows_no_redirect(dials: Dials) -> None:
    async with (
        serving(redirect("https://example.com/")) as server,
        Egress(allow_private=True) as egress,
    ):
        answer = await egress.post(server.url(), b"{}", {})
    assert (answer.status, answer.headers["location"]) == (302, "https://example.com/")
    assert len(dials) == 1


@pytest.mark.parametrize("redirects", [0, 1, 3])
async def test_redirects_are_followed_up_to_the_number_asked_for(redirects: int) -> None:
    async with serving(redirect("/again#part")) as server, Egress(allow_private=True) as egress:
        answer = await egress.get(server.url(), redirects=redirects)
        with pytest.raises(ValueError, match="redirects"):
            await egress.get(server.url(), redirects=4)
    assert answer.status == 302
    assert [head.split()[1] for head in server.heads] == [b"/", *[b"/again"] * redirects]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2:{port}/",
        "//127.0.0.2:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://169.254.169.254/",
        "https://private.example.com/",
        "unix:/x",
        "http://a\\b/",
        "http://127.0.0.1\t:{port}/",
        "http://u@127.0.0.1:{port}/",
        "http://[x",
        "file:///etc",
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(location: str, dials: Dials) -> None:
    async with serving() as server:
        server.answer = redirect(location.format(port=server.port))
        allow = [f"127.0.0.1:{server.port}"]
        resolver = answering("10.0.0.1")
        async with Egress(allow=allow, resolver=resolver, connect_timeout=0.2) as egress:
            with pytest.raises((EgressRefused, EgressFailed)):
                await egress.get(server.url(), redirects=3)
    assert dials == [("127.0.0.1", server.port)]


async def test_a_redirect_takes_no_credentials_to_another_origin() -> None:
    async with serving() as other, serving() as server:
        server.answer = redirect(other.url("localhost"))
        other.answer = redirect(server.url(path="/back"))
        async with Egress(allow_private=True, resolver=answering("127.0.0.1")) as egress:
            await egress.get(server.url(), headers=SECRETS, redirects=2)
    first, back = (head.lower() for head in server.heads)
    for name in (b"\nauthorization:", b"\ncookie:", b"\nx-api-key:"):
        assert name in first
        assert name not in other.heads[0].lower()
        # Whoever sent us back also chose the path: it is not ours to sign.
        assert name not in back
    assert b"accept: text/x" in other.heads[0].lower()


async def test_a_redirect_within_an_origin_keeps_the_headers() -> None:
    async with serving(redirect("/there", 308)) as server, Egress(allow_private=True) as egress:
        await egress.get(server.url(), headers=SECRETS, redirects=1)
    assert all(b"Bearer s" in head for head in server.heads)
    assert len(server.heads) == 2


def test_no_redirect_leads_from_https_to_http() -> None:
    egress = Egress(allow_private=True)
    target = read_target("https://example.com/")
    with pytest.raises(EgressRefused, match=r"could not be reached"):
        egress._following(target, "http://example.com/")  # type: ignore[reportPrivateUsage]  # else it takes a certificate
    assert egress._following(target, "/b").url == "https://example.com/b"  # type: ignore[reportPrivateUsage]  # as above


async def test_cookies_are_not_kept_and_proxies_not_heeded(
    monkeypatch: pytest.MonkeyPatch, dials: Dials
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.9:9")
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    resolver = answering("127.0.0.1")
    async with (
        serving(answer) as server,
        Egress(allow=["hooks.example.com"], resolver=resolver) as egress,
    ):
        for _ in range(2):
            await egress.get(server.url("hooks.example.com"))
    assert b"cookie" not in server.heads[1].lower()
    assert set(dials) == {("127.0.0.1", server.port)}


async def test_refused_unreachable_and_silent_sound_alike() -> None:
    sentences: set[str] = set()
    reasons: set[str] = set()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        async with (
            serving(silence) as silent,
            serving(b"not HTTP\r\n\r\n") as babbling,
            Egress(allow=["127.0.0.1"], resolver=answering(), connect_timeout=1) as egress,
        ):
            urls = [
                nobody,
                silent.url(),
                babbling.url(),
                "https://10.0.0.1/",
                "https://no.example/",
            ]
            for url in urls:
                with pytest.raises(EgressError) as failed:
                    await egress.get(url, timeout=0.3 if url == silent.url() else 10.0)
                sentences.add(str(failed.value))
                reasons.add(failed.value.reason)
    assert sentences == {EgressError.public}
    assert len(reasons) == len(urls)


async def _failing(host: str) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def _never(host: str) -> Sequence[str]:
    return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "resolver",
    [
        answering("10.0.0.1"),
        answering(PUBLIC, "127.0.0.1"),
        answering(),
        answering("x"),
        _failing,
        _never,
    ],
    ids=["private", "in part private", "no address", "nonsense", "no such name", "silence"],
)
async def test_a_name_that_leads_nowhere_ends_when_the_time_is_over_whether_it_exists_or_not(
    resolver: Resolve, dials: Dials
) -> None:
    clock = asyncio.get_running_loop().time
    async with Egress(resolver=resolver, connect_timeout=0.2) as egress:
        began = clock()
        with pytest.raises(EgressFailed) as failed:
            await egress.get("https://vault.example.com/")
    # Not sooner: no resolver tells anything by being quick.
    assert clock() - began >= 0.19
    assert not failed.value.is_sent and str(failed.value) == EgressError.public
    assert dials == []


async def test_where_the_network_is_open_a_name_that_leads_nowhere_ends_at_once() -> None:
    async with Egress(allow_private=True, resolver=_failing, connect_timeout=3600) as egress:
        with pytest.raises(EgressFailed):
            await asyncio.wait_for(egress.get("https://vault.example.com/"), 10)


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nHost: b"},
        {"X": "a\nb"},
        {"X": "a\x00"},
        {"X\r\nY": "a"},
        {"": "a"},
        {"X Y": "a"},
        {"Host": "b"},
        {"transfer-encoding": "chunked"},
        {"Content-Length": "0"},
        {"TE": "a"},
    ],
)
async def test_a_header_that_changes_the_request_is_refused(
    headers: dict[str, str], dials: Dials
) -> None:
    async with Egress(allow_private=True) as egress:
        with pytest.raises(EgressRefused):
            await egress.post("http://127.0.0.1:8000/", b"", headers)
        with pytest.raises(EgressRefused):
            await egress.get("http://127.0.0.1:8000/", headers=headers)
    assert dials == []


async def endless(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
    piece = bytes(1 << 20)
    for _ in range(10 * 1024):
        writer.write(piece)
        await writer.drain()


@cache
def bomb() -> bytes:
    """Fifty megabytes as an answer of fifty kilobytes."""
    body = gzip.compress(bytes(50 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


async def packed(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(bomb())
    await writer.drain()


async def long_head(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: " + b"a" * 4096 + b"\r\n")
        await writer.drain()


async def long_line(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def drip(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)  # the drip itself


async def dripping_head(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)  # the drip itself


async def informed(head: bytes, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Hints\r\n\r\n" * 100)
        await writer.drain()


@pytest.mark.parametrize("peer", [endless, packed])
async def test_an_answer_is_cut_at_its_limit(peer: Peer) -> None:
    async with serving(peer) as server, Egress(allow_private=True) as egress:
        answer = await asyncio.wait_for(egress.get(server.url(), max_answer=1000), 10)
        assert (answer.status, len(answer.body), answer.is_cut) == (200, 1000, True)
        answer = await asyncio.wait_for(egress.post(server.url(), b"{}", {}, max_answer=0), 10)
        assert (answer.status, answer.body, answer.is_cut) == (200, b"", True)


@pytest.mark.parametrize("peer", [silence, drip, dripping_head, long_head, long_line, informed])
async def test_a_hostile_answer_ends_in_time_and_in_bounds(peer: Peer) -> None:
    async with serving(peer) as server, Egress(allow_private=True) as egress:
        tracemalloc.start()
        try:
            with pytest.raises(EgressFailed):
                await asyncio.wait_for(egress.get(server.url(), timeout=0.5), 10)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 16 << 20


async def test_a_packed_answer_is_unpacked_only_as_far_as_it_is_read() -> None:
    async with serving(bomb()) as server, Egress(allow_private=True) as egress:
        tracemalloc.start()
        try:
            answer = await egress.get(server.url(), max_answer=256 * 1024)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert answer.is_cut
    assert peak < 16 << 20


async def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    async with Egress(resolver=resolve, connect_timeout=0.1) as egress:
        with pytest.raises(EgressFailed):
            await asyncio.wait_for(egress.get("https://example.com/"), 10)


async def test_a_cancelled_request_is_cancelled_and_not_failed() -> None:
    heard = asyncio.Event()

    async def peer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heard.set()
        await asyncio.Event().wait()

    async with serving(peer) as server, Egress(allow_private=True) as egress:
        request = asyncio.create_task(egress.get(server.url()))
        await asyncio.wait_for(heard.wait(), 5)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense \x1b[31m PEER\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nPEER: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: PEER\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"P" * 9000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nPEER\r\n",
    ],
)
async def test_a_failure_is_told_without_the_url_and_without_bytes_of_the_peer(
    answer: bytes,
) -> None:
    async with serving(answer) as server, Egress(allow=["127.0.0.1"]) as egress:
        url = server.url(path="/SECRET?key=SECRET")
        with pytest.raises(EgressFailed) as failed:
            await egress.post(url, b"{}", {})
    reason = failed.value.reason
    assert reason.isprintable() and reason.isidentifier(), "the kind of the error and nothing else"
    trace = "".join(traceback.format_exception(failed.value))
    assert "SECRET" not in trace and "PEER" not in trace


async def test_a_failure_says_what_the_system_said() -> None:
    async with serving() as server:
        port = server.port
    async with Egress(allow=["127.0.0.1"]) as egress:
        with pytest.raises(EgressFailed) as failed:
            await egress.get(f"http://127.0.0.1:{port}/SECRET")
    assert failed.value.reason == "NotConnected: Connection refused"


async def test_a_redirect_that_leads_nowhere_is_not_quoted() -> None:
    async with serving(redirect("http://[PEER]/")) as server, Egress(allow=["127.0.0.1"]) as egress:
        with pytest.raises(EgressRefused) as refused:
            await egress.get(server.url(), redirects=1)
    assert "PEER" not in refused.value.reason


class TestClosing:
    """Closing is for good, and whoever waits is told."""

    async def test_a_later_request_is_refused_and_opens_nothing(self, dials: Dials) -> None:
        async with serving() as server:
            egress = Egress(policy=Anywhere(), keep_alive=True)
            assert (await egress.get(server.url())).body == b"ok"
            await egress.close()
            dialled = len(dials)
            for ask in (egress.get(server.url()), egress.post(server.url(), b"", {})):
                with pytest.raises(EgressClosed, match="closed") as raised:
                    await ask
                assert isinstance(raised.value, ConfigError)
            with pytest.raises(EgressClosed):
                async with egress.open("GET", server.url(), headers={}):
                    pass
            assert len(dials) == dialled
            await egress.close()

    async def test_a_head_that_is_waited_for_fails(self) -> None:
        asked = asyncio.Event()

        async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with serving(answer) as server, asyncio.timeout(60):
            egress = Egress(policy=Anywhere())
            asking = asyncio.create_task(egress.post(server.url(), b"", {}))
            await asked.wait()
            await egress.close()
            with pytest.raises(EgressFailed) as raised:
                await asking
        assert raised.value.reason == "the client was closed" and raised.value.is_sent

    async def test_a_body_that_is_read_breaks_off(self) -> None:
        async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
            await writer.drain()
            await asyncio.Event().wait()

        async with serving(answer) as server, asyncio.timeout(60):
            egress = Egress(policy=Anywhere())
            async with egress.open("GET", server.url(), headers={}) as reply:
                chunks = reply.chunks()
                assert await anext(chunks) == b"first"
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                await egress.close()
                with pytest.raises(EgressFailed) as raised:
                    await reading
        assert raised.value.reason == "the client was closed"

    async def test_a_name_that_is_looked_up_is_waited_for_no_longer(self) -> None:
        asked = asyncio.Event()

        async def resolve(host: str) -> Sequence[str]:
            asked.set()
            await asyncio.Event().wait()
            return ()

        async with asyncio.timeout(60):
            egress = Egress(policy=Anywhere(), resolver=resolve, connect_timeout=60)
            asking = asyncio.create_task(egress.get("http://slow.example/", timeout=60))
            await asked.wait()
            await egress.close()
            with pytest.raises(EgressFailed):
                await asking

    async def test_a_limit_of_time_still_ends_what_nobody_closed(self) -> None:
        async with serving(silence) as server, Egress(policy=Anywhere()) as egress:
            with pytest.raises(EgressFailed) as raised:
                await egress.get(server.url(), timeout=0.05)
            assert "0.05 s" in raised.value.reason


class Kept:
    """A peer that keeps connections, and counts them."""

    def __init__(self) -> None:
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
                await writer.drain()
        writer.close()


class TestKeptConnections:
    """Which requests go out on a connection that served others before."""

    @staticmethod
    async def ask(egress: Egress, url: str, method: str, **more: bool) -> None:
        async with asyncio.timeout(60), egress.open(method, url, headers={}, **more) as reply:
            assert [piece async for piece in reply.chunks()] == [b"ok"]

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[tuple[Kept, str]]:
        kept = Kept()
        listener = await asyncio.start_server(kept.talk, "127.0.0.1", 0)
        try:
            yield kept, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        finally:
            listener.close()

    async def test_a_read_does_and_a_post_only_where_it_may_be_made_twice(self) -> None:
        async with self.peer() as (kept, url), Egress(policy=Anywhere(), keep_alive=True) as egress:
            for _ in range(3):
                await self.ask(egress, url, "GET")
            assert kept.connections == 1
            for _ in range(3):
                await self.ask(egress, url, "POST")
            assert kept.connections == 4
            for _ in range(3):
                await self.ask(egress, url, "POST", reuse=True)
            assert kept.connections == 4

    async def test_none_does_unless_connections_are_kept(self) -> None:
        async with self.peer() as (kept, url), Egress(policy=Anywhere()) as egress:
            for _ in range(2):
                await self.ask(egress, url, "POST", reuse=True)
                await self.ask(egress, url, "GET")
            assert kept.connections == 4

    async def test_one_that_was_idle_for_longer_than_peers_keep_it_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The servers we know hang up after five seconds.
        assert module.IDLE < 5
        monkeypatch.setattr(module, "IDLE", 0.05)
        async with self.peer() as (kept, url), Egress(policy=Anywhere(), keep_alive=True) as egress:
            await self.ask(egress, url, "GET")
            time.sleep(0.1)  # noqa: ASYNC251 - time itself is what passes
            await self.ask(egress, url, "GET")
            assert kept.connections == 2


def test_each_loop_has_connections_of_its_own() -> None:
    egress = Egress(policy=Anywhere(), keep_alive=True)

    async def use(*, is_last: bool = False) -> bytes:
        async with serving() as server, asyncio.timeout(60):
            answer = await egress.get(server.url())
            if is_last:
                await egress.close()
            return answer.body

    assert asyncio.run(use()) == b"ok"
    assert asyncio.run(use()) == b"ok"
    assert asyncio.run(use(is_last=True)) == b"ok"
