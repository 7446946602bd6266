"""Pages in a real browser: they live, they work by keyboard and without scripts, and everybody can
read them."""

import asyncio
import contextlib
import html
import itertools
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from harness.serving import Site, client, hosting
from harness.waiting import eventually
from playwright.async_api import Browser, Page, expect

from dragoman import Agent, TaskFailed, Turn
from dragoman.config import load_settings
from dragoman.console import pages
from dragoman.console.part import ConsolePart
from dragoman.console.rendering import instant
from dragoman.gateway.app import gateway_app
from tests.console.browser import axe
from tests.console.sites import console, looking

# What axe calls them; the lesser ones are a matter of taste.
_SERIOUS = ("serious", "critical")
_VIEWS = [f"/tasks/{{id}}{view}" for view in ("", "/timeline", "/raw", "/tree", "/scrubber")]
_FILES = {"/tasks/{id}/files/{key}", "/tasks/{id}/cassette"} | {
    f"/tasks/{{id}}/export.{kind}" for kind in ("html", "json")
}


class Trip(msgspec.Struct):
    """Where to, and how."""

    city: str
    days: int
    seat: Literal["aisle", "window"]
    extras: list[str] = []


def travel_desk(*, others: str = "") -> Agent:
    """Return an agent that does everything that a page shows."""
    agent = Agent("Travel desk", "Plans trips, and asks when it is unsure.")

    @agent.skill(tags=["trips"], examples=["three days in Lisbon"], default=True)
    async def plan(text: str, turn: Turn) -> str:
        await turn.say(f"Looking for flights: {text}")
        await turn.step("flights", _look)
        return f"# {text}\n\n- **Day 1**: the old town\n- Day 2: [a map](https://example.org/map)"

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        answer = await turn.ask(f"Which seat for {text}?")
        return f"Booked: {answer.text}"

    @agent.skill
    async def fill(text: str, turn: Turn) -> str:
        trip = await turn.fill("Tell me more.", Trip)
        return f"{trip.days} days in {trip.city}, {trip.seat}, {' and '.join(trip.extras)}"

    @agent.skill
    async def fail(text: str) -> None:
        raise TaskFailed("The airline said no.")

    @agent.skill
    async def wait(text: str) -> None:
        await asyncio.Event().wait()

    @agent.skill
    async def delegate(text: str, turn: Turn) -> str:
        answer = await turn.call(others, text)
        return answer.text

    return agent


async def _look() -> dict[str, int]:
    return {"flights": 3}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with console(travel_desk()) as site:
        yield site


async def sent(site: Site, skill: str, text: str) -> str:
    """Send a message; return the id of its task, which rests or runs."""
    wait = {"configuration": {"returnImmediately": True}} if skill == "wait" else {}
    return (await site.send(text, metadata={"skillId": skill}, **wait))["id"]


# Live


async def test_a_task_appears_in_the_list_and_ends_there_without_a_reload(
    browser: Browser, site: Site
) -> None:
    async with looking(browser, site.url) as page:
        await page.goto("/console/tasks")
        await expect(page.get_by_text("No tasks yet")).to_be_visible()
        await page.evaluate("window.stays = true")
        task = await sent(site, "wait", "a long one")
        row = page.locator(f"[data-row='{task}']")
        await expect(row.locator(".state")).to_have_text("working")
        await site.call("CancelTask", {"id": task})
        await expect(row.locator(".state")).to_have_text("canceled")
        assert await page.evaluate("window.stays")


async def test_a_question_appears_on_its_tasks_page_and_is_answered_there(
    browser: Browser, site: Site
) -> None:
    async with looking(browser, site.url) as page:
        task = await sent(site, "ask", "the Porto train")
        await page.goto(f"/console/tasks/{task}")
        await page.get_by_label("Answer").first.fill("window")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator(".say.artifact")).to_contain_text("Booked: window")
        await expect(page.locator("h1 + *, .actions .state").first).to_contain_text("completed")


async def test_a_page_has_one_stream_however_often_it_is_cut_and_looked_at(
    browser: Browser, site: Site
) -> None:
    streams = """const Plain = EventSource;
        window.streams = [];
        window.EventSource = class extends Plain {
          constructor(address) { super(address); window.streams.push(this); }
        };"""
    cut = ["error: Failed to load resource: net::ERR_FAILED"]
    async with looking(browser, site.url, allowed=cut) as page:
        await page.clock.install()
        await page.add_init_script(streams)
        await page.route("**/console/live?*", lambda route: route.abort())
        await page.goto("/console/tasks")
        await expect(page.locator("body.is-stale")).to_have_count(1)
        await page.unroute_all()
        # A person comes back to it before it is connected again.
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.locator("body.is-stale")).to_have_count(0)
        await page.clock.run_for(5000)
        states = "window.streams.filter((one) => one.readyState !== EventSource.CLOSED).length"
        assert await page.evaluate(states) == 1


async def test_what_is_typed_stays_while_the_page_changes(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        task = await sent(site, "ask", "the Porto train")
        await page.goto(f"/console/tasks/{task}")
        answer = page.get_by_label("Answer").first
        await answer.fill("wind")
        # Another one answers, so that this page changes under the hand of its reader.
        await site.send("aisle", taskId=task)
        await expect(page.locator(".say.artifact")).to_contain_text("Booked: aisle")
        await expect(answer).to_have_value("wind")
        await answer.blur()
        await expect(page.locator(".question")).to_have_count(0)


# Keys


async def test_everything_is_done_by_the_keyboard(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        first = await sent(site, "plan", "one")
        second = await sent(site, "plan", "two")
        await page.goto("/console/agents")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/console/tasks")
        await page.keyboard.press("j")
        assert await focused(page) == f"task-{second}"
        await page.keyboard.press("j")
        assert await focused(page) == f"task-{first}"
        # Which one is selected is in the address, for others and for a reload.
        assert page.url.endswith(f"/console/tasks#task-{first}")
        await page.reload()
        await expect(page.locator(f"#task-{first}")).to_be_focused()
        await page.keyboard.press("x")
        await expect(page.locator("input:checked")).to_have_value(first)
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/console/tasks/{second}")
        await page.keyboard.press("]")
        await page.wait_for_url("**/timeline")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("/")
        assert await focused(page) == "search"
        await page.keyboard.type("one")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/tasks?text=one")
        await expect(page.locator("[data-row]")).to_have_count(1)


async def test_ids_and_commands_are_copied_by_the_keyboard(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        task = await sent(site, "plan", "one")
        await page.goto(f"/console/tasks/{task}/raw?as=1.0")
        for copied, text in ((".facts .id", task), ("pre.command", "GetTask")):
            one = page.locator(copied).first
            # As the Tab key does: what takes no focus is not reached.
            await one.focus()
            await expect(one).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(one).to_have_attribute("title", "Copied")
            assert text in await page.evaluate("navigator.clipboard.readText()")


async def focused(page: Page) -> str:
    return await page.evaluate("document.activeElement.id")


# Without scripts


async def test_reading_and_answering_need_no_scripts(browser: Browser, site: Site) -> None:
    refused = ["error: Failed to load resource: the server responded with a status of 422"]
    async with looking(browser, site.url, has_script=False, allowed=refused) as page:
        task = await sent(site, "fill", "a trip")
        await page.goto("/console/inbox")
        await page.get_by_role("link", name="Tell me more.").click()
        await page.get_by_label("city").fill("Lisbon")
        await page.get_by_role("button", name="Answer").click()
        # What is wrong is said beside the field, and what was given is still there.
        await expect(page.locator(".wrong").first).to_be_visible()
        await expect(page.get_by_label("city")).to_have_value("Lisbon")
        await page.get_by_label("days").fill("3")
        await page.get_by_label("window").check()
        await page.get_by_label("extras 1").fill("breakfast")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_text("Nothing waits for you")).to_be_visible()
        await site.rested(task)
        await page.goto(f"/console/tasks/{task}")
        result = page.locator(".say.artifact")
        await expect(result).to_contain_text("3 days in Lisbon, window, breakfast")


async def test_a_list_grows_by_a_button(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        task = await sent(site, "fill", "a trip")
        await page.goto(f"/console/tasks/{task}")
        await page.get_by_label("city").fill("Porto")
        await page.get_by_label("days").fill("2")
        await page.get_by_label("aisle").check()
        await page.get_by_label("extras 1").fill("breakfast")
        await page.get_by_role("button", name="Add another").click()
        await page.get_by_label("extras 2").fill("a map")
        await page.get_by_role("button", name="Answer").click()
        result = page.locator(".say.artifact")
        await expect(result).to_contain_text("2 days in Porto, aisle, breakfast and a map")


async def test_a_question_is_refused_with_a_reason(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        task = await sent(site, "fill", "a trip")
        await page.goto("/console/inbox")
        await page.get_by_role("link", name="Tell me more.").click()
        await page.get_by_label("Why you refuse").fill("I stay at home")
        await page.get_by_role("button", name="Refuse").click()
        await page.wait_for_url("**/console/inbox?**")
        await site.rested(task)
        await page.goto(f"/console/tasks/{task}")
        await expect(page.locator(".problem")).to_contain_text("I stay at home")


# Filters


async def test_days_and_times_are_typed_as_pages_show_them(site: Site) -> None:
    task = await sent(site, "plan", "Lisbon")
    at = (await site.task(task))["status"]["timestamp"]
    day, hover = at[:10], instant(at)
    assert hover.endswith(" UTC")
    for query, is_found in (
        ({"since": day}, True),
        ({"until": day}, True),
        ({"since": hover, "until": f"{day} 23:59:59.999"}, True),
        ({"since": f"{day}T00:00:00Z"}, True),
        ({"until": "2020-01-31"}, False),
        ({"since": "2099-01-31 12:00"}, False),
    ):
        answer = await site.http.get("/console/tasks", params=query)
        assert answer.status_code == 200, query
        assert (f'data-row="{task}"' in answer.text) == is_found, query
    for wrong in ("yesterday", "9999-12-31T"):
        answer = await site.http.get("/console/tasks", params={"until": wrong, "text": "Lis"})
        assert answer.status_code == 400
        assert 'role="alert"' in answer.text, "it does not say what is wrong"
        assert f'value="{wrong}"' in answer.text and 'value="Lis"' in answer.text
    assert (await site.http.get("/console/tasks?until=9999-12-31")).status_code in (200, 400)


# A task in all its views


async def test_events_as_stored_come_with_the_command_that_gets_them(site: Site) -> None:
    task = await sent(site, "plan", "Lisbon")
    page = (await site.http.get(f"/console/tasks/{task}/raw")).text
    found = re.search(r'data-copy="curl ([^"]+)"', page)
    assert found is not None
    (address,) = shlex.split(html.unescape(found[1]))
    events = (await site.http.get(address)).json()["items"]
    assert [one["position"] for one in events][:2] == [1, 2]


async def test_a_task_is_shown_as_each_version_has_it_with_the_command_that_gets_it(
    browser: Browser, site: Site
) -> None:
    task = await sent(site, "plan", "Lisbon")
    async with looking(browser, site.url) as page:
        await page.goto(f"/console/tasks/{task}/raw?as=0.3")
        await expect(page.locator(".command")).to_contain_text("tasks/get")
        whole = page.locator("section", has_text="The whole task").locator("pre")
        real = await site.call("tasks/get", {"id": task}, headers={"A2A-Version": "0.3"})
        shown = msgspec.json.decode((await whole.inner_text()).encode())
        assert shown["result"] == real
        await page.select_option("#as", "1.0-rest")
        await page.wait_for_url("**as=1.0-rest")
        await expect(page.locator(".command")).to_contain_text(f"/tasks/{task}")
        # What is unfolded is in the address, and so is what was folded again.
        await page.locator("#event-1 summary").click()
        await page.locator("#event-2 summary").press("Enter")
        assert page.url.endswith("as=1.0-rest#event-2")
        await page.reload()
        await expect(page.locator("#event-2[open]")).to_be_visible()
        await expect(page.locator("details[open]")).to_have_count(1)
        await page.locator("#event-2 summary").click()
        assert page.url.endswith("as=1.0-rest")


async def test_the_scrubber_shows_the_task_as_it_was(browser: Browser, site: Site) -> None:
    task = await sent(site, "plan", "Lisbon")
    async with looking(browser, site.url) as page:
        await page.goto(f"/console/tasks/{task}/scrubber")
        await expect(page.locator("#scrubbed .state")).to_have_text("completed")
        await page.locator("#scrub-at").fill("1")
        await expect(page.locator("#scrubbed .state")).to_have_text("queued")
        assert "at=1" in page.url
        await page.reload()
        await expect(page.locator("#scrubbed .state")).to_have_text("queued")


async def test_a_task_is_sent_again_with_other_words(browser: Browser, site: Site) -> None:
    task = await sent(site, "plan", "Lisbon")
    async with looking(browser, site.url) as page:
        await page.goto(f"/console/tasks/{task}")
        await page.get_by_text("Send again from here").click()
        await page.get_by_label("with other words").fill("Porto")
        await page.get_by_role("button", name="Send a new task").click()
        await expect(page.locator("h1")).to_have_text("Porto")
        await expect(page.get_by_text("refers to")).to_be_visible()
        assert task not in page.url


async def test_a_cassette_of_a_task_is_played_back(site: Site, tmp_path: Any) -> None:
    from dragoman import Client
    from dragoman.testing.cassettes.cassette import read
    from dragoman.testing.cassettes.replayer import Replayer

    task = (await site.send("Lisbon"))["id"]
    answer = await site.http.get(f"/console/tasks/{task}/cassette")
    file = tmp_path / "task.cassette"
    file.write_bytes(answer.content)
    async with hosting(Replayer(read(file), speed=0), lifespan="off") as url, Client(url) as agent:
        assert "Day 1" in (await agent.send("Lisbon")).text


async def test_several_tasks_are_canceled_at_once(browser: Browser, site: Site) -> None:
    tasks = [await sent(site, "wait", text) for text in ("one", "two", "three")]
    async with looking(browser, site.url) as page:
        # Our own question before it is done, answered by the reader.
        await page.add_init_script("window.confirm = () => true;")
        await page.goto("/console/tasks")
        for task in tasks[:2]:
            await page.locator(f"input[value='{task}']").check()
        await page.get_by_role("button", name="Cancel selected").click()
        await expect(page.get_by_text("2 canceled.")).to_be_visible()
        await expect(page.locator(".state.active")).to_have_count(1)
        await site.call("CancelTask", {"id": tasks[2]})


async def test_a_delegated_task_is_a_branch_of_the_tree(browser: Browser, site: Site) -> None:
    async with console(travel_desk(others=site.url), allow_private=True) as boss:
        task = await sent(boss, "delegate", "Lisbon")
        async with looking(browser, boss.url) as page:
            await page.goto(f"/console/tasks/{task}/tree")
            await expect(page.locator(".tree .node")).to_have_count(2)
            await page.goto(f"/console/tasks/{task}/timeline")
            await expect(page.locator("svg .lane", has_text="calls")).to_have_count(1)


async def test_a_timeline_shows_what_was_made(browser: Browser) -> None:
    agent = Agent("Writer", "Writes, thinks, and writes on.")

    @agent.skill
    async def report(text: str, turn: Turn) -> str:
        async with turn.artifact(name="report") as made:
            for word in text.split():
                await made.write(word)
        # So that what was written lies between two times that are not the same.
        await turn.sleep(0.05)
        return "the summary"

    async with console(agent) as site, looking(browser, site.url) as page:
        task = await sent(site, "report", "one two three")
        await page.goto(f"/console/tasks/{task}/timeline")
        await expect(page.locator("svg .lane", has_text="artifacts")).to_have_count(1)
        made = page.locator("svg title", has_text="chunks, the first of report · ")
        await expect(made).to_have_count(1)
        await expect(page.locator("td", has_text="chunks, the first of report")).to_have_count(1)


# An agent to try


async def test_a_question_is_answered_beside_the_conversation_and_named_beside_other_views(
    browser: Browser, site: Site
) -> None:
    """Its form would push a timeline or a tree out of sight."""
    task = await sent(site, "ask", "Lisbon")
    async with looking(browser, site.url, width=320) as page:
        await page.goto(f"/console/tasks/{task}/timeline")
        await expect(page.locator("section.question")).to_have_count(0)
        waits = page.locator(".notice", has_text="It waits for an answer")
        await waits.get_by_role("link", name="Answer").click()
        await expect(page.locator("section.question")).to_have_count(1)


@pytest.mark.parametrize("is_behind_a_gateway", [False, True])
async def test_a_skill_with_arguments_is_tried_by_a_form_of_them(
    browser: Browser, tmp_path: Path, is_behind_a_gateway: bool
) -> None:
    counter = Agent("Counter", "Counts.")

    @counter.skill
    async def count(to: int, word: str = "and") -> str:
        return f" {word} ".join(str(one + 1) for one in range(to))

    async with contextlib.AsyncExitStack() as stack:
        if is_behind_a_gateway:
            # As `dragoman up` has it: the agent, and the gateway before it, in one store.
            settings = load_settings({}, store=str(tmp_path / "tasks.db"))
            app = gateway_app(counter, settings=settings, is_local=True, parts=[ConsolePart()])
            url = await stack.enter_async_context(hosting(app))
            await app.listening([url])
        else:
            url = (await stack.enter_async_context(console(counter))).url
        refused = ["error: Failed to load resource: the server responded with a status of 422"]
        page = await stack.enter_async_context(looking(browser, url, allowed=refused))
        await page.goto("/console/agents/counter")
        await expect(page.get_by_label("word")).to_be_hidden()
        await page.get_by_label("Skill").select_option("count")
        await expect(page.get_by_label("Message")).to_be_hidden()
        await page.get_by_label("word").fill("then")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".wrong")).to_be_visible()
        await expect(page.get_by_label("word")).to_have_value("then")
        await page.get_by_label("to", exact=True).fill("3")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("link", name="Watch its task").click()
        await expect(page.locator(".say.artifact")).to_contain_text("1 then 2 then 3")
        await expect(page.locator("h1")).to_have_text('{"to":3,"word":"then"}')


async def test_an_agent_is_tried_and_the_exchange_is_shown(browser: Browser, site: Site) -> None:
    async with looking(browser, site.url) as page:
        await page.goto("/console/agents")
        await page.get_by_role("link", name="Travel desk").click()
        await page.get_by_label("Message").fill("Lisbon")
        await page.get_by_label("as a caller of").select_option("0.3")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("message/send").first).to_be_visible()
        # Its stream comes without a reload, as that version has it.
        streamed = page.locator("#try_stream .events > li")
        await expect(page.locator("#try_stream .state")).to_contain_text("completed")
        await expect(streamed.filter(has_text="Day 1").first).to_be_visible()
        await streamed.last.locator("summary").click()
        await expect(streamed.last).to_contain_text("status-update")
        await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        await page.get_by_role("link", name="Watch its task").click()
        await expect(page.locator(".say.artifact")).to_contain_text("Day 1")


async def test_what_was_sent_to_try_an_agent_is_canceled_there(
    browser: Browser, site: Site
) -> None:
    async with looking(browser, site.url) as page:
        await page.goto("/console/agents/travel-desk")
        await page.get_by_label("Skill").select_option("fill")
        await page.get_by_label("Message").fill("a trip with a form")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#try_stream .state.ask")).to_have_count(1)
        page.on("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator("main .state").first).to_contain_text("canceled")
        # A task that the visitor cannot have is as one that is not there.
        await page.goto("/console/agents/travel-desk?task=nowhere")
        await expect(page.locator("h1")).to_contain_text("Travel desk")
        await expect(page.locator("#try_stream .events")).to_have_count(0)


# Looks


async def paths(site: Site) -> dict[str, list[str]]:
    """Return the addresses of every page, with something on each, by the path in the table."""
    done = await sent(site, "plan", "three days in Lisbon")
    await sent(site, "fail", "a flight to nowhere")
    asks = await sent(site, "fill", "a trip with a form")
    (item,) = (await site.http.get("/api/v1/console/inbox")).json()["items"]
    by_clock = {"name": "daily", "text": "x", "schedule": {"cron": "0 7 * * *"}}
    agent = {"agentId": "travel-desk"}
    made = await site.http.post("/api/v1/triggers", json=by_clock | agent)
    assert made.status_code == 201, made.text
    views = {view: [view.format(id=done)] for view in _VIEWS}
    views["/tasks/{id}"] += [f"/tasks/{asks}", "/tasks/none"]
    return {
        "/": [""],
        "/tasks": ["/tasks"],
        **views,
        "/inbox": ["/inbox"],
        "/inbox/{id}": [f"/inbox/{item['id']}"],
        "/agents": ["/agents"],
        "/agents/{name}": ["/agents/travel-desk", "/agents/gateway"],
        "/triggers": ["/triggers", f"/triggers?change={made.json()['data']['id']}"],
        "/delivery": ["/delivery"],
        "/money": ["/money"],
        "/money/receipts/{task}": [f"/money/receipts/{done}"],
        "/system": ["/system?verify=1"],
        "/docs": ["/docs", "/docs?api=console&op=find_tasks"],
    }


async def check_page(page: Page, path: str, rules: dict[str, Any], width: int) -> None:
    """Look whether people can read a page."""
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    # The page that one is on can be seen in the navigation.
    here = page.locator(".top nav a[aria-current]")
    if await here.count():
        place = await here.bounding_box()
        assert place is not None and place["x"] + place["width"] <= width, path
    width_of_text = "document.querySelector('h1, .title').getBoundingClientRect().width"
    assert await page.evaluate(width_of_text) > 10, "there are no fonts"
    await page.evaluate(f"{{ {axe()} }}")
    found = await page.evaluate("(rules) => axe.run(rules)", rules)
    serious = [
        f"{path}: {one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in _SERIOUS
    ]
    assert serious == []


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1440, "light")])
async def test_every_page_is_readable_by_everybody(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    rules: dict[str, Any] = {"resultTypes": ["violations"]}
    if width == 320:
        # What another width and other colours can change.
        rules["runOnly"] = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
    # As `dragoman up` has it: the agent, and the gateway before it.
    settings = load_settings({}, store=str(tmp_path / "tasks.db"))
    app = gateway_app(travel_desk(), settings=settings, is_local=True, parts=[ConsolePart()])
    allowed = ["error: Failed to load"]
    async with (
        hosting(app) as url,
        client(url) as http,
        looking(browser, url, width=width, scheme=scheme, allowed=allowed) as page,
    ):
        await app.listening([url])
        found = await paths(Site(url, http, app))
        # Files are not looked at here.
        assert found.keys() | _FILES == set(pages.paths())
        for path in itertools.chain.from_iterable(found.values()):
            answer = await page.goto(f"/console{path}")
            assert answer is not None
            assert answer.status == (404 if path.endswith("/none") else 200), path
            await check_page(page, path, rules, width)


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1440, "dark")])
async def test_the_form_to_sign_in_is_readable_by_everybody(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    (tmp_path / "tokens.toml").write_text('[ada]\ntoken = "ada-0123456789abcdef01"\n')
    (tmp_path / "tokens.toml").chmod(0o600)
    async with (
        console(travel_desk(), auth_tokens=str(tmp_path / "tokens.toml")) as site,
        looking(
            browser, site.url, width=width, scheme=scheme, allowed=["error: Failed to load"]
        ) as page,
    ):
        await page.goto("/console")
        await check_page(page, "/login", {}, width)
        await page.get_by_label("Token or API key").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await check_page(page, "/login", {}, width)


async def test_the_first_page_weighs_little(browser: Browser, site: Site) -> None:
    await asyncio.gather(*(sent(site, "plan", f"task number {n}") for n in range(60)))
    async with looking(browser, site.url) as page:
        sizes: list[int] = []

        async def weigh(request: Any) -> None:
            if "/live" not in request.url:
                size = await request.sizes()
                sizes.append(size["responseBodySize"] + size["responseHeadersSize"])

        page.on("requestfinished", weigh)
        await page.goto("/console/tasks")
        await expect(page.locator("[data-row]")).to_have_count(50)
        await eventually(lambda: len(sizes) >= 7)
        assert sum(sizes) <= 60_000
