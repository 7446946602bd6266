"""Members of the card that an operator sets in place of the author: texts, provider, security.

The server alone sets addresses, versions, capabilities and signatures. The file is read once,
before anything is served; an error names the place in the file.
"""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from dragoman.dialects import cards
from dragoman.dialects.card_check import findings
from dragoman.errors import ConfigError
from dragoman.model.card import AgentCard, AgentProvider
from dragoman.model.message import Json

_LARGEST = 1024 * 1024
Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Skill(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    id: str
    name: Text | UnsetType = UNSET
    description: Text | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    examples: list[str] | UnsetType = UNSET
    input_modes: list[str] | UnsetType = UNSET
    output_modes: list[str] | UnsetType = UNSET
    security_requirements: list[Json] | UnsetType = UNSET


class _Provider(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url: str
    organization: str


class _Members(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: Text | UnsetType = UNSET
    description: Text | UnsetType = UNSET
    version: Text | UnsetType = UNSET
    provider: _Provider | UnsetType = UNSET
    documentation_url: Text | UnsetType = UNSET
    icon_url: Text | UnsetType = UNSET
    default_input_modes: list[str] | UnsetType = UNSET
    default_output_modes: list[str] | UnsetType = UNSET
    skills: list[_Skill] | UnsetType = UNSET
    security_schemes: dict[str, Json] | UnsetType = UNSET
    security_requirements: list[Json] | UnsetType = UNSET


class CardFile:
    """Members of a card, from a file; raises `ConfigError` for what is wrong with them."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._members = msgspec.convert(_read(path), _Members)
        except msgspec.ValidationError as error:
            raise ConfigError(f"card: {path}: {error}") from None

    @property
    def names_schemes(self) -> bool:
        """Whether it sets how callers authenticate."""
        members = (self._members.security_schemes, self._members.security_requirements)
        return any(one is not UNSET for one in members)

    def check(self, card: AgentCard) -> None:
        """Raise `ConfigError` if an agent's card with these members is not valid."""
        known = {skill.id for skill in card.skills}
        for position, skill in enumerate(self._members.skills or []):
            if skill.id not in known:
                raise self._refusal(f"skills[{position}].id", f"the agent has no skill {skill.id}")
        before = {*findings(cards.v1_0(card))}
        changed = cards.v1_0(self.onto(card))
        for finding in findings(changed):
            if finding not in before:
                raise self._refusal(finding.path, finding.problem)
        schemes = changed.get("securitySchemes", {})
        for position, requirement in enumerate(self._members.security_requirements or []):
            for name in requirement.get("schemes", {}):
                if name not in schemes:
                    place = f"securityRequirements[{position}].schemes.{name}"
                    raise self._refusal(place, "names no security scheme of the card")

    def onto(self, card: AgentCard) -> AgentCard:
        """Return the card with these members instead of its own."""
        members = _set_members(self._members)
        texts = {skill.id: _set_members(skill) for skill in members.pop("skills", [])}
        if "provider" in members:
            members["provider"] = AgentProvider(**asdict(members["provider"]))
        skills = [replace(skill, **texts.get(skill.id, {})) for skill in card.skills]
        return replace(card, skills=skills, **members)

    def _refusal(self, place: str, problem: str) -> ConfigError:
        return ConfigError(f"card: {self._path}: {place}: {problem}")


def _set_members(members: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in asdict(members).items() if value is not UNSET}


def _read(path: str) -> Any:
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST).decode("utf-8-sig")
        if file.suffix == ".toml":
            return tomllib.loads(content)
        if file.suffix == ".json":
            return json.loads(content)
    except OSError as error:
        raise ConfigError(f"card: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"card: {path}: cannot be read: {error}") from None
    raise ConfigError(f"card: {path}: must end in .json or .toml")
