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


class Shown:
    """What a person was shown."""

    def __init__(self) -> None:
        self.codes: list[tuple[str, str, str]] = []

    def __call__(self, user_code: str, address: str, complete: str) -> None:
        self.codes.append((user_code, address, complete))
