"""Secrets never leave: whatever is shown beside the payload passes through here.

No flag turns it off. Known values are replaced wherever they stand, and headers, members and
addresses that usually carry secrets are replaced whether their value is known or not. A command to
type is made without secrets instead: with a piece replaced it would be another command.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from dragoman.model.patterns import late_pattern
from dragoman.security.secret_text import (
    HIDDEN,
    hidden_pairs,
    hidden_text,
    hidden_value,
    is_open_header,
)

# A shorter secret is found only where nothing is attached to it: it may be part of any word.
LONG = 8
_USER = late_pattern(r"(?<=://)[^/?#\s@]*@")
# The same of what names an agent, which may be a host alone; `@name` is one of a catalog.
_CALLER = late_pattern(r"(?i)^(?!@)([a-z][a-z0-9+.-]*://)?([^/?#\s]+)@")
# A user and a password in a word that stands alone, whatever it is for.
_PAIR = late_pattern(r"(?i)^(?:[a-z][a-z0-9+.-]*://)?[^/?#\s:@]+:[^/?#\s]*@\S+$")


class NextCommand(str):
    """A command to type, made by us and without secrets: it is shown as it is."""


class Redactor:
    """Knows the secrets of this run and keeps them out of texts."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        # Of headers: what is short there is often a plain word, such as the name of a tenant.
        self._values: set[str] = set()

    def add(self, *secrets: str) -> None:
        """Learn values, also as they look inside an address."""
        for secret in secrets:
            if secret:
                self._secrets |= {secret, quote(secret, safe=""), quote_plus(secret), quote(secret)}

    def add_values(self, *values: str) -> None:
        """Learn what headers carry; short ones are hidden there and nowhere else."""
        self._values |= {value for value in values if value}
        self.add(*(value for value in values if len(value) >= LONG))

    def add_reference(self, reference: str) -> None:
        """Learn the user and the password that may stand before a host."""
        if "@" in reference and (found := _CALLER.match(reference)):
            self.add(found[2])

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if isinstance(text, NextCommand):
            return text
        # The longest first: one secret may be the beginning of another.
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= LONG:
                text = text.replace(secret, HIDDEN)
            else:
                text = re.sub(
                    rf"(?<![^\s\"'=,;(<]){re.escape(secret)}(?=[.:]?(?:$|[\s\"'&,;@)#>]))",
                    HIDDEN,
                    text,
                )
        return hidden_text(text)

    def word(self, word: str) -> str:
        """Return a word of a command without secrets, and otherwise as it is."""
        if _PAIR.match(word):
            word = _CALLER.sub(lambda found: found[1] or "", word)
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= LONG:
                word = word.replace(secret, HIDDEN)
        return hidden_pairs(_USER.sub("", word))

    def reference(self, reference: str) -> str:
        """Return what names an agent, for a command: without a user and a password."""
        return self.word(_CALLER.sub(lambda found: found[1] or "", reference))

    def header(self, name: str, value: str) -> str:
        """Return a header's value as it may be shown."""
        is_open = is_open_header(name) and value not in self._values
        return self.text(value) if is_open else HIDDEN

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return headers as they may be shown."""
        return {name: self.header(name, value) for name, value in headers.items()}

    def value(self, value: Any) -> Any:
        """Return JSON as it may be shown: members that carry secrets have none."""
        return hidden_value(value, self.text)

    def body(self, body: bytes) -> str:
        """Return a body as it may be shown: JSON member by member, all else as a text."""
        import json

        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return self.text(body.decode("utf-8", "backslashreplace"))
        return json.dumps(self.value(found), ensure_ascii=False)
