"""A crew with two placeholders whose second task makes an object."""

from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from pydantic import BaseModel


class Plan(BaseModel):
    topic: str
    tone: str


class Planner(BaseLLM):
    def call(self, messages: Any, *args: Any, **more: Any) -> str:
        said = messages[-1]["content"].partition("Current Task: ")[2].partition("\n")[0]
        topic, _, tone = said.removeprefix("Plan ").partition(" in ")
        if topic == "fail":
            raise ConnectionError("password hunter2")
        return f'Thought: I know.\nFinal Answer: {{"topic": "{topic}", "tone": "{tone}"}}'


planner = Agent(role="Planner", goal="Plan.", backstory="Plans.", llm=Planner(model="planner"))
first = Task(description="Plan {topic} in {tone}", expected_output="A plan.", agent=planner)
second = Task(
    description="Plan {topic} in {tone}",
    expected_output="A plan.",
    agent=planner,
    output_pydantic=Plan,
)
crew = Crew(agents=[planner], tasks=[first, second])
