"""What of the file is sealed: the store's secret, receivers' credentials, notes, withheld answers,
and what agents are shown that a gateway calls.

Which key to seal with stands in the file, and is read in the transaction that writes: once a
rotation has named another one, nothing is written under the old one, whichever process writes. A
store that was given no way to seal keeps everything in clear, and refuses a file that is sealed.
"""

import logging
from pathlib import Path
from secrets import token_bytes

import apsw
import msgspec

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import encode
from dragoman.stores.interface import Sealing
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import connect, run, transaction

logger = logging.getLogger("dragoman")

_decode_config = msgspec.json.Decoder(PushConfig).decode
_KEYS = "SELECT id FROM vault_keys ORDER BY is_current DESC, id"
_CURRENT = "SELECT id FROM vault_keys WHERE is_current = 1"
_FACT = "SELECT value FROM facts WHERE name = ?"
_CLEAR_PUSHES = "SELECT number, task, config FROM pushes"
_CLEAR_NOTES = "SELECT number, task, body FROM notes"
_CLEAR_CREDENTIALS = "SELECT number, shown, body FROM agent_credentials"
_SEAL_CREDENTIAL = "UPDATE agent_credentials SET body = ? WHERE number = ?"
_SECRET_BYTES = 32
# How a sealed value begins.
MARK = b"\x01"
# Where the store's own secret belongs.
SECRET = b"secret"


class _Secrets(msgspec.Struct, omit_defaults=True):
    """What of a configuration is secret."""

    token: str = ""
    credentials: str = ""

    def __repr__(self) -> str:
        return "_Secrets('***')"


_decode_secrets = msgspec.json.Decoder(_Secrets).decode


class Seals:
    """Seals and opens the values of one file."""

    def __init__(self, sealing: Sealing | None) -> None:
        self._sealing = sealing

    def prepare(self, connection: apsw.Connection) -> None:
        """Refuse a file whose keys we do not have; seal one that never was."""
        if self._sealing is None:
            if keys_of(connection):
                raise ConfigError(
                    "the file is sealed: whoever writes to it needs its key (sealing=)"
                )
            self.make_secret(connection)
            return
        # What is overwritten would stay readable in its page.
        run(connection, "PRAGMA secure_delete = on")
        with transaction(connection):
            used = keys_of(connection)
            first = self._sealing.ready(used)
            was_clear = not used and self._seal_all(connection, first)
        run(connection, "PRAGMA secure_delete = off")
        if was_clear:
            _scrub(connection)

    def _seal_all(self, connection: apsw.Connection, key: bytes) -> bool:
        """Seal what an earlier release kept in clear; tell whether there was anything."""
        run(connection, "INSERT INTO vault_keys VALUES (?, 1)", (key,))
        secrets = run(connection, _FACT, ("secret",))
        for (secret,) in secrets:
            self._keep_secret(connection, bytes(secret))
            run(connection, "DELETE FROM facts WHERE name = 'secret'")
        for number, task, body in run(connection, _CLEAR_PUSHES):
            config, sealed = self.push(connection, task, _decode_config(body))
            values = (config, sealed, number)
            run(connection, "UPDATE pushes SET config = ?, sealed = ? WHERE number = ?", values)
        for number, task, body in run(connection, _CLEAR_NOTES):
            values = (self.note(connection, task, body), number)
            run(connection, "UPDATE notes SET body = ? WHERE number = ?", values)
        for number, shown, body in run(connection, _CLEAR_CREDENTIALS):
            values = (self.credential(connection, bytes(shown), bytes(body)), number)
            run(connection, _SEAL_CREDENTIAL, values)
        return bool(secrets)

    def _keep_secret(self, connection: apsw.Connection, secret: bytes) -> None:
        name = "secret" if self._sealing is None else "sealed_secret"
        values = (name, self._seal(connection, secret, SECRET))
        run(connection, "INSERT INTO facts VALUES (?, ?)", values)

    def _seal(self, connection: apsw.Connection, plain: bytes, context: bytes) -> bytes:
        if self._sealing is None:
            return plain
        ((key,),) = run(connection, _CURRENT)
        return self._sealing.seal(plain, context, key)

    def _open(self, value: bytes, context: bytes) -> bytes:
        if self._sealing is None:
            raise StoreUnavailable("the file is sealed: its key is needed")
        return self._sealing.open(value, context)

    def _opened(self, value: bytes, context: bytes) -> bytes:
        """Return a value that is in clear where nothing is sealed."""
        is_clear = self._sealing is None or not value.startswith(MARK)
        return value if is_clear else self._open(value, context)

    def trouble(self, connection: apsw.Connection) -> str:
        """Say what would keep the next process from opening the file; empty: nothing."""
        return "" if self._sealing is None else self._sealing.trouble(keys_of(connection))

    # What is sealed, each with the place it belongs to

    def secret(self, connection: apsw.Connection) -> bytes | None:
        """Return the store's secret, if it has one yet."""
        for (sealed,) in run(connection, _FACT, ("sealed_secret",)):
            return self._open(sealed, SECRET)
        for (secret,) in run(connection, _FACT, ("secret",)):
            return bytes(secret)
        return None

    def make_secret(self, connection: apsw.Connection) -> bytes:
        """Return the store's secret, made here unless another process was first."""
        with transaction(connection):
            found = self.secret(connection)
            if found is None:
                found = token_bytes(_SECRET_BYTES)
                self._keep_secret(connection, found)
        return found

    def push(
        self, connection: apsw.Connection, task: int, config: PushConfig
    ) -> tuple[bytes, bytes | None]:
        """Return a configuration in two pieces: what may be read, and its secrets if it has any."""
        credentials = config.authentication.credentials if config.authentication else ""
        if self._sealing is None or not (config.token or credentials):
            return encode(config), None
        secrets = encode(_Secrets(config.token, credentials))
        shown = encode(msgspec.structs.replace(config, token="").masked())
        return shown, self._seal(connection, secrets, of_push(task, shown))

    def config(self, task: int, body: bytes, sealed: bytes | None) -> PushConfig:
        """Return a configuration with its secrets."""
        config = _decode_config(body)
        if sealed is None:
            return config
        secrets = _decode_secrets(self._open(sealed, of_push(task, body)))
        authentication = config.authentication
        if authentication is not None:
            authentication = PushAuthentication(authentication.scheme, secrets.credentials)
        return msgspec.structs.replace(config, token=secrets.token, authentication=authentication)

    def note(self, connection: apsw.Connection, task: int, body: bytes) -> bytes:
        """Return a note as it is kept: a message in it may answer a sensitive question."""
        return self._seal(connection, body, of_note(task))

    def noted(self, task: int, body: bytes) -> bytes:
        """Return what a note says."""
        return self._opened(body, of_note(task))

    def answer(self, connection: apsw.Connection, task: int, seq: int, body: bytes) -> bytes:
        """Return what is withheld from a log as it is kept."""
        return self._seal(connection, body, of_answer(task, seq))

    def answered(self, task: int, seq: int, body: bytes) -> bytes:
        """Return what was withheld."""
        return self._opened(body, of_answer(task, seq))

    def credential(self, connection: apsw.Connection, shown: bytes, body: bytes) -> bytes:
        """Return what an agent is shown when it is called, as it is kept."""
        return self._seal(connection, body, of_credential(shown))

    def credentialed(self, shown: bytes, body: bytes) -> bytes:
        """Return what an agent is shown."""
        return self._opened(body, of_credential(shown))


def keys_of(connection: apsw.Connection) -> list[bytes]:
    """Return the keys that values in a file are sealed with, the one to seal with first."""
    return [bytes(id) for (id,) in run(connection, _KEYS)]


def secret_of(path: Path, sealing: Sealing) -> bytes:
    """Return the secret of a store's file, whoever uses it; raises `ConfigError`."""
    seals = Seals(sealing)
    connection = open_to_read(path)
    try:
        found = seals.secret(connection)
        if found is None:
            connection.close()
            connection = connect(str(path))
            found = seals.make_secret(connection)
        return found
    except StoreUnavailable as error:
        raise ConfigError(str(error)) from None
    finally:
        connection.close()


def of_push(task: int, shown: bytes) -> bytes:
    """Return where the secrets of a receiver belong: to all that is in clear of it, or whoever can
    write the file, without its key, could have them sent to another URL."""
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


def _scrub(connection: apsw.Connection) -> None:
    """Take what was in clear off the disk as far as the file goes: out of the log of writes, and
    out of the pages that receivers forgotten long ago left free."""
    try:
        if run(connection, "SELECT 1 FROM sqlite_sequence WHERE name = 'pushes' AND seq > 0"):
            logger.info("the file is written anew once, so that no secret stays in it in clear")
            run(connection, "VACUUM")
        ((is_busy, _, _),) = run(connection, "PRAGMA wal_checkpoint(truncate)")
        if is_busy:
            raise apsw.BusyError("others use the file")
    except apsw.Error as error:
        logger.warning(
            "secrets are sealed, but what an earlier release wrote in clear may still be in free "
            "parts of the file (%s); with no server running say: sqlite3 FILE VACUUM",
            error,
        )
