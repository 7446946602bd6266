"""Canaries: secrets made for one run, and where bytes of them may turn up afterwards.

A canary is found in any form that text takes on its way: as it is, half of it, in base64 at any
offset, in hexadecimal, quoted for a URL. Whoever adds a place for secrets adds a row where the run
uses it, and nothing here.
"""

import base64
import gzip
import secrets
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from harness.stub_servers import Answer, answering
from harness.waiting import WAIT


class Hit(NamedTuple):
    """Where a canary was found, and in which form."""

    canary: str
    place: str
    form: str


def forms(secret: bytes) -> dict[str, bytes]:
    """Return what to look for to find a secret."""
    found = {"plain": secret, "hex": secret.hex().encode(), "HEX": secret.hex().upper().encode()}
    half = len(secret) // 2
    if half >= 10:
        found |= {"first half": secret[:half], "second half": secret[half:]}
    for offset in range(3):
        # Whatever stands before and after, this part of the encoding is the same.
        encoded = base64.b64encode(b"\0" * offset + secret)
        whole = encoded[(0, 2, 3)[offset] + (1 if offset else 0) : len(encoded) // 4 * 4 - 4]
        found[f"base64 at {offset}"] = whole
        found[f"base64url at {offset}"] = whole.replace(b"+", b"-").replace(b"/", b"_")
    return found


class Nest:
    """The canaries of one run."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}
        # Answers whose reader gave the secret, or asked for it: (canary, place).
        self.allowed: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._secrets)

    def new(self, name: str, wrap: str = "{}") -> str:
        """Return a secret that nobody else has. Letters and digits only, so that no quoting changes
        it; what is wrapped around is not looked for."""
        core = "cnry" + secrets.token_hex(14)
        self.add(name, core)
        return wrap.format(core)

    def add(self, name: str, text: str | bytes) -> None:
        """Look for a secret that was made elsewhere."""
        assert name not in self._secrets, f"two canaries {name}"
        self._secrets[name] = text.encode() if isinstance(text, str) else text

    def hits(self, places: Mapping[str, bytes]) -> list[Hit]:
        """Return where canaries are that may be nowhere."""
        return [
            Hit(name, place, form)
            for name, secret in self._secrets.items()
            for form, part in forms(secret).items()
            for place, held in places.items()
            if (name, place) not in self.allowed and part in held
        ]


class Sink:
    """Takes whatever is posted, and keeps it."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self._changed = threading.Condition()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self._changed:
            self.paths.append(path)
            self.headers.append(headers)
            self.bodies.append(body)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float = WAIT) -> None:
        """Wait until so many came."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, seconds), self.paths

    def all(self) -> bytes:
        """Return everything that came, its headers too."""
        return b"\n".join([*self.bodies, repr([self.paths, self.headers]).encode()])


@contextmanager
def sink() -> Generator[Sink]:
    """Listen on loopback."""

    taken = Sink()

    def take(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        taken.take(path, headers, body)
        return 200, {}, b""

    with answering(take) as port:
        taken.url = f"http://127.0.0.1:{port}"
        yield taken
