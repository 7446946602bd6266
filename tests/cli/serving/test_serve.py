"""`dragoman serve` as a user types it: in a process of its own, ended by a signal."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.certificates import LOOPBACK, Authority, dns
from harness.processes import run, running
from harness.serving import message
from harness.waiting import WAIT

from dragoman.testing.processes import ServerProcess

AGENT = """
import asyncio, threading, time
from dragoman import Agent, Turn

agent = Agent({name!r}, "Is served.")

@agent.skill(default=True)
def echo(text: str) -> str:
    return {name!r} + ": " + text

@agent.skill
async def ask(text: str, turn: Turn) -> str:
    return (await turn.ask("Well?")).text

@agent.skill
async def forever(text: str):
    yield "begun"
    await asyncio.Event().wait()

@agent.skill
def block(text: str) -> str:
    time.sleep(120)
    return "late"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "my_agent.py").write_text(AGENT.format(name="Mine"))
    (tmp_path / "other.py").write_text(AGENT.format(name="Other"))
    return tmp_path


def client(child: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=child.ready(), timeout=60, trust_env=False)


def send(http: httpx.Client, text: str, prefix: str = "", **more: Any) -> Any:
    configuration = more.pop("configuration", {})
    body = {"message": message(text, **more), "configuration": configuration}
    response = http.post(f"{prefix}/message:send", json=body)
    assert response.status_code == 200, response.text
    return response.json()["task"]


def text(task: Any) -> str:
    return "".join(part["text"] for part in task["artifacts"][0]["parts"])


LISTEN = ("--listen", "127.0.0.1:0")
KNOWN = ("--public-url", "https://agent.example")


@pytest.mark.parametrize(
    "target", ["my_agent.py", "my_agent:agent", "my_agent", "my_agent.py:agent"]
)
def test_an_agent_is_served_by_any_of_its_names(here: Path, target: str) -> None:
    with running("serve", target, *LISTEN, "--store", "memory:", cwd=here) as child:
        with client(child) as http:
            assert text(send(http, "hi")) == "Mine: hi"
        assert child.url.startswith("http://127.0.0.1:")
        assert child.stop() == 0
        assert "Traceback" not in child.log


def test_several_agents_share_a_port(here: Path) -> None:
    targets = ("my_agent.py", "other:agent")
    with running("serve", *targets, *LISTEN, "--store", "memory:", cwd=here) as child:
        with client(child) as http:
            assert text(send(http, "hi")) == "Mine: hi"
            assert text(send(http, "hi", "/agents/other")) == "Other: hi"
        assert child.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing.py",), "nothing.py: no such file"),
        (("nothing:agent",), "add .py"),
        (("my_agent.py:nothing",), "nothing is not an Agent"),
        (("empty.py",), "write `agent = Agent(...)`"),
        (("my_agent.py", "my_agent.py:agent"), "same name"),
        (("my_agent.py", "--listen", "127.0.0.1:70000"), "is not an address"),
        (("my_agent.py", "--listen", "127.0.0.1:x"), "is not an address"),
        (("my_agent.py", "--listen", "0.0.0.0:0"), "--public"),
        (("my_agent.py", "--listen", "[::]:0"), "--public"),
        (("my_agent.py", "--listen", "127.0.0.1:0", "--listen", "192.0.2.7:0"), "--public"),
        (("my_agent.py", "--auth", "bearer"), "DRAGOMAN_AUTH_TOKEN"),
        (
            ("my_agent.py", "--auth", "guess"),
            "auth = ['guess']: guess is not served; choose",
        ),
        (("my_agent.py", "--auth", "api-key", "--keys", "none.json"), "--keys none.json"),
        (("my_agent.py", "--auth", "jwt"), "--jwt-keys"),
        (("my_agent.py", "--auth", "oidc"), "--jwt-issuer"),
        (("my_agent.py", "--auth", "oidc", "--jwt-issuer", "https://i.example"), "--jwt-audience"),
        (("my_agent.py", "--auth", "mtls"), "--client-ca"),
        (("my_agent.py", "--cors", "example.com"), "https://app.example.com"),
        (("my_agent.py", "--store", "mysql://there/tasks"), "mysql:// is no store"),
        (("my_agent.py", "--store", "postgres://127.0.0.1:1/x"), "PostgreSQL cannot be reached"),
        (("my_agent.py", "--transport", "mqtt"), "transport = ['mqtt']: mqtt is not served"),
        (("my_agent.py", "--a2a-version", "0.9"), "a2a_version = ['0.9']: 0.9 is not served"),
        (("my_agent.py", "--a2a-version", "1.0", "--card-shape", "0.3"), "only 1.0 is served"),
        (("my_agent.py", "--workers", "2"), "memory: is in one process"),
        (("my_agent.py", "--workers", "0"), "workers"),
        (("my_agent.py", "--card", "empty.py"), "must end in .json or .toml"),
        (("my_agent.py", "other.py", "--card", "card.toml"), "the card of one agent"),
        (("my_agent.py", "--sign-key", "empty.py"), "sign_key = 'empty.py': needs public_url"),
        (("my_agent.py", *KNOWN, "--sign-key", "empty.py"), "is neither PEM nor a JWK"),
        (("my_agent.py", *KNOWN, "--sign-key", "none.pem"), "none.pem: cannot be read"),
        (("my_agent.py", "--tls-key", "key.pem"), "--tls-cert"),
        (("my_agent.py", "--tls-cert", "empty.py"), "cannot be used for TLS"),
        (("my_agent.py", "--drain", "soon"), "duration"),
        (("--exec", "no-such-program-at-all"), "there is no such program"),
        ((), "TARGET"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_exit_2(
    here: Path, arguments: tuple[str, ...], says: str
) -> None:
    (here / "empty.py").touch()
    # Another server may have the usual port: that would be told first.
    env = {"DRAGOMAN_STORE": "memory:", "DRAGOMAN_LISTEN": "127.0.0.1:0"}
    ended = run("serve", *arguments, cwd=here, env=env)
    assert ended.returncode == 2, ended.stderr
    assert says in ended.stderr and "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_setting_that_is_misspelt_keeps_a_server_from_starting_open(here: Path) -> None:
    words = ("serve", "my_agent.py", *LISTEN, "--store", "memory:")
    said = "DRAGOMAN_AUHT is not a setting (did you mean DRAGOMAN_AUTH?)"
    ended = run(*words, cwd=here, env={"DRAGOMAN_AUHT": "bearer"})
    assert ended.returncode == 2 and said in ended.stderr and ended.stdout == ""
    (here / ".env").write_text("DRAGOMAN_AUHT=bearer\n")
    ended = run(*words, cwd=here)
    assert ended.returncode == 2 and said in ended.stderr and ended.stdout == ""
    # What serves nothing is not kept from working.
    assert run("keys", "list", "--keys", "k.json", cwd=here).returncode == 0


def test_a_token_that_lets_nobody_in_is_told_at_the_start(here: Path) -> None:
    env = {"DRAGOMAN_AUTH_TOKEN": "t" * 16}
    options = (*LISTEN, "--auth", "none", "--store", "memory:")
    with running("serve", "my_agent.py", *options, cwd=here, env=env) as child:
        child.ready()
        assert child.stop() == 0
        assert "Warning: auth_token is set but has no effect: --auth does not name bearer" in (
            child.log
        )


def test_a_port_in_use_is_said_with_what_to_do(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        address = f"127.0.0.1:{port}"
        ended = run("serve", "my_agent.py", "--listen", address, "--store", "memory:", cwd=here)
    assert ended.returncode == 2
    assert port in ended.stderr and "--listen 127.0.0.1:0" in ended.stderr


@pytest.mark.parametrize("store", ["nowhere/at/all/tasks.db", "not_a_database.db"])
def test_a_store_that_cannot_be_opened_is_said(here: Path, store: str) -> None:
    (here / "not_a_database.db").write_bytes(b"plain text, and enough of it" * 100)
    (here / "nowhere").touch()
    ended = run("serve", "my_agent.py", *LISTEN, "--store", store, cwd=here)
    assert ended.returncode != 0
    assert store.rpartition("/")[2] in ended.stderr or "nowhere" in ended.stderr
    assert "Ready" not in ended.stdout


def test_who_says_public_may_listen_everywhere(here: Path) -> None:
    options = ("--listen", "0.0.0.0:0", "--public", "--store", "memory:")
    with running("serve", "my_agent.py", *options, cwd=here) as child:
        port = child.ready().rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert text(send(http, "hi")) == "Mine: hi"
        assert child.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("skill", ["forever", "ask", "block"])
def test_a_signal_ends_it_well_before_its_drain_whatever_is_open(
    here: Path, skill: str, number: signal.Signals
) -> None:
    options = (*LISTEN, "--store", "tasks.db", "--drain", "600")
    with running("serve", "my_agent.py", *options, cwd=here) as child:
        body = {"message": message("x", metadata={"skillId": skill})}
        with (
            client(child) as http,
            http.stream("POST", "/message:stream", json=body) as stream,
        ):
            lines = stream.iter_lines()
            task = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
            follow = http.stream("GET", f"/tasks/{task['task']['id']}:subscribe")
            with follow as following:
                more = following.iter_lines()
                assert next(more)
                child.process.send_signal(number)
                assert child.process.wait(60) == (130 if number == signal.SIGINT else 0)
                # The reader sees a stream that ends, not a connection that breaks.
                list(more)
        assert "Traceback" not in child.log


def test_a_restart_keeps_every_task_and_goes_on_with_open_ones(here: Path) -> None:
    options = ("serve", "my_agent.py", *LISTEN, "--store", "tasks.db")
    with running(*options, cwd=here) as child:
        with client(child) as http:
            done = send(http, "hi")
            asked = send(http, "x", metadata={"skillId": "ask"})
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert child.stop() == 0
    with running(*options, cwd=here) as child:
        with client(child) as http:
            assert http.get(f"/tasks/{done['id']}").json() == done
            assert http.get("/tasks").json()["totalSize"] == 2
            again = http.get(f"/tasks/{asked['id']}").json()
            assert again["status"] == asked["status"]
            assert again["history"] == asked["history"]
        assert child.stop() == 0


def test_a_changed_file_is_served_again(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ("--listen", f"127.0.0.1:{port}", "--store", "tasks.db", "--reload")
    with running("serve", "my_agent.py", *options, cwd=here) as child:
        with client(child) as http:
            kept = send(http, "hi")
            assert text(kept) == "Mine: hi"
        (here / "my_agent.py").write_text("this is no Python\n")
        (here / "my_agent.py").write_text(AGENT.format(name="Changed a little"))
        with client(child) as http:
            assert text(send(http, "hi")) == "Changed a little: hi"
        assert child.stop() == 0
    # The process that served is gone with the one that watched.
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0


def test_a_broken_change_waits_for_the_next_one(here: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", "memory:", "--reload")
    with running("serve", "my_agent.py", *options, cwd=here) as child:
        child.ready()
        (here / "my_agent.py").write_text("for\n")
        for _ in range(600):
            if "invalid syntax" in child.log:
                break
            # The watcher looks twice a second; this only bounds how long we look at it.
            with pytest.raises(subprocess.TimeoutExpired):
                child.process.wait(0.05)
        assert "my_agent.py, line 1" in child.log
        (here / "my_agent.py").write_text(AGENT.format(name="Mended"))
        with client(child) as http:
            assert text(send(http, "hi")) == "Mended: hi"
        assert child.stop() == 0


def test_settings_come_from_the_environment_and_options_win(here: Path) -> None:
    settings = {
        "DRAGOMAN_LISTEN": "127.0.0.1:0",
        "DRAGOMAN_DRAIN": "500ms",
        "DRAGOMAN_STORE": str(here / "from_env.db"),
        "DRAGOMAN_CARD_MAX_AGE": "11",
        "DRAGOMAN_VERSION_MODE": "strict",
        "DRAGOMAN_PUBLIC_URL": "https://env.example",
    }
    options = ("--version-mode", "infer")
    with running("serve", "my_agent.py", *options, cwd=here, env=settings) as child:
        with client(child) as http:
            card = http.get("/.well-known/agent-card.json", headers={"A2A-Version": "1.0"})
            assert card.headers["cache-control"] == "public, max-age=11"
            url = card.json()["supportedInterfaces"][1]["url"]
            assert url == "https://env.example"
            # Strict would refuse a request that names no version.
            assert http.get("/tasks").status_code == 200
        assert child.stop() == 0
    assert (here / "from_env.db").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "many:many"),
        ("IDEMPOTENCY", "perhaps"),
        ("KEEPALIVE", "0"),
        ("CARD_SHAPE", "2.0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(here: Path, name: str, value: str) -> None:
    ended = run("serve", "my_agent.py", cwd=here, env={f"DRAGOMAN_{name}": value})
    assert ended.returncode == 2
    assert name.lower() in ended.stderr.lower() and "Traceback" not in ended.stderr


def test_without_a_store_tasks_are_in_the_users_data_folder(here: Path) -> None:
    with running("serve", "my_agent.py", *LISTEN, cwd=here) as child:
        child.ready()
        assert child.stop() == 0
    assert (here / "data" / "dragoman" / "tasks.db").exists()


def test_a_file_of_the_folder_may_hold_settings(here: Path) -> None:
    (here / ".env").write_text("DRAGOMAN_LISTEN=127.0.0.1:0\nDRAGOMAN_STORE=sqlite:said.db\n")
    with running("serve", "my_agent.py", cwd=here) as child:
        assert not child.ready().endswith(":8000")
        assert child.stop() == 0
    assert (here / "said.db").exists()


def test_programs_get_one_ready_record_with_every_address(here: Path) -> None:
    listen = (*LISTEN, "--listen", "127.0.0.1:0")
    options = ("--store", "memory:", "-o", "json", "--stream")
    with running("serve", "my_agent.py", "other.py", *listen, *options, cwd=here) as child:
        ready = json.loads(child.line("{"))["ready"]
        assert ready["url"] == ready["urls"][0] and len(set(ready["urls"])) == 2
        assert ready["store"] == "memory:"
        names = [agent["name"] for agent in ready["agents"]]
        assert names == ["Mine", "Other"]
        for url in ready["urls"]:
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
                assert text(send(http, "hi")) == "Mine: hi"
        for agent in ready["agents"]:
            assert httpx.get(agent["card"], trust_env=False).json()["name"] == agent["name"]
            sent = run("send", "-a", agent["card"], "hi", cwd=here)
            assert f"{agent['name']}: hi" in sent.stdout, sent.stderr
        assert child.stop() == 0
        assert "Traceback" not in child.log


def test_tls_is_spoken_with_the_certificates_that_are_named(here: Path) -> None:
    Authority("localhost", LOOPBACK, dns("caller.test")).save_files(here, "cert")
    tls = ("--tls-cert", "cert.pem", "--tls-key", "cert.key", "--client-ca", "cert.pem")
    with running("serve", "my_agent.py", *LISTEN, *tls, "--store", "memory:", cwd=here) as child:
        url = child.ready()
        assert url.startswith("https://")
        mine = ("--ca-cert", "cert.pem", "--client-cert", "cert.pem", "--client-key", "cert.key")
        sent = run("send", "-a", url, "hi", *mine, cwd=here)
        assert sent.returncode == 0 and "Mine: hi" in sent.stdout, sent.stderr
        stranger = run("send", "-a", url, "hi", "--ca-cert", "cert.pem", cwd=here)
        assert stranger.returncode == 3, stranger.stderr
        assert child.stop() == 0


PROGRAM = """
import os, sys, time
said = sys.stdin.read()
if said == "fail":
    print("as far as it got")
    sys.exit(3)
if said == "hang":
    print(os.getpid(), flush=True)
    time.sleep(120)
print(said.upper(), os.environ["A2A_TASK_ID"], end="")
"""


def test_a_program_is_told_no_secret_of_its_server(here: Path) -> None:
    (here / "tell.py").write_text("import os; print(sorted(os.environ.items()))")
    secrets = {
        "DRAGOMAN_AUTH_TOKEN": "canary-token-0123456789",
        "DRAGOMAN_JWT_SECRET_FILE": str(here / "canary-file"),
        "A2ACLI_BEARER": "canary-of-the-command-line",
        "CHAT_API_KEY": "canary-of-a-chat-model",
    }
    (here / "canary-file").write_text("canary-secret-of-a-jwt-0123456789")
    options = (*LISTEN, "--store", "memory:", "--auth", "bearer")
    line = f"{sys.executable} tell.py"
    with running("serve", "--exec", line, *options, cwd=here, env=secrets) as child:
        token = secrets["DRAGOMAN_AUTH_TOKEN"]
        sent = run("send", "-a", child.ready(), "hi", "--bearer", token, cwd=here)
    assert "A2A_TASK_ID" in sent.stdout, sent.stderr
    assert "canary" not in sent.stdout


def test_any_program_is_an_agent(here: Path) -> None:
    (here / "shout.py").write_text(PROGRAM)
    line = f"{sys.executable} shout.py"
    with running("serve", "--exec", line, *LISTEN, "--store", "memory:", cwd=here) as child:
        with client(child) as http:
            done = send(http, "grüße; rm -rf $HOME")
            assert text(done) == f"GRÜSSE; RM -RF $HOME {done['id']}"
            failed = send(http, "fail")
            assert failed["status"]["state"] == "TASK_STATE_FAILED"
            said = failed["status"]["message"]["parts"][0]["text"]
            assert said.endswith("ended with exit code 3")
            assert text(failed) == "as far as it got\n"
            hanging = send(http, "hang", configuration={"returnImmediately": True})
            task = {}
            with http.stream("GET", f"/tasks/{hanging['id']}:subscribe") as stream:
                for event in stream.iter_lines():
                    task = http.get(f"/tasks/{hanging['id']}").json()
                    if event and task.get("artifacts"):
                        break
            process = os.pidfd_open(int(text(task)))
            assert select.select([process], [], [], 0)[0] == [], "it runs"
            canceled = http.post(f"/tasks/{hanging['id']}:cancel").json()
            assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
            assert select.select([process], [], [], WAIT)[0] == [process], "it was killed"
            os.close(process)
        assert child.stop() == 0
        assert "Traceback" not in child.log


# Servers of selectools' kind

SERVER = """
import copy
from types import SimpleNamespace

class Researcher:
    config = SimpleNamespace(name="researcher")
    tools = [SimpleNamespace(name="summarize", description="Summarize a text")]

    def clone_for_isolation(self):
        return copy.copy(self)

    def run(self, messages):
        return SimpleNamespace(content="Echo: " + messages[0].content)

{imports}
agent = Researcher()
server = A2AServer(agent, auth_token={token!r}, description="Reads.", max_body_bytes=2048)
"""
OURS = "from dragoman.compat.selectools import A2AServer"
# What selectools' own keeps of its arguments.
THEIRS = """
class A2AServer:
    def __init__(self, agent, auth_token=None, description=None, max_body_bytes=1048576):
        self._agent, self._auth_token, self._description = agent, auth_token, description
        self._name, self._url, self._version = agent.config.name, "", "1.3.0"
        self._max_tasks, self._max_body_bytes = 2000, max_body_bytes
"""
TOKEN = "a-token-of-some-length"


def ask_researcher(http: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    said = {"role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": {"message": said}}
    return http.post("/a2a", json=body, headers=headers)


@pytest.mark.parametrize("imports", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_module_with_an_a2a_server_is_served_as_that_server(
    tmp_path: Path, imports: str, token: str | None
) -> None:
    """P-001, P-002, P-007, P-009: its card, its token and its limits count, not the agent's."""
    (tmp_path / "file.py").write_text(SERVER.format(imports=imports, token=token))
    with running("serve", "file.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        with client(child) as http:
            card = http.get("/.well-known/agent.json").json()
            assert (card["protocolVersion"], card["description"]) == ("0.2.6", "Reads.")
            assert [skill["id"] for skill in card["skills"]] == ["summarize"]
            assert ask_researcher(http, {}).status_code == (401 if token else 200)
            shown = {"authorization": f"Bearer {token}"} if token else {}
            task = ask_researcher(http, shown).json()["result"]
            assert task["artifacts"][0]["parts"][0]["text"] == "Echo: hi"
            large = http.post("/a2a", content=b" " * 4096, headers=shown)
            assert large.json()["error"]["code"] == -32600
        assert child.stop() == 0


def test_an_a2a_server_is_named_alone_and_one_of_several_by_its_name(tmp_path: Path) -> None:
    """P-001."""
    text = SERVER.format(imports=OURS, token=None)
    (tmp_path / "file.py").write_text(text)
    (tmp_path / "two.py").write_text(text + "other = A2AServer(agent)\n")
    (tmp_path / "my_agent.py").write_text(AGENT.format(name="Mine"))
    ended = run("serve", "file.py", "my_agent.py", cwd=tmp_path)
    assert ended.returncode == 2 and "to itself" in ended.stderr, ended.stderr
    ended = run("serve", "two.py", cwd=tmp_path)
    assert ended.returncode == 2 and "server, other" in ended.stderr, ended.stderr
    with running("serve", "two.py:other", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        with client(child) as http:
            assert ask_researcher(http, {}).json()["result"]["kind"] == "task"
        assert child.stop() == 0


def test_the_log_has_a_line_for_each_task_refused_login_and_the_stop_unless_it_is_quiet(
    here: Path,
) -> None:
    place = ("--host", "127.0.0.1", "--port", "0", "--store", "memory:", "--auth", "bearer")
    env = {"DRAGOMAN_AUTH_TOKEN": "sixteen-characters-or-more"}
    for more, is_logged in (((), True), (("--quiet",), False)):
        with running("serve", "my_agent.py", *place, *more, cwd=here, env=env) as child:
            url = child.ready()
            assert httpx.post(url, json={}, trust_env=False).status_code == 401
            words = ("send", "-a", url, "hi", "--fail")
            wrong = run(*words, cwd=here, env={"A2ACLI_BEARER": "another-token-of-mine"})
            assert wrong.returncode == 4
            assert "The token of A2ACLI_BEARER is not accepted" in wrong.stderr
            right = run(*words, cwd=here, env={"A2ACLI_BEARER": env["DRAGOMAN_AUTH_TOKEN"]})
            assert right.returncode == 0, right.stderr
            child.process.send_signal(signal.SIGINT)
            assert child.process.wait(60) == 130
        for line in ("task completed after", "login refused for 127.0.0.1", "stopping: "):
            assert (line in child.log) == is_logged, child.log


def test_an_agent_without_a_skill_is_told_of_and_a_bad_place_is_refused(here: Path) -> None:
    (here / "bare.py").write_text("from dragoman import Agent\nagent = Agent('Bare', 'Idle.')\n")
    with running("serve", "bare.py", "--port", "0", "--store", "memory:", cwd=here) as child:
        child.ready()
        assert child.stop() == 0
    assert "agent Bare has no skill" in child.log and "@agent.skill" in child.log
    both = run("serve", "bare.py", "--listen", "127.0.0.1:0", "--port", "1", cwd=here)
    assert both.returncode == 2 and "leave out --host and --port" in both.stderr


def test_a_failed_task_is_exit_1_where_that_is_asked_for(here: Path) -> None:
    source = """
from dragoman import Agent
agent = Agent("Broken", "Fails.")
@agent.skill
def fail(text: str) -> str:
    raise ValueError(text)
"""
    (here / "broken.py").write_text(source)
    with running("serve", "broken.py", *LISTEN, "--store", "memory:", cwd=here) as child:
        url = child.ready()
        assert run("send", "-a", url, "x", cwd=here).returncode == 0
        failed = run("send", "-a", url, "x", "--fail", "-o", "json", cwd=here)
        task = json.loads(failed.stdout)["task"]
        assert failed.returncode == 1 and task["status"]["state"] == "TASK_STATE_FAILED"
        seen = run("task", "get", "-a", url, task["id"], "--fail", cwd=here)
        assert seen.returncode == 1 and "State: TASK_STATE_FAILED" in seen.stdout
        child.stop()
    assert "ValueError at " in child.log and "broken.py, line 6" in child.log
