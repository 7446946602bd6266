"""`dragoman card get` and `dragoman auth login`: what an agent says, and a token for it."""

import json
import stat
from pathlib import Path

import pytest
from harness.serving import hosting

from dragoman.security import card_signatures
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.demo import demo
from tests.cli.command import call, document, fields, typed


async def test_a_card_by_every_kind_of_reference(tmp_path: Path) -> None:
    agent = demo()
    async with hosting(agent) as url:
        card = url + "/.well-known/agent-card.json"
        shown = await typed("card", "get", url, cwd=tmp_path)
        found = fields(shown.stdout)
        assert found["Name"] == "Demo agent" and found["Signature"] == "absent"
        assert found["Selected"].endswith("(JSONRPC 1.0)")
        first = document(await call("card", "get", "-a", url, "-o", "json", cwd=tmp_path))
        (tmp_path / "card.json").write_text(json.dumps(first))
        for ref in (url.removeprefix("http://"), card, "./card.json"):
            one = document(await call("card", "get", ref, "-o", "json", "--validate", cwd=tmp_path))
            assert one == first
    # Cards of this machine change while their author works: none is left on disk.
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


async def test_a_card_that_is_wrong_is_exit_1_and_everything_is_listed(tmp_path: Path) -> None:
    card = {
        "name": 5,
        "description": "x",
        "supportedInterfaces": [
            {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
    }
    (tmp_path / "bad.json").write_text(json.dumps(card))
    ended = await call("card", "get", "./bad.json", "--validate", "-o", "json", cwd=tmp_path)
    error = document(ended, 1)["error"]
    assert error["code"] == "A2ACLI_ERR_CARD_INVALID"
    (tmp_path / "no.json").write_text("[]")
    ended = await call("card", "get", "./no.json", "-o", "json", cwd=tmp_path)
    error = document(ended, 1)["error"]
    assert error["code"] == "A2ACLI_ERR_CARD_INVALID"
    assert error["hint"] == "dragoman card get -a ./no.json --validate"
    ended = await call("card", "get", "./no.json", "--validate", "-o", "json", cwd=tmp_path)
    assert document(ended, 1)["error"]["hint"] == "dragoman doctor ./no.json"


async def test_the_verdict_on_a_signature_is_one_of_three(tmp_path: Path) -> None:
    jwk = pytest.importorskip("joserfc.jwk")
    key = jwk.ECKey.generate_key("P-256", {"kid": "k1"}, private=True)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    async with hosting(demo()) as url:
        plain = document(await call("card", "get", url, "-o", "json", cwd=tmp_path))
    signed = card_signatures.sign(plain, key.as_dict(private=True), "k1")
    (tmp_path / "signed.json").write_text(json.dumps(signed))
    look = ("card", "get", "./signed.json")
    good = await call(*look, "--keys", "keys.json", "--require-signature", cwd=tmp_path)
    assert fields(good.stdout)["Signature"] == "verified (key k1)"
    unknown = await call(*look, "-o", "json", cwd=tmp_path)
    assert document(unknown) == signed and "Signature: unverifiable" in unknown.stderr
    refused = await call(*look, "--require-signature", cwd=tmp_path)
    assert refused.returncode == 1 and "A2ACLI_ERR_CARD_INVALID" in refused.stderr


async def test_a_bearer_goes_where_the_card_asks_and_to_no_card(tmp_path: Path) -> None:
    agent = demo(auth="bearer")
    async with hosting(agent) as url:
        without = await call("send", "-a", url, "-o", "json", "echo x", cwd=tmp_path)
        assert document(without, 4)["error"]["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert not agent.calls("SendMessage") and not agent.calls("SendStreamingMessage")
        wrong = await call("send", "-a", url, "--bearer", "wrong-one", "echo x", cwd=tmp_path)
        assert wrong.returncode == 4 and "A2ACLI_ERR_AUTH_FAILED" in wrong.stderr
        env = {"A2ACLI_BEARER": "demo-secret"}
        right = await call("send", "-a", url, "echo x", cwd=tmp_path, env=env)
        assert right.returncode == 0, right.stderr
        extended = await call("card", "get", url, "--extended", "-o", "json", cwd=tmp_path, env=env)
        assert "internal" in extended.stdout, extended.stderr
        stranger = await call("card", "get", url, "--extended", "-o", "json", cwd=tmp_path)
        assert document(stranger, 4)["error"]["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
    assert all("authorization" not in seen.headers for seen in agent.calls("card"))


@pytest.mark.parametrize("flow", ["device-code", "client-credentials"])
async def test_a_login_is_kept_for_its_agent_alone(tmp_path: Path, flow: str) -> None:
    agent = demo(auth="oauth2")
    env = {"A2ACLI_CLIENT_ID": "public"}
    if flow == "client-credentials":
        env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": "demo-secret"}
    async with hosting(agent) as url:
        made = await call("auth", "login", "-a", url, "-o", "json", cwd=tmp_path, env=env)
        login = document(made)["login"]
        assert (login["flow"], login["origin"]) == (flow, url)
        assert "demo-secret" not in made.stdout + made.stderr
        if flow == "device-code":
            assert "Visit: " in made.stderr and "Code: " in made.stderr
        sent = await call("send", "-a", url, "echo x", cwd=tmp_path)
        assert sent.returncode == 0, sent.stderr
    folder = tmp_path / "config" / "dragoman" / "tokens"
    files = [path for path in folder.iterdir() if path.is_file()]
    assert files and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    async with hosting(other := demo(auth="bearer")) as url:
        refused = await call("send", "-a", url, "echo x", cwd=tmp_path)
        assert refused.returncode == 4
        assert all("authorization" not in seen.headers for seen in other.calls())


async def test_a_refusal_of_who_showed_nothing_is_a_missing_credential(tmp_path: Path) -> None:
    agent = ScriptedAgent(
        {"rules": [{"steps": [{"error": "Unauthenticated"}]}], "card": {"streaming": False}}
    )
    async with hosting(agent) as url:
        without = await call("send", "-a", url, "-o", "json", "x", cwd=tmp_path)
        assert document(without, 4)["error"]["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"


async def test_a_login_takes_a_client(tmp_path: Path) -> None:
    ended = await call("auth", "login", "-a", "x", cwd=tmp_path)
    assert ended.returncode == 2 and "--client-id" in ended.stderr


async def test_a_strict_command_speaks_to_an_older_agent_only_when_asked_to(tmp_path: Path) -> None:
    agent = ScriptedAgent({"card": {"versions": ["0.3"]}})
    async with hosting(agent) as url:
        strict = ("send", "-a", url, "-o", "json", "x", "--strict-version")
        refused = await call(*strict, cwd=tmp_path)
        error = document(refused, 1)["error"]
        assert error["code"] == "VersionNotSupportedError"
        assert "--a2a-version 0.3" in error["hint"]
        ended = await call(*strict, "--a2a-version", "0.3", cwd=tmp_path)
        assert document(ended)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_findings_are_one_line_each_and_counted_in_words(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        card = document(await call("card", "get", "-a", url, "-o", "json", cwd=tmp_path))
    for number, (wrong, count) in enumerate(
        (
            (card | {"version": 7}, "1 finding"),
            (card | {"version": 7, "defaultInputModes": "text/plain"}, "2 findings"),
            (card | {"iconUrl": 7}, "1 finding"),
        )
    ):
        (tmp_path / f"{number}.json").write_text(json.dumps(wrong))
        words = ("card", "get", f"./{number}.json", "--validate")
        ended = await call(*words, cwd=tmp_path)
        said = ended.stderr.splitlines()
        found = [line for line in said if line.startswith("Finding: ")]
        assert len(found) == int(count[0]) and f"Message: {count}" in said, ended.stderr
        error = document(await call(*words, "-o", "json", cwd=tmp_path), 1)["error"]
        texts = "; ".join(line.removeprefix("Finding: ") for line in found)
        assert error["message"] == f"{count}: {texts}"


async def test_a_password_before_a_host_is_shown_nowhere(tmp_path: Path) -> None:
    ended = await call("card", "get", "user:pw@127.0.0.1:9", "--debug", cwd=tmp_path)
    assert ended.returncode == 3 and "pw" not in ended.stdout + ended.stderr
    ended = await call("send", "-a", "user:pw@127.0.0.1:9", "x", cwd=tmp_path)
    assert fields(ended.stderr)["Hint"] == "dragoman card get -a 127.0.0.1:9 --debug"


async def test_a_credential_of_another_kind_is_not_sent_and_its_owner_is_told(
    tmp_path: Path,
) -> None:
    async with hosting(demo(auth="api-key")) as url:
        ended = await call("send", "-a", url, "--bearer", "wrong-one", "x", cwd=tmp_path)
        assert ended.returncode == 4 and "Warning: --bearer is not sent" in ended.stderr
        said = fields(ended.stderr)
        assert said["Hint"] == f"A2ACLI_API_KEY='<key>' dragoman send -a {url} x"
        assert "--api-key" in said["Message"] and "redacted" not in said["Message"]
        wrong = await call("send", "-a", url, "--api-key", "wrong-one", "x", cwd=tmp_path)
        assert fields(wrong.stderr)["Hint"] == said["Hint"] and "Warning" not in wrong.stderr
        login = await call("auth", "login", "-a", url, "--client-id", "me", cwd=tmp_path)
        assert login.returncode == 4
        line = f"A2ACLI_API_KEY='<key>' dragoman send -a {url} \"<message>\""
        assert fields(login.stderr)["Hint"] == line


async def test_a_name_and_a_password_are_nothing_this_command_sends(tmp_path: Path) -> None:
    async with hosting(demo(auth="basic")) as url:
        ended = await call("send", "-a", url, "x", cwd=tmp_path)
    said = fields(ended.stderr)
    assert ended.returncode == 4 and said["Hint"] == f"dragoman card get -a {url}"
    assert "cannot send" in said["Message"] and "=" not in said["Message"]


async def test_a_secret_that_the_issuer_refuses_is_asked_for_again(tmp_path: Path) -> None:
    env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": "wrong-one"}
    async with hosting(demo(auth="oauth2")) as url:
        ended = await call("auth", "login", "-a", url, cwd=tmp_path, env=env)
    assert ended.returncode == 4 and "wrong-one" not in ended.stderr
    line = f"A2ACLI_CLIENT_SECRET='<secret>' dragoman auth login -a {url}"
    assert fields(ended.stderr)["Hint"] == line
