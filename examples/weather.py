"""The smallest agent: one skill that says what it does while it works.

    dragoman serve examples/weather.py
    dragoman send -a localhost:8000 Oslo

The function becomes the skill: its name, its types and what it says.
"""

from dragoman import Agent, Turn

agent = Agent("Weather", "Tells tomorrow's weather.")


@agent.skill(tags=["weather"], examples=["Weather in Oslo"])
async def forecast(city: str, turn: Turn) -> str:
    await turn.say(f"Looking up {city}")
    return f"Sunny in {city}"
