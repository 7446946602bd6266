"""An agent that thinks with a model and calls a function of yours when the model wants to.

    dragoman serve examples/loop.py

Ask it "What is 6 times 7?". The model here is scripted, so no key is needed; put
`OpenAIModel("gpt-5-mini")` of `dragoman.agents.openai_model` in its place, and `OPENAI_API_KEY` in
the environment, and a real one answers. Every call of the model and of the function is a durable
step: kill the server in between and start it again, and it goes on.
"""

from dragoman import AgentLoop, tool
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


model = ScriptedModel(
    ToolCall("1", "multiply", {"a": 6, "b": 7}),
    lambda request: f"It is {request.messages[-1].text}.",
)
agent = AgentLoop(model, tools=[multiply], system="You are good at sums.").agent(
    "Sums", "Does sums and says how."
)
