"""Cards with our signature: verified by whoever has the public key, in every shape of 1.0."""

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness.processes import run
from harness.serving import serving
from joserfc.jwk import ECKey, OKPKey, RSAKey

from dragoman import Agent, AgentSkill, App, Settings
from dragoman.config import CardSettings, StoreSettings
from dragoman.errors import ConfigError
from dragoman.security.card_keys import KeySet
from dragoman.security.card_signatures import verify
from tests.peers.libraries import python_of

NEW = "/.well-known/agent-card.json"
KEYS = "/.well-known/jwks.json"
URL = "https://agent.example"
more = [AgentSkill(id="secret", name="Secret", description="Is more.", tags=["x"])]
agent = Agent("Signed", "Is signed.", extended_skills=more)


@agent.skill
async def add(left: int, right: int = 1) -> int:
    return left + right


@pytest.fixture(params=["EC", "OKP", "RSA", "PEM"])
def key_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "key"
    if request.param == "PEM":
        private = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, plain))
        return path
    kinds: dict[str, Any] = {"EC": ECKey, "OKP": OKPKey, "RSA": RSAKey}
    sizes = {"EC": "P-384", "OKP": "Ed25519", "RSA": 2048}
    key = kinds[request.param].generate_key(sizes[request.param])
    path.write_text(json.dumps({**key.as_dict(private=True), "kid": "mine", "key_ops": ["sign"]}))
    return path


def kid(card: Any) -> str:
    from base64 import urlsafe_b64decode

    head = card["signatures"][0]["protected"]
    return json.loads(urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"]


async def test_whoever_has_the_public_key_can_verify_the_card(key_file: Path) -> None:
    settings = {"sign_key": str(key_file), "public_url": URL, "extended_card_public": True}
    async with serving(agent, **settings) as site:
        published = (await site.http.get(KEYS)).json()
        assert [one["use"] for one in published["keys"]] == ["sig"]
        assert not {"d", "p", "q", "key_ops"} & published["keys"][0].keys()
        keys = KeySet.decode(published)
        newer = (await site.http.get(NEW, headers={"A2A-Version": "1.0"})).json()
        both = (await site.http.get(NEW)).json()
        assert "url" in both
        extended = await site.call("GetExtendedAgentCard", headers={"A2A-Version": "1.0"})
        for card in (newer, both, extended):
            verdict = verify(card, keys)
            assert (verdict.kind, verdict.form) == ("verified", "strict"), verdict.reason
            assert verdict.covered["supportedInterfaces"][0]["url"] == f"{URL}/a2a"
            assert verify({**card, "name": "Forged"}, keys).kind == "unverifiable"
            assert kid(card) == published["keys"][0]["kid"]
        if key_file.read_bytes().startswith(b"-----BEGIN"):
            own = ECKey.import_key(key_file.read_text())
            assert kid(newer) == own.thumbprint()
        else:
            assert kid(newer) == "mine"
        old = (await site.http.get(NEW, headers={"A2A-Version": "0.3"})).json()
        assert "signatures" not in old
        # An address of the caller's choosing is nothing that we sign.
        forged = await site.http.get(NEW, headers={"A2A-Version": "1.0", "Host": "evil.example"})
        assert "evil.example" not in forged.text


async def test_the_keys_of_posts_are_there_too(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(json.dumps(ECKey.generate_key("P-256").as_dict(private=True)))
    settings = {"sign_key": str(path), "public_url": URL, "push_tokens": True}
    async with serving(agent, **settings) as site:
        assert len((await site.http.get(KEYS)).json()["keys"]) == 2


def public_only() -> str:
    return json.dumps(ECKey.generate_key("P-256").as_dict(private=False))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "neither PEM nor a JWK"),
        ("[]", "neither PEM nor a JWK"),
        ("{}", "must be a private key"),
        (public_only(), "must be a private key"),
        ("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----", "must be a private key"),
        (json.dumps({"kty": "oct", "k": "c2VjcmV0"}), "must be a private key"),
        (json.dumps(ECKey.generate_key("P-521").as_dict(private=True)), "must be on P-256"),
        (None, "cannot be read"),
    ],
)
def test_a_key_of_no_use_is_refused_at_once(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    settings = Settings(
        stores=StoreSettings(location="memory:"),
        cards=CardSettings(sign_key=str(path), public_url=URL),
    )
    with pytest.raises(ConfigError, match=f"sign_key: .*key: .*{says}"):
        App(agent, settings=settings)


def test_without_an_address_of_our_own_nothing_is_signed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        App(
            agent,
            settings=Settings(
                stores=StoreSettings(location="memory:"),
                cards=CardSettings(sign_key=str(tmp_path / "key")),
            ),
        )


async def test_the_command_line_verifies_it(tmp_path: Path) -> None:
    import asyncio

    path = tmp_path / "key"
    path.write_text(json.dumps(ECKey.generate_key("P-256").as_dict(private=True)))
    async with serving(agent, sign_key=str(path), public_url=URL) as site:
        (tmp_path / "keys.json").write_bytes((await site.http.get(KEYS)).content)
        asked = ("card", "get", "-a", site.url, "--keys", "keys.json", "--require-signature")
        shown = await asyncio.to_thread(run, *asked, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert "verified" in shown.stdout + shown.stderr


SDK = """
    import json, sys
    from google.protobuf.json_format import ParseDict
    from jwt.api_jwk import PyJWK
    from a2a.types import AgentCard
    from a2a.utils.signing import create_signature_verifier

    asked = json.load(sys.stdin)
    public = PyJWK(asked["public"])
    verifier = create_signature_verifier(lambda kid, jku: public, ["ES256"])
    for card in asked["cards"]:
        verifier(ParseDict(card, AgentCard(), ignore_unknown_fields=True))
    print("verified")
"""


@pytest.mark.peer
async def test_the_official_library_verifies_it(tmp_path: Path) -> None:
    python = python_of("a2a-sdk==1.3.0")
    path = tmp_path / "key"
    path.write_text(json.dumps(ECKey.generate_key("P-256").as_dict(private=True)))
    async with serving(agent, sign_key=str(path), public_url=URL) as site:
        (public,) = (await site.http.get(KEYS)).json()["keys"]
        shapes: list[httpx.Response] = [
            await site.http.get(NEW, headers={"A2A-Version": "1.0"}),
            await site.http.get(NEW),
        ]
    asked = {"public": public, "cards": [shape.json() for shape in shapes]}
    done = subprocess.run(
        [python, "-c", textwrap.dedent(SDK)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "verified\n", done.stderr
