"""Signatures on the cards of scripted agents. Needs the extra `jwt`."""

import json
from typing import Any

from dragoman.errors import ConfigError
from dragoman.security.card_keys import private_key
from dragoman.security.card_signatures import sign
from dragoman.server.signing import key_content

# The id of a key without one.
KEY_ID = "demo"


class ScriptedSigner:
    """Signs cards with a private key: PEM, a JWK as JSON, or the path of either.

    Raises `ConfigError` for an unusable one.
    """

    def __init__(self, key: str) -> None:
        is_given = key.lstrip().startswith(("-----BEGIN", "{"))
        try:
            self._key = private_key(_given(key) if is_given else key_content(key))
            self._kid = self._key.kid or KEY_ID
            # A valid key may be of a kind that cannot sign.
            sign({}, self._key, self._kid)
        except ConfigError as error:
            # A key that is given inline is not quoted.
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
