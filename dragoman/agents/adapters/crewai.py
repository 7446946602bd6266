"""A crew of CrewAI, or one of its agents, as an agent: each message is a run of a copy.

An object of a message fills the placeholders of a crew's tasks; a text fills the only one. The run
is in a thread and cannot be interrupted: a canceled task ends at once, and the crew's result is
dropped.
"""

from typing import Any, cast

from dragoman.agents.adapters.functions import titled
from dragoman.agents.adapters.wrapping import Response, Threads, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.errors import TaskRejected
from dragoman.model.message import Message

# The name of a text if no task has a placeholder.
_TEXT = "message"


def crew_agent(crew: Any, name: str) -> Agent:
    """Return an agent that runs a crew."""
    threads = Threads()

    async def respond(turn: Turn, response: Response) -> None:
        inputs = _inputs(turn.message, sorted(crew.fetch_inputs()))
        await response.finish(_result(await threads.run(_kickoff, crew, inputs)))

    own = getattr(crew, "name", None)
    # The default name of a crew says nothing.
    title = own if isinstance(own, str) and own not in ("", "crew") else titled(name)
    return wrapped(title, f"Has the crew {title} do its tasks.", respond)


def crew_member(found: Any, name: str) -> Agent:
    """Return an agent that answers with a single agent of CrewAI."""
    threads = Threads()

    async def respond(turn: Turn, response: Response) -> None:
        result = await threads.run(_kickoff, found, text_of(turn.message))
        await response.finish(_result(result))

    title = str(found.role).strip() or titled(name)
    return wrapped(title, f"Answers as {title}.", respond)


def _kickoff(found: Any, given: Any) -> Any:
    return found.copy().kickoff(given)


def _inputs(message: Message, wanted: list[str]) -> dict[str, Any]:
    data = message.data
    given = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if not given and len(wanted) < 2:
        return {wanted[0] if wanted else _TEXT: text_of(message)}
    if missing := [field for field in wanted if field not in given]:
        raise TaskRejected(f"The message needs a data part with: {', '.join(missing)}")
    return given


def _result(output: Any) -> Any:
    """Return the result of a run: an object if its last task makes one, else its text."""
    for member in ("pydantic", "json_dict"):
        value = getattr(output, member, None)
        if value is not None:
            return value
    return str(getattr(output, "raw", output))
