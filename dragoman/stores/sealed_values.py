"""What every store on a disk seals, and where each value belongs. Pure: no connection, no key.

A value is sealed for one place and opens nowhere else. What of a row stays in clear is part of that
place where it says who gets to see the secret.
"""

from collections.abc import Callable

import msgspec

from dragoman.errors import StoreUnavailable
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import encode
from dragoman.stores.interface import Sealing

# How a sealed value begins.
MARK = b"\x01"
# Where the store's own secret belongs, and how long it is.
SECRET = b"secret"
SECRET_BYTES = 32

_decode_config = msgspec.json.Decoder(PushConfig).decode


class _Secrets(msgspec.Struct, omit_defaults=True):
    """What of a configuration is secret."""

    token: str = ""
    credentials: str = ""

    def __repr__(self) -> str:
        return "_Secrets('***')"


_decode_secrets = msgspec.json.Decoder(_Secrets).decode


def of_push(task: int, shown: bytes) -> bytes:
    """Return where the secrets of a receiver belong: to all that is in clear of it. Otherwise an
    attacker who can write to the store, without its key, could have them sent to another URL."""
    return b"push %d %b" % (task, shown)


def of_note(task: int) -> bytes:
    """Return where a note belongs."""
    return b"note %d" % task


def of_answer(task: int, seq: int) -> bytes:
    """Return where an answer belongs."""
    return b"answer %d %d" % (task, seq)


def of_credential(shown: bytes) -> bytes:
    """Return where an agent's credential belongs: to all that is in clear of it, as that says
    where it may go."""
    return b"credential %b" % shown


class OpenedValues:
    """Opens what is sealed. Without a way to seal, everything is in clear."""

    def __init__(self, sealing: Sealing | None) -> None:
        self._sealing = sealing

    def push_parts(
        self, task: int, config: PushConfig, seal: Callable[[bytes, bytes], bytes]
    ) -> tuple[bytes, bytes | None]:
        """Return a configuration in two pieces: what may be read, and its secrets if it has any,
        sealed by a function of the value and its place."""
        credentials = config.authentication.credentials if config.authentication else ""
        if self._sealing is None or not (config.token or credentials):
            return encode(config), None
        secrets = encode(_Secrets(config.token, credentials))
        shown = encode(msgspec.structs.replace(config, token="").masked())
        return shown, seal(secrets, of_push(task, shown))

    def config(self, task: int, body: bytes, sealed: bytes | None) -> PushConfig:
        """Return a configuration with its secrets."""
        config = _decode_config(body)
        if sealed is None:
            return config
        secrets = _decode_secrets(self.open(sealed, of_push(task, body)))
        authentication = config.authentication
        if authentication is not None:
            authentication = PushAuthentication(authentication.scheme, secrets.credentials)
        return msgspec.structs.replace(config, token=secrets.token, authentication=authentication)

    def noted(self, task: int, body: bytes) -> bytes:
        """Return what a note says."""
        return self._opened(body, of_note(task))

    def answered(self, task: int, seq: int, body: bytes) -> bytes:
        """Return what was withheld."""
        return self._opened(body, of_answer(task, seq))

    def credentialed(self, shown: bytes, body: bytes) -> bytes:
        """Return what an agent is shown."""
        return self._opened(body, of_credential(shown))

    def open(self, value: bytes, context: bytes) -> bytes:
        """Return what was sealed; raises `StoreUnavailable`."""
        if self._sealing is None:
            raise StoreUnavailable("the store is sealed: its key is needed")
        return self._sealing.open(value, context)

    def _opened(self, value: bytes, context: bytes) -> bytes:
        """Return a value that is in clear where nothing is sealed."""
        if not value.startswith(MARK):
            return value
        return self.open(value, context)


# A change of key


class SealedRows(msgspec.Struct, frozen=True):
    """Where sealed values are in a store."""

    # The query for rows after a place that another key seals: the value, two numbers that are the
    # row's place, and what of it is in clear if that is part of where the value belongs.
    rows: str
    # The statement that writes a value at a place.
    update: str
    context: Callable[[int, int, bytes], bytes]


def _of_secret(number: int, task: int, shown: bytes) -> bytes:
    return SECRET


def _of_push(number: int, task: int, shown: bytes) -> bytes:
    return of_push(task, shown)


def _of_note(number: int, task: int, shown: bytes) -> bytes:
    return of_note(task)


def _of_answer(task: int, seq: int, shown: bytes) -> bytes:
    return of_answer(task, seq)


def _of_credential(number: int, zero: int, shown: bytes) -> bytes:
    return of_credential(shown)


SEALED_ROWS = (
    SealedRows("secret_rows", "reseal_secret", _of_secret),
    SealedRows("push_rows", "reseal_push", _of_push),
    SealedRows("note_rows", "reseal_note", _of_note),
    SealedRows("answer_rows", "reseal_answer", _of_answer),
    SealedRows("credential_rows", "reseal_credential", _of_credential),
)


def resealed(sealing: Sealing, key: bytes, value: bytes, context: bytes) -> bytes | None:
    """Return a value sealed with another key; None: no key at hand opens it."""
    try:
        plain = sealing.open(value, context) if value.startswith(MARK) else value
    except StoreUnavailable:
        return None
    return sealing.seal(plain, context, key)
