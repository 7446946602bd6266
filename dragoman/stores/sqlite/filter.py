"""A Bloom filter of idempotency keys: says "never seen" for certain without asking the file.

Nearly every message is seen for the first time, and a look-up in the file would give up the
interpreter's lock to the writer just to learn that.
"""

# 2 MiB; one in a thousand new keys is looked up needlessly at half a million kept ones.
_BITS = 24


class KeyFilter:
    """Which keys there may be."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))

    def add(self, key: bytes) -> None:
        """Remember a key."""
        bits = self._bits
        for place in _places(key):
            bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: bytes) -> bool:
        bits = self._bits
        return all(bits[place >> 3] & (1 << (place & 7)) for place in _places(key))


def _places(key: bytes) -> tuple[int, int, int]:
    """Keys are hashes already, so their bytes will do."""
    return (
        int.from_bytes(key[0:3]),
        int.from_bytes(key[3:6]),
        int.from_bytes(key[6:9]),
    )
