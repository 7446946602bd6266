"""A crew of CrewAI: `dragoman serve examples/adapters/crew.py`."""

from typing import Any

from crewai import Agent, BaseLLM, Crew, Task


class Parrot(BaseLLM):
    """Needs no key: it answers with the task it was given."""

    def call(self, messages: Any, *args: Any, **more: Any) -> str:
        task = messages[-1]["content"].partition("Current Task: ")[2].partition("\n")[0]
        return f"Thought: I know.\nFinal Answer: {task}"


writer = Agent(role="Writer", goal="Write.", backstory="Knows words.", llm=Parrot(model="parrot"))
task = Task(description="Write about {topic}", expected_output="A sentence.", agent=writer)
crew = Crew(agents=[writer], tasks=[task])
