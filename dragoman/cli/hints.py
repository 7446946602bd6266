"""The next command to type: after a task, and after what went wrong.

A hint is a whole command, ready for a shell; whatever else there is to say is in the message. Every
failure has one: its own, or the one of `next_after`. Commands are made without credentials: those
come from the environment, or are left to be filled in.
"""

import errno
import os
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from dragoman import errors
from dragoman.cli.failures import TIMEOUT, USAGE, Failure, Interrupted, nearest_option
from dragoman.cli.invocation import Invocation
from dragoman.cli.options import ROWS
from dragoman.cli.redaction import NextCommand
from dragoman.egress.plain_words import NO_TLS
from dragoman.errors import A2AError, ConfigError
from dragoman.model.patterns import late_pattern

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.model.task import TaskState

# Options that a next command needs as well; credentials are not among them.
_CARRIED = ("a2a-version", "config", "client-cert", "client-key", "ca-cert")
_CARRIED_LISTS = ("transport", "extension", "trust-origin")
_CARRIED_SWITCHES = ("insecure", "strict-version")
# What is filled in instead of a secret; empty: a variable is the better place for it.
_SECRETS = {
    "--bearer": "",
    "--api-key": "",
    "--client-secret": "",
    "--admin-token": "",
    "--mcp-token": "",
    "--token": "<token>",
    "--auth-credentials": "<credentials>",
    "--svc-param": "<name:value>",
}
# A longer one does not help.
_LONGEST = 1000
# Commands whose arguments name something new, which no list has.
_MAKERS = frozenset({"register", "create", "add", "start", "define"})
_SPOKEN = ("1.0", "0.3", "0.2")

_WAYS = {
    "bearer": "a token: --bearer or A2ACLI_BEARER",
    "apiKey": "a key: --api-key or A2ACLI_API_KEY",
    "basic": "a name and a password, which this command cannot send",
    "oauth2": "a token: dragoman auth login, --bearer or A2ACLI_BEARER",
    "openIdConnect": "a token: dragoman auth login, --bearer or A2ACLI_BEARER",
    "mtls": "a certificate: --client-cert and --client-key",
}
_LOGINS = frozenset({"oauth2", "openIdConnect"})
# What TLS says of our certificate, and what may be meant so: many servers only hang up.
_CERTIFICATE = late_pattern("ALERT_(?:[A-Z_]*CERTIFICATE|UNKNOWN_CA)")
_HUNG_UP = late_pattern("HungUp|Connection reset|ALERT_HANDSHAKE_FAILURE")


# Commands


def activation() -> list[str]:
    """Return the command after which a shell finds `dragoman`, if it is in an environment that the
    shell does not use, as after `./dev init` and `./dev up`; else nothing."""
    import shutil

    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("dragoman") or not script.is_file():
        return []
    return [f". {shlex.quote(str(script))}"]


def command(run: Invocation, *words: str) -> NextCommand:
    """Return a command about the same agent, as a shell takes it."""
    return NextCommand(" ".join(["dragoman", *map(shlex.quote, _addressed(run, words))]))


def _addressed(run: Invocation, words: tuple[str, ...]) -> list[str]:
    settings = run.settings
    given: list[str] = []
    if settings.agent_card:
        given += ["-a", run.redactor.reference(settings.agent_card)]
    for name in _CARRIED:
        if settings.is_given(name):
            given += [f"--{name}", str(getattr(settings, name.replace("-", "_")))]
    for name in _CARRIED_LISTS:
        if settings.is_given(name):
            for value in getattr(settings, name.replace("-", "_")):
                given += [f"--{name}", str(value)]
    for name in _CARRIED_SWITCHES:
        if settings.is_given(name) and getattr(settings, name.replace("-", "_")):
            given.append(f"--{name}")
    # After the words of the command, before its arguments.
    verbs = 1 if words[0] == "send" else 3 if words[1] == "push-config" else 2
    return [*words[:verbs], *given, *words[verbs:]]


def filled(line: NextCommand, place: str) -> NextCommand:
    """Return a command with a place at its end that a person fills in."""
    return NextCommand(f'{line} "{place}"')


def resume(run: Invocation, state: "TaskState") -> NextCommand:
    """Return the command that goes on from here."""
    if state.is_terminal:
        return filled(command(run, "send", "--context-id", run.context_id), "<message>")
    if state.is_interrupted:
        return filled(command(run, "send", "--task-id", run.task_id), "<reply>")
    return command(run, "task", "get", "--wait", run.task_id)


def again(
    run: Invocation,
    *more: str,
    without: Collection[str] = (),
    off: Collection[str] = (),
    variable: str = "",
    instead: tuple[str, str] | None = None,
) -> NextCommand | None:
    """Return the command that was typed with more words, without some flags and their values, and
    with some switches off; None: it is too long to be read. A `variable` stands before it, as
    `NAME=value`; `instead` is a word and the one that takes its place."""
    words = [word for word in _repeated(run, without) if word not in off]
    if instead is not None:
        _replace(words, *instead)
    end = words.index("--") if "--" in words else len(words)
    line = " ".join(["dragoman", *map(shlex.quote, [*words[:end], *more, *words[end:]])])
    if variable:
        name, _, value = variable.partition("=")
        line = f"{name}={shlex.quote(value)} {line}"
    return NextCommand(line) if len(line) <= _LONGEST else None


def _replace(words: list[str], wrong: str, right: str) -> None:
    """Put a word in the place of another, with the value that is attached to it."""
    for place, word in enumerate(words):
        if word == wrong or word.startswith(f"{wrong}="):
            words[place] = right + word.removeprefix(wrong)
            return


def _repeated(run: Invocation, without: Collection[str]) -> list[str]:
    """Return what was typed, secrets left out or to be filled in."""
    found: list[str] = []
    words = list(run.argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*found, word, *map(run.redactor.word, words)]
        flag, equals, value = word.partition("=")
        if flag in _SECRETS or flag in without:
            if not equals and words:
                words.pop(0)
            if flag not in without and (filled := _SECRETS[flag]):
                found += [flag, filled]
        elif flag == "--agent-card" and equals:
            found += [flag, run.redactor.reference(value)]
        elif word.startswith("-a") and len(word) > 2:
            found += ["-a", run.redactor.reference(word[2:].removeprefix("="))]
        else:
            found.append(run.redactor.word(word))
    return found


def login(run: Invocation, scope: str = "") -> NextCommand:
    """Return the command that logs in to the agent, for scopes if some are missing."""
    is_known = bool(run.settings.environment.get("A2ACLI_CLIENT_ID"))
    wanted = [word for one in scope.split() for word in ("--scope", one)]
    return command(run, "auth", "login", *(() if is_known else ("--client-id", "<id>")), *wanted)


# What went wrong


def advise(error: A2AError, failure: Failure, run: Invocation) -> None:
    """Give a failure the next command, and its message what one has to know to type it."""
    if isinstance(error, errors.CredentialsMissing):
        failure.message = _asked_for(error)
    elif isinstance(error, errors.Unauthenticated) and (sent := _sent_credential(run)):
        failure.message = f"{sent} is not accepted: it is wrong, revoked or expired"
    elif isinstance(error, errors.DeliveryUnknown) and "may have" not in failure.message:
        failure.message += "; it may have taken the message"
    elif _is_refused_id(error, run):
        failure.message += "; no task was started"
    if scope := error.facts.get("scope", ""):
        failure.message += f"; it takes a credential with the scope {scope}"
    if hint := _certificate(error, run):
        failure.message += hint
    if seconds := _wait(error):
        failure.message += f"; it asks to be left alone for {seconds} s"
    failure.hint = hint_for(error, run)


def _sent_credential(run: Invocation) -> str:
    """Return which credential was refused and where it came from; empty: none was sent."""
    settings = run.settings
    for name, kind in (("bearer", "token"), ("api-key", "key"), ("client-cert", "certificate")):
        if getattr(settings, name.replace("-", "_")):
            origin = settings.origins.get(name)
            is_typed = origin is None or origin.kind == "flag"
            source = f"--{name}" if is_typed else f"A2ACLI_{name.upper().replace('-', '_')}"
            return f"The {kind} of {source}"
    return "The token of an earlier login" if run.has_credentials else ""


def hint_for(error: A2AError, run: Invocation) -> NextCommand | None:
    """Return what to type after an error."""
    settings = run.settings
    match error:
        case errors.CredentialsMissing():
            return _credentials(error, run)
        case errors.Unauthenticated() | errors.PermissionDenied():
            kinds = error.facts.get("kinds", "").split(",")
            kinds = kinds if kinds != [""] else _credential_kinds(run)
            return with_credential(run, kinds, scope=error.facts.get("scope", ""))
        case errors.VersionNotSupported():
            return _version(error, run)
        case errors.CardInvalid():
            is_checked = "--validate" in run.argv
            return None if is_checked else command(run, "card", "get", "--validate")
        case errors.InvalidRequest() if run.has_large_file:
            return again(run, "--file", "<url>", without=("--file",))
        case errors.DeliveryUnknown():
            return _check_arrival(run)
        case errors.Unreachable() if _certificate(error, run):
            return with_credential(run, ["mtls"])
        case errors.Unreachable() if "certificate" in error.facts.get("reason", ""):
            return again(run, "--ca-cert", "<path>", without=("--ca-cert",))
        case errors.Unreachable() | errors.TimedOut() | errors.Overloaded() if run.status:
            # It was there a while ago, and may come back.
            return command(run, "task", "get", "--wait", run.task_id)
        case errors.Unreachable() | errors.Overloaded() if _wait(error):
            return again(run)
        case errors.Unreachable() if port := _silent_port(error):
            return NextCommand(
                "dragoman up" if port == 8000 else f"dragoman serve '<file>' --port {port}"
            )
        case errors.CardNotFound() | errors.Unreachable() if line := _other_address(error, run):
            return line
        case errors.CardNotFound() | errors.Unreachable():
            return None if settings.debug else command(run, "card", "get", "--debug")
        case errors.ExtensionRequired() if uris := error.facts.get("extensions"):
            return again(run, *(word for uri in uris.split(",") for word in ("--extension", uri)))
        case (
            errors.PushNotSupported()
            | errors.ExtendedCardNotConfigured()
            | errors.ContentTypeNotSupported()
            | errors.ExtensionRequired()
        ):
            return command(run, "card", "get")
        case _ if _is_refused_id(error, run) and settings.task_id:
            if isinstance(error, errors.TaskNotFound) and not _has_no_list(run):
                return command(run, "task", "list")
            return command(run, "task", "get", settings.task_id, "--debug")
        case errors.TaskNotCancelable() if run.task_id:
            # It says in which state it is, and when it came there.
            return command(run, "task", "get", run.task_id)
        case errors.NoAgentAvailable():
            return command(run, "card", "get")
        case errors.InvalidParams() if re.match(r"message\.(parts|metadata)", error.public):
            # The card says which skills there are and what they take.
            return command(run, "card", "get")
        case errors.TaskNotFound() if "configId" in error.facts and run.task_id:
            # The task is there: it is the receiver that is not.
            return command(run, "task", "push-config", "list", run.task_id)
        case errors.TaskNotFound() if not _is_refused_id(error, run):
            return None if _has_no_list(run) else command(run, "task", "list")
        case _:
            return None if settings.debug else again(run, "--debug")


def _other_address(error: A2AError, run: Invocation) -> NextCommand | None:
    """Return the command with the address that was perhaps meant, or what lists addresses; None:
    that of the agent gives no clue."""
    given = run.settings.agent_card
    reason = error.facts.get("reason", "")
    if given.startswith("https://") and any(one in reason for one in NO_TLS):
        return again(run, instead=(given, given.replace("https", "http", 1)))
    if reason.startswith("NotResolved") and re.fullmatch(r"[\w-]+", given):
        # The name of an agent at a gateway is no host: the usual gateway is the one to try.
        return again(run, instead=(given, f"localhost:8000/a2a/{given}"))
    address = urlsplit(error.facts.get("url", ""))
    if isinstance(error, errors.CardNotFound) and address.path.startswith("/a2a/"):
        origin = f"{address.scheme}://{address.netloc}"
        return NextCommand(f"dragoman agents list --gateway {shlex.quote(origin)}")
    return None


def _silent_port(error: A2AError) -> int:
    """Return the port of this machine at which nothing listens; 0: something else is wrong."""
    if "Connection refused" not in error.facts.get("reason", ""):
        return 0
    address = urlsplit(error.facts.get("url", ""))
    is_here = address.hostname in ("localhost", "127.0.0.1", "::1")
    return (address.port or 80) if is_here else 0


def _wait(error: A2AError) -> str:
    """Return for how many seconds an agent wants to be left alone; empty: it does not say."""
    seconds = error.facts.get("retryAfter", "")
    return seconds if seconds.isdecimal() else ""


def _certificate(error: A2AError, run: Invocation) -> str:
    """Return what is to be said of the caller's certificate where that may be what is wrong."""
    reason = error.facts.get("reason", "")
    if _CERTIFICATE.search(reason):
        return "; it takes callers by their certificate: --client-cert"
    is_possible = error.facts.get("url", "").startswith("https:") and not run.settings.client_cert
    if is_possible and _HUNG_UP.search(reason):
        return "; perhaps it takes only callers with a certificate: --client-cert"
    return ""


def _is_refused_id(error: A2AError, run: Invocation) -> bool:
    """Say whether a message was refused that was meant for a task or a context."""
    kinds = (errors.TaskNotFound, errors.UnsupportedOperation, errors.InvalidParams)
    is_meant = bool(run.settings.task_id or run.settings.context_id)
    return isinstance(error, kinds) and is_meant and not run.is_about_task


def _has_no_list(run: Invocation) -> bool:
    # No version before 1.0 lists tasks.
    return (run.spoken_version or run.settings.a2a_version).startswith("0.")


def _check_arrival(run: Invocation) -> NextCommand | None:
    """Return how to see whether a message arrived."""
    if task_id := run.settings.task_id or run.task_id:
        return command(run, "task", "get", task_id)
    return None if _has_no_list(run) else command(run, "task", "list")


def _version(error: A2AError, run: Invocation) -> NextCommand | None:
    offered = [one.strip() for one in error.facts.get("supportedVersions", "").split(",")]
    wanted_version = run.settings.a2a_version or "1.0"
    for version in _SPOKEN:
        if version in offered and version != wanted_version:
            flag = "--a2a-version"
            return again(run, flag, version, without=(flag,))
    return command(run, "card", "get")


# Whatever else went wrong


def next_after(run: Invocation, error: BaseException, failure: Failure, help_line: str) -> str:
    """Return what to type after any failure that no command has a hint for: there always is one."""
    match error:
        case ExceptionGroup():
            return next_after(run, error.exceptions[0], failure, help_line)
        case _:
            pass
    if isinstance(failure, Interrupted):
        return again(run) or help_line
    if isinstance(error, ConfigError | Failure) and (line := _remedied(run, error.remedy)):
        return line
    if isinstance(error, ConfigError) and error.meant:
        return again(run, instead=error.meant) or help_line
    if isinstance(error, ConfigError) and (line := _unset(run, error.setting)):
        return line
    if isinstance(error, click.NoSuchOption):
        return again(run, instead=(error.option_name, nearest_option(error))) or help_line
    if isinstance(error, click.MissingParameter):
        return _listed(run, error) or _completed(run, error) or help_line
    if isinstance(error, click.BadParameter) and (line := _with_value(run, error)):
        return line
    if isinstance(error.__context__, FileNotFoundError) and error.__context__.filename:
        # Told in other words by the code that wanted the file.
        return _look_at(error.__context__)
    if failure.code == USAGE:
        return help_line
    if failure.code == TIMEOUT and (seconds := run.settings.timeout):
        return again(run, "--timeout", f"{2 * seconds:g}s", without=("--timeout",)) or help_line
    if isinstance(error, OSError):
        return _look_at(error)
    if not isinstance(error, Failure) and not run.settings.debug:
        return again(run, "--debug") or help_line
    return _examine(run)


def _listed(run: Invocation, error: click.MissingParameter) -> NextCommand | None:
    """Return the command that lists what a missing argument could name, asked of the same place."""
    group = error.ctx.parent if error.ctx is not None else None
    if error.ctx is None or group is None or not isinstance(group.command, click.Group):
        return None
    is_new = error.ctx.info_name in _MAKERS or not isinstance(error.param, click.Argument)
    if is_new or "list" not in group.command.list_commands(group):
        return None
    words = [*group.command_path.split(), "list"]
    for flag in ("-a", "--gateway", "--store"):
        if flag in run.argv[:-1]:
            words += [flag, run.redactor.reference(run.argv[run.argv.index(flag) + 1])]
    return NextCommand(shlex.join(words))


def _completed(run: Invocation, error: click.MissingParameter) -> NextCommand | None:
    """Return the command with a place for what is missing."""
    if error.ctx is None or error.param is None:
        return None
    place = error.param.make_metavar(error.ctx).strip("[]<>.").lower()
    flags = error.param.opts[:1] if isinstance(error.param, click.Option) else []
    return again(run, *flags, f"<{place}>")


def _with_value(run: Invocation, error: click.BadParameter) -> NextCommand | None:
    """Return the command with a place for a value that does not fit an option that was typed."""
    if error.ctx is None or not isinstance(error.param, click.Option):
        return None
    flags = [flag for flag in error.param.opts if _is_typed(run, flag)]
    if not flags:
        return None
    place = error.param.make_metavar(error.ctx)
    default = error.param.get_default(error.ctx)
    value = str(default) if isinstance(default, int | str) and default else place
    return again(run, flags[0], value, without=error.param.opts)


def _is_typed(run: Invocation, flag: str) -> bool:
    return any(word.partition("=")[0] == flag for word in run.argv)


def _remedied(run: Invocation, line: str) -> NextCommand | None:
    """Return what an error says is to be typed, as a whole command."""
    if line.startswith("-"):
        words = shlex.split(line)
        if words[0] in run.argv and len(words) == 1:
            # It was typed, and is not what helps.
            return None
        # An address has a host and a port already.
        rivals = ["--host", "--port"] if "--listen" in words else []
        rivals += [row.short for row in ROWS if row.flag == words[0] and row.short]
        return again(run, *words, without=(*_with_values(words), *rivals))
    if re.match("[A-Z_]+=", line):
        return again(run, variable=line)
    return NextCommand(line) if line else None


def _with_values(words: Sequence[str]) -> list[str]:
    following = [*words[1:], "--"]
    pairs = zip(words, following, strict=True)
    return [word for word, after in pairs if word.startswith("-") and not after.startswith("-")]


def _unset(run: Invocation, setting: str) -> NextCommand | None:
    """Return what leaves a setting to its default; None: no variable decides it."""
    variable = f"DRAGOMAN_{setting.upper()}"
    is_flag = any(word.startswith(f"--{setting.replace('_', '-')}") for word in run.argv)
    return NextCommand(f"unset {variable}") if variable in run.environment and not is_flag else None


def _look_at(error: OSError) -> NextCommand:
    """Return how to see what is wrong with a file, or with the machine."""
    if error.errno == errno.ENOSPC:
        return NextCommand("df -h")
    if error.filename:
        return look_at(os.fsdecode(error.filename))
    return NextCommand("dragoman doctor")


def look_at(path: str | Path) -> NextCommand:
    """Return what shows a file that could not be used, whose it is, and what is beside it."""
    return NextCommand(f"ls -la {shlex.quote(str(Path(path).parent))}")


def _examine(run: Invocation) -> NextCommand:
    """Return how to look for the cause where no error names it."""
    if run.argv[:1] == ["doctor"]:
        return NextCommand("dragoman doctor --help")
    reference = run.settings.agent_card and run.redactor.reference(run.settings.agent_card)
    return NextCommand(
        " ".join(["dragoman doctor", *([shlex.quote(reference)] if reference else [])])
    )


# Credentials


def _asked_for(error: A2AError) -> str:
    """Return what is missing, in the words of the command line: the error's own are for code."""
    sentence = error.public
    for aside in (". Give ", ". If they should be", ". Name the issuer"):
        sentence = sentence.partition(aside)[0]
    kinds = [kind for kind in error.facts.get("kinds", "").split(",") if kind in _WAYS]
    if ways := "; or ".join(dict.fromkeys(_WAYS[kind] for kind in kinds)):
        sentence += f". It takes {ways}"
    return sentence


def _credentials(error: A2AError, run: Invocation) -> NextCommand | None:
    facts = error.facts
    if "origin" in facts and error.public.startswith("Credentials are not sent"):
        return again(run, "--trust-origin", facts["origin"])
    if ". Name the issuer" in error.public:
        return again(run, "--issuer", "<url>", without=("--issuer",))
    if "kinds" in facts:
        return with_credential(run, facts["kinds"].split(","))
    if challenge := facts.get("wwwAuthenticate", ""):
        return with_credential(run, [challenge.split()[0].lower()])
    # A login that is over names its scheme; without one, the card says what there is.
    return login(run) if "schemes" in facts else command(run, "card", "get")


def with_credential(
    run: Invocation, kinds: Sequence[str], line: NextCommand | None = None, *, scope: str = ""
) -> NextCommand | None:
    """Return the command with a credential of one of these kinds: the one that was typed, or
    another."""
    more = f" with scope {scope}" if scope else ""
    if not _LOGINS.isdisjoint(kinds) and not run.settings.bearer:
        return login(run, scope)
    if "apiKey" in kinds:
        return _with(run, f"A2ACLI_API_KEY=<key{more}>", line)
    if not {"bearer", *_LOGINS}.isdisjoint(kinds):
        return _with(run, f"A2ACLI_BEARER=<token{more}>", line)
    if "mtls" in kinds:
        given = ("--client-cert", "--client-key")
        return again(run, given[0], "<path>", given[1], "<path>", without=given)
    return command(run, "card", "get")


def _with(run: Invocation, variable: str, line: NextCommand | None) -> NextCommand | None:
    if line is None:
        return again(run, variable=variable)
    name, _, value = variable.partition("=")
    return NextCommand(f"{name}={shlex.quote(value)} {line}")


def _credential_kinds(run: Invocation) -> list[str]:
    """Return the kinds of what the user gave, else of what a login left."""
    settings = run.settings
    found = [
        kind
        for kind, value in (
            ("apiKey", settings.api_key),
            ("bearer", settings.bearer),
            ("mtls", settings.client_cert),
        )
        if value
    ]
    return found or (["oauth2"] if run.has_credentials else [])


def lines_of_json(run: Invocation) -> NextCommand | None:
    """Return the command for a caller that asked for a format of lines, which is one of JSON."""
    flags = ("-o", "--output")
    words = [word for word in run.argv if word not in ("--stream", "--follow", "-ojsonl")]
    plain = Invocation(words, run.environment)
    return again(plain, "-o", "json", "--stream", without=flags)
