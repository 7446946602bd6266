"""What operators see of the server itself: figures, processes, receivers, the audit log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.serving import frames
from harness.waiting import within

from dragoman.model.identity import Scope, TaskId
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.server.operator.api import TABLE
from dragoman.server.served_agents import ServedAgents
from dragoman.stores.interface import DeadLetter
from tests.http.test_access_control import ALICE, BOSS, CHIEF, bearer
from tests.server.operator.operator_site import API, OperatorSite, operator_site

OPERATORS = [row for row in TABLE.endpoints if row.is_for_operators]


@pytest.mark.parametrize("row", OPERATORS, ids=[row.name for row in OPERATORS])
async def test_what_is_the_operators_is_refused_to_others(row: Any) -> None:
    async with operator_site() as site:
        path = row.path.replace("{id}", "1")
        for token in (ALICE, CHIEF):
            answer = await site.http.request(row.verb, path, headers=bearer(token))
            assert answer.status_code == 403, answer.text
        assert (await site.http.request(row.verb, path)).status_code == 401


async def test_samples_have_what_happened_between_two_looks() -> None:
    async with operator_site() as site:
        (part,) = [one for one in site.app.site.parts if isinstance(one, ServedAgents)]
        ring = part.operators.live.ring
        ring.look(1_000)
        for _ in range(3):
            await site.made()
        await site.made("x", ALICE, "fail")
        ring.look(6_000)
        ring.look(11_000)
        found = await site.read("/samples")
        assert found["every"] == 5
        busy, idle = found["items"][-2:]
        assert (busy["started"], busy["ended"], busy["failed"]) == (4, 4, 1)
        assert busy["requests"] >= 4 and 0 < busy["p50"] <= busy["p99"]
        assert busy["agents"]["clerk"]["started"] == 4 and busy["agents"]["clerk"]["p99"] > 0
        assert busy["memory"] > 0 and busy["at"] == "1970-01-01T00:00:06.000Z"
        assert (idle["started"], idle["p50"], idle["agents"]) == (0, 0, {})
        assert idle["number"] == busy["number"] + 1


async def test_top_lists_count_the_latest_tasks_and_hold_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with operator_site() as site:
        for _ in range(2):
            await site.made()
        failed = await site.made("x", ALICE, "fail")
        await site.made("y", BOSS, "fail")
        top = await site.read("/top")
        assert (top["tasks"], top["isCut"]) == (4, False)
        found = {
            kind: [(one["name"], one["tasks"], one["failed"]) for one in top[kind]]
            for kind in ("agents", "callers", "skills", "errors")
        }
        assert found["agents"] == [("clerk", 4, 2)]
        assert [one[1:] for one in found["callers"]] == [(3, 1), (1, 1)]
        assert {one[0] for one in found["skills"]} == {"hello", "fail"}
        assert {one[0] for one in found["errors"]} == {"cannot read x", "cannot read y"}
        assert failed in {one["taskId"] for one in top["errors"]}
        await site.made()
        assert (await site.read("/top"))["tasks"] == 4
        monkeypatch.setattr("dragoman.server.operator.tasks.top_lists.HOLDS", 0.0)
        assert (await site.read("/top"))["tasks"] == 5


async def test_a_change_is_told_to_who_sees_the_task() -> None:
    async with operator_site() as site:
        heard: dict[str, asyncio.Queue[int]] = {ALICE: asyncio.Queue(), BOSS: asyncio.Queue()}

        async def listen(token: str) -> None:
            path = f"{API}/changes"
            async with site.http.stream("GET", path, headers=bearer(token)) as response:
                async for frame in frames(response):
                    if frame.event == "change":
                        heard[token].put_nowait(frame.data["revision"])

        listeners = [asyncio.create_task(listen(token)) for token in heard]
        for queue in heard.values():
            assert await within(queue.get()) == 1
        await site.made("x", BOSS)
        assert await within(heard[BOSS].get()) == 2
        await site.made("x", ALICE)
        assert await within(heard[ALICE].get()) == 2
        assert heard[ALICE].empty()
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)


async def test_the_process_that_answers_is_among_those_of_the_store(location: str) -> None:
    async with operator_site(location=location) as site:
        (own,) = [one for one in (await site.read("/processes"))["items"] if one["isThis"]]
        assert own["state"] == "live" and not own["isDue"] and own["tasks"] == 0


async def test_the_status_counts_the_tasks_of_all_owners(location: str) -> None:
    async with operator_site(location=location) as site:
        for token in (ALICE, BOSS):
            await site.made("x", token)
        await site.made("x", ALICE, "fail")
        found = await site.read("/status")
        assert found["tasks"] == {"TASK_STATE_COMPLETED": 2, "TASK_STATE_FAILED": 1}
        assert found["state"] == "ok" and found["troubles"] == []
        assert found["agents"] == ["clerk"] and found["worker"] > 0


async def given_up(site: OperatorSite, count: int) -> list[int]:
    """Make receivers of which the last was given up; return their numbers."""
    store = site.app.store
    numbers: list[int] = []
    for n in range(count):
        task = await site.made()
        head = await store.head(Scope("clerk", "", "token:alice"), TaskId(task))
        assert head is not None
        secret = PushAuthentication("Bearer", "hush-hush")
        url = f"https://example.com/hush/{n}?key=hush"
        config = PushConfig(url, f"c{n}", TaskId(task), "hush", secret)
        push = await store.put_push(head.number, config, 0, most=9)
        assert push is not None
        numbers.append(push.number)
        failed = push if n < count - 1 else _closed(push)
        letter = DeadLetter(push.number, TaskId(task), f"c{n}", url, 1, 9, 1000 + n, "a 500")
        await store.settle(failed, letter)
    return numbers


def _closed(push: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(push, is_open=False, failing_since=5000, problem="a 500")


async def test_receivers_and_dead_letters_are_paged_and_retried(location: str) -> None:
    async with operator_site(location=location, push=False) as site:
        numbers = await given_up(site, 3)
        for limit in (1, 2, 50):
            found = await site.walk("/receivers", limit=limit)
            assert [one["number"] for one in found] == numbers[::-1]
            letters = await site.walk("/dead-letters", limit=limit)
            assert [one["receiver"] for one in letters] == numbers[::-1]
        (failing,) = await site.walk("/receivers", which="failing")
        assert failing["number"] == numbers[-1] and failing["problem"] == "a 500"
        assert failing["failingSince"] == "1970-01-01T00:00:05.000Z" and not failing["isOpen"]
        # Neither what posts show nor the whole address, which may hold a secret.
        shown = (await site.ask("/receivers")).text + (await site.ask("/dead-letters")).text
        assert "hush" not in shown and "https://example.com" in shown
        retried = await site.post(f"/receivers/{numbers[-1]}/retry")
        assert retried.status_code == 200, retried.text
        assert await site.walk("/receivers", which="failing") == []
        body = {"receiver": numbers[1], "position": 1}
        for _ in range(2):
            assert (await site.post("/dead-letters/drop", body)).status_code == 200
        left = await site.walk("/dead-letters")
        assert [one["receiver"] for one in left] == [numbers[2], numbers[0]]
        for wrong in ({}, body | {"position": 0}, body | {"receiver": "x"}, body | {"more": 1}):
            assert (await site.post("/dead-letters/drop", wrong)).status_code == 400
        for name in (str(numbers[-1] + 5), "x", "9" * 30, "-1"):
            assert (await site.post(f"/receivers/{name}/retry")).status_code == 404


async def test_the_audit_log_is_paged_and_its_chain_is_verified(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with operator_site(audit=str(log)) as site:
        task = await site.made("x", ALICE)
        # A page that is drawn again and again is one read.
        for path in ("", "", "/events", "/tree"):
            await site.read(f"/tasks/{task}{path}", BOSS)
            await site.read(f"/tasks/{task}{path}", ALICE)
        await site.ask("/processes", ALICE)

        async def acts(**query: Any) -> list[str]:
            return [line["act"] for line in await site.walk("/audit", **query)]

        async def until(act: str) -> None:
            while act not in await acts():
                pass

        await within(until("console.task.read"))
        await within(until("access.denied"))
        # The read of an owner's own task is no one else's affair.
        assert await acts(act="console.task.read") == ["console.task.read"]
        (read,) = await site.walk("/audit", act="console.task.read")
        assert read["who"] == "token:boss" and task in read["object"]
        assert await acts(act="access.", who="token:alice") == ["access.denied"]
        assert await acts(who="nobody") == []
        seqs = [line["seq"] for line in await site.walk("/audit", limit=2)]
        assert seqs == sorted(set(seqs), reverse=True)
        chain = await site.read("/audit/chain")
        assert chain["isValid"] and chain["lines"] > 3 and chain["problems"] == []
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join([lines[0], *lines[2:]]))
        broken = await site.read("/audit/chain")
        assert not broken["isValid"] and broken["problems"][0]["file"] == "audit.jsonl"


async def test_a_server_without_an_audit_log_has_an_empty_one() -> None:
    async with operator_site(audit="off") as site:
        assert (await site.read("/audit"))["items"] == []
        assert (await site.read("/audit/chain"))["isValid"]


async def test_a_tool_elsewhere_reads_the_store_and_no_path_of_a_receiver(tmp_path: Path) -> None:
    async with operator_site(location=str(tmp_path / "tasks.db"), push=False) as site:
        await given_up(site, 2)
        for read in ("health.pushes", "health.letters"):
            found = await site.post("/inspection", {"read": read})
            assert found.status_code == 200 and len(found.json()["value"]) == 2
            assert "hush" not in found.text and "https://example.com" in found.text
        for wrong in ({"read": "tasks.prune"}, {"read": "tasks.find", "arguments": {"x": 1}}):
            assert (await site.post("/inspection", wrong)).status_code == 400


async def test_what_is_in_the_memory_of_a_server_alone_is_not_inspected() -> None:
    async with operator_site() as site:
        refused = await site.post("/inspection", {"read": "health.letters"})
        assert refused.status_code == 400 and "memory" in refused.text
