"""Codes and exits: one table, in agreement with itself and with the tree of errors."""

import click
import pytest

from dragoman import errors
from dragoman.cli import failures
from dragoman.cli.failures import EXITS, Failure, code_of, explain
from dragoman.errors import A2AError

PROTOCOL = {
    errors.TaskNotFound: "TaskNotFoundError",
    errors.TaskNotCancelable: "TaskNotCancelableError",
    errors.PushNotSupported: "PushNotificationNotSupportedError",
    errors.UnsupportedOperation: "UnsupportedOperationError",
    errors.ContentTypeNotSupported: "ContentTypeNotSupportedError",
    errors.InvalidAgentResponse: "InvalidAgentResponseError",
    errors.ExtendedCardNotConfigured: "ExtendedAgentCardNotConfiguredError",
    errors.ExtensionRequired: "ExtensionSupportRequiredError",
    errors.VersionNotSupported: "VersionNotSupportedError",
    errors.InvalidParams: "InvalidParamsError",
    errors.InvalidRequest: "InvalidRequestError",
    errors.MethodNotFound: "MethodNotFoundError",
    errors.InternalError: "InternalError",
    errors.ParseFailed: "JSONParseError",
}


@pytest.mark.parametrize("kind", PROTOCOL)
def test_what_the_protocol_names_keeps_its_name_and_is_exit_1(kind: type[A2AError]) -> None:
    error = kind("no")
    error.code = -32001
    failure = explain(error)
    assert (failure.code, failure.exit, failure.a2a_code) == (PROTOCOL[kind], 1, -32001)


@pytest.mark.parametrize(
    ("error", "code", "exit"),
    [
        (errors.CardNotFound(), "A2ACLI_ERR_CARD_NOT_FOUND", 3),
        (errors.CardInvalid(), "A2ACLI_ERR_CARD_INVALID", 1),
        (errors.Unreachable(), "A2ACLI_ERR_UNREACHABLE", 3),
        (errors.DeliveryUnknown(), "A2ACLI_ERR_UNREACHABLE", 3),
        (errors.TimedOut(), "A2ACLI_ERR_UNREACHABLE", 3),
        (errors.Overloaded(), "A2ACLI_ERR_UNREACHABLE", 3),
        (errors.CredentialsMissing(), "A2ACLI_ERR_CREDENTIALS_MISSING", 4),
        (errors.Unauthenticated(), "A2ACLI_ERR_AUTH_FAILED", 4),
        (errors.PermissionDenied(), "A2ACLI_ERR_AUTH_FAILED", 4),
        (errors.ConfigError("bad"), "A2ACLI_ERR_USAGE", 2),
        (click.UsageError("bad"), "A2ACLI_ERR_USAGE", 2),
        (click.ClickException("bad"), "A2ACLI_ERR_INTERNAL", 1),
        (KeyboardInterrupt(), "A2ACLI_ERR_INTERNAL", 130),
        (PermissionError(13, "Permission denied", "/x"), "A2ACLI_ERR_INTERNAL", 1),
        (ZeroDivisionError(), "A2ACLI_ERR_INTERNAL", 1),
        (Failure("A2ACLI_ERR_TIMEOUT", "late"), "A2ACLI_ERR_TIMEOUT", 5),
        (Failure("DRAGOMAN_ERR_BROKEN", "ours"), "DRAGOMAN_ERR_BROKEN", 1),
    ],
)
def test_every_other_condition_has_its_code_and_exit(
    error: BaseException, code: str, exit: int
) -> None:
    failure = explain(error)
    assert (failure.code, failure.exit) == (code, exit)
    assert failure.message and set(failure.envelope()["error"]) == {
        "code",
        "message",
        "hint",
        "a2aCode",
    }


def test_every_error_of_the_tree_has_a_code_of_the_table() -> None:
    ours = {
        code
        for code in vars(failures).values()
        if isinstance(code, str) and code.startswith("A2ACLI_ERR_")
    }
    known = {*PROTOCOL.values(), *ours}
    queue: list[type[Exception]] = [A2AError]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind.__module__ == "dragoman.errors":
            assert code_of(kind()) in known


def test_reserved_exits_belong_to_codes_of_the_command_line() -> None:
    assert {code for code, exit in EXITS.items() if exit in (2, 3, 4, 5)} == set(EXITS)
    assert all(code.startswith("A2ACLI_ERR_") for code in EXITS)


def test_a_group_of_errors_is_told_by_its_first() -> None:
    group = ExceptionGroup("several", [errors.TaskNotFound(), ValueError()])
    assert explain(group).code == "TaskNotFoundError"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("NotConnected: Connection refused", "h: connection refused"),
        ("HungUp", "h: the connection was closed without an answer"),
        ("CutShort", "h: the answer broke off"),
        ("ConnectionBroke", "h: the connection broke"),
        ("NotConnected: timed out", "h: timed out"),
        ("NotResolved: Name or service not known", "h: there is no host of this name"),
        (
            "NotSecured: WRONG_VERSION_NUMBER",
            "h: no TLS is spoken there; plain http has to be named by http://",
        ),
        ("NotSecured: SSLV3_ALERT_BAD", "h: TLS failed (sslv3 alert bad)"),
        (
            "NotSecured: self-signed certificate",
            "h: self-signed certificate",
        ),
        ("no answer in 10 s", "h: no answer in 10 s"),
    ],
)
def test_a_broken_connection_is_told_in_words_of_people(reason: str, said: str) -> None:
    assert explain(errors.Unreachable(f"h: {reason}", reason=reason)).message == said


def test_what_an_agent_says_stays_as_it_is() -> None:
    error = errors.InternalError("OSError: the disk of the agent")
    error.code = -32603
    assert explain(error).message == "OSError: the disk of the agent"
