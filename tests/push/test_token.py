"""The token beside the signature, read back by the library that receivers use."""

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.push.request import JWT_HEADER, headers
from dragoman.push.token import Tokens, key_from

ISSUER = "https://agents.example.com"
URL = "https://user:pw@hooks.example.com:8443/a2a?key=SECRET"


def published(tokens: Tokens) -> KeySet:
    return KeySet.import_key_set(tokens.document())


@pytest.mark.requirement("T-47")
def test_a_token_says_who_for_whom_when_and_which_task() -> None:
    tokens = Tokens(ISSUER, [key_from(b"s" * 32)])
    token = jwt.decode(
        tokens.token(id="msg_1", url=URL, task_id="t-1", now=1000), published(tokens), ["ES256"]
    )
    assert token.header == {
        "alg": "ES256",
        "typ": "JWT",
        "kid": tokens.document()["keys"][0]["kid"],
    }
    assert token.claims == {
        "iss": ISSUER,
        "aud": "https://hooks.example.com:8443/a2a",
        "iat": 1000,
        "exp": 1300,
        "jti": "msg_1",
        "taskId": "t-1",
    }


def test_the_document_has_no_private_half() -> None:
    (key,) = Tokens(ISSUER, [key_from(b"s" * 32)]).document()["keys"]
    assert key.keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"}


def test_a_store_has_one_key_for_ever_and_another_store_another() -> None:
    one, same, other = (Tokens(ISSUER, [key_from(s * 32)]).document() for s in (b"a", b"a", b"b"))
    assert one == same != other


def test_a_key_can_be_exchanged_while_tokens_of_the_one_before_are_read() -> None:
    old, new = key_from(b"o" * 32), key_from(b"n" * 32)
    before, after = Tokens(ISSUER, [old]), Tokens(ISSUER, [new, old])
    assert len(after.document()["keys"]) == 2
    for tokens in (before, after):
        text = tokens.token(id="m", url=URL, task_id="t", now=1)
        jwt.decode(text, published(after), ["ES256"])
    with pytest.raises(JoseError):
        jwt.decode(after.token(id="m", url=URL, task_id="t", now=1), published(before), ["ES256"])


@pytest.mark.parametrize("credentials", ["", "mine"])
def test_the_token_makes_way_for_credentials_of_the_configuration(credentials: str) -> None:
    config = PushConfig(URL, task_id="t", authentication=PushAuthentication("Bearer", credentials))
    tokens = Tokens(ISSUER, [key_from(b"s" * 32)])
    sent = headers(
        config,
        b"{}",
        id="msg_1",
        seq=1,
        content_type="application/json",
        now=1000,
        secrets=[b"s" * 24],
        tokens=tokens,
    )
    if credentials:
        assert sent["authorization"] == "Bearer mine"
        token = sent[JWT_HEADER]
    else:
        assert JWT_HEADER not in sent
        token = sent["authorization"].removeprefix("Bearer ")
    jwt.decode(token, published(tokens), ["ES256"])
