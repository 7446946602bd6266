"""One trace from a client through two agents to a receiver of pushes, also across `kill -9`."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from harness.processes import environment, running
from harness.serving import V1, Site, client, message, serving
from harness.waiting import WAIT, within

from dragoman import Agent, Client, PushConfig, Settings, Turn
from dragoman.config import TelemetrySettings
from dragoman.telemetry import exporting, tracing
from dragoman.testing.processes import ServerProcess
from proof.wire.receivers import Receiver, Treatment
from tests.telemetry.collector import Collector, Span, collecting
from tests.telemetry.test_tracing import INVALID

ID, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{ID}-{SPAN}-01"
SERVER, CLIENT = 2, 3
CANARY = "canary-7f3a9c"

AGENT = """
import asyncio, os, pathlib
from dragoman import Agent, Client, Turn

agent = Agent(os.environ["ROLE"], "Passes on what it is told.")

def looked_up() -> str:
    return "found"

@agent.skill
async def relay(text: str, turn: Turn) -> str:
    await turn.step("look up", looked_up)
    gate = os.environ.get("GATE", "")
    while gate and not pathlib.Path(gate).exists():
        await asyncio.sleep(0.02)
    further = os.environ.get("FURTHER", "")
    if further:
        async with Client(further) as client:
            await client.send(text)
    return text
"""


def arguments(folder: Path, role: str) -> tuple[str | Path, ...]:
    (folder / "relay_agent.py").write_text(AGENT)
    store = ("--store", folder / f"{role}.db")
    return ("serve", "relay_agent.py", "--listen", "127.0.0.1:0", "--allow-private", *store)


def surroundings(role: str, collector: Collector, **more: str) -> dict[str, str]:
    return {
        "ROLE": role,
        "OTEL_SERVICE_NAME": role,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "DRAGOMAN_LEASE": "1",
        **more,
    }


@pytest.fixture(autouse=True)
def nobody_else_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that other tests of this process keep open are no users of the exporter here."""
    monkeypatch.setattr(exporting, "_users", 0)


@asynccontextmanager
async def traced(collector: Collector) -> AsyncGenerator[None]:
    """Make spans in this process."""
    exporting.open(Settings(telemetry=TelemetrySettings(otlp_endpoint=collector.url)))
    try:
        yield
    finally:
        await exporting.close()


def posted(receiver: Receiver) -> list[tracing.Trace | None]:
    return [tracing.parse(post.headers.get("traceparent", "")) for post in receiver.taken]


def only(spans: list[Span]) -> Span:
    assert len(spans) == 1, spans
    return spans[0]


async def test_one_trace_links_client_server_step_push_and_a_second_agent(
    tmp_path: Path,
) -> None:
    with collecting() as collector:
        second = surroundings("second", collector)
        with running(*arguments(tmp_path, "second"), cwd=tmp_path, env=second) as there:
            first = surroundings("first", collector, FURTHER=there.ready())
            with running(*arguments(tmp_path, "first"), cwd=tmp_path, env=first) as here:
                here.ready()
                async with Receiver([Treatment.OK]) as receiver:
                    await call(here, collector, receiver)
                    # Ended in good order: what is left is delivered before they go.
                    assert here.stop() == 0
                assert there.stop() == 0
        check_spans(collector)
        for body in collector.bodies:
            assert CANARY.encode() not in body
        assert "agent.tasks" in collector.metrics and "agent.loop.duration" in collector.metrics
        tasks = collector.metrics["agent.tasks"].sum.data_points
        assert [point.as_double or point.as_int for point in tasks] == [1]


async def call(here: ServerProcess, collector: Collector, receiver: Receiver) -> None:
    async with traced(collector), Client(here.url) as agent:
        answer = await within(agent.send(CANARY, push=PushConfig(url=receiver.url)))
        assert answer.text == CANARY
        await receiver.until(lambda: any(b"COMPLETED" in post.body for post in receiver.taken))
    places = [place for place in posted(receiver) if place is not None]
    assert len(places) == len(receiver.taken) > 1
    await asyncio.to_thread(
        collector.wait, lambda it: len(it.named("push", "first")) == len(places)
    )
    # Each post is a span, and its receiver is told which.
    assert {span.id for span in collector.named("push")} == {place.span_id for place in places}
    assert len({place.trace_id for place in places}) == 1


def check_spans(collector: Collector) -> None:
    mine = only(collector.named("SendMessage", "dragoman"))
    sends = collector.named("SendMessage", "first")
    served = only([span for span in sends if span.kind == SERVER])
    onward = only([span for span in sends if span.kind == CLIENT])
    turn = only(collector.named("agent[first]"))
    step = only(collector.named("step look up", "first"))
    served_there = only(collector.named("SendMessage", "second"))
    turn_there = only(collector.named("agent[second]"))
    way = (mine, served, turn, onward, served_there, turn_there)
    assert not mine.parent
    for above, below in pairwise(way):
        assert below.parent == above.id, (above, below)
    assert step.parent == turn.id
    assert {span.parent for span in collector.named("push")} == {served.id}
    everything = [*way, step, *collector.named("push")]
    assert {span.trace for span in everything} == {mine.trace}
    assert not any(span.failed for span in everything)
    assert served.attributes["a2a.version"] == "1.0" and served.attributes["a2a.outcome"] == "ok"
    assert served.attributes["a2a.binding"] == "jsonrpc" and turn.attributes["session.id"]
    assert served.attributes["agent.task.id"] == turn.attributes["agent.task.id"]
    assert turn.attributes["agent.id"] == served.attributes["agent.id"] == "first"


async def test_a_task_stays_in_its_trace_when_its_server_is_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with collecting() as collector:
        around = surroundings("first", collector, GATE=str(gate))
        async with Receiver([Treatment.OK]) as receiver:
            with running(*arguments(tmp_path, "first"), cwd=tmp_path, env=around) as server:
                await begin(server, receiver)
                await asyncio.to_thread(collector.wait, lambda it: bool(it.named("step look up")))
                server.process.kill()
                server.process.wait(WAIT)
            before = len(collector.spans)
            gate.touch()
            with running(*arguments(tmp_path, "first"), cwd=tmp_path, env=around) as server:
                server.ready()
                await receiver.until(
                    lambda: any(b"COMPLETED" in post.body for post in receiver.taken)
                )
                await asyncio.to_thread(collector.wait, lambda it: bool(it.named("agent[first]")))
                assert server.stop() == 0
            assert {place and place.trace_id for place in posted(receiver)} == {ID}
        after = collector.spans[before:]
        assert {span.trace for span in collector.spans} == {ID}
        turn = only([span for span in after if span.name == "agent[first]"])
        assert turn.attributes["agent.attempt"] == 2
        (taken_over,) = collector.metrics["dragoman.takeovers"].sum.data_points
        assert (taken_over.as_double or taken_over.as_int) == 1
        assert not [span for span in after if span.name == "step look up"], "it was done before"


async def begin(server: ServerProcess, receiver: Receiver) -> None:
    async with client(server.ready()) as http:
        wanted = {"returnImmediately": True, "taskPushNotificationConfig": {"url": receiver.url}}
        body = {"message": message("go"), "configuration": wanted}
        headers = V1 | {"traceparent": PARENT, "tracestate": "vendor=1"}
        answer = await http.post("/message:send", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    await receiver.until(lambda: bool(receiver.taken))


def echo() -> Agent:
    agent = Agent("echo", "Says it again.")

    @agent.skill
    def say(text: str) -> str:
        # In a thread, where a client would find it too.
        seen.append(tracing.outgoing())
        return text

    seen.clear()
    return agent


seen: list[dict[str, str]] = []


async def send(site: Site, headers: dict[str, str]) -> None:
    params = {"message": message("hi")}
    assert "task" in await site.call("SendMessage", params, headers=V1 | headers)


async def test_what_comes_in_goes_out_though_nothing_is_traced() -> None:
    assert not tracing.on
    async with serving(echo()) as site:
        await send(site, {"traceparent": PARENT, "tracestate": "a=1,b=2"})
        assert seen == [{"traceparent": PARENT, "tracestate": "a=1,b=2"}]


async def test_an_invalid_traceparent_begins_a_fresh_trace() -> None:
    # What a header cannot carry, no client sends.
    sendable = [text for text in INVALID if text.isascii() and text and text == text.strip()]
    assert len(sendable) >= 20
    async with serving(echo()) as site:
        for text in [*sendable, ""]:
            await send(site, {"traceparent": text, "tracestate": "a=1"} if text else {})
        async with httpx.AsyncClient(trust_env=False) as http:
            twice = [*V1.items(), ("traceparent", PARENT), ("traceparent", PARENT)]
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
            body["params"] = {"message": message("hi")}  # type: ignore[assignment]
            assert "result" in (await http.post(site.url, json=body, headers=twice)).json()
    fresh = [tracing.parse(headers["traceparent"]) for headers in seen]
    assert not any("tracestate" in headers for headers in seen)
    ids = {place.trace_id for place in fresh if place is not None}
    assert len(ids) == len(fresh) == len(sendable) + 2 and ID not in ids


async def test_a_dead_collector_changes_no_answer_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "CLOSE_WITHIN", 0.3)
    with socket.socket() as taken:
        # Bound and not listening: whoever dials is refused.
        taken.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with collecting(status=500) as broken, collecting(status=0) as silent:
            for endpoint in (refusing, broken.url, silent.url):
                caplog.clear()
                async with serving(echo(), otlp_endpoint=endpoint) as site:
                    assert tracing.on
                    for _ in range(5):
                        await within(send(site, {"traceparent": PARENT}))
                    began = time.monotonic()
                assert time.monotonic() - began < exporting.TIMEOUT, f"{endpoint} held the end up"
                assert not tracing.on
                said = [entry for entry in caplog.records if "delivered" in entry.getMessage()]
                assert len(said) <= 1
            assert broken.bodies


async def test_the_collector_gets_the_headers_and_the_sampling_the_operator_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        async with serving(echo(), otlp_endpoint=collector.url + "/v1/traces") as site:
            await send(site, {"traceparent": PARENT})
        assert seen[0]["traceparent"].startswith(f"00-{ID}-")
        assert seen[0]["traceparent"].endswith("-00"), "what is not recorded does not say it is"
        assert not collector.spans
        # The metrics of a process go out at its end at the latest.
        assert collector.metrics and collector.headers[0]["x-tenant"] == "blue"
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        async with serving(echo(), otlp_endpoint=collector.url):
            assert not tracing.on


async def test_a_failed_call_is_a_failed_span_and_says_nothing_of_the_cause() -> None:
    agent = Agent("broken", "Fails.")

    @agent.skill
    async def fail(text: str, turn: Turn) -> str:
        def look() -> str:
            raise ValueError(f"no {text}")

        return await turn.step("look", look)

    with collecting() as collector:
        async with serving(agent, otlp_endpoint=collector.url) as site:
            secret = V1 | {"authorization": f"Bearer {CANARY}", "x-api-key": CANARY}
            said = {"message": message(CANARY, metadata={"note": CANARY})}
            assert "task" in await site.call("SendMessage", said, headers=secret)
            await site.refusal("GetTask", {"id": "none"}, headers=secret)
        step, turn = only(collector.named("step look")), only(collector.named("agent[broken]"))
        assert step.failed and turn.failed and step.attributes["error.type"] == "ValueError"
        missing = only(collector.named("GetTask"))
        assert missing.failed and missing.attributes["a2a.outcome"] == "TaskNotFound"
        assert not any(CANARY.encode() in body for body in collector.bodies)


OFF = """
import asyncio, sys
sys.path.insert(0, "tests")
from harness.serving import serving
from dragoman import Agent, Client

agent = Agent("a", "A.")

@agent.skill
async def say(text: str) -> str:
    return text

async def main():
    async with serving(agent) as site, Client(site.url) as client:
        assert (await client.send("x")).text == "x"
    print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus"))])

asyncio.run(main())
"""


def test_nothing_of_opentelemetry_is_loaded_while_it_is_off(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OFF],
        cwd=Path(__file__).parent.parent.parent,
        env={k: v for k, v in environment(tmp_path).items() if not k.startswith("OTEL_")},
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert ran.stdout.strip() == "[]", ran.stderr


async def test_spans_of_apps_in_one_process_end_with_the_last_of_them() -> None:
    with collecting() as collector:
        settings = Settings(telemetry=TelemetrySettings(otlp_endpoint=collector.url))
        exporting.open(settings)
        exporting.open(settings)
        await exporting.close()
        assert tracing.on
        await asyncio.wait_for(exporting.close(), WAIT)
        assert not tracing.on


async def test_a_further_message_points_to_the_trace_of_its_task() -> None:
    agent = Agent("asker", "Asks.")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask(CANARY)).text

    with collecting() as collector:
        async with serving(agent, otlp_endpoint=collector.url) as site:
            begun = {"message": message("hi")}
            task = await site.call("SendMessage", begun, headers=V1 | {"traceparent": PARENT})
            further = {"message": message("well", taskId=task["task"]["id"])}
            await site.call("SendMessage", further, headers=V1)
        first, second = collector.named("SendMessage")
        assert first.trace == ID and not first.links
        assert second.trace != ID and second.links == [ID]


async def test_each_event_of_the_protocol_is_seen_in_the_span_of_its_turn() -> None:
    agent = Agent("teller", "Tells.")

    @agent.skill
    async def tell(text: str, turn: Turn) -> str:
        await turn.say(CANARY)
        await turn.artifact(CANARY, name=CANARY)
        await turn.ask(CANARY)
        if text == "fail":
            raise ValueError(CANARY)
        return CANARY

    async def tell_all(site: Site, text: str) -> None:
        task = await site.send(text)
        await site.send(CANARY, taskId=task["id"])

    with collecting() as collector:
        async with serving(agent, otlp_endpoint=collector.url) as site:
            await tell_all(site, "hi")
            await tell_all(site, "fail")
        done, failed = collector.named("agent[teller]")
        states = [said.get("a2a.state", name) for name, said in done.events]
        expected = ["working", "working", "a2a.artifact", "ask", "input_required", "working"]
        assert states == [*expected, "a2a.artifact", "completed"], done.events
        assert [said.get("a2a.state") for _, said in failed.events][-1] == "failed"
        assert {name for name, _ in done.events} == {"a2a.status", "a2a.artifact", "ask"}
        assert not any(CANARY.encode() in body for body in collector.bodies)


async def test_each_event_of_the_protocol_may_have_a_span_of_its_own() -> None:
    agent = Agent("teller", "Tells.")

    @agent.skill
    async def tell(text: str, turn: Turn) -> str:
        await turn.say(CANARY)
        await turn.ask(CANARY)
        return CANARY

    with collecting() as collector:
        told = {"otlp_endpoint": collector.url, "trace_events": True}
        async with serving(agent, **told) as site:
            headers = V1 | {"traceparent": PARENT}
            begun = await site.call("SendMessage", {"message": message("x")}, headers=headers)
            await site.send(CANARY, taskId=begun["task"]["id"])
            # One that ends where no code works on it.
            other = await site.call("SendMessage", {"message": message("y")}, headers=headers)
            await site.call("CancelTask", {"id": other["task"]["id"]})
        turns = collector.named("agent[teller]")
        assert turns and not any("a2a.status" in dict(turn.events) for turn in turns)
        of_task = [
            span
            for span in collector.spans
            if span.name.startswith("a2a.")
            and span.attributes["agent.task.id"] == begun["task"]["id"]
        ]
        of_task.sort(key=lambda span: span.attributes["a2a.event.position"])
        assert [span.attributes.get("a2a.state", span.name) for span in of_task] == [
            "submitted",
            "working",
            "working",
            "input_required",
            "working",
            "a2a.artifact",
            "completed",
        ]
        assert {span.trace for span in of_task} == {ID}
        states = [span.attributes.get("a2a.state") for span in collector.named("a2a.status")]
        assert states.count("canceled") == 1
        assert not any(CANARY.encode() in body for body in collector.bodies)
    assert not tracing.per_event


async def test_very_many_events_leave_a_span_of_bounded_size() -> None:
    agent = Agent("talker", "Talks.")

    @agent.skill
    async def talk(text: str, turn: Turn) -> str:
        for n in range(300):
            await turn.say(str(n))
        return text

    with collecting() as collector:
        async with serving(agent, otlp_endpoint=collector.url) as site:
            await site.send("hi")
        turn = only(collector.named("agent[talker]"))
        assert len(turn.events) == 128
        assert turn.events[-1][1]["a2a.state"] == "completed"


async def test_a_refusal_has_its_number_in_its_span() -> None:
    with collecting() as collector:
        async with serving(echo(), otlp_endpoint=collector.url) as site:
            await site.refusal("GetTask", {"id": "none"}, headers=V1)
            await site.http.get("/tasks/none", headers=V1)
            await site.events("SendStreamingMessage", {"message": message("a")}, headers=V1)
        called, rested = collector.named("GetTask")
        assert called.attributes["rpc.jsonrpc.error_code"] == -32001
        assert called.attributes["http.response.status_code"] == 200
        assert "rpc.jsonrpc.error_code" not in rested.attributes
        assert rested.attributes["http.response.status_code"] == 404
        streamed = only(collector.named("StreamMessage"))
        assert streamed.attributes["http.response.status_code"] == 200


@pytest.mark.parametrize("said", ["often", "-1", "0", "1e3", "9" * 30])
async def test_an_interval_that_is_none_is_said_once_and_metrics_go_out(
    said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", said)
    with collecting() as collector:
        async with traced(collector):
            pass
        assert collector.metrics
    lines = [line.getMessage() for line in caplog.records if "INTERVAL" in line.getMessage()]
    assert len(lines) == 1 and "60000" in lines[0]


def test_a_loop_that_closed_meanwhile_is_no_error(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(exporting, "CLOSE_WITHIN", 0.05)
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    async def leave(collector: Collector) -> None:
        exporting.open(Settings(telemetry=TelemetrySettings(otlp_endpoint=collector.url)))
        await exporting.close()

    with collecting(status=0) as silent:
        before = set(threading.enumerate())
        asyncio.run(leave(silent))
        (ending,) = [
            one for one in set(threading.enumerate()) - before if one.name == "dragoman-otlp-end"
        ]
        silent.over.set()
        ending.join(WAIT)
        assert not ending.is_alive() and not raised


def test_a_start_reads_no_metadata_of_packages(tmp_path: Path) -> None:
    code = "import sys, dragoman.server.process.run; print('importlib.metadata' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert ran.stdout.strip() == "False", ran.stderr
