"""Push through the served product: what receivers are posted, in which order, signed how."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness.serving import Site, message, old_message, serving
from harness.waiting import WAIT, eventually
from joserfc import jwt
from joserfc.jwk import KeySet
from standardwebhooks.webhooks import Webhook

from dragoman import App
from dragoman.config import load_settings
from dragoman.errors import ConfigError
from dragoman.model.identity import TaskId
from dragoman.push import Recent, verify
from dragoman.stores.interface import DeadLetter, Push
from proof.wire.receivers import Post, Receiver, Treatment
from tests.server.receivers.receiving import (
    HELD,
    OK,
    SILENCE,
    Caller,
    Gates,
    Refused,
    arrived,
    contents,
    ended,
    listed,
    make,
    run,
    skill,
    states,
    wanting,
)


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
        await receiver.until(lambda: states(receiver).count("completed") == 20)
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
            await receiver.until(lambda: "input_required" in states(receiver))
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


@pytest.mark.parametrize("place", ["--store", "--gateway"])
async def test_a_receiver_that_was_given_up_is_opened_again_beside_the_server(
    place: str, tmp_path: Path
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
        # As where only this machine reaches the server: its callers are operators.
        site.app.site.is_local = True
        where = (place, str(file) if place == "--store" else site.url)
        table = await run("list", *where, "-o", "table")
        assert max(map(len, table.splitlines())) <= 120
        shown = table.splitlines()[1].split()
        assert shown[1] == task["id"] and receiver.url.startswith(shown[2]), table
        # By its own id, or as the table names it.
        name = line["id"] if place == "--gateway" else shown[1]
        assert "open again" in await run("replay", *where, name)
        await ended(receiver)
    places = [post.headers["x-dragoman-event"] for post in receiver.posts]
    assert places[1] == places[2]


@pytest.mark.parametrize("place", ["--store", "--gateway"])
async def test_a_dead_letter_is_posted_once_more_with_its_first_id(
    place: str, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.db"
    async with (
        Receiver([*[OK] * 5, Treatment.GONE, OK]) as receiver,
        serving(make(), store=str(file), allow_private=True) as site,
    ):
        task = await site.send("x", configuration=wanting(receiver.url, id="c"))
        first, *_ = await ended(receiver)
        # As where only this machine reaches the server: its callers are operators.
        site.app.site.is_local = True
        where = (place, str(file) if place == "--store" else site.url)
        private = ("--allow-private",) if place == "--store" else ()
        store = site.app.store

        async def settled() -> Push | None:
            ((push, _),) = await store.receivers(limit=9)
            return None if push.is_open else push

        # The receiver has the last post a little before the store knows that it was taken.
        push: Push = await eventually(settled)
        letter = DeadLetter(push.number, TaskId(task["id"]), "c", receiver.url, 1, 9, 77, "a 500")
        await store.settle((await store.pushes(push.task))[0], letter)
        dead = json.loads(await run("list", *where, "-o", "json"))["items"][-1]
        assert (dead["state"], dead["id"]) == ("dead", first.headers["webhook-id"])
        # A path may be a secret.
        assert urlsplit(dead["receiver"]).path == ""
        refused = await run("replay", dead["id"], *where, *private, exit_code=1)
        assert "answered 410" in refused
        assert json.loads(await run("list", *where, "-o", "json"))["items"][-1] == dead
        assert "delivered" in await run("replay", "--all", *where, *private)
        assert json.loads(await run("list", *where, "-o", "json"))["items"] == []
    again = receiver.posts[-1]
    assert (again.body, again.headers["webhook-id"]) == (first.body, dead["id"])


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


async def test_a_mistake_in_the_settings_ends_the_start() -> None:
    app = App(make(), settings=load_settings({}, store="memory:", push_tokens=True))
    with pytest.raises(ConfigError, match="push_tokens = True: needs public_url"):
        await app.start()
