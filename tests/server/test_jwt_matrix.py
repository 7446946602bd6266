"""Every token that must not open anything, over every binding of one server: one answer to all.

The requests are written by hand, because no client sends some of them.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from harness.serving import hosting, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, App, Settings
from dragoman.config import HttpSettings, StoreSettings
from dragoman.security.audit.log import NoAudit
from dragoman.security.authentication import NO_CREDENTIALS, UNKNOWN_CREDENTIALS
from dragoman.security.jwt.authenticator import JwtAuthenticator
from tests.security.jwt.cases import Case, Header, admitted, bearer, refused
from tests.security.jwt.minting import ABSENT, AUDIENCE, ISSUER, NOW, jwks, pem, token

pytestmark = pytest.mark.anyio

BODY = b'{"error":{"message":"Authentication is required"}}'
CHALLENGE = b'Bearer realm="dragoman"'
# More than a head of a request may have, so it may be refused before anyone looks at it.
TOO_LONG = "a token of 100 KB"


class Binding(NamedTuple):
    path: str
    version: str
    body: Any


def _rpc(method: str, sent: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": sent}}


BINDINGS = {
    "JSON-RPC 1.0": Binding("/", "1.0", _rpc("SendMessage", message("hello"))),
    "JSON-RPC 1.0 streaming": Binding("/", "1.0", _rpc("SendStreamingMessage", message("hello"))),
    "REST 1.0": Binding("/message:send", "1.0", {"message": message("hello")}),
    "JSON-RPC 0.3": Binding("/", "0.3", _rpc("message/send", old_message("hello"))),
    "REST 0.3": Binding("/v1/message:send", "0.3", {"message": old_message("hello")}),
}


class Reply(NamedTuple):
    status: int
    headers: list[Header]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


class Recorder(NoAudit):
    """Keeps what an audit would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []

    def record(
        self,
        act: str,
        *,
        outcome: str,
        who: str = "",
        object: str = "",
        reason: str = "",
        address: str = "",
        trace: str = "",
        count: int = 1,
    ) -> None:
        self.told.append((act, outcome, who, reason))


class House:
    """A server whose callers need a token."""

    def __init__(self, url: str, audit: Recorder) -> None:
        self.audit = audit
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port

    async def ask(self, binding: Binding, headers: list[Header], query: str = "") -> Reply:
        body = json.dumps(binding.body).encode()
        path = f"{binding.path}?{query}" if query else binding.path
        lines = [
            f"POST {path} HTTP/1.1".encode(),
            f"Host: {self._host}:{self._port}".encode(),
            b"Content-Type: application/json",
            f"A2A-Version: {binding.version}".encode(),
            b"Content-Length: %d" % len(body),
            b"Connection: close",
            *(b"%b: %b" % header for header in headers),
        ]
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            text = await within(reader.read())
        finally:
            writer.close()
        head, _, content = text.partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        pairs = [tuple(field.split(b": ", 1)) for field in fields]
        # The date is the only thing that may differ.
        kept = sorted((name.lower(), value) for name, value in pairs if name.lower() != b"date")
        return Reply(int(first.split(b" ")[1]), kept, content)


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[House]:
    keys = folder / "keys.json"
    keys.write_text(json.dumps(jwks()))
    authenticator = JwtAuthenticator(
        issuer=ISSUER, audience=[AUDIENCE], key_file=keys, now=lambda: NOW
    )
    agent = Agent("House", "has doors")

    @agent.skill
    async def greet(text: str) -> str:
        """Greet."""
        return text

    settings = Settings(
        stores=StoreSettings(location="memory:"), http=HttpSettings(rate_limit_failures="off")
    )
    app = App(agent, settings=settings, authenticators=[authenticator])
    # What is recorded is asked for here; how it is kept is the log's own matter.
    recorder = app.site.audit = app.access._audit = Recorder()
    async with hosting(app) as url:
        yield House(url, recorder)


def told(case: Case) -> tuple[str, str, str, str]:
    """What the audit is told of a case."""
    reason = case.reason
    # The certificate that tokens are bound to is not shown here.
    if case.name == "cnf of another certificate":
        reason = "the token is bound to a certificate, and none was shown"
    is_tried = any(name == b"authorization" for name, _ in case.headers)
    nothing = UNKNOWN_CREDENTIALS if is_tried else NO_CREDENTIALS
    return ("auth.denied", "denied", "", f"jwt: {reason}" if reason else nothing)


@pytest.mark.parametrize("name", BINDINGS)
async def test_all_of_them_get_the_same_answer_and_the_audit_is_told_why(
    name: str, tmp_path: Path
) -> None:
    binding = BINDINGS[name]
    async with opened(tmp_path) as house:
        first = await house.ask(binding, [])
        assert (first.status, first.body) == (401, BODY)
        assert first.values(b"www-authenticate") == [CHALLENGE]
        for case in refused().values():
            house.audit.told.clear()
            reply = await house.ask(binding, case.headers, case.query)
            if case.name == TOO_LONG and reply.status == 431:
                continue
            assert reply == first, case.name
            noted = [(act, outcome, "", reason) for act, outcome, _, reason in house.audit.told]
            assert noted == [told(case)], case.name
        # None of them left anything behind, and the server goes on.
        reply = await house.ask(binding, bearer(token()))
        assert reply.status == 200 and b"hello" in reply.body
        listing = Binding("/", "1.0", {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"})
        tasks = json.loads((await house.ask(listing, bearer(token()))).body)["result"]
        assert tasks["totalSize"] <= 1


@pytest.mark.parametrize("name", BINDINGS)
async def test_what_is_right_is_let_in_over_every_binding(name: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        for case in admitted():
            reply = await house.ask(BINDINGS[name], case.headers)
            # Nobody shows a certificate here, so what is bound to one stays out.
            assert reply.status == (401 if case.name.startswith("cnf") else 200), case.name


async def test_the_settings_name_the_keys_and_the_card_says_what_is_needed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.pem"
    keys.write_bytes(pem("ec"))
    house = Agent("House", "has doors")

    @house.skill
    async def greet(text: str) -> str:
        """Greet."""
        return text

    async with serving(
        house, auth="jwt", jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_keys=str(keys)
    ) as site:
        path, asked = "/.well-known/agent-card.json", {"A2A-Version": "1.0"}
        card = (await site.http.get(path, headers=asked)).json()
        scheme = {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}}
        assert card["securitySchemes"] == {"bearer": scheme}
        old = (await site.http.get(path, headers={"A2A-Version": "0.3"})).json()["securitySchemes"]
        assert old["bearer"]["type"] == "http" and old["bearer"]["bearerFormat"] == "JWT"
        good = token(iat=ABSENT, exp=int(time.time()) + 600)
        past = token(iat=ABSENT, exp=int(time.time()) - 61)
        for text, status in ((good, 200), (past, 401), (good, 200)):
            told = {"authorization": f"Bearer {text}", **asked}
            body = BINDINGS["JSON-RPC 1.0"].body
            assert (await site.post(body, headers=told)).status_code == status
