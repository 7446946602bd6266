"""Finds the rule of a script that a request fulfils."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.dialects.operations import BY_V0_METHOD, BY_V0_REST_METHOD, BY_V1_METHOD
from dragoman.errors import ConfigError
from dragoman.model import operations as ops
from dragoman.model.message import Message
from dragoman.testing.scripted.script import Rule

# The name of a request for the card among methods.
CARD = "card"
# A rule, and the groups of its pattern.
Found = tuple[Rule, dict[str, str]]


class ScriptRules:
    """The rules of a script, and how often each was fulfilled."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._counts: Counter[int] = Counter()
        for rule in rules:
            # An unknown name raises at the start.
            v1_name(rule.when.method or CARD)

    def find(self, operation: ops.Operation | None, method: str, version: str) -> Found | None:
        """Return the first rule a request fulfils. Rules that name no method are for sends."""
        is_send = isinstance(operation, ops.SendMessage)
        for rule in self._rules:
            when = rule.when
            if when.method and v1_name(when.method) != method:
                continue
            if not when.method and not is_send:
                continue
            if when.version and when.version != version:
                continue
            groups: dict[str, str] | None = {}
            if is_send:
                groups = _groups(rule, operation.message, operation.metadata)
            if groups is not None and self._counted(rule):
                return rule, groups
        return None

    def choose(self, rules: Sequence[Rule], message: Message) -> Found | None:
        """Return the first of some rules that a message fulfils."""
        for rule in rules:
            groups = _groups(rule, message, {})
            if groups is not None and self._counted(rule):
                return rule, groups
        return None

    def _counted(self, rule: Rule) -> bool:
        """Count a call that fulfils all other conditions, and say whether its number does."""
        self._counts[id(rule)] += 1
        return not rule.when.calls or self._counts[id(rule)] in rule.when.calls


def v1_name(method: str) -> str:
    """Return the name in 1.0 of a method that is named as in any version."""
    row = BY_V1_METHOD.get(method) or BY_V0_METHOD.get(method) or BY_V0_REST_METHOD.get(method)
    if row is not None:
        return row.v1
    if method != CARD:
        raise ConfigError(f"{method} is no method of any version")
    return CARD


def _groups(rule: Rule, message: Message, metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the groups of a rule's pattern if a message fulfils the rule, else None."""
    when, text = rule.when, message.text
    if when.equals and text.strip().lower() != when.equals.lower():
        return None
    if when.contains and when.contains.lower() not in text.lower():
        return None
    if when.skill and when.skill not in _skills(message, metadata):
        return None
    if not when.regex:
        return {}
    found = re.search(when.regex, text)
    if found is None:
        return None
    numbered = {str(i): group or "" for i, group in enumerate(found.groups(), 1)}
    return numbered | {name: group or "" for name, group in found.groupdict().items()}


def _skills(message: Message, metadata: Mapping[str, Any]) -> set[str]:
    return {
        source[name]
        for source in (message.metadata, metadata)
        for name in ("skillId", "skill")
        if isinstance(source.get(name), str)
    }
