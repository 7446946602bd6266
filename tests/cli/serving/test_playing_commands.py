"""`mock`, `record` and `replay` as a user types them, and the fixture for a user's own tests."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import run, running
from harness.waiting import within

from dragoman import Agent
from dragoman.cli.main import main
from dragoman.client.client import Client
from dragoman.testing.agents import Script
from dragoman.testing.scripted.serve import hosted

pytest_plugins = ["pytester"]


def typed(capfd: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it wrote."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capfd.readouterr()


def said(url: str, *texts: str, **options: Any) -> list[str]:
    async def talk() -> list[str]:
        async with Client(url, **options) as agent:
            return [(await within(agent.send(text))).text for text in texts]

    return asyncio.run(talk())


def test_a_script_is_recorded_replayed_and_held_against_its_agent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "weather.yaml"
    script.write_text(
        "card: {name: Weather}\n"
        "rules:\n"
        "- when: {contains: rome}\n"
        "  steps: [{say: Looking}, {artifact: answer, text: Sunny}]\n"
    )
    cassette = tmp_path / "c.jsonl"
    with running("mock", script, "--transport", "rest", cwd=tmp_path) as agent:
        url = agent.ready()
        with running("record", url, "--save", cassette, cwd=tmp_path) as proxy:
            assert said(proxy.ready(), "Rome?", "hello") == ["Sunny", "hello"]
            assert proxy.stop() == 0
            assert "2 exchanges" in proxy.log
        code, _, err = typed(capfd, "record", url, "--save", cassette)
        assert (code, "exists" in err) == (2, True)
        code, out, _ = typed(capfd, "replay", cassette, "--against", url, "--strict")
        assert (code, "Differences: 0" in out) == (0, True), out
        assert agent.stop() == 0
    with running("replay", cassette, "--speed", "0", cwd=tmp_path) as player:
        url = player.ready()
        assert said(url, "Rome?") == ["Sunny"]
        assert player.stop() == 0
    with running("demo-server", cwd=tmp_path) as other:
        arguments = ("replay", cassette, "--against", other.ready(), "-o", "json", "--strict")
        code, out, _ = typed(capfd, *arguments)
        assert code == 1
        document = json.loads(out)
        assert document["exchanges"] == 2
        assert "Sunny" in json.dumps([one["recorded"] for one in document["differences"]])


def test_cards_show_the_address_that_callers_know(tmp_path: Path) -> None:
    public = ("--public-url", "https://agent.example/")
    (tmp_path / "script.json").write_text("{}")

    def addresses(url: str) -> set[str]:
        path = f"{url}/.well-known/agent-card.json"
        card = httpx.get(path, headers={"A2A-Version": "1.0"}, trust_env=False).json()
        assert card["supportedInterfaces"]
        return {one["url"].split(".example", 1)[0] for one in card["supportedInterfaces"]}

    with running("demo-server", *public, cwd=tmp_path) as agent:
        assert addresses(agent.ready()) == {"https://agent"}
        assert agent.stop() == 0
    env = {"DRAGOMAN_PUBLIC_URL": "https://mock.example"}
    with running("mock", "script.json", cwd=tmp_path, env=env) as agent:
        url = agent.ready()
        assert addresses(url) == {"https://mock"}
        with running("record", url, "--save", "c.jsonl", *public, cwd=tmp_path) as proxy:
            assert addresses(proxy.ready()) == {"https://agent"}
            assert proxy.stop() == 0
    with running("replay", "c.jsonl", *public, cwd=tmp_path) as player:
        assert addresses(player.ready()) == {"https://agent"}
        assert player.stop() == 0


def test_a_card_for_known_callers_is_read_with_the_credential(tmp_path: Path) -> None:
    interface = {"url": "http://x/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = {"name": "Shy", "version": "1", "supportedInterfaces": [interface]}

    async def shy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        is_known = (b"authorization", b"Bearer demo-secret") in scope["headers"]
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        status = 200 if is_known else 401
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(card).encode()})

    with hosted(shy) as url:
        strange = run("record", url, "--save", "a.jsonl", cwd=tmp_path)
        assert strange.returncode == 4, strange.stderr
        known = {"A2ACLI_BEARER": "demo-secret"}
        with running("record", url, "--save", "b.jsonl", cwd=tmp_path, env=known) as proxy:
            proxy.ready()
            assert proxy.stop() == 0
        assert "demo-secret" not in (tmp_path / "b.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("mock", "nothing.json"), "No such file"),
        (("demo-server", "--listen", "127.0.0.1:x"), "is not an address"),
        (("demo-server", "--listen", "127.0.0.1:0,127.0.0.1:0"), "one address"),
        (("demo-server", "--listen", "0.0.0.0:0"), "--public"),
        (("mock", "script.txt"), "ends with"),
        (("record", "127.0.0.1:1"), "--save"),
        (("replay", "nothing.jsonl"), "No such file"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], wanted: str
) -> None:
    code, _, err = typed(capfd, *arguments)
    assert (code, wanted in err) == (2, True), err


FIXTURE = """
    import pytest
    from dragoman import Agent

    pytest_plugins = ["dragoman.testing.plugin"]

    agent = Agent("Greeter", "Greets.")

    @agent.skill
    async def greet(name: str) -> str:
        return f"Hello {name}"

    def test_an_agent_of_ours(serve_agent):
        served = serve_agent(agent)
        assert served.sync.send("you").text == "Hello you"

    def test_a_script(serve_agent):
        served = serve_agent({"rules": [{"steps": [{"message": "scripted"}]}]})
        assert served.sync.send("x").text == "scripted"
        assert len(served.agent.calls("SendMessage")) == 1

    @pytest.mark.anyio
    async def test_in_a_loop(serve_agent):
        async with serve_agent({"card": {"versions": ["0.3"]}}).client() as client:
            assert (await client.send("hi")).text == "hi"
            assert client.version == "0.3"
"""


def test_the_fixture_serves_agents_and_scripts_to_plain_and_async_tests(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(FIXTURE)
    done = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=3)


def test_what_users_import_is_there() -> None:
    from dragoman.testing import agents

    assert all(hasattr(agents, name) for name in agents.__all__)
    assert agents.app_of(Agent("A", "a")) is not None
    assert agents.app_of(Script()) is not None
