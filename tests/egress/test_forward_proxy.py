"""Connections by a proxy of the user's network: which one is asked, and what its word means."""

import asyncio

import pytest
from harness.forward_proxies import ConnectProxy

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed
from dragoman.egress.forward_proxy import ConnectRequest, proxy_of, read_proxy
from dragoman.egress.targets import Anywhere, NotCanonical, read_target

pytestmark = pytest.mark.anyio
PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("url", "environment", "is_used"),
    [
        ("https://gateway.example", {}, False),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY}, True),
        ("https://gateway.example", {"https_proxy": "proxy.example:3128"}, True),
        ("https://gateway.example", {"ALL_PROXY": PROXY}, True),
        ("https://gateway.example", {"http_proxy": PROXY}, False),
        ("http://gateway.example", {"http_proxy": PROXY}, True),
        # A header of a request where programs are run as CGI.
        ("http://gateway.example", {"HTTP_PROXY": PROXY}, False),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY, "NO_PROXY": "example"}, False),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY, "NO_PROXY": "a.b, .example"}, False),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY, "no_proxy": "*"}, False),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY, "NO_PROXY": "way.example"}, True),
        ("https://gateway.example:8443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "example:443"}, True),
        ("https://gateway.example", {"HTTPS_PROXY": PROXY, "NO_PROXY": "example:443"}, False),
    ],
)
def test_the_environment_names_the_proxy(
    url: str, environment: dict[str, str], is_used: bool
) -> None:
    found = proxy_of(environment, read_target(url))
    assert (found is not None) is is_used
    assert found is None or found.target.origin == PROXY


def test_a_proxy_is_shown_what_its_url_says_and_nobody_else() -> None:
    proxy = read_proxy("http://ann:h%40sh@proxy.example:3128")
    assert proxy.authorization == "Basic YW5uOmhAc2g="
    assert "YW5u" not in repr(proxy)
    for wrong in ("https://proxy.example", "socks5://proxy.example", "http://", "http://a b"):
        with pytest.raises(NotCanonical):
            read_proxy(wrong)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Who\r\n\r\n", "the proxy answers 407"),
        (b"HTTP/1.1 502 No\r\ncontent-length: 1\r\n\r\nx", "the proxy answers 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nspoken too early", "the proxy answers 200"),
        (b"nonsense\r\n\r\n", "the proxy answers no HTTP"),
        (b"x" * 20_000, "the proxy answers no HTTP"),
        (b"", "the proxy hung up"),
    ],
)
async def test_a_proxy_that_does_not_let_us_through_is_told(answer: bytes, reason: str) -> None:
    async with ConnectProxy(answer=answer) as proxy, Egress(policy=Anywhere()) as client:
        with pytest.raises(EgressFailed) as failed:
            await client.connect("http://127.0.0.1:9/", asyncio.Protocol, read_proxy(proxy.url))
        assert failed.value.reason == reason


async def test_an_address_of_six_is_asked_for_in_brackets() -> None:
    request = ConnectRequest(read_target("https://[::1]:8443/"), read_proxy(PROXY))
    written: list[bytes] = []

    class Socket(asyncio.Transport):
        def write(self, data: object) -> None:
            written.append(bytes(data))  # type: ignore[call-overload]  # it is bytes

    request.connection_made(Socket())
    assert written[0].startswith(b"CONNECT [::1]:8443 HTTP/1.1\r\nHost: [::1]:8443\r\n")
