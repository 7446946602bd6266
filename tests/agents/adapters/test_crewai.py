"""Crews, on objects with the interface of CrewAI 1.15: what a run is given and what is left of it.
The package itself is in `test_real_frameworks`."""

from types import SimpleNamespace
from typing import Any

from harness.serving import serving

from dragoman.agents.adapters.detect import adapt


class Crew:
    """As much of a crew as is used; the copy remembers, so that nothing else has to."""

    name = "crew"
    agents = ()
    tasks = ()

    def __init__(self, *wanted: str) -> None:
        self.wanted = wanted
        self.runs: list[Any] = []

    def fetch_inputs(self) -> set[str]:
        return set(self.wanted)

    def copy(self) -> "Crew":
        return Crew(*self.wanted)

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        self.runs.append(inputs)
        if inputs.get("topic") == "fail":
            raise ConnectionError("password hunter2")
        if inputs.get("topic") == "object":
            return SimpleNamespace(raw="{}", pydantic=None, json_dict={"runs": len(self.runs)})
        return SimpleNamespace(raw=f"{self.runs}", pydantic=None, json_dict=None)


async def test_a_text_fills_the_only_placeholder_of_a_copy() -> None:
    crew = Crew("topic")
    agent = adapt(crew, "writers")
    assert agent.title == "Writers"
    async with serving(agent) as site:
        for _ in range(2):
            task = await site.send("bees")
            assert task["artifacts"][0]["parts"] == [{"text": "[{'topic': 'bees'}]"}]
        task = await site.send("object")
        assert task["artifacts"][0]["parts"] == [{"data": {"runs": 1.0}}]
        task = await site.send("fail")
        assert "Agent execution failed (ConnectionError)" in str(task["status"])
        assert "hunter2" not in str(task)
    assert crew.runs == []


async def test_several_placeholders_need_an_object() -> None:
    async with serving(adapt(Crew("topic", "tone"), "writers")) as site:
        task = await site.send("bees")
        assert task["status"]["state"] == "TASK_STATE_REJECTED"
        assert "The message needs a data part with: tone, topic" in str(task["status"])
        data = {"topic": "bees", "tone": "dry"}
        task = await site.send(None, parts=[{"data": data}])
        assert task["artifacts"][0]["parts"] == [{"text": str([data])}]


async def test_a_crew_without_placeholders_gets_the_message() -> None:
    async with serving(adapt(Crew(), "writers")) as site:
        task = await site.send("hi")
        assert task["artifacts"][0]["parts"] == [{"text": "[{'message': 'hi'}]"}]


async def test_a_single_agent_of_a_crew_answers_as_its_role() -> None:
    class Member:
        role, goal, backstory = "Writer", "Write.", "A secret."

        def copy(self) -> "Member":
            return Member()

        def kickoff(self, text: str) -> Any:
            return SimpleNamespace(raw=text.upper(), pydantic=None)

    async with serving(adapt(Member(), "x")) as site:
        assert "HI" in str((await site.send("hi"))["artifacts"])
        card = (await site.http.get("/.well-known/agent-card.json")).json()
    assert card["name"] == "Writer"
    assert "secret" not in str(card)
