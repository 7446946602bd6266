"""Rates and shares of one caller: what is refused, what it is told, and that it costs little to
count them all."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.clock import Clock
from harness.serving import Site, client, hosting, message, serving
from harness.waiting import WAIT, within

from dragoman import Agent, App, Turn
from dragoman.config import HttpSettings, load_settings
from dragoman.config.formats import Rate, read_rate
from dragoman.errors import ConfigError, Overloaded, RateLimited
from dragoman.http.limits import CallerLimits, network
from dragoman.http.rates import MAX_KEYS, Buckets
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.security.proxies import Proxies

ALICE, BOB = Caller("token:alice", True), Caller("token:bob", True)
ELSEWHERE = "192.0.2.7"
TOKENS = {"alice-has-this-token": ALICE, "bob-has-another-token": BOB}
AS_ALICE = {"authorization": "Bearer alice-has-this-token"}
AS_BOB = {"authorization": "Bearer bob-has-another-token"}


def limits(clock: Clock, **settings: Any) -> CallerLimits:
    return CallerLimits(load_settings({}, **settings), clock, lambda: 1_700_000_000.0 + clock.now)


def refusal(asked: Callable[[], object]) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        asked()
    return caught.value


# Rates


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/60s", Rate(100, 60)),
        ("5/s", Rate(5, 1)),
        ("30/m", Rate(30, 60)),
        (" 1000/1D ", Rate(1000, 86_400)),
        ("2/3h", Rate(2, 10_800)),
        ("", None),
        ("off", None),
    ],
)
def test_a_rate_is_a_number_and_a_time(text: str, rate: Rate | None) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["100", "0/60s", "5/0s", "-1/s", "1/60", "1.5/s", "5/s/s", "a/s"])
def test_what_is_no_rate_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rate_limit_agent = .* write 100/60s"):
        HttpSettings(rate_limit_agent=text)


@pytest.mark.parametrize("rate", [Rate(1, 1), Rate(3, 10), Rate(100, 60), Rate(7, 86_400)])
def test_a_bucket_gives_its_number_at_once_and_then_one_by_one(rate: Rate) -> None:
    buckets = Buckets(rate)
    assert [buckets.take("a", 50.0) for _ in range(rate.count)] == [0.0] * rate.count
    wait = buckets.take("a", 50.0)
    assert wait == pytest.approx(rate.seconds / rate.count)
    assert buckets.take("a", 50.0 + wait * 0.99) > 0
    assert buckets.take("a", 50.0 + wait) == 0.0
    assert buckets.take("a", 50.0 + wait) > 0
    assert buckets.take("b", 50.0) == 0.0, "another has its own"
    later = 50.0 + 10 * rate.seconds
    assert [buckets.take("a", later) for _ in range(rate.count)] == [0.0] * rate.count


def test_within_any_window_there_are_at_most_twice_as_many() -> None:
    buckets = Buckets(Rate(10, 1))
    taken = [at / 100 for at in range(1000) if not buckets.take("a", at / 100)]
    for begin in range(0, 900, 7):
        window = [at for at in taken if begin / 100 <= at < begin / 100 + 1]
        assert len(window) <= 20
    assert len(taken) == 10 + 99


def test_a_hundred_thousand_addresses_take_bounded_memory_and_free_nobody() -> None:
    buckets = Buckets(Rate(10, 60))
    for _ in range(10):
        assert not buckets.take("flood", 0.0)
    for number in range(100_000):
        buckets.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number / 100_000)
        if number % 1000 == 0:
            assert buckets.take("flood", number / 100_000), "it must not get a full one again"
    assert len(buckets) == MAX_KEYS


def test_who_takes_the_place_of_another_owes_what_that_one_did() -> None:
    buckets = Buckets(Rate(2, 60), most=2)
    for key in ("a", "b"):
        assert not buckets.take(key, 0.0) and not buckets.take(key, 0.0)
    assert buckets.take("c", 1.0) > 0
    assert buckets.take("d", 61.0) == 0.0, "in a while they are all full again"
    assert len(buckets) == 2


def test_counting_costs_a_request_next_to_nothing() -> None:
    clock = Clock()
    counted = limits(clock, rate_limit="1000000/s", rate_limit_address="1000000/s")

    def one() -> None:
        counted.arrive(ELSEWHERE)
        counted.admit(ALICE, None, ELSEWHERE).leave()

    best = min(_seconds(one, 2000) for _ in range(20))
    # Two microseconds where nothing else runs; what is held here is that it is no millisecond.
    assert best / 2000 < 20e-6


def _seconds(work: Callable[[], None], times: int) -> float:
    # What others do on a busy machine does not count.
    began = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - began


# Shares


def test_principals_have_rates_of_their_own() -> None:
    clock = Clock()
    found = limits(clock, rate_limit="2/60s")
    rooms = [found.admit(ALICE, None, ELSEWHERE) for _ in range(2)]
    error = refusal(lambda: found.admit(ALICE, None, "198.51.100.1"))
    assert error.retry_after == 30
    found.admit(BOB, None, ELSEWHERE)
    clock.now += error.retry_after
    found.admit(ALICE, None, ELSEWHERE)
    assert dict(rooms[0].headers)[b"x-ratelimit-remaining"] == b"0"


def test_what_is_told_is_what_is_left() -> None:
    clock = Clock()
    found = limits(clock, rate_limit="100/60s", rate_limit_agent="5/m", rate_limit_address="9/s")
    found.arrive(ELSEWHERE)
    room = found.admit(ALICE, "planner", ELSEWHERE)
    assert dict(room.headers) == {
        b"x-ratelimit-limit": b"100",
        b"x-ratelimit-remaining": b"99",
        b"x-ratelimit-reset": b"1700001001",
        b"ratelimit-policy": b'"caller";q=100;w=60, "agent";q=5;w=60, "address";q=9;w=1',
        b"ratelimit": b'"caller";r=99;t=1, "agent";r=4;t=12, "address";r=8;t=1',
    }
    assert b"agent" not in dict(found.admit(ALICE, None, ELSEWHERE).headers)[b"ratelimit"]
    assert limits(clock).admit(ALICE, "planner", ELSEWHERE).headers == ()


def test_an_agent_is_counted_within_its_principal_and_does_not_use_it_up() -> None:
    found = limits(Clock(), rate_limit="10/60s", rate_limit_agent="2/60s")
    for _ in range(2):
        found.admit(ALICE, "planner", ELSEWHERE)
    for _ in range(20):
        refusal(lambda: found.admit(ALICE, "planner", ELSEWHERE))
    # The name is its principal's own: another's agent may have it too.
    found.admit(BOB, "planner", ELSEWHERE)
    for _ in range(8):
        found.admit(ALICE, None, ELSEWHERE)
    refusal(lambda: found.admit(ALICE, "another", ELSEWHERE))


def test_callers_who_are_not_known_count_by_address_and_ipv6_by_its_64() -> None:
    found = limits(Clock(), rate_limit="1/60s")
    found.admit(ANONYMOUS, None, "2001:db8:1:2::1")
    refusal(lambda: found.admit(ANONYMOUS, None, "2001:db8:1:2:ffff::9"))
    found.admit(ANONYMOUS, None, "2001:db8:1:3::1")
    found.admit(ANONYMOUS, None, ELSEWHERE)
    refusal(lambda: found.admit(ANONYMOUS, None, f"::ffff:{ELSEWHERE}"))
    assert network("fe80::1%eth0") == "fe80::/64"


async def test_only_so_many_requests_and_streams_at_once() -> None:
    found = limits(Clock(), max_requests_per_caller=3, max_streams_per_caller=2)
    rooms = [found.admit(ALICE, None, ELSEWHERE) for _ in range(3)]
    refusal(lambda: found.admit(ALICE, None, ELSEWHERE))
    found.admit(BOB, None, ELSEWHERE)
    await rooms[0].open_stream()
    await rooms[0].open_stream()
    await rooms[1].open_stream()
    with pytest.raises(RateLimited):
        await rooms[2].open_stream()
    rooms[0].leave()
    rooms[0].leave()
    await rooms[2].open_stream()
    again = found.admit(ALICE, None, ELSEWHERE)
    refusal(lambda: found.admit(ALICE, None, ELSEWHERE))
    for room in (*rooms, again):
        room.leave()
    assert not found._requests or list(found._requests) == [BOB.principal]
    assert not found._streams


async def test_this_machine_is_not_one_caller() -> None:
    found = limits(Clock(), max_requests_per_caller=1, max_streams_per_caller=1)
    for address in ("127.0.0.1", "127.9.9.9", "::1", ""):
        for _ in range(3):
            await found.admit(ANONYMOUS, None, address).open_stream()
    found.admit(ALICE, None, "127.0.0.1")
    refusal(lambda: found.admit(ALICE, None, "127.0.0.1"))


def test_credentials_that_do_not_hold_shut_out_their_address_for_a_while() -> None:
    clock = Clock()
    found = limits(clock)
    for _ in range(20):
        found.arrive(ELSEWHERE)
        found.failed(ELSEWHERE)
    error = refusal(lambda: found.arrive(ELSEWHERE))
    found.arrive("192.0.2.8")
    clock.now += error.retry_after
    found.arrive(ELSEWHERE)
    for _ in range(30):
        found.failed("127.0.0.1")
    found.arrive("127.0.0.1")


# Behind proxies


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.5", ["192.0.2.1"], "203.0.113.5"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["192.0.2.1"], "192.0.2.1"),
        # What the caller itself claimed stands to the left of what the proxy saw.
        ("10.0.0.5", ["127.0.0.1, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.5", ["127.0.0.1", "192.0.2.1, 10.0.0.9"], "192.0.2.1"),
        ("10.0.0.5", ["10.0.0.8, 10.0.0.9"], "10.0.0.8"),
        ("10.0.0.5", ["192.0.2.1, nonsense"], "10.0.0.5"),
        ("10.0.0.5", ["192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
    ],
)
def test_a_hop_is_believed_if_a_named_proxy_tells(
    peer: str, forwarded: list[str], address: str
) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert Proxies(["10.0.0.0/24"]).origin(peer, headers) == address


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"proxies = .* write 10.0.0.5 or 10.0.0.0/24"):
        HttpSettings(proxies=["everyone"])


# Served


def make() -> Agent:
    agent = Agent("Echo", "Repeats.")

    @agent.skill
    async def echo(text: str, turn: Turn) -> str:
        if text == "wait":
            await turn.ask("Go on?")
        if text == "work":
            await asyncio.sleep(WAIT)
        return text

    return agent


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[Site]:
    """Serve to Alice and Bob."""
    app = App(
        make(),
        settings=load_settings({}, store="memory:", **settings),
        authenticators=[BearerTokens(tokens=TOKENS)],
    )
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


def call(text: str = "hi", method: str = "SendMessage") -> dict[str, Any]:
    params = {"message": message(text)}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def ask(site: Site, binding: str, headers: dict[str, str]) -> Any:
    if binding == "jsonrpc":
        return await site.post(call(), headers=headers)
    body = json.dumps({"message": message("hi")}).encode()
    version = {"A2A-Version": "1.0", "content-type": "application/json"}
    return await site.http.post("/message:send", content=body, headers=version | headers)


@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
async def test_a_caller_beyond_its_rate_is_told_when_to_come_back(binding: str) -> None:
    async with guarded(rate_limit="2/1s") as site:
        first = await ask(site, binding, AS_ALICE)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit"] == "2"
        assert first.headers["ratelimit-policy"] == '"caller";q=2;w=1'
        # On a slow machine some of them are within the rate.
        async with asyncio.timeout(WAIT):
            while (refused := await ask(site, binding, AS_ALICE)).status_code == 200:
                pass
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["title"] == "Too Many Requests"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-ratelimit-remaining"] == "0"
        assert abs(int(refused.headers["x-ratelimit-reset"]) - time.time()) < 30
        assert '"caller";r=0' in refused.headers["ratelimit"]
        assert (await ask(site, binding, AS_BOB)).status_code == 200
        assert (await site.http.get("/.well-known/agent-card.json")).status_code == 200
        # A manual clock is not in reach here; the second it names is the shortest there is.
        await asyncio.sleep(int(refused.headers["retry-after"]))
        assert (await ask(site, binding, AS_ALICE)).status_code == 200


async def test_nothing_is_said_about_rates_that_are_not_limited() -> None:
    async with serving(make()) as site:
        answer = await site.post(call())
        assert not [name for name in answer.headers if "ratelimit" in name]


async def test_a_refusal_does_not_wait_for_the_body() -> None:
    async with guarded(rate_limit="1/60s") as site:
        await ask(site, "jsonrpc", AS_ALICE)
        port = int(site.url.rpartition(":")[2])
        reader, writer = await within(asyncio.open_connection("127.0.0.1", port))
        head = (
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: {AS_ALICE['authorization']}\r\nContent-Length: 100000\r\n\r\n"
        )
        writer.write(head.encode())
        line = await within(reader.readline())
        assert line.startswith(b"HTTP/1.1 429 ")
        writer.close()


async def test_failed_credentials_are_counted_by_the_address_behind_a_proxy() -> None:
    async with guarded(proxies="127.0.0.1", rate_limit_failures="3/60s") as site:
        bad = {"authorization": "Bearer nobody-has-this-token", "x-forwarded-for": ELSEWHERE}
        statuses = [(await ask(site, "jsonrpc", bad)).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        shut_out = await ask(site, "jsonrpc", AS_ALICE | {"x-forwarded-for": ELSEWHERE})
        assert shut_out.status_code == 429 and int(shut_out.headers["retry-after"]) <= 20
        other = await ask(site, "jsonrpc", AS_ALICE | {"x-forwarded-for": "192.0.2.8"})
        assert other.status_code == 200
        # Who shows nothing has not failed.
        for _ in range(5):
            empty = await ask(site, "jsonrpc", {"x-forwarded-for": "192.0.2.9"})
            assert empty.status_code == 401


async def test_a_source_agent_has_a_rate_of_its_own() -> None:
    async with guarded(rate_limit_agent="1/60s") as site:
        named = AS_ALICE | {"x-source-agent": "planner"}
        assert (await ask(site, "jsonrpc", named)).status_code == 200
        assert (await ask(site, "jsonrpc", named)).status_code == 429
        assert (await ask(site, "jsonrpc", AS_ALICE)).status_code == 200
        others = AS_BOB | {"x-source-agent": "planner"}
        assert (await ask(site, "jsonrpc", others)).status_code == 200


@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
async def test_a_quota_of_tasks_leaves_reading_alone(binding: str) -> None:
    async with guarded(quota="1/d") as site:
        sent = await ask(site, binding, AS_ALICE)
        refused = await ask(site, binding, AS_ALICE)
        assert (sent.status_code, refused.status_code) == (200, 429)
        assert int(refused.headers["retry-after"]) > 80_000
        assert (await site.http.get("/tasks", headers=AS_ALICE)).status_code == 200


async def test_streams_of_one_caller_are_limited_and_given_back() -> None:
    async with guarded(max_streams_per_caller=1) as site:
        streaming = call("wait-not", "SendStreamingMessage")
        work = call("work", "SendStreamingMessage")
        async with site.http.stream("POST", "/", json=work, headers=AS_ALICE) as first:
            assert first.status_code == 200
            refused = await site.post(streaming, headers=AS_ALICE)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["data"][0]["reason"] == "RATE_LIMITED"
            assert (await site.post(streaming, headers=AS_BOB)).status_code == 200
        async with asyncio.timeout(WAIT):
            # That its reader left, the server hears in its own time.
            while (await site.post(streaming, headers=AS_ALICE)).status_code != 200:
                pass


async def test_running_tasks_of_one_principal_are_limited() -> None:
    async with guarded(max_tasks_per_caller=2) as site:
        later = call("work")
        later["params"]["configuration"] = {"returnImmediately": True}
        statuses: list[int] = []
        for _ in range(3):
            later["params"]["message"] = message("work")
            statuses.append((await site.post(later, headers=AS_ALICE)).status_code)
        assert statuses == [200, 200, 429]
        assert (await ask(site, "jsonrpc", AS_BOB)).status_code == 200


async def test_naming_a_tenant_gives_no_principal_more_room() -> None:
    async with guarded(max_tasks_per_caller=2) as site:
        statuses: list[int] = []
        for tenant in ("one", "two", "three"):
            later = call("work")
            later["params"] |= {"tenant": tenant, "configuration": {"returnImmediately": True}}
            statuses.append((await site.post(later, headers=AS_ALICE)).status_code)
        assert statuses == [200, 200, 429]


async def test_tasks_that_wait_for_their_caller_make_way() -> None:
    async with guarded(max_tasks_per_caller=1) as site:
        for _ in range(3):
            answer = await site.post(call("wait"), headers=AS_ALICE)
            assert answer.status_code == 200
            state = answer.json()["result"]["task"]["status"]["state"]
            assert state == "TASK_STATE_INPUT_REQUIRED"


def test_to_our_own_client_it_is_an_overload_of_one_caller() -> None:
    assert issubclass(RateLimited, Overloaded)
