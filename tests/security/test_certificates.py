"""Client certificates: whom they name, which do not hold, and who may hand one over."""

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator
from datetime import timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from harness.certificates import DAY, SERVER, Authority, Issued, dns, mail, pem, uri
from harness.clock import SkippingClock
from harness.stub_servers import listening
from harness.waiting import within

from dragoman import Settings
from dragoman.config import HttpSettings, SecuritySettings, load_settings
from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.security.authentication import CredentialRefused, Denied, Evidence, Gatekeeper
from dragoman.security.certificates import ClientCertificates
from dragoman.server.process.tls import tls_context

AGENT = "spiffe://example.org/agents/alice"
PROXY = "10.1.2.3"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Issued:
    return authority.issue(uri(AGENT), dns("alice.example"))


@pytest.fixture
def ca(authority: Authority, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.pem)
    return path


async def owner(way: ClientCertificates, issued: Issued) -> str:
    found = await way.authenticate(Evidence([], certificate=issued.der))
    assert found is not None and way.still_holds(found)
    assert found.caller == Caller(found.caller.owner, authenticated=True)
    return found.caller.owner


async def reason(way: ClientCertificates, evidence: Evidence) -> str:
    with pytest.raises(CredentialRefused) as refused:
        await way.authenticate(evidence)
    return refused.value.reason


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((dns("a.example"), uri(AGENT), mail("a@b.example")), AGENT),
        ((uri("https://a.example/x"), uri(AGENT)), AGENT),
        ((uri("https://a.example/x"), uri("https://b.example")), "https://a.example/x"),
        ((mail("a@b.example"), dns("A.Example"), dns("b.example")), "a.example"),
        ((mail("a@b.example"), x509.IPAddress(ip_address("10.0.0.1"))), "a@b.example"),
    ],
)
async def test_a_certificate_names_an_agent_else_a_host_else_a_mailbox(
    authority: Authority, names: tuple[x509.GeneralName, ...], found: str
) -> None:
    way = ClientCertificates()
    await way.start()
    assert await owner(way, authority.issue(*names)) == f"cert:{found}"
    assert await owner(way, authority.issue(*names, uses=())) == f"cert:{found}"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "name in its subject only"),
        ((x509.IPAddress(ip_address("10.0.0.1")),), "no name of an agent"),
        ((dns("*.example"),), "identifies no caller"),
        ((uri("alice"),), "identifies no caller"),
        ((uri(AGENT), uri("spiffe://example.org/agents/bob")), "two SPIFFE names"),
    ],
)
async def test_a_certificate_that_identifies_no_caller_is_refused(
    authority: Authority, names: tuple[x509.GeneralName, ...], said: str
) -> None:
    issued = authority.issue(*names, common_name="alice.example")
    way = ClientCertificates()
    assert said in await reason(way, Evidence([], certificate=issued.der))


async def test_a_certificate_for_something_else_or_another_time_is_refused(
    authority: Authority,
) -> None:
    way = ClientCertificates()
    for issued, said in (
        (authority.issue(uri(AGENT), uses=[SERVER]), "not one for clients"),
        (authority.issue(uri(AGENT), since=-2 * DAY, until=-DAY), "expired"),
        (authority.issue(uri(AGENT), since=DAY, until=2 * DAY), "not valid yet"),
    ):
        assert said in await reason(way, Evidence([], certificate=issued.der))
    assert "cannot be read" in await reason(way, Evidence([], certificate=b"no certificate"))
    assert await way.authenticate(Evidence([])) is None


async def test_a_long_connection_ends_with_its_certificate(authority: Authority) -> None:
    clock = SkippingClock()
    way = ClientCertificates(now=clock.now)
    gate = Gatekeeper([way], now=clock.now)
    evidence = Evidence([], certificate=authority.issue(uri(AGENT), until=DAY).der)
    found = await gate.admit(evidence)
    clock.passed = DAY.total_seconds() - 60
    assert await gate.admit(evidence) is found
    clock.passed += 61
    assert not way.still_holds(found)
    with pytest.raises(Denied, match="Authentication is required"):
        await gate.admit(evidence)


class Revoking:
    """A way with a list of revoked certificates, and the time moved by hand."""

    def __init__(self, ca: Path, folder: Path, body: bytes) -> None:
        self.clock = SkippingClock()
        self.file = folder / "revoked.crl"
        self.write(body)
        self.way = ClientCertificates(
            authorities=ca, crl=self.file, now=self.clock.now, monotonic=self.clock.monotonic
        )

    def write(self, body: bytes) -> None:
        draft = self.file.with_suffix(".new")
        draft.write_bytes(body)
        os.replace(draft, self.file)


@pytest.mark.parametrize("encoding", [serialization.Encoding.PEM, serialization.Encoding.DER])
async def test_a_revoked_certificate_is_refused_once_the_list_says_so(
    authority: Authority, alice: Issued, ca: Path, tmp_path: Path, encoding: Any
) -> None:
    bob = authority.issue(uri("spiffe://example.org/agents/bob"))
    revoking = Revoking(ca, tmp_path, authority.revoke(bob).public_bytes(encoding))
    way = revoking.way
    await way.start()
    found = await way.authenticate(Evidence([], certificate=alice.der))
    assert found is not None and way.still_holds(found)
    assert "revoked" in await reason(way, Evidence([], certificate=bob.der))
    revoking.write(authority.revoke(bob, alice).public_bytes(encoding))
    assert way.still_holds(found)
    revoking.clock.passed += 1
    assert not way.still_holds(found)
    assert "revoked" in await reason(way, Evidence([], certificate=alice.der))


async def test_a_list_that_is_late_gone_or_broken_lets_nobody_in(
    authority: Authority, alice: Issued, ca: Path, tmp_path: Path
) -> None:
    revoking = Revoking(ca, tmp_path, pem(authority.revoke()))
    way, clock, shown = revoking.way, revoking.clock, Evidence([], certificate=alice.der)
    await way.start()
    found = await way.authenticate(shown)
    assert found is not None

    revoking.write(b"nonsense")
    clock.passed += 1
    assert not way.still_holds(found)
    assert "cannot be used" in await reason(way, shown)
    revoking.file.unlink()
    clock.passed += 1
    assert "cannot be used" in await reason(way, shown)
    revoking.write(pem(authority.revoke(until=timedelta(hours=1))))
    clock.passed += 1
    assert way.still_holds(found)
    clock.passed += 3600
    assert not way.still_holds(found)
    assert "out of date" in await reason(way, shown)


async def test_a_list_by_another_authority_covers_nobody(
    authority: Authority, alice: Issued, ca: Path, tmp_path: Path
) -> None:
    other = Authority("Other CA")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.pem + other.pem)
    revoking = Revoking(both, tmp_path, pem(other.revoke()))
    await revoking.way.start()
    assert "no revocation list covers" in await reason(
        revoking.way, Evidence([], certificate=alice.der)
    )
    revoking.write(pem(other.revoke()) + pem(authority.revoke()))
    revoking.clock.passed += 1
    assert await owner(revoking.way, alice) == f"cert:{AGENT}"


async def test_a_list_that_cannot_be_trusted_is_refused_at_the_start(
    authority: Authority, ca: Path, tmp_path: Path
) -> None:
    namesake = Authority()
    partial = authority.revoke(extension=x509.DeltaCRLIndicator(1))
    for body, said in (
        (pem(namesake.revoke()), "not signed by any authority"),
        (pem(Authority("Other CA").revoke()), "not signed by any authority"),
        (pem(partial), "no complete list"),
        (b"nonsense", "no list of revoked"),
    ):
        with pytest.raises(ConfigError, match=said):
            await Revoking(ca, tmp_path, body).way.start()
    with pytest.raises(ConfigError, match="client_crl: needs the authorities"):
        ClientCertificates(crl=tmp_path / "revoked.crl")
    with pytest.raises(ConfigError, match="cannot be used"):
        await ClientCertificates(authorities=tmp_path / "none.pem").start()


def handed(issued: Issued, header: str) -> bytes:
    """Return a certificate as a proxy writes it into a header."""
    escaped = quote(issued.pem, safe="")
    return {
        "client-cert": f":{base64.b64encode(issued.der).decode()}:",
        "x-forwarded-client-cert": f"By=spiffe://proxy;Hash={sha256(issued.der).hexdigest()};"
        f'Cert="{escaped}";Subject="a;,=\\"";URI={AGENT}',
    }.get(header, escaped).encode()


HEADERS = ["X-Client-Cert", "Client-Cert", "X-Forwarded-Client-Cert"]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("address", [PROXY, f"::ffff:{PROXY}"])
async def test_a_proxy_hands_over_the_certificate_of_its_caller(
    alice: Issued, ca: Path, header: str, address: str
) -> None:
    way = ClientCertificates(authorities=ca, proxies=[f"{PROXY}/32", "::1"], proxy_header=header)
    await way.start()
    name = header.lower()
    assert way.reads == {name.encode()}
    headers = [(name.encode(), handed(alice, name))]
    found = await way.authenticate(Evidence(headers, address=address))
    assert found is not None and found.caller.owner == f"cert:{AGENT}"


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("address", ["10.1.2.4", "127.0.0.1", "", "nonsense", "::1"])
async def test_a_spoofed_header_never_counts(
    authority: Authority, alice: Issued, header: str, address: str
) -> None:
    name = header.lower()
    headers = [(one.lower().encode(), handed(alice, one.lower())) for one in HEADERS]
    spoofed = Evidence(headers, address=address)
    bob = authority.issue(dns("bob.example"))
    for way in (
        ClientCertificates(proxies=[PROXY], proxy_header=header),
        # Known as a proxy, which nobody said hands over certificates.
        ClientCertificates(proxies=[PROXY, "10.1.2.4", "127.0.0.1", "::1"]),
        ClientCertificates(),
    ):
        assert await way.authenticate(spoofed) is None
        found = await way.authenticate(Evidence(headers, bob.der, address))
        assert found is not None and found.caller.owner == "cert:bob.example"
    # From the proxy as well only the header that it sets: others it may pass on.
    others = [pair for pair in headers if pair[0] != name.encode()]
    way = ClientCertificates(proxies=[PROXY], proxy_header=header)
    assert await way.authenticate(Evidence(others, address=PROXY)) is None


async def test_callers_without_a_certificate_are_not_their_proxy(
    authority: Authority, alice: Issued
) -> None:
    way = ClientCertificates(proxies=[PROXY], proxy_header="X-Client-Cert")
    proxy = authority.issue(dns("proxy.example")).der
    assert await way.authenticate(Evidence([], proxy, PROXY)) is None
    assert await way.authenticate(Evidence([(b"x-client-cert", b"")], proxy, PROXY)) is None
    both = [(b"x-client-cert", handed(alice, "x-client-cert"))] * 2
    assert "two certificates" in await reason(way, Evidence(both, proxy, PROXY))


async def test_names_in_a_certificate_that_look_like_more_of_the_header_make_nobody_another(
    authority: Authority, alice: Issued
) -> None:
    """Envoy writes the URIs and hosts of a certificate without quotes."""
    name = "x-forwarded-client-cert"
    way = ClientCertificates(proxies=[PROXY], proxy_header=name)
    bob = authority.issue(dns("bob.example"))
    escaped = quote(alice.pem, safe="")
    digest = sha256(bob.der).hexdigest()
    for value in (
        # What bob's own names may say.
        handed(bob, name) + f",Cert={escaped}".encode(),
        handed(bob, name) + f',Cert="{escaped}"'.encode(),
        handed(bob, name) + f';Cert="{escaped}"'.encode(),
        # The same behind an Envoy that does not hand over certificates.
        f"Hash={digest};URI=x;Cert={escaped}".encode(),
        f'Hash={digest};URI=x;Cert="{escaped}"'.encode(),
        f'Hash={digest};URI=x;Hash={sha256(alice.der).hexdigest()};Cert="{escaped}"'.encode(),
        # And behind one that tells no hash.
        f"URI=x;Cert=x{escaped}x".encode(),
        f'URI=x,Cert="{escaped}"'.encode(),
        # What others told a proxy that passes it on.
        handed(alice, name) + b"," + handed(bob, name),
        handed(alice, name) + b", " + handed(bob, name),
        b"Hash=ab12",
        b"Cert",
        f"Cert={escaped}".encode(),
        f'Cert="{escaped}'.encode(),
    ):
        headers = [(name.encode(), value)]
        assert "certificate" in await reason(way, Evidence(headers, address=PROXY)), value
    found = await way.authenticate(
        Evidence([(name.encode(), f'Cert="{escaped}"'.encode())], address=PROXY)
    )
    assert found is not None and found.caller.owner == f"cert:{AGENT}"


async def test_what_a_proxy_hands_over_without_a_look_is_looked_at_here(
    authority: Authority, ca: Path
) -> None:
    way = ClientCertificates(authorities=ca, proxies=[PROXY], proxy_header="X-Client-Cert")
    await way.start()
    for issued, said in (
        (Authority("Other CA").issue(uri(AGENT)), "unknown authority"),
        (Authority().issue(uri(AGENT)), "unknown authority"),
        (authority.issue(uri(AGENT), since=-2 * DAY, until=-DAY), "expired"),
        (authority.issue(uri(AGENT), uses=[SERVER]), "not one for clients"),
        (authority.issue(common_name="alice"), "name in its subject only"),
    ):
        headers = [(b"x-client-cert", handed(issued, "x-client-cert"))]
        assert said in await reason(way, Evidence(headers, address=PROXY))
    for value, said in (
        (b"nonsense", "not a certificate"),
        (b"-----BEGIN CERTIFICATE-----", "not a certificate"),
        (b"%00", "not a certificate"),
        (b"a" * 20_000, "too long"),
    ):
        headers = [(b"x-client-cert", value)]
        assert said in await reason(way, Evidence(headers, address=PROXY))


def test_proxies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"proxies: .*write 10"):
        ClientCertificates(proxies=["10.0.0.1/8"])
    with pytest.raises(ConfigError, match="anybody could send it"):
        ClientCertificates(proxy_header="X-Client-Cert")
    with pytest.raises(ConfigError, match="is no header"):
        ClientCertificates(proxies=[PROXY], proxy_header="X Client")


@contextlib.asynccontextmanager
async def admitting(way: ClientCertificates, **settings: str) -> AsyncGenerator[int]:
    """Tell callers who they are, over TLS as a server of ours would speak it."""
    tls = tls_context(load_settings({}, **settings))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        headers = [(b"x-client-cert", (await reader.readline()).strip())]
        try:
            found = await way.authenticate(Evidence(headers, shown, "127.0.0.1"))
            said = found.caller.owner if found else "nobody"
        except CredentialRefused as refused:
            said = refused.reason
        writer.write(said.encode() + b"\n")
        await writer.drain()

    async with listening(answer, tls=tls) as port:
        yield port


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


async def asked(port: int, ca: Path, shown: Path | None, said: bytes = b"") -> str:
    """Return what a server answers to whoever shows a certificate; empty: it hangs up."""
    context = ssl.create_default_context(cafile=str(ca))
    if shown is not None:
        context.load_cert_chain(shown)
    writer = None
    try:
        reader, writer = await within(asyncio.open_connection("127.0.0.1", port, ssl=context))
        writer.write(said + b"\n")
        await writer.drain()
        return (await within(reader.readline())).decode().strip()
    except (ssl.SSLError, ConnectionError):
        return ""
    finally:
        if writer is not None:
            writer.close()


@pytest.mark.parametrize("others", ["", ",bearer"])
async def test_over_tls_only_certificates_that_hold_let_anybody_in(
    authority: Authority, alice: Issued, ca: Path, tmp_path: Path, others: str
) -> None:
    own = authority.issue(x509.IPAddress(ip_address("127.0.0.1")), uses=[SERVER])
    bob = authority.issue(dns("bob.example"))
    crl = tmp_path / "revoked.crl"
    crl.write_bytes(pem(authority.revoke(bob)))
    way = ClientCertificates(authorities=ca, crl=crl)
    await way.start()
    tls = {"tls_cert": str(own.save(tmp_path, "own")), "client_ca": str(ca)}
    shown = {
        "alice": alice,
        "bob": bob,
        "name": authority.issue(common_name="alice"),
        "other": Authority("Other CA").issue(uri(AGENT)),
        "namesake": Authority().issue(uri(AGENT)),
        "expired": authority.issue(uri(AGENT), since=-2 * DAY, until=-DAY),
        "early": authority.issue(uri(AGENT), since=DAY, until=2 * DAY),
        "server": authority.issue(uri(AGENT), uses=[SERVER]),
    }
    files = {name: issued.save(tmp_path, name) for name, issued in shown.items()}
    async with admitting(way, auth=f"mtls{others}", client_crl=str(crl), **tls) as port:
        answers = {name: await asked(port, ca, file) for name, file in files.items()}
        answers["nothing"] = await asked(port, ca, None)
        spoofed = handed(alice, "x-client-cert")
        answers["spoofed"] = await asked(port, ca, files["bob"], spoofed)
    revoked = "revoked certificate"
    assert answers == {
        "alice": f"cert:{AGENT}",
        "bob": revoked,
        "spoofed": revoked,
        "name": "the certificate has a name in its subject only",
        # Where there are other ways in, a caller may come without one; a bad one is bad always.
        "nothing": "nobody" if others else "",
        **dict.fromkeys(("other", "namesake", "expired", "early", "server"), ""),
    }


def test_lists_that_nobody_would_look_at_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client_crl: .*--auth mtls"):
        tls_context(
            Settings(
                http=HttpSettings(client_crl="revoked.crl"),
                security=SecuritySettings(auth=["bearer"]),
            )
        )
    with pytest.raises(ConfigError, match="--tls-cert"):
        tls_context(Settings(http=HttpSettings(client_ca="ca.pem")))
    behind = Settings(
        http=HttpSettings(client_ca="ca.pem", proxies=[PROXY], proxy_cert_header="X-Client-Cert")
    )
    assert tls_context(behind) is None
