"""Signatures against the independent library, both ways."""

import base64
from datetime import UTC, datetime
from random import Random

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from dragoman.errors import ConfigError
from dragoman.push.signature import decode_secret, encode_secret, is_signed, secrets_of, sign


def text(random: Random) -> str:
    size = random.choice((0, 1, 10, 1000))
    return "".join(chr(random.choice((random.randrange(0x20, 0x7F), 0x1F409))) for _ in range(size))


def test_a_thousand_random_bodies_are_signed_and_verified_by_both_alike() -> None:
    random = Random(3)
    for n in range(1000):
        secret = random.randbytes(random.randint(24, 64))
        library = Webhook(encode_secret(secret))
        id, at, body = f"msg_{n}", int(datetime.now(UTC).timestamp()), text(random)
        ours = sign([secret], id, at, body.encode())
        theirs = library.sign(id, datetime.fromtimestamp(at, UTC), body)
        assert ours == theirs
        headers = {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": ours}
        library.verify(body.encode(), headers, json_parse=False)
        assert is_signed([secret], theirs, id, str(at), body.encode())
        changed = bytearray(body.encode() or b" ")
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(7)
        assert not is_signed([secret], theirs, id, str(at), bytes(changed))
        with pytest.raises((WebhookVerificationError, UnicodeDecodeError)):
            library.verify(bytes(changed), headers, json_parse=False)


def test_while_secrets_are_exchanged_receivers_may_have_either() -> None:
    old, new = b"o" * 24, b"n" * 32
    at = int(datetime.now(UTC).timestamp())
    both = sign([new, old], "msg_1", at, b"{}")
    assert len(both.split(" ")) == 2
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": both}
    for secret in (old, new):
        Webhook(encode_secret(secret)).verify(b"{}", headers)
        assert is_signed([secret], both, "msg_1", str(at), b"{}")
        assert is_signed([old, new], sign([secret], "msg_1", at, b"{}"), "msg_1", str(at), b"{}")
    assert not is_signed([b"x" * 24], both, "msg_1", str(at), b"{}")


@pytest.mark.parametrize(
    "signatures",
    [
        "",
        "v1",
        "v1,",
        ",",
        " ",
        "v1,\ud800",
        "v1,AAAA",
        "v2,{right}",
        "v1a,{right}",
        "{right}",
        "v1,{right}=",
        "v1, {right}",
        "v1,x " * 20 + "v1,{right}",
    ],
)
def test_what_is_no_signature_by_us_is_refused_without_a_noise(signatures: str) -> None:
    secret = b"s" * 24
    right = sign([secret], "a", 1, b"b").removeprefix("v1,")
    assert is_signed([secret], f"v1,AAAA v1,{right}", "a", "1", b"b")
    assert not is_signed([secret], signatures.replace("{right}", right), "a", "1", b"b")


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_is_read_with_or_without_prefix_and_padding(size: int) -> None:
    secret = bytes(range(size))
    written = encode_secret(secret)
    assert written.startswith("whsec_")
    for form in (written, written.rstrip("="), written.removeprefix("whsec_"), f" {written}\n"):
        assert decode_secret(form) == secret


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_?", "whsec_ü", *(b"23", b"65")])
def test_a_bad_secret_is_refused_without_being_said(secret: str | bytes) -> None:
    if isinstance(secret, bytes):
        secret = "whsec_" + base64.b64encode(b"A" * int(secret)).decode()
    with pytest.raises(ConfigError) as refused:
        decode_secret(secret)
    assert secret.removeprefix("whsec_")[:8] not in str(refused.value) or len(secret) < 8


def test_without_a_setting_the_secret_comes_from_the_store_and_stays() -> None:
    derived = secrets_of([], b"k" * 32)
    assert derived == secrets_of([], b"k" * 32) and len(derived[0]) == 32
    assert derived != secrets_of([], b"l" * 32) and derived[0] != b"k" * 32
    one, two = encode_secret(b"1" * 24), encode_secret(b"2" * 24)
    assert secrets_of([one, two], b"k") == [b"1" * 24, b"2" * 24]
