"""A chat model behind an OpenAI-compatible address as an agent: `http://127.0.0.1:11434/v1#llama3`.

The name of the model follows the `#`. A message with a contextId continues the conversation of the
caller's earlier tasks in it. OpenAI's key is sent to OpenAI only; any other server gets
`CHAT_API_KEY`, if set.
"""

from urllib.parse import urldefrag, urlsplit

from dragoman.agents.loop import AgentLoop
from dragoman.agents.memory import ContextMemory
from dragoman.agents.openai_model import KEY, OPENAI, OpenAIModel
from dragoman.authoring.agent import Agent
from dragoman.errors import ConfigError

OTHER_KEY = "CHAT_API_KEY"


def chat_agent(address: str) -> Agent:
    """Return an agent that answers with a chat model; raises `ConfigError` if none is named."""
    url, model = urldefrag(address)
    parts = urlsplit(url)
    if not parts.hostname or not model or parts.username is not None:
        raise ConfigError(
            "a chat model is served by its address and its name, without credentials:"
            " http://127.0.0.1:11434/v1#llama3"
        )
    is_openai = parts.scheme == "https" and parts.netloc == urlsplit(OPENAI).netloc
    chat_model = OpenAIModel(model, url=url, key_variable=KEY if is_openai else OTHER_KEY)
    loop = AgentLoop(chat_model, memory=ContextMemory())
    return loop.agent(model, f"Answers with the chat model {model}.")
