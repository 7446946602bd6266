"""What `dragoman doctor` looks at where the store is a PostgreSQL database."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dragoman.cli.operating.checks.findings import (
    CheckedInstallation,
    CheckResult,
    count,
    ok,
    problem,
    warning,
)

if TYPE_CHECKING:
    # Heavy: loaded when a check needs it.
    from dragoman.stores.postgres.operating.health import DatabaseFacts

# Of the connections that a server allows, from where on the next replica may find none.
_FULL_SHARE = 0.85
# Dead rows for each living one from which on clean-up does not keep up.
_DEAD_SHARE = 0.5
# Transactions before the server refuses to write; it cleans up by itself far earlier.
_FEW_TRANSACTIONS = 500_000_000
# Seconds of a transaction that keeps dead rows in place.
_OLD_TRANSACTION = 600
_MUCH_LOG = 10 * 1024**3
_FAR_BEHIND = 64 * 1024**2
_LATE_SEAL_MS = 10_000
_GRANT = "GRANT pg_read_all_stats TO the user that servers connect as"


@contextmanager
def looking(subject: CheckedInstallation) -> "Generator[None]":
    """Look into the database; raises `ConfigError` where it cannot be reached."""
    from dragoman.stores.tools import database_facts, inspecting

    subject.database = database_facts(subject.settings)
    with inspecting(subject.settings) as (found, wait):
        subject.open_inspection, subject.wait = found, wait
        try:
            yield
        finally:
            subject.open_inspection = None


def _facts(subject: CheckedInstallation) -> "DatabaseFacts":
    assert subject.database is not None, "only for checks of a database"
    return subject.database


def no_store(subject: CheckedInstallation, refusal: str) -> CheckResult:
    """Say why there is nothing to look into."""
    return problem(refusal, "--store is the address: postgresql://user@host/name")


def _store(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    tasks = subject.wait(subject.inspection.tasks())
    size = f"{facts.size / 1e9:.1f} GB" if facts.size > 10**8 else f"{facts.size / 1e6:.1f} MB"
    name = subject.settings.store_name
    return ok(f"{name}: {count(tasks, 'task')}, schema {facts.schema}, {size}")


def _database(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    about = f"PostgreSQL {facts.version}"
    if facts.is_standby:
        return problem(f"{about} is a standby", "give the address of the primary")
    if off := [name for name, value in facts.settings.items() if value == "off"]:
        return problem(
            f"{about} has {', '.join(off)} = off: what was acknowledged may be lost",
            "switch it on; no server starts on this database",
        )
    from dragoman.stores.postgres.operating.health import TIMEOUTS

    timed = [name for name in TIMEOUTS if facts.settings.get(name, "0") != "0"]
    # Without a pooler servers switch them off for themselves.
    if timed and subject.settings.stores.session_url:
        return warning(
            f"{about} has {', '.join(timed)}, and a pooler is in between: it may end a commit that "
            "waits for a standby",
            "ALTER ROLE … SET … = 0 for the role that servers use",
        )
    return ok(f"{about}: a commit is on disk before anyone hears of it")


def _replication(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    if facts.lacks_standby:
        return problem(
            "commits wait for a standby, and none answers: nothing is written",
            "start the standby; do not cancel what waits: it would be committed and not copied",
        )
    if facts.waiting_commits and facts.waiting_ms > 1000:
        return problem(
            f"{count(facts.waiting_commits, 'commit')} wait for a standby, the first for "
            f"{facts.waiting_ms / 1000:.0f} s",
            "see whether the standby is frozen or its disk is full; do not cancel what waits",
        )
    if not facts.standbys:
        return warning(
            "there is no standby: with the disk of this server everything is lost",
            "docs/scale-out.md says how to add one; until then keep backups",
        )
    found = count(len(facts.standbys), "standby", "standbys")
    if not facts.sees_others:
        return warning(f"{found}; this user may not see how far behind", _GRANT)
    behind = facts.behind or 0
    about = f"{found}, {behind / 1e6:.1f} MB behind"
    if not facts.waits_for_standby:
        return warning(
            f"{about}; commits wait for none of them, so a failover loses the last ones",
            "synchronous_standby_names and synchronous_commit = on make commits wait",
        )
    if behind > _FAR_BEHIND:
        return warning(about, "see whether a standby or the network is slow")
    return ok(about)


def _room(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    about = f"{facts.connections} of {facts.most_connections} connections are used"
    if facts.connections > facts.most_connections * _FULL_SHARE:
        return warning(
            about, "raise max_connections, or use a pooler: each process of ours takes up to 10"
        )
    return ok(about)


def _vacuum(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    if facts.wraparound < _FEW_TRANSACTIONS:
        return problem(
            f"{facts.wraparound:,} transactions are left before the server stops writing",
            "let autovacuum finish, or run VACUUM FREEZE; see what holds it up",
        )
    if facts.oldest_transaction > _OLD_TRANSACTION:
        return warning(
            f"a transaction is open since {facts.oldest_transaction // 60} minutes: nothing newer "
            "is cleaned up",
            "pg_stat_activity names it; end it if it is forgotten",
        )
    if facts.kept_log > _MUCH_LOG:
        return warning(
            f"a replication slot keeps {facts.kept_log / 1e9:.0f} GB of log",
            "drop the slot of a standby that is gone",
        )
    if facts.dead_share > _DEAD_SHARE:
        return warning(
            f"{facts.dead_table}: {facts.dead_share:.0%} dead rows, clean-up does not keep up",
            "autovacuum_vacuum_cost_limit and autovacuum_max_workers make it faster",
        )
    if not facts.sees_others:
        return ok(f"clean-up keeps up; transactions of other users are hidden: {_GRANT}")
    return ok("clean-up keeps up")


def _ledger(subject: CheckedInstallation) -> CheckResult:
    facts = _facts(subject)
    if facts.unsealed and facts.unsealed_ms > _LATE_SEAL_MS:
        return warning(
            f"{count(facts.unsealed, 'transfer')} of the ledger not sealed, the oldest for "
            f"{facts.unsealed_ms // 1000:,} s",
            "a gateway seals them: start one; any look at the ledger does it too",
        )
    return ok(f"{count(facts.unsealed, 'transfer')} of the ledger on the way")


def _partitions(subject: CheckedInstallation) -> CheckResult:
    return ok(f"{count(_facts(subject).partitions, 'partition')} of events")


Check = Callable[[CheckedInstallation], CheckResult]

OF_THE_DATABASE: dict[str, Check] = {
    "store": _store,
    "database": _database,
    "replication": _replication,
    "room": _room,
    "vacuum": _vacuum,
    "partitions": _partitions,
    "ledger": _ledger,
}
