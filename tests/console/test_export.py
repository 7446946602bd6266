"""A task as one file: what it says is what the server itself has."""

from dragoman import Agent, Turn
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
