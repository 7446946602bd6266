"""What tests about tokens share: an agent, its issuer, and who asks there."""

import asyncio
import threading
from typing import Any

from harness.waiting import within

from dragoman.client.asgi import App, InProcess
from dragoman.client.credentials.credentials import Attached, Credential, OAuthFlow, Scheme
from dragoman.client.credentials.oauth import ClientAccount, ClientCredentials
from dragoman.client.credentials.origins import Origins
from dragoman.testing.clock import ManualClock
from dragoman.testing.issuer import OPENID, Issuer

ISSUER = "https://issuer.example"
AGENT = "https://agent.example/a2a"
TRUSTED = Origins([AGENT, ISSUER])
FLOWS = {
    "clientCredentials": OAuthFlow(f"{ISSUER}/token"),
    "deviceCode": OAuthFlow(f"{ISSUER}/token", f"{ISSUER}/device"),
}
SCHEME = Scheme("oauth", "oauth2", flows=FLOWS, scopes=("read",))
OIDC = Scheme("oidc", "openIdConnect", discovery_url=ISSUER + OPENID)
CLIENT, PUBLIC = ClientAccount("client", "secret"), ClientAccount("public")


async def token_of(
    credential: Any, http: Any, scheme: Scheme = SCHEME, origins: Origins = TRUSTED
) -> str:
    """Return the bearer token that a credential puts on a request."""
    to = Attached(AGENT)
    await credential.attach(scheme, to, http, origins)
    kind, _, token = to.headers["authorization"].partition(" ")
    assert kind == "Bearer"
    return token


def client(clock: ManualClock, **more: Any) -> ClientCredentials:
    return ClientCredentials("client", "secret", clock=clock, **more)


class Gate:
    """An issuer that holds up those who ask it until enough others wait for them."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._asked, self._opened = threading.Event(), threading.Event()

    async def tokens(self, credential: Credential) -> list[str]:
        """Return what a credential attaches on three loops at once, this one among them."""
        first = self._elsewhere(credential, threading.Event())
        assert await asyncio.to_thread(self._asked.wait, 60)
        ours = asyncio.create_task(self._token(credential, threading.Event()))
        await asyncio.sleep(0)
        waits = threading.Event()
        third = self._elsewhere(credential, waits)
        assert await asyncio.to_thread(waits.wait, 60)
        self._opened.set()
        return await within(asyncio.gather(first, ours, third))

    def _elsewhere(self, credential: Credential, waits: threading.Event) -> "asyncio.Task[str]":
        running = asyncio.to_thread(lambda: asyncio.run(self._token(credential, waits)))
        return asyncio.create_task(running)

    async def _token(self, credential: Credential, waits: threading.Event) -> str:
        http = InProcess(self._entrance())
        # Called when what follows waits for something.
        asyncio.get_running_loop().call_soon(waits.set)
        try:
            async with asyncio.timeout(60):
                return await token_of(credential, http)
        finally:
            await http.close()

    def _entrance(self) -> App:
        # One for each loop: an app runs on one alone.
        async def entrance(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self._asked.set()
                await asyncio.to_thread(self._opened.wait, 60)
                await self._issuer(scope, receive, send)

        return entrance


class Shown:
    """What a person was shown."""

    def __init__(self) -> None:
        self.codes: list[tuple[str, str, str]] = []

    def __call__(self, user_code: str, address: str, complete: str) -> None:
        self.codes.append((user_code, address, complete))
