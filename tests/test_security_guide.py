"""The recipes of the security guide are typed as they stand there, into a real shell."""

import asyncio
import shutil
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from harness.processes import ROOT, START_WITHIN
from harness.recipes import Shell, free_port, recipes, shell
from harness.recipes import follow as follow_typed
from harness.serving import hosting
from harness.stub_servers import listening

from dragoman.testing.issuer import Issuer
from tests.security.jwt import minting

GUIDE = ROOT / "docs" / "security.md"
AUDIENCE = "https://agent.example.com"


def follow(recipe: str, opened: Shell, ports: dict[str, str]) -> None:
    """Type a recipe of the guide."""
    follow_typed(recipes(GUIDE)[recipe], opened, ports)


class Provider(Issuer):
    """An issuer whose tokens are JWTs."""

    def _answer(self, asked: Any, base: str) -> tuple[int, dict[str, Any]]:
        if asked.path == "/jwks":
            return 200, minting.jwks("ec")
        return super()._answer(asked, base)

    def _grant(self, client: str, scope: str, *, refreshes: bool) -> dict[str, Any]:
        answer = super()._grant(client, scope, refreshes=refreshes)
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": client, "scope": scope}
        token = minting.token("ec", **claims, iat=now, exp=now + 300)
        return answer | {"access_token": token}


@dataclass
class Proxy:
    """Ends TLS in front of an agent and says in a header which certificate a caller showed, as
    the nginx of the guide does."""

    target: int
    header: bytes = b"x-client-cert"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(START_WITHIN):
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
        headers = [line.split(b": ", 1) for line in lines]
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        # What callers write there themselves goes no further.
        kept = [pair for pair in headers if pair[0].lower() not in (self.header, b"connection")] + [
            [b"connection", b"close"]
        ]
        if der:
            kept.append([self.header, quote(ssl.DER_cert_to_PEM_cert(der)).encode()])
        size = next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)
        body = await reader.readexactly(size)
        behind, ahead = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            head = [first, *(name + b": " + value for name, value in kept)]
            ahead.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
            while chunk := await behind.read(65536):
                writer.write(chunk)
                await writer.drain()
        finally:
            ahead.close()


@asynccontextmanager
async def proxying(folder: Path, port: str, target: str) -> AsyncGenerator[None]:
    """Run the proxy once the recipe has made the certificates it needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    async with listening(Proxy(int(target)).talk, port=int(port), tls=context):
        yield


PLAIN = ("token", "api-key", "operate", "card")


def test_every_recipe_is_typed() -> None:
    others = {"oidc", "certificates", "mtls", "mtls-proxy"}
    assert recipes(GUIDE).keys() == {*PLAIN} | others
    assert all(typed.command for recipe in recipes(GUIDE).values() for typed in recipe)


@pytest.fixture
def ports() -> dict[str, str]:
    return {"8000": free_port(), "8443": free_port()}


@pytest.mark.parametrize("recipe", PLAIN)
def test_a_recipe_does_what_the_guide_says(
    recipe: str, tmp_path: Path, ports: dict[str, str]
) -> None:
    with shell(tmp_path, ports) as opened:
        follow(recipe, opened, ports)


async def test_the_recipe_with_a_provider_does_what_the_guide_says(
    tmp_path: Path, ports: dict[str, str]
) -> None:
    secret = "the secret of reports"
    provider = Provider(clients={"reports": secret})
    async with hosting(provider) as url:
        provider.url = url
        with shell(tmp_path, ports, ISSUER=url, A2ACLI_CLIENT_SECRET=secret) as opened:
            await asyncio.to_thread(follow, "oidc", opened, ports)
    assert len(provider.asked_for("/token")) == 1


async def test_the_recipes_with_certificates_do_what_the_guide_says(
    tmp_path: Path, ports: dict[str, str]
) -> None:
    with shell(tmp_path, ports) as opened:
        await asyncio.to_thread(follow, "certificates", opened, ports)
        await asyncio.to_thread(follow, "mtls", opened, ports)
    proxied = {"8000": ports["8000"], "8443": free_port()}
    (tmp_path / "behind").mkdir()
    for file in (*tmp_path.glob("*.pem"), *tmp_path.glob("*.key")):
        shutil.copy(file, tmp_path / "behind")
    async with proxying(tmp_path, proxied["8443"], proxied["8000"]):
        with shell(tmp_path / "behind", proxied) as opened:
            await asyncio.to_thread(follow, "mtls-proxy", opened, proxied)
