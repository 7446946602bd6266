"""What takes long the first time keeps only those waiting who need it: the loop goes on."""

import threading
from pathlib import Path

import pytest
from harness.serving import V1, message, serving
from harness.waiting import within

from dragoman import Agent, Turn
from dragoman.engine import seal
from dragoman.stores.sqlite.secret import StoreSecret


@pytest.mark.parametrize("what", ["a further message", "a page", "a receiver"])
async def test_no_request_has_the_loop_wait_for_the_secret_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    threads: list[threading.Thread] = []
    find = StoreSecret._find

    def noted(self: StoreSecret) -> None:
        threads.append(threading.current_thread())
        find(self)

    monkeypatch.setattr(StoreSecret, "_find", noted)
    monkeypatch.setattr("dragoman.stores.sqlite.store._PREPARE_AFTER", 3600.0)
    monkeypatch.setattr(seal, "_is_loaded", False)
    agent = Agent("asker", "Asks.")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask("well?")).text

    async with serving(agent, store=str(tmp_path / "t.db"), allow_private=True) as site:
        task = await site.send("hi")
        await site.send("hi")
        assert not threads
        if what == "a further message":
            await within(site.send("now", taskId=task["id"]))
        elif what == "a page":
            found = await site.call("ListTasks", {"pageSize": 1}, headers=V1)
            assert found["nextPageToken"] and seal._is_loaded
        else:
            config = {"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/x"}}
            sent = {"message": message("hi"), "configuration": config}
            await site.call("SendMessage", sent, headers=V1)
        assert len(threads) == 1 and threads[0] is not threading.main_thread()
