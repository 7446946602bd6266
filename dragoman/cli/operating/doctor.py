"""`dragoman doctor`: what an operator should know before something goes wrong, or after.

A check looks at one thing and gives one finding. Everything is read only, also of a file that
servers use. What is found is an outcome, so the exit code is 0 unless `--strict` asks for more.
Nothing callers said is shown, nor any secret or address of a receiver.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.operating.checks import agent as agent_checks
from dragoman.cli.operating.checks import database as database_checks
from dragoman.cli.operating.checks import file as file_checks
from dragoman.cli.operating.checks import security as security_checks
from dragoman.cli.operating.checks.findings import (
    LEVELS,
    CheckedInstallation,
    CheckResult,
    Finding,
    count,
    ok,
    problem,
    warning,
)
from dragoman.cli.own_options import STORE_OPTION, budget, own, typed_option
from dragoman.cli.terminal.table import Column

# Milliseconds by which a clock may be set back without harm.
_JITTER = 2_000
# 2026-01-01: a clock before it was never set.
_EARLIEST = 1_767_225_600_000
# Milliseconds after which a try that is due and was not made is worth a word.
_OVERDUE = 60_000
_NAMES_SHOWN = 5


# The machine and the settings


def _configuration(subject: CheckedInstallation) -> CheckResult:
    from dragoman.config import PREFIX, check_names
    from dragoman.errors import ConfigError
    from dragoman.server.push_service import check

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


def _sources(subject: CheckedInstallation) -> CheckResult:
    from dragoman.cli.sources import config_folder, nearest

    run = subject.run
    if warnings := run.settings.warnings:
        return warning("; ".join(warnings), "dragoman config show")
    local = Path(run.settings.config) if run.settings.config else nearest(run.folder)
    files = [str(path) for path in (local, config_folder(run.environment) / ".env") if path]
    found = [path for path in files if Path(path).is_file()]
    given = sum(1 for name in run.environment if name.startswith("A2ACLI_"))
    return ok(f"{count(given, 'variable')} of the environment, files: {', '.join(found) or 'none'}")


def _port(subject: CheckedInstallation) -> CheckResult:
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
            if _has_live_worker(subject):
                return ok(f"{host}:{port} is in use, and a server runs on this store")
            return warning(f"{host}:{port} is in use", "--listen with port 0 takes a free one")
    return ok(f"{host}:{port} is free")


def _has_live_worker(subject: CheckedInstallation) -> bool:
    if subject.open_inspection is None or not (
        subject.is_postgres or file_checks.is_shared(subject)
    ):
        return False
    return any(worker.state == "live" for worker in subject.wait(subject.open_inspection.workers()))


def _connections(subject: CheckedInstallation) -> CheckResult:
    from dragoman.egress.descriptors import for_callers

    wanted = subject.settings.http.max_connections
    share = for_callers(wanted)
    about = f"{share.connections:,} callers at once, with a limit of {share.limit:,} open files"
    if share.connections < wanted:
        return warning(
            f"{about}, and not {wanted:,}", "ulimit -n, or LimitNOFILE= of the service, raises it"
        )
    return ok(about)


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def _proxy(subject: CheckedInstallation) -> CheckResult:
    environment = subject.run.environment
    found = [name for name in _PROXIES if environment.get(name) or environment.get(name.lower())]
    if found:
        return ok(f"{', '.join(found)} is set, and not used: agents are dialled directly")
    return ok("none is set, and none would be used")


def _tls(subject: CheckedInstallation) -> CheckResult:
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


# What is in it


def _workers(subject: CheckedInstallation) -> CheckResult:
    found = [worker.state for worker in subject.wait(subject.inspection.workers())]
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


def _orphans(subject: CheckedInstallation) -> CheckResult:
    orphans = subject.wait(subject.inspection.orphans())
    if not orphans.number:
        return ok(f"{count(orphans.unfinished, 'unfinished task')}, none without a worker")
    agents = ", ".join(orphans.agents[:_NAMES_SHOWN])
    return problem(
        f"{count(orphans.number, 'unfinished task')} of {agents}: no process works on them",
        "serve these agents on this store; tasks go on by themselves",
    )


def _notes(subject: CheckedInstallation) -> CheckResult:
    notes = subject.wait(subject.inspection.notes())
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


def _deadlines(subject: CheckedInstallation) -> CheckResult:
    if overdue := subject.wait(subject.inspection.overdue()):
        return problem(
            f"{count(overdue, 'task')} should have ended by now",
            "a server ends them: serve their agents on this store",
        )
    return ok("no task is past its deadline")


def _pushes(subject: CheckedInstallation) -> CheckResult:
    failing, given_up, abandoned = subject.wait(subject.inspection.receivers())
    if abandoned:
        return problem(
            f"{count(abandoned, 'receiver')} of webhooks wait and no process delivers",
            "start a server on this store",
        )
    if stuck := subject.wait(subject.inspection.stuck(time.time_ns() // 1_000_000 - _OVERDUE)):
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


def _dead_letters(subject: CheckedInstallation) -> CheckResult:
    from datetime import UTC, datetime

    number, latest = subject.wait(subject.inspection.dead_letters())
    if not number:
        return ok("none")
    at = datetime.fromtimestamp(latest // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return warning(
        f"{count(number, 'event')} no receiver took, the latest of {at}",
        "`dragoman push list` names them, `dragoman push replay` sends them again",
    )


def _clock(subject: CheckedInstallation) -> CheckResult:
    import time

    now = time.time_ns() // 1_000_000
    newest = subject.wait(subject.open_inspection.newest()) if subject.open_inspection else 0
    hint = "set the clock: deadlines, retention and the schedule of webhooks go by it"
    if now < _EARLIEST:
        return problem("the clock was never set", hint)
    if now + _JITTER < newest:
        behind = (newest - now) // 1000
        return problem(f"the clock is {behind:,} s behind the newest task", hint)
    return ok("not behind the newest task")


Check = Callable[[CheckedInstallation], CheckResult]

_OF_THE_MACHINE: dict[str, Check] = {
    **file_checks.OF_THE_MACHINE,
    "configuration": _configuration,
    "sources": _sources,
    **file_checks.DURABILITY,
    "clock": _clock,
    "port": _port,
    "connections": _connections,
    "proxy": _proxy,
    "tls": _tls,
    **security_checks.OF_THE_MACHINE,
}
# These need what a store of an early release does not have.
_OF_ITS_CONTENTS: dict[str, Check] = {
    "workers": _workers,
    "orphans": _orphans,
    "notes": _notes,
    "deadlines": _deadlines,
    "pushes": _pushes,
    "dead-letters": _dead_letters,
    **security_checks.OF_THE_STORE,
}
_OF_THE_STORE = {**file_checks.OF_THE_FILE, **database_checks.OF_THE_DATABASE}
OF_A_FILE = [*_OF_THE_MACHINE, *file_checks.OF_THE_FILE, *_OF_ITS_CONTENTS]
OF_A_DATABASE = [*_OF_THE_MACHINE, *database_checks.OF_THE_DATABASE, *_OF_ITS_CONTENTS]
NAMES = list(dict.fromkeys([*OF_A_FILE, *OF_A_DATABASE]))
ALL_NAMES = [*NAMES, *agent_checks.NAMES]


def examine(subject: CheckedInstallation, names: set[str]) -> list[Finding]:
    """Run the named checks in order. What needs a store, or a later one, is left out where there is
    none; the finding about the store then says so."""
    from dragoman.errors import ConfigError

    findings: list[Finding] = []

    def run(checks: dict[str, Check]) -> None:
        for name, check in checks.items():
            if name in names:
                findings.append(Finding(name, *_run_check(check, subject)))

    with ExitStack() as stack:
        refusal = ""
        place = database_checks if subject.is_postgres else file_checks
        try:
            stack.enter_context(place.looking(subject))
        except ConfigError as error:
            refusal = str(error)
        run(_OF_THE_MACHINE)
        if subject.open_inspection is not None:
            if subject.is_postgres:
                run(database_checks.OF_THE_DATABASE)
            else:
                if not file_checks.is_shared(subject) and names & {*_OF_ITS_CONTENTS}:
                    names = names - {*_OF_ITS_CONTENTS} | {"store"}
                run(file_checks.OF_THE_FILE)
            run(_OF_ITS_CONTENTS)
        elif names & {*_OF_THE_STORE, *_OF_ITS_CONTENTS}:
            # Why the others are not there.
            findings.append(Finding("store", *place.no_store(subject, refusal)))
    return findings


def _run_check(check: Check, subject: CheckedInstallation) -> CheckResult:
    from dragoman.errors import ConfigError

    try:
        return check(subject)
    except ConfigError as error:
        return problem(str(error), "a server would refuse it too")
    except Exception as error:
        if subject.is_postgres or (found := file_checks.failed(error)) is None:
            raise
        return found


@command("doctor")
@click.argument("ref", required=False)
@typed_option("--agent", default="", metavar="<ref>", help="The agent, like REF.")
@STORE_OPTION
@typed_option(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice(ALL_NAMES),
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
    if names & {*agent_checks.NAMES} and not has_agent:
        raise usage("which agent? dragoman doctor <ref> names it")
    with budget(run):
        findings = (
            examine(CheckedInstallation(run, store), names & {*NAMES}) if names & {*NAMES} else []
        )
    if names & {*agent_checks.NAMES}:
        findings += agent_checks.examine(run, names)
    levels = [finding.level for finding in findings]
    summary = {level: levels.count(level) for level in LEVELS}
    if run.out.is_json and run.out.is_stream:
        for finding in findings:
            run.out.json(finding._asdict())
    elif run.out.is_json:
        run.out.json({"findings": [one._asdict() for one in findings], "summary": summary})
    elif run.out.is_table:
        _draw(run, findings, summary)
    else:
        _show(run, findings, summary)
    if strict and summary["problem"]:
        run.out.warn(f"{count(summary['problem'], 'problem')} found")
        sys.exit(1)


_COLUMNS = (
    Column("level", "level", "state"),
    Column("check", "check", "id"),
    Column("finding", "message"),
)


def _draw(run: Invocation, findings: list[Finding], summary: dict[str, int]) -> None:
    run.out.table([finding._asdict() for finding in findings], _COLUMNS)
    # Cut where the room is short: what has to be done is said in full.
    for finding in findings:
        if finding.level != "ok":
            run.out.field(finding.check, run.redactor.text(finding.message))
            run.out.field("Hint", finding.hint or "")
    bad, doubtful = summary["problem"], summary["warning"]
    run.out.write(f"{count(bad, 'problem')}, {count(doubtful, 'warning')}\n")


def _show(run: Invocation, findings: list[Finding], summary: dict[str, int]) -> None:
    for finding in findings:
        run.out.field("Check", finding.check)
        run.out.field("Level", finding.level)
        run.out.field("Finding", run.redactor.text(finding.message))
        if finding.hint:
            run.out.field("Hint", finding.hint)
    run.out.field("Problems", str(summary["problem"]))
    run.out.field("Warnings", str(summary["warning"]))
