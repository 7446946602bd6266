"""Integers of variable length, as protobuf writes them."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return an integer and where it ends; one without an end ends where the data does."""
    number = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return 0, end


def varint(number: int) -> bytes:
    """Return the bytes of an integer."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
