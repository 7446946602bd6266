"""Authenticates the gateway to agents of its own process."""

import hmac
import secrets

from dragoman.model.identity import Caller, Principal
from dragoman.model.message import Json
from dragoman.security.authentication import CredentialRefused, Evidence, Pass


class SelfToken:
    """Accepts a token that lives as long as the process and never leaves it."""

    name = "gateway"
    # Whose tasks are those that it gives to these agents.
    principal = Principal(owner="gateway")
    challenge = ""
    header = "x-dragoman-gateway"
    reads = frozenset({header.encode()})

    def __init__(self) -> None:
        # Only the gateway uses it: no card declares it.
        self.schemes: dict[str, dict[str, Json]] = {}
        self.token = secrets.token_urlsafe(32)

    def __repr__(self) -> str:
        return "SelfToken('***')"

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return the gateway; None if the request has no such token."""
        shown = [value for name, value in evidence.headers if name == self.header.encode()]
        if not shown:
            return None
        if len(shown) != 1 or not hmac.compare_digest(shown[0], self.token.encode()):
            raise CredentialRefused("the token is not the gateway's")
        return Pass(Caller(owner=self.principal.owner, authenticated=True), self)

    def still_holds(self, found: Pass) -> bool:
        """The token is valid as long as this process lives."""
        return True
