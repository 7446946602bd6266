"""How many may be connected, who makes room for whom, what a handshake leaves behind, and how
connections end with their server."""

import ssl
from pathlib import Path

from harness.certificates import LOOPBACK, Authority

from dragoman.config import load_settings
from dragoman.server.process.tls import tls_context
from tests.http.test_good_http import Echo
from tests.http.wire import Place, call, get, guarding, is_problem, message, post


async def test_those_who_wait_make_room_for_those_who_come() -> None:
    busy = guarding(Echo(), max_connections=3)
    async with busy as place, place.peer() as first, place.peer(), place.peer():
        await place.until(lambda: len(place.connections) == 3)
        await first.send(get(b"/stream"))
        while await first.line() != b"begun\r\n":
            pass
        assert (await place.exchange(get(b"/a"))).body == b"/a "
        assert place.connections.refused == {"evicted": 1}
        # The stream is not among those who wait.
        assert (await first.line()).strip()


async def test_where_all_are_busy_the_next_one_is_told_so() -> None:
    async with guarding(Echo(), max_connections=2) as place:
        async with place.peer() as first, place.peer() as second:
            for one in (first, second):
                await one.send(get(b"/stream"))
                while await one.line() != b"begun\r\n":
                    pass
            async with place.peer() as third:
                answer = await third.answer()
                assert answer.status == 503
                assert answer.headers["retry-after"] == "1"
                assert is_problem(answer)
                assert await third.rest() == b""
            assert place.connections.refused == {"connections": 1}
        await place.until(lambda: not len(place.connections))
        assert (await place.exchange(get(b"/a"))).body == b"/a "


async def test_one_address_has_no_more_than_its_share() -> None:
    async with guarding(Echo(), max_connections_per_address=2) as place:
        async with place.peer() as first, place.peer():
            await place.until(lambda: len(place.connections) == 2)
            async with place.peer() as third:
                assert (await third.answer()).status == 503
            async with place.peer(local_addr=("127.0.0.2", 0)) as other:
                await other.send(get(b"/a"))
                assert (await other.answer()).body == b"/a "
            await first.send(get(b"/a"))
            assert (await first.answer()).body == b"/a "
        await place.until(lambda: not len(place.connections))
        assert place.connections._by_address == {}
        assert place.connections.opened == 3


async def test_a_plain_connection_shows_nothing_of_tls() -> None:
    app = Echo()
    async with guarding(app) as place:
        await place.exchange(get(b"/a"))
    assert "extensions" not in app.scopes[0]


async def test_a_certificate_that_was_shown_is_in_every_request_of_its_connection(
    tmp_path: Path,
) -> None:
    issued = Authority("localhost", LOOPBACK)
    files = tuple(map(str, issued.save_files(tmp_path, "cert")))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    tls.load_verify_locations(files[0])
    tls.verify_mode = ssl.CERT_OPTIONAL
    calling = ssl.create_default_context(cafile=files[0])
    for shows in (True, False):
        if shows:
            calling.load_cert_chain(*files)
        else:
            calling = ssl.create_default_context(cafile=files[0])
        app = Echo()
        asking = guarding(app, tls=tls)
        at = {"ssl": calling, "server_hostname": "127.0.0.1"}
        async with asking as place, place.peer(**at) as peer:
            for _ in range(2):
                await peer.send(get(b"/a"))
                assert (await peer.answer()).body == b"/a "
            await peer.send(b"nonsense\r\n\r\n")
            assert is_problem(await peer.answer())
            assert await peer.rest() == b""
        found = [scope["extensions"]["tls"]["client_cert"] for scope in app.scopes]
        assert found == [issued.der if shows else None] * 2


def test_tls_is_not_older_than_1_2_and_hides_what_is_said(tmp_path: Path) -> None:
    cert, key = Authority("localhost", LOOPBACK).save_files(tmp_path, "cert")
    context = tls_context(load_settings({}, tls_cert=str(cert), tls_key=str(key)))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    # Neither without encryption nor without a certificate.
    weak = [
        one["name"] for one in context.get_ciphers() if one["name"].startswith(("AECDH", "ADH"))
    ]
    weak += [one["name"] for one in context.get_ciphers() if "NULL" in one["name"]]
    assert weak == []


def stop(place: Place) -> None:
    """Tell the connections that the server ends, as it does itself."""
    place.connections.is_stopping = True
    for one in list(place.connections._open):
        one.shutdown()


async def test_a_request_that_is_on_its_way_when_the_server_ends_is_answered_and_is_the_last() -> (
    None
):
    known = post(call("SendMessage", message("again")))
    async with guarding() as place, place.peer() as used, place.peer() as new, place.peer() as idle:
        for _ in range(2):
            # Its head is known from here on.
            await used.send(known)
            assert (await used.answer()).status == 200
        await place.until(lambda: len(place.connections) == 3)
        stop(place)
        for peer in (used, new):
            await peer.send(known)
            answer = await peer.answer()
            assert answer.status == 200 and answer.headers["connection"] == "close"
            assert await peer.rest() == b""
        assert await idle.rest() == b""


async def test_a_connection_that_was_accepted_as_the_server_ended_has_one_answer() -> None:
    async with guarding() as place:
        stop(place)
        async with place.peer() as late, place.peer() as silent:
            await late.send(get())
            answer = await late.answer()
            assert answer.status == 200 and answer.headers["connection"] == "close"
            assert await late.rest() == b""
            assert await silent.rest() == b""
        # Not because it was late.
        assert not place.connections.refused


async def test_a_large_body_that_comes_while_the_server_ends_is_answered_last() -> None:
    data = post(call("SendMessage", message("x" * 200_000)))
    async with guarding() as place, place.peer() as peer:
        await peer.send(data[:1000])
        await place.until(lambda: [one for one in place.connections._open if one._phase == 2])  # type: ignore[attr-defined]
        stop(place)
        await peer.send(data[1000:])
        answer = await peer.answer()
        assert answer.status == 200 and answer.headers["connection"] == "close"
        assert await peer.rest() == b""


async def test_half_a_head_does_not_keep_a_server_that_ends() -> None:
    async with guarding() as place, place.peer() as peer:
        await peer.send(get()[:20])
        await place.until(lambda: [one for one in place.connections._open if one._phase == 1])  # type: ignore[attr-defined]
        stop(place)
        assert await peer.rest() == b""
