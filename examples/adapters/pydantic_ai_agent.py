"""An agent of Pydantic AI: `dragoman serve examples/adapters/pydantic_ai_agent.py`."""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

# A model that needs no key: it calls every tool once and then says this.
agent = Agent(TestModel(custom_output_text="Sunny in Oslo"), name="forecaster")


@agent.tool_plain
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"Sunny in {city}"
