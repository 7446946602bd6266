"""The next command to type, for every kind of failure, as a shell takes it."""

import shlex
from typing import Any

import pytest

from dragoman import errors
from dragoman.cli.failures import explain
from dragoman.cli.hints import advise, again, command, hint_for, lines_of_json, resume
from dragoman.cli.invocation import Invocation
from dragoman.cli.sources import CommandSettings, Origin
from dragoman.errors import A2AError
from dragoman.model.task import TaskState, TaskStatus

FLAG = Origin("flag", 1)
TYPED = ("send", "-a", "host:1", "hi")


def invocation(*argv: str, **settings: Any) -> Invocation:
    run = Invocation(argv or TYPED, {})
    run.settle(CommandSettings(**{"agent_card": "host:1"} | settings))
    return run


def hint(error: A2AError, run: Invocation | None = None) -> str:
    found = hint_for(error, run or invocation())
    assert found is not None
    return found


def message(error: A2AError, run: Invocation | None = None) -> str:
    failure = explain(error)
    advise(error, failure, run or invocation())
    return failure.message


SAME = "dragoman send -a host:1 hi"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.CredentialsMissing(kinds="oauth2"), "dragoman auth login -a host:1 --client-id"),
        (errors.CredentialsMissing(kinds="apiKey"), f"A2ACLI_API_KEY='<key>' {SAME}"),
        (
            errors.CredentialsMissing(kinds="mtls"),
            f"{SAME} --client-cert '<path>' --client-key '<path>'",
        ),
        (errors.CredentialsMissing(kinds="bearer"), f"A2ACLI_BEARER='<token>' {SAME}"),
        (errors.CredentialsMissing(kinds="basic"), "dragoman card get -a host:1"),
        (errors.CredentialsMissing(wwwAuthenticate="Basic realm=x"), "dragoman card get -a host:1"),
        (errors.CredentialsMissing("over", schemes="x"), "dragoman auth login -a host:1 "),
        (
            errors.CredentialsMissing("Credentials are not sent to it", origin="https://x"),
            f"{SAME} --trust-origin https://x",
        ),
        (errors.Unauthenticated(kinds="apiKey"), f"A2ACLI_API_KEY='<key>' {SAME}"),
        (errors.Unauthenticated(kinds="oauth2"), "dragoman auth login -a host:1 "),
        (errors.PermissionDenied(kinds="bearer"), f"A2ACLI_BEARER='<token>' {SAME}"),
        (
            errors.PermissionDenied(kinds="bearer", scope="a b"),
            f"A2ACLI_BEARER='<token with scope a b>' {SAME}",
        ),
        (
            errors.PermissionDenied(kinds="oauth2", scope="a b"),
            "dragoman auth login -a host:1 --client-id '<id>' --scope a --scope b",
        ),
        (
            errors.PermissionDenied(kinds="apiKey", scope="'; rm x"),
            "A2ACLI_API_KEY=" + shlex.quote("<key with scope '; rm x>") + f" {SAME}",
        ),
        (errors.RateLimited(retryAfter="60"), SAME),
        (errors.Unreachable("HTTP 503", retryAfter="60"), SAME),
        (errors.Overloaded(retryAfter="soon"), f"{SAME} --debug"),
        (
            errors.Unreachable(reason="ConnectionBroke: TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            f"{SAME} --client-cert '<path>' --client-key '<path>'",
        ),
        (
            errors.Unreachable(reason="HungUp", url="https://host:1/x"),
            f"{SAME} --client-cert '<path>' --client-key '<path>'",
        ),
        (
            errors.Unreachable(reason="HungUp", url="http://host:1/x"),
            "dragoman card get -a host:1 --debug",
        ),
        (errors.VersionNotSupported(supportedVersions="0.2, 0.3"), f"{SAME} --a2a-version 0.3"),
        (errors.VersionNotSupported(supportedVersions="9.1"), "dragoman card get -a host:1"),
        (errors.VersionNotSupported(), "dragoman card get -a host:1"),
        (errors.CardNotFound(), "dragoman card get -a host:1 --debug"),
        (errors.CardInvalid(), "dragoman card get -a host:1 --validate"),
        (errors.DeliveryUnknown(), "dragoman task list -a host:1"),
        (errors.Unreachable(), "dragoman card get -a host:1 --debug"),
        (errors.Unreachable(reason="self-signed certificate"), f"{SAME} --ca-cert '<path>'"),
        (
            errors.ExtensionRequired(extensions="urn:a,urn:b"),
            f"{SAME} --extension urn:a --extension urn:b",
        ),
        (errors.ExtensionRequired(), "dragoman card get -a host:1"),
        (errors.PushNotSupported(), "dragoman card get -a host:1"),
        (errors.TaskNotFound(), "dragoman task list -a host:1"),
        (errors.NoAgentAvailable(), "dragoman card get -a host:1"),
        (
            errors.CardNotFound("none", url="http://host:1/a2a/x/.well-known/agent-card.json"),
            "dragoman agents list --gateway http://host:1",
        ),
        (errors.InternalError(), f"{SAME} --debug"),
        (
            errors.InvalidParams("is none", field="message.metadata.skillId"),
            "dragoman card get -a host:1",
        ),
        (errors.InvalidParams("is wrong", field="page"), f"{SAME} --debug"),
    ],
)
def test_a_hint_is_the_whole_next_command(error: A2AError, line: str) -> None:
    found = hint(error)
    assert found == line or (line.endswith((" ", "id")) and found.startswith(line))


def test_a_receiver_that_is_missing_is_looked_for_among_those_of_its_task() -> None:
    run = invocation()
    run.task_id = "t-1"
    error = errors.TaskNotFound("Push notification configuration not found", configId="c")
    assert hint(error, run) == "dragoman task push-config list -a host:1 t-1"


def test_who_has_a_client_id_needs_no_other_to_log_in() -> None:
    error = errors.CredentialsMissing(kinds="oauth2")
    assert hint(error).endswith(" --client-id '<id>'")
    run = invocation(environment={"A2ACLI_CLIENT_ID": "me"})
    assert hint(error, run) == "dragoman auth login -a host:1"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"api_key": "wrong-key"}, f"A2ACLI_API_KEY='<key>' {SAME}"),
        ({"bearer": "wrong-one"}, f"A2ACLI_BEARER='<token>' {SAME}"),
    ],
)
def test_a_refusal_names_the_credential_that_was_refused(given: dict[str, str], line: str) -> None:
    assert hint(errors.Unauthenticated(), invocation(**given)) == line


def test_what_is_missing_is_said_in_the_words_of_the_command_line() -> None:
    said = "The agent asks for credentials ('k'). Give a key: api_key=, or --api-key"
    assert message(errors.CredentialsMissing(said, kinds="apiKey", schemes="k")) == (
        "The agent asks for credentials ('k'). It takes a key: --api-key or A2ACLI_API_KEY"
    )
    said = "The agent asks for credentials ('b'). Give a name: credentials=[Basic(...)]"
    shown = message(errors.CredentialsMissing(said, kinds="basic", schemes="b"))
    assert "=" not in shown and "cannot send" in shown
    said = "Credentials are not sent to https://x. If they should be, name it: origins=['x']"
    assert message(errors.CredentialsMissing(said, origin="https://x")) == (
        "Credentials are not sent to https://x"
    )


def test_a_refusal_for_a_scope_names_it_and_one_for_a_while_says_for_how_long() -> None:
    denied = errors.PermissionDenied("Forbidden: not for you", scope="gold")
    assert message(denied) == ("Forbidden: not for you; it takes a credential with the scope gold")
    busy = errors.RateLimited(retryAfter="60")
    assert message(busy) == "Too many requests; it asks to be left alone for 60 s"
    assert message(errors.RateLimited(retryAfter="\x1b[2J")) == "Too many requests"


def test_who_hangs_up_may_want_a_certificate_of_callers_that_show_none() -> None:
    hung_up = errors.Unreachable(reason="HungUp", url="https://host:1/x")
    assert "perhaps" in message(hung_up) and "--client-cert" in message(hung_up)
    shows_one = invocation(client_cert="me.pem")
    assert "--client-cert" not in message(hung_up, shows_one)
    revoked = errors.Unreachable(reason="ConnectionBroke: SSLV3_ALERT_CERTIFICATE_REVOKED")
    assert "takes callers by their certificate" in message(revoked, shows_one)


def test_an_id_that_is_refused_says_that_nothing_was_started() -> None:
    run = invocation(task_id="a b")
    assert "no task was started" in message(errors.TaskNotFound(), run)
    assert hint(errors.TaskNotFound(), run) == "dragoman task list -a host:1"
    line = "dragoman task get -a host:1 'a b' --debug"
    assert hint(errors.UnsupportedOperation(), run) == line
    run = invocation(context_id="c")
    assert "no task was started" in message(errors.InvalidParams("x"), run)
    assert hint(errors.InvalidParams("x"), run) == f"{SAME} --debug"


def test_a_message_that_may_have_arrived_is_looked_for() -> None:
    assert "may have taken" in message(errors.DeliveryUnknown("host:1: gone"))
    run = invocation(task_id="t")
    assert hint(errors.DeliveryUnknown(), run) == "dragoman task get -a host:1 t"


def test_a_hint_keeps_the_version_and_before_1_0_there_is_no_list() -> None:
    old = {"a2a_version": "0.3", "origins": {"a2a-version": FLAG}}
    assert hint(errors.CardInvalid(), invocation(**old)) == (
        "dragoman card get -a host:1 --a2a-version 0.3 --validate"
    )
    assert hint_for(errors.TaskNotFound(), invocation(**old)) is None
    assert hint_for(errors.DeliveryUnknown(), invocation(**old)) is None
    asked = ("send", "--a2a-version", "0.3", "hi")
    error = errors.VersionNotSupported(supportedVersions="1.0")
    assert hint(error, invocation(*asked, **old)) == "dragoman send hi --a2a-version 1.0"


def test_nobody_is_told_to_type_the_same_again() -> None:
    assert hint_for(errors.CardInvalid(), invocation("card", "get", "x", "--validate")) is None
    for error in (errors.CardNotFound(), errors.Unreachable(), errors.InternalError()):
        assert hint_for(error, invocation(debug=True)) is None


def test_an_agent_that_went_away_may_come_back_to_its_task() -> None:
    run = invocation()
    run.task_id, run.status = "t", TaskStatus(TaskState.WORKING)
    assert hint(errors.Unreachable(), run) == "dragoman task get -a host:1 --wait t"


def test_what_was_typed_comes_back_without_its_secrets() -> None:
    typed = ("send", "-a", "u:pw@host", "--bearer", "hunter22", "--api-key=hunter33", "it's")
    run = invocation(*typed, "--svc-param", "X-Key: hunter44", agent_card="u:pw@host")
    assert again(run, "--debug") == (
        "dragoman send -a host 'it'\"'\"'s' --svc-param '<name:value>' --debug"
    )
    for given in (
        ("--agent-card=u:pw@host",),
        ("-au:pw@host",),
        ("-a", "u:pw@host"),
        ("u:pw@host",),
    ):
        line = lines_of_json(invocation("card", "get", *given, "-o", "jsonl"))
        assert line is not None and "pw" not in line and "host" in line
    ended = invocation("send", "--", "--bearer")
    assert again(ended, "--debug") == "dragoman send --debug -- --bearer"
    assert again(invocation("send", "x" * 2000), "--debug") is None


@pytest.mark.parametrize("words", [("-o", "jsonl"), ("--output=jsonl",), ("-ojsonl", "--stream")])
def test_lines_of_json_have_a_name_here(words: tuple[str, ...]) -> None:
    assert lines_of_json(invocation("send", *words, "hi")) == "dragoman send hi -o json --stream"


def test_no_value_of_a_header_is_looked_for_in_a_command() -> None:
    run = invocation(
        agent_card="127.0.0.1:9100", svc_param=[("X-Tenant", "1"), ("X-Env", "a")], bearer="send"
    )
    run.task_id = "t-1"
    line = "dragoman send -a 127.0.0.1:9100 --task-id t-1"
    assert resume(run, TaskState.INPUT_REQUIRED) == f'{line} "<reply>"'
    wait = command(run, "task", "get", "--wait", "t-1")
    assert run.redactor.text(wait) == "dragoman task get -a 127.0.0.1:9100 --wait t-1"


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


def test_a_task_that_cannot_be_canceled_is_looked_at() -> None:
    run = invocation("task", "cancel", "t-1", "-a", "host:1")
    run.task_id = "t-1"
    assert hint(errors.TaskNotCancelable(), run) == "dragoman task get -a host:1 t-1"


def test_where_no_tls_is_spoken_the_same_is_typed_with_http() -> None:
    error = errors.Unreachable(reason="ConnectionBroke: WRONG_VERSION_NUMBER")
    run = invocation("send", "-a", "https://host:1", "hi", agent_card="https://host:1")
    assert hint(error, run) == "dragoman send -a http://host:1 hi"
    assert hint(error) == "dragoman card get -a host:1 --debug"
