"""`dragoman task`: reading, cancelling, listing, following, downloading; on the demo agent."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.serving import hosting
from harness.waiting import within

from dragoman import Client
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.demo import demo
from tests.cli.command import call, document, fields, lines, typed


class Demo(NamedTuple):
    url: str
    agent: ScriptedAgent


@pytest.fixture
async def site() -> AsyncIterator[Demo]:
    agent = demo()
    async with hosting(agent) as url:
        yield Demo(url, agent)


async def begun(site: Demo, text: str, *, wait: bool = True) -> str:
    """Start a task; return its id."""
    async with Client(site.url) as client:
        return (await within(client.send(text, wait=wait))).task_id


async def test_a_task_is_read_once_or_until_it_rests(site: Demo, tmp_path: Path) -> None:
    task = await begun(site, "slow 1", wait=False)
    before = len(site.agent.calls("GetTask"))
    once = await typed("task", "get", "-a", site.url, task, cwd=tmp_path)
    assert once.returncode == 0 and len(site.agent.calls("GetTask")) == before + 1
    assert fields(once.stdout)["Task"] == task
    waited = await call(
        *("task", "get", "-a", site.url, task, "--wait", "--poll-interval", "200ms"),
        *("-o", "json"),
        cwd=tmp_path,
    )
    assert document(waited)["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_cancelling_twice_is_fine_and_a_finished_task_is_an_error(
    site: Demo, tmp_path: Path
) -> None:
    task = await begun(site, "slow 60", wait=False)
    for _ in range(2):
        ended = await call("task", "cancel", "-a", site.url, task, cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert fields(ended.stdout)["State"] == "TASK_STATE_CANCELED"
    done = await begun(site, "echo x")
    ended = await call("task", "cancel", "-a", site.url, "-o", "json", done, cwd=tmp_path)
    assert document(ended, 1)["error"]["code"] == "TaskNotCancelableError"


async def test_a_list_has_pages_and_all_of_them(site: Demo, tmp_path: Path) -> None:
    made = [await begun(site, f"echo {number}") for number in range(3)]
    base = ("task", "list", "-a", site.url, "--limit", "2")
    page = document(await call(*base, "-o", "json", cwd=tmp_path))
    assert len(page["tasks"]) == 2 and page["nextPageToken"]
    text = await call(*base, "--page-token", page["nextPageToken"], cwd=tmp_path)
    assert text.stdout.count("Task: ") == 1 and text.stdout.endswith("Next-Page:\n")
    whole = document(await call(*base, "--all", "-o", "json", cwd=tmp_path))
    assert whole["nextPageToken"] == ""
    each = lines(await call(*base, "--stream", "-o", "json", cwd=tmp_path))
    assert {task["id"] for task in each} == {task["id"] for task in whole["tasks"]} == {*made}
    none = await call(*base, "--status", "working", "-o", "json", cwd=tmp_path)
    assert document(none)["tasks"] == []


async def test_a_task_under_way_is_followed(site: Demo, tmp_path: Path) -> None:
    task = await begun(site, "slow 3", wait=False)
    follow = ("task", "subscribe", "-a", site.url, task, "-o", "json")
    events = lines(await call(*follow, "--stream", cwd=tmp_path))
    assert events[0]["task"]["id"] == task
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    # It has ended: how it ended is all there is to see.
    assert document(await call(*follow, cwd=tmp_path))["id"] == task


async def test_an_agent_that_cannot_stream_is_polled_in_tasks(tmp_path: Path) -> None:
    agent = ScriptedAgent({"card": {"streaming": False}})
    async with hosting(agent) as url:
        ended = await call("send", "-a", url, "-o", "json", "--stream", "hello", cwd=tmp_path)
    assert all(set(event) == {"task"} for event in lines(ended))
    assert lines(ended)[-1]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_what_a_task_made_is_saved(site: Demo, tmp_path: Path) -> None:
    task = await begun(site, "parts")
    save = ("task", "download", "-a", site.url, task, "--output-dir", "out")
    text = await call(*save, cwd=tmp_path)
    assert text.returncode == 0 and text.stdout.endswith("Files: 3\n")
    assert (tmp_path / "out" / "raw.bin").read_bytes() == b"\x00\x01raw bytes\xff"
    assert "not fetched" in text.stdout
    again = await call(*save, cwd=tmp_path)
    assert again.returncode == 1 and "--overwrite" in again.stderr
    saved = document(await call(*save, "--overwrite", "-o", "json", cwd=tmp_path))
    notes = [part.get("metadata", {}) for part in saved["artifacts"][0]["parts"]]
    assert [note.get("dragoman:saved", {}).get("path") for note in notes] == [
        "out/All kinds.txt",
        "out/All kinds.json",
        "out/raw.bin",
        None,
    ]
    assert json.loads((tmp_path / "out" / "All kinds.json").read_text())["answer"] == 42


async def test_receivers_are_made_shown_listed_and_removed(site: Demo, tmp_path: Path) -> None:
    task = await begun(site, "ask")
    base = ("-a", site.url, task)
    made = await call(
        *("task", "push-config", "create", *base, "--url", "https://example.com/hook"),
        *("--id", "c-1", "--token", "hunter22"),
        cwd=tmp_path,
    )
    assert made.returncode == 0 and fields(made.stdout)["Config"] == "c-1"
    assert "hunter22" not in made.stdout
    one = document(
        await call("task", "push-config", "get", *base, "c-1", "-o", "json", cwd=tmp_path)
    )
    assert one["url"] == "https://example.com/hook"
    some = document(await call("task", "push-config", "list", *base, "-o", "json", cwd=tmp_path))
    assert [config["id"] for config in some["configs"]] == ["c-1"]
    table = await call("task", "push-config", "list", *base, "-o", "table", cwd=tmp_path)
    title, row = table.stdout.splitlines()
    assert title.split() == ["CONFIG", "URL"] and row.split() == ["c-1", "https://example.com/hook"]
    for _ in range(2):
        gone = await call("task", "push-config", "delete", *base, "c-1", "-o", "json", cwd=tmp_path)
        assert document(gone) == {}


async def test_posts_of_a_task_are_received_here(site: Demo, tmp_path: Path) -> None:
    task = await begun(site, "slow 2", wait=False)
    heard = await call(
        *("task", "push-config", "listen", "-a", site.url, task, "-o", "json", "--stream"),
        cwd=tmp_path,
    )
    events = lines(heard)
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    left = await call(
        "task", "push-config", "list", "-a", site.url, task, "-o", "json", cwd=tmp_path
    )
    assert document(left).get("configs", []) == []
