"""What commands change on this machine is in the audit log, like what callers and operators do."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import own, settings_of

if TYPE_CHECKING:
    # Heavy: loaded when something is changed.
    from dragoman.security.audit.log import Audit


AUDIT_OPTION = own(
    "--audit", metavar="<path>", help="The file of the audit log (beside the store)."
)


@contextmanager
def recording(run: Invocation, audit: str | None, store: str | None) -> "Generator[Audit]":
    """Open the audit log, before anything is changed: one that cannot be written prevents it."""
    from dragoman.security.audit.log import AuditLog, NoAudit

    settings = settings_of(run, audit=audit, store=store)
    path = settings.audit_path()
    settings.make_own_folder()
    log: Audit = NoAudit() if path is None else AuditLog(path)
    log.start()
    try:
        yield log
    finally:
        log.stop()


def record(audit: "Audit", act: str, object: str, reason: str = "") -> None:
    """Record what was done, and by whom."""
    audit.record(act, outcome="allowed", who=f"local:{_user()}", object=object, reason=reason)


def _user() -> str:
    """Return the name of the user of this command, or its number if it has none."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())
