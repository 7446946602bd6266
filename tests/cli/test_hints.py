"""The next command to type, for every kind of failure, as a shell takes it."""

import shlex

import pytest

from dragoman import errors
from dragoman.cli.failures import explain
from dragoman.cli.hints import hint_for
from dragoman.cli.invocation import Invocation
from dragoman.cli.session import command, resume
from dragoman.cli.sources import Origin, Settings
from dragoman.errors import A2AError
from dragoman.model.task import TaskState

FLAG = Origin("flag", 1)


def invocation(**settings: object) -> Invocation:
    run = Invocation((), {})
    run.settle(Settings(agent_card="host:1", **settings))  # type: ignore[arg-type]  # fields
    return run


def hint(error: A2AError, run: Invocation | None = None) -> str:
    found = hint_for(error, explain(error), run or invocation())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.CredentialsMissing(kinds="oauth2"), "dragoman auth login -a host:1"),
        (errors.CredentialsMissing(kinds="apiKey"), "A2ACLI_API_KEY"),
        (errors.CredentialsMissing(kinds="mtls"), "--client-cert"),
        (errors.CredentialsMissing(kinds="bearer"), "A2ACLI_BEARER"),
        (errors.CredentialsMissing(origin="https://x"), "--trust-origin https://x"),
        (errors.Unauthenticated(), "auth login"),
        (errors.VersionNotSupported(), "--a2a-version 0.3"),
        (errors.CardNotFound(), "card get -a host:1 --debug"),
        (errors.CardInvalid(), "--validate"),
        (errors.DeliveryUnknown(), "task list -a host:1"),
        (errors.Unreachable(), "--debug"),
        (errors.Unreachable(reason="self-signed certificate"), "--ca-cert"),
        (errors.ExtensionRequired(extensions="urn:a,urn:b"), "--extension urn:a --extension urn:b"),
        (errors.PushNotSupported(), "card get"),
        (errors.TaskNotFound(), "task list"),
        (errors.InternalError(), "--debug"),
    ],
)
def test_a_failure_names_what_to_try(error: A2AError, says: str) -> None:
    assert says in hint(error)


def test_an_id_that_is_refused_says_that_nothing_was_started() -> None:
    said = hint(errors.TaskNotFound(), invocation(task_id="a b"))
    assert "no task was started" in said and "'a b' --debug" in said
    said = hint(errors.InvalidParams("x"), invocation(context_id="c"))
    assert "no task was started" in said and "--debug" in said


def test_the_next_command_is_quoted_and_carries_no_credential() -> None:
    run = invocation(
        bearer="hunter22",
        a2a_version="0.3",
        transport=["HTTP+JSON"],
        insecure=True,
        origins={name: FLAG for name in ("bearer", "a2a-version", "transport", "insecure")},
    )
    run.task_id, run.context_id = "t'; rm -rf /", "c 1"
    line = resume(run, TaskState.INPUT_REQUIRED)
    words = shlex.split(line)
    assert words[:4] == ["dragoman", "send", "-a", "host:1"]
    assert words[-3:] == ["--task-id", "t'; rm -rf /", "<reply>"]
    assert {"--a2a-version", "0.3", "--transport", "HTTP+JSON", "--insecure"} <= {*words}
    assert "hunter22" not in line
    assert shlex.split(resume(run, TaskState.COMPLETED))[-3:] == [
        "--context-id",
        "c 1",
        "<message>",
    ]
    assert resume(run, TaskState.WORKING).startswith("dragoman task get -a host:1 ")
    assert command(run, "task", "get", "x").endswith(" x")
