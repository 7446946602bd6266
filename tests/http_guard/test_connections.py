"""How many may be connected, who makes room for whom, and what a handshake leaves behind."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dragoman.server.run import _context

from .test_good_http import Echo
from .wire import get, guarding, is_problem


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
    certificate = _certify(tmp_path)
    files = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    named = {"certfile": files[0], "keyfile": files[1], "ca_certs": files[0]}
    tls: dict[str, Any] = {f"ssl_{name}": value for name, value in named.items()}
    calling = ssl.create_default_context(cafile=files[0])
    for shows in (True, False):
        if shows:
            calling.load_cert_chain(*files)
        else:
            calling = ssl.create_default_context(cafile=files[0])
        app = Echo()
        asking = guarding(app, tls=tls | {"ssl_cert_reqs": ssl.CERT_OPTIONAL})
        at = {"ssl": calling, "server_hostname": "127.0.0.1"}
        async with asking as place, place.peer(**at) as peer:
            for _ in range(2):
                await peer.send(get(b"/a"))
                assert (await peer.answer()).body == b"/a "
            await peer.send(b"nonsense\r\n\r\n")
            assert is_problem(await peer.answer())
            assert await peer.rest() == b""
        found = [scope["extensions"]["tls"]["client_cert"] for scope in app.scopes]
        assert found == [certificate if shows else None] * 2


def _certify(folder: Path) -> bytes:
    """Write a certificate that signs itself, and its key; return the certificate as DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(text)
    return certificate.public_bytes(serialization.Encoding.DER)


def test_tls_older_than_1_2_is_not_spoken() -> None:
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lax.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context = _context(uvicorn.Config(None), lambda: lax)  # type: ignore[arg-type]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
