"""What went wrong, as one object: a code, a message, the next command to type, an exit code.

The table maps the tree of errors to codes. A condition the protocol names keeps its name; the rest
are the eight codes of the command line. Commands of ours may add `DRAGOMAN_ERR_` codes.
"""

import signal
from typing import Any

import click

from dragoman import errors
from dragoman.egress.plain_words import plain
from dragoman.errors import A2AError, ConfigError

USAGE = "A2ACLI_ERR_USAGE"
CARD_NOT_FOUND = "A2ACLI_ERR_CARD_NOT_FOUND"
CARD_INVALID = "A2ACLI_ERR_CARD_INVALID"
UNREACHABLE = "A2ACLI_ERR_UNREACHABLE"
CREDENTIALS_MISSING = "A2ACLI_ERR_CREDENTIALS_MISSING"
AUTH_FAILED = "A2ACLI_ERR_AUTH_FAILED"
TIMEOUT = "A2ACLI_ERR_TIMEOUT"
INTERNAL = "A2ACLI_ERR_INTERNAL"

# Any other code is exit 1.
EXITS = {
    USAGE: 2,
    CARD_NOT_FOUND: 3,
    UNREACHABLE: 3,
    CREDENTIALS_MISSING: 4,
    AUTH_FAILED: 4,
    TIMEOUT: 5,
}

# A class stands for those below it that have no row.
CODES: dict[type[Exception], str] = {
    ConfigError: USAGE,
    A2AError: "InternalError",
    errors.ParseFailed: "JSONParseError",
    errors.InvalidRequest: "InvalidRequestError",
    errors.MethodNotFound: "MethodNotFoundError",
    errors.InvalidParams: "InvalidParamsError",
    errors.NoAgentAvailable: "InvalidParamsError",
    errors.InternalError: "InternalError",
    errors.TaskNotFound: "TaskNotFoundError",
    errors.TaskNotCancelable: "TaskNotCancelableError",
    errors.PushNotSupported: "PushNotificationNotSupportedError",
    errors.UnsupportedOperation: "UnsupportedOperationError",
    errors.ContentTypeNotSupported: "ContentTypeNotSupportedError",
    errors.InvalidAgentResponse: "InvalidAgentResponseError",
    errors.ExtendedCardNotConfigured: "ExtendedAgentCardNotConfiguredError",
    errors.ExtensionRequired: "ExtensionSupportRequiredError",
    errors.VersionNotSupported: "VersionNotSupportedError",
    errors.Unauthenticated: AUTH_FAILED,
    errors.PermissionDenied: AUTH_FAILED,
    errors.Overloaded: UNREACHABLE,
    errors.CallFailed: INTERNAL,
    errors.Unreachable: UNREACHABLE,
    # Our own patience with a connection; `--timeout` is a failure of its own.
    errors.TimedOut: UNREACHABLE,
    errors.CardNotFound: CARD_NOT_FOUND,
    errors.CardInvalid: CARD_INVALID,
    errors.CredentialsMissing: CREDENTIALS_MISSING,
}


class Failure(Exception):
    """The command did not do its job; what the caller is told about it."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        remedy: str = "",
        a2a_code: int | str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        # As of a `ConfigError`; the hint is made of it.
        self.remedy = remedy
        self.a2a_code = a2a_code

    @property
    def exit(self) -> int:
        """Return the exit code, which always agrees with the code."""
        return EXITS.get(self.code, 1)

    def envelope(self) -> dict[str, Any]:
        """Return it as a program reads it: these four members, always."""
        inner = {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "a2aCode": self.a2a_code,
        }
        return {"error": inner}


class Interrupted(Failure):
    """A signal ended the command before it was done; the exit code is that of shells."""

    def __init__(self, number: int = signal.SIGINT, *, hint: str | None = None) -> None:
        super().__init__(INTERNAL, "interrupted", hint=hint)
        self._number = number

    @property
    def exit(self) -> int:
        """Return 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self._number


def usage(message: str, hint: str | None = None, *, remedy: str = "") -> Failure:
    """Return the failure for a command line that makes no sense; without a hint and a remedy, the
    next command is the help."""
    return Failure(USAGE, message, hint=hint, remedy=remedy)


def code_of(error: Exception) -> str:
    """Return the code of an error."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return INTERNAL


def explain(error: BaseException) -> Failure:
    """Return any error as a failure; the hint is only the one the error itself knows."""
    match error:
        case Failure():
            return error
        case click.UsageError():
            return _misuse(error)
        case click.ClickException():
            return Failure(INTERNAL, error.format_message())
        case A2AError():
            reason = error.facts.get("reason", "")
            message = error.public if reason in error.public else f"{error.public}: {reason}"
            if isinstance(error, errors.CallFailed) and error.code is None:
                message = plain(message)
            return Failure(code_of(error), message, a2a_code=error.code)
        case ConfigError():
            return Failure(code_of(error), str(error))
        case KeyboardInterrupt() | click.Abort():
            return Interrupted()
        case OSError():
            return Failure(INTERNAL, _of_system(error))
        case ExceptionGroup():
            return explain(error.exceptions[0])
        case _:
            about = str(error)
            name = type(error).__name__
            return Failure(INTERNAL, f"{name}: {about}" if about else name)


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def _misuse(error: click.UsageError) -> Failure:
    path = error.ctx.command_path if error.ctx else "dragoman"
    if isinstance(error, click.BadParameter):
        # The hint is the list of what could be named, or the command with a place for it.
        return usage(_with_bounds(error))
    if not isinstance(error, click.NoSuchOption):
        return usage(_with_bounds(error), f"{path} --help")
    message = f"No such option: {error.option_name}"
    if error.option_name == "--store" and path.startswith("dragoman task "):
        message += "; `task` asks an agent (-a), `tasks` looks into the store of this machine"
        return usage(message, "dragoman tasks list --help")
    if near := nearest_option(error):
        return usage(f"{message}; did you mean {near}?")
    return usage(message, f"{path} --help")


def _with_bounds(error: click.UsageError) -> str:
    """Return what click says, and of a number also what it may be."""
    kind = getattr(getattr(error, "param", None), "type", None)
    if not isinstance(kind, click.IntRange):
        return error.format_message()
    at_least = f" of at least {kind.min}" if kind.min is not None else ""
    wanted = "a whole number" + (f" from {kind.min} to {kind.max}" if kind.max else at_least)
    return error.format_message().replace("a valid integer range", wanted)


def nearest_option(error: click.NoSuchOption) -> str:
    """Return the option that was perhaps meant; empty: none is near."""
    return meant(error.option_name, _flags(error.ctx))


def _flags(ctx: click.Context | None) -> list[str]:
    if ctx is None:
        return []
    found: list[str] = []
    for parameter in ctx.command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            # The first long one; the others are aliases.
            found += [flag for flag in parameter.opts if flag.startswith("--")][:1]
    return found


# Words of other tools, each with ours in the order in which they are looked for.
_OTHER_WORDS = {
    **dict.fromkeys(("create", "new", "make", "define"), ("create", "add", "register", "start")),
    **dict.fromkeys(("add", "register"), ("add", "create", "register", "start")),
    **dict.fromkeys(("delete", "rm", "del", "unregister"), ("remove", "revoke", "cancel")),
    **dict.fromkeys(("remove", "revoke"), ("revoke", "remove")),
    **dict.fromkeys(("ls", "all"), ("list",)),
    "list": ("statement", "status"),
    **dict.fromkeys(("get", "info", "describe", "inspect"), ("show", "get", "status")),
    "show": ("get", "status"),
    **dict.fromkeys(("edit", "set", "change", "patch"), ("update",)),
    **dict.fromkeys(("run", "start", "dev"), ("serve", "run", "execute", "start")),
    **dict.fromkeys(("call", "ask", "message"), ("send",)),
    "version": ("--version",),
    **dict.fromkeys(("--token", "--auth-token"), ("--bearer", "--admin-token")),
    **dict.fromkeys(("--url", "--agent", "--server", "--to"), ("--agent-card", "--gateway")),
    **dict.fromkeys(("--message", "--prompt", "--input"), ("--text",)),
    **dict.fromkeys(("--verbose", "--trace"), ("--debug",)),
    "--format": ("--output",),
    **dict.fromkeys(("--db", "--database"), ("--store",)),
    **dict.fromkeys(("--bind", "--addr", "--address"), ("--listen",)),
}


def meant(word: str, known: list[str]) -> str:
    """Return the known word that was perhaps meant: one that means the same, or is spelled alike;
    empty: none is."""
    if found := [one for one in _OTHER_WORDS.get(word, ()) if one in known]:
        return found[0]
    return similar(word, known)


def similar(word: str, known: list[str]) -> str:
    """Return the known word that was perhaps meant; empty: none is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1, 0.6)), "")
