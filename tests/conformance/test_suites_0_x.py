"""What the public suites for 0.3 and 0.2 rightly demand: of a server, and through a gateway."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.serving import serving

from tests.conformance.asking import Wire, canceled_when_seen, conformance_agent, old_message

HERE = Path(__file__).parent
UNKNOWN = "00000000-0000-4000-8000-000000000000"
HOOK = "http://127.0.0.1:9/hook"
MANY = 8


@pytest.fixture(params=["0.3", "0.2"])
def old(request: pytest.FixtureRequest, base: str, http: httpx.AsyncClient) -> Wire:
    """What older clients speak."""
    return Wire(http, base, version=request.param)


async def sent(wire: Wire, what: str, **more: Any) -> Any:
    configuration = {"configuration": more.pop("configuration")} if "configuration" in more else {}
    params = {"message": old_message(what, **more)} | configuration
    found = await wire.ask("message/send", params)
    assert found.code is None, found.body
    return found.result


async def test_a_send_returns_the_task_with_its_kind(old: Wire) -> None:
    task = await sent(old, "tck-artifact-text")
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Generated text content"}]


async def test_a_state_has_the_spelling_of_its_version(old: Wire) -> None:
    task = await sent(old, "tck-input-required")
    assert task["status"]["state"] == "input-required"
    canceled = await old.ask("tasks/cancel", {"id": task["id"]})
    assert canceled.result["status"]["state"] == "canceled"


async def test_a_send_that_does_not_wait_returns_at_once(old: Wire) -> None:
    task = await sent(old, "test-resubscribe-message-id", configuration={"blocking": False})
    assert task["status"]["state"] in ("submitted", "working")
    (events,) = await canceled_when_seen([old], "tasks/resubscribe", "tasks/cancel", task["id"])
    assert (events[-1]["final"], events[-1]["status"]["state"]) == (True, "canceled")


async def test_a_stream_ends_with_a_final_event(old: Wire) -> None:
    said = {"message": old_message("tck-stream-001")}
    events = (await old.ask("message/stream", said)).events
    assert events[0]["kind"] == "task"
    assert {one["kind"] for one in events[1:]} == {"status-update", "artifact-update"}
    assert (events[-1]["final"], events[-1]["status"]["state"]) == (True, "completed")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("message/send", {}, -32602),
        (
            "message/send",
            {"message": {"kind": "message", "role": "user", "messageId": "m", "parts": []}},
            -32602,
        ),
        ("tasks/get", {"id": UNKNOWN}, -32001),
        ("tasks/get", {"id": UNKNOWN, "historyLength": -1}, -32602),
        ("tasks/cancel", {"id": UNKNOWN}, -32001),
        ("tasks/resubscribe", {"id": UNKNOWN}, -32001),
        ("tasks/none", {}, -32601),
    ],
)
async def test_errors_have_their_codes(old: Wire, method: str, params: Any, code: int) -> None:
    assert (await old.ask(method, params)).code == code


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", -32700, None),
        (b'{"jsonrpc": "1.0", "id": "a", "method": "tasks/get"}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tasks/none"}', -32601, 7),
    ],
)
async def test_the_id_of_a_request_is_echoed_where_it_can_be_read(
    base: str, http: httpx.AsyncClient, body: bytes, code: int, id: Any
) -> None:
    headers = {"Content-Type": "application/json"}
    refused = (await http.post(f"{base}/a2a", content=body, headers=headers)).json()
    assert (refused["error"]["code"], refused["id"]) == (code, id)


async def test_the_longest_history_may_be_asked_for(old: Wire) -> None:
    task = await sent(old, "tck-complete-task")
    found = await old.ask("tasks/get", {"id": task["id"], "historyLength": 2**31 - 1})
    assert len(found.result["history"]) >= 1


async def test_many_at_once_unicode_and_unknown_fields_survive(old: Wire) -> None:
    more = {"metadata": {"größe": "漢字 \U0001f409", "none": None}, "unknown": {"deep": [1]}}
    tasks = await asyncio.gather(*(sent(old, "tck-complete-task", **more) for _ in range(MANY)))
    assert len({task["id"] for task in tasks}) == MANY
    assert all(task["history"][0]["metadata"]["größe"] == "漢字 \U0001f409" for task in tasks)


async def test_deleting_a_push_configuration_answers_null(old: Wire) -> None:
    task = await sent(old, "tck-input-required")
    config = {"taskId": task["id"], "pushNotificationConfig": {"id": "one", "url": HOOK}}
    made = await old.ask("tasks/pushNotificationConfig/set", config)
    assert made.result["pushNotificationConfig"]["url"] == HOOK
    named = {"id": task["id"], "pushNotificationConfigId": "one"}
    deleted = await old.ask("tasks/pushNotificationConfig/delete", named)
    assert deleted.body["result"] is None


async def test_the_card_of_0_2_is_where_0_2_looks(base: str, http: httpx.AsyncClient) -> None:
    shown = (await http.get(f"{base}/.well-known/agent.json")).json()
    assert shown["url"].startswith("http") and "supportedInterfaces" not in shown


async def test_a_task_of_the_callers_own_id_is_made_where_that_is_switched_on(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = conformance_agent(monkeypatch)
    for is_on, code in ((True, None), (False, -32001)):
        async with serving(agent, client_task_ids=is_on) as site:
            said = {"message": old_message("tck-complete-task", taskId="mine")}
            found = await Wire(http, site.url, version="0.2").ask("message/send", said)
            assert found.code == code
            assert not is_on or found.result["id"] == "mine"


def test_every_check_that_is_known_to_be_wrong_has_its_reason_and_its_test() -> None:
    known = tomllib.loads((HERE / "known_wrong.toml").read_text())
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    for name, entry in known.items():
        assert entry.keys() == {"suite", "demands", "reason", "instead"}, name
        assert f"async def {entry['instead']}(" in tests, name
