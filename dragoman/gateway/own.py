"""How the gateway proves to agents of its own process that it is the gateway."""

import hmac
import secrets

from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import Evidence, Pass, Refused


class OwnToken:
    """Knows the gateway by a token that lives as long as the process and leaves it never."""

    name = "gateway"
    challenge = ""
    header = "x-dragoman-gateway"
    reads = frozenset({header.encode()})

    def __init__(self) -> None:
        # Nobody else is to use it, so no card tells of it.
        self.schemes: dict[str, dict[str, Json]] = {}
        self.token = secrets.token_urlsafe(32)

    def __repr__(self) -> str:
        return "OwnToken('***')"

    async def start(self) -> None:
        """There is nothing to make ready."""

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def look(self, evidence: Evidence) -> Pass | None:
        """Return the gateway; None if nobody claims to be it."""
        shown = [value for name, value in evidence.headers if name == self.header.encode()]
        if not shown:
            return None
        if len(shown) != 1 or not hmac.compare_digest(shown[0], self.token.encode()):
            raise Refused("the token is not the gateway's")
        return Pass(Caller(owner="gateway", authenticated=True), self)

    def still_holds(self, found: Pass) -> bool:
        """It does for as long as this process lives."""
        return True
