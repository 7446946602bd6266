"""`dragoman push` on a file that a sender has worked on, and works on."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import Result
from harness.commands import invoke
from standardwebhooks.webhooks import Webhook

from dragoman.config import Settings, StoreSettings
from dragoman.egress.egress import Egress
from dragoman.model.push import PushConfig
from dragoman.push.sender import Sender
from dragoman.push.signature import encode_secret, secrets_of
from dragoman.security.vault import vault_of
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.clock import ManualClock
from proof.wire.push import DIALECTS, begin, follower, quiet, reader
from proof.wire.receivers import Receiver, Treatment

OK, ERROR = Treatment.OK, Treatment.ERROR


async def run(*arguments: str) -> Result:
    """Run the command in a thread: it has a loop of its own."""
    return await asyncio.to_thread(invoke, "push", *arguments)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Receivers of the tests are on whatever port is free.
    real = Egress.__init__

    def any_port(self: Egress, **given: Any) -> None:
        real(self, **given, ports=range(1, 65536))

    monkeypatch.setattr(Egress, "__init__", any_port)
    return str(tmp_path / "tasks.db")


async def work(
    file: str, *receivers: Receiver, until: Callable[[Sender], bool], version: str = "1.0"
) -> SQLiteStore:
    """Deliver to each receiver under a clock of its own until it is enough; the store is open."""
    store, clock = SQLiteStore(file), ManualClock()
    await store.open()
    await store.prepare()
    async with Egress(allow_private=True) as egress:
        sender = Sender(
            store,
            egress,
            follow=follower(store),
            read=reader(store),
            dialects=DIALECTS,
            secrets=secrets_of([], store.secret),
            clock=clock,
            timeout=0.3,
            random=Random(1),
        )
        for n, receiver in enumerate(receivers):
            config = PushConfig(receiver.url + "?key=QUERY", f"c{n}", token="T", version=version)
            for push in await begin(store, [config]):
                sender.add(push)
        await quiet(sender, clock)
        while not until(sender):
            await clock.leap()
            await quiet(sender, clock)
        await sender.stop(0)
    return store


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["items"]


async def test_the_list_shows_who_fails_and_what_is_dead_while_the_file_is_in_use(
    file: str,
) -> None:
    tens = [ERROR] * 10 + [OK]
    async with Receiver([OK]) as well, Receiver(tens) as late, Receiver([Treatment.GONE]) as gone:
        store = await work(file, well, late, gone, until=lambda sender: not sender.running)
    async with Receiver([ERROR]) as failing:
        await store.close()
        store = await work(file, failing, until=lambda _: True)
        found = lines(await run("list", "--store", file, "-o", "json"))
        shown = (await run("list", "--store", file)).stdout
        streamed = (await run("list", "--store", file, "-o", "json", "--stream")).stdout
        first = json.loads(
            (await run("list", "--store", file, "-o", "json", "--limit", "2")).stdout
        )
        token = first["nextPageToken"]
        rest = lines(await run("list", "--store", file, "-o", "json", "--page-token", token))
        await store.close()
    assert [json.loads(line) for line in streamed.splitlines()] == found
    assert first["items"] + rest == found
    by_state = {line["state"]: line for line in found}
    assert len(found) == 3 and by_state.keys() == {"disabled", "failing", "dead"}
    assert by_state["disabled"]["behind"] == 4 and "410" in by_state["disabled"]["problem"]
    assert by_state["failing"]["tries"] == 1 and by_state["failing"]["nextAt"] > "2023"
    dead = by_state["dead"]
    assert dead["id"] == late.posts[0].headers["webhook-id"] and dead["problem"] == "answered 500"
    assert dead["event"] == 1 and dead["tries"] == 10
    for line in found:
        assert line["id"] in shown and line["problem"] in shown
    assert "QUERY" not in shown and "/hook" not in shown


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_replayed_letter_arrives_with_its_first_id_and_body_and_is_gone(
    file: str, version: str
) -> None:
    script = [ERROR] * 10 + [OK] * (3 if version == "1.0" else 1) + [ERROR, OK]
    async with Receiver(script) as receiver:
        store = await work(file, receiver, until=lambda sender: not sender.running, version=version)
        await store.close()
        (letter,) = lines(await run("list", "--store", file, "-o", "json"))
        again = ["replay", "--store", file, letter["id"]]
        refused = await run(*again)
        assert refused.exit_code == 1, "a private address is refused"
        failed = await run(*again, "--allow-private")
        assert failed.exit_code == 1 and "answered 500" in failed.output
        assert "DRAGOMAN_ERR_NOT_DELIVERED" in failed.stderr
        tried = await run("replay", "--store", file, "--all", "--dry-run", "-o", "json")
        assert lines(tried) == [{"id": letter["id"], "result": "would be posted"}]
        assert len(lines(await run("list", "--store", file, "-o", "json"))) == 1
        done = await run("replay", "--store", file, "--all", "--allow-private")
        assert done.exit_code == 0 and f"Id: {letter['id']}\nResult: delivered\n" == done.stdout
        assert lines(await run("list", "--store", file, "-o", "json")) == []
        secret = (await run("secret", "--store", file)).stdout.strip()
    first, last = receiver.posts[0], receiver.posts[-1]
    assert last.headers["webhook-id"] == first.headers["webhook-id"] == letter["id"]
    assert last.body == first.body
    assert last.headers["x-a2a-notification-token"] == "T"
    Webhook(secret).verify(last.body, last.headers)


async def test_a_receiver_that_was_given_up_goes_on_from_its_cursor(file: str) -> None:
    async with Receiver([OK, Treatment.GONE, OK]) as receiver:
        store = await work(file, receiver, until=lambda sender: not sender.running)
        await store.close()
        (line,) = lines(await run("list", "--store", file, "-o", "json"))
        opened = await run("replay", "--store", file, line["id"])
        assert opened.exit_code == 0 and "open again" in opened.output
        store = SQLiteStore(file, sealing=vault_of(Settings(stores=StoreSettings(location=file))))
        await store.open()
        (claimed,) = await store.claim_pushes(10)
        assert (claimed.cursor, claimed.tries, claimed.failing_since) == (1, 0, 0)
        await store.close()


async def test_all_opens_those_that_were_given_up_and_says_when_there_is_nothing(
    file: str,
) -> None:
    async with Receiver([Treatment.GONE]) as receiver:
        store = await work(file, receiver, until=lambda sender: not sender.running)
        await store.close()
    opened = await run("replay", "--store", file, "--all")
    assert opened.exit_code == 0 and "open again" in opened.output
    again = await run("replay", "--store", file, "--all")
    assert again.exit_code == 0 and "no dead letter" in again.output


async def test_the_list_says_that_push_is_off_or_that_memory_has_no_file(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(file)
    await store.open()
    await store.close()
    monkeypatch.setenv("DRAGOMAN_PUSH", "off")
    off = await run("list", "--store", file, "-o", "json")
    assert lines(off) == [] and "push is off" in off.stderr
    monkeypatch.setenv("DRAGOMAN_PUSH", "on")
    assert (await run("list", "--store", file)).stderr == ""
    monkeypatch.setenv("DRAGOMAN_STORE", "memory:")
    for words in ("list", "secret"):
        ended = await run(words)
        assert ended.exit_code == 2 and "no file" in ended.stderr


async def test_what_cannot_be_replayed_is_a_mistake_in_the_command(file: str) -> None:
    store = SQLiteStore(file)
    await store.open()
    await store.close()
    assert (await run("replay", "--store", file)).exit_code == 2
    assert (await run("replay", "--store", file, "msg_1")).exit_code == 2
    assert (await run("list", "--store", file)).stdout == "Next-Page:\n"


async def test_the_secret_is_the_one_that_signs(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteStore(file)
    await store.open()
    shown = (await run("secret", "--store", file)).stdout
    await store.prepare()
    assert shown == encode_secret(secrets_of([], store.secret)[0]) + "\n"
    await store.close()
    ours = encode_secret(b"o" * 32), encode_secret(b"n" * 32)
    monkeypatch.setenv("DRAGOMAN_PUSH_SECRET", ",".join(ours))
    assert (await run("secret", "--store", file)).stdout.split() == list(ours)
    as_json = await run("secret", "--store", file, "-o", "json")
    assert json.loads(as_json.stdout) == {"secrets": list(ours)}


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    ended = await run("list", "--store", str(missing))
    assert ended.exit_code == 2 and "no such file" in ended.stderr and not missing.exists()
