"""What `dragoman doctor` looks at to tell whether strangers are kept out and secrets kept.

Nothing is opened, unsealed or changed: keys go by their ids, and of settings only what they lead to
is said.
"""

import time
from collections.abc import Callable
from ipaddress import ip_address

from dragoman.cli.operating.checks import file as file_checks
from dragoman.cli.operating.checks.findings import (
    CheckedInstallation,
    CheckResult,
    count,
    ok,
    problem,
    warning,
)

# Seconds before its end from which on the operator should make another key.
_SOON = 14 * 24 * 3600
_IDS_SHOWN = 5


def exposure(subject: CheckedInstallation) -> CheckResult:
    """Settings that let in, or lead to, whom they should not."""
    settings = subject.settings
    away = [host for host, _ in settings.addresses() if not _is_local(host)]
    if away and not settings.ways():
        return problem(
            f"others reach {away[0]}, and callers are not authenticated: no server starts so",
            "DRAGOMAN_AUTH says how callers prove it; or listen on 127.0.0.1, or serve --public",
        )
    if settings.egress.allow_private:
        return warning(
            "callers can have us dial addresses of this machine and its networks",
            "name those that are meant by DRAGOMAN_ALLOW, and unset DRAGOMAN_ALLOW_PRIVATE",
        )
    ways = ", ".join(settings.ways())
    return ok(f"callers prove who they are: {ways}" if ways else "only this machine calls us")


def api_keys(subject: CheckedInstallation) -> CheckResult:
    """The file of API keys, if it is there or should be."""
    from dragoman.errors import ConfigError
    from dragoman.security.keys.api_keys import decode_keys
    from dragoman.security.watched_files import WatchedFile

    path = subject.settings.keys_path()
    is_used = "api-key" in subject.settings.ways()
    if not path.exists():
        if not is_used:
            return ok("there are none")
        return problem(f"{path} does not exist, so no server starts", "dragoman keys create")
    try:
        keys = WatchedFile(path, lambda body: decode_keys(path, body)).load()
    except ConfigError as error:
        bad = problem if is_used else warning
        return bad(str(error), "mend it: until then no API key lets anybody in")
    now = time.time()
    # One that has a successor, or was taken back, ends as it should.
    held = [key for key in keys if not key.followed_by and key.revoked_at is None]
    if refused := [key.id for key in held if key.state(now) == "refused"]:
        ids = ", ".join(refused[:_IDS_SHOWN])
        return warning(
            f"{count(len(refused), 'key')} of agents, made by 0.5, are refused: {ids}",
            "their owners make new ones at the gateway; `dragoman keys revoke` ends these for good",
        )
    ended = [key.id for key in held if key.until <= now]
    soon = [key.id for key in held if now < key.until <= now + _SOON]
    if ended or soon:
        warnings = [f"{count(len(ended), 'key')} expired"] if ended else []
        warnings += [f"{count(len(soon), 'key')} will within 14 days"] if soon else []
        ids = ", ".join([*ended, *soon][:_IDS_SHOWN])
        return warning(
            f"{', '.join(warnings)}: {ids}",
            "`dragoman keys rotate` gives a holder another, `dragoman keys revoke` ends the matter",
        )
    active = sum(key.state(now) == "active" for key in keys)
    if is_used and subject.is_postgres:
        return ok(
            f"{count(active, 'key')} in {path}, of this machine: replicas on others have a file of "
            "their own"
        )
    return ok(f"{count(active, 'key')} in use" if is_used else f"{count(active, 'key')}, not used")


def audit(subject: CheckedInstallation) -> CheckResult:
    """The chain of the audit log, if there is one."""
    from dragoman.security.audit.reading import verify

    path = subject.settings.audit_path()
    if path is None:
        return ok("none is kept")
    try:
        report = verify(path)
    except FileNotFoundError:
        return ok(f"{path} does not exist yet")
    if (broken := report.problem) is not None:
        return problem(
            f"{broken.file}, line {broken.line}: {broken.what}",
            "keep a copy of all its files; `dragoman audit verify` says more, a backup what it was",
        )
    torn = f", {len(report.torn)} cut off by a crash" if report.torn else ""
    return ok(f"{count(report.lines, 'line')}, an unbroken chain{torn}")


def store_key(subject: CheckedInstallation) -> CheckResult:
    """Whether what is sealed in the store can be opened; called with a look into it."""
    from dragoman.errors import ConfigError
    from dragoman.security.vault import vault_of
    from dragoman.stores.tools import sealed_with

    if not subject.is_postgres and not file_checks.is_present(subject):
        return ok("nothing is sealed: the store is of an earlier release")
    if not (used := sealed_with(subject.settings)):
        return ok("nothing is sealed")
    try:
        ours = vault_of(subject.settings)
        ours.reload()
    except ConfigError as error:
        return problem(str(error), "mend that: without its key no server starts on this store")
    place = str(ours.file) if ours.file is not None else "DRAGOMAN_STORE_KEY"
    if missing := [one.hex() for one in used if one not in ours.ids]:
        return problem(
            f"the store is sealed with {', '.join(missing)}, and {place} does not have it",
            "restore the key file, or name it by DRAGOMAN_STORE_KEY_FILE; nothing replaces it",
        )
    return ok(f"sealed, and {count(len(used), 'key')} at hand in {place}")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _with_known_settings(
    check: "Callable[[CheckedInstallation], CheckResult]",
) -> "Callable[[CheckedInstallation], CheckResult]":
    """Return the check for settings that are known: by the defaults it would judge others."""

    def checked(subject: CheckedInstallation) -> CheckResult:
        if subject.refusal:
            return warning("not checked: the settings make no sense", "correct them first")
        return check(subject)

    return checked


OF_THE_MACHINE = {
    "exposure": _with_known_settings(exposure),
    "api-keys": _with_known_settings(api_keys),
    "audit": _with_known_settings(audit),
}
OF_THE_STORE = {"store-key": _with_known_settings(store_key)}
