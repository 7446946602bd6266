"""Tokens that were changed in some way: whatever is not the token that was signed is refused."""

import base64
import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.security.authentication import Denied, Evidence, Gatekeeper
from dragoman.security.jwt.authenticator import JwtAuthenticator
from tests.security.jwt.cases import bearer
from tests.security.jwt.minting import AUDIENCE, ISSUER, KEYS, NOW, SECRET, b64, jwks, token

pytestmark = pytest.mark.anyio
ALPHABET = string.ascii_letters + string.digits + "-_"
WAYS = 500
SEED = 20_250_701

Mutation = Callable[[random.Random, str], str]


def letter_changed(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(ALPHABET + ".") + text[at + 1 :]


def last_letter_changed(chance: random.Random, text: str) -> str:
    return text[:-1] + chance.choice(ALPHABET)


def bit_flipped(chance: random.Random, text: str) -> str:
    parts = text.split(".")
    at = chance.randrange(3)
    content = bytearray(base64.urlsafe_b64decode(parts[at] + "=="))
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    parts[at] = b64(bytes(content))
    return ".".join(parts)


def cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(1, len(text))]


def inserted(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    added = "".join(chance.choices(ALPHABET + ".=+/", k=chance.randrange(1, 9)))
    return text[:at] + added + text[at:]


def letters_swapped(chance: random.Random, text: str) -> str:
    first, second = sorted(chance.sample(range(len(text)), 2))
    letters = list(text)
    letters[first], letters[second] = letters[second], letters[first]
    return "".join(letters)


def parts_mixed(chance: random.Random, text: str) -> str:
    """The claims of one good token with the signature of another."""
    pair = [text.split("."), token(chance.choice(list(KEYS)), sub="bob").split(".")]
    chance.shuffle(pair)
    return f"{chance.choice(pair)[0]}.{pair[0][1]}.{pair[1][2]}"


def header_rewritten(chance: random.Random, text: str) -> str:
    head, rest = text.split(".", 1)
    fields = json.loads(base64.urlsafe_b64decode(head + "=="))
    name = chance.choice(["alg", "kid", "typ", "crit", "jwk", "x"])
    fields[name] = chance.choice(["none", "HS256", "ES256", "RS256", "", None, 1, [], {}, "ec"])
    return f"{b64(json.dumps(fields).encode())}.{rest}"


def claims_rewritten(chance: random.Random, text: str) -> str:
    head, body, signature = text.split(".")
    fields = json.loads(base64.urlsafe_b64decode(body + "=="))
    fields[chance.choice(["sub", "scope", "exp", "aud", "tenant"])] = chance.choice(
        ["root", NOW * 2]
    )
    return f"{head}.{b64(json.dumps(fields).encode())}.{signature}"


def spelled_otherwise(chance: random.Random, text: str) -> str:
    """The same bytes in another spelling."""
    return chance.choice([text + "=", text + "==", text.replace("_", "/"), text.replace("-", "+")])


MUTATIONS: list[Mutation] = [
    letter_changed,
    last_letter_changed,
    bit_flipped,
    cut,
    inserted,
    letters_swapped,
    parts_mixed,
    header_rewritten,
    claims_rewritten,
    spelled_otherwise,
]


async def gate(path: Path, secret: bytes = b"") -> Gatekeeper:
    path.write_text(json.dumps(jwks()))
    authenticator = JwtAuthenticator(
        issuer=ISSUER,
        audience=[AUDIENCE],
        key_file="" if secret else path,
        secret=secret,
        now=lambda: NOW,
    )
    gatekeeper = Gatekeeper([authenticator], lambda: NOW)
    await gatekeeper.start()
    return gatekeeper


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
async def test_a_token_that_was_changed_is_refused(mutation: Mutation, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {mutation.__name__}")
    by_key, by_secret = await gate(tmp_path / "keys"), await gate(tmp_path / "keys", SECRET)
    good = {kid: token(kid) for kid in [*KEYS, "secret"]}
    tried = 0
    while tried < WAYS // len(MUTATIONS):
        kid = chance.choice(list(good))
        gatekeeper = by_secret if kid == "secret" else by_key
        assert (await gatekeeper.admit(Evidence(bearer(good[kid])))).caller.authenticated
        changed = mutation(chance, good[kid])
        if changed == good[kid]:
            continue
        tried += 1
        with pytest.raises(Denied):
            await gatekeeper.admit(Evidence(bearer(changed)))
            pytest.fail(f"{kid}: {changed} was let in for {good[kid]}")
