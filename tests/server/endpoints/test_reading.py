"""Reading tasks end to end: pages, filters and cursors; how much history an answer shows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving

from dragoman import Agent, Turn

agent = Agent("Reader", "Is read.")


@agent.skill(default=True)
async def echo(text: str) -> str:
    return text


@agent.skill
async def nothing(text: str) -> None:
    """Produces no artifact."""


@agent.skill
async def talk(text: str, turn: Turn) -> str:
    """Asks until it hears `stop`."""
    while (answer := await turn.ask(f"after {text}")).text != "stop":
        text = answer.text
    return "done"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(agent) as site:
        yield site


async def page(site: Site, **params: Any) -> Any:
    return await site.call("ListTasks", params)


async def walk(site: Site, **params: Any) -> list[Any]:
    pages, token = [], ""
    while True:
        found = await page(site, pageToken=token, **params)
        pages.append(found)
        token = found["nextPageToken"]
        if not token:
            return pages
        assert len(pages) < 50


def ids(pages: list[Any]) -> list[str]:
    return [task["id"] for found in pages for task in found["tasks"]]


# Lists


@pytest.mark.requirement("T-38")
async def test_who_has_no_tasks_gets_an_empty_page_with_every_field(site: Site) -> None:
    assert await page(site) == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
    assert (await site.http.get("/tasks")).json()["tasks"] == []


@pytest.mark.requirement("T-35", "T-36")
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 100])
async def test_pages_hold_every_task_once_latest_first(site: Site, size: int) -> None:
    made = [(await site.send(str(number)))["id"] for number in range(7)]
    pages = await walk(site, pageSize=size)
    assert ids(pages) == made[::-1]
    assert len(pages) == -(-7 // size)
    assert all(found["pageSize"] == size and found["totalSize"] == 7 for found in pages)
    stamps = [task["status"]["timestamp"] for found in pages for task in found["tasks"]]
    assert stamps == sorted(stamps, reverse=True)


@pytest.mark.requirement("T-35", "T-36")
async def test_a_task_that_moves_while_pages_are_read_does_not_come_twice(site: Site) -> None:
    made = [(await site.send(str(n), metadata={"skillId": "talk"}))["id"] for n in range(5)]
    first = await page(site, pageSize=2)
    assert ids([first]) == [made[4], made[3]]
    # The oldest task moves to the front, a new one appears, one of the next page ends.
    await site.send("more", taskId=made[0])
    await site.send("newest")
    await site.send("stop", taskId=made[2])
    rest, token = [], first["nextPageToken"]
    while token:
        found = await page(site, pageSize=2, pageToken=token)
        rest += ids([found])
        token = found["nextPageToken"]
    assert len(set(rest) | {made[4], made[3]}) == len(rest) + 2
    assert rest == [made[1]]


@pytest.mark.parametrize("size", [0, -1, 101, 2**31, "x", 1.5, True])
async def test_a_page_size_out_of_range_is_refused_not_bent(site: Site, size: Any) -> None:
    assert (await site.refusal("ListTasks", {"pageSize": size}))["code"] == -32602
    assert (await site.http.get("/tasks", params={"pageSize": size})).status_code == 400


async def test_filters_say_which_tasks_and_the_total_counts_only_those(site: Site) -> None:
    one = await site.send("a", contextId="c1")
    two = await site.send("b", contextId="c1", metadata={"skillId": "talk"})
    three = await site.send("c", contextId="c2")
    assert ids([found := await page(site, contextId="c1")]) == [two["id"], one["id"]]
    assert found["totalSize"] == 2
    done = await page(site, status="TASK_STATE_COMPLETED", pageSize=1)
    assert ids([done]) == [three["id"]] and done["totalSize"] == 2
    waiting = await page(site, contextId="c1", status="TASK_STATE_INPUT_REQUIRED")
    assert ids([waiting]) == [two["id"]]
    assert (await page(site, contextId="c"))["totalSize"] == 0
    assert (await page(site, status="TASK_STATE_UNSPECIFIED"))["totalSize"] == 3
    assert (await site.refusal("ListTasks", {"status": "NO_SUCH"}))["code"] == -32602


async def test_a_time_keeps_tasks_from_that_very_moment_on(site: Site) -> None:
    made = [await site.send("first")]
    async with asyncio.timeout(60):
        while len(made) < 3:
            task = await site.send("next")
            # Several tasks may end within one millisecond; times do not tell those apart.
            if task["status"]["timestamp"] > made[-1]["status"]["timestamp"]:
                made.append(task)
            else:
                made[-1] = task
    moment = made[1]["status"]["timestamp"]
    found = ids([await page(site, statusTimestampAfter=moment)])
    assert found[0] == made[2]["id"] and made[1]["id"] in found and made[0]["id"] not in found
    later = await page(site, statusTimestampAfter="2999-01-01T00:00:00+01:00")
    assert later["totalSize"] == 0


async def test_artifacts_are_listed_only_on_request(site: Site) -> None:
    await site.send("a")
    await site.send("b", metadata={"skillId": "nothing"})
    without = await page(site)
    assert all("artifacts" not in task for task in without["tasks"])
    empty, full = (await page(site, includeArtifacts=True))["tasks"]
    assert empty["artifacts"] == []
    assert full["artifacts"][0]["parts"] == [{"text": "a"}]
    assert "artifacts" not in (await page(site, includeArtifacts=False))["tasks"][0]


async def test_history_is_cut_in_lists_too(site: Site) -> None:
    task = await site.send("a", metadata={"skillId": "talk"})
    await site.send("b", taskId=task["id"])
    (whole,) = (await page(site))["tasks"]
    (one,) = (await page(site, historyLength=1))["tasks"]
    (none,) = (await page(site, historyLength=0))["tasks"]
    assert one["history"] == whole["history"][-1:]
    assert "history" not in none


@pytest.mark.requirement("T-36", "T-37")
async def test_a_cursor_is_good_for_its_own_question_only(site: Site) -> None:
    for number in range(3):
        await site.send(str(number), contextId="c")
    token = (await page(site, pageSize=1, contextId="c"))["nextPageToken"]
    assert (await page(site, pageSize=1, contextId="c", pageToken=token))["tasks"]
    # Another page size asks the same question.
    assert (await page(site, pageSize=2, contextId="c", pageToken=token))["tasks"]
    for other in (
        {"contextId": "d"},
        {},
        {"contextId": "c", "status": "TASK_STATE_COMPLETED"},
        {"contextId": "c", "tenant": "acme"},
        {"contextId": "c", "statusTimestampAfter": "2020-01-01T00:00:00Z"},
    ):
        refused = await site.refusal("ListTasks", {"pageToken": token, **other})
        assert refused["code"] == -32602
    for broken in (token[:-1], token + "A", token[::-1], "x", "AAAA", "é"):
        refused = await site.refusal("ListTasks", {"pageToken": broken, "contextId": "c"})
        assert refused["code"] == -32602


# History


async def talked(site: Site) -> str:
    task = await site.send("one", metadata={"skillId": "talk"})
    await site.send("two", taskId=task["id"])
    await site.send("three", taskId=task["id"])
    return task["id"]


def texts(task: Any) -> list[str]:
    return [part["text"] for said in task.get("history", []) for part in said["parts"]]


@pytest.mark.requirement("T-26", "T-27", "T-28")
async def test_history_is_oldest_first_and_says_nothing_twice(site: Site) -> None:
    task = await site.task(await talked(site))
    assert texts(task) == ["one", "after one", "two", "after two", "three"]
    assert [said["role"] for said in task["history"]] == [
        "ROLE_USER",
        "ROLE_AGENT",
        "ROLE_USER",
        "ROLE_AGENT",
        "ROLE_USER",
    ]
    # What the agent says last is its status until something follows.
    assert task["status"]["message"]["parts"] == [{"text": "after three"}]
    assert all(said["taskId"] == task["id"] for said in task["history"])
    assert all(said["contextId"] == task["contextId"] for said in task["history"])


@pytest.mark.requirement("T-30")
@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (None, ["one", "after one", "two", "after two", "three"]),
        (0, None),
        (1, ["three"]),
        (2, ["after two", "three"]),
        (5, ["one", "after one", "two", "after two", "three"]),
        (2**31 - 1, ["one", "after one", "two", "after two", "three"]),
    ],
)
async def test_a_length_shows_the_latest_and_changes_nothing(
    site: Site, length: int | None, expected: list[str] | None
) -> None:
    id = await talked(site)
    asked = {} if length is None else {"historyLength": length}
    new = await site.call("GetTask", {"id": id, **asked})
    old = await site.call("tasks/get", {"id": id, **asked})
    rest = (await site.http.get(f"/tasks/{id}", params=asked)).json()
    for task in (new, old, rest):
        assert texts(task) == (expected or [])
    assert ("history" in new) is (expected is not None)
    assert len(texts(await site.task(id))) == 5


async def test_a_send_and_a_stream_cut_their_task_too(site: Site) -> None:
    id = await talked(site)
    params = {"message": message("four", taskId=id), "configuration": {"historyLength": 1}}
    sent = (await site.call("SendMessage", params))["task"]
    assert texts(sent) == ["four"]
    params = {"message": message("five", taskId=id), "configuration": {"historyLength": 2}}
    opening, *_ = await site.events("SendStreamingMessage", params)
    assert texts(opening.result["task"]) == ["after four", "five"]
    old = {"message": old_message("six", taskId=id), "configuration": {"historyLength": 0}}
    assert texts(await site.call("message/send", old)) == []


@pytest.mark.parametrize("length", [-1, 1.5, "x", 2**31, True])
async def test_a_length_that_is_none_is_refused(site: Site, length: Any) -> None:
    for method in ("GetTask", "tasks/get"):
        refused = await site.refusal(method, {"id": "x", "historyLength": length})
        assert refused["code"] == -32602
    send = {"message": message("x"), "configuration": {"historyLength": length}}
    assert (await site.refusal("SendMessage", send))["code"] == -32602
    assert await site.total() == 0
