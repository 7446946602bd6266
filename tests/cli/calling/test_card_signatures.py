"""`dragoman card sign` and `card verify`: only keys that the user trusts make a card verified."""

import base64
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting
from joserfc.jwk import ECKey

from dragoman.cli.calling.card_signatures import accepts
from dragoman.security import card_signatures
from dragoman.security.card_keys import KeySet
from tests.cli.command import Ended, call, document, fields, inside

CARD: dict[str, Any] = {
    "name": "Weather",
    "description": "Tells tomorrow's weather.",
    "version": "1.0.0",
    "supportedInterfaces": [
        {"url": "https://a.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {"streaming": True},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "f", "name": "F", "description": "Forecasts.", "tags": ["weather"]}],
}


@pytest.fixture
def key() -> ECKey:
    return ECKey.generate_key("P-256", {"kid": "k1"})


@pytest.fixture
def folder(tmp_path: Path, key: ECKey) -> Path:
    """A folder with a card, a private key and the keys that are trusted."""
    put(tmp_path / "card.json", CARD)
    put(tmp_path / "key.json", key.as_dict(private=True))
    put(tmp_path / "keys.json", {"keys": [key.as_dict(private=False)]})
    return tmp_path


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def verified(folder: Path, card: Any, *words: str, exit: int = 0) -> Ended:
    put(folder / "shown.json", card)
    ended = inside("card", "verify", "./shown.json", *words, cwd=folder)
    assert ended.returncode == exit, ended.stdout + ended.stderr
    return ended


def test_the_recipe_of_the_help_works_as_it_is_written(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    put(tmp_path / "card.json", CARD)
    shown = " ".join(inside("card", "sign", "--help", cwd=tmp_path).stdout.split())
    for recipe in (
        "openssl genpkey -algorithm ed25519 -out key.pem",
        "openssl pkey -in key.pem -pubout -out public.pem",
    ):
        assert recipe in shown
        subprocess.run(recipe.split(), cwd=tmp_path, check=True, timeout=60)
    words = ("card", "sign", "card.json", "--key", "key.pem", "--save", "signed.json")
    assert inside(*words, cwd=tmp_path).returncode == 0
    good = inside("card", "verify", "signed.json", "--keys", "public.pem", cwd=tmp_path)
    assert good.returncode == 0 and "EdDSA" in fields(good.stdout)["Checked"], good.stderr


def test_a_signed_card_is_the_card_and_a_signature(folder: Path, key: ECKey) -> None:
    jku = "https://a.example/keys"
    ended = inside("card", "sign", "card.json", "--key", "key.json", "--jku", jku, cwd=folder)
    signed = document(ended)
    (entry,) = signed.pop("signatures")
    assert signed == CARD and "Key: k1" in ended.stderr
    head = json.loads(base64.urlsafe_b64decode(entry["protected"] + "=="))
    assert head == {"alg": "ES256", "kid": "k1", "typ": "JOSE", "jku": jku}
    assert key.as_dict(private=True)["d"] not in ended.stdout + ended.stderr
    verified(folder, {**signed, "signatures": [entry]}, "--keys", "keys.json")


def test_signing_again_replaces_the_signature_of_the_same_key_alone(folder: Path) -> None:
    other = card_signatures.sign({**CARD, "name": "Old"}, ECKey.generate_key("P-256"), "other")
    put(folder / "card.json", {**CARD, "signatures": other["signatures"]})
    words = ("card", "sign", "card.json", "--key", "key.json", "--save", "card.json")
    refused = inside(*words, cwd=folder)
    assert refused.returncode == 2 and "--force" in refused.stderr
    for _ in range(2):
        made = document(inside(*words, "--force", "-o", "json", cwd=folder))
        assert made == {"path": str(folder / "card.json"), "kid": "k1"}
    card = json.loads((folder / "card.json").read_text())
    told = document(verified(folder, card, "--keys", "keys.json", "-o", "json"))
    assert [one["kid"] for one in told["signatures"]] == ["other", "k1"]
    assert [one["verdict"] for one in told["signatures"]] == ["unverifiable", "verified"]
    assert (told["verdict"], told["form"]) == ("verified", "strict")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".card")] == []


@pytest.mark.parametrize(
    ("name", "content", "exit", "says"),
    [
        ("card.json", "[]", 1, "no card of 1.0"),
        ("card.json", '{"name": "x", "url": "https://a"}', 1, "no card of 1.0"),
        ("card.json", "{", 1, "not JSON"),
        ("card.json", '{"supportedInterfaces": [], "name": 5}', 1, "finding"),
        ("card.json", json.dumps({**CARD, "x": "y" * 256 * 1024}), 1, "larger than"),
        ("nowhere.json", None, 3, "No such file"),
        ("key.json", "{}", 2, "private key"),
        ("key.json", "secret-rubbish", 2, "neither PEM nor a JWK"),
        ("key.json", json.dumps({"kty": "oct", "k": "c2VjcmV0"}), 2, "private key"),
    ],
)
def test_what_cannot_be_signed_is_refused_with_a_reason(
    folder: Path, name: str, content: str | None, exit: int, says: str
) -> None:
    if content is not None:
        (folder / name).write_text(content)
    card = "card.json" if name == "key.json" else name
    ended = inside("card", "sign", card, "--key", "key.json", cwd=folder)
    assert ended.returncode == exit and says in ended.stderr, ended.stderr
    assert ended.stdout == "" and "secret-rubbish" not in ended.stderr


def test_a_card_that_others_cannot_verify_is_warned_of(folder: Path) -> None:
    skills = [{**CARD["skills"][0], "description": ""}]
    put(folder / "card.json", {**CARD, "skills": skills, "description": ""})
    ended = inside("card", "sign", "card.json", "--key", "key.json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    for place in ("description", "skills[0].description"):
        assert f"Warning: {place} is empty" in ended.stderr


def test_a_card_that_was_changed_is_refused_and_each_signature_has_its_verdict(
    folder: Path, key: ECKey
) -> None:
    stranger = ECKey.generate_key("P-256")
    # A key of somebody else under the name of one that is trusted.
    both = card_signatures.sign(card_signatures.sign(CARD, stranger, "k1"), key, "k1")
    shown = verified(folder, both, "--keys", "keys.json")
    checked = [line for line in shown.stdout.splitlines() if line.startswith("Checked: ")]
    assert "does not fit" in checked[0] and checked[1] == "Checked: verified (key k1, ES256)"
    verified(folder, card_signatures.sign(CARD, stranger, "k1"), "--keys", "keys.json", exit=1)
    forged = {**both, "supportedInterfaces": [{**CARD["supportedInterfaces"][0], "tenant": "x"}]}
    ended = verified(folder, forged, "--keys", "keys.json", exit=1)
    assert "A2ACLI_ERR_CARD_INVALID" in ended.stderr
    told = document(verified(folder, forged, "--keys", "keys.json", "-o", "json", exit=1), 1)
    assert list(told) == ["error"]


@pytest.mark.parametrize("policy", ["ignore", "prefer", "require"])
def test_the_policy_says_what_is_good_enough(key: ECKey, policy: str) -> None:
    keys = KeySet.decode(key.as_dict(private=False))
    good = card_signatures.sign(CARD, key, "k1")
    cards = {
        "verified": good,
        "absent": CARD,
        "unknown": card_signatures.sign(CARD, ECKey.generate_key("P-256"), "k2"),
        "forged": {**good, "name": "Forged"},
    }
    accepted = {
        name
        for name, card in cards.items()
        if accepts(
            policy, card_signatures.verify(card, keys), card_signatures.verify_each(card, keys)
        )
    }
    assert (
        accepted
        == {
            "ignore": {*cards},
            "prefer": {"verified", "absent", "unknown"},
            "require": {"verified"},
        }[policy]
    )


def test_what_is_not_verified_is_never_shown_without_a_word(folder: Path) -> None:
    for policy, exit in (("ignore", 0), ("prefer", 0), ("require", 1)):
        ended = verified(folder, CARD, "--keys", "keys.json", "--policy", policy, exit=exit)
        assert fields(ended.stdout)["Signature"] == "absent"
        assert ("this card is not verified" in ended.stderr) == (exit == 0)
    ended = inside("card", "verify", "card.json", cwd=folder)
    assert ended.returncode == 2 and "--keys" in ended.stderr


@pytest.mark.parametrize(
    "more", [{"exp": 1_000_000_000}, {"nbf": 99_000_000_000}, {"revoked": True}, {"use": "enc"}]
)
def test_a_key_that_is_over_or_taken_back_verifies_nothing(
    folder: Path, key: ECKey, more: dict[str, Any]
) -> None:
    spare = ECKey.generate_key("P-256", {"kid": "spare"}).as_dict(private=False)
    put(folder / "keys.json", {"keys": [{**key.as_dict(private=False), **more}, spare]})
    ended = verified(folder, card_signatures.sign(CARD, key, "k1"), "--keys", "keys.json", exit=1)
    assert "not among those trusted" in ended.stdout


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "HS256"}, {"crit": ["b64"]}])
def test_no_header_of_the_signers_choosing_gets_a_card_through(
    folder: Path, key: ECKey, header: dict[str, Any]
) -> None:
    head = encoded(json.dumps({"alg": "ES256", "kid": "k1", **header}).encode())
    signed = f"{head}.{encoded(card_signatures.canonical(CARD))}".encode()
    # The public key as the secret, which a careless verifier would use.
    public = json.dumps(key.as_dict(private=False)).encode()
    made = encoded(hmac.digest(public, signed, hashlib.sha256))
    for signature in (made, ""):
        card = {**CARD, "signatures": [{"protected": head, "signature": signature}]}
        verified(folder, card, "--keys", "keys.json", exit=1)


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.origin = f"https://127.0.0.1:{self._socket.getsockname()[1]}"

    def visits(self) -> int:
        found = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return found
            found += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def attacker() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


def test_an_address_of_keys_is_asked_only_if_its_origin_is_allowed(
    folder: Path, key: ECKey, attacker: Listener
) -> None:
    card = card_signatures.sign(
        CARD, ECKey.generate_key("P-256"), "evil", jku=f"{attacker.origin}/k"
    )
    for words in (
        ("--keys", "keys.json"),
        ("--allow-jku", "https://a.example"),
        ("--keys", "keys.json", "--allow-jku", attacker.origin.replace("127.0.0.1", "localhost")),
        ("--policy", "ignore"),
    ):
        verified(folder, card, *words, exit=0 if "ignore" in words else 1)
        assert attacker.visits() == 0, words
    # It would have been noticed. Nobody answers there, so what cannot be had is left out.
    verified(folder, card, "--allow-jku", attacker.origin, "--timeout", "2s", exit=5)
    assert attacker.visits() == 1
    for wrong in ("http://a.example", "https://"):
        bad = verified(folder, card, "--allow-jku", wrong, exit=2)
        assert "--allow-jku" in bad.stderr


async def test_keys_may_be_at_an_address_that_the_user_names(folder: Path, key: ECKey) -> None:
    public = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    async def keys(scope: Any, receive: Any, send: Any) -> None:
        found = scope["path"] == "/keys"
        await send(
            {
                "type": "http.response.start",
                "status": 200 if found else 404,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": public if found else b""})

    put(folder / "shown.json", card_signatures.sign(CARD, key, "k1"))
    words = ("card", "verify", "./shown.json", "--keys")
    async with hosting(keys, lifespan="off") as url:
        good = await call(*words, f"{url}/keys", cwd=folder)
        assert good.returncode == 0, good.stderr
        missing = await call(*words, f"{url}/other", cwd=folder)
        assert missing.returncode != 0 and "--keys" in missing.stderr
    plain = await call(*words, "http://keys.example/jwks.json", cwd=folder)
    assert plain.returncode == 2 and "not trusted" in plain.stderr


def test_a_card_that_is_too_large_is_not_judged(folder: Path, key: ECKey) -> None:
    large = card_signatures.sign({**CARD, "description": "x" * 256 * 1024}, key, "k1")
    ended = verified(folder, large, "--keys", "keys.json", exit=1)
    assert "larger than 262144" in ended.stderr
