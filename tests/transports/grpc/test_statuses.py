"""Errors as statuses of rpcs, and back as the same class."""

import pytest

from dragoman import errors
from dragoman.dialects.errors import ROWS, Table
from dragoman.errors import (
    A2AError,
    AgentOffline,
    InvalidParams,
    Overloaded,
    RateLimited,
    TaskNotFound,
)
from dragoman.transports.grpc import statuses

# Two meanings with one reason and one status: the first is what a client reads it as.
ALIKE = {
    errors.ParseFailed: errors.InvalidRequest,
    errors.PushConfigNotFound: errors.TaskNotFound,
}


@pytest.mark.parametrize("kind", [row.error for row in ROWS], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("table", ["1.0.1", "1.0.0"])
def test_every_error_arrives_as_its_class(kind: type[A2AError], version: str, table: Table) -> None:
    status = statuses.encode(kind("What went wrong"), version, table)
    came = statuses.decode(status.name, status.message, status.details)
    assert type(came) is ALIKE.get(kind, kind)


def test_statuses_are_those_of_the_table() -> None:
    gone = statuses.encode(TaskNotFound(taskId="t"), "1.0")
    assert (gone.name, statuses.CODES[gone.name]) == ("NOT_FOUND", 5)
    came = statuses.decode(*gone)
    assert came.facts == {"taskId": "t"}
    unsupported = errors.UnsupportedOperation()
    assert statuses.encode(unsupported, "1.0", "1.0.1").name == "FAILED_PRECONDITION"
    assert statuses.encode(unsupported, "1.0", "1.0.0").name == "UNIMPLEMENTED"


def test_a_field_that_is_wrong_is_named() -> None:
    status = statuses.encode(InvalidParams("is required", field="message.parts"), "1.0")
    came = statuses.decode(*status)
    assert isinstance(came, InvalidParams)
    assert (came.field, came.description) == ("message.parts", "is required")


def test_callers_of_0_3_read_the_name_of_an_error_before_its_words() -> None:
    status = statuses.encode(TaskNotFound("It is gone"), "0.3")
    assert status.message == "TaskNotFoundError: It is gone"
    came = statuses.decode("NOT_FOUND", "TaskNotFoundError: It is gone", b"")
    assert (type(came), came.public) == (TaskNotFound, "It is gone")


def test_a_refusal_says_when_to_come_back() -> None:
    came = statuses.decode(*statuses.encode(RateLimited(retry_after=7), "1.0"))
    assert (type(came), came.facts["retryAfter"]) == (RateLimited, "7")


@pytest.mark.parametrize("kind", [RateLimited, Overloaded, AgentOffline])
def test_a_refusal_that_is_passed_on_says_when_as_it_was_told(kind: type[A2AError]) -> None:
    # The last of the details is RetryInfo, and the last of that are its seconds.
    details = statuses.encode(kind(retryAfter="12"), "1.0").details
    assert b"google.rpc.RetryInfo" in details and details.endswith(b"\x08\x0c")


def test_details_that_cannot_be_read_are_none() -> None:
    assert type(statuses.decode("NOT_FOUND", "gone", b"\xff\xff")) is TaskNotFound
    assert type(statuses.decode("UNKNOWN", "", b"")) is errors.InternalError
