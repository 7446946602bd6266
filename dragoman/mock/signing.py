"""Signatures on the cards of scripted agents. Needs the extra `jwt`."""

import json
from typing import Any

from dragoman.errors import ConfigError
from dragoman.security.signatures import private_key, sign
from dragoman.server.signing import key_content

# What a key that has no name of its own is called.
KEY_ID = "demo"


class Signer:
    """Signs cards with a private key: PEM, a JWK as JSON, or the path of either.

    Raises `ConfigError` for one that is of no use.
    """

    def __init__(self, key: str) -> None:
        is_given = key.lstrip().startswith(("-----BEGIN", "{"))
        try:
            self._key = private_key(_given(key) if is_given else key_content(key))
            self._kid = self._key.kid or KEY_ID
            # A key may be well made and yet be of a kind that signs nothing.
            sign({}, self._key, self._kid)
        except ConfigError as error:
            # A key that is given as it is stays unsaid.
            where = "" if is_given else f"{key}: "
            reason = str(error).removeprefix("keys: ")
            raise ConfigError(f"sign_key: {where}{reason}") from None

    def signed(self, card: dict[str, Any]) -> dict[str, Any]:
        """Return a card with a signature."""
        return sign(card, self._key, self._kid)


def _given(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("is no JWK: it is not JSON") from None
