"""Credentials that are handed over encrypted to a key of the request: only the agent that asked
ever has them, through gateways, other agents and restarts."""

import asyncio
import base64
import hashlib
import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from harness.serving import Site, old_message, serving
from harness.waiting import within
from joserfc import jwe
from joserfc.jwk import ECKey

from dragoman import Agent, Answer, App, Client, TaskState, Turn
from dragoman.authoring.credentials import ReceivedCredential
from dragoman.cli.calling.answer_prompt import described, parts_of
from dragoman.cli.failures import Failure
from dragoman.client.requests import answer_parts, requests_of
from dragoman.errors import ConfigError, InputTimeout
from dragoman.model.identity import Scope, TaskId
from dragoman.model.requests import Handoff, Request
from dragoman.security import handoff
from dragoman.stores.interface import Survey
from tests.cli.command import call, inside
from tests.gateway.gateway_site import Restartable, gateway

HUSH = "hush-46046"
RESULT = "application/vnd.a2a.tool-result+json"


class Made:
    """The keys that were made, and what the code was given."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.given: list[ReceivedCredential] = []
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self.gate = asyncio.Event()

    def values(self) -> list[str]:
        return [one.value for one in self.given]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made, fresh = Made(), handoff.fresh

    def watched() -> dict[str, Any]:
        made.keys.append(fresh())
        return made.keys[-1]

    monkeypatch.setattr(handoff, "fresh", watched)
    return made


@pytest.fixture(autouse=True)
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything that any library says; none of it may have the secret."""
    caplog.set_level(logging.DEBUG)
    yield
    assert HUSH not in caplog.text


def vendor(made: Made) -> Agent:
    agent = Agent("Vendor", "Needs keys.")

    @agent.skill(default=True)
    async def one(text: str, turn: Turn) -> str:
        made.given.append(await turn.credential("api-key", "Your key for X?"))
        made.came.put_nowait(made.given[-1].value)
        await made.gate.wait()
        return f"{text} done"

    @agent.skill
    async def two(text: str, turn: Turn) -> str:
        for kind in ("pat", "password"):
            made.given.append(await turn.credential(kind, f"Your {kind}?"))
        return "both"

    @agent.skill
    async def sign_in(text: str, turn: Turn) -> str:
        made.given.append(
            await turn.credential(
                "oauth2",
                "Sign in.",
                url="https://x.example/authorize?a=1",
                params={"client_id": "c"},
            )
        )
        return "in"

    @agent.skill
    async def impatient(text: str, turn: Turn) -> str:
        try:
            await turn.credential("pat", "Quick!", timeout=0.05)
        except InputTimeout:
            return f"late, {(await turn.ask('And else?')).text}"
        return "never"

    return agent


def clear(folder: Path, *more: str) -> None:
    """Check that no file has the secret, nor anything else that is none of its business."""
    for file in folder.rglob("*"):
        body = file.read_bytes() if file.is_file() else b""
        assert not any(one.encode() in body for one in (HUSH, *more)), file.name


def hand_made(
    request: Handoff, key: dict[str, Any] | None = None, header: Any = None, **changes: Any
) -> str:
    """Return a JWE as a client of another make makes it, wrong as the changes say."""
    now = int(time.time())
    claims = {
        "authId": request.auth_id,
        "contextId": request.context_id,
        "iat": now,
        "exp": now + 120,
        "credential": HUSH,
    }
    claims = {name: item for name, item in (claims | changes).items() if item is not None}
    point = {name: (key or request.key)[name] for name in ("kty", "crv", "x", "y")}
    registry = jwe.JWERegistry(algorithms=["ECDH-ES", "A256GCM", "A128GCM", "DEF"])
    registry.max_ciphertext_length = 10_000_000
    header = {"alg": "ECDH-ES", "enc": "A256GCM"} | (header or {})
    return jwe.encrypt_compact(
        header, json.dumps(claims), ECKey.import_key(point), registry=registry
    )


async def asked(site: Site, skill: str = "one") -> tuple[Any, Request]:
    """Begin a task; return it and what it waits for."""
    task = await site.send("go", metadata={"skillId": skill})
    return task, waiting(task)


def waiting(task: Any) -> Request:
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED", task["status"]
    (data,) = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
    return msgspec.convert(data, Request)


async def say(site: Site, task: Any, id: str, token: Any) -> Any:
    part = {"data": {"toolUseId": id, "result": token}, "mediaType": RESULT}
    return await site.send(parts=[part], taskId=task["id"])


async def kept(app: App | None, task_id: str) -> bytes:
    """Return all that a store keeps of a task for its code alone."""
    assert app is not None
    store = app.store
    (head,) = await store.survey(Survey(limit=1, task_id=TaskId(task_id)))
    return b"\n".join((await store.withheld(head.number)).values())


async def test_our_client_hands_a_credential_over_and_nobody_else_has_it(
    made: Made, tmp_path: Path
) -> None:
    made.gate.set()
    store = str(tmp_path / "tasks.db")
    async with serving(vendor(made), store=store) as site, Client(site.url) as client:
        answer = await within(client.send("x"))
        assert answer.state is TaskState.AUTH_REQUIRED and answer.text == "Your key for X?"
        (request,) = requests_of(answer)
        assert request.kind == "credential" and request.sensitive and request.handoff
        assert request.handoff.auth_id == request.request_id
        assert request.handoff.key["crv"] == "P-256" and "d" not in request.handoff.key
        left = handoff._seconds(request.due) - time.time()
        assert 890 < left <= 900 and request.handoff.due == request.due
        done = await within(client.answer_request(answer.task_id, request, HUSH))
        assert done.text == "x done" and made.values() == [HUSH]
        assert repr(made.given) == "[Credential('api-key', '***')]"
        task = await client.get(answer.task_id)
        assert task.history[-1].text == "[withheld]"
        assert HUSH not in repr(task) and made.keys[0]["d"] not in repr(task)
        assert await kept(site.app, answer.task_id) == b""
        clear(tmp_path, made.keys[0]["d"])
    clear(tmp_path, made.keys[0]["d"])


async def test_a_function_that_answers_requests_need_not_know_of_it(made: Made) -> None:
    made.gate.set()
    async with serving(vendor(made)) as site, Client(site.url) as client:
        done = await within(client.send("x", on_request=lambda request: HUSH))
        assert done.text == "x done" and made.values() == [HUSH]


async def test_whoever_sends_by_command_is_told_where_to_type_it(
    made: Made, tmp_path: Path
) -> None:
    async with serving(vendor(made)) as site:
        sent = await call("send", "x", "-a", site.url, cwd=tmp_path)
        (task_id,) = [line[6:] for line in sent.stdout.splitlines() if line.startswith("Task: ")]
        assert f"Hint: dragoman inbox answer -a {site.url} {task_id}" in sent.stderr


async def test_a_client_of_another_make_sends_a_jwe_as_the_result(made: Made) -> None:
    made.gate.set()
    async with serving(vendor(made)) as site:
        for agent in (None, "vendor"):
            task, request = await asked(site)
            assert request.handoff is not None and request.handoff.agent_id == "vendor"
            assert (request.handoff.alg, request.handoff.enc) == ("ECDH-ES", "A256GCM")
            token = hand_made(request.handoff, agentId=agent)
            done = await say(site, task, request.request_id, token)
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert made.values() == [HUSH, HUSH]


async def test_a_client_of_r_answers_by_reference_with_a_tool_result(made: Made) -> None:
    made.gate.set()
    async with serving(vendor(made)) as site:
        said = old_message("go")
        task = await site.call("message/send", {"message": said}, path="/api/a2a")
        assert task["status"]["state"] == "auth-required"
        told = task["status"]["message"]
        (data,) = [part["data"] for part in told["parts"] if part["kind"] == "data"]
        shown = msgspec.convert(data["handoff"], Handoff)
        assert told["inputRequest"]["requestId"] == shown.auth_id
        result = {"kind": "tool-result", "toolUseId": shown.auth_id, "result": hand_made(shown)}
        answer = old_message("", referenceTaskIds=[task["id"]]) | {"parts": [result]}
        done = await site.call("message/send", {"message": answer}, path="/api/a2a")
        assert (done["id"], done["status"]["state"]) == (task["id"], "completed")
        assert made.values() == [HUSH]


async def test_the_longest_credential_there_may_be_is_taken(made: Made) -> None:
    made.gate.set()
    longest = "\N{GRINNING FACE}" * handoff.MAX_CREDENTIAL
    async with serving(vendor(made)) as site:
        for make in (handoff.sealed, lambda shown, text: hand_made(shown, credential=text)):
            task, request = await asked(site)
            assert request.handoff is not None
            token = make(request.handoff, longest)
            done = await say(site, task, request.request_id, token)
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert made.values() == [longest, longest]


def _changed() -> dict[str, tuple[dict[str, Any], str]]:
    """Return claims that are wrong now, and what is said of each."""
    now = int(time.time())
    return {
        "authId": ({"authId": "q-else"}, "another request"),
        "no authId": ({"authId": None}, "has to contain"),
        "contextId": ({"contextId": "else"}, "another conversation"),
        "no contextId": ({"contextId": None}, "has to contain"),
        "agentId": ({"agentId": "else"}, "another agent"),
        "expired": ({"iat": now - 900, "exp": now - 100}, "expired"),
        "never good": ({"exp": now - 10}, "expired"),
        "no exp": ({"exp": None}, "has to contain"),
        "exp is text": ({"exp": "tomorrow"}, "has to contain"),
        "future": ({"iat": now + 1000, "exp": now + 2000}, "to come"),
        "no iat": ({"iat": None}, "has to contain"),
        "too large": ({"credential": "x" * (handoff.MAX_CREDENTIAL + 1)}, "65,536"),
        "much too large": ({"credential": "x" * 900_000}, "65,536"),
        "empty": ({"credential": ""}, "65,536"),
        "no text": ({"credential": {"a": HUSH}}, "has to contain"),
        "a weaker cipher": ({"header": {"enc": "A128GCM"}}, "cannot be opened"),
        "compressed": ({"header": {"zip": "DEF"}}, "cannot be opened"),
        "another key": ({"key": ECKey.generate_key("P-256").as_dict()}, "cannot be opened"),
    }


def _header(token: str, **changes: Any) -> str:
    head, _, rest = token.partition(".")
    fields = json.loads(base64.urlsafe_b64decode(head + "=="))
    fields = {name: item for name, item in (fields | changes).items() if item is not None}
    head = base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()
    return f"{head}.{rest}"


_X = base64.urlsafe_b64encode(b"\x01" * 32).rstrip(b"=").decode()
_BROKEN: dict[str, tuple[Any, str]] = {
    "clear": (lambda token: HUSH, "seen on its way"),
    "nothing": (lambda token: "", "seen on its way"),
    "data": (lambda token: {"key": HUSH}, "seen on its way"),
    "dots": (lambda token: "eyJ....", "cannot be opened"),
    "cut": (lambda token: token[:-9], "cannot be opened"),
    "changed": (lambda token: token[:-30] + "AAAA" + token[-26:], "cannot be opened"),
    "no base64": (lambda token: token.replace(".", ".*"), "seen on its way"),
    "header": (lambda token: "eyJxxxxx" + token[8:], "cannot be opened"),
    "other alg": (lambda token: _header(token, alg="dir"), "cannot be opened"),
    "alg of no text": (lambda token: _header(token, alg=[]), "cannot be opened"),
    "other enc": (lambda token: _header(token, enc="A128GCM"), "cannot be opened"),
    "zip": (lambda token: _header(token, zip="DEF"), "cannot be opened"),
    "crit": (lambda token: _header(token, crit=["b64"], b64=False), "cannot be opened"),
    "no epk": (lambda token: _header(token, epk=None), "cannot be opened"),
    "epk of no object": (lambda token: _header(token, epk="x"), "cannot be opened"),
    "epk of no point": (
        lambda token: _header(token, epk={"kty": "EC", "crv": "P-256", "x": _X, "y": _X}),
        "cannot be opened",
    ),
    "epk of another curve": (
        lambda token: _header(token, epk=ECKey.generate_key("P-384").as_dict(private=False)),
        "cannot be opened",
    ),
    "epk of another kind": (
        lambda token: _header(token, epk={"kty": "oct", "k": _X}),
        "cannot be opened",
    ),
}


async def test_what_is_no_credential_for_it_leaves_the_request_open_and_says_what_to_do(
    made: Made,
) -> None:
    made.gate.set()
    async with serving(vendor(made)) as site:
        task, first = await asked(site)
        assert first.handoff is not None
        tokens = {
            name: (hand_made(first.handoff, **changes), said)
            for name, (changes, said) in _changed().items()
        }
        whole = hand_made(first.handoff)
        tokens |= {name: (change(whole), said) for name, (change, said) in _BROKEN.items()}
        for name, (token, said) in tokens.items():
            task = await say(site, task, first.request_id, token)
            still = waiting(task)
            assert said in still.problem, (name, still.problem)
            assert still.handoff == first.handoff, name
            assert task["status"]["message"]["parts"][0]["text"] == still.problem
        assert not made.given
        done = await say(site, task, first.request_id, whole)
        assert done["status"]["state"] == "TASK_STATE_COMPLETED" and made.values() == [HUSH]


async def test_a_jwe_is_used_once(made: Made) -> None:
    async with serving(vendor(made)) as site:
        task, first = await asked(site, "two")
        assert first.handoff is not None
        token = hand_made(first.handoff)
        task = await say(site, task, first.request_id, token)
        second = waiting(task)
        assert second.handoff is not None and second.handoff.key != first.handoff.key
        # To the request it was for, and to the next.
        again = await say(site, task, first.request_id, token)
        assert waiting(again).request_id == second.request_id
        again = await say(site, task, second.request_id, token)
        assert "cannot be opened" in waiting(again).problem
        assert made.values() == [HUSH] and len(made.keys) == 2
        done = await say(site, task, second.request_id, hand_made(second.handoff))
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert [one.auth_type for one in made.given] == ["pat", "password"]


async def test_a_request_waits_through_a_restart_and_the_code_that_runs_again_has_the_credential(
    made: Made, tmp_path: Path
) -> None:
    async with (
        Restartable(vendor(made), store=str(tmp_path / "tasks.db")) as site,
        Client(site.url) as client,
    ):
        answer = await within(client.send("x"))
        (request,) = requests_of(answer)
        assert request.handoff is not None
        clear(tmp_path, made.keys[0]["d"])
        await site.stop()
        await site.start()
        # One that was refused does not change the key either.
        refused = await within(client.send("no", task_id=answer.task_id))
        (again,) = requests_of(refused)
        assert again.handoff == request.handoff and len(made.keys) == 1
        await site.stop()
        await site.start()
        parts = request.answered(hand_made(request.handoff))
        await client.send(parts, task_id=answer.task_id, wait=False)
        assert await within(made.came.get()) == HUSH
        clear(tmp_path, made.keys[0]["d"])
        await site.stop()
        await site.start()
        assert await within(made.came.get()) == HUSH
        whole = await kept(site.app, answer.task_id)
        assert HUSH.encode() in whole and made.keys[0]["d"].encode() not in whole
        made.gate.set()
        await within(_state(client, answer.task_id, TaskState.COMPLETED))
        assert made.values() == [HUSH, HUSH] and len(made.keys) == 1
        assert await kept(site.app, answer.task_id) == b""
    clear(tmp_path, made.keys[0]["d"])


async def _open(client: Client, task_id: str, count: int) -> None:
    while len(requests_of(await client.get(task_id))) < count:
        pass


async def _state(client: Client, task_id: str, state: TaskState) -> None:
    while (await client.get(task_id)).status.state is not state:
        pass


async def test_the_key_of_a_request_that_ended_is_forgotten(made: Made) -> None:
    async with serving(vendor(made)) as site, Client(site.url) as client:
        answer = await within(client.send("x", metadata={"skillId": "impatient"}, wait=False))
        await within(_state(client, answer.task_id, TaskState.INPUT_REQUIRED))
        assert len(made.keys) == 1
        assert made.keys[0]["d"].encode() not in await kept(site.app, answer.task_id)
        done = await within(client.send("nothing", task_id=answer.task_id))
        assert done.text == "late, nothing"


async def test_of_oauth2_the_code_comes_with_the_verifier_of_its_challenge(made: Made) -> None:
    async with serving(vendor(made)) as site, Client(site.url) as client:
        answer = await within(client.send("x", metadata={"skillId": "sign_in"}))
        (request,) = requests_of(answer)
        assert request.handoff is not None
        url = request.handoff.authorization_url
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        challenge = query.pop("code_challenge")
        assert url.startswith("https://x.example/authorize?") and query == {
            "a": "1",
            "client_id": "c",
            "response_type": "code",
            "state": request.request_id,
            "code_challenge_method": "S256",
        }
        assert f"sign in at {url}" in described(request)
        await within(client.answer_request(answer.task_id, request, HUSH))
        (given,) = made.given
        digest = hashlib.sha256(given.verifier.encode()).digest()
        assert challenge == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        assert given.value == HUSH and len(given.verifier) >= 43


async def test_who_declines_is_heard(made: Made) -> None:
    async with serving(vendor(made)) as site, Client(site.url) as client:
        answer = await within(client.send("x"))
        (request,) = requests_of(answer)
        done = await within(client.answer_request(answer.task_id, request, error=HUSH))
        assert done.state is TaskState.FAILED and "declined" in done.text and HUSH not in done.text


async def test_a_gateway_carries_what_it_cannot_read(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made.gate.set()
    passed: list[str] = []
    async with (
        serving(vendor(made)) as upstream,
        gateway(tmp_path, log_level="debug") as site,
        site.client(await site.register(upstream.url)) as client,
    ):
        answer = await within(client.send("x"))
        (request,) = requests_of(answer)
        # The conversation has another name at the gateway.
        assert request.handoff is not None and request.handoff.context_id != answer.context_id
        parts = answer_parts(request, HUSH)
        passed += [part.data["result"] for part in parts]  # type: ignore[index,call-overload]  # an object
        done = await within(client.send(parts, task_id=answer.task_id))
        assert done.text == "x done" and made.values() == [HUSH]
        # Not even in the memory of what it keeps for itself.
        (scope,) = [Scope("gateway", "", "")]
        head = await site.app.store.head(scope, TaskId(answer.task_id))
        assert head is not None
        events = await site.app.store.read(head.number, after=0, limit=100)
        assert events and not any(HUSH.encode() in event.body for event in events)
        clear(tmp_path)
    assert passed and HUSH not in passed[0] and HUSH not in caplog.text
    clear(tmp_path, made.keys[0]["d"])


@pytest.mark.parametrize("at_once", [1, 2])
async def test_agents_in_between_hand_on_what_they_cannot_read(
    made: Made, tmp_path: Path, at_once: int
) -> None:
    made.gate.set()

    def chief(url: str) -> Agent:
        agent = Agent("Chief", "Has others work.")

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            calls = [turn.call(url, f"{text}{number}") for number in range(at_once)]
            return " ".join([one.text for one in await asyncio.gather(*calls)])

        return agent

    async with (
        serving(vendor(made)) as last,
        serving(chief(last.url), store=str(tmp_path / "a.db")) as site,
        Client(site.url) as client,
    ):
        answer = await within(client.send("x"))
        await within(_open(client, answer.task_id, at_once))
        answer = Answer(await client.get(answer.task_id))
        while answer.state is TaskState.AUTH_REQUIRED:
            request = requests_of(answer)[0]
            assert request.kind == "credential" and request.handoff is not None
            answer = await within(client.answer_request(answer.task_id, request, HUSH))
        assert answer.text == " ".join(f"x{number} done" for number in range(at_once))
        clear(tmp_path)
    assert made.values() == [HUSH] * at_once
    clear(tmp_path)


async def test_who_declines_is_heard_by_the_agent_that_asked_through_another(made: Made) -> None:
    heard: list[str] = []
    asker, chief = Agent("Asker", "Asks."), Agent("Chief", "Has others work.")

    @asker.skill
    async def ask(text: str, turn: Turn) -> str:
        try:
            await turn.credential("pat", "Your token?")
        except Exception as error:
            heard.append(f"{type(error).__name__}: {error}")
        return "without"

    async with serving(asker) as last:

        @chief.skill
        async def work(text: str, turn: Turn) -> str:
            return (await turn.call(last.url, text)).text

        async with serving(chief) as site, Client(site.url) as client:
            answer = await within(client.send("x"))
            (request,) = requests_of(answer)
            done = await within(client.answer_request(answer.task_id, request, error="no"))
    assert done.text == "without"
    assert heard == ["RequestFailed: The question has no answer: it was declined"]


def test_what_a_person_types_into_the_inbox_is_sent_encrypted(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked by one server, answered while none runs, completed by the next."""
    made.gate.set()
    store, sent = str(tmp_path / "tasks.db"), list[Any]()
    monkeypatch.setattr(
        "dragoman.cli.calling.inbox.parts_of",
        lambda *said: sent.append(parts_of(*said)) or sent[-1],
    )

    async def begin() -> str:
        async with serving(vendor(made), store=store) as site, Client(site.url) as client:
            return (await within(client.send("x"))).task_id

    async def end(task_id: str) -> None:
        async with serving(vendor(made), store=store) as site, Client(site.url) as client:
            await within(_state(client, task_id, TaskState.COMPLETED))

    task_id = asyncio.run(begin())
    listed = inside("inbox", "list", "--store", "tasks.db", cwd=tmp_path)
    assert "Kind: credential (secret)" in listed.stdout and "only the agent" in listed.stdout
    words = ("inbox", "answer", task_id, "--store", "tasks.db", "--debug", "--verbose")
    monkeypatch.setattr("dragoman.cli.calling.answer_prompt.is_terminal", lambda stream: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("io.StringIO", lambda: io.TextIOWrapper(io.BytesIO(f"{HUSH}\n".encode())))
        said = inside(*words, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert HUSH not in said.stdout + said.stderr and HUSH not in repr(sent)
    asyncio.run(end(task_id))
    assert made.values() == [HUSH]
    clear(tmp_path, made.keys[0]["d"])


def _shown(**changes: Any) -> Handoff:
    key = handoff.public(handoff.fresh(), "q-1")
    whole = Handoff("q-1", "c", "pat", key, "2999-01-01T00:00:00Z")
    return msgspec.structs.replace(whole, **changes)


def test_nothing_is_opened_once_the_time_of_a_request_is_over() -> None:
    key = handoff.fresh()
    shown = _shown(key=handoff.public(key, "q-1"), due="2030-01-01T00:00:00Z")
    due = handoff._seconds(shown.due)
    token = hand_made(shown, iat=int(due) - 10, exp=int(due) + 100)
    assert handoff.opened(token, key, shown, due) == HUSH
    with pytest.raises(handoff.Unopened, match="over"):
        handoff.opened(token, key, shown, due + 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no key"),
        ({"due": "2001-01-01T00:00:00Z"}, "asked again"),
        ({"due": "soon"}, "until when"),
        ({"alg": "dir"}, "no key"),
        ({"key": {}}, "no key"),
        ({"key": {"kty": "EC", "crv": "P-256", "x": _X, "y": _X}}, "is none"),
    ],
)
def test_a_client_encrypts_to_nothing_but_the_key_of_an_open_request(
    changes: dict[str, Any], said: str
) -> None:
    shown = _shown(**changes) if changes else None
    request = Request("q-1", "credential", sensitive=True, handoff=shown)
    with pytest.raises(ValueError, match=said):
        answer_parts(request, HUSH)
    with pytest.raises(Failure, match=said):
        parts_of(request, HUSH)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown()

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(handoff, "import_module", missing)
    for use in (handoff.fresh, lambda: handoff.sealed(shown, HUSH)):
        with pytest.raises(ConfigError, match=r"dragoman\[jwt\]"):
            use()


async def test_code_that_asks_for_what_there_is_not_is_told(made: Made) -> None:
    told: list[str] = []
    agent = Agent("Wrong", "Asks wrongly.")
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("cookie", {}),
        ("pat", {"timeout": 0}),
        ("pat", {"url": "https://x.example"}),
        ("oauth2", {}),
        ("oauth2", {"url": "http://x.example/a"}),
        ("oauth2", {"url": "https://x.example/a", "params": {"code_challenge": "x"}}),
    ]

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        for kind, more in wrong:
            try:
                await turn.credential(kind, "?", **more)
            except ValueError as error:
                told.append(str(error))
        return "done"

    async with serving(agent) as site:
        await site.send("x")
    assert len(told) == len(wrong) and not made.keys
