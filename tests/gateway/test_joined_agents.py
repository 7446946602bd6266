"""Agents that dial out: they serve through a gateway, and are agents as any other to it."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.certificates import LOOPBACK, SERVER, Authority
from harness.clock import MovableLoop
from harness.forward_proxies import ConnectProxy, tls_in_front
from harness.serving import hosting
from harness.waiting import WAIT, eventually, within

from dragoman import Agent, Client, TaskState
from dragoman.config import load_settings
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.egress.targets import Anywhere
from dragoman.errors import InvalidParams, PermissionDenied, StoreUnavailable, Unauthenticated
from dragoman.gateway import join_endpoint
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.join_endpoint import PATH
from dragoman.gateway.registry import health
from dragoman.model.identity import Caller, Principal
from dragoman.server.process import joining
from dragoman.server.process.join_app import join_agent
from dragoman.tunnels.frames import Hello, Kind, Welcome, encode_text
from dragoman.tunnels.tunnel import Tunnel
from dragoman.tunnels.websocket import HandshakeFailed, WebSocketWire, client_wire, server_wire
from tests.gateway.gateway_site import GatewaySite, gateway, workshop
from tests.gateway.guarded_site import ALICE, BOB, ask, guarded
from tests.tunnels.pair import MemoryWire, Recorder

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def joined(
    site: GatewaySite, agent: Agent | None = None, *, store: str = "memory:", **more: Any
) -> AsyncGenerator[str]:
    """An agent of this process behind a gateway, by a connection of its own; its address there."""
    settings = load_settings({}, store=store)
    async with join_agent(agent or workshop(), site.url, settings=settings, **more) as url:
        yield url


def cut(site: GatewaySite) -> int:
    """Cut every tunnel of a gateway; return how many there were."""
    tunnels = [tunnel for some in site.gateway.joined.tunnels.values() for tunnel in some]
    for tunnel in tunnels:
        tunnel.wire.abort()  # type: ignore[attr-defined]  # it is a WebSocket's
    return len(tunnels)


async def test_an_agent_without_a_port_is_registered_and_answers(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site, joined(site) as url:
        assert url == f"{site.url}/a2a/workshop"
        (agent,) = site.gateway.registry.all()
        assert agent.status == "online" and agent.card is not None
        async with Client(url) as client:
            assert (await client.send("hello")).text == "echo: hello"
            chunks = [
                text async for text in client.stream_text({"to": 30}, metadata=skill("count"))
            ]
            assert "".join(chunks) == "".join(f"{n} " for n in range(1, 31))


def skill(name: str) -> dict[str, Any]:
    return {"skillId": name}


async def test_it_asks_and_is_answered_and_cancelled(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site, joined(site) as url, Client(url) as client:
        asked = await client.send({"what": "tea"}, metadata=skill("order"))
        assert asked.state is TaskState.INPUT_REQUIRED
        answered = await client.send("Rome", task_id=asked.task_id)
        assert answered.text == "tea to Rome"
        waiting = await client.send("x", metadata=skill("wait"), wait=False)
        await eventually(lambda: has_said(client, waiting.task_id, "waiting"))
        assert (await client.cancel(waiting.task_id)).status.state is TaskState.CANCELED


async def has_said(client: Client, task_id: str, text: str) -> bool:
    return text in repr(await client.get(task_id))


async def test_megabytes_pass_both_ways(tmp_path: Path) -> None:
    text = "0123456789abcdef" * 80_000
    async with gateway(tmp_path, is_ours=True) as site, joined(site) as url, Client(url) as client:
        assert (await client.send(text)).text == f"echo: {text}"


async def test_a_cut_costs_no_event(tmp_path: Path) -> None:
    agent, steps = Agent("Counter", "Counts."), asyncio.Semaphore(0)

    @agent.skill(default=True)
    async def count(text: str) -> AsyncIterator[str]:
        """Counts as it is told."""
        for number in range(6):
            await steps.acquire()
            yield f"{number} "

    async with gateway(tmp_path, is_ours=True) as site, joined(site, agent) as url:
        seen: list[str] = []

        async def read() -> None:
            async with Client(url) as client:
                async for text in client.stream_text("go"):
                    seen.append(text)

        reading = asyncio.create_task(read())
        for number in range(6):
            steps.release()
            await eventually(lambda n=number: f"{n} " in "".join(seen))
            assert cut(site) == 1
            await eventually(lambda: len(site.gateway.joined) == 1)
        await within(reading)
        assert "".join(seen) == "0 1 2 3 4 5 "


async def test_processes_of_one_name_are_one_agent_and_replace_each_other(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site, joined(site) as url, Client(url) as client:
        async with joined(site) as other:
            assert other == url
            (agent,) = site.gateway.registry.all()
            assert len([agent.url, *agent.replicas]) == 2
            texts = [(await client.send(f"{n}")).text for n in range(4)]
            assert texts == [f"echo: {n}" for n in range(4)]
        # One of them has left; the other does the work.
        texts = [(await client.send(f"again {n}")).text for n in range(4)]
        assert texts == [f"echo: again {n}" for n in range(4)]


@pytest.mark.parametrize("is_one_store", [False, True], ids=["own stores", "one store"])
async def test_processes_of_one_name_share_the_load(is_one_store: bool, tmp_path: Path) -> None:
    begun: list[int] = []
    may_end = asyncio.Event()

    def process(number: int) -> Agent:
        agent = Agent("Clerk", "Works.")

        @agent.skill
        async def work(text: str) -> str:
            begun.append(number)
            await may_end.wait()
            return text

        return agent

    store = str(tmp_path / "clerk.db") if is_one_store else "memory:"
    settings = load_settings({}, store=store)
    async with (
        gateway(tmp_path, is_ours=True) as site,
        join_agent(process(0), site.url, settings=settings) as url,
        join_agent(process(1), site.url, settings=settings),
        Client(url) as client,
    ):
        sends = [asyncio.create_task(client.send(f"{n}")) for n in range(8)]
        await eventually(lambda: len(begun) == 8)
        may_end.set()
        assert {answer.text for answer in await asyncio.gather(*sends)} == set("01234567")
    assert min(begun.count(0), begun.count(1)) >= 2, begun


async def test_the_name_it_joins_under_is_its_name_at_the_gateway(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site, joined(site, name="night-shift") as url:
        assert url == f"{site.url}/a2a/night-shift"
        (agent,) = site.gateway.registry.all()
        assert (agent.name, agent.title) == ("night-shift", workshop().title)
        async with Client(url) as client:
            assert (await client.send("hello")).text == "echo: hello"


async def test_an_agent_is_the_same_when_it_comes_back(tmp_path: Path) -> None:
    store = str(tmp_path / "agent.db")
    async with gateway(tmp_path, is_ours=True) as site:
        async with joined(site, store=store):
            (before,) = site.gateway.registry.all()
        async with joined(site, store=store) as url, Client(url) as client:
            (after,) = site.gateway.registry.all()
            assert (after.id, after.url) == (before.id, before.url)
            assert (await client.send("hello")).text == "echo: hello"


async def test_an_agent_that_comes_back_with_another_card_has_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short, so that both readings are seen: the one at once, and the one after it.
    monkeypatch.setattr(health, "LOOK_EVERY", 100)

    def version(number: int) -> Agent:
        agent = Agent("Clerk", f"Is the version {number}.")

        @agent.skill(id=f"work-{number}")
        async def work(text: str) -> str:
            return text

        return agent

    settings = load_settings({}, store=str(tmp_path / "clerk.db"))
    async with gateway(tmp_path, is_ours=True) as site:

        def skills() -> list[str]:
            (agent,) = site.gateway.registry.all()
            return [] if agent.card is None else [skill["id"] for skill in agent.card["skills"]]

        for number in range(4):
            async with join_agent(version(number), site.url, settings=settings) as url:
                await eventually(lambda number=number: skills() == [f"work-{number}"])
                async with Client(url) as client:
                    assert [one.id for one in (await client.look()).skills] == skills()
        await eventually(lambda: not site.gateway.joined._reading_cards)  # pyright: ignore[reportPrivateUsage]  # nothing is left
        # The first reading does not wait for the time of the second.
        looked: list[Any] = []
        monkeypatch.setattr(health, "LOOK_EVERY", 10**9)
        monkeypatch.setattr(site.gateway.registry.health, "look", looked.append)
        async with join_agent(version(0), site.url, settings=settings):
            await eventually(lambda: looked)


async def test_an_agent_finds_a_gateway_again_that_was_away(tmp_path: Path) -> None:
    settings = load_settings({}, store=str(tmp_path / "gateway.db"))
    app = gateway_app(settings=settings, is_local=True)
    async with hosting(app, is_ours=True) as url:
        site, port = GatewaySite(url, None, app), int(url.rpartition(":")[2])  # type: ignore[arg-type]  # no client is used
        joining = joined(site)
        address = await joining.__aenter__()
    try:
        again = gateway_app(settings=settings, is_local=True)
        async with hosting(again, port=port, is_ours=True), Client(address) as client:
            await eventually(lambda: len(gateway_of(again).joined) == 1)
            assert (await client.send("hello")).text == "echo: hello"
    finally:
        await joining.__aexit__(None, None, None)


# Who may join


async def test_a_gateway_that_authenticates_says_what_is_missing(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_ours=True) as site:
        with pytest.raises(Unauthenticated, match="wants a credential: set A2ACLI_API_KEY"):
            async with joined(site):
                pass
        # That of another gateway, say.
        with pytest.raises(Unauthenticated, match="does not know this credential"):
            async with joined(site, key="nxk_another"):
                pass
        assert not site.gateway.registry.all()


async def test_a_key_of_an_agent_joins_as_that_agent_alone(tmp_path: Path) -> None:
    store = str(tmp_path / "agent.db")
    async with guarded(tmp_path, is_ours=True) as site:
        async with joined(site, store=store, token=ALICE):
            (agent,) = site.gateway.registry.all()
        body = {"name": "laptop", "scopes": ["agents:heartbeat"]}
        made = await ask(site, "POST", f"/api/v1/agents/{agent.id}/api-keys", ALICE, body)
        assert made.status_code == 201, made.text
        key = made.json()["data"]["key"]
        async with joined(site, store=store, key=key):
            assert len(site.gateway.joined) == 1
        with pytest.raises(PermissionDenied, match="agents:write"):
            async with joined(site, store=store, key=key, name="another"):
                pass
        # Ended, it opens nothing, and what it had opened is closed.
        async with joined(site, store=store, key=key):
            id = made.json()["data"]["id"]
            await ask(site, "DELETE", f"/api/v1/agents/{agent.id}/api-keys/{id}", ALICE)
            await eventually(lambda: len(site.gateway.joined) == 0)


async def test_nobody_takes_the_place_of_an_agent_of_another_owner(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_ours=True) as site, joined(site, token=ALICE) as hers:
        (agent,) = site.gateway.registry.all()
        instance = agent.url.partition("://")[2].partition(".")[0]
        bob = Caller(owner="token:bob")
        host = site.gateway.joined.host_of(Hello("workshop", instance), bob)
        assert host not in agent.url
        async with joined(site, token=BOB) as his:
            assert his != hers
            assert {one.owner.text for one in site.gateway.registry.all()} == {
                "token:alice",
                "token:bob",
            }


@pytest.mark.parametrize("field", ["endpoint", "replicas", "origins"])
async def test_no_agent_is_registered_at_the_tunnel_of_another(tmp_path: Path, field: str) -> None:
    async with guarded(tmp_path, is_ours=True) as site, joined(site, token=ALICE):
        (agent,) = site.gateway.registry.all()
        body: dict[str, Any] = {"endpoint": "http://127.0.0.1:9/", "name": "trap", "offline": True}
        body[field] = agent.url if field == "endpoint" else [agent.url]
        refused = await ask(site, "POST", "/api/v1/agents", BOB, body)
        assert refused.status_code == 400, refused.text
        assert "joins by itself" in refused.text
        assert len(site.gateway.registry.all()) == 1


async def test_no_redirect_leads_into_a_tunnel(tmp_path: Path) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        location = (b"location", b"http://a.b.c.joined.invalid/")
        await send({"type": "http.response.start", "status": 302, "headers": [location]})
        await send({"type": "http.response.body", "body": b""})

    async with gateway(tmp_path, is_ours=True) as site, hosting(answer, lifespan="off") as url:
        client = Egress(allow_private=True, tunnels=site.gateway.joined)
        async with client:
            with pytest.raises(EgressRefused) as refused:
                await client.get(url, redirects=1)
        assert "dialled out" in refused.value.reason


async def test_a_client_without_tunnels_goes_to_none() -> None:
    async with Egress(allow_private=True) as client:
        with pytest.raises(EgressFailed) as failed:
            await client.get("http://a.b.c.joined.invalid/", timeout=WAIT)
        assert "NotResolved" in failed.value.reason


@pytest.mark.parametrize(
    "hello",
    [
        Hello("Workshop", "0123456789abcdef"),
        Hello("../etc", "0123456789abcdef"),
        Hello("a.b", "0123456789abcdef"),
        Hello("", "0123456789abcdef"),
        Hello("x" * 64, "0123456789abcdef"),
        Hello("workshop", ""),
        Hello("workshop", "evil.example"),
        Hello("workshop", "0123456789abcdef", version=2),
    ],
)
async def test_a_name_that_is_none_is_refused(tmp_path: Path, hello: Hello) -> None:
    async with gateway(tmp_path, is_ours=True) as site:
        tunnel = Tunnel(MemoryWire(), lambda _: None)
        caller = Caller(owner=Principal.read("").owner)
        with pytest.raises(InvalidParams):
            await site.gateway.joined.join(hello, caller, tunnel)
        assert not site.gateway.registry.all() and not len(site.gateway.joined)


async def test_nothing_is_left_of_names_that_were_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site:
        agents = site.gateway.joined
        stranger = Caller(owner="x", agent="a", key_scopes=frozenset({"agents:heartbeat"}))
        for number in range(5):
            with pytest.raises(PermissionDenied):
                hello = Hello(f"name-{number}", "0123456789abcdef")
                await agents.join(hello, stranger, Tunnel(MemoryWire(), lambda _: None))
        assert not agents.tunnels
        assert not agents._registering  # pyright: ignore[reportPrivateUsage]  # what could grow


async def test_a_plain_request_is_told_to_upgrade(tmp_path: Path) -> None:
    async with gateway(tmp_path, is_ours=True) as site:
        plain = await site.http.get(PATH)
        assert plain.status_code == 426 and plain.headers["upgrade"] == "websocket"
        assert (await site.http.post(PATH)).status_code == 405


# Limits


@asynccontextmanager
async def raw_tunnel(site: GatewaySite, token: str = "") -> AsyncGenerator[WebSocketWire]:
    """A WebSocket to where agents join, of which nothing is said yet."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    wire = client_wire(f"ws{site.url.removeprefix('http')}{PATH}", headers)
    async with Egress(policy=Anywhere()) as http:
        await http.connect(f"{site.url}{PATH}", lambda: wire)
        try:
            await within(wire.opened())
            yield wire
        finally:
            wire.abort()


async def test_an_owner_has_so_many_tunnels_and_others_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_endpoint, "MOST_TUNNELS", 2)

    async def is_let_in() -> bool:
        try:
            async with raw_tunnel(site, ALICE):
                return True
        except HandshakeFailed as error:
            assert error.status == 429, error
            return False

    async with guarded(tmp_path, is_ours=True) as site, raw_tunnel(site, ALICE):
        async with raw_tunnel(site, ALICE):
            assert not await is_let_in()
            async with raw_tunnel(site, BOB):
                pass
        # One has ended, and makes room.
        await eventually(is_let_in)


def test_an_agent_that_does_not_say_who_it_is_is_closed_with_the_reason(tmp_path: Path) -> None:
    loop = MovableLoop()

    async def test() -> None:
        async with gateway(tmp_path, is_ours=True) as site, raw_tunnel(site) as wire:
            gone = asyncio.Event()
            wire.on_lost = lambda _: gone.set()
            await loop.skip(join_endpoint.HELLO_WITHIN - 1)
            assert not gone.is_set()
            await loop.skip(1)
            await within(gone.wait())
            assert wire.refusal == "there was no HELLO in time"
            assert not site.gateway.registry.all()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test())


async def test_an_agent_that_cannot_be_recorded_is_closed_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    async with gateway(tmp_path, is_ours=True) as site, raw_tunnel(site) as wire:
        monkeypatch.setattr(site.gateway.registry, "register", away)
        gone = asyncio.Event()
        wire.on_lost = lambda _: gone.set()
        wire.send(encode_text(Kind.HELLO, Hello("workshop", "0123456789abcdef")))
        await within(gone.wait())
        assert not wire.refusal and not len(site.gateway.joined)


async def test_an_agent_whose_welcome_fails_is_told_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    async with gateway(tmp_path, is_ours=True) as site, raw_tunnel(site) as wire:
        monkeypatch.setattr(site.gateway.registry, "register", mistaken)
        gone = asyncio.Event()
        wire.on_lost = lambda _: gone.set()
        wire.send(encode_text(Kind.HELLO, Hello("workshop", "0123456789abcdef")))
        await within(gone.wait())
        assert wire.failure == "Internal error; the gateway's log has the cause"
        assert not wire.refusal and not len(site.gateway.joined)
        assert "a mistake of ours" in caplog.text and "incident " in caplog.text


async def test_an_agent_whose_welcome_failed_tries_again_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 0

    async with gateway(tmp_path, is_ours=True) as site:
        agents, store = site.gateway.joined, site.gateway.store
        join, workers = agents.join, store.workers
        has_joined = False

        async def noted(*args: Any) -> Any:
            nonlocal has_joined
            agent = await join(*args)
            has_joined = True
            return agent

        async def mistaken() -> Any:
            nonlocal failures, has_joined
            # Only where the agent is registered already: when it is to be welcomed.
            if has_joined and failures < 3:
                failures, has_joined = failures + 1, False
                raise KeyError("a mistake of ours")
            return await workers()

        monkeypatch.setattr(agents, "join", noted)
        monkeypatch.setattr(store, "workers", mistaken)

        async def open_tunnels() -> bool:
            return [len(some) for some in agents.tunnels.values()] == [1]

        async with joined(site) as url, Client(url) as client:
            assert failures == 3 and caplog.text.count("failed: Internal error") == 1
            # No name leads into a connection that is gone.
            await eventually(open_tunnels)
            assert (await within(client.send("hello"))).text == "echo: hello"


class OpeningGateway(asyncio.Protocol):
    """Takes the request of an agent for a WebSocket; what it says then is told by `received`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._head = b""
        self._wire: Any = None

    def data_received(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.data_received(data)
            return
        self._head += data
        if not self._head.endswith(b"\r\n\r\n"):
            return
        lines = (line.partition(": ") for line in self._head.decode().split("\r\n"))
        headers = {name: value for name, _, value in lines if name.startswith("Sec-WebSocket-")}
        self._wire, head = server_wire("/", headers)
        self._transport.write(head)
        self._wire.connection_made(self._transport)
        self._wire.receiver = self

    def received(self, message: bytes) -> None:
        raise NotImplementedError

    def set_full(self, is_full: bool) -> None: ...

    def lost(self) -> None: ...


class EndlessGateway(OpeningGateway):
    """Says on each connection that it is another process, and that there is one more."""

    count = 0

    def received(self, message: bytes) -> None:
        EndlessGateway.count += 1
        number = EndlessGateway.count
        told = Welcome("workshop", str(number), [str(number + 1)])
        self._wire.send(encode_text(Kind.WELCOME, told))


async def test_a_gateway_that_has_ever_more_processes_is_given_so_many_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_MOST_TUNNELS", 5)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(EndlessGateway, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = load_settings({}, store="memory:")
    async with server, join_agent(workshop(), f"http://127.0.0.1:{port}", settings=settings):
        await asyncio.sleep(0.3)
        assert EndlessGateway.count == 5


async def test_a_process_of_the_name_takes_over_at_once_from_one_that_is_gone(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, is_ours=True) as site:
        agents = site.gateway.joined
        host = "0123456789abcdef.name.owner.joined.invalid"
        first, second = Tunnel(MemoryWire(), _ignored), Tunnel(MemoryWire(), _ignored)
        agents.tunnels[host] = [first, second]
        first.lost()
        # Also before it is known here that it left.
        assert await agents.connect(host, Recorder(), 0)
        agents.leave(host, first)
        assert await agents.connect(host, Recorder(), 0) and len(second) == 2
        agents.leave(host, second)
        assert not await agents.connect(host, Recorder(), 0)


def _ignored(frame: object) -> None:
    """Nothing is said."""


# By a proxy


async def test_an_agent_joins_a_gateway_with_tls_by_a_proxy_of_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    files = authority.issue(LOOPBACK, uses=[SERVER]).save_files(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.save(tmp_path, "ca")))
    async with (
        gateway(tmp_path, is_ours=True) as site,
        tls_in_front(context, site.url) as secured,
        ConnectProxy("Basic YW5uOmh1c2g=") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://ann:hush@"))
        there = GatewaySite(secured, site.http, site.app)
        async with joined(there), Client(f"{site.url}/a2a/workshop") as client:
            assert (await within(client.send("hello"))).text == "echo: hello"
        assert {*proxy.connects} == {secured.removeprefix("https://")}


async def test_an_agent_joins_without_tls_by_a_proxy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path, is_ours=True) as site, ConnectProxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with joined(site) as url:
            assert proxy.connects
            monkeypatch.delenv("http_proxy")
            async with Client(url) as client:
                assert (await within(client.send("hello"))).text == "echo: hello"
