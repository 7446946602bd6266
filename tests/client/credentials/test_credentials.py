"""What a card asks for, what is chosen for it, and where it goes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.certificates import LOOPBACK, Authority, Files
from harness.stub_servers import listening
from harness.waiting import within

from dragoman.client.credentials.credentials import (
    ApiKey,
    Attached,
    Basic,
    Bearer,
    ChosenCredential,
    ClientCertificate,
    Credential,
    Scheme,
    challenged,
    choose,
    fingerprint,
    schemes,
)
from dragoman.client.credentials.origins import Origins, origin_of
from dragoman.client.http import Http, read_all
from dragoman.dialects import cards
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed
from dragoman.egress.targets import Anywhere
from dragoman.errors import ConfigError, CredentialsMissing
from dragoman.model.card import AgentCapabilities, AgentCard

BEARER = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
BASIC = {"httpAuthSecurityScheme": {"scheme": "basic"}}
KEY = {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}
OAUTH = {
    "oauth2SecurityScheme": {
        "flows": {
            "clientCredentials": {
                "tokenUrl": "https://issuer.example/token",
                "scopes": {"read": "Read"},
            }
        }
    }
}
OPENID = {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://issuer.example/x"}}
MTLS: dict[str, Any] = {"mtlsSecurityScheme": {}}
AGENT = "https://agent.example/a2a"


def card(security: dict[str, Any], *alternatives: Any) -> AgentCard:
    """Return a card with these schemes; an alternative is a dict of names and scopes."""
    return AgentCard(
        "Agent",
        "",
        [],
        "1",
        AgentCapabilities(),
        [],
        [],
        [],
        security_schemes=security,
        security_requirements=[
            {"schemes": {name: {"list": scopes} for name, scopes in wanted.items()}}
            for wanted in alternatives
        ],
    )


class NoHttp:
    """Fails the test that sends anything."""

    identity = ""

    def open(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("nothing is to be sent here")

    async def close(self) -> None:
        pass


class Stored(Credential):
    """Left from an earlier login, for one agent."""

    def __init__(self, origin: str = "https://agent.example") -> None:
        self.origin = origin

    def fits(self, scheme: Scheme) -> bool:
        return scheme.kind == "oauth2"

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        to.headers["authorization"] = "Bearer stored"

    def serves(self, url: str) -> bool:
        return origin_of(url) == self.origin

    @property
    def is_stored(self) -> bool:
        return True


async def sent(
    chosen: ChosenCredential, url: str = AGENT, **headers: str
) -> tuple[str, dict[str, str]]:
    return (await chosen.attach(url, NoHttp(), Origins([AGENT]))).onto(headers)


# Reading a card


def test_every_kind_of_scheme_is_read() -> None:
    digest = {"httpAuthSecurityScheme": {"scheme": "Digest"}}
    security = {
        "a": BEARER,
        "b": BASIC,
        "c": KEY,
        "d": OAUTH,
        "e": OPENID,
        "f": MTLS,
        "g": digest,
    }
    found = schemes(card(security))
    kinds = [scheme.kind for scheme in found.values()]
    assert kinds == ["bearer", "basic", "apiKey", "oauth2", "openIdConnect", "mtls", "http"]
    assert (found["c"].key_name, found["c"].location) == ("X-Key", "header")
    assert found["d"].flows["clientCredentials"].token_url == "https://issuer.example/token"
    assert found["d"].flows["clientCredentials"].scopes == {"read": "Read"}
    assert found["e"].discovery_url == "https://issuer.example/x"
    assert found["g"].http_scheme == "digest"


@pytest.mark.parametrize(
    "scheme",
    [
        {"hologramSecurityScheme": {}},
        {},
        "bearer",
        None,
        {"httpAuthSecurityScheme": None},
        {"httpAuthSecurityScheme": {"scheme": "Bear er"}},
        {"apiKeySecurityScheme": {"location": "body", "name": "k"}},
        {"apiKeySecurityScheme": {"location": "header", "name": "X\r\nHost: evil"}},
        {"apiKeySecurityScheme": {"location": "cookie", "name": "a=b; c"}},
        {"apiKeySecurityScheme": {"location": "query", "name": ""}},
        {"apiKeySecurityScheme": {"location": "query", "name": 7}},
    ],
)
def test_a_scheme_that_cannot_be_read_is_left_out(scheme: Any) -> None:
    assert schemes(card({"odd": scheme})) == {}


def test_the_schemes_of_an_older_card_are_read_through_its_dialect() -> None:
    older = cards.decode(
        {
            "name": "Old",
            "url": AGENT,
            "securitySchemes": {"k": {"type": "apiKey", "in": "cookie", "name": "sid"}},
            "security": [{"k": []}],
        }
    )
    chosen = choose(older, [ApiKey("value")])
    assert [(scheme.location, scheme.key_name) for scheme, _ in chosen.attached] == [
        ("cookie", "sid")
    ]


# Choosing


@pytest.mark.parametrize("scheme", [BEARER, OAUTH, OPENID])
async def test_a_bearer_token_serves_http_oauth_and_openid_connect(scheme: Any) -> None:
    chosen = choose(card({"s": scheme}, {"s": []}), [Bearer("tok")])
    assert await sent(chosen) == (AGENT, {"authorization": "Bearer tok"})


async def test_a_name_and_a_password_are_sent_as_basic() -> None:
    chosen = choose(card({"s": BASIC}, {"s": []}), [Basic("Aladdin", "open sesame")])
    # The example of RFC 7617.
    expected = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert await sent(chosen) == (AGENT, {"authorization": expected})


async def test_a_key_goes_where_the_card_says() -> None:
    def at(location: str) -> ChosenCredential:
        scheme = {"apiKeySecurityScheme": {"location": location, "name": "X-Key"}}
        return choose(card({"k": scheme}, {"k": []}), [ApiKey("a&b")])

    assert await sent(at("header")) == (AGENT, {"x-key": "a&b"})
    assert await sent(at("cookie"), cookie="x=1") == (AGENT, {"cookie": "x=1; X-Key=a&b"})
    assert await sent(at("query")) == (f"{AGENT}?X-Key=a%26b", {})
    assert await sent(at("query"), f"{AGENT}?x=1") == (f"{AGENT}?x=1&X-Key=a%26b", {})


async def test_what_a_credential_says_of_a_header_counts() -> None:
    chosen = choose(card({"s": BEARER}, {"s": []}), [Bearer("tok")])
    assert (await sent(chosen, Authorization="mine", Accept="x"))[1] == {
        "authorization": "Bearer tok",
        "accept": "x",
    }


def test_the_first_requirement_that_can_be_met_is_met_in_full() -> None:
    security = {"b": BEARER, "k": KEY, "a": BASIC}
    asks = card(security, {"a": []}, {"b": [], "k": []}, {"k": []})
    both = choose(asks, [ApiKey("k"), Bearer("t")])
    assert [scheme.name for scheme, _ in both.attached] == ["b", "k"]
    assert both.unused == ()
    one = choose(asks, [ApiKey("k")])
    assert [scheme.name for scheme, _ in one.attached] == ["k"]


def test_the_scopes_of_the_requirement_come_with_its_scheme() -> None:
    chosen = choose(card({"o": OAUTH}, {"o": ["read", "write"]}), [Bearer("t")])
    assert chosen.attached[0][0].scopes == ("read", "write")


def test_a_credential_for_a_named_scheme_serves_no_other() -> None:
    security = {"one": KEY, "two": KEY}
    one, two = ApiKey("1", scheme="one"), ApiKey("2", scheme="two")
    chosen = choose(card(security, {"one": [], "two": []}), [two, one])
    assert [(scheme.name, used) for scheme, used in chosen.attached] == [("one", one), ("two", two)]


def test_missing_credentials_name_the_schemes_and_what_helps() -> None:
    asks = card({"b": BEARER, "k": KEY, "o": OAUTH}, {"b": [], "k": []}, {"o": []})
    with pytest.raises(CredentialsMissing) as caught:
        choose(asks, [Basic("a", "b")])
    assert caught.value.facts == {"schemes": "b,k,o", "kinds": "bearer,apiKey,oauth2"}
    for part in ("'b' and 'k' or 'o'", "--bearer", "--api-key", "auth login"):
        assert part in caught.value.public


@pytest.mark.parametrize(
    "requirement",
    [
        None,
        "b",
        {"schemes": None},
        {"schemes": "b"},
        {"other": {}},
        {"schemes": {"b": {"list": 1}}},
    ],
)
def test_a_requirement_that_cannot_be_read_does_not_pass_for_none(requirement: Any) -> None:
    odd = card({"b": BEARER})
    odd.security_requirements.append(requirement)
    with pytest.raises(CredentialsMissing, match="in a form we cannot read"):
        choose(odd, [Bearer("t")])


def test_a_requirement_of_an_undeclared_scheme_cannot_be_met() -> None:
    with pytest.raises(CredentialsMissing, match="of a kind we do not speak"):
        choose(card({}, {"ghost": []}), [Bearer("t")])


def test_nothing_is_sent_to_an_agent_that_asks_for_nothing_and_the_caller_is_told() -> None:
    given = Bearer("t")
    assert choose(card({}), [given]) == ChosenCredential((), (given,))
    assert choose(card({"k": KEY}), [given]) == ChosenCredential((), (given,))
    assert choose(card({}), []) == ChosenCredential()


def test_schemes_that_no_requirement_names_get_the_credentials_that_fit() -> None:
    given = Bearer("t"), Basic("a", "b")
    chosen = choose(card({"k": KEY, "b": BEARER}), given)
    assert [(scheme.name, used) for scheme, used in chosen.attached] == [("b", given[0])]
    assert chosen.unused == (given[1],)


def test_an_optional_requirement_is_met_if_it_can_be() -> None:
    asks = card({"b": BEARER}, {}, {"b": []})
    given = Bearer("t")
    assert [used for _, used in choose(asks, [given]).attached] == [given]
    assert choose(asks, []) == ChosenCredential()
    key = ApiKey("k")
    assert choose(asks, [key]) == ChosenCredential((), (key,))


def test_what_is_given_by_hand_comes_before_a_stored_login() -> None:
    asks = card({"o": OAUTH, "k": KEY}, {"o": []}, {"k": []})
    stored, given = Stored(), ApiKey("k")
    assert [used for _, used in choose(asks, [stored, given], AGENT).attached] == [given]
    assert [used for _, used in choose(asks, [stored], AGENT).attached] == [stored]
    # A login that is not needed is nothing to warn of.
    assert choose(card({}), [stored], AGENT) == ChosenCredential()


def test_a_login_for_another_agent_is_not_chosen() -> None:
    asks = card({"o": OAUTH}, {"o": []})
    with pytest.raises(CredentialsMissing):
        choose(asks, [Stored("https://other.example")], AGENT)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('Bearer realm="x"', "bearer"),
        ("bearer", "bearer"),
        ('Digest realm="a, Basic b", nonce="n", Bearer realm="x"', "bearer"),
        ('Digest realm="Bearer x"', ""),
        ('Digest realm="a, Bearer b"', ""),
        ("Basic", ""),
        ("", ""),
    ],
)
def test_a_challenge_names_what_answers_it(header: str, name: str) -> None:
    given = Bearer("t")
    chosen = challenged(header, [given])
    assert [scheme.name for scheme, _ in chosen.attached] == ([name] if name else [])
    assert chosen.unused == (() if name else (given,))


def test_a_refusal_is_heard_by_every_credential() -> None:
    heard: list[str] = []

    class Hearing(Bearer):
        def refused(self) -> bool:
            heard.append(self.token)
            return self.token == "a"

    scheme = Scheme("s", "bearer")
    assert ChosenCredential(((scheme, Hearing("a")), (scheme, Hearing("b")))).refused()
    assert heard == ["a", "b"]
    assert not ChosenCredential(((scheme, Bearer("a")),)).refused()


# Where they go


async def test_a_request_to_a_stranger_is_refused_if_it_would_carry_a_credential() -> None:
    origins = Origins(["agent.example"])
    chosen = choose(card({"s": BEARER}, {"s": []}), [Bearer("tok")])
    for url in ("https://other.example/", "https://agent.example@evil.example/", ""):
        with pytest.raises(CredentialsMissing):
            await chosen.attach(url, NoHttp(), origins)
        # Where there is nothing to keep, there is nothing to check.
        assert (await ChosenCredential().attach(url, NoHttp(), origins)).headers == {}


# Secrets


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bearer(""),
        lambda: Bearer("a b"),
        lambda: Bearer("tok\r\nX: y"),
        lambda: Bearer("tok\n"),
        lambda: Bearer("Bearer tok"),
        lambda: Bearer("t\u00f6k"),
        lambda: ApiKey(""),
        lambda: ApiKey("key\n"),
        lambda: ApiKey("a\x00b"),
        lambda: ApiKey(" key"),
        lambda: Basic("a:b", "c"),
        lambda: Basic("a", "b\n"),
    ],
)
def test_a_value_that_would_be_more_than_a_value_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "tok" not in str(caught.value).split()


async def test_a_key_that_no_cookie_can_hold_is_not_sent_as_one() -> None:
    scheme = {"apiKeySecurityScheme": {"location": "cookie", "name": "sid"}}
    for key in ("a;b", "a b", 'a"b', "\u00e4"):
        with pytest.raises(CredentialsMissing, match="cookie") as caught:
            await sent(choose(card({"k": scheme}, {"k": []}), [ApiKey(key)]))
        assert key not in caught.value.public


async def test_no_secret_is_shown_when_an_object_is_printed() -> None:
    given = [Bearer("hunter2"), ApiKey("hunter2"), Basic("me", "hunter2")]
    given.append(ClientCertificate("cert.pem", "key.pem", "hunter2"))
    asks = card({"b": BEARER, "k": KEY, "a": BASIC, "m": MTLS})
    chosen = choose(asks, given)
    attached = await chosen.attach(AGENT, NoHttp(), Origins([AGENT]))
    assert "hunter2" in str(attached.headers)
    shown = f"{given!r} {chosen!r} {attached!r} {[str(item) for item in given]}"
    assert "hunter2" not in shown
    assert "'me'" in shown


def test_identities_tell_callers_apart_and_do_not_tell_the_secret() -> None:
    given = [Bearer("a"), Bearer("b"), ApiKey("a"), Basic("a", "b"), Basic("ab", "")]
    identities = [credential.identity for credential in given]
    assert len(set(identities)) == len(given)
    assert Bearer("a").identity == identities[0]
    assert all(len(identity) == 32 for identity in identities)
    assert fingerprint("a", "bc") != fingerprint("ab", "c")
    scheme = Scheme("s", "bearer")
    assert ChosenCredential().identity == ""
    pair = ((scheme, given[0]), (scheme, given[2]))
    assert ChosenCredential(pair).identity == ChosenCredential(pair[::-1]).identity


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    with pytest.raises(ConfigError, match="client certificate or its key"):
        ClientCertificate(missing).context()
    with pytest.raises(ConfigError, match="CA certificates"):
        ClientCertificate().context(missing)
    with pytest.raises(ConfigError, match="No such file"):
        _ = ClientCertificate(missing).identity
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NOTHING-----\n")
    with pytest.raises(ConfigError, match="client certificate or its key"):
        ClientCertificate(garbage).context()


# Certificates


class FolderAuthority:
    """Signs certificates into the folder of a test; their keys take a password."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority()
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._authority.pem)

    def make(self, name: str, password: str) -> Files:
        """Return a certificate for this machine or a client on it."""
        issued = self._authority.issue(LOOPBACK, common_name=name, uses=())
        return issued.save_files(self._folder, name, password)


@asynccontextmanager
async def strict(authority: FolderAuthority) -> AsyncIterator[str]:
    """Serve the name in the caller's certificate, to callers that have one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    files = authority.make("server", "server's")
    context.load_cert_chain(*files, password="server's")
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        subject = writer.get_extra_info("peercert")["subject"]
        name = dict(pair for (pair,) in subject)["commonName"].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(name) + name)
        await writer.drain()

    async with listening(answer, tls=context) as port:
        yield f"https://127.0.0.1:{port}/"


async def test_a_certificate_is_shown_by_tls_to_an_agent_that_asks_for_it(tmp_path: Path) -> None:
    authority = FolderAuthority(tmp_path)
    certificate = ClientCertificate(*authority.make("caller", "hunter2"), "hunter2")
    chosen = choose(card({"m": MTLS}, {"m": []}), [certificate])
    async with strict(authority) as url:
        attached = await chosen.attach(url, NoHttp(), Origins([url]))
        assert attached.onto({}) == (url, {})
        assert await within(shown(url, certificate.context(authority.file))) == b"caller"
        with pytest.raises(EgressFailed):
            await within(shown(url, ClientCertificate().context(authority.file)))
    assert certificate.identity != ClientCertificate(authority.file).identity


async def shown(url: str, tls: ssl.SSLContext) -> bytes:
    """Return what a server answers to a caller with this context."""
    async with (
        Egress(policy=Anywhere(), tls=tls) as http,
        http.open("GET", url, headers={}) as exchange,
    ):
        return (await read_all(exchange, 100))[0]


def test_a_wrong_password_is_an_error_and_not_a_question(tmp_path: Path) -> None:
    files = FolderAuthority(tmp_path).make("caller", "hunter2")
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="client certificate or its key") as caught:
            ClientCertificate(*files, password).context()
        assert "wrong" not in str(caught.value)
