"""The key that signs our cards, and its public half. Needs the extra `jwt`."""

import json
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from dragoman.dialects import cards
from dragoman.errors import ConfigError
from dragoman.model.card import AgentCard
from dragoman.security.card_keys import LARGEST_FILE, private_key
from dragoman.security.card_signatures import sign


class Signer:
    """Signs cards with a key from a file; raises `ConfigError` for a key that cannot sign."""

    def __init__(self, path: str) -> None:
        try:
            self._key = private_key(key_content(path))
            # A key without an id gets its thumbprint, so that all servers of the key agree.
            self.kid = self._key.kid or self._key.thumbprint()
            sign({}, self._key, self.kid)
        except ConfigError as error:
            # The reason is about keys in general; the message names this one.
            reason = str(error).removeprefix("keys: ")
            raise ConfigError(f"sign_key: {path}: {reason}") from None

    def signed(self, card: AgentCard) -> AgentCard:
        """Return the card with our signature, which is over its shape of 1.0."""
        signatures = sign(cards.v1_0(card), self._key, self.kid)["signatures"]
        return replace(card, signatures=signatures)

    def public(self) -> dict[str, Any]:
        """Return the key that checks the signatures, as a JWK."""
        fields = cast("dict[str, Any]", self._key.as_dict(private=False))
        # `key_ops` of the file says what the private half may do; readers get the public half.
        public = {name: item for name, item in fields.items() if name != "key_ops"}
        return {**public, "kid": self.kid, "use": "sig"}


def key_content(path: str) -> bytes | dict[str, Any]:
    """Return what is in the file of a key: PEM, or a JWK."""
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(LARGEST_FILE)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise ConfigError(f"cannot be read ({reason})") from None
    if b"-----BEGIN " in content:
        return content
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError("is neither PEM nor a JWK")
    return cast("dict[str, Any]", found)
