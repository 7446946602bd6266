"""Receivers of a task are named, shown, listed and deleted by callers of each version."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving
from harness.waiting import WAIT, within

from dragoman.egress import dial, resolver
from dragoman.engine.receivers import MAX_PUSHES
from tests.server.receivers.receiving import (
    BY_NAME,
    HELD,
    INVALID,
    NOT_FOUND,
    NOWHERE,
    UNKNOWN,
    Caller,
    Gates,
    Refused,
    listed,
    make,
    skill,
    wanting,
)

CALLERS = pytest.mark.parametrize("speaks", ["1.0-rpc", "1.0-rest", "0.3-rpc", "0.2-rpc"])


@CALLERS
@pytest.mark.requirement("T-31", "2.12-secrets")
async def test_a_configuration_is_made_shown_listed_and_deleted(site: Site, speaks: str) -> None:
    caller = Caller(site, speaks)
    task = await site.send("x", configuration=HELD, **skill("hold"))
    config = {
        "id": "first",
        "url": NOWHERE,
        "token": "t-1",
        "authentication": {"scheme": "Bearer", "credentials": "hunter2"},
    }
    made = await caller.create(task["id"], config)
    assert made == {"taskId": task["id"], **config}
    # Credentials are shown once: to whoever gave them.
    shown = made | {"authentication": {"scheme": "Bearer"}}
    assert await caller.get(task["id"], "first") == shown
    second = await caller.create(task["id"], {"id": "second", "url": NOWHERE + "2"})
    assert await caller.list(task["id"]) == [shown, second]
    for _ in range(2):
        await caller.delete(task["id"], "first")
    assert await caller.list(task["id"]) == [second]
    with pytest.raises(Refused) as refused:
        await caller.get(task["id"], "first")
    # The protocol has one code for both; the words must not say that the task is gone.
    assert refused.value.args == (NOT_FOUND, "Push notification configuration not found")
    with pytest.raises(Refused) as refused:
        await caller.get(UNKNOWN, "first")
    assert refused.value.args == (NOT_FOUND, "Task not found")


async def test_a_read_of_0_x_where_there_is_no_configuration_says_which_is_missing(
    site: Site,
) -> None:
    task = await site.send("x", configuration=HELD, **skill("hold"))
    refused = await site.refusal("tasks/pushNotificationConfig/get", {"id": task["id"]})
    assert refused["message"] == "Push notification configuration not found"
    path = f"/v1/tasks/{task['id']}/pushNotificationConfigs/none"
    answer = await site.http.get(path)
    assert answer.status_code == 404
    assert answer.json()["message"] == "Push notification configuration not found"


@pytest.mark.parametrize(
    ("configuration", "waits"),
    [({}, False), ({"blocking": False}, False), ({"blocking": True}, True)],
    ids=["unsaid", "no", "yes"],
)
async def test_a_send_of_0_x_that_names_a_receiver_waits_only_if_it_says_so(
    configuration: dict[str, Any], waits: bool
) -> None:
    gates = Gates(asyncio.Event)
    async with serving(make(gates), allow_private=True) as site:
        said = old_message("x", **skill("hold"))
        named = {"pushNotificationConfig": {"url": NOWHERE}, "acceptedOutputModes": []}
        params = {"message": said, "configuration": named | configuration}
        sending = asyncio.ensure_future(site.call("message/send", params))
        if waits:
            # Its task is under way, and it hears nothing before the end.
            await within(gates["x begun"].wait())
            assert not sending.done()
            gates["x"].set()
        task = await within(sending)
        assert task["status"]["state"] == ("completed" if waits else "working")
        found = await site.call("tasks/pushNotificationConfig/get", {"id": task["id"]})
        assert found["pushNotificationConfig"]["url"] == NOWHERE
        gates["x"].set()


@CALLERS
@pytest.mark.requirement("2.12-id")
async def test_a_configuration_without_an_id_gets_one(site: Site, speaks: str) -> None:
    caller = Caller(site, speaks)
    task = await site.send("x", configuration=HELD, **skill("hold"))
    made = [await caller.create(task["id"], {"url": f"{NOWHERE}{n}"}) for n in range(2)]
    if speaks.startswith("1.0"):
        assert len({one["id"] for one in made}) == 2
        assert len(await caller.list(task["id"])) == 2
    else:
        # Callers of 0.x know one receiver only, so the second takes the place of the first.
        assert [one["id"] for one in made] == [task["id"]] * 2
        assert await caller.list(task["id"]) == made[1:]


async def test_a_read_of_0_x_that_names_no_configuration_gets_one(site: Site) -> None:
    task = await site.send("x", configuration=HELD, **skill("hold"))
    await Caller(site, "0.3-rpc").create(task["id"], {"url": NOWHERE})
    found = await site.call("tasks/pushNotificationConfig/get", {"id": task["id"]})
    assert found["pushNotificationConfig"]["url"] == NOWHERE


async def test_configurations_are_listed_in_pages(site: Site) -> None:
    task = await site.send("x", configuration=HELD, **skill("hold"))
    for n in range(3):
        await Caller(site, "1.0-rpc").create(task["id"], {"id": f"c{n}", "url": NOWHERE})
    found, token = [], ""
    for size in (2, 1):
        page = (
            await site.http.get(
                f"/tasks/{task['id']}/pushNotificationConfigs",
                params={"pageSize": 2, "pageToken": token},
            )
        ).json()
        assert len(page["configs"]) == size
        found += [config["id"] for config in page["configs"]]
        token = page["nextPageToken"]
    assert (found, token) == (["c0", "c1", "c2"], "")


@CALLERS
async def test_a_task_has_at_most_ten_receivers(site: Site, speaks: str) -> None:
    caller = Caller(site, speaks)
    task = await site.send("x", configuration=HELD, **skill("hold"))
    for n in range(MAX_PUSHES):
        await caller.create(task["id"], {"id": f"c{n}", "url": NOWHERE})
    with pytest.raises(Refused) as refused:
        await caller.create(task["id"], {"id": "more", "url": NOWHERE})
    assert refused.value.code == INVALID
    await caller.create(task["id"], {"id": "c0", "url": NOWHERE + "2"})
    assert len(await caller.list(task["id"])) == MAX_PUSHES


@CALLERS
async def test_receivers_of_a_task_that_is_not_there_or_not_ours_are_not_found(
    site: Site, speaks: str
) -> None:
    caller = Caller(site, speaks)
    params = {
        "message": message("x"),
        "tenant": "theirs",
        "configuration": wanting(NOWHERE, id="c"),
    }
    foreign = (await site.call("SendMessage", params))["task"]["id"]
    said: list[str] = []
    for id in (UNKNOWN, foreign):
        calls = (
            caller.create(id, {"url": NOWHERE, "id": "c"}),
            caller.get(id, "c"),
            caller.list(id),
            caller.delete(id, "c"),
        )
        for call in calls:
            with pytest.raises(Refused) as refused:
                await call
            assert refused.value.code == NOT_FOUND
            said.append(str(refused.value).replace(id, ""))
    assert said[:4] == said[4:]
    theirs = {"taskId": foreign, "tenant": "theirs"}
    kept = await site.call("ListTaskPushNotificationConfigs", theirs)
    assert [config["id"] for config in kept["configs"]] == ["c"]


BAD = [
    "https://127.0.0.1/hook",
    "https://127.1/hook",
    "https://10.0.0.1/hook",
    "https://[::1]/hook",
    "https://[::ffff:127.0.0.1]/hook",
    "https://169.254.169.254/latest/meta-data/",
    "https://metadata.google.internal/",
    "https://localhost/hook",
    "https://printer/hook",
    "http://hooks.example.com/hook",
    "https://hooks.example.com:22/hook",
    "https://user:password@hooks.example.com/hook",
    "ftp://hooks.example.com/hook",
    "file:///etc/passwd",
    "hooks.example.com",
]


@pytest.mark.requirement("T-45")
async def test_an_address_we_never_go_to_is_refused_and_nothing_is_made() -> None:
    sentences: set[str] = set()
    async with serving(make()) as site:
        task = await site.send("x")
        for url in BAD:
            for speaks in ("1.0-rpc", "1.0-rest", "0.3-rpc"):
                with pytest.raises(Refused) as refused:
                    await Caller(site, speaks).create(task["id"], {"url": url})
                assert refused.value.code == INVALID, url
            error = await site.refusal(
                "SendMessage", {"message": message("x"), "configuration": wanting(url)}
            )
            sentences.add(error["message"])
            assert error["code"] == INVALID
            older = {"message": old_message("x"), "configuration": {}}
            older["configuration"]["pushNotificationConfig"] = {"url": url}
            assert (await site.refusal("message/send", older))["code"] == INVALID
        # Which of them is where we do not go, and which is no address, is not told.
        assert len(sentences) == 1
        assert await Caller(site, "1.0-rpc").list(task["id"]) == []
        assert await site.total() == 1


@pytest.mark.requirement("T-45")
async def test_a_name_that_leads_to_a_private_address_is_never_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    opened: list[Any] = []

    def look_up(host: str) -> list[str]:
        asked.append(host)
        return ["10.1.2.3"]

    def open_socket(info: Any) -> socket.socket:
        opened.append(info)
        raise OSError("dialled")

    monkeypatch.setattr(resolver, "addresses_of", look_up)
    monkeypatch.setattr(dial, "open_socket", open_socket)
    file = tmp_path / "tasks.db"
    async with serving(make(), store=str(file)) as site, asyncio.timeout(WAIT):
        task = await site.send("x", configuration=wanting(BY_NAME, id="c"))
        # It is a name like any other, so only delivery finds out.
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        line: dict[str, Any] = {}
        while line.get("state") != "failing":
            (line,) = await listed(file)
        assert line["id"] == f"{task['id']}/c" and line["tries"] == 1
        assert line["problem"].startswith("no answer: ") and "not public" in line["problem"]
    # Other servers of this file may still try their own receivers.
    dialled = [info for info in opened if info[4][0] == "10.1.2.3"]
    assert set(asked) == {"hooks.example.com"} and dialled == []
