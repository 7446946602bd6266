"""What is kept of a task: itself as one file, and its files."""

import re

import pytest

from dragoman import Agent, Part, Turn
from dragoman.console.pages import task as task_page
from tests.console.sites import console


def teller() -> Agent:
    agent = Agent("Teller", "Tells in pieces, and asks.")

    @agent.skill
    async def tell(text: str, turn: Turn) -> str:
        await turn.say("at it")
        async with turn.artifact(name="story") as story:
            for word in ("once", " upon", " a time"):
                await story.write(word)
        answer = await turn.ask("And then?")
        await turn.say("nearly there")
        return f"{text}: {answer.text}"

    return agent


async def test_the_json_file_of_a_task_has_the_task_as_the_server_folds_it() -> None:
    async with console(teller()) as site:
        asked = await site.send("a story")
        await site.send("they slept", taskId=asked["id"])
        await site.rested(asked["id"])
        kept = (await site.http.get(f"/console/tasks/{asked['id']}/export.json")).json()
        path = f"/api/v1/console/tasks/{asked['id']}"
        state = (await site.http.get(f"{path}/state")).json()
        assert kept["task"] == state["task"]
        assert kept["position"] == state["position"] == kept["events"][-1]["position"]
        assert len(state["task"]["artifacts"][0]["parts"]) == 3, "told in pieces"
        assert len(state["task"]["history"]) > 3


async def test_each_file_of_a_long_task_is_the_one_that_its_link_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of a long task the page knows some events, and so not which part of the whole a file is.
    monkeypatch.setattr(task_page, "LONG", 20)
    monkeypatch.setattr(task_page, "_WINDOW", 8)
    monkeypatch.setattr(task_page, "_LAST_EVENTS", 12)
    agent = Agent("Files", "Makes many files.")

    @agent.skill
    async def make(text: str, turn: Turn) -> None:
        await turn.say(Part(raw=b"said", filename="said.bin"))
        async with turn.artifact(name="files") as made:
            for number in range(40):
                words = Part(text=f"{number}\n")
                file = Part(raw=f"{number}".encode(), filename=f"{number}.bin")
                await made.write([words, file])

    async with console(agent) as site:
        task = await site.send("go")
        page = (await site.http.get(f"/console/tasks/{task['id']}")).text
        links = re.findall(r'href="(/console/tasks/[^"]+/files/[^"]+)">([a-z0-9]+)\.bin<', page)
        assert {"said", "0", "39"} <= {name for _, name in links}
        assert "20" not in {name for _, name in links}, "the page has all of it"
        for to, name in links:
            assert (await site.http.get(to)).text == name
        for wrong in ("e0.0", "e1.0", "e9999.0", "e5.99", "e.0"):
            gone = await site.http.get(f"/console/tasks/{task['id']}/files/{wrong}")
            assert gone.status_code == 404, wrong
