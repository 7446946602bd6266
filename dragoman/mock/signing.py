"""Signatures on the cards of scripted agents. Needs the extra `jwt`."""

from pathlib import Path
from typing import Any

from dragoman.errors import ConfigError
from dragoman.security.signatures import sign

# What every key of a scripted agent is called.
KEY_ID = "demo"


def signed(card: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a card signed with a private key: PEM, a JWK as JSON, or the path of either."""
    text = key
    if not key.lstrip().startswith(("-----BEGIN", "{")):
        try:
            text = Path(key).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{key}: the key cannot be read: {error}") from None
    return sign(card, text, KEY_ID)
