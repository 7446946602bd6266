"""Every error has a row in the table, and reaches our own client as the same class."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman import errors
from dragoman.dialects import errors as table
from dragoman.dialects.house import errors as house
from dragoman.errors import A2AError, InvalidParams


def tree(root: type[A2AError] = A2AError) -> Iterator[type[A2AError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from tree(kind)


# What only our client raises is on no wire.
ERRORS = [kind for kind in tree() if not issubclass(kind, errors.CallFailed)]
# What a wire cannot tell apart: JSON-RPC has one code and one reason for any bad envelope.
# The protocol has one error for a task and for a receiver that are not there.
MISSING = {errors.PushConfigNotFound: errors.TaskNotFound}
READ_AS_ON_JSONRPC = {errors.BodyTooLarge: errors.InvalidRequest} | MISSING
# What has the code of an internal error for want of one, and none of its words.
NOT_OURS = (
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.Overloaded,
    errors.RateLimited,
)
READ_AS_ON_REST = {errors.ParseFailed: errors.InvalidRequest} | MISSING


def sample(kind: type[A2AError]) -> A2AError:
    if kind is InvalidParams:
        return InvalidParams("must be a string", field="message.parts[0].text")
    return kind("Something specific", taskId="t-1")


def test_every_error_has_exactly_one_row() -> None:
    assert sorted(row.error.__name__ for row in table.ROWS) == sorted(k.__name__ for k in ERRORS)


@pytest.mark.requirement("X-1", "X-4", "X-6")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2"])
def test_an_error_comes_back_over_jsonrpc_as_itself(kind: type[A2AError], version: str) -> None:
    error = sample(kind)
    decoded = table.decode_jsonrpc(table.jsonrpc(error, version))
    assert type(decoded) is READ_AS_ON_JSONRPC.get(kind, kind)
    assert (decoded.public, decoded.facts) == (error.public, error.facts)


@pytest.mark.requirement("X-1")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("version", ["1.0.1", "1.0.0"])
def test_an_error_comes_back_over_rest_as_itself(kind: type[A2AError], version: Any) -> None:
    error = sample(kind)
    decoded = table.decode_rest(*table.rest(error, version))
    assert type(decoded) is READ_AS_ON_REST.get(kind, kind)
    assert (decoded.public, decoded.facts) == (error.public, error.facts)


@pytest.mark.requirement("X-4", "X-5")
def test_a_bad_field_is_named_in_1_0() -> None:
    error = InvalidParams("is required", field="message.parts")
    assert table.jsonrpc(error, "1.0") == {
        "code": -32602,
        "message": "message.parts: is required",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "INVALID_PARAMS",
                "domain": "a2a-protocol.org",
            },
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": "message.parts", "description": "is required"}],
            },
        ],
    }


@pytest.mark.requirement("X-4")
def test_facts_are_strings_in_the_metadata_of_1_0() -> None:
    status, body = table.rest(errors.VersionNotSupported(supportedVersions="1.0,0.3", tries=2))
    assert status == 400
    assert body["error"]["status"] == "FAILED_PRECONDITION"
    (info,) = body["error"]["details"]
    assert info["metadata"] == {"supportedVersions": "1.0,0.3", "tries": "2"}


@pytest.mark.requirement("X-3", "X-6")
@pytest.mark.parametrize("kind", ERRORS)
def test_0_x_gets_the_standard_message_and_never_a_list(kind: type[A2AError]) -> None:
    body = table.jsonrpc(sample(kind), "0.3")
    plain = table.jsonrpc(kind(), "0.3")
    assert isinstance(body["data"], dict)
    if kind in NOT_OURS:
        assert body["message"] == sample(kind).public and plain["message"] == kind().public
        return
    if kind is errors.PushConfigNotFound:
        # The standard words of its code would be false: the task is there.
        assert (plain["code"], plain["message"]) == (-32001, kind().public)
        return
    standard = table.STANDARD_MESSAGES[body["code"]]
    assert body["message"].startswith(f"{standard}: ")
    assert plain["message"] == standard or plain["message"].startswith(f"{standard}: ")


@pytest.mark.parametrize("kind", ERRORS)
def test_nothing_but_an_internal_error_is_worded_as_one_in_any_dialect(
    kind: type[A2AError],
) -> None:
    if kind is errors.InternalError:
        return
    error = sample(kind)
    said = [
        *(table.jsonrpc(error, version) for version in ("1.0", "0.3", "0.2")),
        table.rest(error)[1],
        table.rest_0_x(error)[1],
        *(say(error) for say in (house.nexus, house.rx, house.selectools)),
        house.corvid(error)[1],
        house.rx_rest(error)[1],
    ]
    assert "Internal error" not in json.dumps(said)


@pytest.mark.requirement("X-3")
def test_an_error_without_facts_has_no_data_in_0_x() -> None:
    assert table.jsonrpc(errors.TaskNotFound(), "0.3") == {
        "code": -32001,
        "message": "Task not found",
    }


def test_the_standard_message_is_not_said_twice() -> None:
    error = errors.TaskNotFound("Task not found: t-1")
    assert table.jsonrpc(error, "0.2")["message"] == "Task not found: t-1"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            errors.VersionNotSupported(),
            -32600,
            "Request payload validation error: This protocol version is not supported",
        ),
        (
            errors.ExtensionRequired(),
            -32602,
            "Invalid parameters: A required extension was not requested",
        ),
    ],
)
def test_errors_that_0_x_does_not_know_have_an_older_code(
    error: A2AError, code: int, message: str
) -> None:
    body = table.jsonrpc(error, "0.3")
    assert (body["code"], body["message"]) == (code, message)


@pytest.mark.parametrize(
    ("kind", "status", "older"),
    [
        (errors.BodyTooLarge, 413, 413),
        (errors.Overloaded, 503, 503),
        (errors.Unauthenticated, 401, 401),
        (errors.PermissionDenied, 403, 403),
        (errors.TaskNotCancelable, 400, 409),
        (errors.ContentTypeNotSupported, 400, 415),
        (errors.InvalidAgentResponse, 500, 502),
    ],
)
@pytest.mark.requirement("X-1")
def test_statuses_follow_1_0_1_and_on_request_1_0_0(
    kind: type[A2AError], status: int, older: int
) -> None:
    assert table.http_status(kind()) == status
    assert table.rest(kind(), "1.0.0")[0] == older


def test_an_error_class_of_an_application_is_internal_to_peers() -> None:
    class Surprise(A2AError):
        """Something else"""

    class Lost(errors.TaskNotFound):
        """Lost"""

    assert table.jsonrpc(Surprise(), "1.0")["code"] == -32603
    assert table.jsonrpc(Lost(), "1.0")["code"] == -32001


@pytest.mark.parametrize(
    ("value", "kind", "public"),
    [
        ({"code": -32001, "message": "Task not found"}, errors.TaskNotFound, "Task not found"),
        ({"code": -32001, "message": "Task not found: x"}, errors.TaskNotFound, "x"),
        ({"code": -32050, "message": "Input timeout"}, errors.InternalError, "Input timeout"),
        ({"code": "x"}, errors.InternalError, "Internal error"),
        ({"code": -32005, "data": "text"}, errors.ContentTypeNotSupported, None),
        ({"code": -32001, "data": {"reason": "STRANGE"}}, errors.TaskNotFound, None),
        ({"code": -32001, "data": [{"reason": "PERMISSION_DENIED"}]}, errors.TaskNotFound, None),
        (None, errors.InternalError, None),
        (
            {"code": -32602, "message": "Task t is in terminal state: completed"},
            errors.UnsupportedOperation,
            None,
        ),
    ],
)
def test_a_client_understands_the_errors_of_any_peer(
    value: Any, kind: type[A2AError], public: str | None
) -> None:
    error = table.decode_jsonrpc(value)
    assert type(error) is kind
    assert public is None or error.public == public


def test_a_fact_may_be_named_like_a_parameter_of_ours() -> None:
    info = {"@type": table.ERROR_INFO, "reason": "TASK_NOT_FOUND", "metadata": {"message": 1}}
    error = table.decode_jsonrpc({"code": -32001, "message": "m", "data": [info]})
    assert error.facts == {"message": "1"}


@pytest.mark.requirement("X-7")
def test_a_client_reads_problem_details() -> None:
    error = table.decode_rest(
        400,
        {
            "type": "https://a2a-protocol.org/errors/version-not-supported",
            "title": "Protocol Version Not Supported",
            "status": 400,
            "detail": "Version 0.5 is not supported.",
            "supportedVersions": ["1.0", "0.3"],
        },
    )
    assert type(error) is errors.VersionNotSupported
    assert error.public == "Version 0.5 is not supported."
    assert error.facts == {"supportedVersions": "1.0,0.3"}


@pytest.mark.requirement("X-1")
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"code": -32001, "message": "gone"}, errors.TaskNotFound),
        (501, {"message": "no"}, errors.UnsupportedOperation),
        (404, None, errors.TaskNotFound),
        (409, {}, errors.TaskNotCancelable),
        (415, "text", errors.ContentTypeNotSupported),
        (502, [], errors.InvalidAgentResponse),
        (429, {}, errors.RateLimited),
        (503, {}, errors.Overloaded),
        (418, {}, errors.InternalError),
        (401, {"error": {"message": "who?"}}, errors.Unauthenticated),
        (400, {"type": "https://example.com/invalid-params"}, errors.InvalidParams),
    ],
)
def test_a_client_reads_older_bodies_and_bare_statuses(
    status: int, body: Any, kind: type[A2AError]
) -> None:
    assert type(table.decode_rest(status, body)) is kind


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Task not found", errors.TaskNotFound),
        ("Task cannot be canceled - current state: completed", errors.TaskNotCancelable),
        ("This operation is not supported", errors.UnsupportedOperation),
        ("Push Notification is not supported", errors.PushNotSupported),
        ("Not Found", None),
        ("no Route matched with those values", None),
        ("", None),
        (7, None),
    ],
)
def test_an_error_that_has_words_alone_is_known_by_the_words_of_the_specification(
    message: Any, kind: type[A2AError] | None
) -> None:
    found = table.by_words({"message": message})
    assert (None if found is None else type(found)) is kind
    assert table.by_words({"message": message, "path": "/x"}) is None
    assert table.by_words([message]) is None
