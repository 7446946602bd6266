"""Every dial of a test, as it was made."""

import socket
from collections.abc import Iterator

import pytest

from dragoman.egress import dial
from dragoman.egress.dial import AddressInfo


@pytest.fixture(autouse=True)
def dials(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """Every address a socket was opened for; a test stays on this machine whatever it finds."""
    seen: list[tuple[object, ...]] = []
    honest = dial.open_socket

    def counted(info: AddressInfo) -> socket.socket:
        seen.append(info[4][:2])
        if not str(info[4][0]).startswith("127."):
            raise OSError("a test does not leave the machine")
        return honest(info)

    monkeypatch.setattr(dial, "open_socket", counted)
    yield seen
