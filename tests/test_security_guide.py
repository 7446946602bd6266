"""The recipes of the security guide are typed as they stand there, into a real shell.

A block after `<!-- run: NAME -->` belongs to the recipe NAME, whose blocks share one shell in a
fresh folder. A comment below a command is something the command has to print. The ports are the
only thing that is changed.
"""

import asyncio
import os
import queue
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from harness.processes import ROOT, START_WITHIN
from harness.serving import hosting
from harness.stub_servers import listening

from dragoman.testing.issuer import Issuer
from tests.security.jwt import minting

GUIDE = ROOT / "docs" / "security.md"
BLOCK = re.compile(r"^<!-- run: ([\w-]+) -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What is printed after the next look at a file, which servers take once a second.
SOON = "within a second: "
AUDIENCE = "https://agent.example.com"


class Typed(NamedTuple):
    """A command, and what the guide says it prints."""

    command: str
    printed: list[str]


def recipes() -> dict[str, list[Typed]]:
    found: dict[str, list[Typed]] = {}
    for name, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        found.setdefault(name, []).extend(commands(text))
    return found


def commands(text: str) -> list[Typed]:
    found: list[Typed] = []
    for line in text.splitlines():
        if line.startswith("#"):
            found[-1].printed.append(line.removeprefix("# "))
        elif line:
            found.append(Typed(line, []))
    return found


class Shell:
    """A bash, and what it showed of each command."""

    def __init__(self, folder: Path, **variables: str) -> None:
        reading, self._writing = os.pipe()
        # The commands come by a way of their own, so that none of them reads the next one.
        loop = 'while IFS= read -r -d "" line <&%d; do eval "$line" %d<&-; echo "$END $?"; done'
        self._end = f"end-{random.getrandbits(64):x}"
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ours = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-c", loop % (reading, reading)],
            cwd=folder,
            env=kept | {"HOME": str(folder), "PATH": ours, "END": self._end} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[reading],
            text=True,
            start_new_session=True,
        )
        os.close(reading)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def type(self, command: str) -> str:
        """Return what a command shows, and its exit code on the last line."""
        os.write(self._writing, command.encode() + b"\0")
        shown: list[str] = []
        is_serving = command.rstrip().endswith("&")
        has_ended = is_ready = False
        while not has_ended or (is_serving and not is_ready):
            try:
                line = self._lines.get(timeout=START_WITHIN)
            except queue.Empty:
                raise AssertionError(f"{command}: nothing more after\n{shown}") from None
            assert line is not None, f"the shell ended:\n{shown}"
            # A command may end without a newline.
            if self._end in line:
                text, _, code = line.partition(f"{self._end} ")
                shown += [text, f"exit {code}"]
                has_ended = True
            else:
                shown.append(line)
                is_ready = is_ready or line.startswith("Ready: ")
        return "\n".join(shown)

    def close(self) -> None:
        """End it and all that it started."""
        os.close(self._writing)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            self._reader.join(START_WITHIN / 3)
            if not self._reader.is_alive():
                break
        self._process.wait(START_WITHIN)


@contextmanager
def shell(folder: Path, ports: dict[str, str], **variables: str) -> Generator[Shell]:
    """Open a shell in a folder with the examples; servers that name no port get ours."""
    listen = f"127.0.0.1:{ports['8000']}"
    shutil.copytree(ROOT / "examples", folder / "examples")
    opened = Shell(folder, DRAGOMAN_LISTEN=listen, **variables)
    try:
        yield opened
    finally:
        opened.close()


def follow(recipe: str, opened: Shell, ports: dict[str, str]) -> None:
    """Type a recipe; each command has to print what the guide says."""
    for typed in recipes()[recipe]:
        command = moved(typed.command, ports)
        printed = [moved(text, ports) for text in typed.printed]
        wanted = [text.removeprefix(SOON) for text in printed]
        until = time.monotonic() + START_WITHIN
        shown = opened.type(command)
        while printed != wanted and not all(text in shown for text in wanted):
            assert time.monotonic() < until, f"{command}\n{shown}\nlacks {wanted}"
            shown = opened.type(command)
        for text in wanted:
            assert text in shown, f"{command}\n{shown}\nlacks {text}"
        fails = any(text.startswith("Error: ") for text in wanted)
        assert ("\nexit 0" in shown) is not fails, f"{command}\n{shown}"


def moved(text: str, ports: dict[str, str]) -> str:
    for said, real in ports.items():
        text = re.sub(rf"(?<=:){said}\b", real, text)
    return text


def free_port() -> str:
    """Return a port that nobody has and nobody is given by chance."""
    for _ in range(100):
        number = random.randrange(20_000, 30_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", number))
            except OSError:
                continue
            return str(number)
    raise AssertionError("no port is free")


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
    assert recipes().keys() == {*PLAIN} | others
    assert all(typed.command for recipe in recipes().values() for typed in recipe)


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
