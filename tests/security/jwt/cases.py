"""The tokens that must not open anything, by name, and those that must.

Each case is the headers of a request; the audience is AUDIENCE, the time NOW, and the keys are
those of `minting.KEYS`, two of them RSA. `rsa-old` and `ec-other` are keys that are not among them.
"""

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tests.security.jwt.minting import (
    ABSENT,
    AUDIENCE,
    ISSUER,
    KEYS,
    NOW,
    b64,
    claims,
    jwk,
    pem,
    sign,
    thumbprint,
    token,
)

Header = tuple[bytes, bytes]
# Why each is refused; empty: there is nothing in the request that is meant to be a token.
REASONS: Mapping[str, Sequence[str]] = {
    "": (
        "no header",
        "an empty header",
        "the token in the query",
        "Basic where Bearer is needed",
        "the token without a scheme",
    ),
    "not a bearer token": (
        "Bearer alone",
        "Bearer and a space",
        "whitespace inside",
    ),
    "two Authorization headers": ("two Authorization headers",),
    "the token has not 3 parts": (
        "two parts",
        "four parts",
    ),
    "the payload is not base64url": ("bad base64",),
    "the signature is not base64url in its one spelling": (
        "ordinary base64",
        "a padded signature",
        "a stray bit at the end",
    ),
    "the payload is not base64url in its one spelling": ("padded",),
    "the payload is no object": (
        "a payload that is a list",
        "a payload that is a text",
    ),
    "the payload is not JSON that everybody reads alike": (
        "a payload that is not JSON",
        "a payload that is not UTF-8",
        "a claim twice",
        "NaN as a claim",
        "deep nesting",
        "a token in a token",
    ),
    "the header is no object": ("a header that is a list",),
    "the token is too long": ("a token of 100 KB",),
    "there is a token in the token": ("claims with cty JWT",),
    "the token is encrypted": ("an encrypted token",),
    "the algorithm is not accepted": (
        "alg none",
        "alg None",
        "alg NONE",
        "alg empty",
        "HS256 with the public key",
        "an algorithm not in the list",
    ),
    "the algorithm or the name of the key is no text": (
        "alg absent",
        "alg a list",
        "a kid that is a number",
    ),
    "the key is not known": (
        "RS256 under an EC key",
        "an EC token under an RSA key",
        "ES384 by a P-256 key",
        "an unknown kid",
        "a kid that is a path",
        "a kid that is SQL",
        "the kid of another key",
        "a retired key",
    ),
    "the header has 'crit'": (
        "an unknown crit",
        "b64 false",
    ),
    "the header has 'b64'": ("b64 false without crit",),
    "the signature does not hold": (
        "a psychic signature",
        "an empty signature",
        "a DER signature",
        "trailing garbage",
        "another header",
        "another payload",
        "a stranger's key by a known kid",
        "jku to a stranger",
        "x5u to a stranger",
        "a stranger's key in the header",
        "a stranger's certificate in the header",
    ),
    "the token might be of several keys": ("no kid and two keys that fit",),
    "the name of the key is too long": ("a kid of 10 KB",),
    "the token has expired": (
        "exp past",
        "exp 61 s ago",
    ),
    "the token has no end": ("exp absent",),
    "exp is no number": (
        "exp null",
        "exp a text",
        "exp true",
    ),
    "exp is no time": (
        "exp 1e30",
        "exp negative",
    ),
    "the token is not yet valid": (
        "nbf future",
        "nbf in 61 s",
    ),
    "nbf is no number": ("nbf a text",),
    "the token was issued in the future": (
        "iat future",
        "iat in 61 s",
    ),
    "the audience is another": (
        "aud wrong",
        "aud empty",
        "aud a list without ours",
        "aud with a slash",
    ),
    "the audience is missing or no list of texts": (
        "aud absent",
        "aud a list with a number",
    ),
    "the issuer is another": (
        "iss wrong",
        "iss absent",
        "iss a list",
        "iss with a slash",
        "iss in capitals",
        "iss a look-alike",
    ),
    "sub is missing, too long or no text": (
        "sub absent",
        "sub empty",
        "sub a number",
        "sub of 10 KB",
    ),
    "sub has characters that cannot be seen": ("sub with a line end",),
    "scope is neither a text nor a list of texts": ("scope a number",),
    "scope has more than 256 entries": ("scope of 257 words",),
    "scp has more than 256 entries": ("scp of 257 texts",),
    "the client is no text": ("azp no text",),
    "the claim nonce is of a token for another purpose": ("an ID token by its nonce",),
    "the claim at_hash is of a token for another purpose": ("an ID token by its hash",),
    "the claim typ is of a token for another purpose": ("an ID token by its claim",),
    "the claim events is of a token for another purpose": ("a logout token by its events",),
    "the token is bound to another certificate": ("cnf of another certificate",),
    "the token is bound to a key that cannot be checked here": (
        "cnf of a key that cannot be checked",
        "cnf empty",
    ),
    "cnf is no object": ("cnf a text",),
    "the token is of another type": (
        "a logout token",
        "a DPoP proof",
    ),
    "the type of the token is no text": ("typ a number",),
}
_REASON_OF = {name: reason for reason, names in REASONS.items() for name in names}
NAMES = tuple(_REASON_OF)
CERTIFICATE = b"the certificate that was shown"


class Case(NamedTuple):
    name: str
    headers: list[Header]
    query: str = ""

    @property
    def reason(self) -> str:
        """Why it is refused, as the operator is told."""
        return _REASON_OF[self.name]


def bearer(text: str, scheme: str = "Bearer ") -> list[Header]:
    return [(b"authorization", f"{scheme}{text}".encode("latin-1"))]


def _unsigned(algorithm: str) -> str:
    return token(header={"alg": algorithm, "kid": ABSENT}, signer=lambda _: b"")


def _with_public_key(content: bytes) -> bytes:
    return hmac.new(pem("rsa"), content, "sha256").digest()


def _twice() -> bytes:
    text = json.dumps(claims(sub="mallory"))
    return f'{text[:-1]}, "sub": "alice"}}'.encode()


def _other_head() -> str:
    good = token().split(".")
    head = json.dumps({"alg": "ES256", "kid": "ec", "typ": "JWT", "x": 1})
    return f"{b64(head.encode())}.{good[1]}.{good[2]}"


def _other_body() -> str:
    good = token().split(".")
    return f"{good[0]}.{b64(json.dumps(claims(sub='bob')).encode())}.{good[2]}"


def _der_signature(content: bytes) -> bytes:
    """An ECDSA signature in the form of certificates, which is not that of tokens."""
    raw = sign("ES256", "ec", content)
    return b"\x30\x44\x02\x20" + raw[:32] + b"\x02\x20" + raw[32:]


def _missing() -> list[Case]:
    good = token()
    return [
        Case("no header", []),
        Case("an empty header", [(b"authorization", b"")]),
        Case("Bearer alone", [(b"authorization", b"Bearer")]),
        Case("Bearer and a space", [(b"authorization", b"Bearer ")]),
        Case("two Authorization headers", bearer(good) * 2),
        Case("the token in the query", [], f"access_token={good}"),
        Case("Basic where Bearer is needed", bearer(good, "Basic ")),
        Case("the token without a scheme", bearer(good, "")),
    ]


def _form() -> list[Case]:
    good = token()
    head, body, signature = good.split(".")
    tokens: dict[str, str] = {
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.{signature}",
        "bad base64": f"{head}.{body[:-2]}!*.{signature}",
        "ordinary base64": f"{head}.{body}.{b64(bytes([255] * 64)).replace('_', '/')}",
        "padded": f"{head}.{body}==.{signature}",
        "a padded signature": f"{good}==",
        "whitespace inside": f"{head}. {body}.{signature}",
        "a payload that is a list": token(payload=[claims()]),
        "a payload that is a text": token(payload="alice"),
        "a payload that is not JSON": token(payload=b"alice"),
        "a payload that is not UTF-8": token(payload=b'{"sub":"\xff"}'),
        "a header that is a list": f"{b64(b'[]')}.{body}.{signature}",
        "a claim twice": token(payload=_twice()),
        "NaN as a claim": token(payload=json.dumps(claims(exp=float("nan"))).encode()),
        "deep nesting": token(payload=b'{"a":' * 2000 + b"1" + b"}" * 2000),
        "a token of 100 KB": token(pad="x" * 75_000),
        "a token in a token": token(payload=good.encode(), header={"cty": "JWT"}),
        "claims with cty JWT": token(header={"cty": "JWT"}),
        "an encrypted token": ".".join(
            [b64(b'{"alg":"dir","enc":"A256GCM"}'), "", "AAAA", "AA", "AA"]
        ),
    }
    return [Case(name, bearer(text)) for name, text in tokens.items()]


def _algorithm() -> list[Case]:
    good = token()
    signature = good.rpartition(".")[2]
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    stray = last[last.index(signature[-1]) ^ 1]
    tokens: dict[str, str] = {
        "alg none": _unsigned("none"),
        "alg None": _unsigned("None"),
        "alg NONE": _unsigned("NONE"),
        "alg empty": _unsigned(""),
        "alg absent": token(header={"alg": ABSENT}, signer=lambda text: sign("ES256", "ec", text)),
        "alg a list": token(
            header={"alg": ["ES256"]}, signer=lambda text: sign("ES256", "ec", text)
        ),
        "HS256 with the public key": token("rsa", header={"alg": "HS256"}, signer=_with_public_key),
        "RS256 under an EC key": token("rsa", header={"kid": "ec"}),
        "an EC token under an RSA key": token("ec", header={"kid": "rsa"}),
        "ES384 by a P-256 key": token(
            header={"alg": "ES384"}, signer=lambda text: sign("ES256", "ec", text) + bytes(32)
        ),
        "an algorithm not in the list": token(header={"alg": "ES256K"}, signer=lambda _: bytes(64)),
        "an unknown crit": token(header={"crit": ["exp"], "exp": 1}),
        "b64 false": token(header={"b64": False, "crit": ["b64"]}),
        "b64 false without crit": token(header={"b64": False}),
        "a psychic signature": token(signer=lambda _: bytes(64)),
        "an empty signature": token(signer=lambda _: b""),
        "a DER signature": token(signer=_der_signature),
        "trailing garbage": good + "AAAA",
        "a stray bit at the end": good[:-1] + stray,
        "another header": _other_head(),
        "another payload": _other_body(),
    }
    return [Case(name, bearer(text)) for name, text in tokens.items()]


def _embedded(**members: Any) -> str:
    """A token by a key that is not the issuer's, whose header says where that key is."""
    return token("ec-other", header={"kid": ABSENT, **members})


def _key_choice() -> list[Case]:
    tokens: dict[str, str] = {
        "no kid and two keys that fit": token("rsa", header={"kid": ABSENT}),
        "an unknown kid": token("ec-other"),
        "a kid that is a path": token(header={"kid": "../../dev/null"}),
        "a kid that is SQL": token(header={"kid": "' OR 1=1"}),
        "a kid of 10 KB": token(header={"kid": "k" * 10_000}),
        "a kid that is a number": token(header={"kid": 1}),
        "the kid of another key": token(header={"kid": "ec-384"}),
        "a retired key": token("rsa-old"),
        "a stranger's key by a known kid": token("ec-other", header={"kid": "ec"}),
        "jku to a stranger": _embedded(jku="http://127.0.0.1:9/jwks"),
        "x5u to a stranger": _embedded(x5u="http://127.0.0.1:9/cert"),
        "a stranger's key in the header": _embedded(jwk=jwk("ec-other")),
        "a stranger's certificate in the header": _embedded(x5c=["MIIB"]),
    }
    return [Case(name, bearer(text)) for name, text in tokens.items()]


def _claims() -> list[Case]:
    look_alike = ISSUER.replace("i", "і", 1)
    changes: dict[str, dict[str, Any]] = {
        "exp past": {"exp": NOW - 3600},
        "exp absent": {"exp": ABSENT},
        "exp null": {"exp": None},
        "exp a text": {"exp": str(NOW + 600)},
        "exp true": {"exp": True},
        "exp 1e30": {"exp": 1e30},
        "exp negative": {"exp": -1},
        "exp 61 s ago": {"exp": NOW - 61},
        "nbf future": {"nbf": NOW + 3600},
        "nbf in 61 s": {"nbf": NOW + 61},
        "nbf a text": {"nbf": "0"},
        "iat future": {"iat": NOW + 3600},
        "iat in 61 s": {"iat": NOW + 61},
        "aud wrong": {"aud": "https://other.example"},
        "aud absent": {"aud": ABSENT},
        "aud empty": {"aud": []},
        "aud a list without ours": {"aud": ["https://other.example", "x"]},
        "aud a list with a number": {"aud": [AUDIENCE, 1]},
        "aud with a slash": {"aud": AUDIENCE + "/"},
        "iss wrong": {"iss": "https://evil.example"},
        "iss absent": {"iss": ABSENT},
        "iss a list": {"iss": [ISSUER]},
        "iss with a slash": {"iss": ISSUER + "/"},
        "iss in capitals": {"iss": ISSUER.upper()},
        "iss a look-alike": {"iss": look_alike},
        "sub absent": {"sub": ABSENT},
        "sub empty": {"sub": ""},
        "sub a number": {"sub": 1},
        "sub with a line end": {"sub": "alice\n"},
        "sub of 10 KB": {"sub": "a" * 10_000},
        "scope a number": {"scope": 1},
        "scope of 257 words": {"scope": " ".join(f"{n:x}" for n in range(257))},
        "scp of 257 texts": {"scp": [f"{n:x}" for n in range(257)]},
        "azp no text": {"azp": 1},
        "an ID token by its nonce": {"nonce": "n"},
        "an ID token by its hash": {"at_hash": "h"},
        "an ID token by its claim": {"typ": "ID"},
        "a logout token by its events": {"events": {}},
        "cnf of another certificate": {"cnf": {"x5t#S256": thumbprint(b"another")}},
        "cnf of a key that cannot be checked": {"cnf": {"jkt": "x"}},
        "cnf empty": {"cnf": {}},
        "cnf a text": {"cnf": "x"},
    }
    cases = [Case(name, bearer(token(**change))) for name, change in changes.items()]
    types = {"a logout token": "logout+jwt", "a DPoP proof": "dpop+jwt", "typ a number": 1}
    return cases + [Case(name, bearer(token(header={"typ": typ}))) for name, typ in types.items()]


_REFUSED: list[Callable[[], list[Case]]] = [_missing, _form, _algorithm, _key_choice, _claims]


@cache
def refused() -> dict[str, Case]:
    """Return the requests that are not let in, by name."""
    return {case.name: case for group in _REFUSED for case in group()}


def admitted() -> list[Case]:
    """Return the requests of alice."""
    tokens: dict[str, str] = {
        **{f"{name} by {kid}": token(kid) for kid, name in KEYS.items()},
        **{
            f"{name} by rsa": token("rsa", header={"alg": name})
            for name in ("RS384", "RS512", "PS256", "PS384", "PS512")
        },
        "Ed25519 by its own name": token("ed", header={"alg": "Ed25519"}),
        "no kid and one key that fits": token(header={"kid": ABSENT}),
        "an access token by its type": token(header={"typ": "at+jwt"}),
        "its whole media type": token(header={"typ": "application/AT+JWT"}),
        "no type": token(header={"typ": ABSENT}),
        "a list of audiences with ours": token(aud=["x", AUDIENCE]),
        "exp 59 s ago": token(exp=NOW - 59),
        "nbf in 59 s": token(nbf=NOW + 59),
        "iat in 59 s": token(iat=NOW + 59),
        "exp with a fraction": token(exp=NOW + 0.5),
        "cnf of the certificate that was shown": token(cnf={"x5t#S256": thumbprint(CERTIFICATE)}),
        "a header that names other places of keys": token(
            header={
                "jku": "http://127.0.0.1:9/jwks",
                "x5u": "http://127.0.0.1:9/cert",
                "jwk": jwk("ec-other"),
                "x5c": ["MIIB"],
            }
        ),
        "a claim of an unknown name": token(more={"deep": [1]}),
    }
    return [Case(name, bearer(text)) for name, text in tokens.items()]
