"""Authentication of a scripted agent: the scheme in its card, and its check."""

import base64
import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any

from dragoman.errors import A2AError, Unauthenticated
from dragoman.testing.issuer import Issuer
from dragoman.testing.scripted.connection import ScriptedConnection
from dragoman.testing.scripted.script import ScriptedAccess

SCHEME = "demo"
# The path of the issuer, below the agent's address.
ISSUER = "/issuer"
_KEY_NAMES = {
    "api-key": ("header", "X-API-Key"),
    "api-key-query": ("query", "api_key"),
    "api-key-cookie": ("cookie", "api_key"),
}
_CHALLENGES = {"basic": 'Basic realm="demo"', "bearer": "Bearer", "oauth2": "Bearer"}


class Gate:
    """Checks callers by the scheme of the card."""

    def __init__(self, access: ScriptedAccess) -> None:
        self.access = access
        # Grants tokens; its clients are `demo`, with the secret, and `public`, without one.
        self.issuer: Issuer | None = None
        if access.kind in ("oauth2", "oidc"):
            clients = {"demo": access.secret, "public": ""}
            self.issuer = Issuer(clients=clients, interval=1, prefix=ISSUER)

    def schemes(self, base: str) -> dict[str, Any]:
        """Return the scheme as in a card of 1.0."""
        kind = self.access.kind
        issuer = base + ISSUER
        match kind:
            case "none":
                return {}
            case "bearer":
                scheme: dict[str, Any] = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
            case "basic":
                scheme = {"httpAuthSecurityScheme": {"scheme": "Basic"}}
            case "mtls":
                scheme = {"mtlsSecurityScheme": {"description": "A client certificate"}}
            case "oidc":
                url = f"{issuer}/.well-known/openid-configuration"
                scheme = {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}
            case "oauth2":
                return {
                    SCHEME: {"oauth2SecurityScheme": {"flows": {"deviceCode": _device(issuer)}}},
                    f"{SCHEME}-client": {
                        "oauth2SecurityScheme": {
                            "flows": {"clientCredentials": _client(issuer)},
                        }
                    },
                }
            case _:
                location, _name = _KEY_NAMES[kind]
                key = {"location": location, "name": self._key_name()}
                scheme = {"apiKeySecurityScheme": key}
        return {SCHEME: scheme}

    def requirements(self, base: str) -> list[Any]:
        """Return the requirements as in a card of 1.0: any one of the schemes."""
        return [{"schemes": {name: {"list": []}}} for name in self.schemes(base)]

    def refusal(self) -> A2AError:
        """Return the error for a missing or wrong credential."""
        return Unauthenticated(challenge=_CHALLENGES.get(self.access.kind, "Bearer"))

    def admits(self, connection: ScriptedConnection) -> bool:
        """Say whether a call is allowed. Certificates are checked by TLS."""
        access = self.access
        match access.kind:
            case "none" | "mtls":
                return True
            case "bearer":
                return _is(_presented(connection, "bearer"), access.secret)
            case "basic":
                wanted = base64.b64encode(access.secret.encode()).decode()
                return _is(_presented(connection, "basic"), wanted)
            case "oauth2" | "oidc":
                token = _presented(connection, "bearer")
                return self.issuer is not None and self.issuer.accepts(token)
            case "api-key":
                found = connection.headers.get(self._key_name().lower(), "")
            case "api-key-query":
                found = connection.parameter(self._key_name()) or ""
            case "api-key-cookie":
                found = _cookie(connection, self._key_name())
        return _is(found, access.secret)

    def _key_name(self) -> str:
        return self.access.name or _KEY_NAMES[self.access.kind][1]


def _device(issuer: str) -> dict[str, Any]:
    return {
        "deviceAuthorizationUrl": f"{issuer}/device",
        "tokenUrl": f"{issuer}/token",
        "scopes": {"tasks": "Use the agent"},
    }


def _client(issuer: str) -> dict[str, Any]:
    return {"tokenUrl": f"{issuer}/token", "scopes": {"tasks": "Use the agent"}}


def _presented(connection: ScriptedConnection, scheme: str) -> str:
    name, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() if name.lower() == scheme else ""


def _cookie(connection: ScriptedConnection, name: str) -> str:
    try:
        found = SimpleCookie(connection.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _is(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
