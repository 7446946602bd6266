"""Several agents on one port, an agent in a larger app, and one that uvicorn serves by itself."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import running
from harness.serving import Site, app_of, client, hosting, message, serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dragoman import Agent, App
from dragoman.errors import ConfigError

CARD = "/.well-known/agent-card.json"
V1 = {"A2A-Version": "1.0"}


def make(name: str) -> Agent:
    agent = Agent(name, f"Is {name}.")

    @agent.skill
    async def echo(text: str) -> str:
        return f"{name}: {text}"

    return agent


async def said(site: Site, prefix: str = "") -> str:
    body = {"message": message("hi")}
    response = await site.http.post(f"{prefix}/message:send", json=body)
    assert response.status_code == 200, response.text
    return response.json()["task"]["artifacts"][0]["parts"][0]["text"]


def urls(card: Any) -> list[str]:
    return [interface["url"] for interface in card["supportedInterfaces"]]


# Several


@pytest.fixture(scope="module")
async def two() -> AsyncIterator[Site]:
    async with serving(make("First one"), make("Second")) as site:
        yield site


async def test_each_agent_has_its_path_and_the_first_the_root(two: Site) -> None:
    assert await said(two) == "First one: hi"
    assert await said(two, "/agents/first-one") == "First one: hi"
    assert await said(two, "/agents/second") == "Second: hi"
    for path in ("/agents/second", "/agents/second/", "/agents/second/a2a"):
        result = await two.call("SendMessage", {"message": message("hi")}, path=path)
        assert result["task"]["artifacts"][0]["parts"] == [{"text": "Second: hi"}]


async def test_each_agent_has_its_card_with_addresses_that_work(two: Site) -> None:
    for prefix, name, base in (
        ("", "First one", two.url),
        ("/agents/first-one", "First one", f"{two.url}/agents/first-one"),
        ("/agents/second", "Second", f"{two.url}/agents/second"),
    ):
        card = (await two.http.get(prefix + CARD, headers=V1)).json()
        assert card["name"] == name
        assert urls(card) == [f"{base}/a2a", base, f"{base}/a2a", base]
        old = await two.http.get(f"{prefix}/.well-known/agent.json")
        assert old.json()["url"] == f"{base}/a2a"


async def test_agents_do_not_see_each_others_tasks(two: Site) -> None:
    task = await two.send("mine")
    assert (await two.http.get(f"/agents/second/tasks/{task['id']}")).status_code == 404
    assert (await two.http.get(f"/agents/first-one/tasks/{task['id']}")).status_code == 200
    page = (await two.http.get("/agents/second/tasks")).json()
    assert task["id"] not in [listed["id"] for listed in page["tasks"]]


async def test_an_agent_nobody_serves_is_not_found(two: Site) -> None:
    assert (await two.http.get("/agents/third/tasks")).status_code == 404
    assert (await two.http.get(f"/agents/third{CARD}")).status_code == 404


def test_two_agents_of_one_name_or_none_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name: echo"):
        App(make("Echo"), make("echo!"))
    with pytest.raises(ConfigError, match="at least one"):
        App()


# Mounted


@pytest.mark.parametrize("with_lifespan", [True, False])
async def test_an_agent_lives_inside_a_larger_app(with_lifespan: bool) -> None:
    inner = app_of(make("Inner"))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with inner.running():
            yield

    async def hello(_: Any) -> PlainTextResponse:
        return PlainTextResponse("outer")

    routes = [Route("/hello", hello), Mount("/bots/inner", inner)]
    outer = Starlette(routes=routes, lifespan=lifespan if with_lifespan else None)
    async with hosting(outer) as url, client(url) as http:
        site = Site(url, http)
        assert (await http.get("/hello")).text == "outer"
        assert inner.is_running is with_lifespan
        assert await said(site, "/bots/inner") == "Inner: hi"
        assert inner.is_running
        card = (await http.get(f"/bots/inner{CARD}", headers=V1)).json()
        assert urls(card)[:2] == [f"{url}/bots/inner/a2a", f"{url}/bots/inner"]
        task = await site.call("SendMessage", {"message": message("x")}, path="/bots/inner/a2a")
        listed = await http.get("/bots/inner/tasks")
        assert listed.json()["totalSize"] == 2
        params = {"message": message("hi")}
        events = await site.events("SendStreamingMessage", params, path="/bots/inner/")
        assert events[0].result["task"]["id"] != task["task"]["id"]
    assert inner.is_running is not with_lifespan
    await inner.stop()


async def test_an_agent_itself_can_be_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORE", "memory:")
    outer = Starlette(routes=[Mount("/a", make("A")), Mount("/b", make("B"))])
    async with hosting(outer) as url, client(url) as http:
        site = Site(url, http)
        assert await said(site, "/a") == "A: hi"
        assert await said(site, "/b") == "B: hi"


async def test_websockets_are_turned_away() -> None:
    sent: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    await app_of(make("A"))({"type": "websocket", "path": "/"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


# Served by uvicorn


async def test_an_agent_whose_settings_are_misspelt_serves_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_AUHT", "bearer")
    agent = Agent("Weather", "Tells the weather.")
    with pytest.raises(ConfigError, match="did you mean DRAGOMAN_AUTH"):
        await agent({"type": "http"}, None, None)


def test_uvicorn_serves_an_agent_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(
        "from dragoman import Agent\n"
        "agent = Agent('Weather', 'Tells the weather.')\n"
        "@agent.skill\n"
        "def forecast(city: str) -> str:\n"
        "    return f'Sunny in {city}'\n"
    )
    # uvicorn tells its port only in its log, so the test names a free one.
    serve = (
        "import socket, uvicorn, my_agent\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(f'Ready: http://127.0.0.1:{listener.getsockname()[1]}', flush=True)\n"
        "config = uvicorn.Config('my_agent:agent')\n"
        "uvicorn.Server(config).run(sockets=[listener])\n"
    )
    store = {"DRAGOMAN_STORE": str(tmp_path / "tasks.db"), "PYTHONPATH": str(tmp_path)}
    for expected in (1, 2):
        with running(cwd=tmp_path, env=store, command=("-c", serve)) as child:
            url = child.ready()
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
                answer = http.post("/message:send", json={"message": message("Oslo")}).json()
                assert answer["task"]["artifacts"][0]["parts"] == [{"text": "Sunny in Oslo"}]
                assert http.get("/tasks").json()["totalSize"] == expected
            child.stop()
            assert "Traceback" not in child.log
