"""Messages of gRPC as they are sent: a byte for whether one is compressed, and its length."""

PREFIX_BYTES = 5


def framed(message: bytes) -> bytes:
    """Return a message as it is sent; several may follow each other."""
    return b"\0%b%b" % (len(message).to_bytes(4), message)
