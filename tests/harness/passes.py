"""Passes that end when a test says so."""

from typing import Any, ClassVar

from dragoman.model.identity import Caller
from dragoman.security.authentication import NEVER, CredentialRefused, Evidence, Pass


class RevocableWay:
    """An authenticator whose passes end when a test says so."""

    name = "revocable"
    challenge = "Bearer"
    schemes: ClassVar[dict[str, Any]] = {
        "revocable": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
    }
    reads = frozenset({b"authorization"})

    def __init__(self) -> None:
        self.is_revoked = False
        self.until = NEVER
        self.asked = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        self.asked += 1
        if self.is_revoked or self.until != NEVER:
            raise CredentialRefused("it is over")
        return Pass(Caller("alice", True), self, until=1_000.0)

    def still_holds(self, found: Pass) -> bool:
        return not self.is_revoked
