"""What becomes of a task when its agent, or the gateway, goes away in the middle of it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import message, serving
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.gateway.delivery import answer_relay, delivery
from dragoman.gateway.routing.hop_limit import MARGIN
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS
from tests.gateway.gateway_site import Restartable, gateway, workshop


def gated(gate: asyncio.Event, runs: list[str]) -> Agent:
    """Return an agent that says two things and waits for a gate in between."""
    agent = Agent("Gated", "Waits for a gate.")

    @agent.skill
    async def work(text: str, turn: Turn) -> None:
        runs.append(text)
        async with turn.artifact(name="work") as artifact:
            await artifact.write(f"{text}: before, ")
            await gate.wait()
            await artifact.write("after")

    return agent


async def test_the_stream_of_a_caller_outlives_the_agent_behind_it(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    agent = gated(gate, runs)
    async with (
        Restartable(agent, store=str(tmp_path / "agent.db")) as upstream,
        gateway(tmp_path) as site,
    ):
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            stream = client.stream("x")
            async for _ in stream:
                if "before" in stream.answer.text:
                    break
            await upstream.stop()
            gate.set()
            await upstream.start()
            async with asyncio.timeout(60):
                async for _ in stream:
                    pass
            assert stream.answer.text == "x: before, after"
            assert stream.answer.task is not None
            assert stream.answer.task.status.state is TaskState.COMPLETED


async def test_a_task_goes_on_when_the_gateway_starts_again(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    async with serving(gated(gate, runs)) as upstream:
        async with gateway(tmp_path) as site:
            registered = await site.register(upstream.url)
            async with site.client(registered) as client:
                stream = client.stream("x")
                async for _ in stream:
                    if "before" in stream.answer.text:
                        break
                task = stream.task_id
        gate.set()
        async with gateway(tmp_path) as site, site.client(registered) as client:
            answer = await within(client.wait(task))
            assert answer.text == "x: before, after"
            assert answer.task is not None
            assert answer.task.status.state is TaskState.COMPLETED
        assert runs == ["x"], "nothing was sent again"


async def test_an_agent_that_is_away_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    upstream = Restartable(workshop())
    async with gateway(tmp_path) as site:
        await upstream.start()
        registered = await site.register(upstream.url)
        await upstream.stop()
        async with site.client(registered) as client:
            sending = asyncio.create_task(client.send("hello"))
            await asyncio.sleep(0.1)
            await upstream.start()
            try:
                assert (await within(sending)).text == "echo: hello"
            finally:
                await upstream.stop()


async def test_an_agent_that_stays_away_fails_the_task_with_a_reason(tmp_path: Path) -> None:
    upstream = Restartable(workshop())
    async with gateway(tmp_path, forward_attempts=2) as site:
        await upstream.start()
        registered = await site.register(upstream.url)
        await upstream.stop()
        async with site.client(registered) as client:
            answer = await within(client.send("hello"))
            assert answer.task is not None and answer.task.status.state is TaskState.FAILED
            assert answer.text.startswith("The agent could not be reached.")


async def test_a_replica_does_what_its_twin_cannot(tmp_path: Path) -> None:
    dead = Restartable(workshop())
    async with serving(workshop()) as alive, gateway(tmp_path) as site:
        registered = await site.register(alive.url, replicas=[dead.url])
        async with site.client(registered) as client:
            for number in range(6):
                answer = await within(client.send(f"{number}"))
                assert answer.text == f"echo: {number}"


async def test_another_agent_takes_over_what_may_be_repeated(tmp_path: Path) -> None:
    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    runs: list[str] = []
    first, second = gated(never, runs), gated(now, runs)
    first.title, second.title = "First", "Second"
    upstream = Restartable(first)
    await upstream.start()
    async with serving(second) as other, gateway(tmp_path, forward_patience=1.0) as site:
        one = await site.register(upstream.url, name="first", repeatable=True, price=0)
        two = await site.register(other.url, name="second", repeatable=True)
        # By skill, and so by the gateway's choice: the trusted one first.
        site.gateway.trust._scores[one.id] = 90
        async with asyncio.timeout(60):
            params = {"message": message("x"), "metadata": {"skillId": "work"}}
            events: list[Any] = []
            async with site.stream("SendStreamingMessage", params) as frames:
                async for frame in frames:
                    events.append(frame)
                    if frame.data and "before" in str(frame.data) and len(runs) == 1:
                        await upstream.stop()
        ids = [int(frame.id) for frame in events if frame.id]
        assert ids == sorted(set(ids)), "the caller's stream is one"
        task = (await site.call("ListTasks", {"includeArtifacts": True}))["tasks"][0]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        (artifact,) = task["artifacts"]
        assert "".join(part["text"] for part in artifact["parts"]) == "x: before, after"
        assert len(runs) == 2
        order = await site.gateway.ledger.store.order_in(Scope("gateway"), task["id"])
        assert order is not None and order.agent == two.id


async def test_a_task_that_is_late_fails_and_its_agent_stops(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    async with serving(gated(gate, runs)) as upstream, gateway(tmp_path) as site:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            answer = await within(client.send("x", metadata={"timeoutSeconds": 1}))
            assert answer.task is not None and answer.task.status.state is TaskState.FAILED
            (task,) = (await upstream.call("ListTasks", {}))["tasks"]
            ended = await upstream.rested(task["id"])
            # It was given a little less time; else it is told.
            assert ended["status"]["state"] in ("TASK_STATE_FAILED", "TASK_STATE_CANCELED")
        order = await site.gateway.ledger.store.order_in(Scope("gateway"), answer.task.id)
        assert order is not None and 0 < order.due_at <= order.ended_at + MARGIN
        await within(site.gateway.trust.digest())
        events, _ = await site.gateway.trust.history(registered.id)
        assert [event["eventType"] for event in events] == ["task_timeout"]


async def test_an_agent_that_fails_by_the_deadline_it_was_given_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that any moment is that close to the deadline.
    monkeypatch.setattr(answer_relay, "MARGIN", 60_000)
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            wanted = {"timeoutSeconds": 30, "skillId": "fail"}
            answer = await within(client.send("x", metadata=wanted))
            assert answer.task is not None and answer.task.status.state is TaskState.FAILED
        await within(site.gateway.trust.digest())
        events, _ = await site.gateway.trust.history(registered.id)
        assert [event["eventType"] for event in events] == ["task_timeout"]


async def test_a_gateway_registered_with_itself_notices(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        registered = await site.register(
            site.url, name="self", card=None, description="The gateway itself."
        )
        async with site.client(registered) as client:
            answer = await within(client.send("round", metadata={"agentId": "self"}))
            assert answer.task is not None and answer.task.status.state is TaskState.FAILED


@pytest.mark.parametrize("agree", [True, False])
async def test_answers_count_when_enough_agents_agree(tmp_path: Path, agree: bool) -> None:
    def voter(name: str, answer: str) -> Agent:
        agent = Agent(name, "Votes.")

        @agent.skill
        async def vote(text: str) -> str:
            return answer

        return agent

    answers = ["a", "b", "a" if agree else "c"]
    async with (
        serving(voter("one", answers[0])) as one,
        serving(voter("two", answers[1])) as two,
        serving(voter("three", answers[2])) as three,
        gateway(tmp_path) as site,
    ):
        for upstream in (one, two, three):
            await site.register(upstream.url, repeatable=True)
        metadata = {"skillId": "vote", "race": 3, "quorum": 2}
        params = {"message": message("?"), "metadata": metadata}
        task = (await within(site.call("SendMessage", params)))["task"]
        if agree:
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            assert task["artifacts"][0]["parts"][0]["text"] == "a"
        else:
            assert task["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.parametrize("skill", ["look", "pay"])
async def test_a_race_is_for_the_skills_that_are_safe_to_repeat(tmp_path: Path, skill: str) -> None:
    runs: list[str] = []

    def racer(name: str) -> Agent:
        agent = Agent(name, "Looks, and pays.")

        @agent.skill
        async def look(text: str) -> str:
            return "seen"

        @agent.skill
        async def pay(text: str) -> str:
            runs.append(name)
            return "paid"

        return agent

    async with (
        serving(racer("one")) as one,
        serving(racer("two")) as two,
        gateway(tmp_path) as site,
    ):
        for upstream in (one, two):
            await site.register(upstream.url, repeatable_skills=["look"])
        params = {"message": message("?"), "metadata": {"skillId": skill, "race": 2}}
        task = (await within(site.call("SendMessage", params)))["task"]
        expected = {"look": "TASK_STATE_COMPLETED", "pay": "TASK_STATE_FAILED"}[skill]
        assert (task["status"]["state"], runs) == (expected, [])


async def test_what_is_said_meanwhile_is_given_to_the_agent_afterwards(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    async with serving(gated(gate, runs)) as upstream, gateway(tmp_path) as site:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            stream = client.stream("first")
            async for _ in stream:
                if "before" in stream.answer.text:
                    break
            more = asyncio.create_task(client.send("second", task_id=stream.task_id))
            # The gateway has it.
            await site.task_when(stream.task_id, lambda task: len(task["history"]) == 2)
            gate.set()
            answer = await within(more)
            assert answer.task is not None and answer.task.status.state is TaskState.COMPLETED
            assert runs == ["first", "second"]
            assert len(answer.task.artifacts) == 2
            contexts = {
                task["contextId"] for task in (await upstream.call("ListTasks", {}))["tasks"]
            }
            assert len(contexts) == 1, "both are of one conversation"


def test_what_was_recorded_is_read_again() -> None:
    from dragoman.model.events import Forwarded
    from dragoman.model.record import decode_event, encode_event

    place = Forwarded("a", "http://x", turn=2, task_id="t", is_delivered=True, why="because")
    assert decode_event(encode_event(place)) == place
    assert msgspec.structs.replace(place, moves=1) != place


async def test_a_message_that_went_out_before_its_task_was_kept_is_worked_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_HOLD_BACK", 600.0)
    gate, runs = asyncio.Event(), list[str]()
    sent = {"message": message("x")}
    async with serving(gated(gate, runs)) as upstream:
        async with gateway(tmp_path) as site:
            registered = await site.register(upstream.url)
            # The connection is known from here on, and so is that it works once on a message.
            await site.gateway.upstreams.of(registered).connection(registered.url)
            path = f"/a2a/{registered.name}"
            sending = asyncio.create_task(site.answer("SendMessage", sent, path=path))
            await eventually(upstream.total)
            assert await site.total() == 0, "nothing is on disk, and nobody was told"
            sending.cancel()
        gate.set()
        async with gateway(tmp_path) as site:
            again = await within(site.call("SendMessage", sent, path=path))
            assert again["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert runs == ["x"]


async def test_a_short_task_is_written_once_with_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the answer comes within the moment that is waited for it.
    monkeypatch.setattr(delivery, "_HOLD_BACK", 600.0)
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        registered = await site.register(upstream.url)
        async with site.client(registered) as client:
            await within(client.send("first"))
            answer = await within(client.send("second"))
        head = await site.gateway.store.head(Scope("gateway"), TaskId(answer.task_id))
        assert head is not None

        def writes(connection: Any) -> int:
            first = head.number << SEQ_BITS
            rows = "SELECT count(*) FROM events WHERE position BETWEEN ? AND ?"
            return connection.execute(rows, (first, first | MAX_SEQ)).fetchall()[0][0]

        assert await site.gateway.store.read_tx(writes) == 1


@pytest.mark.parametrize("kind", ["with a deadline", "for replicas", "for whoever has the skill"])
async def test_a_task_that_may_go_elsewhere_when_sent_again_is_kept_before_it_goes_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_HOLD_BACK", 600.0)
    gate, runs = asyncio.Event(), list[str]()
    sent: dict[str, Any] = {"message": message("x")}
    async with serving(gated(gate, runs)) as upstream, gateway(tmp_path) as site:
        # One place under two names: which of them it is does not matter here.
        twin = upstream.url.replace("127.0.0.1", "localhost")
        replicas = [twin] if kind == "for replicas" else []
        registered = await site.register(upstream.url, replicas=replicas)
        for url in (registered.url, *registered.replicas):
            await site.gateway.upstreams.of(registered).connection(url)
        path = f"/a2a/{registered.name}"
        if kind == "with a deadline":
            sent["metadata"] = {"timeoutSeconds": 60}
        elif kind == "for whoever has the skill":
            sent["metadata"], path = {"skillId": registered.skills[0].id}, "/"
        sending = asyncio.create_task(site.answer("SendMessage", sent, path=path))
        await eventually(upstream.total)
        assert await site.total() == 1
        gate.set()
        assert "result" in await within(sending)


async def test_a_message_given_to_two_processes_at_once_is_worked_on_once(tmp_path: Path) -> None:
    gate, runs = asyncio.Event(), list[str]()
    sent = {"message": message("x")}
    async with (
        serving(gated(gate, runs)) as upstream,
        gateway(tmp_path) as here,
        gateway(tmp_path) as there,
    ):
        registered = await here.register(upstream.url)
        path = f"/a2a/{registered.name}"
        await eventually(lambda: there.gateway.registry.get(registered.id))
        for site in (here, there):
            await site.gateway.upstreams.of(registered).connection(registered.url)
        both = [
            asyncio.create_task(site.call("SendMessage", sent, path=path)) for site in (here, there)
        ]
        await eventually(upstream.total)
        gate.set()
        found = {(await within(one))["task"]["id"] for one in both}
        assert len(found) == 1 and runs == ["x"]
        assert await here.total() == 1


async def test_nothing_is_kept_for_agents_that_are_gone(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        gone, kept = await site.register(upstream.url), await site.register(upstream.url)
        upstreams = site.gateway.upstreams
        before = upstreams.of(kept)
        upstreams.of(gone)
        await site.gateway.registry.remove(gone.id)
        upstreams.keep({agent.id for agent in site.gateway.registry.all()})
        assert upstreams.find(gone.id) is None and upstreams.find(kept.id) is before
