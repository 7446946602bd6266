"""An agent of selectools: `dragoman serve examples/adapters/selectools_agent.py`."""

from selectools import Agent, AgentConfig, tool
from selectools.providers.stubs import LocalProvider


@tool(description="Tells the weather of a city.")
def weather(city: str) -> str:
    return f"Sunny in {city}"


# A provider that needs no key: it repeats what it is told.
agent = Agent(
    tools=[weather],
    provider=LocalProvider(),
    config=AgentConfig(name="forecaster", model="local-model"),
)
