"""How a card tells callers to get a token: OAuth 2 flows, or where an issuer describes itself.

A scheme of 1.0 has one flow, so several flows are several schemes, any one of which will do.
"""

from collections.abc import Mapping

import msgspec

from dragoman.model.message import Json
from dragoman.security.jwt.jwks import JwksEndpoints

_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class Flows(msgspec.Struct, frozen=True):
    """Where tokens are to be had, and which scopes there are with what they mean."""

    token_url: str = ""
    authorization_url: str = ""
    device_url: str = ""
    scopes: Mapping[str, str] = {}
    has_client_credentials: bool = True

    def with_endpoints(self, endpoints: JwksEndpoints) -> "Flows":
        """Return the same with the places that an issuer names."""
        grants = endpoints.grants
        return Flows(
            endpoints.token_url,
            endpoints.authorization_url if "authorization_code" in grants else "",
            endpoints.device_url if _DEVICE_GRANT in grants else "",
            self.scopes,
            "client_credentials" in grants,
        )

    def described(self) -> dict[str, Json]:
        """Return each flow under its name in the card, what agents use among themselves first."""
        if not self.token_url:
            return {}
        common: dict[str, Json] = {"tokenUrl": self.token_url, "scopes": dict(self.scopes)}
        flows: dict[str, Json] = {}
        if self.has_client_credentials:
            flows["clientCredentials"] = common
        if self.authorization_url:
            flows["authorizationCode"] = {"authorizationUrl": self.authorization_url, **common}
        if self.device_url:
            flows["deviceCode"] = {"deviceAuthorizationUrl": self.device_url, **common}
        return flows


def schemes(name: str, flows: Flows, discovery_url: str) -> dict[str, dict[str, Json]]:
    """Return the schemes of a card, the main one under the name and further ones beside it."""
    found: dict[str, dict[str, Json]] = {}
    for kind, flow in flows.described().items():
        key = f"{name}__{kind}" if found else name
        found[key] = {"oauth2SecurityScheme": {"flows": {kind: flow}}}
    if found:
        return found
    if discovery_url:
        return {name: {"openIdConnectSecurityScheme": {"openIdConnectUrl": discovery_url}}}
    return {name: {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}}}
