"""The demo agent: each word and each scenario does what the help says."""

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from harness.certificates import LOOPBACK, Authority
from harness.processes import running
from harness.waiting import within
from joserfc.jwk import ECKey

from dragoman.cli.main import main
from dragoman.client.client import Client
from dragoman.client.credentials.credentials import Basic, ClientCertificate
from dragoman.client.credentials.oauth import ClientCredentials
from dragoman.errors import (
    A2AError,
    CardInvalid,
    CardNotFound,
    ConfigError,
    CredentialsMissing,
    ExtensionRequired,
    PushNotSupported,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.push import PushConfig
from dragoman.model.task import TaskState
from dragoman.security.card_keys import KeySet
from dragoman.testing.scripted.demo import REQUIRED_EXTENSION, SCENARIOS, WORDS, demo
from dragoman.testing.scripted.script import VERBS, When
from dragoman.testing.scripted.serve import ListenOptions, serving

S = TaskState


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("echo hello", S.COMPLETED, "hello"),
        ("anything else", S.COMPLETED, "anything else"),
        ("stream 3", S.COMPLETED, "chunk 1 chunk 2 chunk 3 "),
        ("message you", None, "You said: you"),
        ("ask", S.INPUT_REQUIRED, "Which city?"),
        ("auth", S.AUTH_REQUIRED, "Please authorize, then say so"),
        ("auth 0", S.AUTH_REQUIRED, "https://example.com/authorize"),
        ("fail", S.FAILED, "It failed, as it was told to."),
        ("reject", S.REJECTED, "This is not what I do."),
        ("cancel", S.CANCELED, "Canceled by the agent."),
        ("unspecified 0", S.COMPLETED, ""),
        ("future 0", S.COMPLETED, ""),
        ("twice", S.COMPLETED, "once"),
        ("hostile", S.COMPLETED, "\x1b[31mred"),
    ],
)
async def test_a_word_has_its_outcome(
    binding: str, text: str, state: TaskState | None, said: str
) -> None:
    async with Client(app=demo(), bindings=[binding]) as agent:
        answer = await within(agent.send(text))
        assert answer.state in (state, S.COMPLETED if text == "auth 0" else state)
        message = answer.task.status.message if answer.task else None
        assert said in (answer.text or (message.text if message else "")) or text == "auth 0"


async def test_the_words_that_break_connections_do_and_the_client_gets_through() -> None:
    async with serving(demo()) as url, Client(url) as agent:

        async def outcome(text: str) -> tuple[TaskState | None, str]:
            stream = agent.stream(text)
            assert [event async for event in stream]
            return stream.answer.state, stream.answer.text

        found = await within(asyncio.gather(*map(outcome, ("cut 2 2", "byte 300", "close"))))
        assert found == [
            (S.COMPLETED, said) for said in ("whole", "whole", "Ended after the stream")
        ]
        with pytest.raises(Unreachable):
            await within(agent.send("drop"))
        for text in ("error TaskNotFound", "error TASK_NOT_FOUND", "error -32001"):
            with pytest.raises(TaskNotFound):
                await within(agent.send(text))
        with pytest.raises(A2AError):
            await within(agent.send("html"))


async def test_a_cut_stream_goes_on_from_its_position_where_there_are_cursors() -> None:
    agent = demo(scenarios=["cursors"])
    async with serving(agent) as url, Client(url) as client:
        events = [event async for event in client.stream("cut 3")]
        assert len(events) == 8
    assert agent.calls("SubscribeToTask")[0].headers["last-event-id"] == "3"
    assert not agent.calls("GetTask")


async def test_parts_has_the_four_kinds_and_files_has_names_not_to_trust() -> None:
    async with Client(app=demo()) as agent:
        (artifact,) = (await within(agent.send("parts"))).artifacts
        assert [sum(map(bool, _kinds(part))) for part in artifact.parts] == [1, 1, 1, 1]
        (artifact,) = (await within(agent.send("files"))).artifacts
        assert artifact.parts[0].filename == "../../escape.txt"


def _kinds(part: Any) -> list[bool]:
    from msgspec import UNSET

    return [item is not UNSET for item in (part.text, part.raw, part.url, part.data)]


async def test_states_that_stay_can_be_canceled() -> None:
    async with Client(app=demo()) as agent:
        for text, state in (("submitted", S.SUBMITTED), ("hang", S.WORKING)):
            task = await within(agent.send(text, wait=False))
            assert (await within(agent.get(task.task_id))).status.state is state
            assert (await within(agent.cancel(task.task_id))).status.state is S.CANCELED


def test_every_word_and_scenario_of_the_tables_exists() -> None:
    words = [pair.split(" ")[0] for pairs, _ in WORDS for pair in pairs.split(", ")]
    patterns = " ".join(rule.when.regex for rule in demo().script.rules)
    missing = [word for word in words if word not in patterns]
    assert missing == []
    for name in SCENARIOS:
        if name != "forged":
            demo(scenarios=[name])
    with pytest.raises(ConfigError, match="no scenario"):
        demo(scenarios=["nothing"])
    with pytest.raises(ConfigError, match="--sign-key"):
        demo(scenarios=["forged"])


async def test_scenarios_change_what_the_card_offers() -> None:
    async with Client(app=demo(scenarios=["tasks"])) as agent:
        assert len({task.id async for task in agent.list(page_size=50)}) == 120
    async with Client(app=demo(scenarios=["message-only"])) as agent:
        assert (await within(agent.send("hi"))).task is None
    async with Client(app=demo(scenarios=["no-streaming", "no-push"])) as agent:
        assert agent.card.capabilities.streaming is False
        with pytest.raises(PushNotSupported):
            await within(agent.create_push("t", PushConfig(url="https://example.com")))
        with pytest.raises(UnsupportedOperation):
            await within(agent.extended_card())
    async with Client(app=demo(scenarios=["rest-first"])) as agent:
        assert agent.interface.protocol_binding == "HTTP+JSON"
    async with Client(app=demo(scenarios=["extended"])) as agent:
        assert "internal" in [skill.id for skill in (await within(agent.extended_card())).skills]
    for scenario, version in (("0.3-only", "0.3"), ("0.2-only", "0.2"), ("1.0-only", "1.0")):
        async with Client(app=demo(scenarios=[scenario])) as agent:
            assert agent.version == version
            assert (await within(agent.send("hi"))).text == "hi"
    required = demo(scenarios=["required-extension"])
    with pytest.raises(ExtensionRequired):
        await within(Client(app=required).connect())
    async with Client(app=required, extensions=[REQUIRED_EXTENSION]) as agent:
        assert (await within(agent.send("hi"))).text == "hi"
    with pytest.raises(CardInvalid):
        await within(Client(app=demo(scenarios=["broken-card"])).connect())
    with pytest.raises(CardNotFound):
        await within(Client(app=demo(scenarios=["no-card"])).connect())


async def test_the_tenant_of_the_card_is_demanded_in_every_call() -> None:
    agent = demo(tenant="acme")
    for binding in ("JSONRPC", "HTTP+JSON"):
        async with Client(app=agent, bindings=[binding]) as client:
            answer = await within(client.send("hi"))
            await within(client.get(answer.task_id))
    assert {seen.operation.tenant for seen in agent.requests if seen.operation} == {"acme"}


async def test_the_demo_agent_is_in_a_catalog() -> None:
    async with serving(demo()) as url, Client(f"catalog+{url}/catalog.json#demo") as agent:
        assert (await within(agent.send("hi"))).text == "hi"


@pytest.mark.parametrize("auth", ["oauth2", "oidc", "basic", "bearer"])
async def test_each_scheme_lets_in_who_has_what_it_asks_for(auth: Any) -> None:
    credentials: dict[str, Callable[[], Any]] = {
        "oauth2": lambda: ClientCredentials("demo", "demo-secret"),
        "oidc": lambda: ClientCredentials("demo", "demo-secret"),
        "basic": lambda: Basic("demo", "demo-secret"),
    }
    given: dict[str, Any] = {"bearer": "demo-secret"}
    if auth in credentials:
        given = {"credentials": [credentials[auth]()]}
    async with serving(demo(auth=auth)) as url:
        async with Client(url, **given) as agent:
            assert (await within(agent.send("hi"))).text == "hi"
            card = await within(agent.extended_card())
            assert "internal" in [skill.id for skill in card.skills]
        with pytest.raises((CredentialsMissing, Unauthenticated)):
            async with Client(url) as agent:
                await within(agent.send("hi"))


def _key(folder: Path, name: str) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    path = folder / f"{name}.key"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem)
    return path, key


async def test_the_card_is_signed_and_a_forged_one_is_found_out(tmp_path: Path) -> None:
    path, key = _key(tmp_path, "sign")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys = KeySet.from_pem(public)
    async with Client(app=demo(sign_key=str(path)), keys=keys) as agent:
        assert agent.signature.kind == "verified"
    async with Client(app=demo(sign_key=str(path), scenarios=["forged"]), keys=keys) as agent:
        assert agent.signature.kind == "unverifiable"
    async with Client(app=demo(), keys=keys) as agent:
        assert agent.signature.kind == "absent"


async def test_a_card_is_signed_with_a_key_in_any_of_its_forms(tmp_path: Path) -> None:
    path, key = _key(tmp_path, "sign")
    jwk = ECKey.import_key(path.read_bytes())
    private, named = jwk.as_dict(private=True), jwk.as_dict(private=True) | {"kid": "k-7"}
    file = tmp_path / "key.json"
    file.write_text(json.dumps(private))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for form in (str(file), json.dumps(private), json.dumps(named), path.read_text()):
        async with Client(app=demo(sign_key=form), keys=KeySet.from_pem(public)) as agent:
            assert agent.signature.kind == "verified"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("no key", "is neither PEM nor a JWK"),
        ("{}", "must be a private key"),
        ('{"kty":"oct","k":"c2VjcmV0LXNlY3JldA"}', ""),
    ],
)
def test_a_key_that_is_of_no_use_is_refused_at_the_start(
    tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"^sign_key: {re.escape(str(path))}: .*{said}"):
        demo(sign_key=str(path))


def test_a_key_that_is_no_key_is_not_repeated() -> None:
    for key in ('{"d": "s3cret"', '{"kty": "EC", "d": "s3cret"}', "-----BEGIN s3cret"):
        with pytest.raises(ConfigError, match=r"^sign_key: ") as refused:
            demo(sign_key=key)
        assert "s3cret" not in str(refused.value)


async def test_callers_without_a_certificate_do_not_come_in(tmp_path: Path) -> None:
    certificate, key_path = Authority("demo", LOOPBACK).save_files(tmp_path, "self")
    files = {"tls_cert": str(certificate), "tls_key": str(key_path)}
    place = ListenOptions(**files, client_ca=str(certificate))
    mine = ClientCertificate(certificate, key_path)
    async with serving(demo(auth="mtls"), place) as url:
        assert url.startswith("https://")
        tls = mine.context(certificate)
        async with Client(url, credentials=[mine], tls=tls) as agent:
            assert (await within(agent.send("hi"))).text == "hi"
        stranger = ssl.create_default_context(cafile=str(certificate))
        with pytest.raises(Unreachable):
            async with Client(url, tls=stranger):
                pass


def test_the_command_serves_says_so_and_ends_with_0(tmp_path: Path) -> None:
    arguments = ("demo-server", "-o", "json", "--stream", "--auth", "bearer", "--tenant", "acme")
    with running(*arguments, cwd=tmp_path) as child:
        ready = json.loads(child.line("{"))["ready"]
        assert ready["secret"] == "demo-secret"

        async def talk() -> str:
            async with Client(ready["url"], bearer="demo-secret") as agent:
                return (await within(agent.send("echo hi"))).text

        assert asyncio.run(talk()) == "hi"
        assert child.stop() == 0
        assert child.log == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--auth", "mtls"), "--client-ca"),
        (("--scenario", "nothing"), "no scenario"),
        (("--listen", "0.0.0.0:0"), "--public"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo-server", *arguments])
    assert ended.value.code == 2
    assert said in capfd.readouterr().err


def test_the_document_has_every_word_scenario_and_step() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    cells = {cell for line in text.splitlines() for cell in line.split("`")[1::2]}
    words = {word.replace("|", " or ") for words, _ in WORDS for word in words.split(", ")}
    assert words | set(SCENARIOS) <= cells
    steps = {"cutAtByte" if verb == "cut_at_byte" else verb for verb in VERBS}
    assert steps | set(When.__struct_fields__) <= cells
