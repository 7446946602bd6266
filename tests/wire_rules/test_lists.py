"""Section 2.13 and 5.7: what a list of tasks shows, and in which order."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from harness.serving import Site

from dragoman.model.identity import Caller, MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import ListTasks, SendMessage
from dragoman.service import Call
from tests.wire_rules.rules import INVALID_PARAMS, code_of, new, task_of


async def page(site: Site, context: str, **more: Any) -> Any:
    return await site.call("ListTasks", {"contextId": context} | more)


def ids(page: Any) -> list[str]:
    return [task["id"] for task in page["tasks"]]


@pytest.mark.requirement("2.13-contextId")
async def test_a_list_has_the_tasks_of_exactly_one_context(site: Site) -> None:
    task = await task_of(site, new(contextId="list-a"))
    await task_of(site, new(contextId="list-ab"))
    assert ids(await page(site, "list-a")) == [task["id"]]
    over_rest = (await site.http.get("/tasks?contextId=list-a")).json()
    assert ids(over_rest) == [task["id"]]


@pytest.mark.requirement("2.13-status")
async def test_a_list_has_the_tasks_in_one_state(site: Site) -> None:
    await task_of(site, new(contextId="list-states"))
    asking = await task_of(site, new("ask", contextId="list-states"))
    status = "TASK_STATE_INPUT_REQUIRED"
    assert ids(await page(site, "list-states", status=status)) == [asking["id"]]
    assert (await page(site, "list-states"))["totalSize"] == 2
    assert await code_of(site, "ListTasks", {"status": "TASK_STATE_DONE"}) == INVALID_PARAMS


@pytest.mark.requirement("2.13-pageSize")
async def test_a_page_size_is_kept_or_refused_but_never_bent(site: Site) -> None:
    for size in (1, 100):
        assert (await page(site, "nobody", pageSize=size))["pageSize"] == size
    assert (await page(site, "nobody"))["pageSize"] == 50
    for size in (0, -1, 101):
        assert await code_of(site, "ListTasks", {"pageSize": size}) == INVALID_PARAMS
        assert (await site.http.get(f"/tasks?pageSize={size}")).status_code == 400


@pytest.mark.requirement("2.13-pageToken", "T-36")
async def test_a_token_of_another_list_is_refused(site: Site) -> None:
    for _ in range(2):
        await task_of(site, new(contextId="list-token"))
        await task_of(site, new(contextId="list-other"))
    token = (await page(site, "list-token", pageSize=1))["nextPageToken"]
    assert (await page(site, "list-token", pageToken=token))["tasks"]
    for other in (
        {"contextId": "list-other", "pageToken": token},
        {"pageToken": token},
        {"contextId": "list-token", "tenant": "acme", "pageToken": token},
        {"contextId": "list-token", "pageToken": token[:-2]},
        {"contextId": "list-token", "pageToken": "1"},
    ):
        assert await code_of(site, "ListTasks", other) == INVALID_PARAMS


@pytest.mark.requirement("2.13-historyLength")
async def test_each_task_of_a_list_shows_the_history_asked_for(site: Site) -> None:
    task = await task_of(site, new("ask", contextId="list-history"))
    await task_of(site, new("ask", taskId=task["id"]))
    for length, shown in ((None, 3), (2, 2), (0, 0)):
        (listed,) = (await page(site, "list-history", historyLength=length))["tasks"]
        assert len(listed.get("history", [])) == shown


@pytest.mark.requirement("2.13-statusTimestampAfter")
async def test_a_time_keeps_tasks_of_that_moment_and_later(site: Site) -> None:
    task = await task_of(site, new(contextId="list-time"))
    at = datetime.fromisoformat(task["status"]["timestamp"])
    for difference, count in ((-1, 1), (0, 1), (1, 0)):
        since = (at + timedelta(milliseconds=difference)).isoformat()
        assert (await page(site, "list-time", statusTimestampAfter=since))["totalSize"] == count


@pytest.mark.requirement("2.13-includeArtifacts")
async def test_artifacts_are_absent_unless_asked_for_and_then_there_even_if_none(
    site: Site,
) -> None:
    await task_of(site, new("echo", contextId="list-artifacts"))
    await task_of(site, new("take", contextId="list-artifacts"))
    for include in (None, False):
        found = await page(site, "list-artifacts", includeArtifacts=include)
        assert all("artifacts" not in task for task in found["tasks"])
    found = await page(site, "list-artifacts", includeArtifacts=True)
    assert [len(task["artifacts"]) for task in found["tasks"]] == [0, 1]


@pytest.mark.requirement("2.13-response", "T-35", "T-36")
async def test_pages_have_every_task_once_latest_first_and_end_with_an_empty_token(
    site: Site,
) -> None:
    made = [(await task_of(site, new(contextId="list-pages")))["id"] for _ in range(5)]
    seen, token = [], ""
    for _ in range(3):
        found = await page(site, "list-pages", pageSize=2, pageToken=token)
        assert (found["totalSize"], found["pageSize"]) == (5, 2)
        seen += ids(found)
        token = found["nextPageToken"]
    assert token == ""
    assert seen == made[::-1]


@pytest.mark.requirement("T-37", "T-51", "5.2-other-owner")
async def test_a_list_shows_and_counts_only_the_callers_tasks(site: Site) -> None:
    (mount,) = site.app.site.mounts.values()
    alice, bob = Caller("alice"), Caller("bob")
    # Both use the same context: it is two contexts of the same name.
    said = Message(MessageId("m"), Role.USER, [Part(text="x")], context_id="ours")  # type: ignore[arg-type]
    for caller in (alice, bob, bob):
        operation = SendMessage(message=said if caller is alice else _fresh(said))
        await mount.service.answer(Call(operation=operation, caller=caller))
    for caller, count in ((alice, 1), (bob, 2), (Caller("carol"), 0)):
        found: Any = await mount.service.answer(Call(operation=ListTasks(), caller=caller))
        assert (found.total_size, len(found.tasks)) == (count, count)


_count = iter(range(9))


def _fresh(said: Message) -> Message:
    return Message(MessageId(f"m{next(_count)}"), said.role, said.parts, context_id=said.context_id)
