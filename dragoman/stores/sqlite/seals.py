"""What of the file is sealed: the store's secret, receivers' credentials, notes, withheld answers,
and what agents are shown that a gateway calls.

Which key to seal with stands in the file, and is read in the transaction that writes: once a
rotation has named another one, nothing is written under the old one, whichever process writes. A
store that was given no way to seal keeps everything in clear, and refuses a file that is sealed.
"""

import logging
from os import urandom
from pathlib import Path

import apsw
import msgspec

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.push import PushConfig
from dragoman.stores.interface import Sealing
from dragoman.stores.sealed_values import (
    SECRET,
    SECRET_BYTES,
    OpenedValues,
    of_answer,
    of_credential,
    of_note,
)
from dragoman.stores.sqlite.inspection import open_to_read
from dragoman.stores.sqlite.schema import connect, queries, run, transaction

logger = logging.getLogger("dragoman")

_decode_config = msgspec.json.Decoder(PushConfig).decode
_SQL = queries("seals.sql")


class Seals(OpenedValues):
    """Seals and opens the values of one file."""

    def prepare(self, connection: apsw.Connection) -> None:
        """Refuse a file whose keys we do not have; seal one that never was."""
        if self._sealing is None:
            if keys_of(connection):
                raise ConfigError(
                    "the file is sealed: a process that writes to it needs its key (sealing=)"
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

    def check_keys(self, connection: apsw.Connection) -> None:
        """Refuse a file whose keys we do not have; change nothing."""
        if (used := keys_of(connection)) and self._sealing is not None:
            self._sealing.ready(used)

    def _seal_all(self, connection: apsw.Connection, key: bytes) -> bool:
        """Seal what an earlier release kept in clear; tell whether there was anything."""
        run(connection, _SQL["add_key"], (key,))
        secrets = run(connection, _SQL["fact"], ("secret",))
        for (secret,) in secrets:
            self._keep_secret(connection, bytes(secret))
            run(connection, _SQL["drop_clear_secret"])
        for number, task, body in run(connection, _SQL["pushes"]):
            config, sealed = self.push(connection, task, _decode_config(body))
            values = (config, sealed, number)
            run(connection, _SQL["set_push"], values)
        for number, task, body in run(connection, _SQL["notes"]):
            values = (self.note(connection, task, body), number)
            run(connection, _SQL["set_note"], values)
        for number, shown, body in run(connection, _SQL["credentials"]):
            values = (self.credential(connection, bytes(shown), bytes(body)), number)
            run(connection, _SQL["set_credential"], values)
        return bool(secrets)

    def _keep_secret(self, connection: apsw.Connection, secret: bytes) -> None:
        name = "secret" if self._sealing is None else "sealed_secret"
        values = (name, self._seal(connection, secret, SECRET))
        run(connection, _SQL["add_fact"], values)

    def _seal(self, connection: apsw.Connection, plain: bytes, context: bytes) -> bytes:
        if self._sealing is None:
            return plain
        ((key,),) = run(connection, _SQL["current_key"])
        return self._sealing.seal(plain, context, key)

    def trouble(self, connection: apsw.Connection) -> str:
        """Say what would keep the next process from opening the file; empty: nothing."""
        return "" if self._sealing is None else self._sealing.trouble(keys_of(connection))

    # What is sealed, each with the place it belongs to

    def secret(self, connection: apsw.Connection) -> bytes | None:
        """Return the store's secret, if it has one yet."""
        for (sealed,) in run(connection, _SQL["fact"], ("sealed_secret",)):
            return self.open(sealed, SECRET)
        for (secret,) in run(connection, _SQL["fact"], ("secret",)):
            return bytes(secret)
        return None

    def make_secret(self, connection: apsw.Connection) -> bytes:
        """Return the store's secret, made here unless another process was first."""
        with transaction(connection):
            found = self.secret(connection)
            if found is None:
                found = urandom(SECRET_BYTES)
                self._keep_secret(connection, found)
        return found

    def push(
        self, connection: apsw.Connection, task: int, config: PushConfig
    ) -> tuple[bytes, bytes | None]:
        """Return a configuration in two pieces: what may be read, and its secrets if it has any."""
        return self.push_parts(
            task, config, lambda secrets, place: self._seal(connection, secrets, place)
        )

    def note(self, connection: apsw.Connection, task: int, body: bytes) -> bytes:
        """Return a note as it is kept: a message in it may answer a sensitive question."""
        return self._seal(connection, body, of_note(task))

    def answer(self, connection: apsw.Connection, task: int, seq: int, body: bytes) -> bytes:
        """Return what is withheld from a log as it is kept."""
        return self._seal(connection, body, of_answer(task, seq))

    def credential(self, connection: apsw.Connection, shown: bytes, body: bytes) -> bytes:
        """Return what an agent is shown when it is called, as it is kept."""
        return self._seal(connection, body, of_credential(shown))


def keys_of(connection: apsw.Connection) -> list[bytes]:
    """Return the keys that values in a file are sealed with, the one to seal with first."""
    return [bytes(id) for (id,) in run(connection, _SQL["keys"])]


def secret_of(path: Path, sealing: Sealing) -> bytes:
    """Return the secret of a store's file, also while servers use it; raises `ConfigError`."""
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


def _scrub(connection: apsw.Connection) -> None:
    """Take what was in clear off the disk as far as the file goes: out of the log of writes, and
    out of the pages that receivers forgotten long ago left free."""
    try:
        if run(connection, _SQL["had_pushes"]):
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
