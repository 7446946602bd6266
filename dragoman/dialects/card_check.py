"""Everything that is wrong with an agent card by the letter of its own version.

Clients read cards leniently; this is for authors of cards. Types and required
members as 1.0, 0.3 and 0.2 have them; a member that no version knows is not a mistake.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

Object = dict[str, Any]
Check = Callable[[Any, str], Iterator["CardFinding"]]


class CardFinding(NamedTuple):
    """One thing that is wrong, and where."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


def findings(raw: Any) -> list[CardFinding]:
    """Return all that is wrong with a card, in the order of its members; [] for a good one."""
    if not isinstance(raw, dict):
        return [CardFinding("", "must be an object")]
    card = cast(Object, raw)
    if "supportedInterfaces" in card:
        return list(_V1_0(card, ""))
    version = card.get("protocolVersion")
    # A card with neither is measured by what is expected of one today.
    if version is None and "url" not in card:
        return list(_V1_0(card, ""))
    if isinstance(version, str) and version.startswith("0.2"):
        return list(_V0_2(card, ""))
    return list(_V0_3(card, ""))


class _Member(NamedTuple):
    check: Check
    is_required: bool = False


def _needs(check: Check) -> _Member:
    return _Member(check, True)


def _may(check: Check) -> _Member:
    return _Member(check)


def _object(members: Mapping[str, _Member]) -> Check:
    def check(value: Any, path: str) -> Iterator[CardFinding]:
        if not isinstance(value, dict):
            yield CardFinding(path, "must be an object")
            return
        fields = cast(Object, value)
        for name, member in members.items():
            place = f"{path}.{name}" if path else name
            if fields.get(name) is not None:
                yield from member.check(fields[name], place)
            elif member.is_required:
                yield CardFinding(place, "is required")

    return check


def _text(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, str):
        yield CardFinding(path, "must be a string")


def _filled(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, str) or not value:
        yield CardFinding(path, "must be a string that is not empty")


def _url(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, str) or not value.lower().startswith(("https://", "http://")):
        yield CardFinding(path, "must be an absolute URL of http or https")


def _version(value: Any, path: str) -> Iterator[CardFinding]:
    numbers = value.split(".") if isinstance(value, str) else []
    if len(numbers) < 2 or not all(part.isascii() and part.isdigit() for part in numbers[:2]):
        yield CardFinding(path, "must be a version such as 1.0")


def _boolean(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, bool):
        yield CardFinding(path, "must be true or false")


def _struct(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, dict):
        yield CardFinding(path, "must be an object")


def _list(item: Check, *, filled: bool = False) -> Check:
    def check(value: Any, path: str) -> Iterator[CardFinding]:
        if not isinstance(value, list):
            yield CardFinding(path, "must be a list")
            return
        elements = cast("list[Any]", value)
        if filled and not elements:
            yield CardFinding(path, "must not be empty")
        for index, element in enumerate(elements):
            yield from item(element, f"{path}[{index}]")

    return check


def _map(item: Check) -> Check:
    def check(value: Any, path: str) -> Iterator[CardFinding]:
        yield from _struct(value, path)
        if isinstance(value, dict):
            for name, element in cast(Object, value).items():
                yield from item(element, f"{path}.{name}")

    return check


def _either(*allowed: str) -> Check:
    def check(value: Any, path: str) -> Iterator[CardFinding]:
        if value not in allowed:
            yield CardFinding(path, f"must be one of {', '.join(allowed)}")

    return check


def _one_of(members: Mapping[str, Check]) -> Check:
    """An object with exactly one of some members."""

    def check(value: Any, path: str) -> Iterator[CardFinding]:
        if not isinstance(value, dict):
            yield CardFinding(path, "must be an object")
            return
        fields = cast(Object, value)
        given = [name for name in members if fields.get(name) is not None]
        if len(given) != 1:
            yield CardFinding(path, f"must have exactly one of {', '.join(members)}")
        for name in given:
            yield from members[name](fields[name], f"{path}.{name}")

    return check


def _interface(value: Any, path: str) -> Iterator[CardFinding]:
    yield from _INTERFACE(value, path)
    if isinstance(value, dict):
        fields = cast(Object, value)
        # Only gRPC has addresses without a scheme.
        if isinstance(fields.get("url"), str) and fields.get("protocolBinding") != "GRPC":
            yield from _url(fields["url"], f"{path}.url")


def _scheme_0_x(value: Any, path: str) -> Iterator[CardFinding]:
    if not isinstance(value, dict):
        yield CardFinding(path, "must be an object")
        return
    kind = cast(Object, value).get("type")
    check = _SCHEMES_0_X.get(kind) if isinstance(kind, str) else None
    if check is None:
        yield CardFinding(f"{path}.type", f"must be one of {', '.join(_SCHEMES_0_X)}")
    else:
        yield from check(value, path)


_TEXTS = _list(_text)
_FILLED_TEXTS = _list(_text, filled=True)
_SCOPES = _map(_text)
_LOCATION = _either("query", "header", "cookie")
_PROVIDER = _object({"url": _needs(_text), "organization": _needs(_text)})
_EXTENSION = _object(
    {
        "uri": _needs(_filled),
        "description": _may(_text),
        "required": _may(_boolean),
        "params": _may(_struct),
    }
)
_SIGNATURE = _object(
    {"protected": _needs(_filled), "signature": _needs(_filled), "header": _may(_struct)}
)

_AUTHORIZATION_CODE = {
    "authorizationUrl": _needs(_url),
    "tokenUrl": _needs(_url),
    "refreshUrl": _may(_text),
    "scopes": _needs(_SCOPES),
}
_CLIENT_CREDENTIALS = {
    "tokenUrl": _needs(_url),
    "refreshUrl": _may(_text),
    "scopes": _needs(_SCOPES),
}
_IMPLICIT = {
    "authorizationUrl": _needs(_url),
    "refreshUrl": _may(_text),
    "scopes": _needs(_SCOPES),
}

# 1.0
_REQUIREMENTS = _list(_object({"schemes": _may(_map(_object({"list": _may(_TEXTS)})))}))
_INTERFACE = _object(
    {
        "url": _needs(_filled),
        "protocolBinding": _needs(_filled),
        "protocolVersion": _needs(_version),
        "tenant": _may(_text),
    }
)
_FLOWS = _one_of(
    {
        "authorizationCode": _object({**_AUTHORIZATION_CODE, "pkceRequired": _may(_boolean)}),
        "clientCredentials": _object(_CLIENT_CREDENTIALS),
        "implicit": _object(_IMPLICIT),
        "password": _object(_CLIENT_CREDENTIALS),
        "deviceCode": _object(
            {
                "deviceAuthorizationUrl": _needs(_url),
                "tokenUrl": _needs(_url),
                "refreshUrl": _may(_text),
                "scopes": _needs(_SCOPES),
            }
        ),
    }
)
_API_KEY = {"name": _needs(_filled), "description": _may(_text)}
_HTTP = {"scheme": _needs(_filled), "bearerFormat": _may(_text), "description": _may(_text)}
_OPEN_ID = {"openIdConnectUrl": _needs(_url), "description": _may(_text)}
_MUTUAL_TLS = {"description": _may(_text)}
_SCHEME = _one_of(
    {
        "apiKeySecurityScheme": _object({"location": _needs(_LOCATION), **_API_KEY}),
        "httpAuthSecurityScheme": _object(_HTTP),
        "oauth2SecurityScheme": _object(
            {
                "flows": _needs(_FLOWS),
                "oauth2MetadataUrl": _may(_text),
                "description": _may(_text),
            }
        ),
        "openIdConnectSecurityScheme": _object(_OPEN_ID),
        "mtlsSecurityScheme": _object(_MUTUAL_TLS),
    }
)
_SKILL = {
    "id": _needs(_filled),
    "name": _needs(_filled),
    "description": _needs(_text),
    "tags": _needs(_FILLED_TEXTS),
    "examples": _may(_TEXTS),
    "inputModes": _may(_TEXTS),
    "outputModes": _may(_TEXTS),
}
_V1_0 = _object(
    {
        "name": _needs(_filled),
        "description": _needs(_text),
        "supportedInterfaces": _needs(_list(_interface, filled=True)),
        "provider": _may(_PROVIDER),
        "version": _needs(_filled),
        "documentationUrl": _may(_text),
        "capabilities": _needs(
            _object(
                {
                    "streaming": _may(_boolean),
                    "pushNotifications": _may(_boolean),
                    "extensions": _may(_list(_EXTENSION)),
                    "extendedAgentCard": _may(_boolean),
                }
            )
        ),
        "securitySchemes": _may(_map(_SCHEME)),
        "securityRequirements": _may(_REQUIREMENTS),
        "defaultInputModes": _needs(_FILLED_TEXTS),
        "defaultOutputModes": _needs(_FILLED_TEXTS),
        "skills": _needs(
            _list(_object({**_SKILL, "securityRequirements": _may(_REQUIREMENTS)}), filled=True)
        ),
        "signatures": _may(_list(_SIGNATURE)),
        "iconUrl": _may(_text),
    }
)

# 0.x: security as OpenAPI has it, lists that may be empty.
_REQUIREMENTS_0_X = _list(_map(_TEXTS))
_TYPE = _needs(_text)
_SCHEMES_0_X: Mapping[str, Check] = {
    "apiKey": _object({"type": _TYPE, "in": _needs(_LOCATION), **_API_KEY}),
    "http": _object({"type": _TYPE, **_HTTP}),
    "oauth2": _object(
        {
            "type": _TYPE,
            "flows": _needs(
                _object(
                    {
                        "authorizationCode": _may(_object(_AUTHORIZATION_CODE)),
                        "clientCredentials": _may(_object(_CLIENT_CREDENTIALS)),
                        "implicit": _may(_object(_IMPLICIT)),
                        "password": _may(_object(_CLIENT_CREDENTIALS)),
                    }
                )
            ),
            "oauth2MetadataUrl": _may(_text),
            "description": _may(_text),
        }
    ),
    "openIdConnect": _object({"type": _TYPE, **_OPEN_ID}),
    "mutualTLS": _object({"type": _TYPE, **_MUTUAL_TLS}),
}
_SKILL_0_X = {**_SKILL, "tags": _needs(_TEXTS)}
_OLDER: Mapping[str, _Member] = {
    "protocolVersion": _needs(_version),
    "name": _needs(_filled),
    "description": _needs(_text),
    "url": _needs(_url),
    "preferredTransport": _may(_filled),
    "additionalInterfaces": _may(
        _list(_object({"url": _needs(_filled), "transport": _needs(_filled)}))
    ),
    "provider": _may(_PROVIDER),
    "version": _needs(_filled),
    "documentationUrl": _may(_text),
    "iconUrl": _may(_text),
    "capabilities": _needs(
        _object(
            {
                "streaming": _may(_boolean),
                "pushNotifications": _may(_boolean),
                "stateTransitionHistory": _may(_boolean),
                "extensions": _may(_list(_EXTENSION)),
            }
        )
    ),
    "securitySchemes": _may(_map(_scheme_0_x)),
    "security": _may(_REQUIREMENTS_0_X),
    "defaultInputModes": _needs(_TEXTS),
    "defaultOutputModes": _needs(_TEXTS),
    "supportsAuthenticatedExtendedCard": _may(_boolean),
}
_V0_3 = _object(
    {
        **_OLDER,
        "skills": _needs(_list(_object({**_SKILL_0_X, "security": _may(_REQUIREMENTS_0_X)}))),
        "signatures": _may(_list(_SIGNATURE)),
    }
)
# The version became a member on the way, with 0.2.5; nothing else that is required did.
_V0_2 = _object({**_OLDER, "skills": _needs(_list(_object(_SKILL_0_X)))})
