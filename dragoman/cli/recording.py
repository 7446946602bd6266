"""What commands change on this machine is in the audit log, like what callers and operators do."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dragoman.cli.invocation import Invocation
from dragoman.cli.own import settings_of

if TYPE_CHECKING:
    # Heavy: loaded when something is changed.
    from dragoman.security.audit import Audit


@contextmanager
def recording(run: Invocation, store: str | None = None) -> "Generator[Audit]":
    """Open the audit log, before anything is changed: one that cannot be written prevents it."""
    from dragoman.security.audit import AuditLog, NoAudit

    path = settings_of(run, store=store).audit_path()
    audit: Audit = NoAudit() if path is None else AuditLog(path)
    audit.start()
    try:
        yield audit
    finally:
        audit.stop()


def record(audit: "Audit", act: str, object: str, reason: str = "") -> None:
    """Record what was done, and by whom."""
    audit.record(act, outcome="allowed", who=f"local:{_user()}", object=object, reason=reason)


def _user() -> str:
    """Return the name of whoever types this, or its number if it has none."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())
