"""Who asks is an owner in a tenant: two owners of one name in two tenants have nothing in common.
And money goes by our own number of a task, never by an id that a caller chose."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from harness.serving import V1, message
from harness.waiting import within

import dragoman.gateway
from dragoman.gateway.money.task_reference import AmbiguousTask, TaskReference
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import LOCAL, Principal, new_id
from dragoman.security.keys import key_file
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations
from tests.gateway.gateway_site import GatewaySite, gateway
from tests.gateway.guarded_site import completes
from tests.gateway.raw_peer import Peer, card, raw_peer

pytestmark = pytest.mark.anyio
# Names of callers, and the owner and the tenant of each.
CALLERS = {
    "seller": ("eve", "acme"),
    "ada": ("ada", "acme"),
    "twin": ("ada", "globex"),
    "unbound": ("ada", None),
    "bob": ("bob", "acme"),
}
OTHERS = ("twin", "unbound", "bob")
PRICE = 2.0


class Town:
    """A gateway, its callers and an agent of the seller's."""

    def __init__(self, site: GatewaySite, keys: dict[str, str], peer: Peer) -> None:
        self.site = site
        self.keys = keys
        self.peer = peer
        self.agent: dict[str, Any] = {}

    async def raw(self, who: str, verb: str, path: str, body: Any = None) -> httpx.Response:
        is_house = isinstance(body, dict) and body.get("method") == "tasks/send"
        headers = {"x-api-key": self.keys[who], **({} if is_house else V1)}
        return await within(self.site.http.request(verb, path, json=body, headers=headers))

    async def ask(self, who: str, verb: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.raw(who, verb, f"/api/v1/{path}", body)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json().get("data") if answer.content else None

    async def register(self, who: str, name: str, **more: Any) -> dict[str, Any]:
        """Register an agent that shows a card and is online; return it as its owner sees it."""
        url, registry = f"{self.peer.url}/{name}", self.site.gateway.registry
        owner, tenant = CALLERS[who]
        principal = Principal(tenant or "", f"key:{owner}")
        said: Any = {"price": 2_000_000, "card": card(url), **more}
        made = await registry.register(Registration(url=url, name=name, **said), principal)
        await registry.heartbeat(made.id, "online", owner=principal)
        return await self.ask(who, "GET", f"agents/{made.id}")

    async def done(self, who: str, task_id: str = "", agent: str = "") -> str:
        """Have a task done, under an id of the caller's own if one is given; return its id."""
        ref = agent or self.agent["slug"]
        if not task_id:
            body = {"message": message("hello"), "configuration": {"blocking": True}}
            answer = await self.raw(who, "POST", f"/a2a/{ref}/message:send", body)
            assert answer.status_code == 200, answer.text
            return answer.json()["task"]["id"]
        said = {"role": "user", "parts": [{"type": "text", "text": new_id()}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/send"}
        params = {"id": task_id, "message": said}
        answer = await self.raw(who, "POST", f"/a2a/{ref}", body | {"params": params})
        assert answer.json()["result"]["status"]["state"] == "completed", answer.text
        return task_id

    async def balance(self, who: str) -> float:
        return (await self.ask(who, "GET", "billing/balance"))["balance"]


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    path = folder / "keys.json"
    keys = {
        name: key_file.create(path, owner, scopes=[], tenant=tenant, lifetime=None)[1]
        for name, (owner, tenant) in CALLERS.items()
    }
    given = {"auth": "api-key", "keys": str(path), "allow_private": True}
    async with raw_peer(completes) as peer, gateway(folder, **given) as site:
        found = Town(site, keys, peer)
        found.agent = await found.register("seller", "work")
        yield found


# Tenants


async def test_a_twin_in_another_tenant_has_an_account_of_its_own(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        await there.done("ada")
        assert await there.balance("ada") == 1000 - PRICE
        for other in OTHERS:
            assert await there.balance(other) == 1000
            page = await there.ask(other, "GET", "billing/transactions")
            assert {line["type"] for line in page["transactions"]} == {"initial_grant"}
            usage = await there.ask(other, "GET", "billing/usage")
            assert usage["total_spent"] == 0


async def test_a_twin_reads_rates_disputes_and_settles_nothing_of_the_other(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        task, agent = await there.done("ada"), there.agent["id"]
        never = task[:-1] + ("0" if task[-1] != "0" else "1")
        rating, reason = {"rating": 1}, {"reason": "nothing came"}
        asks: list[tuple[str, str, Any]] = [
            ("GET", "tasks/{id}", None),
            ("GET", "tasks/{id}/receipt", None),
            ("GET", "tasks/{id}/escrow", None),
            ("POST", "tasks/{id}/accept", None),
            ("POST", "tasks/{id}/refund", None),
            ("POST", "tasks/{id}/cancel", None),
            ("POST", f"trust/{agent}/rate", rating),
            ("POST", f"trust/{agent}/dispute", reason),
        ]
        for other in OTHERS:
            for verb, path, body in asks:
                answers: list[Any] = []
                for id in (task, never):
                    said = None if body is None else {**body, "taskId": id}
                    answer = await there.raw(other, verb, f"/api/v1/{path.format(id=id)}", said)
                    assert 400 <= answer.status_code < 500
                    answers.append((answer.status_code, answer.text.replace(id, "ID")))
                assert answers[0] == answers[1], (other, verb, path)
        assert (await there.ask("ada", "GET", f"tasks/{task}/receipt"))["taskId"] == task
        rate = {"taskId": task, "rating": 5}
        await there.ask("ada", "POST", f"trust/{agent}/rate", rate, 201)


async def test_a_twin_sees_and_changes_no_private_agent_of_the_other(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        mine = await there.register("ada", "mine", callers=["key:nemo"])
        for other in OTHERS:
            for verb, path, body in (
                ("GET", "", None),
                ("PATCH", "", {"name": "taken"}),
                ("POST", "/heartbeat", None),
                ("POST", "/probe", None),
                ("GET", "/api-keys", None),
                ("DELETE", "", None),
            ):
                answers = [
                    await there.raw(other, verb, f"/api/v1/agents/{id}{path}", body)
                    for id in (mine["id"], "0190d3c4-0000-7000-8000-000000000000")
                ]
                assert answers[0].status_code == answers[1].status_code == 404, (other, verb, path)
            found = await there.ask(other, "GET", "agents?text=mine")
            assert found["total"] == 0
        assert (await there.ask("ada", "GET", f"agents/{mine['id']}"))["is_mine"]


async def test_callers_are_named_within_the_tenant_unless_another_is_said(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        named = {"callers": ["key:bob", "@globex/key:ada", "@/key:ada"]}
        mine = await there.register("seller", "shared", **named)
        assert mine["callers"] == ["@acme/key:bob", "@globex/key:ada", "key:ada"]
        for who in ("bob", "twin", "unbound"):
            await there.ask(who, "GET", f"agents/{mine['id']}")
        await there.ask("ada", "GET", f"agents/{mine['id']}", status=404)
        changed = await there.ask(
            "seller", "PATCH", f"agents/{mine['id']}", {"callers": ["key:ada"]}
        )
        assert changed["callers"] == ["@acme/key:ada"]
        await there.ask("twin", "GET", f"agents/{mine['id']}", status=404)
        await there.ask("ada", "GET", f"agents/{mine['id']}")


async def test_workflows_of_a_twin_do_not_exist(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        steps = [{"name": "a", "agentId": there.agent["id"], "input": {}}]
        made = await there.ask("ada", "POST", "workflows", {"name": "w", "steps": steps}, 201)
        for other in OTHERS:
            assert (await there.ask(other, "GET", "workflows"))["total"] == 0
            await there.ask(other, "GET", f"workflows/{made['id']}", status=404)
            await there.ask(other, "POST", f"workflows/{made['id']}/execute", status=404)


def test_nothing_in_the_gateway_goes_by_the_owner_of_a_caller_alone() -> None:
    """The owner may be read where the tenant stands beside it, in the same expression or line."""
    found: list[str] = []
    for path in Path(dragoman.gateway.__file__).parent.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"(caller|ask|scope)\.owner\b", line) and "tenant" not in line:
                found.append(f"{path.name}:{number}: {line.strip()}")
    assert not found


# Numbers


async def test_a_refund_of_an_id_that_two_have_is_refused_with_what_it_could_mean(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as there:
        for who in ("ada", "bob"):
            await there.done(who, "T")
        free = await there.register("seller", "free", price=0)
        await there.done("twin", "T", free["slug"])
        for verb, path in (("POST", "tasks/T/refund"), ("GET", "tasks/T/receipt")):
            answer = await there.raw("seller", verb, f"/api/v1/{path}")
            assert answer.status_code == 409, answer.text
        answer = await there.raw("seller", "POST", "/api/v1/tasks/T/refund")
        meant = answer.json()["error"]["details"]["tasks"]
        whose = {one["requester"]: one["number"] for one in meant}
        assert sorted(whose) == ["@acme/key:ada", "@acme/key:bob", "@globex/key:ada"]
        before = await there.balance("ada")
        given = await there.ask("seller", "POST", f"tasks/T/refund?number={whose['@acme/key:ada']}")
        assert given["amount"] == PRICE
        assert await there.balance("ada") == before + PRICE
        assert await there.balance("bob") == 1000 - PRICE
        # A number alone opens nothing: it has to be of that id, and of the caller's own business.
        for number in (*whose.values(), 99):
            await there.ask("unbound", "POST", f"tasks/T/refund?number={number}", status=400)
        await there.ask("seller", "POST", "tasks/T/refund?number=99", status=400)
        # Each requester has one of this id, and needs no number.
        for who in ("ada", "bob"):
            assert (await there.ask(who, "GET", "tasks/T/receipt"))["taskId"] == "T"


async def test_a_statement_and_a_task_tell_their_number(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        task = await there.done("ada")
        number = (await there.ask("ada", "GET", f"tasks/{task}"))["number"]
        page = await there.ask("ada", "GET", "billing/transactions?type=task_debit")
        assert [line["task_number"] for line in page["transactions"]] == [number]
        assert await there.ask("ada", "GET", f"tasks/{task}/receipt?number={number}")


async def test_an_id_that_one_requester_used_twice_is_ambiguous_to_its_requester_too(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as there:
        await there.done("ada", "T")
        store: Any = there.site.gateway.store
        await store.write_tx(lambda c: c.execute("UPDATE tasks SET id = 'gone' WHERE id = 'T'"))
        await there.done("ada", "T")
        ledger, ada = there.site.gateway.ledger, Principal("acme", "key:ada")
        with pytest.raises(AmbiguousTask) as found:
            await ledger.receipt(TaskReference("T"), owner=ada)
        for one in found.value.tasks:
            assert await ledger.receipt(TaskReference("T", one.task), owner=ada)
        agent = there.agent["id"]
        rating = {"taskId": "T", "rating": 4}
        await there.ask("ada", "POST", f"trust/{agent}/rate", rating, 409)
        await there.ask(
            "ada", "POST", f"trust/{agent}/dispute", {"taskId": "T", "reason": "x"}, 409
        )
        rating["taskNumber"] = found.value.tasks[0].task
        await there.ask("ada", "POST", f"trust/{agent}/rate", rating, 201)


# Files of before


async def test_agents_that_were_registered_before_tenants_counted_have_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gateway.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    for _, script in migrations()[:9]:
        connection.execute(script)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 9)
    for number, owner in enumerate(("key:ada", "")):
        body = b'{"id":"%d","name":"n%d","owner":"%s","title":"t","url":"http://a.example/"}'
        values = (str(number), f"n{number}", body % (number, number, owner.encode()), number + 1)
        connection.execute("INSERT INTO agents VALUES (NULL, ?, ?, ?, 'online', 0, 0, ?)", values)
    connection.execute("UPDATE agents_watch SET version = 2")
    connection.close()
    store = SQLiteStore(path)
    await store.open()
    await store.close()
    async with gateway(tmp_path) as site:
        assert site.gateway.registry.all()[0].owner == Principal("", "key:ada")
        assert site.gateway.registry.all()[1].owner == LOCAL
