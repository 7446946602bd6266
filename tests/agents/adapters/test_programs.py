"""Programs that speak JSON lines, chat models behind an address, and the examples without a
framework, as a user serves them."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import ROOT, run, running
from harness.serving import Site, hosting, message, serving
from harness.waiting import WAIT, within

from dragoman.agents.adapters.chat_url import chat_agent
from dragoman.agents.adapters.json_lines import json_lines_agent
from dragoman.authoring.agent import Agent

EXAMPLES = ROOT / "examples" / "adapters"


def script(folder: Path, source: str) -> Agent:
    """Return the agent of a program that has read its message as `told` and can `tell`."""
    path = folder / "program.py"
    path.write_text(
        "import json, os, sys, time\n"
        "def tell(**line): print(json.dumps(line), flush=True)\n"
        "told = json.loads(sys.stdin.readline())\n" + source
    )
    return json_lines_agent(f"{sys.executable} {path}")


@asynccontextmanager
async def playing(folder: Path, source: str) -> AsyncGenerator[Site]:
    """Serve such an agent. Its programs have ended when it has, also those that were killed."""
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*words: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*words, **options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", noted)
        async with serving(script(folder, source)) as site:
            yield site
    for process in started:
        await within(process.wait())


def answer(task: Any) -> str:
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    return "".join(part["text"] for part in task["artifacts"][0]["parts"])


def reason(task: Any, state: str = "FAILED") -> str:
    assert task["status"]["state"] == f"TASK_STATE_{state}", task["status"]
    return task["status"]["message"]["parts"][0]["text"]


async def test_a_program_is_told_the_message_and_answers_in_pieces(tmp_path: Path) -> None:
    source = (
        "tell(say='On it')\n"
        "message = told['message']\n"
        "tell(text=message['text'])\n"
        "tell(text=' ' + message['parts'][1]['data']['to'] + ' ' + message['metadata']['how'])\n"
        "assert told['taskId'] == os.environ['A2A_TASK_ID'] and told['contextId'] == 'c'\n"
    )
    parts = [{"text": "hello"}, {"data": {"to": "you"}}]
    async with playing(tmp_path, source) as site:
        task = await site.send(None, parts=parts, metadata={"how": "softly"}, contextId="c")
    assert answer(task) == "hello you softly"
    assert "On it" in str(task["history"])


async def test_data_is_an_answer_too(tmp_path: Path) -> None:
    async with playing(tmp_path, "tell(data={'n': [1, None]})\n") as site:
        task = await site.send("x")
    assert task["artifacts"][0]["parts"] == [{"data": {"n": [1.0, None]}}]


async def test_a_program_may_ask_and_reads_the_answer(tmp_path: Path) -> None:
    source = (
        "tell(ask='Which?')\nanswer = json.loads(sys.stdin.readline())['answer']\n"
        "tell(text=answer['text'])\n"
    )
    async with playing(tmp_path, source) as site:
        task = await site.send("x")
        assert reason(task, "INPUT_REQUIRED") == "Which?"
        task = await site.send("that", taskId=task["id"], contextId=task["contextId"])
    assert answer(task) == "that"


@pytest.mark.parametrize(
    ("source", "state", "says"),
    [
        ("tell(fail='No paper.')", "FAILED", "No paper."),
        ("tell(reject='Not that.')", "REJECTED", "Not that."),
        ("print('hello')", "FAILED", "said something that is not understood"),
        ("print('[1]')", "FAILED", "said something that is not understood"),
        ("tell(text=5)", "FAILED", "said something that is not understood"),
        ("tell(sing='la')", "FAILED", "said something that is not understood"),
        ("tell(text='a', say='b')", "FAILED", "said something that is not understood"),
        ("tell(text='x' * 2**21)", "FAILED", "said something that is not understood"),
        ("tell(text='a'); sys.exit(3)", "FAILED", "ended with exit code 3"),
    ],
)
async def test_a_program_fails_in_a_sentence(
    tmp_path: Path, source: str, state: str, says: str
) -> None:
    async with playing(tmp_path, source + "\n") as site:
        assert says in reason(await site.send("x"), state)


async def test_a_cancel_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    # The program and its child hold the pipe: it is at its end when both are gone.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = (
        "import subprocess\n"
        f"held = os.open({str(pipe)!r}, os.O_WRONLY)\n"
        "os.set_inheritable(held, True)\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "subprocess.Popen(sleep, close_fds=False)\n"
        "tell(say='started')\ntime.sleep(600)\n"
    )
    async with playing(tmp_path, source) as site:
        # There has to be a reader before the program can open it.
        reading = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        params = {"message": message("x")}
        async with site.stream("SendStreamingMessage", params) as stream:
            async for frame in stream:
                if "started" in str(frame.data):
                    task_id = frame.result["statusUpdate"]["taskId"]
                    break
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), reading
        )
        assert not reader.at_eof()
        await within(site.call("CancelTask", {"id": task_id}))
        assert await within(reader.read()) == b""
        transport.close()


@contextmanager
def parrot() -> Iterator[str]:
    """Run the example of a chat server; the value is its address."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "chat_server.py"), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1#parrot"
    finally:
        process.kill()
        process.wait(WAIT)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_chat_model_answers_and_knows_the_conversation() -> None:
    with parrot() as address:
        async with serving(chat_agent(address)) as site:
            first = await site.send("one")
            assert answer(first) == "one!"
            second = await site.send("two", contextId=first["contextId"])
            assert answer(second) == "one / two!"
            assert answer(await site.send("three")) == "three!"


async def test_openai_s_key_goes_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("CHAT_API_KEY", "sk-chat")
    seen: list[str] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"])[b"authorization"].decode())
        await receive()
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async with hosting(server, lifespan="off") as url, serving(chat_agent(f"{url}/v1#m")) as site:
        task = await site.send("x")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert set(seen) == {"Bearer sk-chat"}


def test_the_examples_without_a_framework_run_as_they_say(tmp_path: Path) -> None:
    program = f"{sys.executable} {EXAMPLES / 'json_lines.py'}"
    with parrot() as address:
        targets = [
            EXAMPLES / "contract.py",
            f"{EXAMPLES / 'function.py'}:shout",
            f"{EXAMPLES / 'greeter.py'}:Greeter",
            address,
        ]
        options = ["--exec", program, "--exec-format", "json", "--listen", "127.0.0.1:0"]
        options += ["--mcp", f"{sys.executable} {EXAMPLES / 'mcp_server.py'}"]
        with running("serve", *targets, *options, cwd=tmp_path) as child:
            url = child.ready()
            with httpx.Client(base_url=url, timeout=WAIT, trust_env=False) as http:

                def say(agent: str, text: str, skill: str = "") -> Any:
                    metadata = {"metadata": {"skillId": skill}} if skill else {}
                    body = {"message": message(text, **metadata)}
                    found = http.post(f"/agents/{agent}/message:send", json=body).json()["task"]
                    return answer(found)

                assert say("polly", "a cracker") == say("polly", "a cracker")
                assert say("parrot", "hey") == "hey!"
                assert say("shout", "hey") == "HEY!"
                assert say("greeter", "Ann") == say("greeter", "Ann", "greet") == "Hello Ann"
                assert say("greeter", "Ann", "spell") == "A-N-N"
                assert say("greeter", "3", "count") == "1 2 3 "
                python = Path(sys.executable).name.replace(".", "-")
                assert say(python, "a b") == "a b "
                body = {"message": message(parts=[{"data": {"celsius": 20}}])}
                told = http.post("/agents/thermometer/message:send", json=body).json()["task"]
                assert told["artifacts"][0]["parts"][0] == {"text": "68.0"}


def test_the_example_of_a_text_program_runs_as_it_says(tmp_path: Path) -> None:
    program = f"{sys.executable} {EXAMPLES / 'lines.py'}"
    with running("serve", "--exec", program, "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        body = {"message": message("a\nb")}
        done = httpx.post(f"{child.ready()}/message:send", json=body, timeout=WAIT, trust_env=False)
    assert answer(done.json()["task"]) == "1: a\n2: b\n"


def test_every_kind_in_the_guide_has_an_example_that_the_tests_run() -> None:
    guide = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    kinds = guide.partition("|---|---|")[2].partition("\n\n")[0].strip().splitlines()
    named = [re.findall(r"examples/adapters/(\w+)\.py", kind) for kind in kinds]
    assert all(named), [kind for kind, names in zip(kinds, named, strict=True) if not names]
    shown = {name for names in named for name in names}
    assert shown == {path.stem for path in EXAMPLES.glob("*.py")}
    tests = "".join(
        Path(__file__).with_name(f"test_{name}.py").read_text()
        for name in ("programs", "real_frameworks")
    )
    assert [name for name in sorted(shown) if not re.search(rf"\b{name}\b", tests)] == []


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 25, path.name
        assert lines[0].startswith('"""'), path.name


def test_what_is_wrong_with_a_program_that_speaks_json_is_a_sentence(tmp_path: Path) -> None:
    done = run("serve", "--exec", "no-such-program", "--exec-format", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(r"--exec no-such-program: there is no such program", done.stderr)
