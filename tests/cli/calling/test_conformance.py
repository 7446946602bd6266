"""`dragoman conformance`: our own agents pass, and what is wrong with others is named."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.rpcs import talking
from harness.serving import hosting, serving

from dragoman.server.demo_agent import agent as our_demo
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.demo import demo
from tests.cli.command import call, document, fields, lines, typed

STRICT = ("conformance", "--strict", "-o", "json")


def failed(found: Any) -> set[str]:
    return {check["name"] for check in found["checks"] if check["status"] == "fail"}


async def test_an_agent_of_ours_passes_over_every_interface(tmp_path: Path) -> None:
    async with serving(our_demo) as site:
        found = document(await call(*STRICT, "-a", site.url, cwd=tmp_path))
        assert found["summary"]["fail"] == 0 and found["agent"]["name"]
        interfaces = {check["interface"] for check in found["checks"]} - {""}
        assert {"JSONRPC 1.0", "HTTP+JSON 1.0", "JSONRPC 0.3", "HTTP+JSON 0.3"} <= interfaces
        text = await call("conformance", site.url, "--category", "paging", cwd=tmp_path)
        assert text.stdout.count("Check: paging.pages\n") == len(interfaces)
        assert fields(text.stdout)["Failed"] == "0"


async def test_an_agent_is_checked_over_grpc_where_nothing_else_is_spoken(tmp_path: Path) -> None:
    with talking(tmp_path, "--grpc-listen", "127.0.0.1:0") as server:
        words = ("-a", server.ready(), "--transport", "grpc", "--debug")
        ended = await call(*STRICT, *words, cwd=tmp_path)
    found = document(ended)
    assert {check["interface"] for check in found["checks"]} == {"", "GRPC 1.0", "GRPC 0.3"}
    assert failed(found) == set()
    # The port of its own takes nothing but gRPC, so that is what was asked.
    place = server.line("gRPC: ").removeprefix("gRPC: ")
    assert f"POST http://{place}/lf.a2a.v1.A2AService/GetTask" in ended.stderr


async def test_interfaces_are_chosen_and_the_wire_is_shown(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        words = ("--transport", "rest", "--a2a-version", "1.0", "--debug")
        ended = await call(*STRICT, "-a", url, *words, cwd=tmp_path)
    assert {check["interface"] for check in document(ended)["checks"]} == {"", "HTTP+JSON 1.0"}
    assert "Debug: > request POST" in ended.stderr


@pytest.mark.parametrize(
    "scenario", ["no-streaming", "no-push", "extended", "message-only", "1.0-only", "0.2-only"]
)
async def test_what_an_agent_does_not_offer_is_no_failure(tmp_path: Path, scenario: str) -> None:
    async with hosting(demo(scenarios=[scenario])) as url:
        found = document(await call(*STRICT, "-a", url, cwd=tmp_path))
    assert found["summary"]["fail"] == 0, failed(found)
    if scenario == "message-only":
        skipped = {check["name"] for check in found["checks"] if check["status"] == "skip"}
        assert {"task-reads", "not-cancelable", "pages"} <= skipped


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("version-refused", None),
        ("not-cancelable", ("CancelTask", "TaskNotFound")),
        ("pages", ("ListTasks", "InternalError")),
        ("extended-card", ("GetExtendedAgentCard", "TaskNotFound")),
    ],
)
async def test_what_is_wrong_is_named_and_is_an_exit_only_if_asked_for(
    tmp_path: Path, name: str, rule: tuple[str, str] | None
) -> None:
    async with hosting(_broken(rule)) as url:
        ended = await call(*STRICT, "-a", url, cwd=tmp_path)
        assert name in failed(document(ended, 1)) and "checks failed" in ended.stderr
        relaxed = lines(await call("conformance", url, "-o", "json", "--stream", cwd=tmp_path))
    assert name in {check["name"] for check in relaxed if check["status"] == "fail"}


def _broken(rule: tuple[str, str] | None) -> Any:
    """Return an agent that answers a method with an error, or one that takes any version."""
    if rule is not None:
        method, error = rule
        return ScriptedAgent({"rules": [{"when": {"method": method}, "steps": [{"error": error}]}]})
    agent = ScriptedAgent()

    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["headers"] = [
                (name, b"1.0" if name == b"a2a-version" else value)
                for name, value in scope["headers"]
            ]
        await agent(scope, receive, send)

    return deaf


def _flat() -> Any:
    """Return an agent whose streams have flat events with a kind, which our client reads."""
    agent = ScriptedAgent()
    kinds = {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}

    def flattened(line: bytes) -> bytes:
        if not line.startswith(b"data: "):
            return line
        event = json.loads(line[6:])
        result = event.get("result") or {}
        for name, kind in kinds.items():
            if name in result:
                event["result"] = result[name] | {"kind": kind}
        return b"data: " + json.dumps(event).encode()

    async def flat(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.body" and b"data: " in message.get("body", b""):
                lines = [flattened(line) for line in message["body"].split(b"\n")]
                message = {**message, "body": b"\n".join(lines)}
            await send(message)

        await agent(scope, receive, sending)

    return flat


async def test_what_our_client_reads_leniently_is_still_wrong(tmp_path: Path) -> None:
    async with hosting(_flat()) as url:
        ended = await call(*STRICT, "-a", url, cwd=tmp_path)
    wrong = document(ended, 1)["checks"]
    said = [check for check in wrong if check["status"] == "fail"]
    assert any("another version" in json.dumps(check) for check in said), said


async def test_a_card_that_cannot_be_used_is_a_finding_and_none_at_all_an_error(
    tmp_path: Path,
) -> None:
    async with hosting(demo(scenarios=["broken-card"])) as url:
        found = document(await call(*STRICT, "-a", url, cwd=tmp_path), 1)
        assert failed(found) == {"schema"}
        assert "supportedInterfaces" in found["checks"][0]["message"]
    async with hosting(demo(scenarios=["no-card"])) as url:
        missing = await call("conformance", url, "-o", "json", cwd=tmp_path)
        assert document(missing, 3)["error"]["code"] == "A2ACLI_ERR_CARD_NOT_FOUND"


async def test_credentials_are_those_of_every_command(tmp_path: Path) -> None:
    async with hosting(agent := demo(auth="bearer")) as url:
        without = await call("conformance", url, "-o", "json", cwd=tmp_path)
        assert document(without, 4)["error"]["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert {seen.method for seen in agent.requests} == {"card"}
        env = {"A2ACLI_BEARER": "demo-secret"}
        ended = await call(*STRICT, "-a", url, cwd=tmp_path, env=env)
        assert document(ended)["summary"]["fail"] == 0, failed(document(ended))
    assert all("authorization" not in seen.headers for seen in agent.calls("card"))


async def test_an_agent_of_another_origin_gets_no_credentials(tmp_path: Path) -> None:
    async with hosting(demo(auth="bearer")) as other:
        script = {
            "card": {"interfaces": [{"url": f"{other}/a2a"}]},
            "access": {"kind": "bearer", "secret": "demo-secret"},
        }
        async with hosting(ScriptedAgent(script)) as url:
            env = {"A2ACLI_BEARER": "demo-secret"}
            found = document(await call("conformance", url, "-o", "json", cwd=tmp_path, env=env))
    assert failed(found) >= {"reachable"}


async def test_a_report_is_written_beside_what_is_shown(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        words = ("--report", "r.json", "--category", "card", "--category", "error")
        ended = await call("conformance", url, "-o", "json", *words, cwd=tmp_path)
    found = document(ended)
    assert json.loads((tmp_path / "r.json").read_text()) == found
    assert {check["category"] for check in found["checks"]} == {"card", "error"}


KIT = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
print("the kit talks")
if "--compliance-report" in words:
    Path(words[words.index("--compliance-report") + 1]).write_text(json.dumps(words))
sys.exit(3 if "bad" in words else 0)
"""


async def test_an_external_kit_is_run_with_the_address_and_what_it_says_stays_off_stdout(
    tmp_path: Path,
) -> None:
    (tmp_path / "kit.py").write_text(KIT)
    kit = ("conformance", "-a", "127.0.0.1:1", "--suite", "tck", "--tck")
    program = f"{sys.executable} {tmp_path / 'kit.py'}"
    # In a process: its output goes to the real stderr.
    good, bad = await asyncio.gather(
        typed(*kit, program, "--report", "r.json", "--category", "mandatory", cwd=tmp_path),
        typed(*kit, program, "--category", "bad", "--strict", "-o", "json", cwd=tmp_path),
    )
    assert good.returncode == 0 and "the kit talks" in good.stderr
    assert fields(good.stdout) == {"Suite": "tck", "Exit": "0", "Report": "r.json"}
    words = json.loads((tmp_path / "r.json").read_text())
    assert words[:4] == ["--sut-url", "http://127.0.0.1:1", "--category", "mandatory"]
    assert document(bad, 1)["exit"] == 3


@pytest.mark.parametrize(
    "words",
    [
        ("conformance",),
        ("conformance", "x", "--category", "nonsense"),
        ("conformance", "x", "--suite", "tck"),
        ("conformance", "x", "--tck", "kit"),
        ("conformance", "x", "--suite", "tck", "--tck", "no-such-kit-here"),
        ("conformance", "./card.json", "--suite", "tck", "--tck", "kit"),
    ],
)
async def test_what_makes_no_sense_is_a_usage_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = await call(*words, "-o", "json", cwd=tmp_path)
    assert document(ended, 2)["error"]["code"] == "A2ACLI_ERR_USAGE"
