"""`dragoman doctor`: what an operator should know before something goes wrong, or after.

A check looks at one thing and gives one finding. Everything is read only, also of a file that
servers use. What is found is an outcome, so the exit code is 0 unless `--strict` asks for more.
Nothing callers said is shown, nor any secret or address of a receiver.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli import doctor_agent, doctor_security
from dragoman.cli.failures import usage
from dragoman.cli.findings import LEVELS, Finding, Verdict, count, ok, problem, warning
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import STORE_OPTION, budget, own

if TYPE_CHECKING:
    # Heavy: loaded inside the commands.
    from dragoman.config import Settings
    from dragoman.stores.sqlite.inspection import Inspection

# Earlier ones may damage a file that several connections write (the WAL-reset bug).
_SQLITE = (3, 51, 3)
_PYTHON = (3, 11)
# SQLite's number for `synchronous=FULL`.
_FULL = 2
_LITTLE_SPACE = 512 * 1024 * 1024
_NO_SPACE = 32 * 1024 * 1024
# Reading a file of this size takes long enough to say so.
_LARGE = 512 * 1024 * 1024
# Milliseconds by which a clock may be set back without harm.
_JITTER = 2_000
# 2026-01-01: a clock before it was never set.
_EARLIEST = 1_767_225_600_000
# Milliseconds after which a try that is due and was not made is worth a word.
_OVERDUE = 60_000
_STUCK = """
SELECT count(*) FROM pushes JOIN tasks ON tasks.number = pushes.task
WHERE is_open = 1 AND cursor < last_seq AND state IN (3, 4, 5, 7)
    AND status_at < :before AND due_at < :before
    AND pushes.holder IN (SELECT value FROM json_each(:live))
"""
_NAMES_SHOWN = 5
_RESTORE = "stop the servers, keep a copy of the file, start from the last backup"


class Subject:
    """What is looked at."""

    def __init__(self, run: Invocation, store: str | None) -> None:
        from dragoman.config import load
        from dragoman.errors import ConfigError

        self.run = run
        # With what the configuration files say.
        environment = self.environment = run.settings.environment
        self.is_named = store is not None
        self.refusal = ""
        try:
            self.settings: Settings = load(environment, store=store)
        except ConfigError as error:
            # The rest is looked at all the same.
            self.refusal = str(error)
            self.settings = load({}, store=store or environment.get("DRAGOMAN_STORE"))
        self.path = self.settings.store_path()
        self.look: Inspection | None = None

    @property
    def inspection(self) -> "Inspection":
        """The look into the file; only for checks that need one."""
        assert self.look is not None
        return self.look


# The machine and the settings


def _install(subject: Subject) -> Verdict:
    import platform

    import apsw

    library = apsw.sqlite_lib_version()
    about = f"Python {platform.python_version()}, apsw {apsw.apsw_version()}, SQLite {library}"
    if sys.version_info < _PYTHON:
        return problem(f"{about}: this Python is too old", "install Python 3.11 or later")
    if tuple(map(int, library.split(".")[:3])) < _SQLITE:
        least = ".".join(map(str, _SQLITE))
        return problem(
            f"{about}: SQLite before {least} can damage a store that is written from several sides",
            "pip install --upgrade apsw",
        )
    return ok(about)


def _configuration(subject: Subject) -> Verdict:
    from dragoman.config import PREFIX, check_names
    from dragoman.errors import ConfigError
    from dragoman.server.push import check

    refusal = subject.refusal
    try:
        check(subject.settings)
        check_names(subject.environment)
    except ConfigError as error:
        refusal = refusal or str(error)
    if refusal:
        return problem(refusal, "correct the DRAGOMAN_ variable of that name")
    named = [name for name in subject.environment if name.startswith(PREFIX)]
    return ok(f"{count(len(named), 'variable')} of the environment or a file")


def _sources(subject: Subject) -> Verdict:
    from dragoman.cli.sources import config_folder, nearest

    run = subject.run
    if warnings := run.settings.warnings:
        return warning("; ".join(warnings), "dragoman config show")
    local = Path(run.settings.config) if run.settings.config else nearest(run.folder)
    files = [str(path) for path in (local, config_folder(run.environment) / ".env") if path]
    found = [path for path in files if Path(path).is_file()]
    given = sum(1 for name in run.environment if name.startswith("A2ACLI_"))
    return ok(f"{count(given, 'variable')} of the environment, files: {', '.join(found) or 'none'}")


def _durability(subject: Subject) -> Verdict:
    """How safe our connections are: SQLite keeps this per connection and not in the file."""
    import tempfile

    from dragoman.stores.sqlite.schema import connect, run

    if subject.settings.store == "memory:":
        return warning(
            "tasks are kept in memory and are gone when the server ends", "--store FILE keeps them"
        )
    level = subject.settings.synchronous
    if level != "full":
        lost = f"with synchronous {level}, a power cut loses acknowledged tasks"
        hint = "leave DRAGOMAN_SYNCHRONOUS unset"
        if subject.settings.accept_data_loss:
            return warning(f"{lost}, which was accepted", hint)
        return problem(f"{lost}, so no server starts", hint)
    with tempfile.TemporaryDirectory(prefix="dragoman-doctor-") as folder:
        connection = connect(str(Path(folder) / "probe.db"))
        try:
            ((number,),) = run(connection, "PRAGMA synchronous")
            ((journal,),) = run(connection, "PRAGMA journal_mode")
        finally:
            connection.close()
    if number < _FULL or journal != "wal":
        return problem(
            f"commits are not safe against a power cut (synchronous {number}, journal {journal})",
            "a store needs synchronous FULL and a write-ahead log; undo what changed that",
        )
    return ok("a commit is on disk before anyone hears of it (synchronous FULL, WAL)")


def _port(subject: Subject) -> Verdict:
    import errno
    import socket

    # The first one; the others fail with the same words.
    host, port = subject.settings.addresses()[0]
    if not port:
        return ok("any free port is taken")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return problem(f"{host}:{port}: {error.strerror}", "choose another --listen")
            look = subject.look
            if look and look.is_shared and any(w.state == "live" for w in look.workers()):
                return ok(f"{host}:{port} is in use, and a server runs on this store")
            return warning(f"{host}:{port} is in use", "--listen with port 0 takes a free one")
    return ok(f"{host}:{port} is free")


def _connections(subject: Subject) -> Verdict:
    from dragoman.security.descriptors import for_callers

    wanted = subject.settings.max_connections
    share = for_callers(wanted)
    about = f"{share.connections:,} callers at once, with a limit of {share.limit:,} open files"
    if share.connections < wanted:
        return warning(
            f"{about}, and not {wanted:,}", "ulimit -n, or LimitNOFILE= of the service, raises it"
        )
    return ok(about)


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def _proxy(subject: Subject) -> Verdict:
    environment = subject.run.environment
    found = [name for name in _PROXIES if environment.get(name) or environment.get(name.lower())]
    if found:
        return ok(f"{', '.join(found)} is set, and not used: agents are dialled directly")
    return ok("none is set, and none would be used")


def _tls(subject: Subject) -> Verdict:
    import ssl

    paths = ssl.get_default_verify_paths()
    known = ssl.create_default_context().cert_store_stats()["x509_ca"]
    folder = Path(paths.capath) if paths.capath else None
    if not known and folder and folder.is_dir():
        # These are read when they are needed.
        known = sum(1 for _ in folder.iterdir())
    about = f"{ssl.OPENSSL_VERSION}, {count(known, 'trusted authority', 'trusted authorities')}"
    if not known:
        return warning(
            f"{about}: no certificate of an https agent can be verified",
            "install the system's ca-certificates, or say --ca-cert",
        )
    return ok(about)


# The file


def _store(subject: Subject) -> Verdict:
    """The file itself; called with a look, so it can be opened and is ours."""
    look = subject.inspection
    about = f"{subject.path}: {count(look.tasks(), 'task')}, schema {look.schema}"
    if not look.is_present:
        return warning(f"{about}, of an earlier release", "the next server to start migrates it")
    return ok(about)


def _no_store(subject: Subject, refusal: str) -> Verdict:
    if subject.settings.store == "memory:":
        return ok("there is no file: tasks are kept in memory")
    from dragoman.stores.sqlite.leftovers import leftovers

    is_there = os.path.exists(subject.path)
    if not is_there and not subject.is_named and not leftovers(subject.path):
        return ok(f"{subject.path} does not exist yet; the first server makes it")
    if not is_there:
        return problem(refusal, "--store names the file; `dragoman serve` makes one")
    return problem(refusal, "name another file by --store, or restore a backup")


def _integrity(subject: Subject) -> Verdict:
    size = subject.path.stat().st_size
    if size > _LARGE:
        subject.run.out.note("Progress", f"reading {size / 1e9:.1f} GB")
    if damage := subject.inspection.damage():
        # The line before says only which file.
        return problem(f"the file is damaged: {damage.splitlines()[-1]}", _RESTORE)
    return ok("the file is sound")


def _journal(subject: Subject) -> Verdict:
    mode = subject.inspection.journal()
    if mode != "wal":
        return warning(
            f"the journal mode is {mode}, so readers and writers wait for each other",
            "another program changed it; the next server to start turns it back",
        )
    return ok("write-ahead log")


def _permissions(subject: Subject) -> Verdict:
    if os.name == "nt":
        return ok("not checked on this system")
    files = [subject.path.with_name(subject.path.name + end) for end in ("", "-wal", "-shm")]
    modes = [path.stat().st_mode for path in files if path.exists()]
    hint = f"chmod 600 {subject.path}*"
    if any(mode & 0o007 for mode in modes):
        return problem("everyone on this machine can open the file", hint)
    if any(mode & 0o070 for mode in modes):
        return warning("the file's group can open it", hint)
    return ok("the file is its owner's alone")


def _space(subject: Subject) -> Verdict:
    import shutil

    free = shutil.disk_usage(subject.path.parent).free
    about = f"{free / 1e9:.1f} GB are free beside the file"
    if free < _NO_SPACE:
        return problem(about, "make room: without it every write is refused")
    return warning(about, "make room before it is full") if free < _LITTLE_SPACE else ok(about)


# What is in it


def _workers(subject: Subject) -> Verdict:
    found = [worker.state for worker in subject.inspection.workers()]
    live, frozen, dead = (found.count(state) for state in ("live", "frozen", "dead"))
    about = f"{live} live, {frozen} frozen, {dead} dead"
    if frozen:
        return problem(
            f"{about}: a process runs but gave no sign of life for its lease",
            "see whether it is stopped or its agent blocks the loop; restart it",
        )
    if dead and live:
        return warning(f"{about}: the dead are about to be removed", "look again in some seconds")
    if dead:
        return warning(f"{about}: a server ended without goodbye", "start it again")
    return ok(about)


def _orphans(subject: Subject) -> Verdict:
    orphans = subject.inspection.orphans()
    if not orphans.number:
        return ok(f"{count(orphans.unfinished, 'unfinished task')}, none without a worker")
    agents = ", ".join(orphans.agents[:_NAMES_SHOWN])
    return problem(
        f"{count(orphans.number, 'unfinished task')} of {agents}: nobody works on them",
        "serve these agents on this store; tasks go on by themselves",
    )


def _notes(subject: Subject) -> Verdict:
    notes = subject.inspection.notes()
    if notes.stuck:
        return warning(
            f"{count(notes.stuck, 'message')} or cancels wait for tasks without a worker",
            "serve their agents on this store",
        )
    if notes.late:
        return warning(
            f"{count(notes.late, 'message')} came when their task had ended",
            "their callers see the task's end; nothing is to be done",
        )
    return ok(f"{count(notes.number, 'message')} on the way between processes")


def _deadlines(subject: Subject) -> Verdict:
    if overdue := subject.inspection.overdue():
        return problem(
            f"{count(overdue, 'task')} should have ended by now",
            "a server ends them: serve their agents on this store",
        )
    return ok("no task is past its deadline")


def _pushes(subject: Subject) -> Verdict:
    failing, given_up, abandoned = subject.inspection.receivers()
    if abandoned:
        return problem(
            f"{count(abandoned, 'receiver')} of webhooks wait and nobody delivers",
            "start a server on this store",
        )
    if stuck := _stuck(subject):
        return problem(
            f"{count(stuck, 'receiver')} of ended tasks wait for a try that is overdue",
            "restart the server that has them; look at its load and at push_slots",
        )
    if failing or given_up:
        hint = "`dragoman push list` names them and why"
        if given_up:
            hint += "; `dragoman push replay` opens those again that were given up"
        else:
            hint += "; they are tried again by themselves"
        return warning(f"{count(failing, 'receiver')} failing, {given_up} given up", hint)
    return ok("every receiver of webhooks takes them")


def _stuck(subject: Subject) -> int:
    """Return how many receivers a live server should have posted to by now. Only of ended tasks:
    their last event is posted in every version, so whoever has not got it is owed something."""
    import time

    import msgspec

    from dragoman.stores.sqlite.inspection import open_to_read
    from dragoman.stores.sqlite.schema import run

    live = [worker.number for worker in subject.inspection.workers() if worker.state == "live"]
    if not live:
        return 0
    connection = open_to_read(subject.path)
    try:
        values = {
            "live": msgspec.json.encode(live).decode(),
            "before": time.time_ns() // 1_000_000 - _OVERDUE,
        }
        ((number,),) = run(connection, _STUCK, values)
    finally:
        connection.close()
    return int(number)


def _dead_letters(subject: Subject) -> Verdict:
    from datetime import UTC, datetime

    number, latest = subject.inspection.dead_letters()
    if not number:
        return ok("none")
    at = datetime.fromtimestamp(latest // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return warning(
        f"{count(number, 'event')} no receiver took, the latest of {at}",
        "`dragoman push list` names them, `dragoman push replay` sends them again",
    )


def _clock(subject: Subject) -> Verdict:
    import time

    now = time.time_ns() // 1_000_000
    newest = subject.look.newest() if subject.look else 0
    hint = "set the clock: deadlines, retention and the schedule of webhooks go by it"
    if now < _EARLIEST:
        return problem("the clock was never set", hint)
    if now + _JITTER < newest:
        behind = (newest - now) // 1000
        return problem(f"the clock is {behind:,} s behind the newest task", hint)
    return ok("not behind the newest task")


Check = Callable[[Subject], Verdict]

_OF_THE_MACHINE: dict[str, Check] = {
    "install": _install,
    "configuration": _configuration,
    "sources": _sources,
    "durability": _durability,
    "clock": _clock,
    "port": _port,
    "connections": _connections,
    "proxy": _proxy,
    "tls": _tls,
    **doctor_security.OF_THE_MACHINE,
}
_OF_THE_FILE: dict[str, Check] = {
    "store": _store,
    "integrity": _integrity,
    "journal": _journal,
    "permissions": _permissions,
    "space": _space,
}
# These need what a store of an early release does not have.
_OF_ITS_CONTENTS: dict[str, Check] = {
    "workers": _workers,
    "orphans": _orphans,
    "notes": _notes,
    "deadlines": _deadlines,
    "pushes": _pushes,
    "dead-letters": _dead_letters,
    **doctor_security.OF_THE_STORE,
}
NAMES = [*_OF_THE_MACHINE, *_OF_THE_FILE, *_OF_ITS_CONTENTS]
ALL_NAMES = [*NAMES, *doctor_agent.NAMES]


def examine(subject: Subject, names: set[str]) -> list[Finding]:
    """Run the named checks in order. What needs a store, or a later one, is left out where there is
    none; the finding about the store then says so."""
    from dragoman.errors import ConfigError
    from dragoman.stores.sqlite.inspection import inspecting

    findings: list[Finding] = []

    def run(checks: dict[str, Check]) -> None:
        for name, check in checks.items():
            if name in names:
                findings.append(Finding(name, *_tried(check, subject)))

    with ExitStack() as stack:
        refusal = ""
        try:
            subject.look = stack.enter_context(
                inspecting(subject.path, lease=subject.settings.lease)
            )
        except ConfigError as error:
            refusal = str(error)
        run(_OF_THE_MACHINE)
        if subject.look is not None:
            if not subject.look.is_shared and names & {*_OF_ITS_CONTENTS}:
                names = names - {*_OF_ITS_CONTENTS} | {"store"}
            run(_OF_THE_FILE)
            run(_OF_ITS_CONTENTS)
        elif names & {*_OF_THE_FILE, *_OF_ITS_CONTENTS}:
            # Why the others are not there.
            findings.append(Finding("store", *_no_store(subject, refusal)))
        subject.look = None
    return findings


def _tried(check: Check, subject: Subject) -> Verdict:
    import apsw

    from dragoman.errors import ConfigError

    try:
        return check(subject)
    except ConfigError as error:
        return problem(str(error), "a server would refuse it too")
    except apsw.CorruptError:
        return problem("cannot be checked: the file is damaged", _RESTORE)
    except (apsw.Error, OSError) as error:
        return problem(f"cannot be checked: {error}", "run it as the user that runs the server")


@command("doctor")
@click.argument("ref", required=False)
@own("--agent", default="", in_environment=False, metavar="<ref>", help="The agent, like REF.")
@STORE_OPTION
@own(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice(ALL_NAMES),
    in_environment=False,
    metavar="<name>",
    help=f"Only this check, may be repeated: {', '.join(ALL_NAMES)}.",
)
@own("--strict", switch=True, help="Exit with 1 if there is a problem.")
def doctor(
    run: Invocation,
    ref: str | None,
    agent: str,
    store: str | None,
    checks: tuple[str, ...],
    strict: bool,
) -> None:
    """Check the installation, the settings, the store, and an agent if REF is given.

    Nothing is changed, and the store may be in use. Each finding is ok, a warning or a problem, and
    says what to do.
    """
    if ref and agent and ref != agent:
        raise usage("which agent? REF and --agent name two")
    ref = ref or agent
    if ref:
        run.settings.agent_card = ref
    # An agent that only the configuration names is none that was asked about.
    has_agent = bool(ref) or run.settings.is_given("agent-card")
    names = set(checks or (ALL_NAMES if has_agent else NAMES))
    if names & {*doctor_agent.NAMES} and not has_agent:
        raise usage("which agent? dragoman doctor <ref> names it")
    with budget(run):
        findings = examine(Subject(run, store), names & {*NAMES}) if names & {*NAMES} else []
    if names & {*doctor_agent.NAMES}:
        findings += doctor_agent.examine(run, names)
    levels = [finding.level for finding in findings]
    summary = {level: levels.count(level) for level in LEVELS}
    if run.out.is_json and run.out.is_stream:
        for finding in findings:
            run.out.json(finding._asdict())
    elif run.out.is_json:
        run.out.json({"findings": [one._asdict() for one in findings], "summary": summary})
    else:
        _show(run, findings, summary)
    if strict and summary["problem"]:
        run.out.warn(f"{count(summary['problem'], 'problem')} found")
        sys.exit(1)


def _show(run: Invocation, findings: list[Finding], summary: dict[str, int]) -> None:
    for finding in findings:
        run.out.field("Check", finding.check)
        run.out.field("Level", finding.level)
        run.out.field("Finding", run.redactor.text(finding.message))
        if finding.hint:
            run.out.field("Hint", finding.hint)
    run.out.field("Problems", str(summary["problem"]))
    run.out.field("Warnings", str(summary["warning"]))
