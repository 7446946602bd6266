"""Agent cards in the shapes of 1.0, 0.3 and 0.2, in one document for both generations, and back.

The model has the shape of 1.0. Older cards name one main interface and describe security as
OpenAPI does; whatever has no older form is left out of an older card, never bent.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import msgspec

from dragoman.dialects import reading
from dragoman.dialects.reading import Object, Value, both_spellings
from dragoman.errors import InvalidParams, VersionNotSupported
from dragoman.model.card import (
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
)
from dragoman.model.task import TRANSITIONS_URI

PROTOCOL_0_3, PROTOCOL_0_2 = "0.3.0", "0.2.6"

# The member of 1.0, the `type` of 0.x, and the members whose names differ.
# Where an agent shows its card.
CARD_PATH = "/.well-known/agent-card.json"
_SCHEMES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("apiKeySecurityScheme", "apiKey", {"location": "in"}),
    ("httpAuthSecurityScheme", "http", {}),
    ("oauth2SecurityScheme", "oauth2", {}),
    ("openIdConnectSecurityScheme", "openIdConnect", {}),
    ("mtlsSecurityScheme", "mutualTLS", {}),
)
_BY_MEMBER: Mapping[str, tuple[str, Mapping[str, str]]] = {
    member: (kind, names) for member, kind, names in _SCHEMES
}
_BY_TYPE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    kind: (member, {old: new for new, old in names.items()}) for member, kind, names in _SCHEMES
}
# Two schemes of four flows each, both needed: no card has more.
MOST_ALTERNATIVES = 16
# In the order a scheme with several of them is split.
_FLOWS_0_X = ("authorizationCode", "clientCredentials", "implicit", "password")

_CARD = both_spellings(
    "name description supportedInterfaces version capabilities defaultInputModes",
    "defaultOutputModes skills provider documentationUrl iconUrl securitySchemes",
    "securityRequirements signatures security url preferredTransport additionalInterfaces",
    "protocolVersion supportsAuthenticatedExtendedCard authentication",
)
_INTERFACE = {
    **both_spellings("url", "protocolBinding", "protocolVersion", "tenant"),
    "transport": "protocol_binding",
}
_PROVIDER = both_spellings("url", "organization")
_EXTENSION = both_spellings("uri", "description", "required", "params")
_CAPABILITIES = both_spellings("streaming", "pushNotifications", "extensions", "extendedAgentCard")
_SKILL = both_spellings(
    "id name description tags examples inputModes outputModes securityRequirements security",
)


def v1_0(card: AgentCard) -> Object:
    """Return the card of 1.0. Required members are there even when empty."""
    return msgspec.to_builtins(card)


def v0_3(card: AgentCard) -> Object:
    """Return the card of 0.3; raises `VersionNotSupported` if no interface speaks 0.x."""
    return _older(card, PROTOCOL_0_3)


def v0_3_proto(card: AgentCard) -> Object:
    """Return the card of 0.3 as its proto has it, whose security is written like that of 1.0."""
    older = v0_3(card)
    newer = v1_0(card)
    schemes: Object = older.get("securitySchemes", {})
    older["securitySchemes"] = {name: newer["securitySchemes"][name] for name in schemes}
    older["security"] = _proto_requirements(older)
    older["skills"] = [
        skill | {"security": _proto_requirements(skill)} for skill in older["skills"]
    ]
    return older


def _proto_requirements(older: Object) -> list[Object]:
    return [
        {"schemes": {name: {"list": scopes} for name, scopes in requirement.items()}}
        for requirement in older.get("security", [])
    ]


def v0_2(card: AgentCard) -> Object:
    """Return the card of 0.2, which knows neither mutual TLS nor the security of a skill."""
    return _older(card, PROTOCOL_0_2)


def hybrid(card: AgentCard) -> Object:
    """Return one document that both generations read, for callers that name no version."""
    newer = v1_0(card)
    if not _older_interfaces(card):
        return newer
    older = v0_3(card)
    merged = older | newer
    merged["capabilities"] = older["capabilities"] | newer["capabilities"]
    # A skill without modes has those of the agent; fasta2a's client reads none that does not say
    # so. What is signed stays as it was signed.
    modes = {} if card.signatures else _default_modes(card)
    merged["skills"] = [
        modes | old | new for old, new in zip(older["skills"], newer["skills"], strict=True)
    ]
    if "securitySchemes" in newer:
        schemes = older.get("securitySchemes", {})
        merged["securitySchemes"] = {
            name: schemes.get(name, {}) | scheme
            for name, scheme in newer["securitySchemes"].items()
        }
    return merged


def _default_modes(card: AgentCard) -> Object:
    return {"inputModes": card.default_input_modes, "outputModes": card.default_output_modes}


def decode(value: Value) -> AgentCard:
    """Return the card a peer shows, whatever its version.

    Only what a client cannot do without is demanded: a name, and somewhere to send requests.
    """
    fields, _ = reading.split(value, _CARD, "")
    newer = "supported_interfaces" in fields
    name = reading.text(reading.required(fields, "name", ""), "name")
    version = reading.required(fields, "version", "") if newer else fields.get("version", "")
    schemes, splits = _decode_schemes(fields)
    requirements = fields.get("security_requirements", fields.get("security", []))
    return AgentCard(
        name=name,
        description=_text(fields, "description"),
        supported_interfaces=_interfaces(fields) if newer else _older_addresses(fields),
        version=reading.text(version, "version"),
        capabilities=_decode_capabilities(fields),
        default_input_modes=_texts(fields, "default_input_modes"),
        default_output_modes=_texts(fields, "default_output_modes"),
        skills=reading.array(
            fields.get("skills", []),
            "skills",
            lambda skill, path: _decode_skill(skill, path, splits),
        ),
        provider=_decode_provider(fields["provider"]) if "provider" in fields else None,
        documentation_url=_optional_text(fields, "documentation_url"),
        icon_url=_optional_text(fields, "icon_url"),
        security_schemes=schemes,
        security_requirements=_decode_requirements(requirements, "security", splits),
        # What an older card's signatures cover is that card, not this one.
        signatures=reading.array(fields.get("signatures", []), "signatures", _object)
        if newer
        else [],
    )


def _older_interfaces(card: AgentCard) -> list[AgentInterface]:
    """Return the interfaces that speak 0.x, the one most clients of it can use first."""
    older = [
        interface
        for interface in card.supported_interfaces
        if interface.protocol_version.partition(".")[0] in ("", "0")
    ]
    return sorted(older, key=lambda interface: interface.protocol_binding != JSONRPC)


def _older(card: AgentCard, protocol: str) -> Object:
    interfaces = _older_interfaces(card)
    if not interfaces:
        raise VersionNotSupported(
            "The agent has no interface of this protocol version",
            supportedVersions=",".join(
                dict.fromkeys(item.protocol_version for item in card.supported_interfaces)
            ),
        )
    main, *others = interfaces
    newer = v1_0(card)
    schemes = {
        name: older
        for name, scheme in card.security_schemes.items()
        if (older := _older_scheme(scheme, protocol)) is not None
    }
    value: Object = {
        "protocolVersion": protocol,
        "name": card.name,
        "description": card.description,
        "url": main.url,
        "preferredTransport": main.protocol_binding,
        "version": card.version,
        "capabilities": _older_capabilities(newer["capabilities"]),
        "defaultInputModes": card.default_input_modes,
        "defaultOutputModes": card.default_output_modes,
        "skills": [_older_skill(skill, schemes, protocol) for skill in newer["skills"]],
    }
    if others:
        value["additionalInterfaces"] = [
            {"url": other.url, "transport": other.protocol_binding} for other in others
        ]
    for name in ("provider", "documentationUrl", "iconUrl"):
        if name in newer:
            value[name] = newer[name]
    if card.capabilities.extended_agent_card is not None:
        value["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    if schemes:
        value["securitySchemes"] = schemes
        # Readers of the ancestor of 0.2 look for the names of the schemes here.
        value["authentication"] = {
            "schemes": list(
                dict.fromkeys(scheme.get("scheme", scheme["type"]) for scheme in schemes.values())
            )
        }
    if requirements := _older_requirements(card.security_requirements, schemes):
        value["security"] = requirements
    return value


def _older_capabilities(capabilities: Object) -> Object:
    older = {name: item for name, item in capabilities.items() if name != "extendedAgentCard"}
    # Where it is read no version says: an extension does.
    uris = [extension["uri"] for extension in capabilities.get("extensions", [])]
    return older | {"stateTransitionHistory": TRANSITIONS_URI in uris}


def _older_skill(skill: Object, schemes: Object, protocol: str) -> Object:
    older = {name: item for name, item in skill.items() if name != "securityRequirements"}
    requirements = _older_requirements(skill.get("securityRequirements", []), schemes)
    if requirements and protocol != PROTOCOL_0_2:
        older["security"] = requirements
    return older


def _older_scheme(scheme: Value, protocol: str) -> Object | None:
    """Return a scheme as OpenAPI has it, or None where this version has no such scheme."""
    for member, (kind, names) in _BY_MEMBER.items():
        if member not in scheme:
            continue
        if kind == "mutualTLS" and protocol == PROTOCOL_0_2:
            return None
        inner: Object = {names.get(name, name): item for name, item in scheme[member].items()}
        if kind == "oauth2":
            inner["flows"] = _older_flows(inner.get("flows", {}))
            if not inner["flows"]:
                return None
            if protocol == PROTOCOL_0_2:
                inner.pop("oauth2MetadataUrl", None)
        return {"type": kind, **inner}
    return None


def _older_flows(flows: Object) -> Object:
    return {
        name: {key: item for key, item in flow.items() if key != "pkceRequired"}
        for name, flow in flows.items()
        if name in _FLOWS_0_X
    }


def _older_requirements(requirements: list[Any], schemes: Object) -> list[Object]:
    """Return the alternatives whose schemes all have an older form."""
    older: list[Object] = []
    for requirement in requirements:
        named: Object = requirement.get("schemes", {})
        if all(name in schemes for name in named):
            older.append({name: scopes.get("list", []) for name, scopes in named.items()})
    return older


def _interfaces(fields: Object) -> list[AgentInterface]:
    entries = reading.array(fields["supported_interfaces"], "supportedInterfaces", _interface)
    usable = [entry for entry in entries if entry.url and entry.protocol_binding]
    if not usable:
        raise InvalidParams("must have a usable interface", field="supportedInterfaces")
    return usable


def _interface(value: Value, path: str, version: str = "1.0") -> AgentInterface:
    fields, _ = reading.split(value, _INTERFACE, path)
    return AgentInterface(
        url=_text(fields, "url", path),
        protocol_binding=_text(fields, "protocol_binding", path),
        protocol_version=_minor(_text(fields, "protocol_version", path) or version),
        tenant=_text(fields, "tenant", path),
    )


def _older_addresses(fields: Object) -> list[AgentInterface]:
    # From 0.2.5 on a card has to name it; `authentication` is of the time before.
    unsaid = "0.2" if "authentication" in fields else "0.3"
    version = _minor(_text(fields, "protocol_version") or unsaid)
    main = AgentInterface(
        # May be empty: such an address is the card's own.
        url=reading.text(reading.required(fields, "url", ""), "url"),
        protocol_binding=_text(fields, "preferred_transport") or JSONRPC,
        protocol_version=version,
    )
    others = reading.array(
        fields.get("additional_interfaces", []),
        "additionalInterfaces",
        lambda other, path: _interface(other, path, version),
    )
    return [main, *(other for other in others if other != main)]


def _minor(version: str) -> str:
    """Return a version without its patch number, which means nothing."""
    return ".".join(version.split(".")[:2])


def _decode_capabilities(fields: Object) -> AgentCapabilities:
    path = "capabilities"
    found, _ = reading.split(fields.get(path, {}), _CAPABILITIES, path)
    extended = found.get("extended_agent_card", fields.get("supports_authenticated_extended_card"))
    return AgentCapabilities(
        streaming=_optional_boolean(found.get("streaming"), f"{path}.streaming"),
        push_notifications=_optional_boolean(
            found.get("push_notifications"), f"{path}.pushNotifications"
        ),
        extensions=reading.array(
            found.get("extensions", []), f"{path}.extensions", _decode_extension
        ),
        extended_agent_card=_optional_boolean(extended, f"{path}.extendedAgentCard"),
    )


def _decode_extension(value: Value, path: str) -> AgentExtension:
    fields, _ = reading.split(value, _EXTENSION, path)
    return AgentExtension(
        uri=_text(fields, "uri", path),
        description=_text(fields, "description", path),
        required=reading.boolean(fields.get("required", False), f"{path}.required"),
        params=reading.metadata(fields.get("params", {}), f"{path}.params"),
    )


def _decode_provider(value: Value) -> AgentProvider:
    fields, _ = reading.split(value, _PROVIDER, "provider")
    return AgentProvider(
        url=_text(fields, "url", "provider"),
        organization=_text(fields, "organization", "provider"),
    )


# The names a scheme of 0.x has in 1.0, where more than its own.
Splits = Mapping[str, list[str]]


def _decode_skill(value: Value, path: str, splits: Splits) -> AgentSkill:
    fields, _ = reading.split(value, _SKILL, path)
    name = _text(fields, "name", path)
    requirements = fields.get("security_requirements", fields.get("security", []))
    return AgentSkill(
        id=_text(fields, "id", path) or name,
        name=name,
        description=_text(fields, "description", path),
        tags=_texts(fields, "tags", path),
        examples=_texts(fields, "examples", path),
        input_modes=_texts(fields, "input_modes", path),
        output_modes=_texts(fields, "output_modes", path),
        security_requirements=_decode_requirements(requirements, f"{path}.security", splits),
    )


def _decode_schemes(fields: Object) -> tuple[Object, Splits]:
    """Return the schemes in the form of 1.0; one with several flows becomes several."""
    path = "securitySchemes"
    schemes: Object = {}
    splits: dict[str, list[str]] = {}
    for name, scheme in _object(fields.get("security_schemes", {}), path).items():
        forms = _decode_scheme(name, _object(scheme, f"{path}.{name}"))
        schemes |= forms
        if len(forms) > 1:
            splits[name] = list(forms)
    return schemes or _from_authentication(fields.get("authentication", {})), splits


def _decode_scheme(name: str, scheme: Object) -> Object:
    """Return a scheme under its name; nothing for one of a kind we have never heard of."""
    for member in _BY_MEMBER:
        if member in scheme:
            return {name: {member: _object(scheme[member], f"securitySchemes.{name}.{member}")}}
    kind = scheme.get("type")
    if type(kind) is not str or kind not in _BY_TYPE:
        return {}
    member, names = _BY_TYPE[kind]
    inner: Object = {
        names.get(key, key): item
        for key, item in scheme.items()
        if key != "type" and item is not None
    }
    if kind != "oauth2":
        return {name: {member: inner}}
    flows = _object(inner.get("flows", {}), f"securitySchemes.{name}.flows")
    known = [flow for flow in _FLOWS_0_X if flows.get(flow) is not None]
    return {
        name if flow is known[0] else f"{name}__{flow}": {
            member: {**inner, "flows": {flow: flows[flow]}}
        }
        for flow in known
    }


def _from_authentication(value: Value) -> Object:
    """Return the schemes that cards before 0.2 only name."""
    listed = _object(value, "authentication").get("schemes", [])
    names = [name.lower() for name in reading.array(listed, "authentication.schemes", reading.text)]
    return {
        name: {"httpAuthSecurityScheme": {"scheme": name}}
        for name in names
        if name in ("bearer", "basic")
    }


def _decode_requirements(value: Value, path: str, splits: Splits) -> list[Any]:
    """Return requirements in the form of 1.0, given in it or as OpenAPI has them."""
    found: list[Any] = []
    for requirement in reading.array(value, path, _decode_requirement):
        choices = [splits.get(name, [name]) for name in requirement]
        # Each scheme that was split multiplies them.
        if math.prod(len(names) for names in choices) > MOST_ALTERNATIVES:
            raise InvalidParams("has too many alternatives", field=path)
        for names in product(*choices):
            scopes = zip(names, requirement.values(), strict=True)
            found.append({"schemes": {name: {"list": item} for name, item in scopes}})
    return found


def _decode_requirement(value: Value, path: str) -> dict[str, list[str]]:
    named = _object(value, path)
    # A list under that name is OpenAPI's: the scopes of a scheme called "schemes".
    if isinstance(named.get("schemes"), dict):
        newer = _object(named["schemes"], path)
        named = {name: _object(item, path).get("list", []) for name, item in newer.items()}
    return {
        name: reading.array(scopes, f"{path}.{name}", reading.text)
        for name, scopes in named.items()
    }


def _object(value: Value, path: str) -> Object:
    return reading.split(value, {}, path)[1]


def _text(fields: Object, name: str, path: str = "") -> str:
    return reading.text(fields.get(name, ""), reading.at(path, reading.camel(name)))


def _optional_text(fields: Object, name: str) -> str | None:
    return _text(fields, name) if name in fields else None


def _texts(fields: Object, name: str, path: str = "") -> list[str]:
    return reading.array(fields.get(name, []), reading.at(path, reading.camel(name)), reading.text)


def _optional_boolean(value: Value, path: str) -> bool | None:
    return None if value is None else reading.boolean(value, path)
