"""Redirects: how far they are followed, and what goes along."""

import pytest

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed, EgressRefused
from dragoman.egress.targets import read_target
from tests.egress.servers import PUBLIC, SECRETS, Dials, answering, redirect, serving
from tests.egress.url_forms import READ


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


async def test_a_redirect_that_leads_nowhere_is_not_quoted() -> None:
    async with serving(redirect("http://[PEER]/")) as server, Egress(allow=["127.0.0.1"]) as egress:
        with pytest.raises(EgressRefused) as refused:
            await egress.get(server.url(), redirects=1)
    assert "PEER" not in refused.value.reason
