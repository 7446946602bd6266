"""The how-tos of what is at the edges of a gateway are typed as they stand there.

Before a recipe there is what its page takes for granted: a gateway, and agents that it knows.
"""

import asyncio
import inspect
import re
from pathlib import Path

import pytest
from harness.processes import ROOT
from harness.recipes import GATEWAY, Typed, follow, free_port, recipes, shell
from harness.serving import serving
from harness.waiting import eventually, within
from test_docs import blocks

from dragoman import Client
from tests.gateway.gateway_site import gateway

GATEWAY_RUNS = ("dragoman gateway --store gateway.db &",)
# Two agents on the ports of the pages, and one file as a reader would have it.
SERVED = tuple(
    f"dragoman serve examples/weather.py --store memory: --listen 127.0.0.1:{port} &"
    for port in (9001, 9002)
)
REGISTERED = "dragoman agents register http://127.0.0.1:9001"
TRIED = (
    *GATEWAY_RUNS,
    *SERVED,
    f"{REGISTERED} --repeatable",
    "dragoman agents register http://127.0.0.1:9002 --name weather-2 --paused",
)
BEFORE: dict[tuple[str, str], tuple[str, ...]] = {
    ("join", "join"): (*GATEWAY_RUNS, "cp examples/weather.py my_agent.py"),
    ("chat-clients", "serve"): (),
    ("chat-clients", "up"): (),
    ("typed-calls", "gen"): ("dragoman serve examples/weather.py --store memory: &",),
    ("triggers", "schedule"): (*GATEWAY_RUNS, SERVED[0], REGISTERED),
    ("triggers", "webhook"): (*GATEWAY_RUNS, SERVED[0], f"{REGISTERED} --name helper"),
    ("rollouts", "skills"): (*GATEWAY_RUNS, SERVED[0], REGISTERED),
    ("rollouts", "rollback"): (*TRIED, "dragoman rollouts start weather weather-2"),
    ("rollouts", "canary"): TRIED,
    ("rollouts", "joined"): (*GATEWAY_RUNS, "cp examples/weather.py weather_2.py"),
}
# Through a kill, and on each store: tests/gateway/rollouts/test_page.py.
ELSEWHERE = {("rollouts", "rollout")}
PAGES = sorted({page for page, _ in BEFORE})


def path(page: str) -> Path:
    return ROOT / "docs" / f"{page}.md"


def test_every_command_of_the_pages_is_typed() -> None:
    found = {(page, name) for page in PAGES for name in recipes(path(page))}
    assert found == BEFORE.keys() | ELSEWHERE
    for page in PAGES:
        text = path(page).read_text(encoding="utf-8")
        shown = re.findall(r"^```(?:sh|console|bash|shell)$", text, re.MULTILINE)
        marked = re.findall(r"^<!-- run: [\w-]+ -->\n```sh$", text, re.MULTILINE)
        assert len(shown) == len(marked), page


@pytest.mark.parametrize(
    ("page", "recipe"), BEFORE, ids=[f"{page}-{name}" for page, name in BEFORE]
)
def test_the_commands_of_a_page_do_what_it_says(page: str, recipe: str, tmp_path: Path) -> None:
    ports = {port: free_port() for port in ("8000", "9001", "9002")}
    before = [Typed(command, []) for command in BEFORE[page, recipe]]
    with shell(tmp_path, ports) as opened:
        follow([*before, *recipes(path(page))[recipe]], opened, ports)


async def test_the_program_that_joins_serves_through_the_gateway(tmp_path: Path) -> None:
    (code,) = blocks(path("join"), "python")
    async with gateway(tmp_path, is_ours=True) as site:
        names: dict[str, object] = {"__name__": "document"}
        assert GATEWAY in code and 'key="nxk_..."' in code
        moved = code.replace(GATEWAY, site.url).replace("nxk_...", "")
        exec(compile(moved, "block", "exec"), names)
        main = names["main"]
        assert inspect.iscoroutinefunction(main)
        serving_there = asyncio.create_task(main())
        try:
            await eventually(lambda: len(site.gateway.registry.all()) == 1)
            async with Client(f"{site.url}/a2a/weather") as client:
                assert (await within(client.send("Oslo"))).text == "sunny in Oslo"
        finally:
            serving_there.cancel()
            await asyncio.gather(serving_there, return_exceptions=True)


@pytest.mark.parametrize("text", ["Rain in Oslo", "Rain in Rome"])
async def test_the_check_of_the_page_tells_right_from_wrong(text: str) -> None:
    (code,) = blocks(path("rollouts"), "python")
    names: dict[str, object] = {"__name__": "document"}
    exec(compile(code, "block", "exec"), names)
    agent = names["agent"]
    given = {"asked": {"text": "Oslo"}, "before": None, "after": {"text": text}}
    async with serving(agent) as site, Client(site.url) as client:  # type: ignore[arg-type]  # the page's
        answer = await within(client.send(given))
    assert answer.data is ("Oslo" in text)
