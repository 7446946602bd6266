"""A whole run at debug level with a secret in every place there is for one; afterwards none of them
is in any file, log, trace, metric or answer."""

import base64
import json
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.commands import invoke
from harness.processes import running
from harness.serving import message, old_message
from harness.waiting import WAIT
from joserfc import jwt
from joserfc.jwk import OctKey

from dragoman.security.vault import new_key
from dragoman.testing.processes import ServerProcess
from tests.security.canaries import Nest, Sink, forms, sink

AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Discreet", "Asks for secrets and says nothing.")

@agent.skill
async def ask(text: str, turn: Turn) -> str:
    answer = await turn.ask("Password?", sensitive=True)
    assert answer.parts
    await turn.ask("Sure?")
    return "thank you"

@agent.skill
async def fail(text: str, turn: Turn) -> str:
    await turn.ask("Password?", sensitive=True)
    raise RuntimeError("it failed")
"""
# Everything that any library says, whatever the settings make of it.
LOUD = """
import logging
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
logging.debug("loud")
from dragoman.cli.main import main
main()
"""
V1 = {"A2A-Version": "1.0"}


class Run:
    """One server at a time, and everything that was said around it."""

    def __init__(self, folder: Path, nest: Nest, http: httpx.Client) -> None:
        self.folder = folder
        self.nest = nest
        self._http = http
        self.url = ""
        self.headers: dict[str, str] = {}
        # A task whose answer is with the code alone.
        self.task = ""
        # What may hold no secret, by name.
        self.places: dict[str, bytes] = {}

    def keep(self, place: str, *pieces: bytes) -> None:
        """Have bytes looked through at the end."""
        self.places[place] = b"\n".join([self.places.get(place, b""), *pieces])

    def post(self, path: str, body: Any, place: str = "answers", **headers: str) -> httpx.Response:
        """Post what may be no JSON at all; keep the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"content-type": "application/json"} | V1
        answer = self._http.post(
            self.url + path, content=content, headers=kind | self.headers | headers
        )
        self.keep(place, answer.content, repr(answer.headers).encode())
        return answer

    def call(self, method: str, params: Any, place: str = "answers", **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self.post("/", body, place, **headers).json()
        return answer.get("result")

    def send(self, said: dict[str, Any], place: str = "answers", **more: Any) -> Any:
        sent = self.call("SendMessage", {"message": said, **more}, place)
        assert sent is not None, self.places[place][-500:]
        return sent["task"]

    def stream(self, said: dict[str, Any]) -> None:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": {"message": said},
        }
        kind = V1 | self.headers
        with self._http.stream("POST", self.url + "/", json=body, headers=kind) as answer:
            # Until the task rests again.
            for line in answer.iter_lines():
                self.keep("streams", line.encode())
                if "INPUT_REQUIRED" in line:
                    break

    def get(self, path: str, place: str = "answers", **headers: str) -> httpx.Response:
        answer = self._http.get(self.url + path, headers=V1 | self.headers | headers)
        self.keep(place, answer.content, repr(answer.headers).encode())
        return answer

    def command(self, *words: str | Path, place: str = "commands") -> str:
        ended = invoke(*words)
        self.keep(place, ended.output.encode(), repr(ended.exception).encode())
        return ended.stdout

    def files(self) -> None:
        """Take in everything the run left on disk."""
        for file in sorted(self.folder.rglob("*")):
            if file.is_file():
                self.keep(f"file {file.name}", file.read_bytes())


@contextmanager
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[Run, Sink, Sink]]:
    """Set every secret there is a setting for; the values are nowhere but in the environment and in
    files outside the folder of the run."""
    folder, apart = tmp_path / "run", tmp_path / "apart"
    folder.mkdir()
    apart.mkdir()
    nest = Nest()
    (folder / "discreet.py").write_text(AGENT)
    store_keys = [new_key(), new_key()]
    for name, key in zip(("store key", "old store key"), store_keys, strict=True):
        nest.add(name, key)
    push_secret = new_key()
    nest.add("push secret", push_secret)
    (apart / "push").write_text("whsec_" + base64.b64encode(push_secret).decode())
    (apart / "tokens.toml").write_text(f'[ada]\ntoken = "{nest.new("token of a file")}"\n')
    for file in apart.iterdir():
        file.chmod(0o600)
    with ExitStack() as stack:
        collector, receiver = stack.enter_context(sink()), stack.enter_context(sink())
        settings = {
            "STORE": str(folder / "tasks.db"),
            "STORE_KEY": ",".join(base64.b64encode(key).decode() for key in store_keys),
            "PUSH_SECRET_FILE": str(apart / "push"),
            "AUTH": "bearer,api-key,jwt",
            "AUTH_TOKEN": nest.new("token of the environment"),
            "AUTH_TOKENS": str(apart / "tokens.toml"),
            "KEYS": str(folder / "keys.json"),
            "JWT_SECRET": nest.new("secret of the issuer"),
            "JWT_ISSUER": "https://issuer.example",
            "JWT_AUDIENCE": "us",
            "ALLOW_PRIVATE": "on",
            "LOG_LEVEL": "debug",
            "ACCESS_LOG": "on",
            "AUDIT": str(folder / "audit.jsonl"),
            "OTLP_ENDPOINT": collector.url,
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"DRAGOMAN_{name}", value)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.chdir(folder)
        http = stack.enter_context(httpx.Client(trust_env=False, timeout=WAIT))
        yield Run(folder, nest, http), collector, receiver


@contextmanager
def served(run: Run) -> Generator[ServerProcess]:
    given = {name: value for name, value in os.environ.items() if name.startswith("DRAGOMAN_")}
    words = ("serve", "discreet.py", "--listen", "127.0.0.1:0")
    with running(*words, cwd=run.folder, env=given, command=("-c", LOUD)) as server:
        run.url = server.ready()
        yield server
    # It has ended: this is all it said.
    while (line := server._lines.get(timeout=WAIT)) is not None:
        run.keep("stdout", line.encode())


def credentials(run: Run) -> dict[str, dict[str, str]]:
    """Return headers of callers that are let in, each by another secret."""
    nest = run.nest
    key = json.loads(invoke("keys", "create", "--owner", "bob", "-o", "json").stdout)["key"]
    nest.add("API key", key.rpartition("_")[0][-30:])
    claims = {
        "iss": "https://issuer.example",
        "aud": "us",
        "sub": "carol",
        "exp": int(time.time()) + 600,
        "jti": nest.new("claim of a JWT"),
    }
    secret = os.environ["DRAGOMAN_JWT_SECRET"]
    token = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(secret))
    nest.add("signature of a JWT", token.rpartition(".")[2])
    tokens = (run.folder.parent / "apart" / "tokens.toml").read_text().split('"')[1]
    return {
        "environment": {"Authorization": f"Bearer {os.environ['DRAGOMAN_AUTH_TOKEN']}"},
        "file": {"Authorization": f"Bearer {tokens}"},
        "key": {"X-API-Key": key},
        "jwt": {"Authorization": f"Bearer {token}"},
    }


def refused(run: Run) -> None:
    """Present secrets that let nobody in, in every place for one."""
    nest = run.nest
    wrong = {
        "Authorization": "Bearer {}",
        "X-API-Key": "dgm_x_{}",
        "Cookie": "session={}",
        "Proxy-Authorization": "Basic {}",
        "X-Forwarded-Client-Cert": "Hash={}",
        "baggage": "user={}",
        "traceparent": "00-{}-x-01",
        "A2A-Extensions": "https://x.example/{}",
        "Referer": "https://x.example/?t={}",
    }
    run.headers = {}
    for name, wrap in wrong.items():
        answer = run.get("/tasks", **{name: nest.new(f"{name} that is refused", wrap)})
        assert answer.status_code in (400, 401), name
    basic = base64.b64encode(f"u:{nest.new('password of Basic')}".encode()).decode()
    assert run.get("/tasks", Authorization=f"Basic {basic}").status_code == 401
    assert run.get(f"/tasks?access_token={nest.new('query')}").status_code == 401
    run.get(f"/nowhere/{nest.new('path')}")


def mistaken(run: Run) -> None:
    """Say secrets in requests that are wrong in every way."""
    nest = run.nest
    broken = b'{"jsonrpc": "2.0", "id": 1, "password": "%b", ' % nest.new("broken JSON").encode()
    assert run.post("/", broken).status_code == 200
    hidden = {"x": nest.new("unknown member")}
    run.call("SendMessage", {"message": message("hi") | hidden | {"parts": 7}})
    run.call("GetTask", {"id": "none", "metadata": hidden})
    userinfo = nest.new("password in a URL", "http://user:{}@127.0.0.1:1/")
    push = {"taskPushNotificationConfig": {"url": userinfo}}
    run.call("SendMessage", {"message": message("hi"), "configuration": push})


def answered(run: Run, receiver: Sink) -> None:
    """Answer sensitive questions in every way there is, and have it posted about."""
    nest = run.nest
    posted = {
        "url": receiver.url,
        "token": nest.new("push token"),
        "authentication": {"scheme": "Bearer", "credentials": nest.new("push credentials")},
    }
    inline = {"taskPushNotificationConfig": posted}
    task = run.send(message("go"), configuration=inline)
    place = {"taskId": task["id"]}
    later = {
        "id": "later",
        "url": receiver.url + "/later",
        "token": nest.new("later push token"),
        "authentication": {"scheme": "Basic", "credentials": nest.new("later push credentials")},
    }
    run.call("CreateTaskPushNotificationConfig", place | later, "push made")
    run.call("ListTaskPushNotificationConfigs", place, "push answers")
    # Whoever gave a token may read it again; credentials are said to nobody after that answer.
    nest.allowed |= {("push token", "push answers"), ("later push token", "push answers")}
    nest.allowed |= {(f"later push {what}", "push made") for what in ("token", "credentials")}
    secret = message(
        taskId=task["id"],
        parts=[
            {"text": nest.new("sensitive text")},
            {"data": {"pin": nest.new("sensitive data")}},
            {"raw": base64.b64encode(nest.new("sensitive file").encode()).decode()},
            {"text": "x", "metadata": {"m": nest.new("metadata of a sensitive part")}},
        ],
        metadata={"m": nest.new("metadata of a sensitive message")},
    )
    more = {"metadata": {"m": nest.new("metadata of a sensitive request")}}
    waiting = run.send(secret, **more)
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", waiting
    run.send(secret, **more)
    run.call("GetTask", {"id": task["id"]})
    run.call("ListTasks", {"pageSize": 1})
    receiver.wait(3)
    run.task = task["id"]
    streamed = run.send(message("go"))
    run.stream(message(nest.new("streamed sensitive text"), taskId=streamed["id"]))
    rest = run.send(message("go"))
    body = {"message": message(nest.new("sensitive text by REST"), taskId=rest["id"])}
    assert run.post("/message:send", body).status_code == 200
    failing = run.send(message("go", metadata={"skill": "fail"}))
    failed = run.send(message(nest.new("text before a failure"), taskId=failing["id"]))
    assert failed["status"]["state"] == "TASK_STATE_FAILED", failed
    old = {"message": old_message("go")}
    first = run.call("message/send", old, **{"A2A-Version": "0.3"})
    said = old_message(nest.new("sensitive text in 0.3"), taskId=first["id"])
    run.call("message/send", {"message": said}, **{"A2A-Version": "0.3"})


def looked_at(run: Run) -> None:
    """Use the commands an operator has."""
    for words in (
        ["--version"],
        ["config", "show"],
        ["config", "show", "-o", "json"],
        ["vault", "show"],
        ["vault", "rotate"],
        ["tasks", "list", "-o", "json"],
        ["tasks", "show", run.task, "-o", "json"],
        ["tasks", "tail", "--limit", "200"],
        ["push", "list", "-o", "json"],
        ["keys", "list"],
        ["audit", "verify"],
        ["doctor"],
        ["backup", run.folder / "copy.db"],
    ):
        run.command(*words)


def test_no_secret_is_anywhere_after_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, monkeypatch) as (run, collector, receiver):
        callers = credentials(run)
        with served(run) as server:
            refused(run)
            for headers in callers.values():
                run.headers = headers
                assert run.send(message("go"))["status"]["state"].endswith("INPUT_REQUIRED")
            mistaken(run)
            run.headers = callers["environment"]
            # While another process shares the file, an answer to it goes through a note.
            answered(run, receiver)
            task = run.send(message("go"))
            here = run.url
            with served(run):
                noted = message(run.nest.new("text through a note"), taskId=task["id"])
                taken = run.send(noted)
                assert taken["status"]["state"].endswith("INPUT_REQUIRED")
            run.url = here
            run.get("/metrics", "metrics")
            client_token(run, monkeypatch)
            # As they are at work, and as a crash leaves them.
            run.files()
            server.process.kill()
            server.process.wait(WAIT)
            run.files()
        with served(run) as server:
            ended = run.send(message("yes", taskId=run.task))
            assert ended["artifacts"][0]["parts"] == [{"text": "thank you"}]
            looked_at(run)
            assert server.stop() == 0
        collector.wait(2)
        assert "/v1/traces" in collector.paths
        run.places["traces"] = collector.all()
        run.places["posts"] = b"\n".join(receiver.bodies)
        run.files()
    sent = repr(receiver.headers).encode()
    for name in ("push token", "push credentials", "later push token", "later push credentials"):
        assert run.nest._secrets[name] in sent, f"{name} never reached its receiver"
    assert len(run.nest) >= 25
    logs = [name for name in run.places if name.startswith("file log-")]
    assert len(logs) == 3 and all(b"DEBUG root loud" in run.places[name] for name in logs)
    empty = [name for name in PLACES if len(run.places.get(name, b"")) < 10]
    assert not empty, (empty, sorted(run.places))
    assert run.nest.hits(run.places) == []


PLACES = (
    *("answers", "push answers", "streams", "commands", "metrics", "traces", "posts"),
    *(
        "file tasks.db",
        "file tasks.db-wal",
        "file tasks.db-shm",
        "file copy.db",
        "file audit.jsonl",
        "file keys.json",
    ),
)


def client_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call as a client does, with all it says about it."""
    monkeypatch.setenv("A2ACLI_BEARER", os.environ["DRAGOMAN_AUTH_TOKEN"])
    run.command("send", "-a", run.url, "--debug", "--verbose", "go", "--wait=false")
    monkeypatch.setenv("A2ACLI_BEARER", run.nest.new("bearer of a client that is refused"))
    run.command("send", "-a", run.url, "--debug", "--verbose", "go")


@pytest.mark.parametrize("form", [*forms(b"x" * 32)])
def test_a_canary_is_found_in_every_form(form: str) -> None:
    nest = Nest()
    secret = nest.new("it")
    assert nest.hits({"place": b"nothing"}) == []
    held = b"before " + forms(secret.encode())[form] + b" after"
    assert form in {hit.form for hit in nest.hits({"place": held})}
    nest.allowed.add(("it", "place"))
    assert nest.hits({"place": held}) == []


def test_a_canary_is_found_in_base64_whatever_stands_around_it() -> None:
    nest = Nest()
    secret = nest.new("it").encode()
    for before in range(4):
        for after in range(4):
            text = os.urandom(before) + secret + os.urandom(after)
            assert nest.hits({"p": base64.b64encode(text)})
            assert nest.hits({"p": base64.urlsafe_b64encode(text)})
