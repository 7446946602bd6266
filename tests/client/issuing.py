"""What tests about tokens share: an agent, its issuer, and who asks there."""

from typing import Any

from dragoman.client.credentials import Attached, Flow, Scheme
from dragoman.client.oauth import Account, ClientCredentials
from dragoman.client.origins import Origins
from dragoman.mock.issuer import OPENID
from dragoman.testing.clock import ManualClock

ISSUER = "https://issuer.example"
AGENT = "https://agent.example/a2a"
TRUSTED = Origins([AGENT, ISSUER])
FLOWS = {
    "clientCredentials": Flow(f"{ISSUER}/token"),
    "deviceCode": Flow(f"{ISSUER}/token", f"{ISSUER}/device"),
}
SCHEME = Scheme("oauth", "oauth2", flows=FLOWS, scopes=("read",))
OIDC = Scheme("oidc", "openIdConnect", discovery_url=ISSUER + OPENID)
CLIENT, PUBLIC = Account("client", "secret"), Account("public")


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
    """Holds up those who ask an issuer until it is opened, on whichever loop they are."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._asked, self._opened = threading.Event(), threading.Event()

    async def asked(self) -> None:
        assert await asyncio.to_thread(self._asked.wait, 10)

    def open(self) -> None:
        self._opened.set()

    def carrier(self) -> InProcess:
        """Return a way to the issuer for one loop."""

        async def entrance(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self._asked.set()
                await asyncio.to_thread(self._opened.wait, 10)
                await self._issuer(scope, receive, send)

        return InProcess(entrance)

    async def token(self, credential: Credential) -> str:
        http = self.carrier()
        try:
            return await token_of(credential, http)
        finally:
            await http.close()

    async def tokens_on_two_loops(self, credential: Credential) -> list[str]:
        """Return what a credential attaches on another loop and, meanwhile, on this one."""
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, self.token(credential)))
        await self.asked()
        ours = asyncio.create_task(self.token(credential))
        # So that it waits for the other before that one has its token.
        await asyncio.sleep(0)
        self.open()
        return await within(asyncio.gather(other, ours))


class Shown:
    """What a person was shown."""

    def __init__(self) -> None:
        self.codes: list[tuple[str, str, str]] = []

    def __call__(self, user_code: str, address: str, complete: str) -> None:
        self.codes.append((user_code, address, complete))
