"""The pictures of the docs. `DRAGOMAN_PICTURES=docs/pictures` has this test write them; without it
they are made, measured and thrown away."""

import asyncio
import os
from pathlib import Path

from harness.serving import Site
from playwright.async_api import Browser, expect

from dragoman import Agent, TaskFailed, Turn
from tests.console.sites import console, looking

MOST_BYTES = 150_000
_PLAN = """# {text}

- **Friday**: arrive at 18:40, walk to the river
- **Saturday**: the tile museum, then tram 28 to the castle
- **Sunday**: the sea, and the late flight home

| leg | from | hours |
|---|---|---|
| out | Zürich | 2.9 |
| back | Lisbon | 2.7 |

Prices are [here](https://example.org/fares)."""


def desk(gate: asyncio.Event) -> Agent:
    agent = Agent("Travel desk", "Plans trips, books them, and asks when it is unsure.")

    @agent.skill(tags=["trips"], examples=["three days in Lisbon"], default=True)
    async def plan(text: str, turn: Turn) -> str:
        """Plans a trip, day by day."""
        await turn.say("Three flights fit. Looking for a hotel near the river.")
        await turn.step("flights", _pause)
        await turn.step("hotels", _pause)
        return _PLAN.format(text=text)

    @agent.skill(tags=["booking"])
    async def book(text: str, turn: Turn) -> str:
        """Books it, once you said yes."""
        answer = await turn.choose(f"Book *{text}* for 214.00?", ["yes", "no", "ask me tomorrow"])
        return f"Booked: {answer}"

    @agent.skill(tags=["visa"])
    async def visa(text: str) -> None:
        """Asks the consulate."""
        raise TaskFailed("The consulate does not answer before Monday.")

    @agent.skill(tags=["watching"])
    async def watch(text: str, turn: Turn) -> None:
        """Watches a fare until it falls."""
        await turn.say("214.00 at the moment")
        await gate.wait()

    return agent


async def _pause() -> None:
    await asyncio.sleep(0.15)


async def filled(site: Site) -> dict[str, str]:
    """Send what the pictures show; return the ids by skill."""
    words = {
        "visa": "Does my colleague need a visa for Brazil?",
        "book": "Zürich to Lisbon, Friday 16:05",
        "plan": "Three days in Lisbon",
        "watch": "Tell me when Lisbon falls below 180",
    }
    made: dict[str, str] = {}
    for skill, text in words.items():
        wait = {"configuration": {"returnImmediately": True}} if skill == "watch" else {}
        made[skill] = (await site.send(text, metadata={"skillId": skill}, **wait))["id"]
    return made


async def test_the_pictures_of_the_docs_are_made_and_small(
    browser: Browser, tmp_path: Path
) -> None:
    wanted = os.environ.get("DRAGOMAN_PICTURES", "")
    folder = Path(wanted or tmp_path)
    folder.mkdir(exist_ok=True)
    gate = asyncio.Event()
    async with console(desk(gate)) as site:
        made = await filled(site)
        scenes = {
            "tasks": ("light", "/tasks"),
            "task": ("light", f"/tasks/{made['plan']}"),
            "timeline": ("dark", f"/tasks/{made['plan']}/timeline"),
            "question": ("light", f"/tasks/{made['book']}"),
            "agent": ("light", "/agents/travel-desk"),
            "scrubber": ("dark", f"/tasks/{made['plan']}/scrubber"),
        }
        for name, (scheme, path) in scenes.items():
            async with looking(browser, site.url, width=1200, scheme=scheme) as page:
                await page.set_viewport_size({"width": 1200, "height": 720})
                await page.goto(f"/console{path}")
                await expect(page.locator("h1")).to_be_visible()
                file = folder / f"{name}.png"
                await page.screenshot(path=file, animations="disabled")
                assert file.stat().st_size <= MOST_BYTES, name
        gate.set()
