"""The members that 1.0 knows of a card, by its rules of presence: what a signature covers.

Signers serialize a message of protobuf, so a member that is unset, or empty without presence of its
own, is not there for them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from dragoman.errors import CardInvalid


class _Member(NamedTuple):
    """A member of a message of 1.0: how it is read, and when it is left out."""

    read: Callable[[Any, str], Any]
    # A member that is required or has presence of its own stays even when it is empty.
    stays: bool


def known_members(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a signature covers of a card; raises `CardInvalid` if it is none of 1.0."""
    return _message("AgentCard")(dict(card), "")


def _message(name: str) -> Callable[[Any, str], dict[str, Any]]:
    def read(value: Any, path: str) -> dict[str, Any]:
        fields = _struct(value, path)
        found: dict[str, Any] = {}
        for member, (item, stays) in _MESSAGES[name].items():
            snake = "".join("_" + c.lower() if c.isupper() else c for c in member)
            given = fields.get(member, fields.get(snake))
            # null is unset.
            if given is None:
                continue
            member_value = item(given, f"{path}.{member}" if path else member)
            if stays or member_value not in ("", [], {}, False):
                found[member] = member_value
        return found

    return read


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise CardInvalid(f"{path}: must be a string", field=path)
    return value


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise CardInvalid(f"{path}: must be true or false", field=path)
    return value


def _struct(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CardInvalid(f"{path}: must be an object", field=path)
    return cast(dict[str, Any], value)


def _list(item: Callable[[Any, str], Any]) -> Callable[[Any, str], list[Any]]:
    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise CardInvalid(f"{path}: must be a list", field=path)
        elements = enumerate(cast("list[Any]", value))
        return [item(element, f"{path}[{index}]") for index, element in elements]

    return read


def _map(item: Callable[[Any, str], Any]) -> Callable[[Any, str], dict[str, Any]]:
    def read(value: Any, path: str) -> dict[str, Any]:
        fields = _struct(value, path)
        return {name: item(element, f"{path}.{name}") for name, element in fields.items()}

    return read


def _required(read: Callable[[Any, str], Any]) -> _Member:
    return _Member(read, True)


def _present(read: Callable[[Any, str], Any]) -> _Member:
    """An `optional` member, or a message: set is set, even to what is its default."""
    return _Member(read, True)


def _plain(read: Callable[[Any, str], Any]) -> _Member:
    return _Member(read, False)


_TEXTS = _list(_text)
_REQUIREMENTS = _plain(_list(_message("SecurityRequirement")))
_SCOPES = _required(_map(_text))

# What 1.0 knows of a card, which members it requires and which have presence.
_MESSAGES: Mapping[str, Mapping[str, _Member]] = {
    "AgentCard": {
        "name": _required(_text),
        "description": _required(_text),
        "supportedInterfaces": _required(_list(_message("AgentInterface"))),
        "provider": _present(_message("AgentProvider")),
        "version": _required(_text),
        "documentationUrl": _present(_text),
        "capabilities": _required(_message("AgentCapabilities")),
        "securitySchemes": _plain(_map(_message("SecurityScheme"))),
        "securityRequirements": _REQUIREMENTS,
        "defaultInputModes": _required(_TEXTS),
        "defaultOutputModes": _required(_TEXTS),
        "skills": _required(_list(_message("AgentSkill"))),
        "iconUrl": _present(_text),
    },
    "AgentInterface": {
        "url": _required(_text),
        "protocolBinding": _required(_text),
        "tenant": _plain(_text),
        "protocolVersion": _required(_text),
    },
    "AgentProvider": {"url": _required(_text), "organization": _required(_text)},
    "AgentCapabilities": {
        "streaming": _present(_boolean),
        "pushNotifications": _present(_boolean),
        "extensions": _plain(_list(_message("AgentExtension"))),
        "extendedAgentCard": _present(_boolean),
    },
    "AgentExtension": {
        "uri": _plain(_text),
        "description": _plain(_text),
        "required": _plain(_boolean),
        "params": _present(_struct),
    },
    "AgentSkill": {
        "id": _required(_text),
        "name": _required(_text),
        "description": _required(_text),
        "tags": _required(_TEXTS),
        "examples": _plain(_TEXTS),
        "inputModes": _plain(_TEXTS),
        "outputModes": _plain(_TEXTS),
        "securityRequirements": _REQUIREMENTS,
    },
    "SecurityRequirement": {"schemes": _plain(_map(_message("StringList")))},
    "StringList": {"list": _plain(_TEXTS)},
    "SecurityScheme": {
        "apiKeySecurityScheme": _present(_message("ApiKey")),
        "httpAuthSecurityScheme": _present(_message("HttpAuth")),
        "oauth2SecurityScheme": _present(_message("OAuth2")),
        "openIdConnectSecurityScheme": _present(_message("OpenIdConnect")),
        "mtlsSecurityScheme": _present(_message("MutualTls")),
    },
    "ApiKey": {
        "description": _plain(_text),
        "location": _required(_text),
        "name": _required(_text),
    },
    "HttpAuth": {
        "description": _plain(_text),
        "scheme": _required(_text),
        "bearerFormat": _plain(_text),
    },
    "OAuth2": {
        "description": _plain(_text),
        "flows": _required(_message("Flows")),
        "oauth2MetadataUrl": _plain(_text),
    },
    "OpenIdConnect": {"description": _plain(_text), "openIdConnectUrl": _required(_text)},
    "MutualTls": {"description": _plain(_text)},
    "Flows": {
        "authorizationCode": _present(_message("AuthorizationCode")),
        "clientCredentials": _present(_message("ClientCredentials")),
        "implicit": _present(_message("Implicit")),
        "password": _present(_message("Password")),
        "deviceCode": _present(_message("DeviceCode")),
    },
    "AuthorizationCode": {
        "authorizationUrl": _required(_text),
        "tokenUrl": _required(_text),
        "refreshUrl": _plain(_text),
        "scopes": _SCOPES,
        "pkceRequired": _plain(_boolean),
    },
    "ClientCredentials": {
        "tokenUrl": _required(_text),
        "refreshUrl": _plain(_text),
        "scopes": _SCOPES,
    },
    "Implicit": {
        "authorizationUrl": _plain(_text),
        "refreshUrl": _plain(_text),
        "scopes": _plain(_map(_text)),
    },
    "Password": {
        "tokenUrl": _plain(_text),
        "refreshUrl": _plain(_text),
        "scopes": _plain(_map(_text)),
    },
    "DeviceCode": {
        "deviceAuthorizationUrl": _required(_text),
        "tokenUrl": _required(_text),
        "refreshUrl": _plain(_text),
        "scopes": _SCOPES,
    },
}
