"""Credentials: what is sent, where, and what is shown of them."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from dragoman.testing.issuer import Issuer
from dragoman.testing.scripted.access import ISSUER
from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from dragoman.testing.scripted.connection import ScriptedConnection
from dragoman.testing.scripted.demo import demo
from dragoman.testing.scripted.serve import hosted
from tests.cli.requirements.credentials import (
    COMPLETED,
    DONE,
    LOUD,
    SECRET,
    FolderAuthority,
    all_of,
    calls,
    fetches,
    issued,
)
from tests.cli.requirements.desk import Desk, Ended, sitting, together

# What is sent


Shown = Callable[[SeenRequest, str], bool]


def key_in_header(seen: SeenRequest, secret: str) -> bool:
    return seen.headers.get("x-api-key") == secret


def key_in_query(seen: SeenRequest, secret: str) -> bool:
    return seen.query.get("api_key") == [secret]


def key_in_cookie(seen: SeenRequest, secret: str) -> bool:
    return seen.headers.get("cookie") == f"api_key={secret}"


def bearer(seen: SeenRequest, secret: str) -> bool:
    return seen.headers.get("authorization") == f"Bearer {secret}"


def granted(url: str) -> str:
    """Return a token that was got by other means than ours."""
    form = {"grant_type": "client_credentials"}
    answer = httpx.post(f"{url}{ISSUER}/token", data=form, auth=("demo", SECRET))
    return answer.json()["access_token"]


@pytest.mark.cli("A2ACLI_AUTH_001")
@pytest.mark.parametrize(
    ("kind", "flag", "is_there"),
    [
        ("api-key", "--api-key", key_in_header),
        ("api-key-query", "--api-key", key_in_query),
        ("api-key-cookie", "--api-key", key_in_cookie),
        ("bearer", "--bearer", bearer),
        ("oauth2", "--bearer", bearer),
        ("oidc", "--bearer", bearer),
    ],
)
def test_a_credential_goes_where_the_card_says_with_every_call_and_never_in_a_payload(
    folder: Path, kind: Any, flag: str, is_there: Shown
) -> None:
    with sitting(folder, auth=kind) as desk:
        secret = granted(desk.url) if desk.agent.issuer else SECRET
        sent, listed = together(
            lambda: desk.run("send", "echo hi", flag, secret),
            lambda: desk.run("task", "list", flag, secret, "--transport", "rest"),
        )
        assert DONE in sent.out and listed.exit == 0
        seen = calls(desk)
        assert {one.binding for one in seen} == {"JSONRPC", "HTTP+JSON"}
        assert all(is_there(one, secret) for one in seen)
        assert not any(secret.encode() in one.body for one in seen)


@pytest.mark.cli("A2ACLI_AUTH_001")
def test_a_missing_credential_stops_before_any_message_and_one_of_another_kind_stays_here(
    folder: Path, desk: Desk
) -> None:
    with sitting(folder, auth="api-key") as guarded:
        none, other = together(
            lambda: guarded.run("send", "hi", "-o", "json", exit=4),
            lambda: guarded.run("send", "hi", "-o", "json", "--bearer", SECRET, exit=4),
        )
        assert {one.error["code"] for one in (none, other)} == {"A2ACLI_ERR_CREDENTIALS_MISSING"}
        assert calls(guarded) == []
        assert "--api-key" in none.error["message"]
        assert none.error["hint"].startswith("A2ACLI_API_KEY='<key>' dragoman send hi ")
        assert "Warning: --bearer is not sent" in other.err and SECRET not in other.out + other.err
        assert guarded.shell(none.error["hint"], key="demo-secret").exit == 0
        assert calls(guarded), "the printed command is a whole one"
    seen = desk.during(
        lambda: together(
            lambda: _is_told(desk.run("send", "echo hi", "--bearer", SECRET), "--bearer"),
            lambda: _is_told(desk.run("send", "echo hi", "--api-key", SECRET), "--api-key"),
        )
    )
    assert len(seen) == 4 and not any(SECRET in all_of(one) for one in seen)


def _is_told(ended: Ended, flag: str) -> None:
    assert DONE in ended.out
    assert re.search(rf"^Warning: {flag} is not sent", ended.err, re.M), ended.err


@pytest.mark.cli("A2ACLI_AUTH_001")
def test_service_parameters_are_headers_and_help_does_not_sell_them_as_credentials(
    desk: Desk,
) -> None:
    before = len(calls(desk))
    _, page = together(
        lambda: desk.run("send", "hi", "--svc-param", "X-Team: red", "--svc-param", "X-Run=a:b"),
        lambda: desk.run("send", "--help", "--all", a=""),
    )
    (seen,) = calls(desk)[before:]
    assert seen.headers["x-team"] == "red" and seen.headers["x-run"] == "a:b"
    said = about(page.out, "--svc-param")
    assert not re.search("auth|credential|token|secret|key", said, re.I), said
    for flag in ("--bearer", "--api-key"):
        assert "scheme the card declares" in about(page.out, flag)


def about(page: str, flag: str) -> str:
    """Return what a help page says of a flag, on one line."""
    found = re.search(rf"^  {flag} (.*?)(?=^  -|\n\n)", page + "\n\n", re.M | re.S)
    assert found is not None, page
    return " ".join(found[1].split())


@pytest.mark.cli("A2ACLI_AUTH_002")
@pytest.mark.parametrize(
    ("kind", "flag", "variable", "is_there"),
    [
        ("bearer", "--bearer", "A2ACLI_BEARER", bearer),
        ("api-key", "--api-key", "A2ACLI_API_KEY", key_in_header),
    ],
)
def test_a_variable_serves_as_well_and_a_flag_wins_over_it(
    folder: Path, kind: Any, flag: str, variable: str, is_there: Shown
) -> None:
    with sitting(folder, auth=kind) as desk:
        alone, both, wrong = together(
            lambda: desk.run("send", "echo one", env={variable: SECRET}),
            lambda: desk.run("send", "echo two", flag, SECRET, env={variable: "another"}),
            lambda: desk.run(
                "send", "echo three", flag, "another", "-o", "json", env={variable: SECRET}, exit=4
            ),
        )
        assert DONE in alone.out and DONE in both.out
        assert wrong.error["code"] == "A2ACLI_ERR_AUTH_FAILED"
        sent = [seen.json["params"]["message"] for seen in calls(desk) if is_there(seen, SECRET)]
        taken = {message["parts"][0]["text"] for message in sent}
        assert taken == {"echo one", "echo two"}


@pytest.mark.cli("A2ACLI_AUTH_002")
def test_help_says_that_flags_are_seen_by_others_and_names_the_variable(desk: Desk) -> None:
    send, login = together(
        lambda: desk.run("send", "--help", "--all", a="").out,
        lambda: desk.run("auth", "login", "-h", "--all", a="").out,
    )
    flags = {"--bearer": "A2ACLI_BEARER", "--api-key": "A2ACLI_API_KEY"}
    for page, named in (
        (send, flags),
        (login, flags | {"--client-secret": "A2ACLI_CLIENT_SECRET"}),
    ):
        for flag, variable in named.items():
            said = about(page, flag)
            assert "process list" in said and "shell history" in said and variable in said


@pytest.mark.cli("A2ACLI_AUTH_003")
def test_a_credential_with_insecure_is_warned_of_every_time(folder: Path) -> None:
    authority = FolderAuthority(folder)
    with authority.sitting(demo(auth="bearer")) as desk:
        token = {"A2ACLI_BEARER": SECRET}
        insecure = {"A2ACLI_INSECURE": "true"}
        refused, bare, first, second, trusted = together(
            lambda: desk.run("send", "hi", "-o", "json", env=token, exit=3),
            lambda: desk.run("card", "get", "--insecure"),
            lambda: desk.run("send", "hi", "--insecure", env=token),
            lambda: desk.run("send", "hi", "-o", "json", env=token | insecure),
            lambda: desk.run("send", "hi", "--ca-cert", authority.file, env=token),
        )
    assert refused.error["code"] == "A2ACLI_ERR_UNREACHABLE"
    assert "Warning: --insecure" in bare.err and "CREDENTIALS" not in bare.err
    for ended in (first, second):
        assert re.search("^Warning: --insecure.*CREDENTIALS", ended.err, re.M)
        assert SECRET not in ended.out + ended.err
    assert second.json["task"]["status"]["state"] == COMPLETED
    assert DONE in trusted.out and "insecure" not in trusted.err


@pytest.mark.cli("A2ACLI_AUTH_003")
def test_a_stored_token_with_insecure_and_a_token_over_plain_http_are_warned_of(
    folder: Path,
) -> None:
    agent, _ = issued("oauth2")
    with FolderAuthority(folder).sitting(agent) as desk:
        env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": SECRET}
        made = desk.run("auth", "login", "--insecure", env=env)
        used = desk.run("send", "hi", "--insecure")
    for ended in (made, used):
        assert re.search("^Warning: --insecure.*CREDENTIALS", ended.err, re.M), ended.err
    card = {"securitySchemes": {"demo": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}}
    far = {
        "url": "http://agent.invalid/a2a",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    (folder / "card.json").write_text(
        json.dumps(_plain_card() | card | {"supportedInterfaces": [far]})
    )
    failed = Desk(folder).run(
        *("send", "hi", "--bearer", SECRET, "--trust-origin", "http://agent.invalid"),
        a="./card.json",
        exit=3,
    )
    assert re.search("^Warning: http://agent.invalid/a2a is plain http", failed.err, re.M)


def _plain_card() -> dict[str, Any]:
    return {
        "name": "Far",
        "description": "Is far away.",
        "version": "1",
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
    }


# What is shown


@pytest.mark.cli("A2ACLI_AUTH_004")
@pytest.mark.parametrize("kind", ["bearer", "api-key", "api-key-query", "api-key-cookie"])
def test_no_credential_is_in_any_output(folder: Path, kind: Any) -> None:
    variable = "A2ACLI_BEARER" if kind == "bearer" else "A2ACLI_API_KEY"
    right, wrong = {variable: SECRET}, {variable: "wrong-s3cret/+=.x"}
    with sitting(folder, auth=kind) as desk:
        runs = together(
            lambda: desk.run("send", "echo hi", *LOUD, env=right),
            lambda: desk.run("task", "list", "--transport", "rest", *LOUD, env=right),
            lambda: desk.run("send", "echo hi", *LOUD, env=wrong, exit=4),
            lambda: desk.run("task", "list", "--transport", "rest", *LOUD, env=wrong, exit=4),
        )
        assert any(SECRET in all_of(seen) for seen in calls(desk))
        assert any("wrong-s3cret" in unquote(all_of(seen)) for seen in calls(desk))
        assert all("Debug: > " in ended.err for ended in runs)
        check_hidden(desk, runs, SECRET, "wrong-s3cret")


def check_hidden(desk: Desk, runs: list[Ended], *secrets: str) -> None:
    """Fail where a secret is in an output or in a file."""
    kept = "".join(path.read_text(errors="replace") for path in desk.files())
    for text in (kept, *(ended.out + ended.err for ended in runs)):
        for secret in secrets:
            assert secret not in text


@pytest.mark.cli("A2ACLI_AUTH_004")
def test_no_secret_is_in_the_output_of_any_kind_of_run(folder: Path) -> None:
    env = {"A2ACLI_BEARER": SECRET, "A2ACLI_API_KEY": "demo-key"}
    parameter = ("--svc-param", "X-Trace: s3rvice-parameter")
    with sitting(folder, auth="bearer") as desk:
        runs = together(
            lambda: desk.run("send", "stream 2", "--stream", "-o", "json", *LOUD, env=env),
            lambda: desk.run("task", "get", "unknown", *LOUD, *parameter, env=env, exit=1),
            lambda: desk.run("send", "drop", *LOUD, *parameter, env=env, exit=None),
            lambda: desk.run("send", "error -32603", *LOUD, "-o", "json", env=env, exit=1),
            lambda: desk.run("config", "show", *LOUD, *parameter, env=env),
            lambda: desk.run("config", "show", "-o", "json", *LOUD, *parameter, env=env),
            lambda: desk.run("send", "--help", *parameter, env=env, a=""),
            lambda: desk.run("send", "hi", "--svc-param", "s3rvice-parameter", *LOUD, exit=2),
            lambda: desk.run("send", "hi", "--bearer", f"{SECRET} x", *LOUD, exit=2),
        )
        assert any("s3rvice-parameter" in all_of(seen) for seen in calls(desk))
        check_hidden(desk, runs, SECRET, "demo-key", "s3rvice-parameter")


@pytest.mark.cli("A2ACLI_AUTH_004")
def test_an_agent_that_repeats_a_secret_does_not_have_it_shown_beside_the_payload(
    folder: Path,
) -> None:
    says = {"error": "InternalError", "text": f"bad token {SECRET} for user"}
    script = {
        "access": {"kind": "bearer", "secret": SECRET},
        "rules": [
            {"when": {"contains": "fail"}, "steps": [says]},
            {"steps": [{"say": f"Bearer {SECRET}"}, {"wait": "50ms"}, {"state": "completed"}]},
        ],
    }
    with sitting(folder, ScriptedAgent(script)) as desk:
        env = {"A2ACLI_BEARER": SECRET}
        runs = together(
            lambda: desk.run("send", "fail", "--debug", env=env, exit=1),
            lambda: desk.run("send", "fail", "--debug", "-o", "json", env=env, exit=1),
            lambda: desk.run("send", "hi", "--debug", env=env),
        )
    for ended in runs[:2]:
        assert SECRET not in ended.out + ended.err
    assert SECRET not in runs[2].err and "<redacted>" in runs[2].err


@pytest.mark.cli("A2ACLI_AUTH_004")
def test_secrets_of_addresses_push_and_logins_are_hidden_too(folder: Path, desk: Desk) -> None:
    task, _ = desk.begin("working")
    webhook = "http://user:passw0rd-1@127.0.0.1:9/hook?token=passw0rd-2"
    create = ("task", "push-config", "create", task, "--url", webhook)
    proof = ("--token", "passw0rd-3", "--auth-scheme", "Bearer", "--auth-credentials", "passw0rd-4")
    agent, issuer = issued("oauth2")
    with sitting(folder, agent) as guarded:
        env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": SECRET}
        runs = together(
            lambda: desk.run(*create, *proof, *LOUD, exit=None),
            lambda: desk.run("send", "hi", *LOUD, a="http://me:passw0rd-5@127.0.0.1:9", exit=3),
            lambda: desk.run("send", "hi", *LOUD, a="http://127.0.0.1:9/c?key=passw0rd-6", exit=3),
            lambda: desk.run("config", "show", *LOUD, a="http://me:passw0rd-8@127.0.0.1:9"),
            lambda: desk.run(
                "config", "show", "-o", "json", a="http://127.0.0.1/c?token=passw0rd-9"
            ),
            lambda: desk.run("send", "-h", a="", env={"A2ACLI_AGENT_CARD": "http://me:passw0rd@h"}),
            lambda: guarded.run("auth", "login", *LOUD, env=env),
            lambda: guarded.run(
                "auth", "login", *LOUD, env=env | {"A2ACLI_CLIENT_SECRET": "passw0rd-7"}, exit=4
            ),
            lambda: guarded.run(
                *("auth", "login", "--client-id", "public", "--flow", "device-code"), *LOUD
            ),
        )
        runs.append(guarded.run("send", "echo hi", *LOUD))
        assert DONE in runs[-1].out
        hidden = [SECRET, *(token for token in issuer_secrets(issuer, guarded))]
        assert len(hidden) > 3
    for ended in runs:
        for secret in ("passw0rd", *hidden):
            assert secret not in ended.out + ended.err, ended


def issuer_secrets(issuer: Issuer, desk: Desk) -> Iterator[str]:
    """Yield what an issuer gave and was shown: tokens, device codes, Authorization headers."""
    for path in desk.folder.rglob("tokens/*.json"):
        token = json.loads(path.read_text())["token"]
        yield from (token[name] for name in ("access", "refresh") if name in token)
    for asked in issuer.requests:
        for name in ("device_code", "refresh_token", "client_secret"):
            if name in asked.form:
                yield asked.form[name]
        if "authorization" in asked.headers:
            yield asked.headers["authorization"].split()[1]


# Cards and redirects


SECRETS = {"A2ACLI_BEARER": SECRET, "A2ACLI_API_KEY": "demo-key"}
SERVICE = ("--svc-param", "Authorization: Bearer in-a-parameter", "--svc-param", "X-Key: my-key")
HIDDEN = (SECRET, "demo-key", "in-a-parameter", "my-key")


class Turnstile:
    """Shows its card to those who show a token, and sends everybody elsewhere for all else."""

    def __init__(self, to: str, *, asks: bool) -> None:
        self.to = to
        self.asks = asks
        self.seen: list[ScriptedConnection] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await demo()(scope, receive, send)
        connection = ScriptedConnection(scope, receive, send)
        self.seen.append(connection)
        await connection.read()
        if self.asks and "authorization" not in connection.headers:
            headers = [(b"www-authenticate", b"Bearer")]
            return await connection.answer(401, b"{}", headers=headers)
        where = f"{self.to}{connection.path}".encode()
        return await connection.answer(307, b"{}", headers=[(b"location", where)])


@pytest.mark.cli("A2ACLI_AUTH_008")
@pytest.mark.parametrize("kind", ["bearer", "api-key-query"])
def test_a_card_address_that_asks_for_nothing_gets_no_credential(folder: Path, kind: Any) -> None:
    env = SECRETS | {"A2ACLI_API_KEY": SECRET}
    with sitting(folder, auth=kind) as desk:
        together(
            lambda: desk.run("send", "echo hi", *SERVICE[2:], env=env),
            lambda: desk.run("card", "get", *SERVICE, env=env),
            lambda: desk.run("card", "get", "--extended", env=env),
            lambda: desk.run("auth", "login", "--client-id", "x", env=env, exit=4),
            lambda: desk.run("conformance", *SERVICE[2:], env=env, exit=None),
        )
        assert calls(desk) and len(fetches(desk)) >= 5
        for seen in fetches(desk):
            assert not any(secret in all_of(seen) for secret in HIDDEN)


@pytest.mark.cli("A2ACLI_AUTH_008")
def test_a_challenge_is_answered_once_and_only_with_what_it_names(folder: Path) -> None:
    script = {"access": {"kind": "bearer", "secret": SECRET, "card": True}}
    with sitting(folder, ScriptedAgent(script)) as desk:
        assert DONE in desk.run("send", "echo hi", *SERVICE[2:], env=SECRETS).out
        first, second = fetches(desk)
        assert not any(secret in all_of(first) for secret in HIDDEN)
        assert second.headers["authorization"] == f"Bearer {SECRET}"
        assert "demo-key" not in all_of(second) and "my-key" not in all_of(second)
        key, wrong = together(
            lambda: desk.run("card", "get", "-o", "json", "--api-key", SECRET, exit=4),
            lambda: desk.run("card", "get", "-o", "json", "--bearer", "wrong", exit=4),
        )
        assert key.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert wrong.error["code"] == "A2ACLI_ERR_AUTH_FAILED"
        assert len(fetches(desk)) == 5


@pytest.mark.cli("A2ACLI_AUTH_008")
@pytest.mark.parametrize("asks", [False, True])
def test_no_credential_follows_a_redirect_to_another_origin(folder: Path, asks: bool) -> None:
    with sitting(folder, auth="bearer") as target:
        turnstile = Turnstile(target.url, asks=asks)
        with hosted(turnstile) as url:
            desk = Desk(folder, url)
            card, sent, named = together(
                lambda: desk.run("card", "get", *SERVICE, env=SECRETS),
                lambda: desk.run("send", "hi", "-o", "json", *SERVICE, env=SECRETS, exit=4),
                lambda: desk.run("send", "hi", "--trust-origin", target.url, env=SECRETS),
            )
        assert "Name: Demo agent" in card.out and DONE in named.out
        # The card is of another origin than the one that was named, and so are its addresses.
        assert sent.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert target.url in sent.error["message"]
        assert [seen.method for seen in calls(target)] == ["SendStreamingMessage"]
        for seen in fetches(target):
            assert not any(secret in all_of(seen) for secret in HIDDEN)
        shown = [one.headers.get("authorization", "") for one in turnstile.seen]
        assert set(shown) == ({"", f"Bearer {SECRET}"} if asks else {""})


@pytest.mark.cli("A2ACLI_AUTH_008")
def test_no_credential_follows_the_redirect_of_a_call(folder: Path) -> None:
    with sitting(folder, auth="bearer") as target:
        turnstile = Turnstile(target.url, asks=False)
        with hosted(turnstile) as url:
            (folder / "card.json").write_text(
                json.dumps(target.json("card", "get")).replace(target.url, url)
            )
            for binding in ("jsonrpc", "rest"):
                Desk(folder, "./card.json").run(
                    *("send", "hi", "--transport", binding), env=SECRETS, exit=None
                )
        assert any("authorization" in one.headers for one in turnstile.seen)
        assert calls(target) == []


@pytest.mark.cli("A2ACLI_AUTH_009")
def test_a_client_certificate_opens_a_server_that_demands_one(folder: Path) -> None:
    authority = FolderAuthority(folder)
    mine = authority.sign("client")
    trust = ("--ca-cert", authority.file)
    shown = (*trust, "--client-cert", mine.certificate, "--client-key", mine.key)
    with authority.sitting(demo(auth="mtls"), asks=True) as desk:
        sent, env, none, half = together(
            lambda: desk.run("send", "echo hi", *shown, *LOUD),
            lambda: desk.run(
                *("card", "get", *trust),
                env={
                    "A2ACLI_CLIENT_CERT": str(mine.certificate),
                    "A2ACLI_CLIENT_KEY": str(mine.key),
                },
            ),
            lambda: desk.run("send", "hi", *trust, *LOUD, "-o", "json", exit=3),
            lambda: desk.run(
                *("send", "hi", *trust, "--client-cert", mine.certificate), "-o", "json", exit=2
            ),
        )
    assert DONE in sent.out and "Scheme: demo (mtls)" in env.out
    assert none.error["code"] == "A2ACLI_ERR_UNREACHABLE"
    assert "--client-cert" in none.error["message"] and "--client-cert" in none.error["hint"]
    assert half.error["code"] == "A2ACLI_ERR_USAGE"
    key = mine.key.read_text().splitlines()[1:-1]
    for ended in (sent, env, none, half):
        assert not any(line in ended.out + ended.err for line in key)
        assert "PRIVATE KEY" not in ended.out + ended.err


@pytest.mark.cli("A2ACLI_AUTH_009")
def test_a_card_that_asks_for_a_certificate_is_not_called_without_one(folder: Path) -> None:
    with sitting(folder, auth="mtls") as desk:
        failed = desk.run("send", "hi", "-o", "json", exit=4)
        assert failed.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert "--client-cert" in failed.error["hint"]
        assert calls(desk) == []


@pytest.mark.cli("A2ACLI_AUTH_011")
def test_a_task_that_wants_authorization_goes_on_by_a_reply_or_elsewhere(folder: Path) -> None:
    with sitting(folder, auth="bearer") as desk:
        env = {"A2ACLI_BEARER": SECRET}
        reply, elsewhere = together(
            lambda: desk.run("send", "auth", env=env),
            lambda: desk.run("send", "auth 1", env=env),
        )
        for paused in (reply, elsewhere):
            assert paused.fields["State"] == "TASK_STATE_AUTH_REQUIRED"
            assert "Please authorize" in paused.out and "Task: " in paused.out
            assert re.search("^Warning: task .* TASK_STATE_AUTH_REQUIRED", paused.err, re.M)
        way = re.search(r"^Hint: (dragoman task subscribe .*)$", elsewhere.err, re.M)
        assert way is not None and SECRET not in way[1]
        (folder / ".env").write_text(f"A2ACLI_BEARER={SECRET}\n")
        (folder / ".env").chmod(0o600)
        replied, followed = together(
            lambda: desk.shell(reply.fields["Resume"], reply="done"),
            lambda: desk.shell(way[1]),
        )
        assert replied.exit == 0 and replied.fields["State"] == COMPLETED
        assert "Authorized by reply" in replied.out
        assert followed.exit == 0 and followed.fields["State"] == COMPLETED
        assert "Authorized elsewhere" in followed.out
        assert not any(SECRET.encode() in seen.body for seen in calls(desk))
