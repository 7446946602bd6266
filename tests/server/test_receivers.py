"""Push through the served product: a caller names a receiver, and what happens arrives there."""

import asyncio
import json
import logging
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from commanding import invoke
from joserfc import jwt
from joserfc.jwk import KeySet
from serving import V1, WAIT, Site, client, message, old_message, serving, within
from standardwebhooks.webhooks import Webhook

from dragoman import Agent, App, Message, Settings, Turn
from dragoman.engine.receivers import MAX_PUSHES
from dragoman.errors import ConfigError
from dragoman.proof.receivers import Post, Receiver, Treatment
from dragoman.push import Recent, verify
from dragoman.security import egress, names

OK, SILENCE = Treatment.OK, Treatment.SILENCE
UNKNOWN = "00000000-0000-7000-8000-000000000000"
NOT_FOUND, INVALID = -32001, -32602
REASONS = {"TASK_NOT_FOUND": NOT_FOUND, "INVALID_PARAMS": INVALID}
# Nobody listens there: what is not posted needs no receiver.
NOWHERE = "http://127.0.0.1:9/hook"
# Opened by a test to let the skill that waits for it go on, by the text it was sent.
Gates = defaultdict[str, asyncio.Event]
BY_NAME = "https://hooks.example.com/hook"
HELD = {"returnImmediately": True}


def make(gates: Gates | None = None) -> Agent:
    agent = Agent("Clerk", "Does as it is told.")

    @agent.skill(default=True)
    async def work(text: str, turn: Turn) -> str:
        await turn.say("At it.")
        return text

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return f"{text} to {(await turn.ask('Where?')).text}"

    @agent.skill
    async def hold(text: str, turn: Turn) -> str:
        assert gates is not None
        gates[f"{text} begun"].set()
        await gates[text].wait()
        return text

    @agent.skill
    async def reply(text: str, turn: Turn) -> Message:
        return turn.reply(text)

    return agent


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Site]:
    async with serving(make(Gates(asyncio.Event)), allow_private=True) as site:
        yield site


@pytest.fixture
async def site(served: Site) -> AsyncIterator[Site]:
    # Connections of its own: the server closes those that are idle for some seconds.
    async with client(served.url) as http:
        yield Site(served.url, http)


def skill(name: str) -> dict[str, Any]:
    return {"metadata": {"skillId": name}}


def wanting(url: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a 1.0 send that names a receiver."""
    return {"taskPushNotificationConfig": {"url": url} | more}


def contents(receiver: Receiver) -> list[Any]:
    return [json.loads(post.body) for post in receiver.posts]


def states(receiver: Receiver) -> list[str]:
    """Return the states that a receiver of any version was told."""
    found: list[str] = []
    for content in contents(receiver):
        holder = content.get("task") or content.get("statusUpdate") or content
        if "status" in holder:
            found.append(holder["status"]["state"].removeprefix("TASK_STATE_").lower())
    return found


async def until(receiver: Receiver, holds: Callable[[], bool]) -> list[Post]:
    """Wait until a receiver was told enough."""

    async def wait() -> None:
        while not holds():
            receiver.arrived.clear()
            await receiver.arrived.wait()

    await within(wait())
    return receiver.posts


async def arrived(receiver: Receiver, count: int) -> list[Post]:
    return await until(receiver, lambda: len(receiver.posts) >= count)


async def ended(receiver: Receiver) -> list[Post]:
    return await until(receiver, lambda: "completed" in states(receiver))


async def run(*arguments: str) -> str:
    """Run `dragoman push` beside the server; return what it printed."""
    done = await asyncio.to_thread(invoke, "push", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


async def listed(file: Path) -> list[dict[str, Any]]:
    said = await run("list", "--store", str(file), "-o", "json")
    return json.loads(said)["items"]


class Refused(Exception):
    """An operation was refused, with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code


class Caller:
    """The four operations in one version over one binding, all answers as 1.0 has them."""

    def __init__(self, site: Site, speaks: str) -> None:
        self.site = site
        self.version, _, self.binding = speaks.partition("-")

    async def create(self, task_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        if self.binding == "rest":
            return await self._rest("POST", task_id, "", dict(config))
        if self.version == "1.0":
            params = {"taskId": task_id, **config}
            return await self._rpc("CreateTaskPushNotificationConfig", params)
        inner = dict(config)
        if "authentication" in inner:
            given = dict(inner["authentication"])
            inner["authentication"] = {"schemes": [given.pop("scheme")], **given}
        params = {"taskId": task_id, "pushNotificationConfig": inner}
        return _flat(await self._rpc("tasks/pushNotificationConfig/set", params))

    async def get(self, task_id: str, id: str) -> dict[str, Any]:
        if self.binding == "rest":
            return await self._rest("GET", task_id, f"/{id}")
        if self.version == "1.0":
            return await self._rpc("GetTaskPushNotificationConfig", {"taskId": task_id, "id": id})
        params = {"id": task_id, "pushNotificationConfigId": id}
        return _flat(await self._rpc("tasks/pushNotificationConfig/get", params))

    async def list(self, task_id: str) -> list[dict[str, Any]]:
        if self.binding == "rest":
            return (await self._rest("GET", task_id, ""))["configs"]
        if self.version == "1.0":
            found = await self._rpc("ListTaskPushNotificationConfigs", {"taskId": task_id})
            return found["configs"]
        found = await self._rpc("tasks/pushNotificationConfig/list", {"id": task_id})
        return [_flat(one) for one in found]

    async def delete(self, task_id: str, id: str) -> None:
        if self.binding == "rest":
            await self._rest("DELETE", task_id, f"/{id}")
        elif self.version == "1.0":
            params = {"taskId": task_id, "id": id}
            await self._rpc("DeleteTaskPushNotificationConfig", params)
        else:
            params = {"id": task_id, "pushNotificationConfigId": id}
            assert await self._rpc("tasks/pushNotificationConfig/delete", params) is None

    async def _rpc(self, method: str, params: Any) -> Any:
        headers = {"A2A-Version": self.version}
        answer = await self.site.answer(method, params, headers=headers)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    async def _rest(self, verb: str, task_id: str, rest: str, body: Any = None) -> Any:
        path = f"/tasks/{task_id}/pushNotificationConfigs{rest}"
        answer = await self.site.http.request(verb, path, json=body, headers=V1)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            raise Refused(REASONS[error["details"][0]["reason"]], error["message"])
        return answer.json() if answer.content else None


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    inner = dict(value["pushNotificationConfig"])
    if "authentication" in inner:
        given = dict(inner["authentication"])
        (scheme,) = given.pop("schemes")
        inner["authentication"] = {"scheme": scheme, **given}
    return {"taskId": value["taskId"], **inner}


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

    monkeypatch.setattr(names, "addresses_of", look_up)
    monkeypatch.setattr(egress, "open_socket", open_socket)
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


@pytest.mark.requirement("T-25", "4.4-push")
async def test_a_receiver_named_in_a_send_gets_what_the_stream_shows(site: Site) -> None:
    async with Receiver([OK]) as receiver:
        params = {"message": message("Oslo"), "configuration": wanting(receiver.url)}
        frames = await site.events("SendStreamingMessage", params)
        posts = await ended(receiver)
    # From the first event on, which was there before the agent's code ran.
    assert contents(receiver) == [frame.result for frame in frames]
    assert "task" in contents(receiver)[0]
    assert [p.headers["x-dragoman-event"] for p in posts] == [frame.id for frame in frames]
    for post in posts:
        assert post.headers["content-type"] == "application/a2a+json"
        assert post.headers["a2a-version"] == "1.0"
        assert "authorization" not in post.headers


@pytest.mark.requirement("T-25", "4.4-push")
@pytest.mark.parametrize("version", ["0.3", "0.2"])
async def test_a_receiver_of_0_x_gets_the_task_at_each_status(site: Site, version: str) -> None:
    async with Receiver([OK]) as receiver:
        configuration = {"pushNotificationConfig": {"url": receiver.url}, "blocking": True}
        params = {"message": old_message("Oslo"), "configuration": configuration}
        task = await site.call("message/send", params, headers={"A2A-Version": version})
        posts = await ended(receiver)
    assert states(receiver) == ["submitted", "working", "working", "completed"]
    assert contents(receiver)[-1] == task
    assert {content["kind"] for content in contents(receiver)} == {"task"}
    for post in posts:
        assert post.headers["content-type"] == "application/json"
        assert post.headers["a2a-version"] == version


@pytest.mark.requirement("T-39")
async def test_each_receiver_is_told_in_the_version_it_was_named_in(site: Site) -> None:
    async with Receiver([OK]) as newer, Receiver([OK]) as older:
        task = await site.send("x", configuration=wanting(newer.url), **skill("ask"))
        await Caller(site, "0.3-rpc").create(task["id"], {"url": older.url})
        await site.call("message/send", {"message": old_message("Rome", taskId=task["id"])})
        await ended(newer)
        await ended(older)
    assert all("kind" not in content for content in contents(newer))
    assert [content["kind"] for content in contents(older)] == ["task"] * len(older.posts)


async def told_all(file: Path) -> None:
    """Wait until nobody is behind, and it is recorded so."""
    async with asyncio.timeout(WAIT):
        while any(line["behind"] for line in await listed(file)):
            pass


@pytest.mark.requirement("T-42")
async def test_every_receiver_of_a_task_is_told_and_the_same_id_replaces(tmp_path: Path) -> None:
    file, gates = tmp_path / "tasks.db", Gates(asyncio.Event)
    async with (
        Receiver([OK]) as one,
        Receiver([OK]) as two,
        Receiver([OK]) as three,
        serving(make(gates), store=str(file), allow_private=True) as site,
    ):
        configuration = HELD | wanting(one.url, id="c")
        task = await site.send("x", configuration=configuration, **skill("hold"))
        await told_all(file)
        before = len(one.posts)
        caller = Caller(site, "1.0-rpc")
        await caller.create(task["id"], {"id": "c", "url": two.url})
        await caller.create(task["id"], {"id": "d", "url": three.url})
        assert [c["url"] for c in await caller.list(task["id"])] == [two.url, three.url]
        gates["x"].set()
        await ended(two)
        await ended(three)
        await told_all(file)
    assert len(one.posts) == before > 0
    assert states(two)[-1] == states(three)[-1] == "completed"


async def test_a_deleted_receiver_gets_nothing_more(tmp_path: Path) -> None:
    file, gates = tmp_path / "tasks.db", Gates(asyncio.Event)
    async with (
        Receiver([OK]) as gone,
        Receiver([OK]) as kept,
        serving(make(gates), store=str(file), allow_private=True) as site,
    ):
        configuration = HELD | wanting(gone.url, id="c")
        task = await site.send("x", configuration=configuration, **skill("hold"))
        caller = Caller(site, "1.0-rpc")
        await caller.create(task["id"], {"id": "d", "url": kept.url})
        await told_all(file)
        before = len(gone.posts)
        await caller.delete(task["id"], "c")
        gates["x"].set()
        await ended(kept)
        await told_all(file)
    assert len(gone.posts) == before > 0


async def test_a_message_to_a_task_may_name_a_receiver_of_what_follows(site: Site) -> None:
    task = await site.send("x", **skill("ask"))
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    async with Receiver([OK]) as receiver:
        await site.send("Rome", taskId=task["id"], configuration=wanting(receiver.url, id="c"))
        await ended(receiver)
    assert all("task" not in content for content in contents(receiver))
    assert "input_required" not in states(receiver)
    assert [c["id"] for c in await Caller(site, "1.0-rpc").list(task["id"])] == ["c"]


async def test_a_reply_without_a_task_is_posted_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    async with Receiver([OK]) as receiver, serving(make(), allow_private=True) as site:
        with caplog.at_level(logging.WARNING, "dragoman"):
            said = await site.send("x", configuration=wanting(receiver.url), **skill("reply"))
            await site.send("y", configuration=wanting(receiver.url))
        assert said["role"] == "ROLE_AGENT"
        await ended(receiver)
    tasks = [content["task"] for content in contents(receiver) if "task" in content]
    assert [task["history"][0]["parts"][0]["text"] for task in tasks] == ["y"]
    # Whatever level others left the loggers of libraries at.
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.requirement("T-44")
async def test_posts_carry_credentials_and_token_of_their_configuration(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    authentication = {"scheme": "Bearer", "credentials": "hunter2"}
    with caplog.at_level(logging.DEBUG):
        async with Receiver([OK]) as receiver:
            given = wanting(receiver.url, token="t-0ken", authentication=authentication)
            await site.send("x", configuration=given)
            posts = await ended(receiver)
    for post in posts:
        assert post.headers["authorization"] == "Bearer hunter2"
        assert post.headers["x-a2a-notification-token"] == "t-0ken"
        assert b"hunter2" not in post.body and b"t-0ken" not in post.body
    assert "hunter2" not in caplog.text and "t-0ken" not in caplog.text


@pytest.mark.requirement("T-41")
async def test_a_receiver_that_is_silent_delays_neither_a_send_nor_another_receiver(
    site: Site,
) -> None:
    async with Receiver([SILENCE]) as silent, Receiver([OK]) as well:
        configuration = HELD | wanting(silent.url, id="a")
        task = await site.send("x", configuration=configuration, **skill("ask"))
        await Caller(site, "1.0-rpc").create(task["id"], {"id": "b", "url": well.url})
        await arrived(silent, 1)
        # A receiver has 15 s for its answer; neither of these waits for it.
        async with asyncio.timeout(60):
            done = await site.send("Rome", taskId=task["id"])
            await ended(well)
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(silent.posts) == 1


@pytest.mark.requirement("T-41")
async def test_many_tasks_arrive_each_in_its_own_order(site: Site) -> None:
    async with Receiver([OK]) as receiver:
        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(site.send(f"{n}", configuration=wanting(receiver.url)))
        await until(receiver, lambda: states(receiver).count("completed") == 20)
    orders: dict[str, list[int]] = {}
    for post in receiver.posts:
        task_id = task_of(post)
        orders.setdefault(task_id, []).append(int(post.headers["x-dragoman-event"]))
    assert len(orders) == 20
    for order in orders.values():
        assert order == sorted(set(order)) and order[0] == 1


def task_of(post: Post) -> str:
    """Return the task a post of 1.0 is about."""
    content = json.loads(post.body)
    ((_, value),) = content.items()
    return value.get("taskId") or value["id"]


@pytest.mark.requirement("T-40")
async def test_the_end_of_a_task_is_its_last_post(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    async with (
        Receiver([OK]) as receiver,
        Receiver([OK]) as late,
        serving(make(), store=str(file), allow_private=True) as site,
        asyncio.timeout(WAIT),
    ):
        task = await site.send("x", configuration=wanting(receiver.url, id="c"))
        await ended(receiver)
        # Also a task that ended takes configurations; there is nothing more to post.
        caller = Caller(site, "1.0-rpc")
        await caller.create(task["id"], {"id": "d", "url": late.url})
        assert len(await caller.list(task["id"])) == 2
        while await listed(file):
            pass
        assert late.posts == [] and states(receiver)[-1] == "completed"


async def test_a_server_that_stops_goes_on_from_the_cursor(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    settings: dict[str, Any] = {"store": str(file), "allow_private": True}
    async with Receiver([OK]) as receiver:
        async with serving(make(), **settings) as site:
            task = await site.send("x", configuration=wanting(receiver.url), **skill("ask"))
            await until(receiver, lambda: "input_required" in states(receiver))
        async with serving(make(), **settings) as site:
            await site.send("Rome", taskId=task["id"])
            posts = await ended(receiver)
    places = [int(post.headers["x-dragoman-event"]) for post in posts]
    # None twice and none left out: the message itself is nothing that streams show.
    assert places == sorted(set(places)) and places[0] == 1
    assert len({post.headers["webhook-id"] for post in posts}) == len(posts)


async def test_what_was_not_delivered_when_a_server_stopped_is_delivered_by_the_next(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path / "tasks.db"), "allow_private": True}
    async with Receiver([SILENCE, OK]) as receiver:
        async with serving(make(), **settings) as site:
            await site.send("x", configuration=wanting(receiver.url))
            await arrived(receiver, 1)
        async with serving(make(), **settings):
            await ended(receiver)
    first, second, *_ = receiver.posts
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert states(receiver)[1:] == ["submitted", "working", "working", "completed"]


async def test_a_receiver_that_was_given_up_is_opened_again_beside_the_server(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tasks.db"
    async with (
        Receiver([OK, Treatment.GONE, OK]) as receiver,
        serving(make(), store=str(file), allow_private=True, lease=1) as site,
        asyncio.timeout(WAIT),
    ):
        task = await site.send("x", configuration=wanting(receiver.url, id="c"))
        await arrived(receiver, 2)
        line: dict[str, Any] = {}
        while line.get("state") != "disabled":
            (line,) = await listed(file)
        assert line["id"] == f"{task['id']}/c" and "410" in line["problem"]
        assert "open again" in await run("replay", "--store", str(file), line["id"])
        await ended(receiver)
    places = [post.headers["x-dragoman-event"] for post in receiver.posts]
    assert places[1] == places[2]


@pytest.mark.requirement("T-46")
async def test_posts_are_verified_with_the_secret_that_the_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    async with (
        Receiver([OK]) as receiver,
        serving(make(), store=str(file), allow_private=True) as site,
    ):
        task = await site.send("x", configuration=wanting(receiver.url, token="t"))
        posts = await ended(receiver)
        secret = (await run("secret", "--store", str(file))).strip()
    seen = Recent()
    for post in posts:
        # The independent library first, then our own.
        Webhook(secret).verify(post.body, post.headers)
        delivery = verify(
            post.headers, post.body, secret, seen=seen, task_ids={task["id"]}, token="t"
        )
        assert delivery.content == json.loads(post.body)


async def test_a_secret_of_the_settings_signs_and_two_of_them_both() -> None:
    secrets = ["whsec_" + letter * 40 for letter in "ab"]
    async with (
        Receiver([OK]) as receiver,
        serving(make(), allow_private=True, push_secret=",".join(secrets)) as site,
    ):
        await site.send("x", configuration=wanting(receiver.url))
        for post in await ended(receiver):
            for secret in secrets:
                Webhook(secret).verify(post.body, post.headers)


@pytest.mark.requirement("T-47")
async def test_a_token_of_a_post_is_verified_with_the_keys_we_serve() -> None:
    issuer = "https://agent.example"
    settings: dict[str, Any] = {"push_tokens": True, "public_url": issuer, "allow_private": True}
    async with (
        Receiver([OK]) as plain,
        Receiver([OK]) as known,
        serving(make(), **settings) as site,
    ):
        authentication = {"scheme": "Bearer", "credentials": "hunter2"}
        task = await site.send("x", configuration=wanting(f"{plain.url}?key=s3cret"))
        given = wanting(known.url, authentication=authentication)
        await site.send("x", configuration=given)
        keys = KeySet.import_key_set((await site.http.get("/.well-known/jwks.json")).json())
        assert all(not key.is_private for key in keys.keys)
        for post in await ended(plain):
            scheme, _, token = post.headers["authorization"].partition(" ")
            claims = jwt.decode(token, keys, algorithms=["ES256"]).claims
            assert scheme == "Bearer" and claims["iss"] == issuer
            assert claims["aud"] == plain.url and claims["taskId"] == task["id"]
            assert claims["jti"] == post.headers["webhook-id"]
            assert claims["exp"] > claims["iat"]
        for post in await ended(known):
            assert post.headers["authorization"] == "Bearer hunter2"
            jwt.decode(post.headers["x-a2a-notification-jwt"], keys, algorithms=["ES256"])


async def test_without_tokens_there_are_no_keys(site: Site) -> None:
    assert (await site.http.get("/.well-known/jwks.json")).status_code == 404


async def test_an_address_that_is_allowed_opens_no_other() -> None:
    async with Receiver([OK]) as receiver:
        port = int(receiver.url.rpartition(":")[2].partition("/")[0])
        async with serving(make(), allow=f"127.0.0.1:{port}, 10.0.0.0/8") as site:
            task = await site.send("x", configuration=wanting(receiver.url))
            await ended(receiver)
            caller = Caller(site, "1.0-rpc")
            await caller.create(task["id"], {"url": "https://10.1.2.3/hook"})
            for url in ("http://127.0.0.1:8080/hook", "https://192.168.0.1/hook"):
                with pytest.raises(Refused):
                    await caller.create(task["id"], {"url": url})


@pytest.mark.parametrize(
    "mistake",
    [
        {"push_secret": "whsec_short"},
        {"allow": "not a host"},
        {"push_tokens": True, "public_url": ""},
    ],
)
async def test_a_mistake_in_the_settings_ends_the_start(mistake: dict[str, Any]) -> None:
    app = App(make(), settings=Settings(store="memory:", **mistake))
    with pytest.raises(ConfigError):
        await app.start()
