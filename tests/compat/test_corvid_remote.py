"""corvid's calls of other agents: cards that are kept, tasks that are read until they end, and what
a session may ask for."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.serving import hosting, serving
from harness.waiting import within

from dragoman import Agent
from dragoman.compat import corvid
from dragoman.compat.corvid import (
    ExternalServiceError,
    RemoteAgents,
    RemoteInvocationResult,
    RemoteTools,
    SessionInvocationBudget,
    ValidationError,
    load_invocation_guard_config,
)
from dragoman.testing.clock import ManualClock

CARD = {"name": "Far", "version": "1.0", "skills": []}
MINUTE = 60_000
Says = Callable[[str, str, Any], tuple[int, Any]]


class Far:
    """A remote agent that answers as it is told, and what it was asked."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        value = json.loads(body) if body else None
        self.asked.append((scope["method"], scope["path"], value))
        self.headers.append({n.decode(): v.decode() for n, v in scope["headers"]})
        status, said = self.says(*self.asked[-1])
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def far(says: Says) -> AsyncIterator[tuple[str, Far]]:
    agent = Far(says)
    async with hosting(agent, lifespan="off") as url:
        yield url, agent


def card(method: str, path: str, body: Any) -> tuple[int, Any]:
    return 200, CARD


def task(state: str, *texts: str) -> dict[str, Any]:
    said = [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]
    said += [{"role": "agent", "parts": [{"type": "text", "text": text}]} for text in texts]
    return {"id": "t-1", "state": state, "messages": said}


async def driven(clock: ManualClock, call: Awaitable[Any]) -> Any:
    """Return what a call leads to, moving the clock whenever it waits."""
    running = asyncio.ensure_future(call)
    async with asyncio.timeout(60):
        while not running.done():
            leaping = asyncio.ensure_future(clock.leap())
            await asyncio.wait([running, leaping], return_when=asyncio.FIRST_COMPLETED)
            leaping.cancel()
            await asyncio.gather(leaping, return_exceptions=True)
        return await running


# Cards


async def test_a_card_is_kept_for_five_minutes() -> None:
    """C-002, C-013: at two minutes nobody is asked again, at six the agent is."""
    clock = ManualClock()
    agents = RemoteAgents(clock=clock, allow_private=True)
    async with far(card) as (url, agent):
        assert await agents.fetch_agent_card(f"{url}///") == CARD
        assert agent.asked == [("GET", "/.well-known/agent-card.json", None)]
        assert agent.headers[0]["accept"] == "application/json" and agent.headers[0]["user-agent"]
        clock.move_to(clock.now() + 2 * MINUTE)
        await agents.fetch_agent_card(url)
        assert len(agent.asked) == 1
        clock.move_to(clock.now() + 4 * MINUTE)
        await agents.fetch_agent_card(url)
        assert len(agent.asked) == 2
        agents.clear_agent_card_cache()
        await agents.fetch_agent_card(url)
        assert len(agent.asked) == 3


async def test_what_is_stale_is_forgotten_with_the_next_card() -> None:
    """C-002: whichever agent that is of."""
    clock = ManualClock()
    agents = RemoteAgents(clock=clock, allow_private=True)
    async with far(card) as (one, _), far(card) as (other, _):
        await agents.fetch_agent_card(one)
        clock.move_to(clock.now() + 6 * MINUTE)
        await agents.fetch_agent_card(other)
        assert agents.cached_cards == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((503, {}), ExternalServiceError),
        ((404, {}), ExternalServiceError),
        ((200, {"name": "x"}), ValidationError),
        ((200, {"version": "1"}), ValidationError),
        ((200, b"<html>"), ValidationError),
    ],
    ids=["503", "404", "no-version", "no-name", "html"],
)
async def test_what_is_no_card_is_an_error_or_nothing(
    answer: tuple[int, Any], kind: type[Exception]
) -> None:
    """C-002, C-003: as the caller wants it; and it is not kept."""
    agents = RemoteAgents(allow_private=True)
    async with far(lambda *_: answer) as (url, agent):
        with pytest.raises(kind) as failed:
            await agents.fetch_agent_card(url)
        if isinstance(failed.value, ExternalServiceError):
            assert failed.value.status == answer[0]
        assert await agents.discover_agent(url) is None
        assert len(agent.asked) == 2


async def test_an_agent_that_is_not_there_is_nothing() -> None:
    """C-003: and never an exception."""
    agents = RemoteAgents(allow_private=True)
    for address in ("http://127.0.0.1:9", "no address", ""):
        assert await within(agents.discover_agent(address)) is None


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://example.com", "http://localhost", "http://127.0.0.1:8000", "http://10.1.2.3"),
        *("http://172.16.0.1", "http://192.168.1.1", "http://169.254.169.254", "http://100.64.0.1"),
        *("http://198.51.100.7", "http://224.0.0.1", "http://240.0.0.1", "http://[::1]"),
        *("http://[::ffff:127.0.0.1]", "http://[fe80::1]", "http://2130706433", "http://0x7f.1"),
        *("http://0177.0.0.1", "http://printer.local", "http://0.0.0.0"),
    ],
)
async def test_addresses_that_are_not_public_are_not_called(address: str) -> None:
    """C-024: whatever they look like, for cards and for tasks."""
    corvid.clear_agent_card_cache()
    with pytest.raises(ValidationError, match="is not called"):
        await within(corvid.fetch_agent_card(address))
    found = await within(corvid.invoke_remote_agent(address, "hi"))
    assert not found.success and "is not called" in (found.error or "")
    assert await corvid.discover_agent(address) is None


@pytest.mark.parametrize("by_environment", [False, True])
async def test_agents_on_this_machine_are_called_if_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    """C-002, C-003, C-004, C-024: by an argument or the environment, which the error names."""
    monkeypatch.delenv("DRAGOMAN_ALLOW_PRIVATE", raising=False)
    corvid.clear_agent_card_cache()
    agent = Agent("Echo", "Says it again.", version="1")

    @agent.skill
    async def echo(text: str) -> str:
        return f"Echo: {text}"

    more: dict[str, bool] = {} if by_environment else {"allow_private": True}
    async with serving(agent) as site:
        for hint in ("allow_private=True", "DRAGOMAN_ALLOW_PRIVATE"):
            with pytest.raises(ValidationError, match=hint):
                await within(corvid.fetch_agent_card(site.url))
            refused = await within(corvid.invoke_remote_agent(site.url, "hi"))
            assert not refused.success and hint in (refused.error or "")
        if by_environment:
            monkeypatch.setenv("DRAGOMAN_ALLOW_PRIVATE", "1")
        assert (await within(corvid.fetch_agent_card(site.url, **more)))["name"] == "Echo"
        corvid.clear_agent_card_cache()
        assert await within(corvid.discover_agent(site.url, **more)) is not None
        found = await within(corvid.invoke_remote_agent(site.url, "hi", **more))
        assert (found.success, found.response_text) == (True, "Echo: hi")
        if by_environment:
            refused = await within(corvid.invoke_remote_agent(site.url, "hi", allow_private=False))
            assert not refused.success, "the argument wins"
    corvid.clear_agent_card_cache()


async def test_a_setting_of_a_server_that_is_wrong_is_no_matter_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C-003, C-024: what servers are given in the same environment is not read."""
    monkeypatch.setenv("DRAGOMAN_WORKERS", "many")
    monkeypatch.setenv("DRAGOMAN_ALLOW_PRIVATE", "1")
    corvid.clear_agent_card_cache()
    async with serving(Agent("Echo", "Says it again.", version="1")) as site:
        assert await within(corvid.discover_agent(site.url)) is not None
    corvid.clear_agent_card_cache()
    gone = await within(corvid.invoke_remote_agent(site.url, "hi"))
    assert not gone.success and "Submit failed" in (gone.error or "")


async def test_a_name_that_leads_to_a_private_address_is_not_called() -> None:
    """C-024: what counts is where a name leads, which is looked at when it is dialled."""
    from dragoman.compat.corvid.remote import Public
    from dragoman.egress.egress import Egress
    from dragoman.egress.errors import EgressFailed

    async def resolve(host: str) -> list[str]:
        return ["10.0.0.7"]

    async with Egress(policy=Public(), resolver=resolve, connect_timeout=0.2) as egress:
        with pytest.raises(EgressFailed) as failed:
            await within(egress.get("http://agent.example.com/"))
    assert "not public" in failed.value.reason and not failed.value.is_sent


# Tasks


async def test_a_remote_agent_is_given_a_task_and_read_until_it_ends() -> None:
    """C-004, C-013, C-020, C-021: every three seconds, through failures; its last word counts."""
    answers: list[tuple[int, Any]] = [
        *((200, task("submitted")), (500, {}), (200, b"?"), (200, task("working", "a")))
    ]
    clock = ManualClock()
    agents = RemoteAgents(clock=clock, allow_private=True, depth=1, source_agent="me")

    def says(method: str, path: str, body: Any) -> tuple[int, Any]:
        return answers.pop(0) if answers else (200, task("completed", "a", "b"))

    began = clock.now()
    async with far(says) as (url, agent):
        result = await driven(clock, agents.invoke_remote_agent(f"{url}/", "hi", skill="s"))
    assert result == RemoteInvocationResult(True, "t-1", "b", None)
    assert clock.now() - began == 3 * 3000
    verb, path, body = agent.asked[0]
    assert (verb, path) == ("POST", "/a2a/tasks/send")
    assert body["params"] == {
        **{"message": "hi", "skill": "s", "timeoutMs": 300_000},
        **{"depth": 2, "sourceAgent": "me"},
    }
    assert {asked[:2] for asked in agent.asked[1:]} == {("GET", "/a2a/tasks/t-1")}


@pytest.mark.parametrize(
    ("said", "text", "error"),
    [(task("failed", "why"), "why", "why"), (task("failed"), None, "Task failed")],
)
async def test_a_task_that_failed_says_why(said: Any, text: str | None, error: str) -> None:
    """C-004: in its last word, if it has one."""
    agents = RemoteAgents(allow_private=True)
    async with far(lambda *_: (200, said)) as (url, _):
        result = await within(agents.invoke_remote_agent(url, "hi"))
    assert result == RemoteInvocationResult(False, "t-1", text, error)


async def test_what_is_not_taken_and_what_takes_too_long_are_no_success() -> None:
    """C-004, C-013: and say so in corvid's words."""
    clock = ManualClock()
    agents = RemoteAgents(clock=clock, allow_private=True)
    async with far(lambda *_: (503, {"error": "busy"})) as (url, _):
        refused = await within(agents.invoke_remote_agent(url, "hi"))
        assert not refused.success and refused.task_id == ""
        assert re.match(r"Submit failed: HTTP 503 .*busy", refused.error or "")
    gone = await within(agents.invoke_remote_agent("http://127.0.0.1:9", "hi"))
    assert (gone.error or "").startswith("Submit failed: ")
    began = clock.now()
    async with far(lambda *_: (200, task("working", "a"))) as (url, _):
        late = await driven(clock, agents.invoke_remote_agent(url, "hi", timeout_ms=5000))
    assert late == RemoteInvocationResult(False, "t-1", None, "Timed out after 5000ms")
    assert clock.now() - began == 5000


async def test_our_own_server_is_a_remote_agent_too() -> None:
    """C-004, C-012: with the two requests of corvid."""
    own = Agent("Own", "Echoes.")

    @own.skill
    async def echo(text: str) -> str:
        return f"Echo: {text}"

    clock = ManualClock()
    agents = RemoteAgents(clock=clock, allow_private=True)
    async with serving(own) as site:
        result = await driven(clock, agents.invoke_remote_agent(site.url, "hi"))
        assert (await agents.fetch_agent_card(site.url))["name"] == "Own"
    assert (result.success, result.response_text) == (True, "Echo: hi")


# Budgets


def test_a_session_has_a_budget_of_calls_agents_and_time() -> None:
    """C-023: refused in this order."""
    clock = ManualClock()
    budget = SessionInvocationBudget(clock=clock, max_invocations_per_session=5)
    for name in ("a", "b", "c"):
        assert budget.check(name).allowed
        budget.record(name)
        clock.move_to(clock.now() + 5000)
    assert budget.check("d").reason == "UNIQUE_AGENT_LIMIT"
    budget.record("a")
    assert budget.check("d").reason == "UNIQUE_AGENT_LIMIT", "before the pause"
    waiting = budget.check("a")
    assert waiting.reason == "COOLDOWN" and "5000 ms" in (waiting.detail or "")
    clock.move_to(clock.now() + 4999)
    assert not budget.check("a").allowed
    clock.move_to(clock.now() + 1)
    assert budget.check("a").allowed
    budget.record("a")
    assert budget.check("d").reason == "INVOCATION_LIMIT", "before all others"
    assert (budget.invocation_count, budget.unique_agent_count) == (5, 3)


def test_limits_are_those_of_the_environment_if_they_are_any() -> None:
    """C-023: what is no number in range is as if it were not set; no pause is a pause of 0."""
    names = ("MAX_REMOTE_INVOCATIONS_PER_SESSION", "MAX_UNIQUE_AGENTS_PER_SESSION")
    found = load_invocation_guard_config({names[0]: "7", names[1]: "2"})
    assert found.max_invocations_per_session == 7 and found.max_unique_agents_per_session == 2
    for wrong in ("", "x", "0", "-1", "1e3", "9" * 40):
        assert load_invocation_guard_config(dict.fromkeys(names, wrong)) == (
            load_invocation_guard_config({})
        )
    free = load_invocation_guard_config({"A2A_INVOCATION_COOLDOWN_MS": "0"})
    budget = SessionInvocationBudget(free, clock=ManualClock())
    budget.record("a")
    assert budget.check("a").allowed


# Tools


async def test_a_tool_asks_for_budget_then_trust_then_credits_then_calls() -> None:
    """C-027: what refuses ends it, and what was refused is not counted."""
    asked: list[str] = []
    refusing: set[str] = set()

    async def trust(url: str) -> str:
        asked.append("trust")
        if "broken" in refusing:
            raise OSError("nobody knows")
        return "untrusted" if "trust" in refusing else "medium"

    async def credits(listing: str, url: str) -> str | None:
        asked.append(f"credits {listing}")
        return "CREDITS: too few" if "credits" in refusing else None

    budget = SessionInvocationBudget(clock=ManualClock(), cooldown_ms=0)
    agents = RemoteAgents(allow_private=True)
    tools = RemoteTools(budget, agents=agents, trust=trust, credits=credits)

    def says(method: str, path: str, body: Any) -> tuple[int, Any]:
        asked.append("call")
        return 200, task("completed", "done")

    async with far(says) as (url, agent):
        assert (await tools.invoke_remote_agent(url, "hi", listing_id="7")).response_text == "done"
        assert asked == ["trust", "credits 7", "call", "call"]
        assert agent.asked[0][2]["params"]["timeoutMs"] == 5 * MINUTE
        refusing.add("credits")
        refused = await tools.invoke_remote_agent(url, "hi", listing_id="7")
        assert refused.error == "CREDITS: too few"
        refusing.add("trust")
        assert "TRUST" in ((await tools.invoke_remote_agent(url, "hi")).error or "")
        refusing.add("broken")
        assert (await tools.invoke_remote_agent(url, "hi")).success, "a failed look is advice"
        with pytest.raises(ValidationError, match="min_trust"):
            await tools.invoke_remote_agent(url, "hi", min_trust="total")
        assert budget.invocation_count == 2
        for _ in range(8):
            budget.record(url)
        asked.clear()
        assert "INVOCATION_LIMIT" in ((await tools.invoke_remote_agent(url, "hi")).error or "")
        assert asked == []
        assert await tools.discover_agent("http://127.0.0.1:9") is None
