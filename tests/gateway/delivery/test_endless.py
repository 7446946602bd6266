"""Agents behind a gateway that send without end: no more is read than is taken, and there is an end
that both sides hear of."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import V1, Site, message, serving
from harness.waiting import eventually, within

from dragoman import Agent
from dragoman.egress.http1 import MOST_UNREAD
from dragoman.gateway.delivery import race
from dragoman.model.identity import LOCAL
from dragoman.model.task import TaskState
from dragoman.stores.interface import Survey
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.guarded_site import ALICE, guarded, known, send, settled
from tests.gateway.raw_peer import STREAM, Answer, Asked, Peer, card, http, raw_peer


def endless(pause: float = 0.0) -> Agent:
    """Return an agent that streams without end: as fast as it can, or with a pause in between so
    that it does not reach a limit of its own before its reader does."""
    agent = Agent("Endless", "Streams.")

    @agent.skill(default=True)
    async def chunks(text: str) -> AsyncIterator[str]:
        while True:
            yield "x" * int(text)
            if pause:
                await asyncio.sleep(pause)

    @agent.skill
    async def echo(text: str) -> str:
        return text

    return agent


async def states(site: Site) -> list[TaskState]:
    return [head.standing.state for head in await site.app.store.survey(Survey(limit=100))]


async def begin(site: GatewaySite, agent: str, size: int, **metadata: Any) -> str:
    body = {
        "message": message(f"{size}"),
        "configuration": {"returnImmediately": True},
        "metadata": {"agentId": agent, **metadata},
    }
    sent = await within(site.http.post("/message:send", json=body, headers=V1))
    assert sent.status_code == 200, sent.text
    return sent.json()["task"]["id"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_events": 500}, "The task grew beyond its limit of 500 events."),
        ({"max_task_bytes": 200_000}, "The task grew beyond its limit of 200,000 bytes."),
    ],
)
async def test_a_task_at_its_limit_fails_with_the_reason_and_is_canceled_at_its_agent(
    tmp_path: Path, limits: dict[str, Any], reason: str
) -> None:
    async with serving(endless(0.001)) as upstream, gateway(tmp_path, **limits) as site:
        agent = await site.register(upstream.url)
        task_id = await begin(site, agent.id, 1000)

        async def is_over() -> bool:
            return (await states(site)) == [TaskState.FAILED]

        async def is_canceled() -> bool:
            return (await states(upstream)) == [TaskState.CANCELED]

        await eventually(is_over)
        await eventually(is_canceled)
        task = (await site.http.get(f"/tasks/{task_id}", headers=V1)).json()
        assert task["status"]["message"]["parts"][0]["text"] == reason


def _frame(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


WORKING = '{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
BEGAN = '{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'


def flooding(pieces: Iterable[bytes]) -> Callable[[str, Asked], Answer]:
    """Return an agent that begins a task and then sends these, one after the other."""

    def answer(name: str, asked: Asked) -> Answer:
        if not asked.is_stream:
            return [http(BEGAN.encode()[8:-1])]
        return itertools.chain([STREAM, _frame(BEGAN)], pieces)

    return answer


async def flood(site: GatewaySite, peer: Peer, name: str = "flood") -> str:
    """Register an agent of 1.0 over REST by its card alone."""
    shown = card(f"{peer.url}/{name}", binding="HTTP+JSON", streaming=True)
    return (await known(site, peer, name, card=shown, repeatable=True)).id


async def test_events_that_nobody_records_have_an_end_too(tmp_path: Path) -> None:
    pieces = itertools.repeat(_frame(WORKING) * 100)
    async with raw_peer(flooding(pieces)) as peer, guarded(tmp_path, max_events=2000) as site:
        agent = await flood(site, peer)
        task = await send(site, ALICE, metadata={"agentId": agent})
        assert await settled(site, ALICE, task["id"]) == "TASK_STATE_FAILED"


@pytest.mark.parametrize("race", [0, 2], ids=["alone", "race"])
@pytest.mark.parametrize(
    "nothing",
    [b": x\n", b"\n", b"data:\n\n"],
    ids=["comments", "lines", "empty"],
)
async def test_a_stream_of_nothing_waits_for_its_turn_and_has_an_end(
    tmp_path: Path, nothing: bytes, race: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is nothing to show costs as much to read as what is."""
    pieces = itertools.repeat(nothing * (8192 // len(nothing)))
    async with raw_peer(flooding(pieces)) as peer, guarded(tmp_path, max_events=200) as site:
        agent = await flood(site, peer)
        wish: dict[str, Any] = {"agentId": agent}
        if race:
            await flood(site, peer, "flood-2")
            wish = {"skillId": "s", "race": race}
        turns: list[str] = []
        shares = site.app.site.shares
        turn = shares.turn

        async def noted(account: Any, name: str) -> None:
            turns.append(name)
            await turn(account, name)

        monkeypatch.setattr(shares, "turn", noted)
        task = await send(site, ALICE, metadata=wish)
        assert await settled(site, ALICE, task["id"]) == "TASK_STATE_FAILED"
        assert len(turns) >= 150


async def test_an_agent_is_not_read_further_than_the_disk_takes_it(tmp_path: Path) -> None:
    sent = 0
    chunk = (
        '{"artifactUpdate":{"taskId":"t","contextId":"c","append":%s,'
        '"artifact":{"artifactId":"a","parts":[{"text":"' + "x" * 5000 + '"}]}}}'
    )

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        yield _frame(chunk % "false")
        data = _frame(chunk % "true")
        while True:
            sent += len(data)
            yield data

    async with raw_peer(flooding(pieces())) as peer, guarded(tmp_path) as site:
        store: Any = site.app.store
        agent = await flood(site, peer)
        task = await send(site, ALICE, metadata={"agentId": agent})
        await eventually(lambda: sent > 100_000)
        held: list[Any] = []
        # As a disk that takes nothing for a while.
        passes = store.submit

        def hold(write: Any, done: Any) -> None:
            held.append((write, done))

        store.submit = hold
        try:
            before = -1
            while before != sent:
                before = sent
                # The sockets of both sides fill; then nothing moves.
                for _ in range(200):
                    await asyncio.sleep(0.001)
            assert sent < 32 * 1024 * 1024 + MOST_UNREAD
        finally:
            store.submit = passes
            for write, done in held:
                passes(write, done)
        body = await site.http.post(
            f"/tasks/{task['id']}:cancel", headers={"authorization": f"Bearer {ALICE}", **V1}
        )
        assert body.status_code == 200


async def test_an_answer_of_a_race_that_has_no_end_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "_MOST_HELD", 100_000)
    async with (
        serving(endless()) as first,
        serving(endless()) as second,
        gateway(tmp_path) as site,
    ):
        for place, upstream in enumerate((first, second)):
            agent = await site.register(upstream.url, name=f"a{place}", repeatable=True)
            await site.gateway.registry.heartbeat(agent.id, "online", owner=LOCAL)
        body = {"message": message("1000"), "metadata": {"skillId": "chunks", "race": 2}}
        sent = await within(site.http.post("/message:send", json=body, headers=V1))
        assert sent.json()["task"]["status"]["state"] == "TASK_STATE_FAILED"

        async def are_canceled() -> bool:
            return [*await states(first), *await states(second)] == [TaskState.CANCELED] * 2

        await eventually(are_canceled)
