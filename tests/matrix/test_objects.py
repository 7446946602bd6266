"""What names things of others besides the id of a task: contexts, references, tokens of pages,
cursors, ids of receivers and of messages, tenants. Each is as good as one that was made up."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.dialects.operations import BY_V1_METHOD, ROWS
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId, new_id
from dragoman.server.operator.addresses import API as OPERATOR_API
from proof.access.bindings import BINDINGS, Answer, Binding, request
from proof.access.callers import CALLERS, KEYS, OWNER
from proof.access.matrix import Scene, Thing, operation, told
from tests.matrix.conftest import scene_in

OTHERS = tuple(name for name in CALLERS if name != OWNER)
STATES = ("working", "waiting", "finished", "deleted")
JSONRPC, REST, JSONRPC_0_3, REST_0_3, *_ = BINDINGS
GET = BY_V1_METHOD["GetTask"]


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene_in(tmp_path_factory.mktemp("objects"), "GetTask") as (scene, _):
        yield scene


def thing(scene: Scene, state: str) -> Thing:
    return scene.things[GET.v1, JSONRPC.name, state]


async def ask(
    scene: Scene, caller: str, asked: ops.Operation, binding: Binding = JSONRPC, *more: Any
) -> Answer:
    return await scene.wire.ask(request(binding, asked, KEYS[caller], *more))


async def result(scene: Scene, caller: str, asked: ops.Operation) -> Any:
    return json.loads((await ask(scene, caller, asked)).body)["result"]


async def task(scene: Scene, caller: str, asked: ops.SendMessage) -> dict[str, Any]:
    return (await result(scene, caller, asked))["task"]


def fresh(**more: Any) -> ops.SendMessage:
    """Return a message that begins a task."""
    return ops.SendMessage(message=told(Thing.imagined()._replace(task_id=TaskId("")), **more))


def shape(value: Any) -> Any:
    """Return a task without what no two have in common."""
    match value:
        case dict():
            return {name: shape(inner) for name, inner in sorted(value.items())}
        case list():
            return [shape(inner) for inner in value]
        case str() if len(value) > 20:
            return "<id or time>"
    return value


# Contexts


@pytest.mark.parametrize("caller", OTHERS)
@pytest.mark.parametrize("state", STATES)
async def test_a_context_of_another_is_one_that_nobody_has_used(
    scene: Scene, caller: str, state: str
) -> None:
    foreign = thing(scene, state)
    before = await result(scene, OWNER, ops.ListTasks(context_id=foreign.context_id))
    made_up = await task(scene, caller, fresh(context_id=new_id()))
    begun = await task(scene, caller, fresh(context_id=foreign.context_id))
    assert shape(begun) == shape(made_up)
    assert begun["contextId"] == foreign.context_id
    # Two callers may use one word for what each says: neither sees what the other said.
    assert await result(scene, OWNER, ops.ListTasks(context_id=foreign.context_id)) == before
    seen = await result(scene, caller, ops.ListTasks(context_id=foreign.context_id))
    assert [one["id"] for one in seen["tasks"]] == [begun["id"]] and seen["totalSize"] == 1
    gone = ops.ListTasks(context_id=foreign.context_id)
    others = [other for other in OTHERS if other != caller]
    for other in others:
        ids = [one["id"] for one in (await result(scene, other, gone))["tasks"]]
        assert begun["id"] not in ids and foreign.task_id not in ids


@pytest.mark.parametrize("binding", BINDINGS, ids=lambda one: one.name)
@pytest.mark.parametrize("caller", OTHERS)
async def test_a_task_of_another_with_its_context_or_a_wrong_one_does_not_exist(
    scene: Scene, caller: str, binding: Binding
) -> None:
    imagined = Thing.imagined()
    for state in STATES:
        foreign = thing(scene, state)
        for context in (foreign.context_id, imagined.context_id):
            said = told(foreign, context_id=context)
            answer = await ask(scene, caller, ops.SendMessage(message=said), binding)
            never = told(imagined, context_id=context)
            as_never = await ask(scene, caller, ops.SendMessage(message=never), binding)
            assert answer.without(*foreign) == as_never.without(*imagined)


# References


@pytest.mark.parametrize("caller", OTHERS)
async def test_references_to_tasks_of_others_are_as_good_as_made_up_ones(
    scene: Scene, caller: str
) -> None:
    made_up = await task(scene, caller, fresh(reference_task_ids=[new_id()]))
    for state in STATES:
        referring = fresh(reference_task_ids=[thing(scene, state).task_id])
        assert shape(await task(scene, caller, referring)) == shape(made_up)


# Pages


async def page_token(scene: Scene, caller: str, **more: Any) -> str:
    for _ in range(2):
        await task(scene, caller, fresh())
    page = await result(scene, caller, ops.ListTasks(page_size=1, **more))
    assert page["nextPageToken"]
    return page["nextPageToken"]


@pytest.mark.parametrize("binding", [JSONRPC, REST], ids=lambda one: one.name)
@pytest.mark.parametrize("caller", OTHERS)
async def test_a_token_of_another_s_page_is_as_good_as_noise(
    scene: Scene, caller: str, binding: Binding
) -> None:
    token = await page_token(scene, OWNER)
    noise = "x" * len(token)
    for more in ({}, {"context_id": thing(scene, "finished").context_id}):
        taken = ops.ListTasks(page_size=1, page_token=token, **more)
        refused = await ask(scene, caller, taken, binding)
        other = ops.ListTasks(page_size=1, page_token=noise, **more)
        assert refused.without(token) == (await ask(scene, caller, other, binding)).without(noise)
        assert b"pageToken" in refused.body


async def test_a_token_counts_for_its_owner_s_very_question_only(scene: Scene) -> None:
    token = await page_token(scene, OWNER)
    again = ops.ListTasks(page_size=1, page_token=token)
    assert len((await result(scene, OWNER, again))["tasks"]) == 1
    for changed in (
        msgspec.structs.replace(again, context_id=thing(scene, "finished").context_id),
        msgspec.structs.replace(again, status_since=1),
    ):
        assert b"pageToken" in (await ask(scene, OWNER, changed)).body
    # An operator may name any tenant; what it has in one is not what it has in another.
    token = await page_token(scene, "operator")
    elsewhere = ops.ListTasks(page_size=1, page_token=token, tenant="acme")
    assert b"pageToken" in (await ask(scene, "operator", elsewhere)).body


async def test_a_list_over_the_rest_of_0_3_holds_the_caller_s_own_tasks(scene: Scene) -> None:
    await task(scene, "stranger", fresh())

    async def listed(caller: str) -> list[str]:
        line = f"GET /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEYS[caller]}"
        answer = await scene.wire.ask(f"{line}\r\n\r\n".encode())
        return [one["id"] for one in json.loads(answer.body)]

    seen = {caller: await listed(caller) for caller in (OWNER, *OTHERS)}
    assert seen[OWNER] and seen["stranger"]
    everything = [id for ids in seen.values() for id in ids]
    assert len(everything) == len(set(everything))


# Cursors


@pytest.mark.parametrize("binding", BINDINGS, ids=lambda one: one.name)
@pytest.mark.parametrize("caller", OTHERS)
async def test_a_cursor_on_a_stream_of_another_leads_nowhere(
    scene: Scene, caller: str, binding: Binding
) -> None:
    for cursor in ("0", "1", "999"):
        header = ("Last-Event-ID", cursor)
        imagined = Thing.imagined()
        asked = ops.SubscribeToTask(task_id=imagined.task_id)
        never = (await ask(scene, caller, asked, binding, header)).without(*imagined)
        for state in STATES:
            foreign = thing(scene, state)
            asked = ops.SubscribeToTask(task_id=foreign.task_id)
            answer = await ask(scene, caller, asked, binding, header)
            assert answer.without(*foreign) == never
            assert not answer.is_stream


# Receivers


@pytest.mark.parametrize("binding", BINDINGS, ids=lambda one: one.name)
async def test_the_id_of_another_s_receiver_is_as_good_as_a_made_up_one(
    scene: Scene, binding: Binding
) -> None:
    own = await task(scene, "neighbour", fresh())
    foreign = thing(scene, "working")
    for row in (
        BY_V1_METHOD["GetTaskPushNotificationConfig"],
        BY_V1_METHOD["DeleteTaskPushNotificationConfig"],
    ):
        imagined = Thing.imagined()._replace(task_id=own["id"])
        borrowed = imagined._replace(config_id=foreign.config_id)
        never = await ask(scene, "neighbour", operation(row, imagined), binding)
        answer = await ask(scene, "neighbour", operation(row, borrowed), binding)
        assert answer.without(*borrowed) == never.without(*imagined)
    kept = await result(scene, OWNER, ops.ListPush(task_id=foreign.task_id))
    assert [one["id"] for one in kept["configs"]] == [foreign.config_id]


# Repeated messages


@pytest.mark.parametrize("caller", OTHERS)
async def test_a_message_that_another_sent_before_is_a_new_one(scene: Scene, caller: str) -> None:
    said = fresh()
    first = await task(scene, OWNER, said)
    assert (await task(scene, OWNER, said))["id"] == first["id"]
    second = await task(scene, caller, said)
    never_sent = await task(scene, caller, fresh())
    assert second["id"] != first["id"] and second["contextId"] != first["contextId"]
    assert shape(second) == shape(never_sent)


@pytest.mark.parametrize("caller", OTHERS)
async def test_a_message_to_another_s_task_that_its_owner_sent_before_is_refused_all_the_same(
    scene: Scene, caller: str
) -> None:
    waiting = await task(scene, OWNER, fresh(metadata={"skillId": "waiting"}))
    foreign = Thing(waiting["id"], waiting["contextId"], "")
    said = ops.SendMessage(message=told(foreign))
    assert (await task(scene, OWNER, said))["id"] == foreign.task_id
    imagined = Thing.imagined()
    never = await ask(scene, caller, ops.SendMessage(message=told(imagined)))
    assert (await ask(scene, caller, said)).without(*foreign) == never.without(*imagined)


# Tenants


@pytest.mark.parametrize("binding", [JSONRPC, REST], ids=lambda one: one.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.v1)
async def test_a_tenant_that_a_credential_is_not_for_is_as_good_as_a_made_up_one(
    scene: Scene, row: Any, binding: Binding
) -> None:
    for state in ("working", "finished"):
        foreign, imagined = thing(scene, state), Thing.imagined()
        reached = msgspec.structs.replace(operation(row, foreign), tenant="acme")
        answer = await ask(scene, "stranger", reached, binding)
        nowhere = msgspec.structs.replace(operation(row, imagined), tenant="nope")
        never = await ask(scene, "stranger", nowhere, binding)
        assert answer.without(*foreign, "acme") == never.without(*imagined, "nope")


async def test_a_tenant_in_the_body_widens_nothing(scene: Scene) -> None:
    """One that names no tenant is in its own; one that may name any has a room of its own there."""
    for named in ("", "acme"):
        own = msgspec.structs.replace(fresh(), tenant=named)
        made = await task(scene, OWNER, own)
        for again in ("", "acme"):
            asked = ops.GetTask(task_id=made["id"], tenant=again)
            assert (await result(scene, OWNER, asked))["id"] == made["id"]
        asked = ops.GetTask(task_id=made["id"], tenant="acme")
        for caller in OTHERS:
            # Also of one for no tenant, which may name any: its name there is somebody else's.
            assert b"-32001" in (await ask(scene, caller, asked)).body, caller
    mine = await task(scene, "operator", msgspec.structs.replace(fresh(), tenant="acme"))
    assert (await result(scene, "operator", ops.GetTask(task_id=mine["id"], tenant="acme")))["id"]
    assert b"-32001" in (await ask(scene, "operator", ops.GetTask(task_id=mine["id"]))).body


async def test_a_path_and_a_body_that_name_two_tenants_are_refused_alike(scene: Scene) -> None:
    def of(tenant: str, thing: Thing) -> bytes:
        body = json.dumps({"tenant": tenant, "id": thing.task_id}).encode()
        return (
            f"POST /other/tasks/{thing.task_id}:cancel HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"X-API-Key: {KEYS['stranger']}\r\nA2A-Version: 1.0\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    foreign, imagined = thing(scene, "working"), Thing.imagined()
    answer = await scene.wire.ask(of("acme", foreign))
    never = await scene.wire.ask(of("nope", imagined))
    assert answer.without(*foreign) == never.without(*imagined) and answer.status == 400


# What operators have


def administer(caller: str, task_id: str, *, ends: bool) -> bytes:
    verb, suffix = ("POST", "/cancel") if ends else ("GET", "")
    token = f"X-API-Key: {KEYS[caller]}\r\n" if KEYS[caller] else ""
    line = f"{verb} {OPERATOR_API}/tasks/{task_id}{suffix} HTTP/1.1\r\nHost: 127.0.0.1\r\n{token}"
    return f"{line}Content-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("ends", [False, True], ids=["read", "cancel"])
@pytest.mark.parametrize(
    ("caller", "status"),
    [("anonymous", 401), ("neighbour", 404), ("stranger", 404)],
)
async def test_who_is_no_operator_learns_nothing_of_any_task(
    scene: Scene, caller: str, status: int, ends: bool
) -> None:
    made_up = new_id()
    never = await scene.wire.ask(administer(caller, made_up, ends=ends))
    assert never.status == status
    for state in STATES:
        found = thing(scene, state).task_id
        answer = await scene.wire.ask(administer(caller, found, ends=ends))
        assert answer.without(found) == never.without(made_up)


@pytest.mark.parametrize("ends", [False, True], ids=["read", "cancel"])
async def test_for_the_admin_of_a_tenant_there_is_nothing_in_another(
    scene: Scene, ends: bool
) -> None:
    begun = fresh(metadata={"skillId": "working"})
    theirs = await task(scene, "stranger", msgspec.structs.replace(begun, wait=False))
    made_up = new_id()
    never = await scene.wire.ask(administer("admin", made_up, ends=ends))
    answer = await scene.wire.ask(administer("admin", theirs["id"], ends=ends))
    assert answer.without(theirs["id"]) == never.without(made_up) and answer.status == 404
    still = await result(scene, "stranger", ops.GetTask(task_id=theirs["id"]))
    assert still["status"]["state"] == "TASK_STATE_WORKING"
    if not ends:
        own = await scene.wire.ask(administer("admin", thing(scene, "working").task_id, ends=False))
        assert own.status == 200


# Ids that callers of 0.x choose themselves


@pytest.mark.parametrize("caller", OTHERS)
async def test_a_task_id_of_another_is_free_where_callers_name_their_tasks(
    tmp_path: Path, caller: str
) -> None:
    async with scene_in(tmp_path, "GetTask", client_task_ids=True) as (scene, _):
        for binding in (JSONRPC_0_3, REST_0_3):
            imagined = Thing.imagined()
            never = await ask(scene, caller, ops.SendMessage(message=told(imagined)), binding)
            for state in STATES:
                foreign = scene.things[GET.v1, binding.name, state]
                asked = ops.SendMessage(message=told(foreign))
                answer = await ask(scene, caller, asked, binding)
                assert shape(json.loads(answer.body)) == shape(json.loads(never.body)), state
                seen = ops.GetTask(task_id=foreign.task_id)
                theirs = await result(scene, caller, seen)
                assert theirs["history"][0]["parts"] == [{"text": "again"}]
                if state != "deleted":
                    still = await result(scene, OWNER, seen)
                    assert still["history"][0]["parts"] == [{"text": state}]


async def test_two_tasks_of_one_name_are_two_tasks(tmp_path: Path) -> None:
    async with scene_in(tmp_path, "GetTask", client_task_ids=True) as (scene, _):
        shared = scene.things[GET.v1, JSONRPC.name, "waiting"]
        begun = told(shared, "theirs", metadata={"skillId": "working"})
        await ask(scene, "neighbour", ops.SendMessage(message=begun, wait=False), JSONRPC_0_3)
        answered = await task(scene, OWNER, ops.SendMessage(message=told(shared, "mine")))
        assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
        assert answered["artifacts"][0]["parts"] == [{"text": "mine"}]
        theirs = await result(scene, "neighbour", ops.GetTask(task_id=shared.task_id))
        assert theirs["status"]["state"] == "TASK_STATE_WORKING"
        assert [said["parts"] for said in theirs["history"]] == [[{"text": "theirs"}]]
        ended = await result(scene, "neighbour", ops.CancelTask(task_id=shared.task_id))
        assert ended["status"]["state"] == "TASK_STATE_CANCELED"
