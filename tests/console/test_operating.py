"""What operators do: agents of several versions behind a gateway, faults on the overview, a server
that was killed, and signing in with a browser."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from harness.processes import running
from harness.serving import V1, Site, client, hosting, message, serving
from harness.stub_servers import answering
from playwright.async_api import Browser, expect

from dragoman import Agent, Turn
from dragoman.config import load_settings
from dragoman.console.part import ConsolePart
from dragoman.gateway.app import gateway_app
from dragoman.model.identity import Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.security.keys import key_file
from dragoman.stores.interface import DeadLetter
from tests.console.sites import console, looking

# An agent that begins a step and never ends it, in a process of its own.
_AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Slow", "Takes its time.")


@agent.skill
async def work(text: str, turn: Turn) -> str:
    await turn.say("at it")
    await turn.step("first", min, 1, 2)
    if turn.attempt == 1:
        await asyncio.Event().wait()
    return "done at last"


@agent.skill
async def order(text: str, turn: Turn) -> str:
    return (await turn.ask("Where to?")).text
"""


def named(title: str) -> Agent:
    agent = Agent(title, f"Says that it is {title}.")

    @agent.skill(id=f"be_{title.lower()}", tags=[title])
    async def be(text: str) -> str:
        return f"{title} heard: {text}"

    return agent


@asynccontextmanager
async def gateway(folder: Path, **settings: Any) -> AsyncGenerator[Site]:
    """Serve a gateway with a console."""
    chosen = {"store": str(folder / "gateway.db")} | settings
    app = gateway_app(settings=load_settings({}, **chosen), is_local=True, parts=[ConsolePart()])
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


async def test_agents_of_two_versions_are_registered_tried_and_watched(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        serving(named("Newer"), a2a_version="1.0") as newer,
        serving(named("Older"), a2a_version="0.3") as older,
        gateway(tmp_path) as site,
        looking(browser, site.url) as page,
    ):
        for other, name in ((newer, "Newer"), (older, "Older")):
            await page.goto("/console/agents")
            await page.get_by_label("Address of an agent").fill(other.url)
            await page.get_by_role("button", name="Preview").click()
            await expect(page.locator(".question")).to_contain_text(f"Says that it is {name}.")
            await expect(page.locator("[data-row]")).to_have_count(int(name == "Older"))
            await page.get_by_role("button", name="Register").click()
            await expect(page.locator("h1")).to_have_text(name)
            await page.get_by_label("Message").fill("hello")
            await page.get_by_role("button", name="Send").click()
            # Both hops: what the visitor sent, and what the agent of another version was sent.
            await expect(page.locator(".command", has_text="recordHops")).to_be_visible()
            hop = page.locator("#try_hops details").first
            await hop.locator("summary").click()
            method = "SendMessage" if name == "Newer" else "message/send"
            await expect(hop).to_contain_text(f'"method": "{method}')
            await expect(hop).to_contain_text(f"{name} heard: hello")
            await expect(hop).not_to_contain_text("recordHops")
            await page.get_by_role("link", name="Watch its task").click()
            await expect(page.locator(".say.artifact")).to_contain_text(f"{name} heard: hello")
            await page.get_by_role("link", name="Tree").click()
            nodes = page.locator(".tree .node")
            await expect(nodes).to_have_count(2)
            # What the agent has in its own store, the gateway tells as far as it knows it.
            await expect(nodes.last).to_contain_text("elsewhere")
            await expect(nodes.last.locator(".state")).to_have_text("completed")
            await expect(nodes.last.locator(".number")).to_have_count(1)
        await page.goto("/console/tasks")
        await expect(page.locator("[data-row]")).to_have_count(2)
        await expect(page.locator("[data-row]").first).to_contain_text("older")
        await page.get_by_label("Agent", exact=True).select_option(label="newer")
        await page.wait_for_url("**agent=*")
        await expect(page.locator("[data-row]")).to_have_count(1)
        await expect(page.locator("[data-row]")).to_contain_text("newer")
        await page.goto("/console/money")
        await expect(page.get_by_text("Available")).to_be_visible()


async def test_an_agent_is_tried_over_grpc(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(named("Newer")) as newer,
        gateway(tmp_path, transport="jsonrpc,rest,grpc") as site,
        looking(browser, site.url) as page,
    ):
        await page.goto("/console/agents")
        await page.get_by_label("Address of an agent").fill(newer.url)
        await page.get_by_role("button", name="Register").click()
        await page.get_by_label("as a caller of").select_option("1.0-grpc")
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("grpcurl").first).to_be_visible()
        await expect(page.get_by_text("Answer, status OK")).to_be_visible()
        await expect(page.locator("#try_stream .state")).to_contain_text("completed")


async def test_an_agent_that_does_not_answer_is_on_the_overview_with_the_way_to_it(
    browser: Browser, tmp_path: Path
) -> None:
    async with gateway(tmp_path) as site, looking(browser, site.url) as page:
        async with serving(named("Gone")) as gone:
            made = await site.http.post("/api/v1/agents", json={"endpoint": gone.url})
            assert made.status_code == 201, made.text
            await page.goto("/console")
            await expect(page.get_by_text("Nothing. All processes live")).to_be_visible()
        await site.http.post("/api/v1/agents/gone/probe")
        row = page.locator(".attention li", has_text="Gone is degraded: NotConnected")
        await expect(row).to_be_visible()
        await row.get_by_role("link", name="Probe").click()
        await expect(page.locator("h1")).to_have_text("Gone")
        await expect(page.locator(".problem")).to_contain_text("Connection refused")


async def test_an_agent_that_fails_is_named_with_the_way_to_see_why(browser: Browser) -> None:
    agent = named("Broken")

    @agent.skill
    async def fail(text: str) -> None:
        raise RuntimeError("private words")

    async with console(agent) as site, looking(browser, site.url) as page:
        await page.goto("/console")
        await site.send("do it", metadata={"skillId": "fail"})
        # The figures are sampled every five seconds.
        row = page.locator(".attention li", has_text="broken failed 1 of 1 tasks")
        await expect(row).to_be_visible()
        await row.get_by_role("link", name="See why").click()
        await expect(page.locator("[data-row]")).to_have_count(1)
        await expect(page.locator("[data-row]")).to_contain_text("Incident")
        assert "private words" not in await page.content()


async def test_a_server_that_was_killed_is_seen_on_the_timeline_of_an_open_page(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(_AGENT)
    store = tmp_path / "tasks.db"
    serve = ("serve", "slow.py", "--store", str(store), "--listen")
    lost = ["error: Failed to load resource", "error: net::ERR"]
    with running(*serve, "127.0.0.1:0", cwd=tmp_path) as server:
        url = await asyncio.to_thread(server.ready)
        async with looking(browser, url, allowed=lost) as page, client(url) as http:
            body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}}
            body["configuration"] = {"returnImmediately": True}  # type: ignore[assignment]
            sent = await http.post("/message:send", json=body)
            task = sent.json()["task"]["id"]
            await page.goto(f"/console/tasks/{task}/timeline")
            await expect(page.locator(".actions .state")).to_have_text("working")
            server.kill()
            await expect(page.locator("body.is-stale")).to_have_count(1)
            address = url.removeprefix("http://")
            with running(*serve, address, cwd=tmp_path) as again:
                await asyncio.to_thread(again.ready)
                # The same page, which nobody loaded again.
                await expect(page.locator(".actions .state")).to_have_text("completed")
                await expect(page.locator("svg .bar-gap")).to_have_count(1)
                await expect(page.locator("body.is-stale")).to_have_count(0)
                # What was done before it is not stretched until the takeover.
                step = page.locator("svg .mark-accent, svg .bar-accent")
                await expect(step).to_contain_text("first · after")
                await expect(step).not_to_have_class(re.compile("is-guess"))


async def test_a_task_that_waits_for_a_person_shows_that_its_process_left(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(_AGENT)
    serve = ("serve", "slow.py", "--store", str(tmp_path / "tasks.db"), "--listen")
    lost = ["error: Failed to load resource", "error: net::ERR"]
    with running(*serve, "127.0.0.1:0", cwd=tmp_path) as server:
        url = await asyncio.to_thread(server.ready)
        async with looking(browser, url, allowed=lost) as page, client(url) as http:
            asked = message("tea", metadata={"skillId": "order"})
            sent = await http.post("/message:send", json={"message": asked})
            task = sent.json()["task"]["id"]
            await page.goto(f"/console/tasks/{task}/timeline")
            await expect(page.locator("svg.timeline")).to_be_visible()
            await expect(page.locator("svg .bar-gap")).to_have_count(0)
            server.kill()
            with running(*serve, url.removeprefix("http://"), cwd=tmp_path) as again:
                await asyncio.to_thread(again.ready)
                # The same page, which nobody loaded again.
                await expect(page.locator("svg .bar-gap")).to_have_count(1)
                await expect(page.locator("svg .label", has_text="asks")).to_have_count(1)
                line = page.locator("tr", has_text="has left; the next answer goes on in another")
                await expect(line).to_contain_text("since")
                answer = message("the garden", taskId=task)
                await http.post("/message:send", json={"message": answer})
                await expect(page.locator(".actions .state")).to_have_text("completed")
                await expect(page.locator("svg .bar-gap")).to_have_count(0)


async def test_one_signs_in_with_a_browser_and_out_again(browser: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[olivia]\ntoken = "olivia-0123456789abcdef"\nscopes = ["dragoman:operator"]\n'
    )
    tokens.chmod(0o600)
    refused = ["error: Failed to load resource: the server responded with a status of 401"]
    async with (
        console(named("Guarded"), auth_tokens=str(tokens)) as site,
        looking(browser, site.url, allowed=refused) as page,
    ):
        await page.goto("/console/tasks?state=TASK_STATE_FAILED")
        await page.get_by_label("Token or API key").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Token or API key").fill("olivia-0123456789abcdef")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/console/tasks?state=TASK_STATE_FAILED")
        await expect(page.get_by_text("token:olivia · operator")).to_be_visible()
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url("**/console/login")
        await page.goto("/console/tasks")
        await page.wait_for_url("**/console/login?**")


async def test_a_tab_that_is_left_open_says_that_one_signed_out_in_another(
    browser: Browser, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[alice]\ntoken = "alice-0123456789abcdef"\n')
    tokens.chmod(0o600)
    refused = ["error: Failed to load resource: the server responded with a status of 401"]
    async with (
        console(named("Guarded"), auth_tokens=str(tokens)) as site,
        looking(browser, site.url, allowed=refused) as page,
    ):
        await page.goto("/console/tasks")
        await page.get_by_label("Token or API key").fill("alice-0123456789abcdef")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/console/tasks")
        other = await page.context.new_page()
        await other.goto("/console/inbox")
        await other.get_by_role("button", name="Sign out").click()
        await other.wait_for_url("**/console/login")
        # It is not left by itself: what was typed there can be copied.
        await expect(page.locator("body.is-out")).to_have_count(1)
        assert page.url.endswith("/console/tasks")
        await other.get_by_label("Token or API key").fill("alice-0123456789abcdef")
        await other.keyboard.press("Enter")
        await other.wait_for_url("**/console/tasks")
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.locator("body.is-out, body.is-stale")).to_have_count(0)


async def test_a_question_that_a_gateway_passes_on_is_asked_and_answered_once(
    browser: Browser, tmp_path: Path
) -> None:
    agent = named("Curious")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return f"Booked: {(await turn.ask('Which seat?')).text}"

    # As `dragoman up` has it: the agent, and the gateway before it, in one store.
    settings = load_settings({}, store=str(tmp_path / "tasks.db"))
    app = gateway_app(agent, settings=settings, is_local=True, parts=[ConsolePart()])
    async with hosting(app) as url, client(url) as http, looking(browser, url) as page:
        await app.listening([url])
        sent = await http.post(
            "/message:send", json={"message": message("x", metadata={"skillId": "ask"})}, headers=V1
        )
        await page.goto("/console/inbox")
        await expect(page.locator("[data-row]")).to_have_count(1)
        await expect(page.locator("[data-row]")).to_contain_text("gateway → curious")
        await page.get_by_role("link", name="Which seat?").click()
        await expect(page.locator("h1")).to_have_text("curious asks")
        await page.get_by_label("Answer").first.fill("window")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_text("Nothing waits for you")).to_be_visible()
        await page.goto(f"/console/tasks/{sent.json()['task']['id']}")
        await expect(page.locator(".say.artifact")).to_contain_text("Booked: window")
        await expect(page.locator(".actions .state")).to_have_text("completed")


def _liar(address: list[str], task: str, question: str) -> Any:
    """Return an agent that answers with the id of another agent's task."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": question}]}
        status = {"state": "TASK_STATE_INPUT_REQUIRED", "message": said}
        found: Any = {"task": {"id": task, "contextId": "c", "status": status}}
        if scope["path"].endswith("agent-card.json"):
            place = {"url": address[-1], "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
            found = {
                **{"name": "Liar", "description": "Lies.", "version": "1", "skills": []},
                **{"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]},
                **{"capabilities": {}, "supportedInterfaces": [place]},
            }
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": msgspec.json.encode(found)})

    return app


async def test_a_question_that_an_agent_passes_on_is_asked_once() -> None:
    clerk, boss = Agent("Clerk", "Asks twice."), Agent("Boss", "Has the clerk ask.")
    address: list[str] = []

    @clerk.skill
    async def ask(text: str, turn: Turn) -> str:
        answers = [await turn.ask("Which size?"), await turn.ask("Which size, really?")]
        return " ".join(one.text for one in answers)

    @boss.skill
    async def have_asked(text: str, turn: Turn) -> str:
        return (await turn.call(address[-1], "go on")).text

    async with console(clerk, boss, allow_private=True) as site:
        address.append(f"{site.url}/agents/clerk")

        async def sent(agent: str, text: str, **more: Any) -> str:
            body = {"message": message(text, **more)}
            answer = await site.http.post(f"/agents/{agent}/message:send", json=body, headers=V1)
            return answer.json()["task"]["id"]

        async def asked() -> list[str]:
            items = (await site.http.get("/api/v1/console/inbox")).json()["items"]
            return [one["taskId"] for one in items]

        task = await sent("boss", "new")
        assert await asked() == [task]
        # The page of the task that asks it first leads to its question too.
        tasks = (await site.http.get("/api/v1/console/tasks?agent=clerk")).json()["items"]
        view = (await site.http.get(f"/api/v1/console/tasks/{tasks[0]['id']}")).json()
        (asks,) = view["requests"]
        link = await site.http.get(f"/console/inbox/{asks['id']}")
        assert link.status_code == 200 and "clerk asks" in link.text
        await sent("boss", "L", taskId=task)
        assert await asked() == [task]
        await sent("boss", "XL", taskId=task)
        assert await asked() == []
        # An agent elsewhere claims a task that was not made for its caller, and asks the same.
        own = await sent("clerk", "mine")
        async with hosting(_liar(address, own, "Which size?")) as url:
            address.append(url)
            claimed = await sent("boss", "new")
            assert sorted(await asked()) == sorted([own, claimed])


async def test_a_key_is_revoked_on_the_page_that_shows_settings_and_their_sources(
    browser: Browser, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    made = key_file.create(keys, "night-bot", scopes=[], tenant=None, lifetime=None)
    async with (
        console(named("Kept"), keys=str(keys), push_secret="whsec_" + "c2VjcmV0" * 4) as site,
        looking(browser, site.url) as page,
    ):
        page.on("dialog", lambda dialog: dialog.accept())
        await page.goto("/console/system")
        await expect(page.locator("tr", has_text="push_secret").first).to_contain_text("<redacted>")
        assert "c2VjcmV0" not in await page.content() and made.text not in await page.content()
        await page.get_by_role("button", name="Revoke").click()
        await expect(page.locator(".state", has_text="revoked")).to_have_count(1)
        (key,) = key_file.read_keys(keys)
        assert key.revoked_at is not None


async def test_what_a_receiver_never_took_is_posted_again_or_dropped(browser: Browser) -> None:
    takes = [False, True]

    def handle(verb: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        return (200, {}, b"") if takes.pop(0) else None

    async with (
        console(named("Kept"), allow_private=True) as site,
        looking(browser, site.url) as page,
    ):
        with answering(handle) as port:
            await _gave_up(site, f"http://127.0.0.1:{port}/hook")
            await page.goto("/console/delivery")
            await page.get_by_role("button", name="Post again").click()
            await expect(page.get_by_text("did not take it this time either")).to_be_visible()
            await page.get_by_role("button", name="Post again").click()
            await expect(page.get_by_text("The receiver took it.")).to_be_visible()
            await expect(page.get_by_text("Nothing was given up.")).to_be_visible()
        await _gave_up(site, "https://example.com/hook")
        page.on("dialog", lambda dialog: dialog.accept())
        await page.goto("/console/delivery")
        await page.get_by_role("button", name="Drop").click()
        await expect(page.get_by_text("Nothing was given up.")).to_be_visible()


async def _gave_up(site: Site, url: str) -> None:
    """Leave an event of a task that its receiver never took."""
    sent = await site.send("hello")
    head = await site.app.store.head(Scope("kept"), TaskId(sent["id"]))
    assert head is not None
    config = PushConfig(url, "h", head.task_id)
    push = await site.app.store.put_push(head.number, config, head.standing.last_seq, most=9)
    assert push is not None
    letter = DeadLetter(push.number, head.task_id, "h", config.url, 2, 10, 5000, "a 500")
    await site.app.store.settle(push, letter)
