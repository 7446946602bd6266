"""The way out of the process: which addresses are dialled. Sockets are real, names are not."""

import asyncio
import ssl
from collections.abc import Sequence

import pytest
from harness.stub_servers import listening
from harness.waiting import within

from dragoman.egress.addresses import Address
from dragoman.egress.dial import Dial
from dragoman.egress.egress import Egress, Resolve
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.egress.targets import Policy, read_address, read_target
from dragoman.errors import ConfigError
from tests.egress.servers import OK, PUBLIC, Dials, Server, answering, serving, surfaces
from tests.egress.url_forms import METADATA, READ, RESOLVED


async def test_a_refusal_is_judged_anew_once_more_is_allowed() -> None:
    async with Egress() as egress:
        for _ in range(2):
            with pytest.raises(EgressRefused):
                egress.check("http://10.0.0.1:8000/")
        egress.allow("10.0.0.1")
        egress.check("http://10.0.0.1:8000/")


async def test_what_is_known_of_urls_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.egress.egress._MOST_TARGETS", 8)
    async with Egress() as egress:
        for number in range(100):
            egress.check(f"https://example.com/{number}")
        assert len(egress._targets) <= 8  # pyright: ignore[reportPrivateUsage]


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
    resolver = answering("127.0.0.1")
    async with (
        listening(silent.talk, tls=context) as port,
        Egress(allow=[f"hooks.example.com:{port}"], resolver=resolver) as egress,
    ):
        # The server has no certificate, so the greeting is all it hears.
        with pytest.raises(EgressFailed):
            await egress.get(f"https://hooks.example.com:{port}/")
    assert await within(named.get()) == "hooks.example.com"
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
