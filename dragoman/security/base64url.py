"""Base64 as tokens and signatures have it (RFC 7515, 2): for URLs, and without padding."""

import base64
import binascii


def encode(content: bytes) -> str:
    """Return bytes as text."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of a text; raises `ValueError` for what is not of the alphabet."""
    try:
        # Without `validate` whatever is not of the alphabet would be skipped.
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeError):
        raise ValueError("this is not base64url") from None
