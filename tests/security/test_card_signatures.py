"""Signatures of cards: the vectors of the standards, every member tampered with, keys of all kinds,
and the official library as signer and as verifier."""

import base64
import copy
import json
import subprocess
import textwrap
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dragoman.errors import CardInvalid, ConfigError
from dragoman.security.card_keys import KeySet
from dragoman.security.card_signatures import (
    SignatureVerdict,
    canonical,
    key_urls,
    sign,
    verify,
)
from tests.peers.libraries import python_of

NOW = 1_800_000_000.0
FLOWS = {
    "authorizationCode": {
        "authorizationUrl": "https://id.example/authorize",
        "tokenUrl": "https://id.example/token",
        "refreshUrl": "https://id.example/refresh",
        "scopes": {"read": "Reads"},
        "pkceRequired": True,
    }
}
CARD: dict[str, Any] = {
    "name": "Weather",
    "description": "Tells the weather.",
    "supportedInterfaces": [
        {
            "url": "https://weather.example/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
            "tenant": "north",
        },
        {
            "url": "https://weather.example/rest",
            "protocolBinding": "HTTP+JSON",
            "protocolVersion": "1.0",
        },
    ],
    "provider": {"url": "https://example.com", "organization": "Example"},
    "version": "1.2.3",
    "documentationUrl": "https://weather.example/docs",
    "capabilities": {
        "streaming": True,
        "pushNotifications": False,
        "extensions": [
            {
                "uri": "urn:example:units",
                "description": "Units",
                "required": True,
                "params": {"system": "metric", "digits": 2, "deep": {"list": [1.5, None, ""]}},
            }
        ],
        "extendedAgentCard": True,
    },
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
        "oauth": {"oauth2SecurityScheme": {"flows": FLOWS, "oauth2MetadataUrl": "https://m.ex"}},
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://id.example/o"}},
        "tls": {"mtlsSecurityScheme": {"description": "Ours"}},
    },
    "securityRequirements": [{"schemes": {"oauth": {"list": ["read"]}}}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain", "application/json"],
    "skills": [
        {
            "id": "forecast",
            "name": "Forecast",
            "description": "Tomorrow's weather.",
            "tags": ["weather"],
            "examples": ["Rome?"],
            "inputModes": ["text/plain"],
            "outputModes": ["application/json"],
            "securityRequirements": [{"schemes": {"key": {"list": ["x"]}}}],
        }
    ],
    "iconUrl": "https://weather.example/icon.png",
}


@pytest.fixture(scope="module")
def key() -> ECKey:
    return ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})


@pytest.fixture(scope="module")
def keys(key: ECKey) -> KeySet:
    return KeySet.decode({"keys": [key.as_dict(private=False)]})


def pem(key: ECKey | OKPKey | RSAKey, *, private: bool = True) -> bytes:
    return key.as_pem(private=private)


def protected(verdict_of: dict[str, Any], index: int = 0) -> dict[str, Any]:
    text = verdict_of["signatures"][index]["protected"]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def with_header(key: ECKey, header: dict[str, Any] | bytes) -> dict[str, Any]:
    """Return the card signed truly, under a protected header of the test's choosing."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = base64.urlsafe_b64encode(text).rstrip(b"=").decode()
    payload = base64.urlsafe_b64encode(canonical(CARD)).rstrip(b"=").decode()
    return {**CARD, "signatures": [{"protected": head, "signature": raw(key, f"{head}.{payload}")}]}


def raw(key: ECKey, text: str) -> str:
    from joserfc.jws import JWSRegistry

    signature = JWSRegistry.algorithms["ES256"].sign(text.encode(), key)
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


# Canonical form


@pytest.mark.requirement("4.7-sign")
def test_the_specifications_own_vector_comes_out_to_the_letter() -> None:
    fragment = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
    }
    assert canonical(fragment) == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},'
        b'"description":"","name":"Example Agent","skills":[]}'
    )


def test_strings_keys_and_numbers_are_written_as_rfc_8785_wants_them() -> None:
    params = {
        "numbers": [333333333.33333329, 1e30, 4.5, 2e-3, 1e-27, 1.0, -0.0, 1e21, 10**21, 2**60],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "\u20ac": 1,
        "\r": 2,
        "\ufb33": 3,
        "1": 4,
        "\U0001f600": 5,
        "\u0080": 6,
        "\u00f6": 7,
        "literals": [None, True, False],
    }
    card = {"name": "x", "capabilities": {"extensions": [{"uri": "u", "params": params}]}}
    expected = (
        '{"\\r":2,"1":4,"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27,1,0,1e+21,1e+21,1152921504606847000],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/",'
        '"\u0080":6,"\u00f6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}'
    )
    assert expected.encode() in canonical(card)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        # No presence: what is empty goes.
        ({"securitySchemes": {}, "securityRequirements": []}, {}),
        (
            {"supportedInterfaces": [{"url": "", "tenant": ""}]},
            {"supportedInterfaces": [{"url": ""}]},
        ),
        (
            {"capabilities": {"extensions": [{"uri": "", "description": "", "required": False}]}},
            {"capabilities": {"extensions": [{}]}},
        ),
        # Presence: what is set stays, null is unset.
        ({"documentationUrl": "", "iconUrl": None}, {"documentationUrl": ""}),
        ({"capabilities": {"streaming": False}}, {"capabilities": {"streaming": False}}),
        ({"provider": {}}, {"provider": {}}),
        (
            {"securitySchemes": {"m": {"mtlsSecurityScheme": {"description": ""}}}},
            {"securitySchemes": {"m": {"mtlsSecurityScheme": {}}}},
        ),
        # Required: stays even when it is empty.
        ({"skills": [], "name": ""}, {"skills": [], "name": ""}),
        (
            {"skills": [{"tags": [], "examples": [], "name": ""}]},
            {"skills": [{"tags": [], "name": ""}]},
        ),
        # Nobody looks into a Struct.
        (
            {"capabilities": {"extensions": [{"params": {"a": "", "b": [], "c": {"d": False}}}]}},
            {"capabilities": {"extensions": [{"params": {"a": "", "b": [], "c": {"d": False}}}]}},
        ),
        # Members of no card of 1.0, and the signatures themselves, are not covered.
        ({"name": "x", "url": "https://a.example", "x-more": 1, "signatures": [1]}, {"name": "x"}),
        ({"default_input_modes": ["a"]}, {"defaultInputModes": ["a"]}),
    ],
)
def test_members_are_kept_and_dropped_by_the_rules_of_presence(
    card: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert canonical(card) == rfc8785.dumps(expected)


@pytest.mark.parametrize("value", [5, [], "x", {"params": 1}])
def test_a_card_of_another_shape_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(CardInvalid):
        canonical({"name": "x", "capabilities": value if value != [] else [1]} | {"skills": value})


# Verdicts


def test_a_card_signed_by_us_is_verified_and_says_what_is_covered(key: ECKey, keys: KeySet) -> None:
    signed = sign(CARD, key, "k1")
    verdict = verify(signed, keys)
    assert (verdict.kind, verdict.form, verdict.kid) == ("verified", "strict", "k1")
    assert verdict.covered == CARD
    assert protected(signed) == {"alg": "ES256", "kid": "k1", "typ": "JOSE"}
    assert "signatures" not in CARD


def test_what_is_not_covered_is_not_in_the_verdicts_card(key: ECKey, keys: KeySet) -> None:
    added = {"url": "https://evil.example", "security": [], "authentication": {"schemes": ["x"]}}
    verdict = verify({**sign(CARD, key, "k1"), **added}, keys)
    assert verdict.kind == "verified"
    assert not added.keys() & verdict.covered.keys()


def test_a_card_without_signatures_is_absent(keys: KeySet) -> None:
    assert verify(CARD, keys) == SignatureVerdict("absent")
    assert verify({**CARD, "signatures": []}, keys) == SignatureVerdict("absent")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return the place of every value in a card, whole objects and lists as well."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict | list):
        return type(value)()
    if isinstance(value, str):
        return value + "\u200b"
    return 7 if value is None else value + 1


def test_no_member_can_be_changed_or_taken_away_unnoticed(key: ECKey, keys: KeySet) -> None:
    signed = sign(CARD, key, "k1")
    found = list(places(CARD))
    assert len(found) >= 80
    for place in found:
        for tamper in ("change", "remove"):
            card = copy.deepcopy(signed)
            inner: Any = card
            for step in place[:-1]:
                inner = inner[step]
            if tamper == "change":
                inner[place[-1]] = changed(inner[place[-1]])
            else:
                del inner[place[-1]]
            verdict = verify(card, keys)
            assert verdict.kind == "unverifiable", (place, tamper)
            assert verdict.reason == "the signature does not fit the card"


def test_nothing_that_counts_can_be_added_unnoticed(key: ECKey, keys: KeySet) -> None:
    signed = sign({name: CARD[name] for name in CARD if name != "iconUrl"}, key, "k1")
    assert verify(signed, keys).kind == "verified"
    more = {"iconUrl": "https://evil.example/i"}
    interface = {**CARD["supportedInterfaces"][0], "url": "https://evil.example"}
    wider = {"supportedInterfaces": [interface, *CARD["supportedInterfaces"]]}
    for added in (more, wider, {"skills": [*CARD["skills"], *CARD["skills"]]}):
        assert verify({**signed, **added}, keys).kind == "unverifiable"


@pytest.mark.requirement("4.7-verify")
def test_one_good_signature_among_bad_ones_is_enough(key: ECKey, keys: KeySet) -> None:
    other = ECKey.generate_key("P-256")
    twice = sign(sign(CARD, other, "k1"), key, "k1")
    assert len(twice["signatures"]) == 2
    assert verify(twice, keys).kind == "verified"
    assert verify(sign(CARD, other, "k1"), keys).kind == "unverifiable"
    junk: list[Any] = [None, 5, {}, {"protected": "!", "signature": "!"}, {"protected": 1}]
    assert verify({**CARD, "signatures": [*junk, *twice["signatures"]]}, keys).kind == "verified"
    assert verify({**CARD, "signatures": junk}, keys).kind == "unverifiable"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"alg": "none", "kid": "k1"}, "algorithm"),
        ({"alg": "None", "kid": "k1"}, "algorithm"),
        ({"alg": "", "kid": "k1"}, "algorithm"),
        ({"alg": "HS256", "kid": "k1"}, "algorithm"),
        ({"alg": "ES256K", "kid": "k1"}, "algorithm"),
        ({"alg": "ES512", "kid": "k1"}, "algorithm"),
        ({"alg": ["ES256"], "kid": "k1"}, "algorithm"),
        ({"kid": "k1"}, "algorithm"),
        ({"alg": "ES384", "kid": "k1"}, "not among those trusted"),
        ({"alg": "RS256", "kid": "k1"}, "not among those trusted"),
        ({"alg": "EdDSA", "kid": "k1"}, "not among those trusted"),
        ({"alg": "ES256", "kid": "k1", "crit": ["exp"], "exp": 1}, "critical"),
        ({"alg": "ES256", "kid": "k1", "crit": []}, "critical"),
        ({"alg": "ES256", "kid": "k1", "b64": False}, "critical"),
        ({"alg": "ES256", "kid": "k2"}, "not among those trusted"),
        ({"alg": "ES256", "kid": "../../dev/null"}, "not among those trusted"),
        ({"alg": "ES256", "kid": ""}, "names no key"),
        ({"alg": "ES256", "kid": 1}, "names no key"),
        ({"alg": "ES256"}, "names no key"),
        (b'{"alg":"ES256","alg":"ES256","kid":"k1"}', "decoded"),
        (b"[]", "no object"),
        (b"{", "decoded"),
        (b"\xff", "decoded"),
        (b"[" * 3000, "decoded"),
    ],
)
def test_a_header_we_do_not_accept_makes_a_true_signature_worthless(
    key: ECKey, keys: KeySet, header: dict[str, Any] | bytes, reason: str
) -> None:
    verdict = verify(with_header(key, header), keys)
    assert verdict.kind == "unverifiable"
    assert reason in verdict.reason


def test_the_header_that_is_refused_differs_from_a_good_one_only_there(
    key: ECKey, keys: KeySet
) -> None:
    assert verify(with_header(key, {"alg": "ES256", "kid": "k1"}), keys).kind == "verified"
    odd = {"alg": "ES256", "kid": "k1", "jwk": {}, "x5u": "https://evil.example", "more": 1}
    assert verify(with_header(key, odd), keys).kind == "verified"


@pytest.mark.parametrize("signature", ["", "AA", "A" * 86, "A" * 9000, "!!", "é", 5, None])
def test_a_signature_that_is_none_does_not_verify(
    key: ECKey, keys: KeySet, signature: object
) -> None:
    signed = sign(CARD, key, "k1")
    signed["signatures"][0]["signature"] = signature
    assert verify(signed, keys).kind == "unverifiable"


def test_more_signatures_than_any_card_has_are_not_looked_at(key: ECKey, keys: KeySet) -> None:
    signed = sign(CARD, key, "k1")
    many = {**signed, "signatures": signed["signatures"] * 17}
    assert "more than 16" in verify(many, keys).reason
    assert verify({**signed, "signatures": "x"}, keys).kind == "unverifiable"


# The forms of others


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        fields = {k: kept for k, v in value.items() if (kept := without_empty(v)) is not None}
        return fields or None
    if isinstance(value, list):
        return [kept for v in value if (kept := without_empty(v)) is not None] or None
    return None if value == "" else value


def signed_over(key: ECKey, card: dict[str, Any], payload: bytes) -> dict[str, Any]:
    head = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"k1"}').rstrip(b"=").decode()
    body = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
    return {**card, "signatures": [{"protected": head, "signature": raw(key, f"{head}.{body}")}]}


SPARSE = {**CARD, "description": "", "skills": [], "name": "Wétter 😀"}


def test_forms_of_other_signers_are_recognised_and_named(key: ECKey, keys: KeySet) -> None:
    cleaned = without_empty(SPARSE)
    verdict = verify(signed_over(key, SPARSE, rfc8785.dumps(cleaned)), keys)
    assert (verdict.kind, verdict.form) == ("verified", "no-empties")

    cleaned["capabilities"]["extensions"][0]["params"]["digits"] = 2.0
    cleaned["capabilities"]["extensions"][0]["params"]["deep"]["list"] = [1.5]
    text = json.dumps(cleaned, sort_keys=True, separators=(",", ":"))
    verdict = verify(signed_over(key, SPARSE, text.encode()), keys)
    assert (verdict.kind, verdict.form) == ("verified", "python")

    odd = {**SPARSE, "x-house": {"b": 1, "a": ""}}
    verdict = verify(signed_over(key, odd, rfc8785.dumps(odd)), keys)
    assert (verdict.kind, verdict.form) == ("verified", "raw")
    assert verdict.covered == odd


def test_of_an_older_card_everything_is_covered(key: ECKey, keys: KeySet) -> None:
    older = {
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "name": "Old",
        "description": "",
        "url": "https://old.example/rpc",
        "version": "1",
        "capabilities": {"extensions": [{"uri": "u", "params": {"n": 2}}]},
        "skills": [],
    }
    cleaned = without_empty(older)
    shorter = {
        k: v for k, v in cleaned.items() if k not in ("protocolVersion", "preferredTransport")
    }
    for payload, form in (
        (rfc8785.dumps(older), "raw"),
        (rfc8785.dumps(cleaned), "no-empties"),
        (json.dumps(shorter, sort_keys=True, separators=(",", ":")).encode(), "python"),
    ):
        signed = signed_over(key, older, payload)
        assert (verify(signed, keys).kind, verify(signed, keys).form) == ("verified", form)
        moved = {**signed, "url": "https://evil.example/rpc"}
        assert verify(moved, keys).kind == "unverifiable"
        assert verify({**signed, "preferredTransport": "GRPC"}, keys).kind == "unverifiable"


def test_a_card_nested_too_deep_is_unverifiable(key: ECKey, keys: KeySet) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    card = sign(CARD, key, "k1")
    card["capabilities"] = {"extensions": [{"uri": "u", "params": deep}]}
    assert verify(card, keys).kind == "unverifiable"
    huge = {**card, "capabilities": {"extensions": [{"params": {"n": 10**400}}]}}
    assert verify(huge, keys).kind == "unverifiable"


# Keys


@pytest.mark.parametrize(
    ("made", "algorithm"),
    [
        (ECKey.generate_key("P-256"), "ES256"),
        (ECKey.generate_key("P-384"), "ES384"),
        (OKPKey.generate_key("Ed25519"), "EdDSA"),
        (RSAKey.generate_key(2048), "RS256"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_key_signs_and_verifies_as_jwk_and_as_pem(
    tmp_path: Path, made: ECKey | OKPKey | RSAKey, algorithm: str
) -> None:
    for private in (made, pem(made), pem(made).decode(), made.as_dict(private=True)):
        signed = sign(CARD, private, "any", jku="https://weather.example/keys")
        assert protected(signed)["alg"] == algorithm
        jwk = {**made.as_dict(private=False), "kid": "any"}
        for content in (
            json.dumps({"keys": [jwk]}).encode(),
            json.dumps(jwk).encode(),
            pem(made, private=False),
            pem(made),
        ):
            file = tmp_path / "keys"
            file.write_bytes(content)
            assert verify(signed, KeySet.load(file)).kind == "verified"


@pytest.mark.parametrize(
    "weak",
    [
        OctKey.generate_key(256),
        ECKey.generate_key("P-521"),
        OKPKey.generate_key("X25519"),
        OKPKey.generate_key("Ed448"),
    ],
)
def test_keys_that_are_not_accepted_neither_sign_nor_verify(weak: Any) -> None:
    with pytest.raises(ConfigError):
        sign(CARD, weak.as_dict(private=True), "k1")


def test_an_rsa_key_that_is_too_short_is_not_accepted() -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    private = short.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with pytest.raises(ConfigError):
        sign(CARD, private, "k1")
    public = short.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(ConfigError):
        KeySet.from_pem(public)
    with warnings.catch_warnings(action="ignore"):
        read = RSAKey.import_key(private)
    with pytest.raises(ConfigError):
        sign(CARD, read, "k1")


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "verified"),
        ({"exp": NOW + 1}, "verified"),
        ({"exp": NOW}, "unverifiable"),
        ({"nbf": NOW + 1}, "unverifiable"),
        ({"nbf": NOW}, "verified"),
        ({"key_ops": ["verify"]}, "verified"),
        ({"alg": "ES256"}, "verified"),
    ],
)
def test_a_key_is_used_in_its_time_alone(key: ECKey, more: dict[str, Any], kind: str) -> None:
    keys = KeySet.decode({"keys": [{**key.as_dict(private=False), "kid": "k1", **more}]})
    assert verify(sign(CARD, key, "k1"), keys, now=NOW).kind == kind


@pytest.mark.parametrize(
    "more",
    [
        {"use": "enc"},
        {"revoked": {"revoked_at": 1}},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"exp": "soon"},
        {"kid": 5},
        {"kty": "XX"},
        {"x": "!!"},
        {"crv": "P-384"},
    ],
)
def test_a_key_of_no_use_is_left_out_of_a_set(key: ECKey, more: dict[str, Any]) -> None:
    bad = {**key.as_dict(private=False), **more}
    with pytest.raises(ConfigError):
        KeySet.decode({"keys": [bad]})
    assert len(KeySet.decode({"keys": [bad, 5, key.as_dict(private=False)]})) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b'{"keys":5}', b'{"keys":[]}', b"\xff"]
)
def test_a_file_without_keys_is_a_mistake_of_the_user(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        KeySet.load(file)
    with pytest.raises(ConfigError):
        KeySet.load(tmp_path / "none")
    with pytest.raises(ConfigError):
        KeySet.from_pem(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")


def test_a_certificate_is_a_key_for_as_long_as_it_is_valid(key: ECKey) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weather.example")])
    start = datetime.fromtimestamp(NOW, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    keys = KeySet.from_pem(certificate.public_bytes(serialization.Encoding.PEM))
    signed = sign(CARD, ECKey.import_key(private), "whatever")
    assert verify(signed, keys, now=NOW + 60).kind == "verified"
    assert verify(signed, keys, now=NOW - 60).kind == "unverifiable"
    assert verify(signed, keys, now=NOW + 90_000).kind == "unverifiable"


def test_a_key_url_is_named_only_where_the_user_allows_it(key: ECKey) -> None:
    card = sign(CARD, key, "k1", jku="https://keys.example/jwks.json")
    assert key_urls(card, []) == []
    assert key_urls(card, ["https://other.example"]) == []
    assert key_urls(card, ["http://keys.example"]) == []
    assert key_urls(card, ["https://keys.example/", "nonsense"]) == [
        "https://keys.example/jwks.json"
    ]
    for evil in (
        "https://keys.example@evil.example/",
        "https://keys.example.evil.example/",
        "http://keys.example/",
        "https://keys.example\\@evil.example/",
        "file:///etc/passwd",
    ):
        assert key_urls(sign(CARD, key, "k1", jku=evil), ["https://keys.example"]) == []
    plain = sign(CARD, key, "k1", jku="http://keys.example/")
    assert key_urls(plain, ["http://keys.example"]) == []
    assert key_urls({"signatures": [5]}, ["https://keys.example"]) == []


# The official library

SDK = """
    import json, sys
    from google.protobuf.json_format import MessageToDict, ParseDict
    from jwt.api_jwk import PyJWK
    from a2a.types import AgentCard
    from a2a.utils.signing import create_agent_card_signer, create_signature_verifier

    asked = json.load(sys.stdin)
    key = PyJWK(asked["private"])
    public = PyJWK(asked["public"])
    signer = create_agent_card_signer(key, {"kid": "k1", "alg": "ES256", "typ": "JOSE"})
    verifier = create_signature_verifier(lambda kid, jku: public, ["ES256"])
    said = {"signed": [], "verified": []}
    for card in asked["sign"]:
        said["signed"].append(MessageToDict(signer(ParseDict(card, AgentCard()))))
    for card in asked["verify"]:
        try:
            verifier(ParseDict(card, AgentCard(), ignore_unknown_fields=True))
            said["verified"].append(True)
        except Exception as error:
            said["verified"].append(repr(error))
    print(json.dumps(said))
"""


@pytest.mark.peer
def test_the_official_library_and_we_verify_each_other(key: ECKey, keys: KeySet) -> None:
    python = python_of("a2a-sdk==1.3.0")
    # With anything empty it looks for another payload than the specification's.
    whole = without_empty(CARD)
    odd = {**whole, "name": "Wétter 😀"}
    tampered = {**sign(whole, key, "k1"), "name": "Whether"}
    asked = {
        "private": key.as_dict(private=True),
        "public": key.as_dict(private=False),
        "sign": [CARD, SPARSE],
        "verify": [sign(whole, key, "k1"), sign(odd, key, "k1"), tampered],
    }
    done = subprocess.run(
        [python, "-c", textwrap.dedent(SDK)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = json.loads(done.stdout)
    verdicts = [verify(card, keys) for card in said["signed"]]
    assert [(verdict.kind, verdict.form) for verdict in verdicts] == [
        ("verified", "no-empties"),
        ("verified", "no-empties"),
    ]
    assert said["verified"][2].startswith("InvalidSignaturesError")
    assert said["verified"][:2] == [True, True], said["verified"]
