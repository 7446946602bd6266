"""Triggers begin tasks: each due time and each post once, on every store."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from harness.serving import client, hosting, serving

from dragoman.config import load_settings
from dragoman.errors import InvalidParams, NoAgentAvailable, StoreUnavailable
from dragoman.gateway.app import gateway_app, order_rules_of
from dragoman.gateway.triggers.definition import NewTrigger, TriggerChange, TriggerSchedule
from dragoman.gateway.triggers.triggers import Triggers, read
from dragoman.model.identity import LOCAL, Principal
from dragoman.stores.interface.triggers import TriggerRow
from dragoman.stores.memory.gateway import MemoryGatewayStore
from dragoman.testing.clock import ManualClock
from tests.gateway.gateway_site import GatewaySite, workshop
from tests.gateway.guarded_site import ALICE, BOB, OPERATOR, ask, guarded

pytestmark = pytest.mark.anyio
MINUTE = 60_000


class Clockwork:
    """A gateway with an agent, and triggers whose time stands still."""

    def __init__(self, site: GatewaySite, clock: ManualClock) -> None:
        self.site = site
        self.clock = clock
        self.triggers = self.another()

    def another(self) -> Triggers:
        """Return what another process of the gateway has."""
        gateway = self.site.gateway
        return Triggers(
            gateway.store, gateway.registry.get, gateway.service, gateway.settings, self.clock
        )

    async def make(self, **more: Any) -> TriggerRow:
        given: dict[str, Any] = {"schedule": TriggerSchedule(cron="* * * * *"), "text": "at {due}"}
        said = NewTrigger(name="n", agent_id="workshop", **(given | more))
        return await self.triggers.create(LOCAL, said)

    def pass_time(self, milliseconds: int) -> None:
        self.clock.move_to(self.clock.now() + milliseconds)

    async def texts(self) -> list[str]:
        """Return what the agent was told, the oldest first."""
        found = (await self.site.call("ListTasks", {"historyLength": 5}))["tasks"]
        said = [task["history"][0]["parts"][0] for task in found]
        return sorted(part.get("text") or json.dumps(part["data"]) for part in said)


@asynccontextmanager
async def clockwork(location: str) -> AsyncGenerator[Clockwork]:
    settings = load_settings({}, store=location, forward_patience=10.0)
    store = MemoryGatewayStore(order_rules_of(settings)) if location == "memory:" else None
    app = gateway_app(settings=settings, is_local=True, store=store)
    async with serving(workshop()) as upstream, hosting(app) as url, client(url) as http:
        site = GatewaySite(url, http, app)
        # Those of the app go by the real time.
        await site.gateway.triggers.stop()
        await site.register(upstream.url)
        # A whole minute.
        yield Clockwork(site, ManualClock(29_000_000 * MINUTE))


async def test_each_due_time_begins_one_task(location: str) -> None:
    async with clockwork(location) as works:
        row = await works.make()
        assert row.due_at == works.clock.now() + MINUTE
        assert await works.triggers.sweep() == 0
        for _ in range(3):
            works.pass_time(MINUTE)
            assert await works.triggers.sweep() == 1
            assert await works.triggers.sweep() == 0
        texts = await works.texts()
        assert len(texts) == len({*texts}) == 3
        (now,) = [await works.triggers.one(row.id, LOCAL)]
        assert now is not None and read(now).runs == 3 and now.due_at == works.clock.now() + MINUTE


async def test_a_trigger_that_cannot_be_run_here_holds_up_no_other() -> None:
    async with clockwork("memory:") as works:
        broken = await works.make()
        await works.make(text="good")
        definition = broken.definition.replace(b"* * * * *", b"not a plan")
        assert definition != broken.definition
        await works.site.gateway.store.triggers.change(broken._replace(definition=definition))
        works.pass_time(MINUTE)
        assert await works.triggers.sweep() == 2
        assert await works.texts() == ["good"]


async def test_a_crash_between_the_task_and_the_next_due_time_repeats_nothing(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clockwork(location) as works:
        await works.make()
        works.pass_time(MINUTE)

        async def dies(row: TriggerRow) -> bool:
            raise StoreUnavailable("killed")

        with monkeypatch.context() as broken:
            broken.setattr(works.site.gateway.store.triggers, "change", dies)
            with pytest.raises(StoreUnavailable):
                await works.triggers.sweep()
        assert len(await works.texts()) == 1
        # The next process finds it due, and begins it again.
        assert await works.another().sweep() == 1
        assert len(await works.texts()) == 1


async def test_a_crash_before_the_task_loses_nothing(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clockwork(location) as works:
        await works.make()
        works.pass_time(MINUTE)

        async def dies(call: Any) -> Any:
            raise asyncio.CancelledError

        with monkeypatch.context() as broken:
            broken.setattr(works.site.gateway.service, "answer", dies)
            with pytest.raises(asyncio.CancelledError):
                await works.triggers.sweep()
        assert await works.texts() == []
        assert await works.another().sweep() == 1
        assert len(await works.texts()) == 1


async def test_two_processes_that_both_look_begin_it_once(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lead(duty: Any) -> bool:
        return True

    async with clockwork(location) as works:
        monkeypatch.setattr(works.site.gateway.store, "lead", lead)
        await works.make()
        for _ in range(3):
            works.pass_time(MINUTE)
            await asyncio.gather(works.triggers.sweep(), works.another().sweep())
        assert len(await works.texts()) == 3


async def test_an_edit_between_a_task_and_the_next_due_time_begins_no_second_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with clockwork("memory:") as works:
        row = await works.make(text="before {due}")
        works.pass_time(MINUTE)
        answer = works.site.gateway.service.answer

        async def edited(call: Any) -> Any:
            reply = await answer(call)
            await works.triggers.change(row.id, LOCAL, TriggerChange(text="after {due}"))
            return reply

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(works.site.gateway.service, "answer", edited)
            assert await works.triggers.sweep() == 1
        assert await works.triggers.sweep() == 1, "the edit was first, so the time is still due"
        assert [text.split()[0] for text in await works.texts()] == ["before"]


async def test_an_edit_loses_no_time_that_is_due() -> None:
    async with clockwork("memory:") as works:
        row = await works.make()
        works.pass_time(MINUTE)
        edited = await works.triggers.change(row.id, LOCAL, TriggerChange(name="other"))
        assert edited is not None and edited.due_at == works.clock.now()
        assert await works.triggers.sweep() == 1 and len(await works.texts()) == 1
        # Another schedule is due at its own times.
        later = TriggerChange(schedule=TriggerSchedule(cron="*/10 * * * *"))
        works.pass_time(MINUTE)
        moved = await works.triggers.change(row.id, LOCAL, later)
        assert moved is not None and moved.due_at is not None
        assert moved.due_at > works.clock.now()


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_missed_times_are_made_up_for_by_the_rule(missed: Any, count: int) -> None:
    async with clockwork("memory:") as works:
        await works.make(schedule=TriggerSchedule(cron="*/10 * * * *", missed=missed))
        works.pass_time(55 * MINUTE)
        await works.triggers.sweep()
        assert len(await works.texts()) == count


async def test_one_that_is_off_begins_nothing_and_makes_up_for_nothing() -> None:
    async with clockwork("memory:") as works:
        row = await works.make()
        off = await works.triggers.change(row.id, LOCAL, TriggerChange(enabled=False))
        assert off is not None and off.due_at is None
        works.pass_time(10 * MINUTE)
        assert await works.triggers.sweep() == 0
        on = await works.triggers.change(row.id, LOCAL, TriggerChange(enabled=True))
        assert on is not None and on.due_at == works.clock.now() + MINUTE
        assert await works.triggers.remove(row.id, LOCAL)
        works.pass_time(10 * MINUTE)
        assert await works.triggers.sweep() == 0 and await works.texts() == []


async def test_what_cannot_begin_is_told_and_not_repeated() -> None:
    async with clockwork("memory:") as works:
        row = await works.make()
        (agent,) = works.site.gateway.registry.all()
        await works.site.gateway.registry.remove(agent.id)
        works.pass_time(MINUTE)
        await works.triggers.sweep()
        after = await works.triggers.one(row.id, LOCAL)
        assert after is not None and after.due_at == works.clock.now() + MINUTE
        last = read(after).last
        assert last is not None and last.problem and not last.task_id


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": None},
        {"webhook": True},
        {"text": ""},
        {"text": "{wrong}"},
        {"data": "x" * 70_000},
        {"schedule": TriggerSchedule(cron="never")},
        {"schedule": None, "webhook": True, "text": "at {due}"},
    ],
)
async def test_what_is_no_trigger_is_refused(wrong: dict[str, Any]) -> None:
    async with clockwork("memory:") as works:
        schedule = TriggerSchedule(cron="* * * * *")
        given: dict[str, Any] = {"schedule": schedule, "text": "x", "agent_id": "workshop"}
        with pytest.raises(InvalidParams):
            await works.triggers.create(LOCAL, NewTrigger(name="n", **(given | wrong)))
        with pytest.raises(NoAgentAvailable):
            await works.triggers.create(LOCAL, NewTrigger(name="n", **(given | {"agent_id": "no"})))
        assert await works.triggers.page(None, limit=9) == ([], 0)


# Posts


async def test_a_post_begins_a_task_once(location: str) -> None:
    async with clockwork(location) as works:
        row = await works.make(schedule=None, webhook=True, text="New: {/issue/title}")
        path = f"/api/v1/webhooks/{row.id}"
        secret = works.triggers.secret_text(row)
        body, now = json.dumps({"issue": {"title": "Broken"}}), time.time()
        signer = standardwebhooks.Webhook(secret)
        headers = signed(signer, "msg_1", now, body)
        answers = [
            await works.site.http.post(path, content=body, headers=headers) for _ in range(2)
        ]
        assert [one.status_code for one in answers] == [202, 202]
        assert answers[0].json() == answers[1].json()
        shown = {"authorization": f"bearer {secret}", "x-github-delivery": "d-1"}
        assert (await works.site.http.post(path, content=body, headers=shown)).status_code == 202
        assert await works.texts() == ["New: Broken"] * 2


async def test_posts_that_come_at_once_all_count(location: str) -> None:
    async with clockwork(location) as works:
        row = await works.make(schedule=None, webhook=True, text="")
        path, headers = f"/api/v1/webhooks/{row.id}", bearer(works.triggers.secret_text(row))
        post = works.site.http.post
        answers = await asyncio.gather(
            *(post(path, content=b"{}", headers=headers) for _ in range(30))
        )
        assert {one.status_code for one in answers} == {202}
        now = await works.triggers.one(row.id, None)
        assert now is not None and read(now).runs == 30


@pytest.mark.parametrize("method", ["one", "change"])
async def test_a_post_whose_task_began_is_taken_although_it_cannot_be_noted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clockwork("memory:") as works:
        row = await works.make(schedule=None, webhook=True, text="once")
        path, headers = f"/api/v1/webhooks/{row.id}", bearer(works.triggers.secret_text(row))
        rows, seen = works.site.gateway.store.triggers, 0
        real = getattr(rows, method)

        async def away(*given: Any) -> Any:
            nonlocal seen
            seen += 1
            if method == "one" and seen == 1:
                # When the post comes in.
                return await real(*given)
            raise StoreUnavailable("away")

        monkeypatch.setattr(rows, method, away)
        # Senders that name their posts and those that do not: neither has a reason to post again.
        answer = await works.site.http.post(path, content=b"{}", headers=headers)
        assert answer.status_code == 202 and answer.json()["data"]["taskId"]
        monkeypatch.setattr(rows, method, real)
        named = headers | {"idempotency-key": "one"}
        answers = [await works.site.http.post(path, content=b"{}", headers=named) for _ in "ab"]
        assert answers[0].json() == answers[1].json()
        assert await works.texts() == ["once"] * 2


async def test_a_post_that_cannot_begin_is_told_why_although_it_cannot_be_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    async with clockwork("memory:") as works:
        row = await works.make(schedule=None, webhook=True, text="once")
        path, headers = f"/api/v1/webhooks/{row.id}", bearer(works.triggers.secret_text(row))
        await works.site.http.delete("/api/v1/agents/workshop")
        monkeypatch.setattr(works.site.gateway.store.triggers, "change", away)
        answer = await works.site.http.post(path, content=b"{}", headers=headers)
        assert answer.status_code == 422, answer.text


def signed(signer: standardwebhooks.Webhook, id: str, at: float, body: str) -> dict[str, str]:
    moment = datetime.fromtimestamp(int(at), UTC)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": signer.sign(id, moment, body),
        "content-type": "application/json",
    }


async def test_a_post_that_is_not_by_its_secret_begins_nothing_and_learns_nothing() -> None:
    async with clockwork("memory:") as works:
        row = await works.make(schedule=None, webhook=True, text="")
        timed = await works.make()
        off = await works.make(schedule=None, webhook=True, text="", enabled=False)
        path, secret, now = "/api/v1/webhooks/", works.triggers.secret_text(row), time.time()
        signer = standardwebhooks.Webhook(secret)
        other = standardwebhooks.Webhook("whsec_" + base64.b64encode(b"x" * 32).decode())
        good = signed(signer, "msg", now, "{}")
        tries: list[tuple[str, dict[str, str], str]] = [
            (row.id, {}, "{}"),
            (row.id, {"authorization": "Bearer"}, "{}"),
            (row.id, {"authorization": secret}, "{}"),
            (row.id, {"authorization": f"Bearer {secret[:-2]}"}, "{}"),
            (row.id, signed(other, "msg", now, "{}"), "{}"),
            (row.id, good | {"webhook-id": "another"}, "{}"),
            (row.id, good, "{ }"),
            (row.id, signed(signer, "msg", now - 3600, "{}"), "{}"),
            (row.id, signed(signer, "msg", now + 3600, "{}"), "{}"),
            (row.id, good | {"webhook-timestamp": "9" * 400}, "{}"),
            (timed.id, {"authorization": f"Bearer {works.triggers.secret_text(timed)}"}, "{}"),
            (off.id, {"authorization": f"Bearer {works.triggers.secret_text(off)}"}, "{}"),
            ("no-such-trigger", good, "{}"),
        ]
        answers = [
            await works.site.http.post(f"{path}{id}", content=body, headers=headers)
            for id, headers, body in tries
        ]
        assert {(one.status_code, one.content) for one in answers} == {(401, answers[0].content)}
        assert await works.texts() == []
        bad = await works.site.http.post(f"{path}{row.id}", content=b"{", headers=bearer(secret))
        assert bad.status_code == 400
        large = await works.site.http.post(
            f"{path}{row.id}", content=b" " * 70_000, headers=bearer(secret)
        )
        assert large.status_code == 413
        assert (await works.site.http.get(f"{path}{row.id}")).status_code == 405


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_a_secret_that_was_replaced_is_no_longer_good() -> None:
    async with clockwork("memory:") as works:
        row = await works.make(schedule=None, webhook=True, text="")
        before = works.triggers.secret_text(row)
        after = await works.triggers.replace_secret(row.id, LOCAL)
        assert after is not None
        path = f"/api/v1/webhooks/{row.id}"
        old = await works.site.http.post(path, content=b"[1]", headers=bearer(before))
        new = await works.site.http.post(
            path, content=b"[1]", headers=bearer(works.triggers.secret_text(after))
        )
        assert (old.status_code, new.status_code) == (401, 202)
        # Without a text the agent is told what was posted.
        assert await works.texts() == ["[1]"]


# By the API


async def test_a_trigger_that_comes_between_two_pages_neither_repeats_nor_hides_another(
    tmp_path: Path,
) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path) as site:
        agent = await site.register(upstream.url, "token:alice")
        path = "/api/v1/triggers"

        async def make(name: str) -> str:
            body = {"name": name, "agentId": agent.id, "text": "x", "webhook": True}
            return (await ask(site, "POST", path, ALICE, body)).json()["data"]["id"]

        made = [await make(name) for name in "abcd"]
        for caller in (ALICE, OPERATOR):
            page = (await ask(site, "GET", f"{path}?limit=2", caller)).json()["data"]
            assert [one["id"] for one in page["triggers"]] == [made[3], made[2]]
            await make("later")
            rest = await ask(site, "GET", f"{path}?limit=2&after={page['next']}", caller)
            assert [one["id"] for one in rest.json()["data"]["triggers"]] == [made[1], made[0]]
            assert "next" not in rest.json()["data"]
            last = (await ask(site, "GET", f"{path}?limit=1", caller)).json()["data"]
            assert (await ask(site, "DELETE", f"{path}/{last['next']}", ALICE)).status_code == 204
        for wrong in ("after=x", "after=1", "limit=0"):
            assert (await ask(site, "GET", f"{path}?{wrong}", ALICE)).status_code == 400


async def test_owners_have_their_own_and_operators_look_after_all(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path) as site:
        agent = await site.register(upstream.url, "token:alice")
        body = {"name": "t", "agentId": agent.id, "text": "x", "webhook": True}
        made = await ask(site, "POST", "/api/v1/triggers", ALICE, body)
        assert made.status_code == 201, made.text
        record = made.json()["data"]
        assert record["secret"].startswith("whsec_")
        one = f"/api/v1/triggers/{record['id']}"
        assert "secret" not in (await ask(site, "GET", one, ALICE)).json()["data"]
        for verb, path, more in (
            ("GET", one, None),
            ("PATCH", one, {"enabled": False}),
            ("DELETE", one, None),
            ("POST", f"{one}/run", None),
            ("POST", f"{one}/secret", None),
        ):
            assert (await ask(site, verb, path, BOB, more)).status_code == 404, path
        assert (await ask(site, "GET", "/api/v1/triggers", BOB)).json()["data"]["total"] == 0
        assert (await ask(site, "GET", "/api/v1/triggers", OPERATOR)).json()["data"]["total"] == 1
        begun = await ask(site, "POST", f"{one}/run", ALICE)
        assert begun.status_code == 202
        task = await ask(site, "GET", f"/tasks/{begun.json()['data']['taskId']}", ALICE)
        assert task.json()["metadata"]["trigger"]["id"] == record["id"]
        paused = await ask(site, "PATCH", one, OPERATOR, {"enabled": False})
        assert paused.json()["data"]["enabled"] is False
        assert (await ask(site, "DELETE", one, ALICE)).status_code == 204
        assert Principal.read("token:alice") == agent.owner
