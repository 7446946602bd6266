"""Quotas of tasks: every way to begin one counts, and what begins nothing does not."""

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.clock import Clock
from harness.serving import Site, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, Client, Settings, Turn
from dragoman.config import HttpSettings
from dragoman.engine.running.failures import REFUSED_ELSEWHERE
from dragoman.errors import RateLimited
from dragoman.http.rates import USED_UP, quota_of
from dragoman.model.identity import Caller, Principal
from dragoman.shares import Root, Shares
from dragoman.stores.interface import Survey

TOKENS = {"alice": "alice-token-0123456789", "bob": "bob-token-0123456789"}


def agent() -> Agent:
    made = Agent("Echo", "Says it again.")

    @made.skill(default=True)
    async def echo(text: str) -> str:
        return text

    @made.skill
    async def count(text: str) -> AsyncIterator[str]:
        yield text

    return made


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens.toml"
    path.touch(mode=0o600)
    tables = [f'[{name}]\ntoken = "{token}"\n' for name, token in TOKENS.items()]
    path.write_text(
        "".join(tables) + '[carol]\ntoken = "carol-token-0123456789"\ntenant = "acme"\n'
    )
    return str(path)


async def begun(site: Site) -> int:
    """Return how many tasks there are, whoever they belong to."""
    return len(await site.app.store.survey(Survey(limit=1000)))


# Counting


def test_tasks_of_a_day_are_counted_by_principal_and_given_back() -> None:
    clock = Clock()
    quota = quota_of(Settings(http=HttpSettings(quota="2/d")), clock)
    alice = Caller("alice", authenticated=True).who
    quota.begin(alice, 1)
    quota.begin(alice, 1)
    with pytest.raises(RateLimited, match=USED_UP) as refused:
        quota.begin(alice, 1)
    assert refused.value.retry_after == 43_200
    # Another tenant's is another, and so is an address that is called the same.
    quota.begin(Caller("alice", authenticated=True, tenant="acme").who, 2)
    quota.begin(Caller(place="alice").who, 2)
    quota.give_back(alice, 1)
    quota.begin(alice, 1)
    clock.now += 43_200
    quota.begin(alice, 1)


def test_several_at_once_are_taken_whole_or_not_at_all() -> None:
    quota = quota_of(Settings(http=HttpSettings(quota="3/d")), Clock())
    who = Principal("", "alice")
    quota.begin(who, 2)
    with pytest.raises(RateLimited):
        quota.begin(who, 2)
    quota.begin(who, 1)
    with pytest.raises(RateLimited):
        quota.begin(Principal("", "bob"), 4)
    quota.begin(Principal("", "bob"), 3)


# Ways to begin a task


def jsonrpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def nexus(text: str) -> dict[str, Any]:
    parts = [{"type": "text", "data": text}]
    said = {"role": "user", "parts": parts}
    return jsonrpc("message/send", {"id": str(uuid.uuid4()), "message": said})


def corvid(text: str) -> dict[str, Any]:
    return {"message": text, "sourceAgent": "planner"}


NEW = {"a2a-version": "1.0"}
OLD = {"a2a-version": "0.3"}
WAYS: dict[str, tuple[str, dict[str, str], Callable[[str], dict[str, Any]]]] = {
    "1.0 JSON-RPC": ("/", NEW, lambda n: jsonrpc("SendMessage", {"message": message(n)})),
    "1.0 JSON-RPC stream": (
        "/",
        NEW,
        lambda n: jsonrpc("SendStreamingMessage", {"message": message(n)}),
    ),
    "1.0 REST": ("/message:send", NEW, lambda n: {"message": message(n)}),
    "1.0 REST stream": ("/message:stream", NEW, lambda n: {"message": message(n)}),
    "0.3 JSON-RPC": ("/", OLD, lambda n: jsonrpc("message/send", {"message": old_message(n)})),
    "0.3 JSON-RPC stream": (
        "/",
        OLD,
        lambda n: jsonrpc("message/stream", {"message": old_message(n)}),
    ),
    "nexus": ("/api/v1/a2a", {}, nexus),
    "r": ("/api/a2a", OLD, lambda n: jsonrpc("message/send", {"message": old_message(n)})),
    "corvid": ("/a2a/tasks/send", {}, corvid),
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_dialect_counts_tasks_and_refuses_in_its_own_words(
    way: str, tokens: str
) -> None:
    path, headers, body = WAYS[way]
    async with serving(agent(), auth_tokens=tokens, quota="2/d") as site:
        for n in range(2):
            sent = await site.http.post(path, json=body(f"{n}"), headers=headers | bearer("alice"))
            assert sent.status_code == 200, sent.text
        assert await begun(site) == 2
        for _ in range(3):
            refused = await site.http.post(
                path, json=body("more"), headers=headers | bearer("alice")
            )
            assert refused.status_code == 429 and "result" not in refused.text
            assert int(refused.headers["retry-after"]) > 40_000
        assert await begun(site) == 2, "a refusal makes nothing"
        others = await site.http.post(path, json=body("bob"), headers=headers | bearer("bob"))
        assert others.status_code == 200


async def test_a_message_that_is_sent_again_and_one_to_a_task_do_not_count(tokens: str) -> None:
    async with serving(agent(), auth_tokens=tokens, quota="1/d") as site:
        body = jsonrpc("SendMessage", {"message": message("hi")})
        answers = [
            (await site.post(body, headers=NEW | bearer("alice"))).json()["result"]["task"]["id"]
            for _ in range(4)
        ]
        assert len({*answers}) == 1 and await begun(site) == 1
        ended = jsonrpc("SendMessage", {"message": message("hi", taskId=answers[0])})
        said = (await site.post(ended, headers=NEW | bearer("alice"))).json()["error"]
        assert said["code"] == -32004, "the task has ended, which is what is told"


async def test_what_is_refused_for_another_reason_does_not_count(tokens: str) -> None:
    async with serving(agent(), auth_tokens=tokens, quota="1/d") as site:
        nonsense = jsonrpc("SendMessage", {"message": message("hi", metadata={"skill": "none"})})
        nonsense["params"]["message"]["metadata"] = {"skillId": "none"}
        for _ in range(3):
            refused = await site.post(nonsense, headers=NEW | bearer("alice"))
            assert refused.status_code != 429
        good = jsonrpc("SendMessage", {"message": message("hi")})
        assert (await site.post(good, headers=NEW | bearer("alice"))).status_code == 200


async def test_callers_who_are_not_known_count_by_their_address() -> None:
    async with serving(agent(), quota="1/d", proxies="127.0.0.1") as site:

        def from_(address: str) -> dict[str, str]:
            return NEW | {"x-forwarded-for": address}

        body = lambda: jsonrpc("SendMessage", {"message": message("hi")})  # noqa: E731 - short
        assert (await site.post(body(), headers=from_("192.0.2.1"))).status_code == 200
        assert (await site.post(body(), headers=from_("192.0.2.1"))).status_code == 429
        assert (await site.post(body(), headers=from_("192.0.2.2"))).status_code == 200


# Agents that call agents


def chief(calls: int) -> Agent:
    made = Agent("Chief", "Has the other one work.")

    @made.skill(default=True)
    async def work(text: str, turn: Turn) -> str:
        # Where it is served, which nobody knows before.
        url = text
        for n in range(calls):
            await turn.call(url, f"{n}")
        return "done"

    return made


async def test_what_an_agent_has_another_one_do_counts_for_who_began_it(tmp_path: Path) -> None:
    async with serving(agent(), chief(3), quota="4/d", proxies="127.0.0.1") as site:
        echo = f"{site.url}/agents/echo"

        async def ask(address: str) -> Any:
            body = jsonrpc("SendMessage", {"message": message(echo)})
            sent = await site.http.post(
                "/agents/chief", json=body, headers=NEW | {"x-forwarded-for": address}
            )
            return sent

        first = await within(ask("192.0.2.1"))
        state = first.json()["result"]["task"]["status"]["state"]
        assert state == "TASK_STATE_COMPLETED" and await begun(site) == 4
        assert (await within(ask("192.0.2.1"))).status_code == 429, "one and its three calls"
        # What the server sends to itself is nobody else's: it would be used up for all.
        second = await within(ask("192.0.2.2"))
        assert second.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_call_beyond_the_quota_fails_with_that_reason() -> None:
    async with serving(agent(), chief(3), quota="3/d") as site:
        body = jsonrpc("SendMessage", {"message": message(f"{site.url}/agents/echo")})
        sent = await within(site.http.post("/agents/chief", json=body, headers=NEW))
        status = sent.json()["result"]["task"]["status"]
        assert status["state"] == "TASK_STATE_FAILED"
        assert status["message"]["parts"][0]["text"] == REFUSED_ELSEWHERE
        assert await begun(site) == 3


async def test_what_a_call_reads_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Agent("Many", "Says much.")

    @made.skill(default=True)
    async def many(text: str) -> AsyncIterator[str]:
        for n in range(400):
            yield f"{n} "

    turns: list[str] = []
    turn = Shares.turn

    async def noted(self: Shares, account: Any, agent: str) -> None:
        turns.append(agent)
        await turn(self, account, agent)

    async with serving(made) as other, serving(chief(1)) as site:
        monkeypatch.setattr(Shares, "turn", noted)
        body = jsonrpc("SendMessage", {"message": message(other.url)})
        sent = await within(site.post(body, headers=NEW))
        assert sent.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert turns.count("chief") >= 20


async def test_the_id_of_a_call_is_good_for_one_task() -> None:
    shares = Shares()
    with shares.calling("m", "192.0.2.1"):
        assert shares.root("m", "192.0.2.9") == Root("192.0.2.1", is_counted=False)
        assert shares.root("m", "192.0.2.9") == Root("192.0.2.9", is_counted=False)
    with shares.calling("m", "192.0.2.1", is_counted=True):
        for _ in range(2):
            assert shares.root("m", "192.0.2.9") == Root("192.0.2.1", is_counted=True)
    assert shares.root("m", "192.0.2.9").who == "192.0.2.9"


async def test_a_client_in_the_same_process_counts(tmp_path: Path) -> None:
    async with serving(agent(), quota="1/d") as site, Client(site.url) as client:
        await client.send("one")
        with pytest.raises(RateLimited):
            await within(client.send("two"))
