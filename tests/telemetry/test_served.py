"""What an operator sees of a served agent: counts that are right, lines of log that say whose."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from harness.processes import running
from harness.serving import V1, app_of, client, message, serving
from harness.waiting import eventually, within
from prometheus_client.parser import text_string_to_metric_families

from dragoman import Agent, App, Turn
from dragoman.telemetry import page
from proof.wire.receivers import Receiver, Treatment

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{ID}-00f067aa0ba902b7-01"
Samples = Counter[tuple[str, ...]]


def samples(body: bytes) -> Samples:
    """Return the page by names and labels, those in the order of their names."""
    return Counter(
        {
            (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
    )


def worker() -> Agent:
    agent = Agent("worker", "Works.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        if text == "fail":
            raise ValueError("no")
        if text == "ask":
            await turn.ask("what?")
        return await turn.step("once", str.upper, text)

    return agent


async def test_counts_are_right_after_a_known_sequence(tmp_path: Path) -> None:
    async with (
        Receiver([Treatment.OK]) as receiver,
        serving(worker(), store=str(tmp_path / "t.db"), allow_private=True) as site,
    ):
        before = samples(page.render())
        for text in ("a", "b", "fail"):
            await site.send(text)
        waiting = await site.send("ask")
        await site.send("now", taskId=waiting["id"])
        events = await site.events("SendStreamingMessage", {"message": message("c")}, headers=V1)
        assert len(events) > 1
        await site.refusal("GetTask", {"id": "none"}, headers=V1)
        await site.refusal("Nonsense", {}, headers=V1)
        assert (await site.http.get("/tasks/none", headers=V1)).status_code == 404
        assert (await site.http.get("/healthz")).status_code == 200
        running_now = samples(page.render())["dragoman_tasks_running", "worker"]
        wanted = {"taskPushNotificationConfig": {"url": receiver.url}}
        await site.send("d", configuration=wanted)
        delivered = ("dragoman_push_delivered_total",)

        async def posted() -> None:
            while not any(b"COMPLETED" in post.body for post in receiver.taken):
                receiver.arrived.clear()
                await receiver.arrived.wait()

        await within(posted())
    after = samples(page.render())
    grown = after - before
    send = ("dragoman_requests_total", "jsonrpc")
    # By binding, operation, outcome, version.
    assert grown[*send, "SendMessage", "ok", "1.0"] == 6
    assert grown[*send, "StreamMessage", "ok", "1.0"] == 1
    assert grown[*send, "GetTask", "TaskNotFound", "1.0"] == 1
    assert grown[*send, "none", "MethodNotFound", "none"] == 1
    assert grown["dragoman_requests_total", "rest", "GetTask", "TaskNotFound", "1.0"] == 1
    assert grown["dragoman_requests_total", "none", "none", "ok", "none"] == 1
    assert grown["dragoman_request_seconds_count", "SendMessage"] == 6
    assert grown["dragoman_tasks_started_total", "worker"] == 6
    assert grown["dragoman_tasks_ended_total", "worker", "completed"] == 5
    assert grown["dragoman_tasks_ended_total", "worker", "failed"] == 1
    assert grown["dragoman_turn_seconds_count", "worker"] == 6
    assert grown["dragoman_steps_total", "ok"] == 5
    assert grown["dragoman_step_seconds_count",] == 5
    # The last one may have been recorded a moment after its receiver took it.
    assert grown["dragoman_push_tries_total", "taken"] - grown[delivered] in (0, 1)
    assert (
        grown["dragoman_store_commits_total", "ok"] == grown["dragoman_store_commit_writes_count",]
    )
    assert grown["dragoman_store_commits_total", "ok"] >= 6
    assert running_now == 0 and after["dragoman_streams_open",] == 0
    # Gone with the app that was watched.
    assert ("dragoman_tasks_running", "worker") not in after


async def test_a_stream_whose_reader_left_is_counted_as_cut() -> None:
    agent = Agent("waiter", "Waits.")

    @agent.skill
    async def wait(text: str) -> str:
        await asyncio.Event().wait()
        return text

    async with serving(agent, cancel_grace=0.1) as site:
        before = samples(page.render())
        params = {"message": message("x")}
        async with site.stream("SendStreamingMessage", params, headers=V1) as frames:
            assert await within(anext(frames))
            assert samples(page.render())["dragoman_streams_open",] == 1
            assert samples(page.render())["dragoman_tasks_running", "waiter"] == 1
        # The server hears of it from its socket, which tells nobody here.
        await eventually(lambda: not samples(page.render())["dragoman_streams_open",])
        grown = samples(page.render()) - before
        assert grown["dragoman_streams_cut_total", "gone"] == 1


async def test_what_callers_send_makes_no_series() -> None:
    app = app_of(worker())
    chance = random.Random(7)

    def word() -> str:
        return chance.randbytes(6).hex()

    async with app.running(), http_of(app) as http:
        await http.post("/message:send", json={"message": message("a")}, headers=V1)
        before = set(samples(page.render()))
        for n in range(1000):
            rpc = {"jsonrpc": "2.0", "id": n, "method": word(), "params": {word(): word()}}
            said = {"message": message(word(), taskId=word())}
            verb, path, body = [
                ("POST", "/", rpc),
                ("GET", f"/{word()}/{word()}", None),
                ("GET", f"/tasks/{word()}", None),
                ("POST", "/message:send", said),
            ][n % 4]
            headers = {"A2A-Version": chance.choice(["1.0", word()]), "x-agent-id": word()}
            await http.request(verb, path, json=body, headers=headers)
        added = set(samples(page.render())) - before
    names = {sample for sample in added if not sample[0].endswith("_bucket")}
    assert len(names) < 30, sorted(names)


def http_of(app: App) -> httpx.AsyncClient:
    """Return a client that calls an app without a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def test_workers_log_lines_of_json_and_answer_for_each_other(tmp_path: Path) -> None:
    asyncio.run(_log_and_count(tmp_path))


AGENT = """
import logging
from dragoman import Agent

agent = Agent("teller", "Tells its log.")

@agent.skill
async def tell(text: str) -> str:
    logging.getLogger("dragoman.told").info("told %s", text)
    return text
"""


async def _log_and_count(folder: Path) -> None:
    (folder / "teller.py").write_text(AGENT)
    said = ("serve", "teller.py", "--listen", "127.0.0.1:0", "--workers", "2")
    wanted = {"DRAGOMAN_LOG_FORMAT": "json", "DRAGOMAN_ACCESS_LOG": "on"}
    with running(*said, "--store", folder / "t.db", cwd=folder, env=wanted) as server:
        url = server.ready()
        # A connection each: the workers take turns.
        tasks = [await _send(url, f"n{n}\n\x1b[31m") for n in range(8)]
        await _send_nonsense(url)

        async def counted() -> Any:
            found = await _counted(url)
            sent = found["dragoman_requests_total", "rest", "SendMessage", "ok", "1.0"]
            refused = found["dragoman_connection_refusals_total", "syntax"]
            return found if (sent, refused) == (8, 1) else None

        found = await eventually(counted)
        assert found["dragoman_tasks_started_total", "teller"] == 8
        assert found["dragoman_connections_total",] >= 9
        assert sum(n for name, n in found.items() if name[0] == "dragoman_build_info") == 2
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.splitlines()]
    told = [line for line in lines if line["logger"] == "dragoman.told"]
    assert {line["task_id"] for line in told} == set(tasks)
    assert {line["trace_id"] for line in told} == {ID} and told[0]["agent"] == "teller"
    assert {line["message"] for line in told} == {f"told n{n}\n\x1b[31m" for n in range(8)}
    asked = [line for line in lines if line["logger"] == "dragoman.access"]
    sent = [line for line in asked if line.get("operation") == "SendMessage"]
    assert len(sent) == 8
    facts = {
        "verb": "POST",
        "route": "/message:send",
        "binding": "HTTP+JSON",
        "version": "1.0",
        "agent": "teller",
        "status": 200,
        "outcome": "ok",
        "address": "127.0.0.1",
    }
    assert all(facts.items() <= line.items() for line in sent)
    assert {line["route"] for line in asked} == {"/message:send", "/metrics"}


async def _send(url: str, text: str) -> str:
    async with client(url) as http:
        headers = V1 | {"traceparent": PARENT, "connection": "close"}
        body = {"message": message(text)}
        answer = await http.post("/message:send", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["task"]["id"]


async def _send_nonsense(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await within(asyncio.open_connection(host, int(port)))
    writer.write(b"nonsense\r\n\r\n")
    assert b" 400 " in await within(reader.read())
    writer.close()


async def _counted(url: str) -> Samples:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{url}/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == page.CONTENT_TYPE
        return samples(answer.content)
