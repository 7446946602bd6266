"""Tokens by hand against real keys: which open the door, which do not, and why they do not."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import ConfigError
from dragoman.security.authentication import CredentialRefused, Denied, Evidence, Gatekeeper, Pass
from dragoman.security.jwt.authenticator import JwtAuthenticator
from dragoman.security.jwt.form import read_token
from dragoman.security.jwt.verification_keys import from_jwks, from_secret, holds
from tests.security.jwt.cases import CERTIFICATE, NAMES, admitted, bearer, refused
from tests.security.jwt.minting import (
    ABSENT,
    AUDIENCE,
    ISSUER,
    KEYS,
    NOW,
    SECRET,
    jwk,
    jwks,
    number,
    pem,
    token,
)

pytestmark = pytest.mark.anyio
Make = Callable[..., JwtAuthenticator]
PUBLIC_KEY = b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 64 + b"\n-----END PUBLIC KEY-----\n"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a way to make an authenticator, with the issuer's keys in a file."""

    def made(keys: Any = None, **more: Any) -> JwtAuthenticator:
        if not more.keys() & {"secret", "jwks_url", "key_file"}:
            content = keys if isinstance(keys, bytes) else json.dumps(keys or jwks()).encode()
            more["key_file"] = tmp_path / "keys"
            more["key_file"].write_bytes(content)
        values = {"issuer": ISSUER, "audience": [AUDIENCE], "now": lambda: float(NOW)}
        return JwtAuthenticator(**values | more)

    return made


async def look(
    authenticator: JwtAuthenticator, text: str, certificate: bytes | None = None
) -> Pass:
    await authenticator.start()
    found = await authenticator.authenticate(Evidence(bearer(text), certificate))
    assert found is not None
    return found


async def refusal(
    authenticator: JwtAuthenticator, text: str, certificate: bytes | None = None
) -> str:
    with pytest.raises(CredentialRefused) as raised:
        await look(authenticator, text, certificate)
    return raised.value.reason


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_not_let_in(name: str, make: Make) -> None:
    case = refused()[name]
    authenticator = make()
    await authenticator.start()
    evidence = Evidence(case.headers, CERTIFICATE)
    if case.reason:
        with pytest.raises(CredentialRefused) as raised:
            await authenticator.authenticate(evidence)
        assert raised.value.reason == case.reason
    else:
        assert await authenticator.authenticate(evidence) is None
    with pytest.raises(Denied) as denied:
        await Gatekeeper([authenticator], lambda: NOW).admit(evidence)
    assert denied.value.public == "Authentication is required"


def test_every_case_has_a_name_and_there_are_at_least_the_42_that_were_asked_for() -> None:
    assert list(refused()) and set(refused()) == set(NAMES)
    assert len(NAMES) >= 42


async def test_what_is_right_is_let_in(make: Make) -> None:
    authenticator = make()
    await authenticator.start()
    gatekeeper = Gatekeeper([authenticator], lambda: NOW)
    for case in admitted():
        found = await gatekeeper.admit(Evidence(case.headers, CERTIFICATE))
        caller = found.caller
        assert caller.owner == f"jwt:{ISSUER}#alice" and caller.authenticated, case.name
        assert caller.scopes == {"read", "write"} and caller.tenant is None, case.name
        assert await gatekeeper.admit(Evidence(case.headers, CERTIFICATE)) is found, case.name


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_shared_secret_checks_what_was_made_with_it(algorithm: str, make: Make) -> None:
    found = await look(make(secret=SECRET), token("secret", header={"alg": algorithm}))
    assert found.caller.owner == f"jwt:{ISSUER}#alice"


async def test_a_secret_of_32_bytes_is_for_the_shortest_algorithm_alone(make: Make) -> None:
    authenticator = make(secret=SECRET[:32])
    assert "not known" in await refusal(authenticator, token("secret", header={"alg": "HS384"}))


async def test_with_a_shared_secret_no_public_key_is_believed(make: Make) -> None:
    reason = await refusal(make(secret=SECRET), token("rsa"))
    assert reason == "the algorithm is not accepted"


@pytest.mark.parametrize("kid", KEYS)
async def test_a_public_key_may_come_as_pem_and_go_by_any_name(kid: str, make: Make) -> None:
    authenticator = make(pem(kid))
    assert (await look(authenticator, token(kid))).caller.authenticated
    assert (await look(authenticator, token(kid, header={"kid": ABSENT}))).caller.authenticated


async def test_of_two_keys_that_fit_neither_is_tried(make: Make) -> None:
    keys = {"keys": [jwk("ec", kid=ABSENT), jwk("ec-other", kid=ABSENT)]}
    assert "several" in await refusal(make(keys), token("ec"))


async def test_the_only_key_that_fits_needs_no_name(make: Make) -> None:
    assert (await look(make(jwks("rsa", "ec")), token("ec", header={"kid": ABSENT}))).ref


# Each with its members, or with what is instead of some of those of a good key.
USELESS: dict[str, Any] = {
    "for encryption": ("ec", {"use": "enc"}),
    "for signing alone": ("ec", {"key_ops": ["sign"]}),
    "operations that are no list": ("ec", {"key_ops": "verify"}),
    "for another algorithm": ("ec", {"alg": "ES384"}),
    "a name that is a number": ("ec", {"kid": 5}),
    "a point that is none": ("ec", {"x": "AAAA"}),
    "private": ("ec", {"d": "AAAA"}),
    "short": ("rsa-short", {"kid": "ec"}),
    "for key agreement": ("ed", {"crv": "X25519", "kid": "ec"}),
    "a secret": {"kty": "oct", "k": "AAAA", "kid": "ec"},
    "a kind that is a list": {"kty": ["EC"], "kid": "ec"},
    "a text": "ec",
    "null": None,
}


@pytest.mark.parametrize("name", USELESS)
async def test_a_key_of_no_use_is_left_out(name: str, make: Make) -> None:
    useless = USELESS[name]
    kid, entry = "ec", useless
    if isinstance(useless, tuple):
        kid, entry = useless[0], jwk(useless[0], **useless[1])
    authenticator = make({"keys": [entry, jwk("ec-384")]})
    assert (await look(authenticator, token("ec-384"))).ref
    assert "not known" in await refusal(authenticator, token(kid, header={"kid": "ec"}))


@pytest.mark.parametrize(("bits", "count"), [(1024, 0), (2048, 1), (8192, 1), (8200, 0)])
def test_an_rsa_key_is_neither_short_nor_a_burden(bits: int, count: int) -> None:
    # Nobody has the factors of such a number, and nobody needs them to check a signature.
    entry = {"kty": "RSA", "n": number(2 ** (bits - 1) + 1), "e": "AQAB", "kid": "rsa"}
    assert len(from_jwks(json.dumps({"keys": [entry]}).encode())) == count


async def test_the_algorithms_can_be_fewer(make: Make) -> None:
    authenticator = make(algorithms=["EdDSA"])
    assert (await look(authenticator, token("ed"))).ref
    assert "not accepted" in await refusal(authenticator, token("ec"))


async def test_a_type_that_is_asked_for_must_be_there(make: Make) -> None:
    authenticator = make(token_type="at+jwt")
    assert (await look(authenticator, token(header={"typ": "at+jwt"}))).ref
    assert (await look(authenticator, token(header={"typ": "application/at+jwt"}))).ref
    for other in ("JWT", "logout+jwt", "id_token+jwt", "", ABSENT):
        assert "type" in await refusal(authenticator, token(header={"typ": other}))


async def test_a_client_that_is_not_accepted_is_refused(make: Make) -> None:
    authenticator = make(parties=["app"])
    assert (await look(authenticator, token(azp="app"))).ref
    assert (await look(authenticator, token(client_id="app"))).ref
    for change in ({"azp": "other"}, {}, {"azp": "other", "client_id": "app"}):
        assert "client" in await refusal(authenticator, token(**change))


async def test_a_bound_token_needs_its_certificate(make: Make) -> None:
    bound = next(case for case in admitted() if case.name.startswith("cnf"))
    text = bound.headers[0][1].decode().removeprefix("Bearer ")
    assert (await look(make(), text, CERTIFICATE)).ref
    assert "none was shown" in await refusal(make(), text)
    assert "another" in await refusal(make(), text, b"another")


async def test_a_tenant_is_named_or_the_token_refused(make: Make) -> None:
    authenticator = make(tenant_claim="tenant")
    assert (await look(authenticator, token(tenant="acme"))).caller.tenant == "acme"
    for wrong in (ABSENT, "", 5, None, ["acme"], "two words", "x" * 257):
        assert "tenant" in await refusal(authenticator, token(tenant=wrong))


async def test_an_owner_may_be_named_by_another_claim(make: Make) -> None:
    found = await look(make(owner_claim="client_id"), token(client_id="app", sub=ABSENT))
    assert found.caller.owner == f"jwt:{ISSUER}#app"


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b  c"}, {"a", "b", "c"}),
        ({"scope": ["a", "b"]}, {"a", "b"}),
        ({"scope": ABSENT, "scp": ["a", "b"]}, {"a", "b"}),
        ({"scope": ABSENT, "scp": "a b"}, {"a", "b"}),
        ({"scope": "a", "scp": ["b"]}, {"a", "b"}),
        ({"scope": ABSENT}, set()),
    ],
    ids=["a text", "a list", "scp, a list", "scp, a text", "both", "none"],
)
async def test_scopes_are_read_in_every_usual_form(
    claims: dict[str, Any], scopes: set[str], make: Make
) -> None:
    assert (await look(make(), token(**claims))).caller.scopes == scopes


async def test_no_two_subjects_of_two_issuers_are_the_same_owner(make: Make) -> None:
    issuers = ["https://a", "https://a#b", "https://a%23b", "https://a#b%23c"]
    subjects = ["c", "b#c", "b%23c", "%", "#", "é", "e\u0301", "a b", "A"]
    owners = {
        (await look(make(issuer=issuer), token(iss=issuer, sub=subject))).caller.owner
        for issuer in issuers
        for subject in subjects
    }
    assert len(owners) == len(issuers) * len(subjects)
    assert all(owner.isascii() and owner.count("#") == 1 for owner in owners)


async def test_a_token_is_remembered_until_it_ends_and_no_longer(make: Make) -> None:
    moment = [float(NOW)]
    authenticator = make(now=lambda: moment[0])
    await authenticator.start()
    gatekeeper = Gatekeeper([authenticator], lambda: moment[0])
    evidence = Evidence(bearer(token(exp=NOW + 10)))
    found = await gatekeeper.admit(evidence)
    assert found.until == NOW + 70
    moment[0] = NOW + 69.9
    assert await gatekeeper.admit(evidence) is found and gatekeeper.holds(found)
    moment[0] = NOW + 70
    assert not gatekeeper.holds(found)
    with pytest.raises(Denied, match="Authentication is required") as denied:
        await gatekeeper.admit(evidence)
    assert denied.value.reason == "jwt: the token has expired" and denied.value.subject == "alice"


async def test_whatever_goes_wrong_keeps_callers_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("no time, no keys")

    evidence = Evidence(bearer(token()))
    without_time, without_keys = make(now=broken), make()
    await without_time.start()
    await without_keys.start()
    gatekeeper = Gatekeeper([without_keys], lambda: NOW)
    found = await gatekeeper.admit(evidence)
    monkeypatch.setattr("dragoman.security.jwt.key_sources.FileKeys.current", broken)
    assert not gatekeeper.holds(found)
    for one in (without_time, without_keys):
        with pytest.raises(Denied) as denied:
            await Gatekeeper([one], lambda: NOW).admit(evidence)
        assert denied.value.reason == "jwt: it failed"


# RFC 7515, A.1 and A.3.
_PAYLOAD = (
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
)
PUBLISHED = {
    "HS256": (
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
        f"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{_PAYLOAD}"
        ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    ),
    "ES256": (
        {
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        },
        f"eyJhbGciOiJFUzI1NiJ9.{_PAYLOAD}"
        ".DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    ),
}


@pytest.mark.parametrize("algorithm", PUBLISHED)
def test_the_tokens_of_the_standard_hold(algorithm: str) -> None:
    given, text = PUBLISHED[algorithm]
    if isinstance(given, str):
        ring = from_secret(base64.urlsafe_b64decode(given + "=="))
    else:
        ring = from_jwks(json.dumps({"keys": [given]}).encode())
    read = read_token(text)
    key = ring.key_for(read)
    assert key is not None and holds(key, read) and read.claims["iss"] == "joe"
    assert not holds(key, msgspec.structs.replace(read, signed=read.signed + b"x"))


async def test_a_token_that_is_no_jwt_is_left_to_others(make: Make) -> None:
    authenticator = make()
    await authenticator.start()
    assert await authenticator.authenticate(Evidence(bearer("an-opaque-token"))) is None


async def test_a_refusal_names_whom_the_token_claims_to_be_in_visible_letters(make: Make) -> None:
    with pytest.raises(CredentialRefused) as raised:
        await look(make(), token(sub="a\x1b[2J\n" + "b" * 500))
    assert raised.value.subject.startswith("a?[2J?bb") and len(raised.value.subject) == 128


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"issuer": ""}, "issuer"),
        ({"audience": []}, "audience"),
        ({"audience": [""]}, "audience"),
        ({"secret": b"short"}, "at least 32 bytes"),
        ({"secret": PUBLIC_KEY}, "of another kind"),
        ({"secret": SECRET, "jwks_url": "https://a.example"}, "one way"),
        ({"algorithms": ["HS256"]}, "choose among RS256"),
        ({"algorithms": ["none"]}, "'none'"),
        ({"secret": SECRET, "algorithms": ["RS256"]}, "choose among HS256"),
        ({"token_type": "JWT"}, "at\\+jwt"),
        ({"leeway": 3601}, "leeway"),
        ({"owner_claim": ""}, "sub"),
        ({"jwks_url": "http://issuer.example/jwks"}, "over https"),
        ({"jwks_url": "http://10.0.0.1/jwks"}, "over https"),
        ({"jwks_url": "file:///etc/passwd"}, "no address"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_are_refused(
    wrong: dict[str, Any], says: str, make: Make
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**wrong)


def test_http_is_for_this_machine_or_for_those_who_allow_it(make: Make) -> None:
    for host in ("127.0.0.1:9", "localhost:9", "[::1]:9"):
        make(jwks_url=f"http://{host}/jwks")
    make(jwks_url="http://10.0.0.1/jwks", allow_private=True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"neither", "neither a JWKS nor PEM"),
        (b'{"keys": 1}', "list of keys"),
        (json.dumps({"keys": []}).encode(), "no public key"),
        (b"[" * 100_000, "nested"),
        (b'{"keys":' + b"[" * 500 + b"]" * 500 + b"}", "nested"),
        (json.dumps({"keys": [{}] * 101}).encode(), "more than 100"),
        (b"-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----\n", "private key"),
        (b"-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----\n", "of no use"),
        (b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n", "certificate"),
        (b"x" * 2_000_000, "at most 1048576 bytes"),
    ],
    ids=[
        "text",
        "no list",
        "empty",
        "deep",
        "deep keys",
        "many",
        "private",
        "broken",
        "certificate",
        "large",
    ],
)
async def test_a_file_without_keys_is_refused(content: bytes, says: str, make: Make) -> None:
    with pytest.raises(ConfigError, match=f"keys: .*{says}"):
        await make(content).start()


async def test_a_file_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: cannot be read"):
        await make(key_file="gone.json").start()


def test_the_card_describes_it(make: Make) -> None:
    jwt = make()
    assert jwt.name == "jwt" and jwt.challenge == 'Bearer realm="dragoman"' and jwt.flows() == {}
    assert jwt.schemes[jwt.name] == {
        "httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}
    }
    oidc = JwtAuthenticator(issuer=ISSUER + "/", audience=["a"])
    url = f"{ISSUER}/.well-known/openid-configuration"
    assert oidc.name == "oidc"
    assert oidc.schemes[oidc.name] == {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}


def test_the_card_describes_each_flow_in_a_scheme_of_its_own(make: Make) -> None:
    oauth = make(
        token_url="https://i.example/token",
        authorization_url="https://i.example/authorize",
        device_url="https://i.example/device",
        scopes={"read": "Reads"},
    )
    common = {"tokenUrl": "https://i.example/token", "scopes": {"read": "Reads"}}
    flows = {
        "clientCredentials": common,
        "authorizationCode": {"authorizationUrl": "https://i.example/authorize", **common},
        "deviceCode": {"deviceAuthorizationUrl": "https://i.example/device", **common},
    }
    assert oauth.flows() == flows
    assert oauth.schemes[oauth.name] == {
        "oauth2SecurityScheme": {"flows": {"clientCredentials": flows["clientCredentials"]}}
    }
    assert list(oauth.schemes) == ["oauth2", "oauth2__authorizationCode", "oauth2__deviceCode"]
    for scheme in oauth.schemes.values():
        ((kind, flow),) = scheme["oauth2SecurityScheme"]["flows"].items()
        assert flows[kind] == flow


def test_nothing_that_is_printed_has_the_secret(make: Make) -> None:
    authenticator = make(secret=b"HUSH" * 16)
    shown = repr(authenticator) + repr(vars(authenticator)) + str(authenticator)
    assert "HUSH" not in shown


def test_without_the_extra_one_is_told_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['joserfc'] = None\n"
        "from dragoman.security.jwt.authenticator import JwtAuthenticator\n"
        "from dragoman.errors import ConfigError\n"
        "try: JwtAuthenticator(issuer='https://i.example', audience=['a'])\n"
        "except ConfigError as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'dragoman[jwt]'" in ran.stdout, ran.stderr


def test_the_libraries_are_loaded_when_they_are_needed() -> None:
    program = "import sys, dragoman.security.jwt.authenticator; print('joserfc' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "False", ran.stderr
